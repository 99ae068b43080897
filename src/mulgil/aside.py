"""Work beside the event loop, for what would hold it too long."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_SMALL = 32 * 1024  # bytes or characters that are read, checked or tokenised within a few milliseconds


class Aside:
    """One thread that does what it is given, one thing after the other, and is made when it is first needed.

    Python's threads take turns of some milliseconds, so the loop goes on while the work is done. One thread and not
    many: all of them want the same interpreter, and the loop would have to wait for its turn behind every one.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    @staticmethod
    def takes(size: int) -> bool:
        """Whether work on so many bytes or characters is done in the thread."""
        return size > _SMALL

    async def run(self, work: Callable[[], T], *, size: int) -> T:
        """The result of *work*. A call that is cancelled leaves work that has not begun undone.

        Args:
            work: what to do.
            size: bytes or characters that it is done on; with few of them it is done at once, without a thread.
        """
        if not self.takes(size):
            return work()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mulgil-aside")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
