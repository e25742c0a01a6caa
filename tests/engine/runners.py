"""Runners with the kernels that a test is about, and steps with all the logits that are wanted as plain tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.runner import ModelRunner


def runner_on(kernels: str, artifact: Path, config: EngineConfig) -> ModelRunner:
    """``kernels``: `cpu`, or `reference`, which is what an engine without a compiler has."""
    with pytest.MonkeyPatch.context() as patch:
        if kernels == "reference":
            patch.setenv("PATH", "")
        made = ModelRunner(artifact, config)
    assert made.derived["kernels"] == kernels
    return made


def compute(runner: ModelRunner, batch: list[BatchEntry]) -> list[Tensor | None]:
    """float32 [rows, vocab] of each entry; None where none are wanted."""
    return [None if rows is None else rows[:] for rows in runner.execute(batch)]
