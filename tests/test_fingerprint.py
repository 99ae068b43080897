"""The name for a model and the way it is served: another model, or another way, is never taken for it."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mulgil.settings import Settings

SHARD = 17 * 1024 * 1024
"""Larger than what is read whole."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What looks like a model, with weights that are only sampled."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "tokenizer.json").write_text("{}")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    (model / "model.safetensors").write_bytes(bytes(range(256)) * (SHARD // 256))
    return model


def named(model: Path | str, version: str = "1", **changes: Any) -> str:
    return Settings(engine="vllm", model=str(model), served_model_name=("m",), **changes).fingerprint(version)


def test_copies_of_a_folder_have_one_name_wherever_they_lie(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "another-name"
    shutil.copytree(folder, copy, copy_function=shutil.copy)  # with times of its own
    (copy / "README.md").write_text("What no engine reads.")
    (copy / ".cache").mkdir()
    (copy / ".cache" / "lock").write_text("")
    assert named(copy) == named(folder)
    relative = folder.parent / "link"
    relative.symlink_to(folder)
    assert named(relative) == named(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_change_of_one_letter_in_a_small_file_changes_it(folder: Path, file: str) -> None:
    before = named(folder)
    (folder / file).write_text((folder / file).read_text().replace("m", "n").replace("{}", "[]"))
    assert named(folder) != before


def test_weights_of_the_same_size_that_were_trained_further_change_it(folder: Path) -> None:
    before = named(folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    # One layer in fifty, far from both ends.
    start, length = SHARD // 3, SHARD // 50
    weights[start : start + length] = bytes(byte ^ 1 for byte in weights[start : start + length])
    (folder / "model.safetensors").write_bytes(weights)
    assert named(folder) != before


def test_a_file_more_or_less_or_of_another_length_changes_it(folder: Path) -> None:
    names = {named(folder)}
    (folder / "generation_config.json").write_text("{}")
    names.add(named(folder))
    with (folder / "model.safetensors").open("ab") as weights:
        weights.write(b"\0")
    names.add(named(folder))
    (folder / "chat_template.jinja").unlink()
    names.add(named(folder))
    assert len(names) == 4


@pytest.mark.parametrize(
    "way",
    [
        {"quantization": "fp8"},
        {"dtype": "float32"},
        {"max_model_len": 100},
        {"tool_call_parser": "hermes"},
        {"chat_template": "{{ messages }}"},
        {"tensor_parallel_size": 2},
        {"engine_args": {"kv_cache_dtype": "fp8"}},
    ],
    ids=lambda way: next(iter(way)),
)
def test_another_way_to_serve_it_changes_it(folder: Path, way: dict[str, Any]) -> None:
    assert named(folder, **way) != named(folder)


def test_another_version_changes_it(folder: Path) -> None:
    assert named(folder, "2") != named(folder)


def test_what_changes_no_answer_does_not_change_it(folder: Path, tmp_path: Path) -> None:
    quiet: dict[str, Any] = {
        "engine_rebuilds": 1,
        "run_folder": tmp_path,
        "chunk_interval": 0,
        "engine_check_interval": 9,
    }
    assert named(folder, **quiet) == named(folder)


def test_arguments_count_whatever_their_order(folder: Path) -> None:
    there = {"seed": 1, "kv_cache_dtype": "fp8"}
    back = dict(reversed(there.items()))
    assert named(folder, engine_args=there) == named(folder, engine_args=back)


def test_the_chat_template_counts_by_what_is_in_its_file(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("one")
    before = named(folder, chat_template=str(template))
    template.write_text("two")
    assert named(folder, chat_template=str(template)) != before
    # One that is written out is no path.
    assert named(folder, chat_template="{{ messages }}" * 1_000) != before


def test_a_model_that_engine_args_name_counts_too(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    assert named("any", engine_args={"model": str(other)}) == named("any", engine_args={"model": str(folder)})
    (other / "config.json").write_text("{}")
    assert named("any", engine_args={"model": str(other)}) != named("any", engine_args={"model": str(folder)})


def test_a_model_that_is_not_here_is_named_by_its_name() -> None:
    assert named("org/one") == named("org/one") != named("org/two")


def test_another_process_finds_the_same_name(folder: Path) -> None:
    code = (
        "from mulgil.settings import Settings\n"
        f"print(Settings(engine='vllm', model={str(folder)!r}, served_model_name=('m',)).fingerprint('1'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == named(folder)


@pytest.mark.model
def test_a_model_of_the_hub_is_named_by_what_was_downloaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "hub" / "models--org--name"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs/main").write_text("abc")
    shutil.copytree(folder, hub / "snapshots/abc")
    code = (
        "from mulgil.settings import Settings\n"
        "print(Settings(engine='vllm', model='org/name', served_model_name=('m',)).fingerprint('1'))"
    )
    monkeypatch.setenv("HF_HUB_CACHE", str(hub.parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == named(folder)
