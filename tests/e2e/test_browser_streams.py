"""Streams in a real Chromium, from pages of other origins: fetch with `clients/js`, and EventSource with a ticket."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from browser import Watch, chromium
from harness import KEY, MODEL, Server, eventually, script, serving, settings
from playwright.async_api import Browser, Page
from relay import relaying

TEXT = "물길 🌊 is a waterway.\nÇa coule, 천천히. 👩‍👩‍👧‍👦"
SLOWLY = script(text=TEXT, split_characters=True, gap=0.01)

STREAM_CHAT = """async ({url, key, model, content, ...options}) => {
  const client = await import(`${url}/page/client/index.js`);
  const told = {reconnects: 0, resumed: 0};
  const stream = client[options.call ?? "streamChat"]({
    baseUrl: `${url}/v1`, key, model, messages: [{role: "user", content}], reconnect: {firstDelay: 1}, ...options,
    onReconnect: () => told.reconnects++,
    onResumed: () => told.resumed++,
  });
  try {
    return {...await stream.result(), ...told};
  } catch (error) {
    return {error: error.name, message: error.message, retryAfter: error.retryAfter, requestId: error.requestId,
            text: stream.text, ...told};
  }
}"""

EVENT_SOURCE = """(address) => new Promise((resolve) => {
  const told = {text: "", opened: 0, errors: 0};
  const source = new EventSource(address);
  source.onopen = () => told.opened++;
  source.onerror = () => {
    told.errors++;
    if (source.readyState === EventSource.CLOSED) resolve(told);
  };
  source.onmessage = ({data}) => told.text += JSON.parse(data).choices[0]?.delta.content ?? "";
  source.addEventListener("done", ({data}) => {
    source.close();
    resolve({...told, ...JSON.parse(data)});
  });
})"""


@pytest.fixture(scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture(scope="module")
async def elsewhere() -> AsyncGenerator[Server]:
    """Serves a page of another origin: JSON, which has no policy of its own."""
    async with serving() as running:
        yield running


@pytest.fixture(scope="module")
async def gateway(elsewhere: Server) -> AsyncGenerator[Server]:
    """A gateway that lets pages of that origin in."""
    async with serving(settings(cors_origins=(elsewhere.url,))) as running:
        yield running


@pytest.fixture
async def page(browser: Browser, elsewhere: Server) -> AsyncGenerator[Page]:
    """A page of another origin."""
    context = await browser.new_context()
    page = await context.new_page()
    watch = Watch()
    watch.over(page)
    await page.goto(f"{elsewhere.url}/health")
    yield page
    await context.close()
    assert watch.complaints == []


async def stream_chat(page: Page, url: str, content: str, **options: Any) -> dict[str, Any]:
    told = {"url": url, "key": KEY, "model": MODEL, "content": content}
    result: dict[str, Any] = await page.evaluate(STREAM_CHAT, told | options)
    return result


async def ticket(server: Server) -> str:
    answer = await server.client.post("/v1/tickets")
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["ticket"])


async def test_a_page_of_another_origin_streams_with_fetch(page: Page, gateway: Server) -> None:
    result = await stream_chat(page, gateway.url, SLOWLY)
    assert (result["text"], result["finishReason"], result["status"]) == (TEXT, "stop", "completed")
    assert result["usage"]["completion_tokens"] == len(TEXT.encode())


async def test_one_byte_at_a_time_is_the_same_answer(page: Page, gateway: Server) -> None:
    async with relaying(gateway, one_by_one=True) as relay:
        assert (await stream_chat(page, relay.url, SLOWLY))["text"] == TEXT


async def test_a_broken_line_is_gone_on_with_exactly(page: Page, gateway: Server) -> None:
    async with relaying(gateway, cuts=(1_800, 1_500, 2_000)) as relay:
        result = await stream_chat(page, relay.url, SLOWLY, resume=True)
    assert (result["text"], result["reconnects"], result["resumed"]) == (TEXT, 3, 3)


async def test_without_resume_a_broken_line_is_an_error_after_the_text_so_far(page: Page, gateway: Server) -> None:
    async with relaying(gateway, cuts=(2_500,)) as relay:
        result = await stream_chat(page, relay.url, SLOWLY)
    assert result["error"] == "ConnectionLostError"
    assert result["text"]
    assert TEXT.startswith(result["text"])


async def test_a_page_reads_why_it_was_refused(page: Page, gateway: Server) -> None:
    result = await stream_chat(page, gateway.url, "hello", key="sk-mg-nobody")
    assert (result["error"], result["message"]) == ("AuthenticationError", "Incorrect API key provided.")
    assert result["requestId"]


async def test_an_origin_that_is_not_let_in_reads_nothing(browser: Browser, gateway: Server) -> None:
    async with serving() as stranger:
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{stranger.url}/health")
        with pytest.raises(Exception, match="Failed to fetch"):
            await stream_chat(page, gateway.url, "hello")
        await context.close()


async def test_an_event_source_in_one_line_goes_on_by_itself_after_the_line_broke(page: Page, gateway: Server) -> None:
    async with relaying(gateway, cuts=(1_500, 900)) as relay:
        address = f"{relay.url}/stream?ticket={await ticket(gateway)}&q="
        told = await page.evaluate(f"(q) => ({EVENT_SOURCE})({address!r} + encodeURIComponent(q))", SLOWLY)
    assert told == {"text": TEXT, "opened": 3, "errors": 2, "status": "completed"}


async def test_an_event_source_goes_on_after_its_proxy_was_killed_and_started_again(
    page: Page, gateway: Server
) -> None:
    async with relaying(gateway) as relay:
        address = f"{relay.url}/stream?ticket={await ticket(gateway)}&q="
        await page.evaluate(
            f"(q) => {{ window.told = ({EVENT_SOURCE})({address!r} + encodeURIComponent(q)) }}",
            script(text=TEXT, split_characters=True, gap=0.03),
        )
        await eventually(lambda: relay.streams == 1)
        relay.shut()
        await page.wait_for_timeout(300)
        relay.reopen()
        told = await page.evaluate("window.told")
    assert (told["text"], told["status"]) == (TEXT, "completed")
    assert told["errors"] >= 1


async def test_the_event_source_form_of_the_client_makes_its_stream_and_goes_on(page: Page, gateway: Server) -> None:
    async with relaying(gateway, cuts=(1_800,)) as relay:
        result = await stream_chat(page, relay.url, SLOWLY, call="eventSourceChat")
    assert (result["text"], result["status"], result["reconnects"]) == (TEXT, "completed", 1)
    assert result["usage"]["completion_tokens"] == len(TEXT.encode())


async def test_the_event_source_form_tells_a_failure(page: Page, gateway: Server) -> None:
    result = await stream_chat(page, gateway.url, script(tokens=20, fail_at=8), call="eventSourceChat")
    assert result["error"] == "StreamFailedError"
    assert result["text"]


async def test_leaving_the_event_source_form_stops_the_engine(page: Page, gateway: Server) -> None:
    await page.evaluate(
        """async ({url, key, model, content}) => {
          const {eventSourceChat} = await import(`${url}/page/client/index.js`);
          const options = {baseUrl: `${url}/v1`, key, model, messages: [{role: "user", content}]};
          for await (const {text} of eventSourceChat(options)) if (text) break;
        }""",
        {"url": gateway.url, "key": KEY, "model": MODEL, "content": script(tokens=5_000, gap=0.02)},
    )
    await eventually(lambda: gateway.mulgil.running == 0, within=1)


async def test_a_ticket_that_is_no_good_closes_the_event_source(page: Page, gateway: Server) -> None:
    told = await page.evaluate(EVENT_SOURCE, f"{gateway.url}/stream?q=hello&ticket=tk-nobody")
    assert told == {"text": "", "opened": 0, "errors": 1}
