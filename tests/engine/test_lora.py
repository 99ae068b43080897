"""Which folders are LoRA adapters that may be loaded, and what is said of those that are not."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loras import make_adapter, write_tensors

from mulgil.engine.lora import AdapterRules, read_adapter
from mulgil.errors import InvalidFieldError

Spoil = Callable[[Path], Any]


def rules(folder: Path) -> AdapterRules:
    return AdapterRules(enabled=True, folders=(folder / "allowed",), max_rank=16)


def reason(name: str, path: Path, given: AdapterRules, *, anywhere: bool = False) -> tuple[str | None, str]:
    with pytest.raises(InvalidFieldError) as refusal:
        read_adapter(name, path, given, anywhere=anywhere)
    assert refusal.value.status == 422
    return refusal.value.param, refusal.value.message


def test_a_version_is_a_digest_of_the_files_wherever_they_lie(tmp_path: Path) -> None:
    first = read_adapter("a", make_adapter(tmp_path / "allowed/one"), rules(tmp_path))
    same = read_adapter("b", make_adapter(tmp_path / "allowed/two"), rules(tmp_path))
    other = read_adapter("c", make_adapter(tmp_path / "allowed/three", seed=2), rules(tmp_path))
    scaled = read_adapter("d", make_adapter(tmp_path / "allowed/four", lora_alpha=1), rules(tmp_path))
    assert first.version == same.version
    assert len({first.version, other.version, scaled.version}) == 3
    assert (first.name, first.path) == ("a", tmp_path / "allowed/one")


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", ".a", "-a", "a" * 65, "a:b", "어댑터", "a\n"])
def test_a_name_is_as_strict_as_a_tiers(tmp_path: Path, name: str) -> None:
    param, message = reason(name, make_adapter(tmp_path / "allowed/one"), rules(tmp_path))
    assert param == "name"
    assert "letters, digits" in message


@pytest.mark.parametrize(
    "path", ["outside", "allowed/../outside", "allowed/link", "allowed2/one", "allowed/no/../../outside"]
)
def test_what_is_not_within_a_folder_that_is_allowed_is_refused_whatever_the_way_to_it(
    tmp_path: Path, path: str
) -> None:
    make_adapter(tmp_path / "outside")
    make_adapter(tmp_path / "allowed2/one")
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed/link").symlink_to(tmp_path / "outside")
    param, message = reason("a", tmp_path / path, rules(tmp_path))
    assert param == "path"
    assert "adapter_folders" in message
    assert read_adapter("a", tmp_path / path, rules(tmp_path), anywhere=True).name == "a"


def test_nothing_is_said_of_what_is_elsewhere_not_even_whether_it_exists(tmp_path: Path) -> None:
    told = {reason("a", Path(path), rules(tmp_path))[1] for path in ("/etc/passwd", "/etc", "/no/such/thing", "/")}
    assert len(told) == 1


def test_a_file_that_is_a_link_to_the_outside_is_refused(tmp_path: Path) -> None:
    made = make_adapter(tmp_path / "allowed/one")
    (tmp_path / "weights").write_bytes((made / "adapter_model.safetensors").read_bytes())
    (made / "adapter_model.safetensors").unlink()
    (made / "adapter_model.safetensors").symlink_to(tmp_path / "weights")
    assert "adapter_folders" in reason("a", made, rules(tmp_path))[1]


def test_a_link_within_the_allowed_folders_is_followed_and_an_allowed_folder_may_be_one(tmp_path: Path) -> None:
    make_adapter(tmp_path / "real/versions/one")
    (tmp_path / "real/current").symlink_to("versions/one")
    (tmp_path / "allowed").symlink_to(tmp_path / "real")
    assert read_adapter("a", tmp_path / "allowed/current", rules(tmp_path)).path == tmp_path / "real/versions/one"


def without(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def with_text(name: str, text: str) -> Spoil:
    return lambda folder: (folder / name).write_text(text)


def with_config(**told: Any) -> Spoil:
    def change(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | told))

    return change


def as_pipe(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    os.mkfifo(folder / "adapter_model.safetensors")


WEIGHTS = "base_model.model.model.layers.0.self_attn.q_proj.{}.weight"
SPOILT: dict[str, tuple[Spoil, str]] = {
    "no configuration": (without("adapter_config.json"), "no file 'adapter_config.json'"),
    "no weights": (without("adapter_model.safetensors"), "no file 'adapter_model.safetensors'"),
    "a pipe": (as_pipe, "no file 'adapter_model.safetensors'"),
    "a pickle": (with_text("adapter_model.bin", ""), "is a pickle"),
    "another pickle": (with_text("adapter_model.pt", ""), "is a pickle"),
    "no JSON": (with_text("adapter_config.json", "{"), "cannot be understood"),
    "deep JSON": (with_text("adapter_config.json", "[" * 100_000), "cannot be understood"),
    "a list": (with_text("adapter_config.json", "[]"), "cannot be understood"),
    "huge JSON": (with_text("adapter_config.json", " " * 2_000_000), "larger than"),
    "another kind": (with_config(peft_type="IA3"), "no LoRA adapter"),
    "no rank": (with_config(r=None), "'r'"),
    "true as a rank": (with_config(r=True), "'r'"),
    "a rank of nothing": (with_config(r=0), "'r'"),
    "a high rank": (with_config(r=17), "highest that may be loaded is 16 ('max_lora_rank')"),
    "a high rank of some": (with_config(rank_pattern={"q_proj": 64}), "its rank is 64"),
    "ranks that are none": (with_config(rank_pattern=[1]), "rank_pattern"),
    "no scale": (with_config(lora_alpha="x"), "lora_alpha"),
    "no modules": (with_config(target_modules=None), "target_modules"),
    "empty weights": (with_text("adapter_model.safetensors", ""), "no safetensors file"),
    "a header that has no end": (with_text("adapter_model.safetensors", "\x7f" * 8 + "{}"), "no safetensors file"),
    "a header that is none": (with_text("adapter_model.safetensors", "\x02" + "\0" * 7 + "[]"), "cannot be understood"),
    "no LoRA": (lambda folder: write_tensors(folder, {"model.weight": (1, 1)}), "no LoRA weights"),
    "a lie": (lambda folder: write_tensors(folder, {WEIGHTS.format("lora_A"): (32, 16)}), "its rank is 32"),
}


@pytest.mark.parametrize(("spoil", "told"), SPOILT.values(), ids=SPOILT)
def test_a_folder_that_is_no_adapter_is_refused_with_the_reason(tmp_path: Path, spoil: Spoil, told: str) -> None:
    made = make_adapter(tmp_path / "allowed/one")
    read_adapter("a", made, rules(tmp_path))
    spoil(made)
    param, message = reason("a", made, rules(tmp_path))
    assert param == "path"
    assert told in message


@pytest.mark.parametrize(
    "path", ["allowed/none", "allowed/file", "allowed/a\0b", "allowed/circle", "allowed/" + "x" * 5_000]
)
def test_a_path_that_leads_to_no_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed/file").touch()
    (tmp_path / "allowed/circle").symlink_to("circle")
    assert reason("a", tmp_path / path, rules(tmp_path))[0] == "path"
    assert reason("a", Path(path), rules(tmp_path), anywhere=True)[1] == "Invalid 'path': expected an absolute path."
