"""What a step costs by what is in it: a line fitted to the step log.

    duration = fixed + a_token * prefill_tokens + a_decode * decode_requests

Weights are read once a step whatever is in it (``fixed``), each prompt token and each decode adds its own. Coefficients
are not negative (Lawson and Hanson 1974), and steps that the line does not explain are left out and fitted again: they
are what is called a stall here, and would bend the line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy import optimize

STALL_TIMES, STALL_S = 2.5, 0.02  # a stall takes so many times what the line says, and so much longer
LEAST_STEPS = 20


@dataclass(frozen=True)
class StepCost:
    """Seconds."""

    fixed_s: float
    token_s: float
    decode_s: float

    def decode_step_s(self, decodes: float) -> float:
        """A step of so many decodes and nothing else."""
        return self.fixed_s + self.decode_s * decodes

    def prefill_s(self, tokens: float) -> float:
        """What a prompt of so many tokens takes in a step of its own."""
        return self.fixed_s + self.token_s * tokens

    def predicted(self, steps: pl.DataFrame) -> np.ndarray:
        prefill, decodes = (steps[c].to_numpy() for c in ("prefill_tokens", "decode_requests"))
        return np.asarray(self.fixed_s + self.token_s * prefill + self.decode_s * decodes, dtype=np.float64)


def fit(steps: pl.DataFrame) -> StepCost | None:
    """None: too few steps for a line."""
    if steps.height < LEAST_STEPS:
        return None
    x = np.column_stack(
        [np.ones(steps.height), steps["prefill_tokens"].to_numpy(), steps["decode_requests"].to_numpy()]
    )
    y = steps["duration_s"].to_numpy()
    keep = np.ones(len(y), dtype=bool)
    cost = np.zeros(3)
    for _ in range(4):
        scale = np.maximum(y[keep], 1e-6)  # relative errors: a long prefill is not to outweigh a hundred decodes
        cost, _ = optimize.nnls(x[keep] / scale[:, None], np.ones(keep.sum()))
        again = y <= np.maximum(STALL_TIMES * (x @ cost), x @ cost + STALL_S)
        if again.sum() < LEAST_STEPS or (again == keep).all():
            break
        keep = again
    return StepCost(*map(float, cost))


def stalled_s(steps: pl.DataFrame, cost: StepCost) -> np.ndarray:
    """Of each step, what it took beyond the line where that is a stall; else 0."""
    said, took = cost.predicted(steps), steps["duration_s"].to_numpy()
    return np.asarray(np.where((took > STALL_TIMES * said) & (took > said + STALL_S), took - said, 0.0))
