"""Time of what devices send to each other: messages one after the other x latency, and bytes / bandwidth.

``Wire.bytes_sent`` is what the busiest device sends; ``messages`` are those that wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.plan.scale.links import Link


@dataclass(frozen=True)
class Wire:
    messages: float = 0.0
    bytes_sent: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Wire) -> Wire:
        return Wire(self.messages + other.messages, self.bytes_sent + other.bytes_sent, self.seconds + other.seconds)

    def times(self, n: int) -> Wire:
        return Wire(self.messages * n, self.bytes_sent * n, self.seconds * n)


NOTHING = Wire()


def _wire(messages: float, size: float, link: Link) -> Wire:
    return Wire(messages, size, messages * link.latency_s + size / link.bytes_per_s)


def ring(n: int, size: float, link: Link) -> Wire:
    """All-reduce of ``size`` bytes in a ring of ``n``: a reduce-scatter and an all-gather of n - 1 steps each, in each
    1/n of the message (Patarasuk and Yuan 2009; nccl-tests, PERFORMANCE.md: bus bandwidth = size / time x 2(n-1)/n)."""
    return _wire(2 * (n - 1), 2 * (n - 1) / n * size, link)


def tree(n: int, size: float, link: Link) -> Wire:
    """All-reduce in two complementary trees: up and down in log2 n steps each, each device sending its message twice at
    most (Jeaugey, "Massively Scale Your Deep Learning Training with NCCL 2.4", NVIDIA 2019)."""
    return _wire(2 * math.ceil(math.log2(n)), 2 * size, link)


def star(n: int, size: float, link: Link) -> Wire:
    """All send to one, which adds and sends the sum to all: two steps, but its link carries n - 1 messages each way."""
    return _wire(2, 2 * (n - 1) * size, link)


def best(n: int, size: float, link: Link) -> Wire:
    """The faster of ring and tree, which is the choice that NCCL makes by size."""
    return min(ring(n, size, link), tree(n, size, link), key=lambda w: w.seconds)


ALL_REDUCE: dict[str, Callable[[int, float, Link], Wire]] = {"best": best, "ring": ring, "tree": tree, "star": star}


def all_reduce(algorithm: str, n: int, size: float, link: Link) -> Wire:
    """Nothing where there is one device."""
    return NOTHING if n == 1 else ALL_REDUCE[algorithm](n, size, link)


def gather(n: int, size: float, link: Link) -> Wire:
    """``size`` bytes in n equal parts, to one device or all: the last to arrive has passed n - 1 parts of one link."""
    return NOTHING if n == 1 else _wire(n - 1, (n - 1) / n * size, link)


def send(size: float, link: Link) -> Wire:
    return _wire(1, size, link)
