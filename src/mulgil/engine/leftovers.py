"""What engines leave behind: processes that outlive a killed gateway, and shared memory that outlives a killed core."""

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

log = logging.getLogger(__name__)

_OF_VLLM = "VLLM::"
_NOT_NAMED_YET = "multiprocessing.spawn"
_SEGMENT = re.compile(r"/dev/shm/(?:psm_|sem\.mp-)\w+")
"""What Python's shared memory and semaphores are called; see shm_overview(7)."""
_PATIENCE = 5.0


class RunFile:
    """Notes the engine's processes of this gateway and the memory they share, and removes what has no owner any more.

    A process is known by its number and the moment when it was started, so that a stranger who has got the
    number since is never touched; and only what carries vLLM's name is ended. A segment of memory was seen in
    such a process, and is removed when none is left that could use it.

    Args:
        folder: where the gateways of this machine and user note their processes.
        name: what a process of an engine has in its command line.
    """

    def __init__(self, folder: Path, *, name: str = _OF_VLLM) -> None:
        self._folder = folder
        self._name = name
        self._path = folder / f"gateway-{os.getpid()}.json"
        self._segments: set[str] = set()

    def end_leftovers(self) -> int:
        """End what gateways that are gone have left; how many processes that were."""
        ended: list[psutil.Process] = []
        segments: list[str] = []
        if not self._is_ours():
            return 0
        for path in self._folder.glob("gateway-*.json"):
            try:
                noted = json.loads(path.read_text())
                if path == self._path or _living(*noted["gateway"]) is not None:
                    continue
                found = [_living(*one) for one in noted["engine"]]
            except (OSError, ValueError, KeyError, TypeError):
                continue  # half a file, or one that another gateway has just removed
            ended += [process for process in found if process is not None and self._is_engine(process)]
            segments += [one for one in noted.get("segments", ()) if _SEGMENT.fullmatch(one)]
            path.unlink(missing_ok=True)
        for process in ended:
            log.warning("ending process %d, the engine of a gateway that is gone", process.pid)
            _kill(process)
        psutil.wait_procs(ended, timeout=_PATIENCE)
        _remove(segments)
        return len(ended)

    def note(self) -> None:
        """Note the engine's processes as they are now; none, no note. A full disk ends no engine.

        Memory that those of before shared, and those of now do not, is removed.
        """
        me = psutil.Process()
        children = list(self._children(me))
        used = {segment for child in children for segment in _segments_of(child)}
        _remove(self._segments - used)
        self._segments = used
        noted = {
            "gateway": _named(me),
            "engine": [_named(child) for child in children],
            "segments": sorted(used),
        }
        temporary = self._path.with_suffix(".tmp")
        try:
            if not noted["engine"]:
                self._path.unlink(missing_ok=True)
                return
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_text(json.dumps(noted))
            temporary.replace(self._path)
        except OSError as error:
            log.warning("the engine's processes could not be noted: %s", error)

    def starting(self) -> set[int]:
        """The engine's processes now, with those that have no name yet."""
        me = psutil.Process()
        return {child.pid for child in me.children(recursive=True) if self._may_be_engine(child)}

    def end_all_but(self, spared: set[int]) -> None:
        """End the engine's processes, those that have no name yet included, but not the *spared* ones."""
        for child in psutil.Process().children(recursive=True):
            if child.pid not in spared and self._may_be_engine(child):
                _kill(child)

    def _may_be_engine(self, process: psutil.Process) -> bool:
        return self._is_engine(process) or _calls_itself(process, _NOT_NAMED_YET)

    def _is_ours(self) -> bool:
        """Nobody else may tell us what to end."""
        try:
            return self._folder.stat().st_uid == os.getuid()
        except OSError:
            return False

    def _children(self, me: psutil.Process) -> Iterator[psutil.Process]:
        for child in me.children(recursive=True):
            if self._is_engine(child):
                yield child

    def _is_engine(self, process: psutil.Process) -> bool:
        return _calls_itself(process, self._name)


def _calls_itself(process: psutil.Process, name: str) -> bool:
    try:
        return name in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _segments_of(process: psutil.Process) -> set[str]:
    """The shared memory that it has mapped; none where the system does not tell."""
    try:
        return set(_SEGMENT.findall(Path(f"/proc/{process.pid}/maps").read_text()))
    except OSError:
        return set()


def _remove(segments: Iterable[str]) -> None:
    for segment in segments:
        with contextlib.suppress(OSError):  # its owner has removed it, or it is another user's
            os.unlink(segment)


def _named(process: psutil.Process) -> tuple[int, float]:
    return process.pid, process.create_time()


def _living(pid: int, started: float) -> psutil.Process | None:
    """The process of this number, if it is still the one that was started then."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if same else None


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        log.info("process %d had just ended by itself", process.pid)
