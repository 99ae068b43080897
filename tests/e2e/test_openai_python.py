"""Both majors of the OpenAI SDK, strict about every field, against real vLLM."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from harness import KEY, MODEL, Server

pytestmark = pytest.mark.model

HERE = Path(__file__).parent
OPENAI_2 = HERE.parent.parent / ".venvs/openai-2/bin/python"
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module", params=["3", "2"])
async def found(request: pytest.FixtureRequest, vllm_server: Server) -> dict[str, Any]:
    """What the SDK of that major read."""
    interpreter = sys.executable if request.param == "3" else str(OPENAI_2)
    process = await asyncio.create_subprocess_exec(
        interpreter,
        str(HERE / "openai_client.py"),
        f"{vllm_server.url}/v1",
        KEY,
        MODEL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    read: dict[str, Any] = orjson.loads(out)
    assert read["version"].startswith(f"{request.param}.")
    return read


def test_the_model_answers_rightly_in_every_way_of_asking(found: dict[str, Any]) -> None:
    for way in ("plain", "async plain", "helper"):
        choice = found[way]["choices"][0]
        assert choice["message"]["content"] == ANSWER
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] == "stop"
    for way in ("stream", "async stream"):
        deltas = [choice["delta"].get("content") or "" for chunk in found[way] for choice in chunk["choices"]]
        assert "".join(deltas) == ANSWER
        assert len([delta for delta in deltas if delta]) > 3


def test_usage_is_the_same_plain_and_streamed(found: dict[str, Any]) -> None:
    usage = found["plain"]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (37, 8, 45)
    assert found["stream"][-1]["usage"] == usage
    assert found["stream"][-1]["choices"] == []


def test_all_chunks_of_a_stream_share_id_created_and_model(found: dict[str, Any]) -> None:
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in found["stream"]}) == 1


def test_models_are_listed_and_retrieved(found: dict[str, Any]) -> None:
    assert MODEL in found["models"]
    assert found["retrieved"] == MODEL


def test_errors_are_raised_as_the_right_types_with_their_fields(found: dict[str, Any]) -> None:
    kind, status, code, param, request_id = found["range"]
    assert (kind, status, code, param) == (
        "UnprocessableEntityError",
        422,
        "decimal_above_max_value",
        "temperature",
    )
    assert request_id.startswith("req_")
    assert found["model"][:4] == ["NotFoundError", 404, "model_not_found", "model"]
