"""Every example runs as it stands, with nothing but the variables that it reads."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from clientruns import (
    NODE_MODULES,
    PYTHON_2,
    PYTHON_3,
    ROOT,
    Requests,
    need,
    node,
    run,
    taking_the_only_place,
)
from embeddings import EMBEDDER, embedding_server
from harness import KEY, MODEL, Server, eventually, serving, settings

EXAMPLES = sorted(
    path for path in (ROOT / "examples").rglob("*") if path.is_file() and "node_modules" not in path.parts
)
RUNS_IN = {"openai-python": PYTHON_3, "langchain": PYTHON_3, "llamaindex": PYTHON_2}
ONE_AT_A_TIME = "[tiers.default]\nconcurrent_requests = 1\n"


@pytest.fixture(scope="module")
async def gateway() -> AsyncGenerator[Server]:
    async with embedding_server() as running:
        yield running


def copied(example: Path, folder: Path) -> tuple[str | Path, Path]:
    """The command that runs a copy in *folder*, as a user would make it, with the packages beside it."""
    copy = folder / example.name
    shutil.copy(example, copy)
    if example.suffix == ".sh":
        return "bash", copy
    if example.suffix == ".mjs":
        need(NODE_MODULES / "installed")
        (folder / "node_modules").symlink_to(NODE_MODULES)
        return node(), copy
    interpreter = RUNS_IN[example.parent.name]
    need(interpreter)
    return interpreter, copy


async def run_example(example: Path, server: Server, folder: Path) -> tuple[str, str]:
    return await run(
        *copied(example, folder),
        cwd=folder,
        MULGIL_BASE_URL=f"{server.url}/v1",
        MULGIL_API_KEY=KEY,
        MULGIL_MODEL=MODEL,
        MULGIL_EMBEDDING_MODEL=EMBEDDER,
        PYTHONPATH=str(ROOT / "src"),  # the package `mulgil`, where an example needs it
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
async def test_every_example_runs_and_says_something(gateway: Server, example: Path, tmp_path: Path) -> None:
    out, err = await run_example(example, gateway, tmp_path)
    assert len(out.strip()) > 10, out
    assert not err.strip(), err


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
async def test_no_example_ends_well_when_it_was_refused(example: Path, tmp_path: Path) -> None:
    async with serving(settings(model="another", served_model_name=("another",))) as refusing:
        with pytest.raises(AssertionError, match="ended with"):
            await run_example(example, refusing, tmp_path)


async def test_the_example_of_retries_waits_until_there_is_a_place(tmp_path: Path) -> None:
    tiers = tmp_path / "tiers.toml"
    tiers.write_text(ONE_AT_A_TIME)
    requests = Requests()
    async with serving(settings(config=tiers)) as full:
        requests.watch(full)
        async with taking_the_only_place(full):
            example = asyncio.create_task(run_example(ROOT / "examples/openai-python/retries.py", full, tmp_path))
            await eventually(lambda: 429 in requests.statuses(KEY), within=20)
        out, err = await example
    assert "trying again in 1." in err
    assert len(out.strip()) > 10
    assert requests.statuses(KEY)[-1] == 200


@pytest.mark.model
@pytest.mark.parametrize(
    "name",
    [
        "openai-python/chat.py",
        "openai-python/structured_output.py",
        "openai-python/tools.py",
        "openai-node/stream.mjs",
        "langchain/chat.py",
        "llamaindex/chat.py",
        "vercel/generate.mjs",
    ],
)
async def test_examples_run_on_a_real_model(vllm_server: Server, name: str, tmp_path: Path) -> None:
    out, _ = await run_example(ROOT / "examples" / name, vllm_server, tmp_path)
    assert len(out.strip()) > 10
