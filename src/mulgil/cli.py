"""The `mulgil` command."""

from typing import Annotated, NoReturn

import orjson
import typer
from pydantic import ValidationError
from pydantic_settings import CliApp

from mulgil import __version__
from mulgil.adapters import build_catalogue, build_keys, build_loras, build_upstreams, check_engine_args, take_part
from mulgil.audit import Audit
from mulgil.config_file import load_adapters, load_models, load_prices, load_tiers
from mulgil.doctor_command import doctor
from mulgil.embedders import check_embeddings_engine_args
from mulgil.keys_command import keys_app
from mulgil.ledgers import build_usage
from mulgil.logging_setup import log_to_stderr
from mulgil.packaged_model import DemoModelError
from mulgil.quickstart import completed, snippet
from mulgil.server import serve
from mulgil.settings import Settings, problems, unknown_variables
from mulgil.tiers import shown
from mulgil.usage_command import usage
from mulgil.variants_command import variants_app

_USAGE = 2
_SECRET_WORDS = ("token", "key", "secret", "password")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="An OpenAI-compatible gateway around vLLM.",
    pretty_exceptions_show_locals=False,  # locals hold keys
)
app.add_typer(keys_app, name="keys")
app.add_typer(variants_app, name="variants")
app.command()(doctor)
app.command()(usage)
# The flags of these commands are the settings themselves (docs/settings.md); `--help` lists them.
_TAKES_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(name="serve", context_settings=_TAKES_SETTINGS)
def serve_command(context: typer.Context) -> None:
    """Serve one model, or compute for machine 0 that does. Every setting is a flag: see --help."""
    settings = _settings("serve", context.args)
    _check(settings)
    log_to_stderr(settings)
    if settings.node_rank:
        try:
            raise typer.Exit(take_part(settings))
        except ValueError as error:
            _stop(str(error))
    raise typer.Exit(serve(settings))


@app.command(context_settings=_TAKES_SETTINGS)
def quickstart(
    context: typer.Context,
    embeddings: Annotated[bool, typer.Option("--embeddings", help="Serve a demo model for embeddings too.")] = False,
) -> None:
    """Serve with what is missing filled in: a demo model, a key; then say how to call it."""
    given = _settings("quickstart", context.args)
    try:
        settings = completed(given, embeddings=embeddings, report=lambda line: typer.echo(f"mulgil: {line}", err=True))
    except DemoModelError as error:
        _stop(str(error))
    _check(settings)
    log_to_stderr(settings)
    raise typer.Exit(
        serve(
            settings,
            on_loading=lambda seconds: typer.echo(f"mulgil: loading the model ({seconds} s) …", err=True),
            on_ready=lambda url: typer.echo(snippet(url, settings)),
        )
    )


@app.command(name="check-config", context_settings=_TAKES_SETTINGS)
def check_config(context: typer.Context) -> None:
    """Print the effective settings, secrets hidden, and the tiers; or say what is wrong with them."""
    settings = _settings("check-config", context.args)
    _check(settings)
    try:
        check_engine_args(settings)
        check_embeddings_engine_args(settings)
    except ValueError as error:
        _stop(str(error))
    report = settings.model_dump(mode="json")
    for group in ("engine_args", "embeddings_engine_args"):
        report[group] = {
            name: "**********" if any(word in name for word in _SECRET_WORDS) else value
            for name, value in getattr(settings, group).items()
        }
    report["tiers"] = {name: shown(tier) for name, tier in load_tiers(settings.config).items()}
    models = load_models(settings.config).items()
    report["models"] = {
        name: model.model_dump(mode="json", exclude={"price"}, exclude_defaults=True) for name, model in models
    }
    report["prices"] = {name: price.model_dump(mode="json") for name, price in load_prices(settings.config).items()}
    report["adapters"] = {name: str(path) for name, path in load_adapters(settings.config).items()}
    typer.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Run the command line."""
    app()


def _settings(command: str, arguments: list[str]) -> Settings:
    if unknown := unknown_variables():
        _stop(f"no such setting: {', '.join(unknown)} (docs/settings.md lists them all)")
    Settings.model_config["cli_prog_name"] = f"mulgil {command}"
    try:
        return CliApp.run(Settings, cli_args=arguments)
    except ValidationError as error:
        _stop(problems(error))


def _check(settings: Settings) -> None:
    try:
        settings.check()
        build_usage(settings, load_tiers(settings.config))
        build_keys(settings)
        build_catalogue(settings, build_loras(settings), build_upstreams(settings))
        Audit(settings.audit_log)
    except ValueError as error:
        _stop(str(error))


def _stop(reason: str) -> NoReturn:
    typer.echo(f"mulgil: {reason}", err=True)
    raise typer.Exit(_USAGE)
