"""A step of a runner with all the logits that are wanted, as plain tensors."""

from __future__ import annotations

from torch import Tensor

from engine.batch import BatchEntry
from engine.runner import ModelRunner


def compute(runner: ModelRunner, batch: list[BatchEntry]) -> list[Tensor | None]:
    """float32 [rows, vocab] of each entry; None where none are wanted."""
    return [None if rows is None else rows[:] for rows in runner.execute(batch)]
