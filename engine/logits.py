"""Logits of consecutive positions of one request, as the runner gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from torch import Tensor, inference_mode

from engine.ledger import SLICE_ROWS


class Rows(Protocol):
    """A float32 tensor [rows, vocab], or what stands for one until its rows are looked at."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: slice) -> Tensor: ...


class LazyLogits:
    """Hidden states of a step's scored rows, whose logits are computed when they are looked at.

    A chunk of a long prompt whose log-probabilities are wanted has as many rows as the step has tokens: in float32,
    512 of them take 100 MB at a vocabulary of 49,152. Nobody needs them at the same time, so that only those of one
    tile ever exist. A tile is made of whoever's rows come next: for one row the head's weights are read as for many.
    A row has the same bits in any tile.
    """

    def __init__(self, hidden: Tensor, entries: Sequence[range], head: Callable[[Tensor], Tensor]) -> None:
        """``hidden`` [rows of the step, hidden], normed; ``entries``: the rows of each scored request; ``head`` to
        float32 [rows, vocab]."""
        self._hidden, self._head = hidden, head
        self._scored = [row for rows in entries for row in rows]
        self._entries = entries
        self._last: Tensor | None = None  # [entries, vocab]
        self._tile: tuple[range, Tensor] | None = None  # which rows, and their logits

    def of_entries(self) -> Iterator[LazyRows]:
        """Of each entry its rows."""
        stops = accumulate(map(len, self._entries))
        for number, (rows, stop) in enumerate(zip(self._entries, stops, strict=True)):
            yield LazyRows(self, number, range(stop - len(rows), stop))

    def rows(self, start: int, stop: int) -> Tensor:
        """float32 [rows, vocab] of the scored rows with these numbers."""
        if self._tile is None or not self._tile[0].start <= start <= stop <= self._tile[0].stop:
            self._tile = None  # its memory first
            covered = range(start, min(max(stop, start + SLICE_ROWS), len(self._scored)))
            with inference_mode():
                logits = self._head(self._states(self._scored[start : covered.stop])).cpu()
            self._tile = covered, logits
        first = self._tile[0].start
        return self._tile[1][start - first : stop - first]

    def last(self, entry: int, row: int) -> Tensor:
        """float32 [1, vocab] of a row that is drawn from: it is kept, and must not keep a tile. Those of all requests
        lie in one tensor, since pieces between the tiles would leave holes of memory that no tile fits."""
        found = self.rows(row, row + 1)
        if self._last is None:
            self._last = found.new_empty(len(self._entries), found.shape[1])
        return self._last[entry : entry + 1].copy_(found)

    def _states(self, rows: Sequence[int]) -> Tensor:
        """[rows, hidden]; a copy only where others lie between them."""
        first, stop = rows[0], rows[-1] + 1
        return self._hidden[first:stop] if stop - first == len(rows) else self._hidden[list(rows)]


class LazyRows:
    """Those of one request."""

    def __init__(self, of: LazyLogits, entry: int, rows: range) -> None:
        """``rows``: where those of ``entry`` are among all that are scored."""
        self._of, self._entry, self._rows = of, entry, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: slice) -> Tensor:
        part = self._rows[at]
        if part == self._rows[-1:]:
            return self._of.last(self._entry, part.start)
        return self._of.rows(part.start, part.stop)


class OnHost:
    """Logits that may lie on a device, brought to the host as a whole when the first of them is looked at."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def __getitem__(self, at: slice) -> Tensor:
        self._logits = self._logits.cpu()
        return self._logits[at]

    def keep(self) -> None:
        """Before their memory is written anew."""
        self._logits = self._logits.clone()


class DrawnRow:
    """The logits of one position, of which it is known where the largest is, and perhaps what is drawn from them."""

    def __init__(
        self,
        logits: OnHost,
        row: int,
        best: Sequence[tuple[int, float]],
        drawn: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        """``logits`` float32 [rows, vocab]; ``best``: of each row the first token of the largest logit, which is NaN
        if any is; ``drawn``: of each row what was drawn with a temperature, in this one with ``seed``; below 0
        nothing."""
        self._logits, self._row, self._best = logits, row, best
        self._drawn, self._seed = drawn, seed

    @property
    def best(self) -> tuple[int, float]:
        return self._best[self._row]

    def drawn_for(self, seed: int) -> int | None:
        """The token that was drawn with this seed, if one was."""
        if self._drawn is None or seed != self._seed:  # samples of one prompt share its last row, not their seeds
            return None
        token = self._drawn[self._row]
        return token if token >= 0 else None

    def __len__(self) -> int:
        return 1

    def __getitem__(self, at: slice) -> Tensor:
        return self._logits[self._row : self._row + 1][at]
