"""On a CPU an engine answers nothing while it reads a long prompt: that is no fault, and nobody is to pay for it."""

import asyncio
from pathlib import Path

import pytest
from conftest import prepare_environment
from harness import VLLM, chat_body, serving, settings

pytestmark = [
    pytest.mark.model,
    pytest.mark.heavy(reason="a prompt that is read for a minute"),
]


@pytest.mark.timeout(300)
async def test_an_engine_that_reads_a_long_prompt_is_not_rebuilt_for_its_silence(
    demo_model: Path, tmp_path: Path
) -> None:
    prepare_environment()
    chosen = settings(
        **VLLM | {"max_model_len": 8_192},
        model=str(demo_model),
        engine_metrics=False,
        engine_rebuilds=1,
        engine_check_interval=0.5,
        engine_hung_timeout=3,
        run_folder=tmp_path / "runs",
    )
    async with serving(chosen) as server:
        server.client.timeout = 200
        first = server.engine
        seen = set()
        answering = asyncio.create_task(
            server.client.post("/v1/chat/completions", json=chat_body("water " * 7_500, max_tokens=2))
        )
        while not answering.done():
            seen.add(server.mulgil.health.state)
            await asyncio.sleep(0.1)
        answer = await answering
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] > 7_000
        assert seen == {"ready"}
        assert server.engine is first
