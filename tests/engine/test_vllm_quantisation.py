"""Which quantised weights are refused before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness import settings
from quantised import FORMS

from mulgil.adapters import check_engine_args

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("awk", "'awk', which vLLM does not have: did you mean awq"),
        ("FP8", "did you mean fp8"),
        ("bitsandbytes", "does not have: it has .*compressed-tensors"),
    ],
)
def test_a_quantization_that_vllm_does_not_have_is_refused_before_anything_is_loaded(chosen: str, told: str) -> None:
    from mulgil.engine.vllm.adapter import VLLMEngine  # noqa: PLC0415 - imports vLLM

    for named in ({"quantization": chosen}, {"engine_args": {"quantization": chosen}}):
        with pytest.raises(ValueError, match=told):
            VLLMEngine(settings(engine="vllm", model="any", **named))


def test_weights_of_a_method_that_vllm_does_not_have_are_refused(tmp_path: Path) -> None:
    from mulgil.engine.vllm.adapter import VLLMEngine  # noqa: PLC0415 - imports vLLM

    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "bitsandbytes"}}')
    with pytest.raises(ValueError, match="quantised by 'bitsandbytes', which vLLM does not have"):
        VLLMEngine(settings(engine="vllm", model=str(tmp_path)))


@pytest.mark.parametrize(
    ("own", "chosen", "told"),
    [
        ({"quant_method": "gptq", "bits": 8}, None, "have 8 bits"),
        (FORMS["int8-w8a16"][1], None, "have 8 bits"),
        (None, "fp8", "rounds weights while they are loaded"),
        (FORMS["int8-w8a8"][1], None, ""),
        (FORMS["int4-w4a16"][1], "compressed-tensors", ""),
        (FORMS["gptq"][1], None, ""),
        (FORMS["awq"][1], "awq", ""),
        (FORMS["fp8"][1], None, ""),
    ],
)
def test_what_the_build_for_cpus_has_no_kernel_for_is_refused(
    tmp_path: Path, own: dict[str, Any] | None, chosen: str | None, told: str
) -> None:
    from vllm.platforms import current_platform  # noqa: PLC0415 - an optional extra

    from mulgil.engine.vllm.adapter import VLLMEngine  # noqa: PLC0415 - imports vLLM

    if not current_platform.is_cpu():
        pytest.skip("another build of vLLM")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": own} if own else {}))
    served = settings(engine="vllm", model=str(tmp_path), quantization=chosen)
    if told:
        with pytest.raises(ValueError, match=told):
            VLLMEngine(served)
    else:
        VLLMEngine(served)


def test_check_config_refuses_it_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean awq"):
        check_engine_args(settings(engine="vllm", model="any", quantization="awk"))
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "bitsandbytes"}}')
    with pytest.raises(ValueError, match="quantised by 'bitsandbytes'"):
        check_engine_args(settings(engine="vllm", model=str(tmp_path)))
