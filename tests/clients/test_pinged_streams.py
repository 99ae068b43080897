"""The SDKs read streams with comments every 50 ms, with ids and without, in every pacing."""

from pathlib import Path

import orjson
import pytest
from clientruns import CLIENTS, NODE_MODULES, PYTHON_2, PYTHON_3, need, node, run
from harness import KEY, MODEL, script, serving, settings

SAID = "Slow 물길은 🌊. End"
PACES = {"token": "token", "word": "word", "sentence": "sentence", "interval": {"interval_ms": 30}}


@pytest.mark.parametrize(
    ("needed", "program"),
    [
        (PYTHON_3, CLIENTS / "python/pinged_program.py"),
        (PYTHON_2, CLIENTS / "python/pinged_program.py"),
        (NODE_MODULES, CLIENTS / "node/pinged_program.mjs"),
    ],
    ids=["python 3", "python 2", "node"],
)
async def test_comments_ids_and_pacing_change_nothing_of_what_is_read(needed: Path, program: Path) -> None:
    need(needed)
    command = node() if program.suffix == ".mjs" else needed
    options = {
        f"{name}, {'kept' if kept else 'ordinary'}": {"chunking": pace, "resumable": kept}
        for name, pace in PACES.items()
        for kept in (False, True)
    }
    async with serving(settings(ping_interval=0.05, heartbeat_interval=0.1)) as server:
        told = {
            "gateway": server.url,
            "key": KEY,
            "model": MODEL,
            "prompt": script(text=SAID, gap=0.07),
            "options": options,
        }
        out, _ = await run(command, program, orjson.dumps(told).decode())
    texts = orjson.loads(out)
    assert len(texts) == 16
    assert set(texts.values()) == {SAID}
