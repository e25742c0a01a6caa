"""Rounds of a machine with known noise and a candidate of known slowness."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.workload import Profile
from pipeline.ab.counts import Work
from pipeline.ab.rounds import FIGURES, THROUGHPUT, Round, Which
from pipeline.ab.sides import Side
from tests.pipeline.gate.factory import header

STAGES = ("prefill", "decode", "warm")
REQUESTS, WORK = 20, Work(prompt_tokens=250, cached_tokens=200, output_tokens=2)


def side(given: str, **names: str) -> Side:
    h = header("int8", "w", **names)
    from engine.artifact import Named

    identities = tuple(Named.model_validate(h[k]) for k in ("model", "engine", "quantisation"))
    return Side(given, "artifact", identities, {})  # type: ignore[arg-type]


class Machine:
    """Each round takes ``round_s``; ``slower``: {(stage, metric): factor} of the candidate."""

    def __init__(self, slower: dict[tuple[str, str], float], noise: float = 0.01, round_s: float = 20.0) -> None:
        self.slower, self.noise, self.round_s = slower, noise, round_s
        self.now_s = 0.0
        self.rng = np.random.default_rng(3)
        self.void: set[int] = set()
        self.stolen_share = 0.0
        self.failing: Which | None = None
        self.zero: tuple[str, str] | None = None
        self.counted: dict[tuple[Which, str], Work] = {}  # of each request, where it is not as all others
        self.breaks: tuple[int, Which, Exception] | None = None  # what ends that round of that pair
        self.order: list[tuple[int, str, int]] = []

    def clock(self) -> float:
        return self.now_s

    def round(
        self, side: Side, which: Which, pair: int, profile: Profile, profile_name: str, seed: int, out: Path
    ) -> Round:
        self.now_s += self.round_s
        self.order.append((pair, which, seed))
        if self.breaks is not None and self.breaks[:2] == (pair, which):
            raise self.breaks[2]
        figures: dict[tuple[str, str], float | None] = {}
        drift = 1 + 0.02 * math.sin(pair)
        for stage in STAGES:
            for figure in FIGURES:
                metric = figure.partition("-")[0]
                factor = self.slower.get((stage, metric), 1.0) if which == "candidate" else 1.0
                value = 100 * drift * factor * float(np.exp(self.rng.normal(0, self.noise)))
                figures[stage, figure] = 1e4 / value if figure == THROUGHPUT else value
            figures[stage, "ttft-p99"] = None
            if self.failing == which:
                figures[stage, "ttft-p95"] = math.inf
        if self.zero is not None:
            figures[self.zero] = 0.0
        sent = REQUESTS + 3 * (which == "candidate")  # a round is so long, and one side is quicker
        work = {s: {(i, 0): self.counted.get((which, s), WORK) for i in range(sent)} for s in STAGES}
        return Round(which, pair, seed, self.round_s, figures, 50, 0, "lag" if pair in self.void else None, work,
                     self.stolen_share)  # fmt: skip


def figure_of(value: dict[str, Any], stage: str, figure: str) -> dict[str, Any]:
    found: dict[str, Any] = next(e for e in value["estimates"] if (e["stage"], e["figure"]) == (stage, figure))
    return found
