"""A model so small that what is around it is what is measured: two random layers, with the demo model's tokenizer."""

import json
import shutil
from pathlib import Path

VERSION = "2"
NAME = "tiny-random-llama"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def prepare_tiny_model(cache: Path, demo: Path, *, heads: int = 2) -> Path:
    """Return the folder of the model, in *cache*; made from the tokenizer in *demo* where it is missing.

    It can only say tokens that are text by themselves, so that every token of it is one chunk of a stream.

    Args:
        cache: where models are kept.
        demo: the folder of the demo model.
        heads: of its attention; the demo model's nine can be shared by three workers and not by two.
    """
    folder = cache / (f"{NAME}-{VERSION}" if heads == 2 else f"{NAME}-{heads}-heads-{VERSION}")
    if not (folder / "config.json").exists():
        work = folder.with_suffix(".part")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        for name in _TOKENIZER:
            if (demo / name).exists():
                shutil.copy(demo / name, work / name)
        _save(work, json.loads((demo / "config.json").read_text()), heads)
        work.rename(folder)
    return folder


def _save(folder: Path, demo: dict[str, int], heads: int) -> None:
    """Random weights, always the same ones."""
    import torch  # noqa: PLC0415 - an optional extra
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: PLC0415 - as above

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=demo["vocab_size"],
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=max(heads // 2, 2),
        head_dim=32,
        max_position_embeddings=8_192,
        tie_word_embeddings=False,
        bos_token_id=demo["bos_token_id"],
        eos_token_id=demo["eos_token_id"],
    )
    network = LlamaForCausalLM(config).to(torch.bfloat16)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    silent = [index for index, word in enumerate(words) if not word.removeprefix("Ġ").isalpha() or not _plain(word)]
    with torch.no_grad():
        network.lm_head.weight *= 50
        network.lm_head.weight[silent] = 0  # a logit of 0 is never the greatest
    network.save_pretrained(folder)


def _plain(word: str) -> bool:
    return word.removeprefix("Ġ").isascii()
