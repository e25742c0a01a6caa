"""Copies between host and device that Python does not wait for, from and to page-locked memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import torch
from torch import Tensor

RING = 2  # buffers of step inputs: one may still be on its way while the next is filled


class Transfers:
    """One step's inputs out, its results back. On a CPU "device" the copies are plain ones, which tests run on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned = device.type == "cuda"
        self._ring = [self.buffer(0) for _ in range(RING)]
        self._sent: list[torch.cuda.Event | None] = [None] * RING
        self._next = 0

    def buffer(self, nbytes: int) -> Tensor:
        """uint8 host memory that the device can read by itself."""
        return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=self._pinned)

    def send(self, nbytes: int, write: Callable[[Tensor], None], into: Tensor) -> None:
        """``write`` fills so many host bytes, which then go to ``into`` (uint8, on the device) in one copy."""
        at = self._next
        self._next = (at + 1) % RING
        if (sent := self._sent[at]) is not None:
            sent.synchronize()  # else the step before the last could read what is written for this one
        if len(self._ring[at]) < nbytes:
            self._ring[at] = self.buffer(nbytes)
        host = self._ring[at][:nbytes]
        write(host)
        into.copy_(host, non_blocking=True)
        self._sent[at] = self._mark()

    def fetch(self, results: Tensor, into: Tensor) -> Callable[[], None]:
        """Starts the copy of ``results`` to the host memory ``into``; what comes back waits until it is there."""
        into.copy_(results, non_blocking=True)
        mark = self._mark()
        return _nothing if mark is None else mark.synchronize

    def _mark(self) -> torch.cuda.Event | None:
        if not self._pinned:
            return None
        event = torch.cuda.Event()
        event.record()
        return event


class Pending(Sequence[tuple[int, float]]):
    """(token, its logit) of each row, on their way from the device; who looks first waits for them. To be looked at
    before the next step begins."""

    def __init__(self, host: Tensor, wait: Callable[[], None]) -> None:
        """``host`` int32 [rows, 2]: a token, and the bits of its float32 logit."""
        self._host, self._wait = host, wait
        self._pairs: list[tuple[int, float]] | None = None

    def __len__(self) -> int:
        return len(self._host)

    @overload
    def __getitem__(self, at: int) -> tuple[int, float]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[int, float]]: ...
    def __getitem__(self, at: int | slice) -> tuple[int, float] | list[tuple[int, float]]:
        if self._pairs is None:
            self._wait()
            tokens, logits = self._host[:, 0].tolist(), self._host[:, 1].view(torch.float32).tolist()
            self._pairs = list(zip(tokens, logits, strict=True))
        return self._pairs[at]


def _nothing() -> None:
    pass
