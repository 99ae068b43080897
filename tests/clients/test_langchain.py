"""LangChain does what its users do, and passes its own tests of chat models."""

import shutil
import xml.etree.ElementTree as ET
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from clientruns import CLIENTS, KEYS, PYTHON_3, Findings, Grounds, grounds, need, run
from harness import KEY, MODEL, serving, settings

OTHER_MODEL = "another-name"
STANDARD = CLIENTS / "python/langchain_standard.py"
# LangChain's tests that are skipped, by the reason that they give themselves.
SKIPPED = {
    "Model does not support image message.": {"test_image_inputs"},
    "Model does not support image tool message.": {"test_image_tool_message"},
    "Model does not support PDF inputs.": {"test_pdf_inputs"},
    "Model does not support PDF tool message.": {"test_pdf_tool_message"},
    "Model does not support audio inputs.": {"test_audio_inputs"},
    "Model does not explicitly support Anthropic inputs.": {"test_anthropic_inputs"},
    "VCR not set up.": {"test_stream_time"},
}


@pytest.fixture(scope="module")
async def places(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Grounds]:
    async with grounds(tmp_path_factory.mktemp("grounds")) as running:
        yield running


@pytest.fixture(scope="module")
async def found(places: Grounds) -> Findings:
    need(PYTHON_3)
    findings = await places.findings(PYTHON_3, Path(CLIENTS / "python/langchain_program.py"))
    assert findings["version"].startswith("3.")
    return findings


def test_an_answer_is_the_same_invoked_streamed_and_awaited_with_its_usage(found: Findings) -> None:
    whole, stream = found["invoked"], found["streamed"]
    assert len(whole["text"]) > 20
    assert stream["text"] == whole["text"] == found["asynchronous"]
    assert stream["chunks"] > 3
    for read in (whole, stream):
        assert read["finish_reason"] == "stop"
        assert read["model_name"] == MODEL
    assert stream["usage"] == whole["usage"]


def test_a_tool_is_called_and_its_result_is_answered(found: Findings) -> None:
    trip = found["tool round trip"]
    assert trip["call"]["name"] == "get_weather"
    assert isinstance(trip["call"]["args"]["city"], str)
    assert trip["answer"]
    (call,) = found["tools streamed"]
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Seoul"})
    assert found["two calls answered"]


@pytest.mark.parametrize("way", ["schema", "function"])
def test_a_structured_answer_is_of_the_schema(found: Findings, way: str) -> None:
    read = found[f"structured by {way}"]
    assert set(read) == {"name", "population"}
    assert isinstance(read["population"], int)


def test_texts_are_embedded_one_and_many_alike(found: Findings) -> None:
    read = found["embedded"]
    assert read["query"] == pytest.approx(read["documents"][1], abs=1e-6)
    assert read["documents"][0] != read["documents"][1]


def test_the_older_class_completes_a_prompt(found: Findings) -> None:
    assert found["completed"]


@pytest.mark.parametrize(
    ("check", "kind", "status"),
    [
        ("too long", "OpenAIContextOverflowError", 400),
        ("no such model", "OpenAIModelNotFoundError", 404),
        ("rate limited", "OpenAIRateLimitError", 429),
    ],
)
def test_what_is_refused_is_raised_as_langchain_calls_it(found: Findings, check: str, kind: str, status: int) -> None:
    error = found.raised(check)
    assert (error["raised"], error["status"]) == (kind, status)


def test_tries_and_failures_are_those_of_the_sdk_below(found: Findings, places: Grounds) -> None:
    assert found.raised("rate limited")
    assert places.requests.statuses(KEYS["limited_key"]) == [429, 429, 429]
    assert found.raised("failing")["code"] == "engine_error"
    assert places.requests.statuses(KEYS["failing_key"]) == [200]


async def test_langchains_own_tests_pass_but_for_those_that_are_named_here(tmp_path: Path) -> None:
    need(PYTHON_3)
    # A folder of its own, where it meets neither our settings of pytest nor our fixtures.
    program = shutil.copy(STANDARD, tmp_path / "test_standard.py")
    report = tmp_path / "report.xml"
    loops = [f"-oasyncio_default_{what}_loop_scope=session" for what in ("fixture", "test")]
    async with serving(settings(served_model_name=(MODEL, OTHER_MODEL))) as gateway:
        await run(
            *(PYTHON_3, "-m", "pytest", program, "-q", "--disable-socket", "--allow-hosts=127.0.0.1"),
            *("-oasyncio_mode=auto", *loops, f"--junitxml={report}"),
            cwd=tmp_path,
            MULGIL_BASE_URL=f"{gateway.url}/v1",
            MULGIL_API_KEY=KEY,
            MULGIL_MODEL=MODEL,
            MULGIL_OTHER_MODEL=OTHER_MODEL,
        )
    skipped: dict[str, set[str]] = {}
    cases = list(ET.parse(report).iter("testcase"))
    for case in cases:
        for skip in case.iter("skipped"):
            skipped.setdefault(skip.get("message", ""), set()).add(case.get("name", ""))
    assert skipped == SKIPPED
    assert len(cases) - sum(map(len, skipped.values())) >= 40
