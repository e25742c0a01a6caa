"""Where bodies are parsed and tokenised: beside the event loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from engine.memory import give_back

LARGE_BODY_BYTES = 64 * 1024
T = TypeVar("T")


class Threads:
    """Large bodies are looked at one at a time, since each takes much memory, which is given back soon after it."""

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(4, thread_name_prefix="tokenise")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="tokenise-large")
        self.untidy = False

    async def run(self, work: Callable[[], T], body_bytes: int) -> T:
        loop = asyncio.get_running_loop()
        if body_bytes > LARGE_BODY_BYTES:
            try:
                return await loop.run_in_executor(self._large, work)
            finally:
                self.untidy = True
        return await loop.run_in_executor(self._small, work)

    async def tidy_up(self) -> None:
        """Gives freed memory back; not at the end of the work itself, whose error may still hold on to it."""
        self.untidy = False
        await asyncio.get_running_loop().run_in_executor(self._large, _tidy_up)

    def shutdown(self) -> None:
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)


def _tidy_up() -> None:
    gc.collect()  # an error and the frames that it came through hold each other, and a large body with them
    give_back()
