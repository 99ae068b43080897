"""What a client's program found out, as one JSON object: each check's value, or what it raised."""

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_AT_ONCE = 8


def told() -> dict[str, str]:
    """Where the gateways are and what to call their keys and models, as the test says."""
    given: dict[str, str] = json.loads(sys.argv[1])
    return given


def report(checks: Mapping[str, Callable[[], Any]]) -> None:
    """Run the checks side by side, so that one that waits delays no other, and none that fails hides another."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = dict(zip(checks, pool.map(_outcome, checks.values()), strict=True))
    json.dump(found, sys.stdout, default=str)


def _outcome(check: Callable[[], Any]) -> dict[str, Any]:
    try:
        value = check()
        return {"value": asyncio.run(value) if inspect.iscoroutine(value) else value}
    except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
        fields = {name: getattr(error, name, None) for name in ("status_code", "code", "param", "type", "request_id")}
        return {
            "raised": type(error).__name__,
            "status": fields.pop("status_code"),
            **fields,
            "message": str(error)[:500],
            "traceback": traceback.format_exc(),
        }
