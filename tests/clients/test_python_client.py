"""`mulgil.client` under both majors of the SDK: streams through a relay that cuts, other servers, and refusals."""

import random
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from clientruns import CLIENTS, PYTHON_2, PYTHON_3, ROOT, Findings, need, run
from embeddings import balance, limited
from harness import KEY, MODEL, Server, eventually, script, serving, settings
from plainserver import CUT, IN_50_SECONDS, PlainServer, Refusal, finish, plain_server
from relay import Relay, relaying

from mulgil.admission.policy import Balance

PROGRAM = CLIENTS / "python/mulgil_client_program.py"
TEXT = "물길은 막지 않고 🌊 이끈다. Ça coule. " * 40
SLOW = "강물이 천천히"
CALLS = [{"name": "f", "arguments": {"city": "서울"}}, {"name": "g", "arguments": "{}"}]
WAVE = Refusal(503, {"retry-after": "1"})

# Model: what its first request is refused with; the wait that the client chooses, or None where it does not try again.
REFUSED: dict[str, tuple[Refusal, tuple[float, float] | None]] = {
    "429": (Refusal(429), (0, 0.5)),
    "429 with milliseconds": (Refusal(429, {"retry-after-ms": "1500", "retry-after": "9"}), (1.5, 1.65)),
    "429 with seconds": (Refusal(429, {"retry-after": "3"}), (3, 3.3)),
    "429 that says no": (Refusal(429, {"x-should-retry": "false", "retry-after": "1"}), None),
    "429 that never fits": (Refusal(429, error={"code": "request_exceeds_limit"}), None),
    "429 without quota": (Refusal(429, error={"code": "insufficient_quota"}), None),
    "429 far away": (Refusal(429, {"retry-after": "61"}), None),
    "503": (Refusal(503), (0, 0.5)),
    "503 with fractions": (Refusal(503, {"retry-after": "0.25"}), (0.25, 0.275)),
    "503 with nonsense": (Refusal(503, {"retry-after-ms": "soon", "retry-after": "nan"}), (0, 0.5)),
    "503 in the past": (Refusal(503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}), (0, 0.5)),
    "503 with a date": (Refusal(503, {"retry-after": IN_50_SECONDS}), (40, 55)),
    "503 that says no": (Refusal(503, {"x-should-retry": "false"}), None),
    "500": (Refusal(500), (0, 0.5)),
    "502 with seconds": (Refusal(502, {"retry-after": "2"}), (2, 2.2)),
    "408": (Refusal(408), (0, 0.5)),
    "409": (Refusal(409), (0, 0.5)),
    "400": (Refusal(400, {"retry-after": "1"}), None),
    "400 that says yes": (Refusal(400, {"x-should-retry": "true"}), None),
    "401": (Refusal(401, {"retry-after": "1"}), None),
    "403": (Refusal(403), None),
    "404": (Refusal(404), None),
    "413": (Refusal(413), None),
    "422": (Refusal(422), None),
}


def others() -> PlainServer:
    """A server that is not Mulgil, with all that it does."""
    words = ["one ", "two ", "three ", "four."]
    calls = {"delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}}
    broken: list[list[Any]] = [[*words[:2], CUT], ["two ", *words[2:], finish()]]
    return PlainServer(
        refusals={
            **{model: [refusal] for model, (refusal, _) in REFUSED.items()},
            "four attempts": [WAVE] * 9,
            "deadline": [Refusal(503, {"retry-after": "2"})] * 9,
            "async": [WAVE, Refusal(429)],
            "async wrong": [Refusal(401)],
            "busy stream": [Refusal(429, {"retry-after-ms": "5"}), Refusal(500)],
        },
        scenes={
            "ordinary": [[*words, finish()]],
            "strict": [[*words, finish()]],
            "busy stream": [[*words, finish()]],
            "broken": list(broken),
            "broken async": list(broken),
            "warned": list(broken),
            "nothing came": [[CUT], [*words, finish()]],
            "only the ending": [[*words, finish(), CUT]],
            "always broken": [["one ", CUT]],
            "no end": [["one ", CUT]],
            "tools": [[calls, CUT]],
            "structured": [['{"a":', CUT]],
        },
        strict=frozenset({"strict"}),
        slow={"too slow": 1.0},
    )


def cuts(count: int, first: int = 1_500) -> tuple[int, ...]:
    """After how many bytes lines break: the first one when its head is through, the others anywhere."""
    chance = random.Random(count)
    return (first, *(chance.randrange(1, 1_600) for _ in range(count)))


@dataclass(frozen=True)
class Met:
    """What the program found, and what its servers saw."""

    found: Findings
    other: PlainServer
    relays: dict[str, Relay]
    used: Balance


def told(gateways: dict[str, str]) -> dict[str, Any]:
    return {
        **gateways,
        "key": KEY,
        "model": MODEL,
        "refused": list(REFUSED),
        "long": script(text=TEXT, gap=0.001, split_characters=True),
        "slow": script(text=SLOW, gap=0.1, split_characters=True),
        "calls": script(reasoning="Let me think.", text="I look.", tool_calls=CALLS),
        "endless": script(tokens=4_000, gap=0.01),
        "failing": script(tokens=20, fail_at=5, gap=0.001),
    }


async def gateways(stack: AsyncExitStack, folder: Path) -> dict[str, Server]:
    forgetful, patient = {"resume_grace": 0.2, "resume_retention": 0.1}, {"resume_grace": 0.2}
    chosen = {
        "gateway": settings(),
        "quiet": settings(),
        "limited": settings(config=limited(folder, output_tokens_per_minute=10**6)),
        "forgetful": settings(**forgetful),
        "patient": settings(**patient),
        "pinging": settings(ping_interval=0.02, heartbeat_interval=0.04),
    }
    return {name: await stack.enter_async_context(serving(one)) for name, one in chosen.items()}


@pytest.fixture(scope="module", params=[PYTHON_3, PYTHON_2], ids=["python 3", "python 2"])
async def met(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Met]:
    need(request.param)
    async with AsyncExitStack() as stack:
        servers = await gateways(stack, tmp_path_factory.mktemp("gateways"))
        broken: dict[str, tuple[str, tuple[int, ...]]] = {
            "cut": ("limited", cuts(70)),
            "cut async": ("limited", cuts(71)),
            "calls cut": ("gateway", cuts(20)),
            "pinged": ("pinging", cuts(12)),
            "stays broken": ("gateway", (2_500, 1, 1, 1, 1)),
            "gone": ("forgetful", (2_500,)),
            "given up": ("patient", (2_500,)),
        }
        relays = {
            name: await stack.enter_async_context(relaying(servers[server], cuts=at))
            for name, (server, at) in broken.items()
        }
        other = await stack.enter_async_context(plain_server(others()))
        places: dict[str, Any] = {**servers, **relays, "plain": other}
        addresses = {name: place.url for name, place in places.items()} | {"nowhere": nowhere()}
        out, err = await run(
            request.param, PROGRAM, orjson.dumps(told(addresses)).decode(), PYTHONPATH=str(ROOT / "src")
        )
        assert not err, err
        await eventually(lambda: servers["quiet"].engine.load().unfinished == 0, within=1)
        yield Met(Findings(orjson.loads(out)), other, relays, await balance(servers["limited"]))


def nowhere() -> str:
    """The address of a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("interpreter", [PYTHON_3, PYTHON_2], ids=["python 3", "python 2"])
async def test_importing_it_needs_nothing_but_python(interpreter: Path) -> None:
    need(interpreter)
    program = "import sys, mulgil.client; print(sorted({'openai', 'httpx', 'httpx2', 'pydantic'} & set(sys.modules)))"
    out, _ = await run(interpreter, "-c", program, PYTHONPATH=str(ROOT / "src"))
    assert out.strip() == "[]"


@pytest.mark.parametrize("name", ["cut", "cut async"])
def test_cut_after_any_bytes_a_stream_is_exact(met: Met, name: str) -> None:
    read, relay = met.found[name], met.relays[name]
    assert read["joined"] == read["text"] == TEXT
    assert (read["raised"], read["exact"], read["seams"], read["kept"]) == (None, True, [], True)
    assert (read["roles"], read["finish"], read["usage"]) == ([0], ["stop"], [len(TEXT.encode())])
    assert relay.streams > 50


def test_the_two_of_them_met_more_than_a_hundred_cuts_and_were_charged_once_each(met: Met) -> None:
    assert met.relays["cut"].streams + met.relays["cut async"].streams > 102
    assert met.used.requests == 2
    assert met.used.output_tokens == 2 * len(TEXT.encode())
    assert (met.used.held_tokens, met.used.concurrency) == (0, 0)


def test_calls_reasoning_and_several_choices_are_exact_too(met: Met) -> None:
    whole, cut = met.found["calls uncut"], met.found["calls"]
    assert met.relays["calls cut"].streams > 5
    assert [choice["message"]["tool_calls"][0]["function"]["name"] for choice in whole] == ["f", "f"]
    for choice in (*whole, *cut):
        for call in choice["message"]["tool_calls"]:
            call.pop("id")  # each answer has its own
    assert cut == whole


def test_what_only_breaks_a_silence_moves_no_reader(met: Met) -> None:
    assert met.found["heartbeats"]["joined"] == SLOW
    assert met.relays["pinged"].streams > 3


def test_a_line_that_stays_broken_is_a_connection_error_after_so_many_tries(met: Met) -> None:
    read = met.found["stays broken"]
    assert read["raised"] == "APIConnectionError"
    assert TEXT.startswith(read["text"])
    assert read["text"]
    assert "characters of stream_" in read["notes"][0]
    assert met.relays["stays broken"].streams == 3


def test_a_stream_that_is_kept_no_more_says_so(met: Met) -> None:
    read = met.found["gone"]
    assert (read["raised"], read["code"]) == ("NotFoundError", "stream_not_found")
    assert read["text"]
    assert "characters of stream_" in read["notes"][0]


def test_a_stream_that_was_stopped_meanwhile_is_no_whole_answer(met: Met) -> None:
    assert met.found["given up"]["raised"] == "APIError"


@pytest.mark.parametrize("name", ["failing", "failing async"])
def test_an_answer_that_fails_is_raised_and_what_came_is_kept(met: Met, name: str) -> None:
    read = met.found[name]
    assert (read["raised"], read["code"]) == ("APIError", "engine_error")
    assert read["joined"] == read["text"] != ""


def test_what_is_refused_is_raised_as_the_sdk_raises_it(met: Met) -> None:
    assert met.found["wrong"]["raised"] == "UnprocessableEntityError"


def test_whoever_leaves_a_stream_stops_the_engine(met: Met) -> None:
    # The fixture has waited for the engine, for less time than a stream without readers goes on.
    assert met.found["leaving"] == 5
    assert met.found["leaving without a block"] == 5
    assert met.found["cancelled"] == "cancelled"


@pytest.mark.parametrize("name", ["ordinary", "strict", "busy stream", "only the ending"])
def test_another_servers_stream_is_read_as_ever(met: Met, name: str) -> None:
    read = met.found[name]
    assert (read["raised"], read["exact"], read["kept"]) == (None, True, False)
    assert read["joined"] == "one two three four."
    assert (read["roles"], read["finish"]) == ([0], ["stop"])


def test_a_server_that_refuses_unknown_fields_is_asked_without_them(met: Met) -> None:
    assert [body["stream_options"] for body in met.other.asked["strict"]] == [
        {"include_usage": True, "resumable": True},
        {"include_usage": True},
    ]


@pytest.mark.parametrize("name", ["broken", "broken async", "warned"])
def test_elsewhere_the_message_is_continued_and_the_seam_is_told(met: Met, name: str) -> None:
    read = met.found[name]
    assert (read["raised"], read["exact"], read["seams"]) == (None, False, [len("one two ")])
    assert read["text"] == read["joined"] == "one two two three four."  # what a seam can do
    assert read["roles"] == [0]
    first, second = met.other.asked[name]
    assert second["messages"][:-1] == [*first["messages"], {"role": "assistant", "content": "one two "}]
    assert "exactly where it stopped" in second["messages"][-1]["content"]


def test_a_seam_is_warned_of_where_the_stream_is_read(met: Met) -> None:
    assert met.found["warned"]["warned"] == [True]


def test_what_is_left_of_the_length_is_asked_for(met: Met) -> None:
    assert [body["max_tokens"] for body in met.other.asked["broken"]] == [10, 8]


def test_an_answer_of_which_nothing_came_is_asked_for_again_without_a_seam(met: Met) -> None:
    read = met.found["nothing came"]
    assert (read["joined"], read["exact"], read["roles"]) == ("one two three four.", True, [0])
    assert met.other.asked["nothing came"][0] == met.other.asked["nothing came"][1]


def test_elsewhere_tries_are_counted_altogether(met: Met) -> None:
    read = met.found["always broken"]
    assert (read["raised"], read["text"]) == ("APIConnectionError", "one one one ")
    assert len(met.other.asked["always broken"]) == 3


@pytest.mark.parametrize(
    ("name", "why"), [("tools", "tool_calls"), ("structured", "a structured answer"), ("no end", "")]
)
def test_what_cannot_be_continued_is_raised_with_the_reason(met: Met, name: str, why: str) -> None:
    read = met.found[name]
    assert read["raised"] == "APIConnectionError"
    assert why in "".join(read["notes"])
    assert len(met.other.asked[name]) == 1


@pytest.mark.parametrize("model", REFUSED)
def test_a_call_is_tried_again_where_that_is_worth_it_and_as_late_as_told(met: Met, model: str) -> None:
    wait = REFUSED[model][1]
    outcome = met.found[model]
    assert len(met.other.asked[model]) == (1 if wait is None else 2)
    assert len(outcome["waits"]) == len(met.other.asked[model]) - 1
    assert (outcome["raised"] is None) == (wait is not None)
    if wait is not None:
        assert wait[0] <= outcome["waits"][0] <= wait[1]


def test_without_a_connection_it_is_tried_as_often_as_may_be(met: Met) -> None:
    outcome = met.found["nobody there"]
    assert (outcome["raised"], len(outcome["waits"])) == ("APIConnectionError", 4)


def test_out_of_time_is_tried_again(met: Met) -> None:
    outcome = met.found["too slow"]
    assert (outcome["raised"], len(outcome["waits"])) == ("APITimeoutError", 1)


def test_no_more_is_tried_than_may_be(met: Met) -> None:
    assert met.found["four attempts"]["raised"] == "InternalServerError"
    assert len(met.other.asked["four attempts"]) == 4


def test_a_wait_that_would_end_after_the_deadline_is_not_begun(met: Met) -> None:
    assert met.found["deadline"] == {"waits": [], "raised": "InternalServerError"}
    assert len(met.other.asked["deadline"]) == 1


def test_the_asynchronous_twin_decides_alike(met: Met) -> None:
    outcome = met.found["async"]
    assert outcome["raised"] is None
    assert 1 <= outcome["waits"][0] <= 1.1
    assert 0 <= outcome["waits"][1] <= 1
    assert len(met.other.asked["async"]) == 3
    assert met.found["async wrong"] == {"waits": [], "raised": "AuthenticationError"}
