"""Seconds of work on a device, and what the device can do at most at that moment."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from engine.kernels.cuda.graphs import CaptureError, Graphs, Work

ROUNDS = 5  # the median counts
WARM_UPS = 3
COPY_BYTES, SIDE = 2**31, 8192  # of the ceilings: a copy's source, a square product's side
TOY_BYTES, TOY_SIDE = 2**22, 128


@dataclass(frozen=True)
class Ceilings:
    """Bytes read and written a second by a copy, and operations a second of library products; null where there is no
    such product. ``float_dtype``: of the products of ``bf16_tflops``, where a CPU has none in bf16."""

    copy_gb_per_s: float
    bf16_tflops: float | None
    int8_tops: float | None
    reasons: dict[str, str] = field(default_factory=dict)
    float_dtype: str = "bf16"
    fp8_tflops: float | None = None


class Clock:
    """Times work on a device: recorded once where that is possible, so that Python is not what is measured."""

    def __init__(self, device: torch.device, graphs: Callable[[], Graphs] | None, toy: bool = False) -> None:
        """``toy``: once is enough, nothing is measured."""
        self.device, self.graphs, self.toy = device, graphs, toy
        self.rounds, self.warm_ups = (1, 0) if toy else (ROUNDS, WARM_UPS)
        self._cuda = device.type == "cuda"

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, works: Sequence[Work]) -> float:
        """Of one of ``works``: the median over the rounds of the mean over all of them, one after the other."""

        def once() -> None:
            for work in works:
                work()

        run: Callable[[], None] = once
        if self.graphs is not None:
            try:
                run = self.graphs().capture(once)
            except CaptureError:
                run = once
        for _ in range(self.warm_ups):
            run()
        return statistics.median(self._timed(run) for _ in range(self.rounds)) / len(works)

    def wall(self, work: Work) -> float:
        """Once, with all that Python does, until the device is done."""
        self.synchronize()
        began = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - began

    def _timed(self, run: Callable[[], None]) -> float:
        if not self._cuda:
            return self.wall(run)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def ceilings(self) -> Ceilings:
        size, side = (TOY_BYTES, TOY_SIDE) if self.toy else (COPY_BYTES, SIDE)
        reasons: dict[str, str] = {}

        def copy() -> Work:
            source = torch.empty(size, dtype=torch.uint8, device=self.device).fill_(1)
            target = torch.empty_like(source)
            return lambda: target.copy_(source)

        def peak(name: str, product: Callable[[], Work]) -> float | None:
            try:
                return float(2 * side**3 / self.seconds([product()] * 4) / 1e12)
            except RuntimeError as e:  # a library without this product for this device
                reasons[name] = " ".join(str(e).split())[:200]
                return None

        def bf16() -> Work:
            a, b = (torch.randn(side, side, device=self.device, dtype=torch.bfloat16) for _ in range(2))
            return lambda: a @ b.t()

        def int8() -> Work:
            a, b = (torch.randint(-127, 128, (side, side), device=self.device, dtype=torch.int8) for _ in range(2))
            return lambda: torch._int_mm(a, b.t())

        def fp8() -> Work:
            a, b = (torch.randn(side, side, device=self.device).to(torch.float8_e4m3fn) for _ in range(2))
            one = torch.ones((), device=self.device)
            return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)

        copied = 2 * size / self.seconds([copy()]) / 1e9
        return Ceilings(
            copied,
            peak("bf16_tflops", bf16),
            peak("int8_tops", int8),
            reasons,
            fp8_tflops=peak("fp8_tflops", fp8),
        )
