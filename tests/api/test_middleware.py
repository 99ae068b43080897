"""Who may call, and what every response has, whatever became of the request."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import orjson
import pytest
from harness import KEY, Server, chat_body, raw_request, serving, settings
from pydantic import SecretStr
from raw import Answer, ask, error_of, request_line

from mulgil.api.page import PAGE_PATHS
from mulgil.app import build
from mulgil.auth.keys import digest
from mulgil.engine.base import Engine, Prepared, TextRequest
from mulgil.engine.simulated import SimulatedEngine
from mulgil.middleware_stack import OPEN_PATHS

CHAT = "/v1/chat/completions"
KEY_BYTES = KEY.encode()
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "QUERY")


def line_of(caplog: pytest.LogCaptureFixture, answer: httpx2.Response | Answer) -> dict[str, Any]:
    """The fields of the access line of the request that has *answer*."""
    lines = [fields for record in caplog.records if (fields := getattr(record, "fields", None))]
    return next(line for line in lines if line["request_id"] == answer.headers["x-request-id"])


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """All that was logged but uvicorn's access log, which is off until pytest listens to it."""
    return "\n".join(caplog.handler.format(record) for record in caplog.records if record.name != "uvicorn.access")


def chat_with(*headers: bytes, path: str = CHAT) -> bytes:
    """A chat request that can be served, if these headers hold a key."""
    body = orjson.dumps(chat_body())
    return request_line("POST", path, b"content-type: application/json", *headers, body=body)


@pytest.mark.parametrize(
    "header",
    [
        b"Authorization: Bearer " + KEY_BYTES,
        b"authorization: bearer " + KEY_BYTES,
        b"AUTHORIZATION: BEARER " + KEY_BYTES,
        b"authorization:bEaReR   " + KEY_BYTES + b"  ",
    ],
)
async def test_a_right_key_is_let_in_however_the_scheme_is_written(shared: Server, header: bytes) -> None:
    assert (await ask(shared, chat_with(header))).status_code == 200


NO_KEY = {
    "nothing": (),
    "an empty header": (b"authorization:",),
    "blanks": (b"authorization: \t ",),
    "the scheme alone": (b"authorization: Bearer",),
    "the scheme and blanks": (b"authorization: bearer   ",),
    "the key in x-api-key": (b"x-api-key: " + KEY_BYTES,),
    "the key in api-key": (b"api-key: " + KEY_BYTES,),
    "the key in a cookie": (b"cookie: authorization=" + KEY_BYTES,),
    "the key in proxy-authorization": (b"proxy-authorization: Bearer " + KEY_BYTES,),
    "bytes that are no ASCII in x-api-key": (b"x-api-key: caf\xe9",),
}
WRONG_KEY = {
    "another key": (b"authorization: Bearer sk-mg-wrong",),
    "half of the key": (b"authorization: Bearer " + KEY_BYTES[:-1],),
    "the key and more": (b"authorization: Bearer " + KEY_BYTES + b"x",),
    "the key in upper case": (b"authorization: Bearer " + KEY_BYTES.upper(),),
    "the key's digest": (b"authorization: Bearer " + digest(KEY_BYTES).encode(),),
    "Latin-1": (b"authorization: Bearer caf\xe9",),
    "typographic quotes": (b"authorization: Bearer \xe2\x80\x9c" + KEY_BYTES + b"\xe2\x80\x9d",),
    "the key and a byte that is no ASCII": (b"authorization: Bearer " + KEY_BYTES + b"\xff",),
    "a tab": (b"authorization: Bearer a\tb",),
    "a tab after the scheme": (b"authorization: Bearer\t" + KEY_BYTES,),
    "10 kB": (b"authorization: Bearer " + b"z" * 10_000,),
    "100 kB": (b"authorization: Bearer " + b"z" * 100_000,),
    "the key twice": (b"authorization: Bearer " + KEY_BYTES,) * 2,
    "the key and another": (b"authorization: Bearer " + KEY_BYTES, b"authorization: Bearer x"),
    "another and the key": (b"authorization: Bearer x", b"authorization: Bearer " + KEY_BYTES),
    "two keys in one header": (b"authorization: Bearer " + KEY_BYTES + b", Bearer x",),
    "no scheme": (b"authorization: " + KEY_BYTES,),
    "Basic with bad base64": (b"authorization: Basic !!!",),
    "Basic with the key": (b"authorization: Basic " + KEY_BYTES,),
}


@pytest.mark.usefixtures("no_errors_logged")
@pytest.mark.parametrize(
    ("headers", "code"),
    [pytest.param(headers, None, id=name) for name, headers in NO_KEY.items()]
    + [pytest.param(headers, "invalid_api_key", id=name) for name, headers in WRONG_KEY.items()],
)
async def test_without_the_right_key_it_is_a_401_and_nothing_of_it_is_logged(
    shared: Server, caplog: pytest.LogCaptureFixture, headers: tuple[bytes, ...], code: str | None
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = await ask(shared, chat_with(*headers))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    error = error_of(answer)
    assert (error["code"], error["param"]) == (code, None)
    for where in (answer.content.decode(), logged(caplog)):
        assert not re.search(f"{KEY}|café|zzzz|Traceback", where, re.IGNORECASE)


@pytest.mark.usefixtures("no_errors_logged")
async def test_a_header_with_a_null_byte_never_reaches_the_application(
    shared: Server, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ask(shared, chat_with(b"authorization: Bearer " + KEY_BYTES + b"\x00"))
    assert answer.status_code == 400
    assert KEY not in logged(caplog)


@pytest.mark.parametrize("query", ["api_key=", "key=", "access_token=", "authorization=Bearer%20"])
async def test_a_key_in_the_url_opens_nothing_and_is_not_logged(
    shared: Server, caplog: pytest.LogCaptureFixture, query: str
) -> None:
    caplog.set_level(logging.DEBUG)
    for value in (KEY, "%E9"):
        answer = await ask(shared, chat_with(path=f"{CHAT}?{query}{value}"))
        assert answer.status_code == 401
        assert error_of(answer)["code"] is None
    assert KEY not in logged(caplog)


async def test_a_served_request_does_not_log_its_key_either(shared: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answer = await shared.chat("a prompt for nobody else")
    line = line_of(caplog, answer)
    assert (line["method"], line["route"], line["status"]) == ("POST", CHAT, 200)
    assert line["key"] == f"key-{digest(KEY_BYTES).removeprefix('sha256:')[:8]}"
    assert KEY not in logged(caplog)
    assert "a prompt for nobody else" not in logged(caplog)


async def test_the_401_does_not_wait_for_the_body(shared: Server) -> None:
    async with asyncio.timeout(1):
        answer = await ask(shared, f"POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n".encode())
    assert answer.status_code == 401
    assert error_of(answer)["code"] is None


async def test_the_401_comes_before_anything_is_said_about_the_body(shared: Server) -> None:
    answer = await ask(shared, request_line("POST", CHAT, body=b"[" * 100_000))
    assert answer.status_code == 401


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path == "/" or path.startswith(("/health/", "/v1/models/", "/page/"))


@pytest.mark.usefixtures("no_errors_logged")
async def test_every_route_needs_a_key_with_every_method_but_those_on_the_open_list(shared: Server) -> None:
    paths = {getattr(route, "path", "") for route in shared.mulgil.app.routes}
    assert paths >= {CHAT, "/openapi.json", "/v1/models", "/health/live"}
    answers = {
        (method, path): (await ask(shared, request_line(method, path.replace("{name:path}", "demo")))).status_code
        for path in paths
        for method in METHODS
    }
    closed = {call: status for call, status in answers.items() if not is_open(call[1])}
    assert set(closed.values()) == {401}
    opened = {call: status for call, status in answers.items() if is_open(call[1])}
    assert {call[0] for call, status in opened.items() if status == 200} == {"GET"}
    assert set(opened.values()) == {200, 405}


def test_the_open_list_is_no_longer_than_meant() -> None:
    assert set(OPEN_PATHS) == {"/health", "/health/", "/v1/models", "/v1/models/"}
    assert set(PAGE_PATHS) == {"/", "/page/"}  # and of them, `/` opens nothing below it


PATHS = [
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/V1/chat/completions",
    "/v1/CHAT/completions",
    "/v1/../v1/chat/completions",
    "/./v1/chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/completions/.",
    "/v1%2fchat/completions",
    "/v1/chat%2Fcompletions",
    "/v1/chat/completions%2f",
    "/%76%31/chat/completions",
    "/v1/chat/completions;x",
    "/v1;x=y/chat/completions",
    "/v1/chat/completions%3b",
    "/v1/chat/completions%00",
    "/v1/chat/completions%20",
    "/v1/chat/completions%0a",
    "/v1/chat/completions.json",
    "/v1/chat/completions#x",
    "/v1/chat/completions?/health/",
    "/v1/chat/completions?path=/v1/models/",
    "\\v1\\chat\\completions",
    "http://test/v1/chat/completions",
    "http://test//health/../v1/chat/completions",
    "/health/../v1/chat/completions",
    "/health/%2e%2e/v1/chat/completions",
    "/health/..%2fv1/chat/completions",
    "/health//v1/chat/completions",
    "/health;/v1/chat/completions",
    "/healthz",
    "/health/live/../../openapi.json",
    "/v1/models/../chat/completions",
    "/v1/models/%2e%2e/chat/completions",
    "/v1/models/..%2f..%2fopenapi.json",
    "/v1/models;/../chat/completions",
    "/v1/modelsx",
    "/v1/chat/completions/../../models",
    "/openapi.json",
    "/openapi.json/",
    "/docs",
    "/redoc",
    "/docs/oauth2-redirect",
    "/metrics",
    "/admin",
    "/tokenize",
    "/v1/completions",
    "/",
    "/%ff",
    "/%",
    "*",
    "/" + "a" * 10_000,
]


@pytest.mark.usefixtures("no_errors_logged")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:50])
async def test_no_way_of_writing_a_path_opens_it(shared: Server, path: str) -> None:
    # 400: the server itself refused to read it. 404, 405: it is below an open path, where nothing is.
    # 200, 405: it is the chat page.
    below = path.startswith(("/health/", "/v1/models/"))
    expected = {404, 405} if below else {200, 405} if path == "/" else {400, 401}
    for method in METHODS:
        request = chat_with(path=path).replace(b"POST", method.encode(), 1)
        assert (await ask(shared, request)).status_code in expected


@pytest.mark.parametrize(
    "header", [b"x-original-url: ", b"x-rewrite-url: ", b"x-forwarded-prefix: ", b"x-http-method-override: POST "]
)
async def test_no_header_turns_an_open_path_into_another(shared: Server, header: bytes) -> None:
    for method, expected in (("GET", b'"object":"list"'), ("POST", b"method_not_allowed")):
        answer = await ask(shared, request_line(method, "/v1/models", header + CHAT.encode()))
        assert expected in answer.content


async def test_an_open_path_does_not_care_about_a_wrong_key(shared: Server) -> None:
    for path in ("/v1/models", "/health"):
        assert (await ask(shared, request_line("GET", path, b"authorization: Bearer x"))).status_code == 200


@pytest.mark.parametrize("entry", [KEY, digest(KEY_BYTES)])
async def test_a_key_is_configured_plainly_or_as_its_digest(entry: str) -> None:
    async with serving(settings(api_keys=(SecretStr("sk-mg-another-key"), SecretStr(entry)))) as server:
        assert (await server.chat()).status_code == 200
        assert (await ask(server, chat_with(b"authorization: Bearer sk-mg-another-key"))).status_code == 200
        assert (await ask(server, chat_with(b"authorization: Bearer " + entry.encode() + b"x"))).status_code == 401


@pytest.mark.parametrize(
    "entry", ["short", "with a space in it", "schlüssel-über-alles", "sha256:abc", "SHA256:" + "a" * 64]
)
def test_a_malformed_key_is_refused_at_the_start_without_being_shown(entry: str) -> None:
    with pytest.raises(ValueError, match=r"a (key|digest) is") as refusal:
        build(settings(api_keys=(SecretStr(entry),)))
    assert entry not in str(refusal.value)


def test_without_any_key_the_server_does_not_start() -> None:
    with pytest.raises(ValueError, match="no API key is configured"):
        build(settings(api_keys=()))


async def test_an_insecure_server_serves_whoever_comes() -> None:
    async with serving(settings(api_keys=(), insecure=True)) as server:
        for headers in ((), (b"authorization: Bearer whatever",), (b"authorization: \xff",)):
            assert (await ask(server, chat_with(*headers))).status_code == 200


async def test_every_response_has_an_id_of_its_own_that_is_ours(shared: Server) -> None:
    answers = [
        await shared.client.request(method, path, headers={"x-request-id": "theirs"}, json=body)
        for method, path, body in (
            ("POST", CHAT, chat_body()),
            ("POST", CHAT, chat_body(stream=True)),
            ("POST", CHAT, {}),
            ("GET", CHAT, None),
            ("HEAD", "/health", None),
            ("GET", "/nowhere", None),
            ("GET", "/v1/models", None),
        )
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(re.fullmatch("req_[0-9a-f]{32}", one) for one in ids)
    assert len(set(ids)) == len(ids)
    assert all(answer.headers["openai-processing-ms"].isdecimal() for answer in answers)


@pytest.mark.parametrize(
    ("sent", "logged_as"),
    [(b"trace-7/a:b", "trace-7/a:b"), (b"two words", None), (b"\xe9", None), (b"x" * 129, None), (b"a%0aINFO", None)],
)
async def test_a_callers_request_id_is_logged_beside_ours_if_it_can_stand_in_a_log(
    shared: Server, caplog: pytest.LogCaptureFixture, sent: bytes, logged_as: str | None
) -> None:
    caplog.set_level(logging.INFO)
    answer = await ask(shared, chat_with(b"authorization: Bearer " + KEY_BYTES, b"x-request-id: " + sent))
    assert line_of(caplog, answer).get("client_request_id") == logged_as


@pytest.mark.usefixtures("no_errors_logged")
@pytest.mark.parametrize("method", [method for method in METHODS if method != "CONNECT"])
async def test_an_unknown_route_is_a_404_with_every_method(shared: Server, method: str) -> None:
    answer = await ask(shared, raw_request(b"", path="/v1/nowhere").replace(b"POST", method.encode(), 1))
    assert answer.status_code == 404
    if method != "HEAD":
        assert error_of(answer) == {
            "message": f"Invalid URL ({method} /v1/nowhere).",
            "type": "invalid_request_error",
            "param": None,
            "code": "unknown_url",
        }


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1/nowhere/" + "a" * 10_000, "/%ff%00", "/v1/'\"<script>"])
async def test_an_unknown_route_may_look_like_anything(shared: Server, path: str) -> None:
    answer = await ask(shared, raw_request(b"", path=path))
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "unknown_url"


@pytest.mark.usefixtures("no_errors_logged")
@pytest.mark.parametrize("method", [method for method in METHODS if method != "CONNECT"])
@pytest.mark.parametrize(
    ("path", "allowed"), [(CHAT, {"POST"}), ("/v1/models", {"GET"}), ("/v1/models/demo", {"GET"}), ("/health", {"GET"})]
)
async def test_a_wrong_method_is_a_405_that_says_which_is_right(
    shared: Server, path: str, allowed: set[str], method: str
) -> None:
    if method in allowed:
        return
    answer = await ask(shared, raw_request(b"", path=path).replace(b"POST", method.encode(), 1))
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    if method != "HEAD":
        assert error_of(answer)["code"] == "method_not_allowed"


class Faulty(SimulatedEngine):
    """An engine with a fault in it."""

    async def prepare(
        self, request: TextRequest, *, tenant: str, default_max_tokens: int | None = None, adapter: str | None = None
    ) -> Prepared:
        raise RuntimeError("the inside of the engine")


async def faulty() -> Engine:
    return Faulty()


@pytest.fixture
async def broken() -> AsyncGenerator[Server]:
    """A gateway on an engine with a fault in it."""
    async with serving(engine=faulty) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_of_ours_is_a_500_that_says_nothing_and_is_logged_once(
    broken: Server, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    answer = await broken.chat(stream=stream)
    assert answer.status_code == 500
    assert error_of(answer) == {
        "message": "The server had an error while processing your request.",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    faults: list[Any] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(faults) == 1
    assert answer.headers["x-request-id"] in faults[0].getMessage()
    assert "the inside of the engine" in str(faults[0].exc_info[1])


async def test_after_a_fault_the_server_goes_on(broken: Server) -> None:
    for _ in range(3):
        assert (await broken.chat()).status_code == 500
    assert (await broken.client.get("/health/ready")).status_code == 200
    assert broken.mulgil.gateway.running == 0
