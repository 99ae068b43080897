"""`mulgil keys`: makes, changes and withdraws keys, in the file of keys or in Redis."""

import asyncio
import getpass
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import orjson
import typer
from pydantic import ValidationError

from mulgil.adapters import build_key_stores
from mulgil.audit import Actor, Audit
from mulgil.auth.keys import KeyRecord
from mulgil.auth.registrar import Grant, Issued, Registrar
from mulgil.config_file import load_tiers
from mulgil.errors import KeyNotFoundError, KeysUnavailableError, MulgilError
from mulgil.settings import Settings, problems, unknown_variables
from mulgil.tiers import DEFAULT

T = TypeVar("T")

_FAILED = 1
_USAGE = 2
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_COLUMNS = ("id", "prefix", "tenant", "tier", "models", "status", "expires", "created")

keys_app = typer.Typer(no_args_is_help=True, help="Make, change and withdraw keys, in a file or in Redis.")

KeysFile = Annotated[
    Path | None, typer.Option(help="The file of keys, instead of MULGIL_KEYS_FILE; without either, MULGIL_REDIS_URL.")
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
KeyId = Annotated[str, typer.Argument(help="The key's id, key_…, as `mulgil keys list` shows it.")]


@keys_app.command()
def create(  # noqa: PLR0913, PLR0917 - the options of a command are its arguments
    tier: Annotated[str, typer.Option(help="Name of a tier of mulgil.toml.")] = DEFAULT,
    tenant: Annotated[str, typer.Option(help="Whose key it is.")] = "default",
    models: Annotated[str | None, typer.Option(help="The models it may use, comma-separated; default: all.")] = None,
    expires: Annotated[str | None, typer.Option(help="30d, 12h, 2030-01-31 or 2030-01-31T12:00Z.")] = None,
    keys_file: KeysFile = None,
    as_json: AsJSON = False,
) -> None:
    """Make a key and print it, this once."""
    names = None if models is None else tuple(name.strip() for name in models.split(","))
    grant = Grant(tenant, tier, names, None if expires is None else _moment(expires))
    _print_issued(_run(keys_file, lambda registrar, by: registrar.create(by, grant)), as_json=as_json)


@keys_app.command(name="list")
def list_keys(keys_file: KeysFile = None, as_json: AsJSON = False) -> None:
    """List the keys; none of them can be read."""
    records = _run(keys_file, lambda registrar, _: registrar.list())
    views = [record.view(datetime.now(UTC)) for record in records]
    if as_json:
        _print_json(views)
    else:
        _print_table([_COLUMNS, *([_written(view[name]) for name in _COLUMNS] for view in views)])


@keys_app.command()
def show(key_id: KeyId, keys_file: KeysFile = None, as_json: AsJSON = False) -> None:
    """Show a key's record."""
    _print(_run(keys_file, lambda registrar, _: registrar.get(key_id)), as_json=as_json)


@keys_app.command()
def rotate(
    key_id: KeyId,
    grace: Annotated[str, typer.Option(help="How long the old key works beside the new one: 7d, 12h, 0s.")] = "24h",
    keys_file: KeysFile = None,
    as_json: AsJSON = False,
) -> None:
    """Make a new key for the same record and print it, this once."""
    span = _span(grace)
    if span is None:
        _stop(f"--grace: '{grace}' is no time such as 7d, 12h or 0s", _USAGE)
    _print_issued(_run(keys_file, lambda registrar, by: registrar.rotate(by, key_id, span)), as_json=as_json)


@keys_app.command()
def disable(key_id: KeyId, keys_file: KeysFile = None, as_json: AsJSON = False) -> None:
    """Refuse a key until it is enabled again."""
    _print(_run(keys_file, lambda registrar, by: registrar.change(by, key_id, {"disabled": True})), as_json=as_json)


@keys_app.command()
def enable(key_id: KeyId, keys_file: KeysFile = None, as_json: AsJSON = False) -> None:
    """Accept a disabled key again."""
    _print(_run(keys_file, lambda registrar, by: registrar.change(by, key_id, {"disabled": False})), as_json=as_json)


@keys_app.command()
def delete(key_id: KeyId, keys_file: KeysFile = None, as_json: AsJSON = False) -> None:
    """Forget a key for good, and print what it was."""
    _print(_run(keys_file, lambda registrar, by: registrar.delete(by, key_id)), as_json=as_json)


def _run(keys_file: Path | None, action: Callable[[Registrar, Actor], Awaitable[T]]) -> T:
    """What *action* returns; a failure ends the program with its reason."""
    if unknown := unknown_variables():
        _stop(f"no such setting: {', '.join(unknown)} (docs/settings.md lists them all)", _USAGE)
    try:
        settings = Settings() if keys_file is None else Settings(keys_file=keys_file)
        stores = build_key_stores(settings)
        tiers, audit = load_tiers(settings.config), Audit(settings.audit_log)
    except ValidationError as error:
        _stop(problems(error), _USAGE)
    except ValueError as error:
        _stop(str(error), _USAGE)
    if not stores:
        _stop("where are the keys? Set MULGIL_KEYS_FILE or MULGIL_REDIS_URL, or give --keys-file", _USAGE)

    async def act() -> T:
        try:
            return await action(Registrar(stores[0], tiers, audit), Actor(f"cli:{_user()}"))
        finally:
            for store in stores:
                await store.close()

    try:
        return asyncio.run(act())
    except KeysUnavailableError as error:
        _stop(str(error.__cause__ or error), _FAILED)
    except KeyNotFoundError as error:
        _stop(error.message, _FAILED)
    except MulgilError as error:
        _stop(error.message, _USAGE)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's user may have no name


def _span(text: str) -> timedelta | None:
    found = re.fullmatch(r"(\d{1,6})([dhms])", text)
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else None


def _moment(text: str) -> datetime:
    span = _span(text)
    try:
        found = datetime.now(UTC) + span if span is not None else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        _stop(f"--expires: '{text}' is neither a time such as 30d or 12h nor a date such as 2030-01-31", _USAGE)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _print_issued(issued: Issued, *, as_json: bool) -> None:
    view = issued.record.view(datetime.now(UTC))
    if as_json:
        _print_json({**view, "key": issued.key})
        return
    typer.echo(f"{issued.key}\n")
    typer.echo("This is the key. It is kept nowhere and will not be shown again.\n", err=True)
    _print(issued.record, as_json=False)


def _print(record: KeyRecord, *, as_json: bool) -> None:
    view = record.view(datetime.now(UTC))
    if as_json:
        _print_json(view)
    else:
        _print_table([(name, _written(value)) for name, value in view.items()])


def _print_json(value: Any) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode())


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _written(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, tuple):
        return ",".join(value)
    return {None: "-", True: "yes", False: "no"}.get(value, str(value))


def _stop(reason: str, status: int) -> NoReturn:
    typer.echo(f"mulgil: {reason}", err=True)
    raise typer.Exit(status)
