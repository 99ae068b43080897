"""How a WebSocket is opened and refused: browsers can send no header, and read no status."""

import orjson
from starlette.types import Receive, Scope, Send

from mulgil.api.errors import envelope
from mulgil.errors import MulgilError

KEY_PROTOCOLS = ("openai-insecure-api-key.", "mulgil-key.")
"""A page may offer its key as a subprotocol of this form, beside `mulgil` or `realtime`, which is what is accepted."""

# 4000 and above are ours; SDKs connect again after 1011 and 1013, and after none of the others.
_CODES = {400: 4400, 401: 4401, 403: 4403, 404: 4404, 408: 4408, 422: 4400, 429: 4429, 503: 1013}
_FAILED = 1011
_SPOKEN = ("mulgil", "realtime")


def close_code(error: MulgilError) -> int:
    """The close code that says what the status says over HTTP."""
    return _CODES.get(error.status, _FAILED if error.status >= 500 else 4400)


def offered_key(scope: Scope) -> bytes | None:
    """The key among the offered subprotocols."""
    for offered in scope.get("subprotocols", []):
        for form in KEY_PROTOCOLS:
            if offered.startswith(form):
                return str(offered).removeprefix(form).encode("latin-1", "replace")
    return None


def spoken(scope: Scope) -> str | None:
    """The subprotocol to accept: never the one with the key in it."""
    return next((one for one in scope.get("subprotocols", []) if one in _SPOKEN), None)


async def refuse(error: MulgilError, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a connection in words: it is accepted first, since a page cannot read why one was not."""
    if (await receive())["type"] != "websocket.connect":
        return
    await send({"type": "websocket.accept", "subprotocol": spoken(scope)})
    await send({"type": "websocket.send", "text": orjson.dumps({"type": "error", **envelope(error)}).decode()})
    await send({"type": "websocket.close", "code": close_code(error), "reason": error.message[:100]})
