"""A spread over accelerators and machines that vLLM would refuse late, or never, is refused before anything starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import settings

from mulgil.app import build
from mulgil.settings import Settings
from mulgil.settings.checkpoint import model_config
from mulgil.settings.parallel import peers

DENSE = {"num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30, "intermediate_size": 1536}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No `.env` but the test's own."""
    monkeypatch.chdir(tmp_path)


def model(folder: Path, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def checked(model: str, **given: Any) -> None:
    Settings(model=model, insecure=True, **given).check()


def reason(model: str, **given: Any) -> str:
    with pytest.raises(ValueError, match="'") as refused:
        checked(model, **given)
    return str(refused.value)


def test_heads_that_cannot_be_divided_are_told_with_what_can_be(tmp_path: Path) -> None:
    told = reason(model(tmp_path, **DENSE), tensor_parallel_size=2)
    assert told == (
        "'tensor_parallel_size' is 2, which does not divide the model's 9 attention heads; possible are 1, 3"
    )
    checked(str(tmp_path), tensor_parallel_size=3)


def test_heads_are_looked_for_where_a_model_for_pictures_has_them(tmp_path: Path) -> None:
    assert "9 attention heads" in reason(model(tmp_path, text_config=DENSE), tensor_parallel_size=2)


@pytest.mark.parametrize(("size", "fits"), [(2, True), (4, True), (8, True), (3, False), (6, False), (16, False)])
def test_key_value_heads_are_divided_or_copied_evenly(tmp_path: Path, size: int, fits: bool) -> None:
    path = model(tmp_path, num_attention_heads=24, num_key_value_heads=4, intermediate_size=240)
    if fits:
        checked(path, tensor_parallel_size=size)
    else:
        assert "possible are 1, 2, 4, 8, 12, 24" in reason(path, tensor_parallel_size=size)


def test_columns_that_cannot_be_divided_are_told(tmp_path: Path) -> None:
    path = model(tmp_path, num_attention_heads=8, intermediate_size=129)
    assert "129 intermediate columns" in reason(path, tensor_parallel_size=2)


def test_engine_args_win_here_too(tmp_path: Path) -> None:
    path = model(tmp_path, **DENSE)
    assert "9 attention heads" in reason(path, engine_args={"tensor_parallel_size": 2})
    assert "whole number" in reason(path, engine_args={"tensor_parallel_size": "2"})
    checked(path, tensor_parallel_size=2, engine_args={"tensor_parallel_size": 1})


def test_there_are_no_more_groups_than_layers(tmp_path: Path) -> None:
    assert "only 30 layers" in reason(model(tmp_path, **DENSE), pipeline_parallel_size=31)


@pytest.mark.parametrize("outside", [{"data_parallel_rank": 0}, {"data_parallel_external_lb": True}])
def test_ranks_outside_of_the_process_are_for_mixtures_of_experts(tmp_path: Path, outside: dict[str, Any]) -> None:
    path = model(tmp_path, **DENSE)
    assert "independent gateways" in reason(path, data_parallel_size=2, engine_args=outside)
    checked(path, data_parallel_size=2, engine_args={"data_parallel_external_lb": False})
    checked(model(tmp_path, num_local_experts=8, **DENSE), data_parallel_size=2, engine_args=outside)


SPANNING: dict[str, Any] = {"tensor_parallel_size": 3, "nnodes": 3, "master_addr": "10.0.0.1"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"node_rank": 1}, "'node_rank' is of no use without 'nnodes'"),
        ({"master_addr": "10.0.0.1"}, "'master_addr' is of no use without 'nnodes'"),
        ({"tensor_parallel_size": 3, "nnodes": 3}, "'master_addr' is needed"),
        (SPANNING | {"node_rank": 3}, "it goes from 0 to 2"),
        (SPANNING | {"nnodes": 2}, "does not divide the 3 accelerators"),
        (SPANNING | {"distributed_executor_backend": "ray"}, "Ray knows its machines"),
        (SPANNING | {"data_parallel_size": 3}, "start independent gateways"),
        ({"engine_args": {"nnodes": 2}}, "'nnodes' is a setting of its own"),
    ],
)
def test_machines_that_could_never_meet_are_refused(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    assert told in reason(model(tmp_path, **DENSE), **given)


def test_only_machine_0_needs_a_key(tmp_path: Path) -> None:
    path = model(tmp_path, **DENSE)
    Settings(model=path, **SPANNING, node_rank=2).check()
    with pytest.raises(ValueError, match="no API key"):
        Settings(model=path, **SPANNING, node_rank=0).check()


def test_vllm_is_told_of_machines_only_where_there_are_several() -> None:
    assert "master_port" not in Settings(model="m").for_vllm()
    args = Settings(model="m", nnodes=2, node_rank=1, master_addr="h").for_vllm()
    assert (args["nnodes"], args["node_rank"], args["master_addr"], args["master_port"]) == (2, 1, "h", 29_501)


def test_who_waits_in_vain_is_told_for_whom(tmp_path: Path) -> None:
    assert peers({}) == ""
    told = peers({"nnodes": 3, "node_rank": 0, "master_addr": "h", "master_port": 7})
    assert "'node_rank' 1, 2" in told
    assert "'master_addr' h on 'master_port' 7" in told
    assert "4 accelerators free" in peers({"distributed_executor_backend": "ray", "tensor_parallel_size": 4})


@pytest.mark.parametrize("content", [None, "no json", "[]"])
def test_a_model_that_is_not_here_or_says_nothing_is_left_to_vllm(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / "config.json").write_text(content)
    assert model_config(str(tmp_path)) == {}
    checked(str(tmp_path), tensor_parallel_size=7)


def test_without_ray_its_backend_is_refused_with_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from mulgil.settings import Settings\n"
        "Settings(model='m', insecure=True, distributed_executor_backend='ray').check()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "install mulgil[ray]" in done.stderr


def test_a_machine_that_only_computes_has_no_application(tmp_path: Path) -> None:
    path = model(tmp_path, **DENSE)
    with pytest.raises(ValueError, match="answers no requests"):
        build(settings(engine="vllm", model=path, **SPANNING, node_rank=1))
    with pytest.raises(ValueError, match="of no use without engine=vllm"):
        build(settings(node_rank=1))


@pytest.mark.model
def test_a_model_of_the_hub_is_judged_by_what_was_downloaded(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--name"
    for part in ("snapshots/abc", "refs"):
        (folder / part).mkdir(parents=True)
    (folder / "refs/main").write_text("abc")
    model(folder / "snapshots/abc", **DENSE)
    code = (
        "from mulgil.settings import Settings\n"
        "Settings(model='org/name', insecure=True, tensor_parallel_size=2).check()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "9 attention heads" in done.stderr
