"""The chat page at `/`: static files, which talk to this server and to no other."""

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

# For the list of paths that need no key. The second one opens what is below it.
PAGE_PATHS = ("/", "/page/")

_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

_HEADERS = {
    # No inline script and no inline style, no other host, and no HTML made of text, whatever a model writes.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",  # for browsers that do not know frame-ancestors
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Asked again every time, so that after an update no page runs with the script of another one.
    "cache-control": "no-cache",
}


def routes() -> APIRouter:
    """A route for each file of the page."""
    router = APIRouter()
    for path, content in _files(files("mulgil") / "page", PurePosixPath("/page")):
        address = "/" if path.name == "index.html" else str(path)
        router.add_api_route(address, _File(path, content), methods=["GET"], include_in_schema=False)
    return router


def _files(folder: Traversable, at: PurePosixPath) -> list[tuple[PurePosixPath, bytes]]:
    found: list[tuple[PurePosixPath, bytes]] = []
    for entry in folder.iterdir():
        path = at / entry.name
        if entry.is_dir():
            found += _files(entry, path)
        elif path.suffix in _CONTENT_TYPES:
            found.append((path, entry.read_bytes()))
    return found


class _File:
    """Answers with one file, or says that the browser has it already."""

    def __init__(self, path: PurePosixPath, content: bytes) -> None:
        self._content = content
        self._tag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
        self._headers = _HEADERS | {"content-type": _CONTENT_TYPES[path.suffix], "etag": self._tag}

    async def __call__(self, request: Request) -> Response:
        # A proxy that compresses makes the tag a weak one.
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self._tag in known:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)
