"""Logits of consecutive positions of one request, as the runner gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor, inference_mode


class Rows(Protocol):
    """A float32 tensor [rows, vocab], or what stands for one until its rows are looked at."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: slice) -> Tensor: ...


class LazyRows:
    """Hidden states whose logits are computed when they are looked at.

    A chunk of a long prompt whose log-probabilities are wanted has as many rows as the step has tokens: in float32,
    512 of them take 100 MB at a vocabulary of 49,152. Nobody needs them at the same time, so that only those of one
    slice ever exist. A row has the same bits in any slice.
    """

    def __init__(self, hidden: Tensor, head: Callable[[Tensor], Tensor]) -> None:
        """``hidden`` [rows, hidden], normed; ``head`` to float32 [rows, vocab]."""
        self.hidden, self._head = hidden, head

    def __len__(self) -> int:
        return int(self.hidden.shape[0])

    def __getitem__(self, at: slice) -> Tensor:
        with inference_mode():
            return self._head(self.hidden[at].contiguous()).cpu()


class OnHost:
    """Logits that may lie on a device, brought to the host as a whole when the first of them is looked at."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def __getitem__(self, at: slice) -> Tensor:
        self._logits = self._logits.cpu()
        return self._logits[at]


class DrawnRow:
    """The logits of one position, of which it is known where the largest is."""

    def __init__(self, logits: OnHost, row: int, best: Sequence[tuple[int, float]]) -> None:
        """``logits`` float32 [rows, vocab]; ``best``: of each row the first token of the largest logit, which is NaN
        if any is."""
        self._logits, self._row, self._best = logits, row, best

    @property
    def best(self) -> tuple[int, float]:
        return self._best[self._row]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, at: slice) -> Tensor:
        return self._logits[self._row : self._row + 1][at]
