"""Teacher-forced scoring: what becomes of the logits of a prompt, a few rows at a time.

The divergence of a position is KL(reference || candidate) = sum over the vocabulary of p (ln p - ln q), in nats
(Kullback and Leibler, "On Information and Sufficiency", 1951), p the stored distribution and q this model's. Both are
kept as float32 log-probabilities and normalised again in float64 before they are compared, so that the result is
neither negative by rounding nor different from 0 where the two are the same bits.

Every figure of a row comes from that row alone, in an order of summation that depends on the vocabulary's size and on
nothing else: not on how many rows are handled at once, nor on threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.ledger import SLICE_ROWS
from engine.request import RequestError
from engine.scoring.references import ReferenceFileError, ReferenceReader, ReferenceStore, ReferenceWriter, Rows

NORM_TOLERANCE = 1e-3  # of the sum of a stored distribution; float32 rounding stays below 1e-4


class ScoringError(RuntimeError):
    """A request whose scoring failed half way: logits or reference rows that are no distribution, or a disk error."""


def log_probabilities(rows: Tensor) -> Rows:
    """float32 logits [rows, vocab] -> float32 natural log-probabilities."""
    return np.asarray(torch.log_softmax(rows, dim=-1).cpu().numpy(), dtype=np.float32)


def divergence(reference: Rows, candidate: Rows) -> float:
    """KL(reference || candidate) of two rows of log-probabilities [vocab], in nats; exactly 0.0 for equal rows.

    Raises:
        ScoringError: the reference row does not sum to 1.
    """
    p, total = _normalised(reference)
    if not abs(total) <= NORM_TOLERANCE:
        raise ScoringError(
            f"a stored distribution sums to {math.exp(total):.4g}, expected 1; store the reference again"
        )
    q, _ = _normalised(candidate)
    found = float((np.exp(p) * (p - q)).sum())
    if not math.isfinite(found):
        raise ScoringError("log-probabilities that are not finite have no divergence")
    return max(0.0, found)  # below 0 by rounding only (Gibbs' inequality)


def _normalised(row: Rows) -> tuple[NDArray[np.float64], float]:
    """The row in float64, and the logarithm of the sum that it was divided by."""
    wide = row.astype(np.float64)
    top = float(wide.max())
    total = top + math.log(float(np.exp(wide - top).sum()))
    return wide - total, total


class PromptScore:
    """Takes the logits of one prompt's positions in order; stores them, compares them, or both."""

    def __init__(self, num_rows: int, writer: ReferenceWriter | None, reader: ReferenceReader | None) -> None:
        self.num_rows, self.writer, self.reader = num_rows, writer, reader
        self.num_taken = 0
        self.kl: list[float] | None = None if reader is None else []

    def take(self, rows: Tensor) -> None:
        """The next rows of float32 logits [rows, vocab].

        Raises:
            ScoringError: with the reason.
        """
        try:
            for part in rows.split(SLICE_ROWS):
                own = log_probabilities(part)
                if self.writer is not None:
                    self.writer.write(self.num_taken, own)
                if self.reader is not None and self.kl is not None:
                    other = self.reader.read(self.num_taken, len(own))
                    self.kl += [divergence(p, q) for p, q in zip(other, own, strict=True)]
                self.num_taken += len(own)
        except ReferenceFileError as e:
            raise ScoringError(str(e)) from e

    def finish(self) -> dict[str, Any]:
        """What the answer says of it; a stored file gets its name now.

        Raises:
            ScoringError: the file cannot be put in its place.
        """
        if self.num_taken != self.num_rows:
            raise AssertionError(f"{self.num_taken} rows were scored, expected {self.num_rows}")
        found: dict[str, Any] = {"kl": self.kl, "reference": None, "stored": None}
        if self.reader is not None:
            found["reference"] = {"name": self.reader.path.parent.name, **self.reader.identity}
        if self.writer is not None:
            try:
                self.writer.finish()
            except ReferenceFileError as e:
                raise ScoringError(str(e)) from e
            found["stored"] = {"name": self.writer.path.parent.name, "bytes": self.writer.num_bytes}
        return found

    def close(self) -> None:
        """However it ended: an unfinished file goes, handles are closed. May be called again."""
        if self.writer is not None:
            self.writer.discard()
        if self.reader is not None:
            self.reader.close()


def open_score(
    store: ReferenceStore | None, tokens: Sequence[int], write_to: str | None, compare_with: str | None
) -> PromptScore | None:
    """What a request with these names needs; None where it names neither.

    Raises:
        RequestError: there is no reference directory, or it does not have or take what is asked.
    """
    if write_to is None and compare_with is None:
        return None
    if store is None:
        asked = "store" if write_to is not None else "reference"
        raise RequestError(f"{asked} needs a directory of references; start the server with --reference-dir")
    reader = None if compare_with is None else store.reader(compare_with, tokens)
    writer = None if write_to is None else store.writer(write_to, tokens)
    return PromptScore(len(tokens) - 1, writer, reader)
