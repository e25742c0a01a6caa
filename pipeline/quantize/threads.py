"""Threads of a recipe.

Every operation runs on one thread, and independent pieces of work run beside each other in a fixed number of lanes.
So the bits do not depend on the number of cores, and many small operations do not wait for each other's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")
LANES = 2


@contextmanager
def one_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_lanes(function: Callable[[A], B], values: Iterable[A]) -> list[B]:
    """``map`` in order, two at a time. The function must not write what another call reads."""
    with ThreadPoolExecutor(LANES, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, values))
