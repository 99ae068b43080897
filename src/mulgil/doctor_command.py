"""`mulgil doctor`: what a client would see through whatever is between it and the gateway."""

import asyncio
import re
from dataclasses import asdict
from typing import Annotated, Any

import httpx2
import orjson
import typer

from mulgil.doctor.findings import Check, compared, judge
from mulgil.doctor.measurements import CannotMeasureError, Measured, Target, measure

_FINDINGS = 1
_CANNOT = 2
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def doctor(  # noqa: PLR0913, PLR0917 - the options of a command are its arguments
    url: Annotated[str, typer.Option(help="Base URL as clients have it: https://host/v1.")],
    key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="An API key; better in the variable.")],
    direct: Annotated[str | None, typer.Option(help="Base URL of the gateway itself, to compare with.")] = None,
    idle: Annotated[float, typer.Option(min=0.1, max=120, help="Seconds of silence to try.")] = 90,
    origin: Annotated[str, typer.Option(help="Origin of a page that calls the gateway.")] = "https://doctor.example",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what proxies do to streams, headers and errors, and say what to change.

    Exit status: 0 all is good, 1 something is not, 2 nothing could be measured.
    """
    for one in (url, direct):
        if one and not re.fullmatch(r"https?://[^\s/?#@]+[^\s?#@]*", one):
            raise typer.BadParameter("a URL is http://… or https://…, without a user, a query or a fragment")
    targets = [Target(one.rstrip("/"), key, idle, origin) for one in (url, direct) if one]
    try:
        measured = asyncio.run(_measure_all(targets))
    except CannotMeasureError as error:
        if as_json:
            typer.echo(orjson.dumps({"url": targets[0].url, "ok": False, "error": str(error)}).decode())
        else:
            typer.echo(f"mulgil doctor: {error}", err=True)
        raise typer.Exit(_CANNOT) from None
    checks = [judge(one, idle, loopback=_on_loopback(target)) for target, one in zip(targets, measured, strict=True)]
    told = compared(checks[0], checks[1]) if direct else checks[0]
    good = all(check.verdict != "bad" for check in told)
    if as_json:
        report: dict[str, Any] = {"url": targets[0].url, "direct": direct, "idle": idle, "ok": good}
        report["checks"] = [asdict(check) for check in told]
        report["measured"] = [_figures(one) for one in measured]
        typer.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
    else:
        for check in told:
            typer.echo(_written(check))
    if not good:
        raise typer.Exit(_FINDINGS)


async def _measure_all(targets: list[Target]) -> list[Measured]:
    # Side by side, so that a busy machine is equally busy for both.
    tasks = [asyncio.create_task(measure(target, _report)) for target in targets]
    try:
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _report(line: str) -> None:
    typer.echo(f"mulgil doctor: {line} …", err=True)


def _on_loopback(target: Target) -> bool:
    return httpx2.URL(target.url).host in _LOOPBACK


def _written(check: Check) -> str:
    lines = [f"{check.verdict:8}{check.name:12}{check.said}"]
    if check.cause:
        lines += [f"{'':8}{'':12}cause: {check.cause}", f"{'':8}{'':12}cure:  {check.cure}"]
    return "\n".join(lines)


def _figures(one: Measured) -> dict[str, Any]:
    return {
        "http_version": one.paced.http_version,
        "tls_version": one.paced.tls_version,
        "headers_after": one.paced.headers_after,
        "sent": [tick.sent for tick in one.paced.ticks],
        "came": [tick.came for tick in one.paced.ticks],
        "silent_quiet_for": one.silent.quiet_for,
        "pinged_quiet_for": one.pinged.quiet_for,
        "headers": dict(one.paced.headers),
    }
