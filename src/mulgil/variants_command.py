"""`mulgil variants`: which of the variants of a model is better, from the usage database."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import orjson
import typer
from pydantic import ValidationError

from mulgil.config_file import load_models
from mulgil.errors import InvalidFieldError, UsageUnavailableError
from mulgil.ledger.comparison import Compared, Comparison, Figure, Tried, gather
from mulgil.ledger.database import Span
from mulgil.ledger.intervals import CONFIDENCE, Estimate
from mulgil.ledger.reports import query
from mulgil.ledgers import build_usage_database
from mulgil.settings import Settings, problems, unknown_variables

_FAILED = 1
_USAGE = 2
_SHARE = 100.0
_KINDS = {"ttft": (1_000.0, "ms"), "time_per_token": (1_000.0, "ms"), "completion_tokens": (1.0, "tokens")}
_TITLES = {
    "ttft": "first token, median",
    "time_per_token": "each token after it, median",
    "completion_tokens": "length, mean",
    "errors": "errors",
    "hang_ups": "hang-ups",
}

variants_app = typer.Typer(no_args_is_help=True, help="Tell which of the variants of a model is better.")


@variants_app.command()
def report(
    model: Annotated[str | None, typer.Option(help="Of this model alone.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="30d, 12h, 2030-01-31 or 2030-01-31T12:00Z; default: the first day of this month."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="The same; default: now.")] = None,
    control: Annotated[
        str | None, typer.Option(help="The variant that the others are compared with; default: the first one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare times, lengths and ends of the answers of each variant, with 95 % confidence intervals."""
    try:
        asked = query("", since, until, {"model": model})
    except InvalidFieldError as error:
        _stop(error.message, _USAGE)
    span = Span(asked.since, asked.until, tuple(asked.having.items()))
    gathered, order = _gathered(span)
    found = gathered.told(control, order)
    if control is not None and control not in {one.variant for compared in found for one in compared.variants}:
        there = ", ".join(sorted({one.variant for compared in found for one in compared.variants})) or "none"
        _stop(f"no request of the variant '{control[:64]}' is there; of variants there are: {there}", _USAGE)
    if as_json:
        body = {"since": span.since, "until": span.until, "confidence": CONFIDENCE, "models": [_body(c) for c in found]}
        typer.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode())
        return
    if not found:
        typer.echo(f"No request of a variant{f' of {model}' if model else ''} ended in this time.")
    for compared in found:
        _print(compared)


def _gathered(span: Span) -> tuple[Comparison, Mapping[str, Sequence[str]]]:
    """What there is, and of each model the variants in the order of the configuration."""
    if unknown := unknown_variables():
        _stop(f"no such setting: {', '.join(unknown)} (docs/settings.md lists them all)", _USAGE)
    try:
        settings = Settings()
        order = {name: list(said.variants) for name, said in load_models(settings.config).items()}
        database = build_usage_database(settings)
    except ValidationError as error:
        _stop(problems(error), _USAGE)
    except ValueError as error:
        _stop(str(error), _USAGE)

    async def read() -> Comparison:
        try:
            return await gather(database, span)
        finally:
            await database.close()

    try:
        return asyncio.run(read()), order
    except UsageUnavailableError as error:
        _stop(f"the usage database cannot be read: {error.__cause__}", _FAILED)


def _body(compared: Compared) -> dict[str, Any]:
    return {
        "model": compared.model,
        "control": compared.control,
        "variants": [
            {
                "variant": one.variant,
                "requests": one.requests,
                "cached": one.cached,
                "fallbacks": one.fallbacks,
                "keys": one.keys,
                "first": one.first,
                "last": one.last,
                "figures": {figure.name: _numbers(figure) for figure in one.figures},
            }
            for one in compared.variants
        ],
    }


def _numbers(figure: Figure) -> dict[str, Any]:
    def of(estimate: Estimate | None) -> dict[str, Any]:
        if estimate is None:
            return {"value": None, "low": None, "high": None}
        return {"value": estimate.value, "low": estimate.low, "high": estimate.high}

    difference = figure.difference
    told = None if difference is None else of(difference) | {"clear": difference.excludes_zero}
    return {"count": figure.count, **of(figure.estimate), "difference": told}


def _print(compared: Compared) -> None:
    typer.echo(f"{compared.model}, compared with {compared.control}\n")
    header = ["variant", "requests", "cached", "fallbacks", "keys", "first", "last"]
    _print_table([header, *(_counts(one) for one in compared.variants)], left=1)
    header = ["", "variant", "n", "value", "95 % interval", "difference", "95 % interval", "clear"]
    rows = [header]
    for figures in zip(*(one.figures for one in compared.variants), strict=True):
        for one, figure in zip(compared.variants, figures, strict=True):
            rows.append([_title(figure) if figure is figures[0] else "", one.variant, *_cells(figure)])
    _print_table(rows, left=2)


def _counts(one: Tried) -> list[str]:
    numbers = (one.requests, one.cached, one.fallbacks, one.keys)
    return [one.variant, *map(str, numbers), f"{one.first:%Y-%m-%d %H:%M}", f"{one.last:%Y-%m-%d %H:%M}"]


def _title(figure: Figure) -> str:
    unit = _KINDS.get(figure.name, (_SHARE, "%"))[1]
    return f"{_TITLES.get(figure.name, figure.name.removeprefix('finish_'))}, {unit}"


def _cells(figure: Figure) -> list[str]:
    factor, _ = _KINDS.get(figure.name, (_SHARE, ""))
    estimate, difference = figure.estimate, figure.difference
    told = [str(figure.count), *_written(estimate, factor, "{:.2f}".format)]
    if difference is None:
        return [*told, "", "", ""]
    return [*told, *_written(difference, factor, "{:+.2f}".format), "yes" if difference.excludes_zero else "no"]


def _written(estimate: Estimate | None, factor: float, form: Callable[[float], str]) -> list[str]:
    if estimate is None:
        return ["", ""]
    if estimate.low is None or estimate.high is None:
        return [form(estimate.value * factor), "too few"]
    return [form(estimate.value * factor), f"{form(estimate.low * factor)} to {form(estimate.high * factor)}"]


def _print_table(rows: Sequence[Sequence[str]], *, left: int) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        typer.echo("  ".join(cells).rstrip())
    typer.echo("")


def _stop(reason: str, status: int) -> NoReturn:
    typer.echo(f"mulgil: {reason}", err=True)
    raise typer.Exit(status)
