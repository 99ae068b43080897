"""Calls from a browser: off unless asked for, and then errors can be read as well."""

from collections.abc import AsyncGenerator

import httpx2
import pytest
from harness import Server, chat_body, script, serving, settings

from mulgil.engine.base import Engine, Prepared, TextRequest
from mulgil.engine.simulated import SimulatedEngine
from mulgil.schemas.chat import ChatCompletionRequest

CHAT = "/v1/chat/completions"
ORIGIN = "https://app.example"
# What openai-node sends from a browser.
SENT = "authorization,content-type,x-stainless-lang,x-stainless-os,x-stainless-retry-count,x-stainless-timeout"


class FaultyOnDemand(SimulatedEngine):
    """An engine with a fault that one prompt meets."""

    async def prepare(
        self, request: TextRequest, *, tenant: str, default_max_tokens: int | None = None, adapter: str | None = None
    ) -> Prepared:
        if isinstance(request, ChatCompletionRequest) and request.messages[-1].text == "fault":
            raise RuntimeError("inside")
        return await super().prepare(request, tenant=tenant, default_max_tokens=default_max_tokens, adapter=adapter)


async def faulty_on_demand() -> Engine:
    return FaultyOnDemand()


@pytest.fixture(scope="module")
async def cors() -> AsyncGenerator[Server]:
    """A gateway that pages of one origin may call."""
    async with serving(settings(cors_origins=(ORIGIN,)), engine=faulty_on_demand) as running:
        yield running


async def preflight(server: Server, path: str, origin: str = ORIGIN, method: str = "POST") -> httpx2.Response:
    """What a browser asks first; it sends no key with it."""
    asked = {"origin": origin, "access-control-request-method": method, "access-control-request-headers": SENT}
    async with httpx2.AsyncClient(base_url=server.url) as browser:
        return await browser.options(path, headers=asked)


async def test_cors_is_off_unless_asked_for(shared: Server) -> None:
    assert (await preflight(shared, CHAT)).status_code == 401
    answer = await shared.client.get("/v1/models", headers={"origin": ORIGIN})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/nowhere"])
async def test_a_preflight_needs_no_key_and_allows_what_the_clients_send(cors: Server, path: str) -> None:
    answer = await preflight(cors, path)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert set(answer.headers["access-control-allow-headers"].split(",")) >= set(SENT.split(","))


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", f"{ORIGIN}.evil.example", ORIGIN.replace("s", "", 1)]
)
async def test_another_origin_is_not_let_in(cors: Server, origin: str) -> None:
    refused = await preflight(cors, CHAT, origin)
    assert refused.status_code == 400
    answer = await cors.client.get("/v1/models", headers={"origin": origin})
    for headers in (refused.headers, answer.headers):
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("status", "body", "key"),
    [
        (200, chat_body(), True),
        (200, chat_body(stream=True), True),
        (200, chat_body(script(fail_at=2), stream=True), True),
        (401, chat_body(), False),
        (404, chat_body(model="nope"), True),
        (422, chat_body(n=0), True),
        (400, chat_body(audio={}), True),
        (413, chat_body("x" * 3_000_000), True),
        (500, chat_body(script(fail_at=0)), True),
        (500, chat_body("fault"), True),
    ],
    ids=[
        "plain",
        "stream",
        "failing stream",
        "wrong key",
        "no such model",
        "bad field",
        "bad parameter",
        "too large",
        "engine error",
        "fault",
    ],
)
async def test_a_page_can_read_every_answer_and_the_headers_that_matter(
    cors: Server, status: int, body: object, key: bool
) -> None:
    headers = {"origin": ORIGIN} | ({} if key else {"authorization": "Bearer wrong"})
    answer = await cors.client.post(CHAT, json=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["vary"] == "Origin"
    exposed = set(answer.headers["access-control-expose-headers"].split(", "))
    assert exposed >= {"x-request-id", "retry-after", "retry-after-ms", "x-should-retry", "openai-processing-ms"}
    assert "x-mulgil-truncated-messages" in exposed


@pytest.mark.parametrize("path", ["/nowhere", CHAT])
async def test_a_page_can_read_what_the_router_says(cors: Server, path: str) -> None:
    answer = await cors.client.get(path, headers={"origin": ORIGIN})
    assert answer.status_code in (404, 405)
    assert answer.headers["access-control-allow-origin"] == ORIGIN


async def test_any_origin_may_be_allowed_and_then_the_key_is_still_needed() -> None:
    async with serving(settings(cors_origins=("*",))) as server:
        asked = await preflight(server, CHAT, "https://any.example")
        assert asked.headers["access-control-allow-origin"] == "*"
        # A star would let a page send what the browser keeps for this server; keys come in a header.
        assert "access-control-allow-credentials" not in asked.headers
        answer = await server.client.post(
            CHAT, json=chat_body(), headers={"origin": "https://any.example", "authorization": "Bearer wrong"}
        )
        assert answer.status_code == 401
        assert answer.headers["access-control-allow-origin"] == "*"
