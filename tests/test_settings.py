"""Settings: one declaration each, typos refused, secrets hidden."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mulgil.settings import Settings, unknown_variables


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No `.env` and no variables but the test's own."""
    monkeypatch.chdir(tmp_path)


def test_a_variable_wins_over_the_file_and_lists_are_written_with_commas(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("OTHER_PROGRAM=1\nMULGIL_PORT=1111\nMULGIL_API_KEYS=first-key, second-key\n")
    monkeypatch.setenv("MULGIL_PORT", "2222")
    monkeypatch.setenv("MULGIL_ADAPTER_FOLDERS", "/models/a, /models/b")
    settings = Settings()
    assert settings.port == 2222
    assert [key.get_secret_value() for key in settings.api_keys] == ["first-key", "second-key"]
    assert settings.adapter_folders == (Path("/models/a"), Path("/models/b"))


def test_a_mistyped_variable_is_found_in_the_environment_and_in_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("MULGIL_PROT=1\nPORT=1\n")
    monkeypatch.setenv("MULGIL_API_KEY", "x")
    assert unknown_variables() == ["MULGIL_API_KEY", "MULGIL_PROT"]


def test_secrets_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULGIL_API_KEYS", "very-secret-key")
    settings = Settings()
    assert "very-secret" not in repr(settings)
    assert "very-secret" not in settings.model_dump_json()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MULGIL_PORT", "70000"),
        ("MULGIL_KEEP_ALIVE", "5"),
        ("MULGIL_ENGINE", "other"),
        ("MULGIL_ENGINE_ARGS", "not json"),
        ("MULGIL_MAX_JSON_DEPTH", "100000"),
        ("MULGIL_GPU_MEMORY_UTILIZATION", "1.5"),
    ],
)
def test_a_value_out_of_its_range_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises((ValidationError, ValueError)):
        Settings()


def test_without_a_key_it_cannot_be_served_unless_told_to_be_insecure() -> None:
    with pytest.raises(ValueError, match="no API key"):
        Settings(engine="simulated").check()
    Settings(engine="simulated", insecure=True).check()


def test_keys_and_insecure_contradict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULGIL_API_KEYS", "some-good-key")
    with pytest.raises(ValueError, match="choose one"):
        Settings(engine="simulated", insecure=True).check()


def test_vllm_needs_a_model() -> None:
    with pytest.raises(ValueError, match="'model' is needed"):
        Settings(insecure=True).check()


def test_a_model_is_served_under_the_last_part_of_its_name_unless_named_otherwise() -> None:
    assert Settings(model="/data/models/qwen3").model_names == ("qwen3",)
    assert Settings(model="Qwen/Qwen3-8B").model_names == ("Qwen3-8B",)
    assert Settings(model="x", served_model_name=("a", "b")).model_names == ("a", "b")


def test_only_what_is_set_is_handed_to_vllm() -> None:
    args = Settings(model="m", max_num_seqs=4).for_vllm()
    assert args["max_num_seqs"] == 4
    assert "max_model_len" not in args
    assert args["served_model_name"] == ["m"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"embeddings_model": "m", "embeddings_url": "http://h/v1", "embeddings_served_name": ("e",)}, "choose one"),
        ({"embeddings_url": "http://h/v1"}, "'embeddings_served_name' must say"),
        ({"embeddings_url": "h:8000/v1", "embeddings_served_name": ("e",)}, "must be http"),
        ({"embeddings_url": "http://user:pass@h/v1", "embeddings_served_name": ("e",)}, "must be http"),
        ({"embeddings_url": "http://h/v1?key=1", "embeddings_served_name": ("e",)}, "must be http"),
        ({"embeddings_served_name": ("e",)}, "is of no use without"),
        ({"embeddings_api_key": "k"}, "is of no use without"),
        ({"embeddings_engine_args": {"dtype": "half"}}, "is of no use without"),
        ({"embeddings_model": "org/same", "model": "other/same"}, "'same' would name both"),
    ],
)
def test_settings_of_embeddings_that_contradict_each_other_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Settings(engine="simulated", insecure=True, **given).check()


def test_an_embedding_model_has_names_only_where_there_is_one() -> None:
    assert Settings().embedding_names == ()
    assert Settings(embeddings_model="org/minilm").embedding_names == ("minilm",)
    served = Settings(engine="simulated", insecure=True, embeddings_url="https://h:1/v1", embeddings_served_name=("a",))
    served.check()
    assert served.embedding_names == ("a",)
