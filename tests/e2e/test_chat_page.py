"""The chat page in a real Chromium, against real gateways."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from browser import Watch, chromium, violations
from clientruns import Grounds, grounds, taking_the_only_place
from harness import KEY, Server, eventually, script, serving, settings
from playwright.async_api import Browser, Page, expect
from relay import relaying

TEXT = "물길 🌊 is a waterway.\nÇa coule, 천천히. 👩‍👩‍👧‍👦"
ONE_AT_A_TIME = """
[tiers.default]
concurrent_requests = 1
requests_per_minute = "unlimited"
input_tokens_per_minute = "unlimited"
output_tokens_per_minute = "unlimited"
"""
FOREVER = script(tokens=5_000, gap=0.02)

Visit = Callable[..., Awaitable[Page]]


@pytest.fixture(scope="session")
async def browser() -> AsyncGenerator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture(scope="module")
async def places(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Grounds]:
    async with grounds(tmp_path_factory.mktemp("grounds")) as running:
        yield running


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
async def visit(browser: Browser, watch: Watch) -> AsyncGenerator[Visit]:
    """Opens the page in a browser of its own; afterwards, no script failed and nobody else was asked."""
    contexts = []

    async def open_page(url: str, *, key: str | None = KEY, locale: str = "en-GB", **options: Any) -> Page:
        context = await browser.new_context(locale=locale, **options)
        contexts.append(context)
        page = await context.new_page()
        page.set_default_timeout(10_000)
        watch.over(page)
        await page.goto(url)
        if key is not None:
            await page.get_by_label(re.compile("API key|API 키")).fill(key)
            await page.keyboard.press("Enter")
        return page

    yield open_page
    for context in contexts:
        await context.close()
    assert watch.complaints == []
    assert watch.hosts <= {"127.0.0.1"}


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Your message").fill(text)
    await page.keyboard.press("Enter")


def answer(page: Page) -> Any:
    """The last answer's text."""
    return page.locator("article.answer").last.locator(".text")


async def finished(page: Page) -> None:
    await expect(page.locator("article.answer").last).to_have_attribute("aria-busy", "false", timeout=20_000)


async def idle(server: Server) -> None:
    """The engine works on nothing within a second."""
    await eventually(lambda: server.mulgil.running == 0, within=1)


async def test_an_answer_appears_token_by_token_with_its_usage_and_the_time_to_its_first_token(
    shared: Server, visit: Visit
) -> None:
    page = await visit(shared.url)
    await page.evaluate("""() => {
      window.lengths = new Set();
      new MutationObserver(() => window.lengths.add(document.querySelector("article.answer .text").textContent.length))
        .observe(document.getElementById("conversation"), {subtree: true, characterData: true});
    }""")
    await ask(page, script("hello", tokens=20, gap=0.03))
    await finished(page)
    assert len(await page.evaluate("[...window.lengths]")) >= 10
    facts = await page.locator("article.answer .facts").inner_text()
    assert re.fullmatch(r"First token after \d+\.\d\d s · \d+ prompt \+ 20 answer tokens · \d+ tokens/s", facts)


async def test_what_was_said_before_is_sent_with_the_next_question(shared: Server, visit: Visit, watch: Watch) -> None:
    page = await visit(shared.url)
    await ask(page, first := script(text="one"))
    await finished(page)
    await ask(page, second := script(text="two"))
    await expect(answer(page)).to_have_text("two")
    assert [(message["role"], message["content"]) for message in watch.bodies[-1]["messages"]] == [
        ("user", first.strip()),
        ("assistant", "one"),
        ("user", second.strip()),
    ]
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator("article")).to_have_count(0)
    await ask(page, script(text="three"))
    await expect(answer(page)).to_have_text("three")
    assert len(watch.bodies[-1]["messages"]) == 1


async def test_the_key_stays_in_the_tab_and_is_in_no_address(shared: Server, visit: Visit) -> None:
    page = await visit(shared.url)
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    await page.reload()
    await expect(page.get_by_label("API key")).to_be_hidden()
    await ask(page, script(text="known"))
    await expect(answer(page)).to_have_text("known")
    assert await page.evaluate("localStorage.length + document.cookie.length") == 0
    assert addresses
    assert [address for address in addresses if KEY in address] == []


@pytest.mark.parametrize("way", ["button", "Escape", "new chat", "leaving the page"])
async def test_stopping_leaves_the_engine_idle_within_a_second(places: Grounds, visit: Visit, way: str) -> None:
    server = places.quiet
    page = await visit(server.url)
    await ask(page, FOREVER)
    await expect(answer(page)).to_have_text(re.compile(r"\w+ \w+"))
    assert server.mulgil.running == 1
    if way == "button":
        await page.get_by_role("button", name="Stop").click()
    elif way == "Escape":
        await page.keyboard.press("Escape")
    elif way == "new chat":
        await page.get_by_role("button", name="New chat").click()
    else:
        await page.goto("about:blank")
    await idle(server)
    if way in ("button", "Escape"):
        await finished(page)
        await expect(page.get_by_text("Stopped.").first).to_be_visible()
        assert await answer(page).inner_text()
        await expect(page.get_by_label("Your message")).to_be_focused()


async def test_an_answer_is_exact_although_the_line_breaks(shared: Server, visit: Visit) -> None:
    async with relaying(shared, cuts=(2_500, 900, 1_300)) as relay:
        page = await visit(relay.url)
        await ask(page, script(text=TEXT, split_characters=True, gap=0.01))
        await expect(page.get_by_text("Connection lost, resuming").first).to_be_attached()
        await finished(page)
        assert await answer(page).evaluate("element => element.textContent") == TEXT
        assert relay.streams >= 4
        await expect(page.locator("article.answer .facts")).to_contain_text("answer tokens")
        await expect(page.locator(".failure")).to_have_count(0)


async def test_an_answer_is_exact_in_pieces_of_one_byte(shared: Server, visit: Visit) -> None:
    async with relaying(shared, one_by_one=True) as relay:
        page = await visit(relay.url)
        await ask(page, script(text=TEXT, split_characters=True))
        await finished(page)
        assert await answer(page).evaluate("element => element.textContent") == TEXT


async def test_a_line_that_stays_broken_leaves_what_was_read_and_a_way_to_go_on(shared: Server, visit: Visit) -> None:
    async with relaying(shared) as relay:
        page = await visit(relay.url)
        await page.clock.install()
        await ask(page, script(text=TEXT, split_characters=True, gap=0.01))
        await expect(answer(page)).to_have_text(re.compile("물길"))
        relay.shut()
        await expect(page.get_by_text("Connection lost, resuming").first).to_be_attached()
        for _ in range(60):
            await page.clock.fast_forward(8_000)
            if await page.locator(".failure").count():
                break
            await asyncio.sleep(0.02)
        await expect(page.get_by_role("alert")).to_have_text("The connection broke, and the answer is not whole.")
        partly = await answer(page).evaluate("element => element.textContent")
        assert partly
        assert TEXT.startswith(partly)
        relay.reopen()
        await page.get_by_role("button", name="Resume").click()
        await finished(page)
        assert await answer(page).evaluate("element => element.textContent") == TEXT
        await expect(page.locator(".failure")).to_have_count(0)


async def test_a_wrong_key_is_said_in_words_and_another_one_is_tried_at_once(shared: Server, visit: Visit) -> None:
    page = await visit(shared.url, key="sk-mg-nobody")
    await ask(page, script(text="at last"))
    await expect(page.get_by_role("alert")).to_contain_text("This API key is wrong, disabled or expired.")
    await expect(page.get_by_label("API key")).to_be_focused()
    await expect(page.get_by_label("API key")).to_have_attribute("aria-invalid", "true")
    await page.get_by_label("API key").fill(KEY)
    await page.keyboard.press("Enter")
    await expect(answer(page)).to_have_text("at last")
    await expect(page.locator(".failure")).to_have_count(0)


async def test_no_key_is_said_in_words(shared: Server, visit: Visit) -> None:
    page = await visit(shared.url, key="")
    await ask(page, "hello")
    await expect(page.get_by_role("alert")).to_contain_text("This server wants an API key.")


async def test_a_budget_that_is_used_up_counts_down_to_another_try(visit: Visit, tmp_path: Path) -> None:
    tiers = tmp_path / "tiers.toml"
    tiers.write_text(ONE_AT_A_TIME)
    async with serving(settings(config=tiers)) as server:
        page = await visit(server.url)
        async with taking_the_only_place(server):
            await ask(page, script(text="at last"))
            await expect(page.get_by_role("alert")).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_text("Your budget is used up for the moment.")
        await expect(page.get_by_text(re.compile(r"You can try again in \d+ s\."))).to_be_visible()
        again = page.get_by_role("button", name="Try again")
        await expect(again).to_be_disabled()
        await expect(again).to_be_enabled(timeout=20_000)
        await expect(page.get_by_text("You can try again in")).to_have_count(0)
        await again.click()
        await expect(answer(page)).to_have_text("at last")


async def test_a_request_larger_than_the_whole_budget_is_not_to_be_tried_again(places: Grounds, visit: Visit) -> None:
    page = await visit(places.full.url)
    await ask(page, "hello")
    await expect(page.get_by_role("alert")).to_contain_text("larger than your whole budget")
    await expect(page.get_by_role("button", name="Try again")).to_have_count(0)


async def test_a_server_that_cannot_answer_now_is_said_in_words(places: Grounds, visit: Visit) -> None:
    page = await visit(places.storeless.url)
    await ask(page, "hello")
    await expect(page.get_by_role("alert")).to_contain_text("The server cannot answer right now")
    await expect(page.get_by_role("button", name="Try again")).to_be_visible()


async def test_a_failure_in_the_middle_keeps_the_text_and_says_that_it_is_not_whole(
    shared: Server, visit: Visit
) -> None:
    page = await visit(shared.url)
    await ask(page, script(tokens=20, fail_at=8))
    await expect(page.get_by_role("alert")).to_contain_text("What you see is not whole.")
    assert await answer(page).inner_text()


async def test_what_is_wrong_with_a_request_is_said_in_words(shared: Server, visit: Visit) -> None:
    page = await visit(shared.url)
    await ask(page, '/simulate {"tokens": "many"}')
    await expect(page.get_by_role("alert")).to_contain_text("messages[0].content is not valid")
    await ask(page, "x" * 300_000)
    await expect(page.get_by_role("alert")).to_contain_text("The conversation is too long for this model.")


async def test_a_server_that_is_gone_is_said_in_words_and_can_be_asked_again(shared: Server, visit: Visit) -> None:
    async with relaying(shared) as relay:
        page = await visit(relay.url)
        relay.shut()
        await ask(page, script(text="back"))
        await expect(page.get_by_role("alert")).to_have_text("The connection broke, and the answer is not whole.")
        relay.reopen()
        await page.get_by_role("button", name="Try again").click()
        await expect(answer(page)).to_have_text("back")


async def test_what_a_model_writes_is_text_and_never_html(shared: Server, visit: Visit) -> None:
    page = await visit(shared.url)
    nasty = "<img src=x onerror=alert(1)><script>alert(2)</script><b>bold</b> &amp; [link](javascript:alert(3))"
    await ask(page, script(text=nasty))
    await finished(page)
    assert await answer(page).inner_text() == nasty
    assert await page.locator("article img, article script, article b, article a").count() == 0


async def test_enter_sends_shift_enter_starts_a_line_and_a_syllable_in_the_making_is_not_sent(
    shared: Server, visit: Visit
) -> None:
    page = await visit(shared.url)
    field = page.get_by_label("Your message")
    await field.press_sequentially("one")
    await page.keyboard.press("Shift+Enter")
    await field.press_sequentially("two")
    assert await field.input_value() == "one\ntwo"
    await field.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    assert await field.input_value() == "one\ntwo"
    await page.keyboard.press("Enter")
    assert await field.input_value() == ""
    assert await page.locator("article.question .text").inner_text() == "one\ntwo"
    await finished(page)


async def test_the_keyboard_reaches_everything_in_the_order_of_the_page(shared: Server, visit: Visit) -> None:
    page = await visit(shared.url)
    await page.get_by_label("Model").focus()
    reached = ["model"]
    for _ in range(6):
        await page.keyboard.press("Tab")
        reached.append(await page.evaluate("document.activeElement.id"))
    assert reached == ["model", "new-chat", "key-button", "language", "conversation", "question", "send"]


async def test_a_screen_reader_is_told_sentences_and_the_end(shared: Server, visit: Visit) -> None:
    page = await visit(shared.url)
    await ask(page, script(text="One sentence. Another one! And a last", gap=0.001))
    await finished(page)
    log = page.get_by_role("log", name="Answer")
    await expect(log).to_have_attribute("aria-live", "polite")
    said = await log.locator("p").all_inner_texts()
    assert "".join(said).replace(" ", "") == "Onesentence.Anotherone!AndalastTheansweriscomplete."


async def test_it_speaks_korean_to_koreans_and_switches(shared: Server, visit: Visit) -> None:
    page = await visit(shared.url, locale="ko-KR")
    assert await page.evaluate("document.documentElement.lang") == "ko"
    await page.get_by_label("메시지").fill(script(text="안녕"))
    await page.get_by_role("button", name="보내기").click()
    await expect(page.locator("article.answer .facts")).to_contain_text("첫 토큰까지")
    await page.get_by_role("button", name="English").click()
    await expect(page.locator("article.answer .facts")).to_contain_text("First token after")
    assert await page.evaluate("document.documentElement.lang") == "en"
    await page.reload()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_wrong(places: Grounds, visit: Visit, scheme: str) -> None:
    page = await visit(places.gateway.url, key=None, color_scheme=scheme)
    assert await violations(page) == []
    await page.get_by_label("API key").fill(KEY)
    await page.keyboard.press("Enter")
    await ask(page, script(tokens=400, reasoning="It thinks first."))
    await finished(page)
    assert await violations(page) == []
    await ask(page, script(tokens=20, fail_at=8))
    await expect(page.get_by_role("alert")).to_be_visible()
    assert await violations(page) == []
    await ask(page, script(hang_at=2))
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    assert await violations(page) == []
    await page.keyboard.press("Escape")


async def test_the_end_of_an_answer_stays_in_view_unless_the_reader_scrolls_up(shared: Server, visit: Visit) -> None:
    page = await visit(shared.url, viewport={"width": 400, "height": 500})
    conversation = page.locator("#conversation")
    await ask(page, script(tokens=300))
    await finished(page)
    await ask(page, script(tokens=600, fail_at=300))
    await expect(page.get_by_role("alert")).to_be_in_viewport()
    await ask(page, script(tokens=300, gap=0.01))
    await expect(answer(page)).to_have_text(re.compile(r"\w+ \w+"))
    await conversation.evaluate("element => element.scrollTop = 0")
    await asyncio.sleep(0.5)
    assert await conversation.evaluate("element => element.scrollTop") == 0
    await finished(page)


async def test_nothing_is_wider_than_a_phone(shared: Server, visit: Visit) -> None:
    page = await visit(shared.url, viewport={"width": 320, "height": 640})
    await ask(page, script(text="a" * 300))
    await finished(page)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 320
    assert await page.locator("#conversation").evaluate("element => element.scrollWidth <= element.clientWidth")


async def test_where_no_key_is_wanted_none_is_needed(visit: Visit) -> None:
    async with serving(settings(api_keys=(), insecure=True)) as server:
        page = await visit(server.url, key=None)
        await ask(page, script(text="open to all"))
        await expect(answer(page)).to_have_text("open to all")
