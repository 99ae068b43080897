"""`mulgil usage`: what was used and what it costs, from the database."""

import asyncio
import csv
import io
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import orjson
import typer
from pydantic import ValidationError

from mulgil.config_file import load_prices
from mulgil.errors import InvalidFieldError, UsageUnavailableError
from mulgil.ledger.reports import DIMENSIONS, Line, Query, Report, UsageReports, query
from mulgil.ledgers import build_usage_database
from mulgil.prices import written
from mulgil.settings import Settings, problems, unknown_variables

_FAILED = 1
_USAGE = 2
_NUMBERS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")


def usage(  # noqa: PLR0913, PLR0917 - the options of a command are its arguments
    by: Annotated[str, typer.Option(help=f"Some of {', '.join(DIMENSIONS)}, comma-separated.")] = "tenant,model",
    since: Annotated[
        str | None,
        typer.Option(help="30d, 12h, 2030-01-31 or 2030-01-31T12:00Z; default: the first day of this month."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="The same; default: now.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant alone.")] = None,
    key: Annotated[str | None, typer.Option(help="Of the key with this id alone.")] = None,
    model: Annotated[str | None, typer.Option(help="Of this model alone.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Tell what was used, and what it costs at the prices of mulgil.toml."""
    if as_json and as_csv:
        _stop("--json or --csv: choose one", _USAGE)
    try:
        asked = query(by, since, until, {"tenant": tenant, "key": key, "model": model})
    except InvalidFieldError as error:
        _stop(error.message, _USAGE)
    report = _answer(asked)
    if as_json:
        lines = [line.labels | _numbers(line) for line in report.lines]
        body = {"since": asked.since, "until": asked.until, "data": lines, "total": _numbers(report.total)}
        typer.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode())
    elif as_csv:
        typer.echo(_csv([*asked.by, *_NUMBERS], report.lines), nl=False)
    else:
        _print_table(report)


def _answer(asked: Query) -> Report:
    if unknown := unknown_variables():
        _stop(f"no such setting: {', '.join(unknown)} (docs/settings.md lists them all)", _USAGE)
    try:
        settings = Settings()
        prices = load_prices(settings.config)
        database = build_usage_database(settings)
    except ValidationError as error:
        _stop(problems(error), _USAGE)
    except ValueError as error:
        _stop(str(error), _USAGE)

    async def answer() -> Report:
        try:
            return await UsageReports(database, prices).answer(asked)
        finally:
            await database.close()

    try:
        return asyncio.run(answer())
    except UsageUnavailableError as error:
        _stop(f"the usage database cannot be read: {error.__cause__}", _FAILED)


def _numbers(line: Line) -> dict[str, Any]:
    return {name: getattr(line, name) for name in _NUMBERS} | {"cost": written(line.cost)}


def _csv(columns: Sequence[str], lines: Sequence[Line]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(line.labels | _numbers(line) for line in lines)
    return out.getvalue()


def _print_table(report: Report) -> None:
    by = report.query.by
    total = ["total", *[""] * (len(by) - 1)] if by else []
    rows = [
        [*by, *_NUMBERS],
        *([*line.labels.values(), *map(str, _numbers(line).values())] for line in report.lines if by),
        [*total, *map(str, _numbers(report.total).values())],
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if place < len(by) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        typer.echo("  ".join(cells).rstrip())


def _stop(reason: str, status: int) -> NoReturn:
    typer.echo(f"mulgil: {reason}", err=True)
    raise typer.Exit(status)
