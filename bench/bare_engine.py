"""The limit of the engine: `AsyncLLM.generate` in a process that does nothing else.

    python -m bench.bare_engine '{"model": "FOLDER", "max_num_seqs": 128}'

Says `{"ready": …}` on standard output, then answers each line of standard input, a load as JSON, with a line of what it
measured. Prompts are tokenised before the clock starts; nothing is sent anywhere.
"""

import asyncio
import dataclasses
import json
import os
import sys
import time
from typing import Any, TextIO

import uvloop

from bench.figures import percentile
from bench.load import Load, Measured

Streamed = list[tuple[float, float, int, list[float]]]


class BareEngine:
    """An engine and its tokenizer."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        from vllm import AsyncEngineArgs  # noqa: PLC0415 - after the environment is set, as vLLM wants it
        from vllm.usage.usage_lib import UsageContext  # noqa: PLC0415 - as above
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415 - as above

        context = UsageContext.OPENAI_API_SERVER
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), usage_context=context)
        self._serial = 0

    async def run(self, load: Load) -> Measured:
        """Put *load* on the engine."""
        numbers = range(load.streams * load.requests)
        prompts = [await self.rendered(load.prompt(number)) for number in numbers]
        busy, begun = time.process_time(), time.perf_counter()

        async def stream(index: int) -> Streamed:
            mine = prompts[index * load.requests : (index + 1) * load.requests]
            return [await self._one(prompt, load) for prompt in mine]

        done = await asyncio.gather(*(stream(index) for index in range(load.streams)))
        seconds, cpu = time.perf_counter() - begun, time.process_time() - busy
        flat = [one for each in done for one in each]
        ttft, total, tokens, gaps = ([one[field] for one in flat] for field in range(4))
        return Measured(
            seconds=seconds,
            tokens=sum(tokens),  # type: ignore[arg-type]  # the columns of one tuple
            events=sum(len(one[3]) + 1 for one in flat),
            ttft=_cuts(ttft),
            gaps=_cuts([gap for each in gaps for gap in each]),  # type: ignore[union-attr]  # as above
            totals=_cuts(total),
            cpu=cpu,
            failures=[],
        )

    async def rendered(self, text: str) -> Any:
        """What the engine is given for a chat of one message."""
        from vllm.renderers.params import ChatParams, TokenizeParams  # noqa: PLC0415 - imported already

        limit = self._llm.model_config.max_model_len
        keywords = {"tokenize": False, "add_generation_prompt": True, "continue_final_message": False}
        _, (found,) = await self._llm.renderer.render_chat_async(
            [[{"role": "user", "content": text}]],
            ChatParams(chat_template_kwargs=keywords),
            TokenizeParams(max_total_tokens=limit, add_special_tokens=False),
        )
        return found

    async def _one(self, prompt: Any, load: Load) -> tuple[float, float, int, list[float]]:
        from vllm import SamplingParams  # noqa: PLC0415 - imported already
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - as above

        self._serial += 1
        kind = RequestOutputKind.DELTA if load.streamed else RequestOutputKind.FINAL_ONLY
        params = SamplingParams(temperature=0, max_tokens=load.tokens, output_kind=kind, skip_clone=True, **load.extra)
        begun = last = time.perf_counter()
        ttft, tokens, gaps = 0.0, 0, []
        async for output in self._llm.generate(dict(prompt), params, str(self._serial)):
            now = time.perf_counter()
            if ttft:
                gaps.append(now - last)
            else:
                ttft = now - begun
            tokens, last = tokens + len(output.outputs[0].token_ids), now
        return ttft, last - begun, tokens, gaps

    async def preparation(self, words: int, times: int) -> dict[str, float]:
        """Seconds of template and tokenizer for a prompt of *words*, and how many tokens it has."""
        load = Load(port=0, model="", words=words)
        texts = [load.prompt(number) for number in range(times)]
        begun = time.perf_counter()
        for text in texts:
            found = await self.rendered(text)
        return {"seconds": (time.perf_counter() - begun) / times, "tokens": len(found["prompt_token_ids"])}

    def close(self) -> None:
        """End the engine's processes."""
        self._llm.shutdown(10)


async def main(arguments: dict[str, Any], answers: TextIO) -> None:
    """Answer until standard input ends."""

    def tell(found: dict[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    engine = await asyncio.to_thread(BareEngine, arguments)
    from vllm.utils.gc_utils import freeze_gc_heap  # noqa: PLC0415 - after the environment is set

    freeze_gc_heap()  # as vLLM's own server does
    tell({"ready": True})
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            if preparation := asked.get("preparation"):
                tell(await engine.preparation(**preparation))
            else:
                tell(dataclasses.asdict(await engine.run(Load(**asked))))
    finally:
        engine.close()


def _cuts(values: list[Any]) -> tuple[float, float]:
    return percentile(values, 50), percentile(values, 99)


if __name__ == "__main__":
    # vLLM and its processes write to standard output, where only answers may be.
    with os.fdopen(os.dup(1), "w") as own:
        os.dup2(2, 1)
        uvloop.run(main(json.loads(sys.argv[1]), own))
