"""What the documents say exists, and what exists is in the documents."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from harness import settings

import mulgil.errors
from mulgil.api.body import _BOUNDS, _LENGTHS
from mulgil.app import build
from mulgil.cli import app as command_line
from mulgil.engine.simulated_answers import Script
from mulgil.telemetry import names

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])


def codes() -> set[str]:
    """Every `code` that an error can carry."""
    kinds = [kind for kind in vars(mulgil.errors).values() if isinstance(kind, type)]
    fixed = {code for kind in kinds if isinstance(code := vars(kind).get("code"), str)}
    ranges = {f"{noun}_{direction}" for noun in ("integer", "decimal") for direction, *_ in _BOUNDS.values()}
    return fixed | ranges | {code for code, _ in _LENGTHS.values()} | {
        "invalid_api_key", "invalid_type", "invalid_value", "missing_required_parameter",
    }  # fmt: skip


def test_every_error_code_is_documented_and_every_documented_one_exists() -> None:
    table = [line for line in (ROOT / "docs/errors.md").read_text().splitlines() if line.startswith("|")][2:]
    documented = {code for line in table for code in re.findall(r"`([a-z_]+)`", line.rsplit("|", 2)[1])}
    assert documented == codes()


def test_every_route_is_in_the_readme_and_every_route_there_exists(tmp_path: Path) -> None:
    application = build(settings(embeddings_model="any", usage_url=None, state_folder=tmp_path)).app
    served = {
        (method, re.sub(r":path", "", path))
        for path, methods in application.openapi()["paths"].items()
        for method in (name.upper() for name in methods)
    } | {("GET", "/openapi.json")}
    readme = (ROOT / "README.md").read_text()
    written = set(re.findall(r"`(GET|POST|DELETE) (/[^`]*)`", readme))
    assert written == served


def test_every_command_is_documented_and_every_documented_one_exists() -> None:
    commands = {
        command.name or command.callback.__name__ for command in command_line.registered_commands if command.callback
    }
    text = "\n".join(page.read_text() for page in PAGES)
    assert (
        set(re.findall(r"\bmulgil ([a-z][a-z-]+)\b(?=[ `])", text)) & {"serve", "quickstart", "check-config", "version"}
        <= commands
    )
    assert {name for name in commands if f"mulgil {name}" in text} == commands


def test_every_simulation_field_is_documented_and_the_other_way_round() -> None:
    text = (ROOT / "docs/simulated-engine.md").read_text()
    assert set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)) == set(Script.model_fields)


def table(page: str, heading: str) -> set[str]:
    """What is in backquotes in the first column of the first table after *heading*."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_metric_is_documented_with_its_labels_and_every_documented_one_exists() -> None:
    assert table("operations.md", "metric") == {metric.told_as for metric in names.METRICS}
    rows = re.findall(r"^\| `(mulgil_\w+)` \| (\w+) \| ([\w, ]*) ?\|", (ROOT / "docs/operations.md").read_text(), re.M)
    written = {(name, kind, tuple(filter(None, labels.strip().split(", ")))) for name, kind, labels in rows}
    assert written == {(metric.told_as, metric.kind, metric.labels) for metric in names.METRICS}


def test_every_field_of_a_log_line_is_documented_and_every_documented_one_exists() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    fields = set(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in rows_under(page, "### The access line"))))
    assert table("operations.md", "field") == set(names.LINE_FIELDS)
    assert fields == set(names.ACCESS_FIELDS)


def rows_under(page: str, heading: str) -> list[str]:
    """The rows of the table under *heading*."""
    return [row for row in page.partition(heading)[2].partition("\n#")[0].splitlines() if row.startswith("| `")]


def test_every_span_and_attribute_is_documented_and_every_documented_one_exists() -> None:
    assert table("operations.md", "span") == set(get_args(names.Stage))
    assert table("operations.md", "attribute") == set(names.SPAN_ATTRIBUTES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_script_and_file_that_is_named_exists(page: Path) -> None:
    for name in re.findall(r"`?((?:scripts|deploy|src|tests|docs)/[A-Za-z0-9_./@-]+[A-Za-z0-9])", page.read_text()):
        assert (ROOT / name).exists(), name


def examples() -> list[Path]:
    return [path for path in (ROOT / "examples").rglob("*.*") if path.is_file() and "node_modules" not in path.parts]


def test_every_example_is_in_the_page_of_clients_and_every_one_there_exists() -> None:
    named = set(re.findall(r"`(examples/[^`]+)`", (ROOT / "docs/clients.md").read_text()))
    assert named == {str(path.relative_to(ROOT)) for path in examples()}


def test_every_snippet_for_a_client_is_part_of_an_example() -> None:
    def without_indent(text: str) -> str:
        return "\n".join(line.strip() for line in text.strip().splitlines())

    page = (ROOT / "docs/clients.md").read_text()
    snippets = re.findall(r"^```(?:python|js|bash)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    texts = [without_indent(path.read_text()) for path in examples()]
    assert len(snippets) > 5
    for snippet in snippets:
        assert any(without_indent(snippet) in text for text in texts), snippet


def test_the_generated_pages_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/generate_docs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
