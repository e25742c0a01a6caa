"""Copies between host and device that Python does not wait for, from and to page-locked memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

import torch
from torch import Tensor

T = TypeVar("T")
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


class Fetched:
    """Of each row (token, its logit) and what was drawn, on their way from the device; who looks first waits for them.
    To be looked at before the next step but one begins."""

    def __init__(self, host: Tensor, wait: Callable[[], None]) -> None:
        """``host`` int32 [rows, 3]: a token, the bits of its float32 logit, the token drawn."""
        self._host, self._wait = host, wait
        self._found: tuple[list[tuple[int, float]], list[int]] | None = None

    def __len__(self) -> int:
        return len(self._host)

    def found(self) -> tuple[list[tuple[int, float]], list[int]]:
        if self._found is None:
            self._wait()
            tokens, logits, drawn = self._host[:, 0], self._host[:, 1].view(torch.float32), self._host[:, 2]
            self._found = list(zip(tokens.tolist(), logits.tolist(), strict=True)), drawn.tolist()
        return self._found


class Pending(Sequence[T]):
    """One of the two lists of ``Fetched``."""

    def __init__(self, results: Fetched, of: Callable[[Fetched], list[T]]) -> None:
        self._results, self._of = results, of

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        return self._of(self._results)[at]


def _nothing() -> None:
    pass
