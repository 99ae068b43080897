"""Chat on the real model: text, ends and hang-ups."""

import orjson
import pytest
from harness import Server, chat_body, events, eventually, hanging_up, raw_request, text_of

pytestmark = pytest.mark.model

LONG = "Count from one to one thousand in words: one, two, three, four, five,"


@pytest.mark.parametrize(
    "content",
    [
        "What is the capital of France?",
        "한국의 수도는 어디인가요? 이모지도 써 주세요 🌊",
        "Repeat exactly: 👨‍👩‍👧‍👦 🌊 é 日本語 العربية 😀😀😀",
        "Repeat after me: 물길은 흐른다 🌊🌊🌊",
    ],
)
@pytest.mark.parametrize("fields", [{}, {"stop": ["a", "는"]}])
async def test_deltas_put_together_are_the_plain_greedy_answer_without_broken_characters(
    vllm_server: Server, content: str, fields: dict[str, object]
) -> None:
    fields = {"temperature": 0, "max_tokens": 48} | fields
    plain = (await vllm_server.chat(content, **fields)).json()["choices"][0]
    stream = events((await vllm_server.chat(content, stream=True, **fields)).text)
    assert text_of(stream) == plain["message"]["content"]
    assert stream[-2]["choices"][0]["finish_reason"] == plain["finish_reason"]
    # A greedy answer that is cut may end inside a character; nothing before the cut may be broken.
    assert "\ufffd" not in plain["message"]["content"].rstrip("\ufffd")
    if plain["finish_reason"] == "stop":
        assert "\ufffd" not in plain["message"]["content"]


async def test_finish_reasons_are_what_happened(vllm_server: Server) -> None:
    cut = (await vllm_server.chat(LONG, temperature=0, max_tokens=9)).json()
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 9
    whole = (await vllm_server.chat("What is the capital of France?", temperature=0, max_tokens=90)).json()
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] < 90


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_leaves_the_engine_idle(vllm_server: Server, stream: bool) -> None:
    body = chat_body(LONG, temperature=0, max_tokens=1500, stream=stream)
    for _ in range(3):
        async with hanging_up(vllm_server, raw_request(orjson.dumps(body))) as reader:
            await eventually(lambda: vllm_server.engine.load().unfinished == 1)
            if stream:
                await reader.readuntil(b'"content":"')
        await eventually(lambda: vllm_server.engine.load().unfinished == 0, within=0.25)
        await eventually(lambda: vllm_server.mulgil.gateway.running == 0, within=0.25)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_longer_than_the_context_is_refused_with_a_status(vllm_server: Server, stream: bool) -> None:
    response = await vllm_server.chat("water " * 5000, stream=stream)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_every_bad_body_leaves_the_engine_as_it_was(vllm_server: Server) -> None:
    for fields in ({"temperature": 9}, {"n": 10**6}, {"stop": [""]}, {"seed": 2**70}, {"n": 2, "temperature": 0}):
        assert (await vllm_server.chat(**fields)).status_code == 422
    assert (await vllm_server.chat(max_tokens=3)).status_code == 200


@pytest.mark.parametrize("seed", [-1, 0, -(2**63), 2**63 - 1])
async def test_any_64_bit_seed_is_served(vllm_server: Server, seed: int) -> None:
    assert (await vllm_server.chat(seed=seed, max_tokens=3)).status_code == 200
