"""A real engine is killed under its gateway: another gateway answers until there is a new one."""

import asyncio
from pathlib import Path

import psutil
import pytest
from conftest import prepare_environment
from harness import KEY, MODEL, UNLIMITED, VLLM, chat_body, events, eventually, serving, settings

pytestmark = pytest.mark.model

HEADER = "x-mulgil-fallback"


@pytest.mark.timeout(240)
async def test_another_gateway_answers_while_the_engine_is_rebuilt_and_finishes_no_answer_of_it(
    eight_heads: Path, tmp_path: Path
) -> None:
    prepare_environment()
    async with serving(settings(model="elsewhere")) as second:
        (tmp_path / "mulgil.toml").write_text(
            UNLIMITED.read_text()
            + f"""
[upstreams.second]
url = "{second.url}/v1"
key = "{KEY}"
model = "elsewhere"
[models.{MODEL}]
fallbacks = ["second"]
"""
        )
        chosen = settings(
            **VLLM,
            model=str(eight_heads),
            config=tmp_path / "mulgil.toml",
            engine_metrics=False,
            engine_rebuilds=2,
            engine_canary=True,
            run_folder=tmp_path / "runs",
        )
        before = {child.pid for child in psutil.Process().children()}
        async with serving(chosen) as first:
            own = await first.chat(max_tokens=4)
            assert HEADER not in own.headers
            body = chat_body(stream=True, max_tokens=1_500, ignore_eos=True)
            reading = asyncio.create_task(first.client.post("/v1/chat/completions", json=body))
            await eventually(lambda: first.mulgil.gateway.running == 1 and bool(first.engine.progress))
            cores = [child for child in psutil.Process().children() if child.pid not in before]
            for core in cores:
                if "EngineCore" in " ".join(core.cmdline()):
                    core.kill()
            cut = await reading
            assert "error" in events(cut.text)[-1]
            assert "[DONE]" not in events(cut.text)
            await eventually(lambda: first.mulgil.health.state == "rebuilding", within=20)
            for stream in (False, True):
                answer = await first.chat(max_tokens=4, stream=stream)
                assert (answer.status_code, answer.headers[HEADER]) == (200, "second")
            await eventually(lambda: first.mulgil.health.state == "ready", within=120)
            again = await first.chat(max_tokens=4)
            assert HEADER not in again.headers
            assert (await second.client.get("/v1/models")).status_code == 200
