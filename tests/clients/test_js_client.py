"""The JavaScript client, by its own tests in Node, against real gateways and through a relay that cuts and drips."""

import re
import shutil
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import orjson
import pytest
from clientruns import ROOT, Grounds, grounds, node, run
from harness import KEY, MODEL

CLIENT = ROOT / "clients/js"
COMPILED = ROOT / "src/mulgil/page/client"
COMPILER = CLIENT / "node_modules/.bin/tsc"
PROGRAMS = sorted((CLIENT / "test").glob("*.test.mjs"))


@pytest.fixture(scope="module")
async def places(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Grounds]:
    if shutil.which(node()) is None:
        pytest.skip("there is no Node: scripts/setup-clients brings one")
    async with grounds(tmp_path_factory.mktemp("grounds")) as running:
        yield running


@pytest.fixture(scope="module")
def compiler() -> Path:
    if not COMPILER.exists():
        pytest.skip("the TypeScript compiler is missing: scripts/setup-clients brings it")
    return COMPILER


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name.partition(".")[0])
async def test_its_own_tests_pass(places: Grounds, program: Path) -> None:
    told = {
        "gateway": places.gateway.url,
        "quiet": places.quiet.url,
        "full": places.full.url,
        "storeless": places.storeless.url,
        "key": KEY,
        "model": MODEL,
    }
    out, _ = await run(
        node(), "--test", "--test-reporter=tap", program, cwd=CLIENT, MULGIL_GROUNDS=orjson.dumps(told).decode()
    )
    counts = {name: int(count) for name, count in re.findall(r"^# (tests|pass|skipped) (\d+)$", out, re.MULTILINE)}
    assert counts["tests"] == counts["pass"] > 3
    assert counts["skipped"] == 0


def test_what_the_page_loads_is_what_the_source_compiles_to(compiler: Path, tmp_path: Path) -> None:
    command = [str(compiler), "--project", "tsconfig.page.json", "--outDir", str(tmp_path)]
    subprocess.run(command, cwd=CLIENT, check=True, timeout=50)
    fresh = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in COMPILED.iterdir()}
    assert kept == fresh, "run `npm run page` in clients/js"


def test_it_depends_on_nothing_and_its_tools_are_pinned() -> None:
    package = orjson.loads((CLIENT / "package.json").read_bytes())
    assert "dependencies" not in package
    assert [pin for pin in package["devDependencies"].values() if not re.fullmatch(r"[0-9.]+", pin)] == []
    assert "://" not in (CLIENT / "package-lock.json").read_text()


def test_nothing_it_is_made_of_names_a_host() -> None:
    files = (*COMPILED.iterdir(), *(CLIENT / "src").iterdir())
    assert [path.name for path in files if re.search(r"https?://", path.read_text())] == []
