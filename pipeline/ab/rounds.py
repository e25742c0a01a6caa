"""One round: a fresh boot, warm-up, a slice of seeded traffic, and its figures from the raw records.

Rounds come in pairs, A B then B A, and both of a pair get the same prompts; the next pair gets others (``pairs``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from loadtests.output import read_run
from loadtests.quantiles import min_samples, nearest_rank
from loadtests.workload import Profile
from pipeline.ab.counts import StageWork, work_of
from pipeline.ab.sides import Side
from pipeline.errors import SeatrialError
from pipeline.load.engine_log import fresh, keep
from pipeline.load.measure import measure
from pipeline.load.queueing import add_queue_times
from pipeline.load.samples import measured, stage_latencies
from pipeline.load.stolen import Stolen, why_void
from pipeline.load.summary import QUANTILES
from pipeline.stage import Progress, Stage
from pipeline.targets.target import Target

Which = Literal["base", "candidate"]
METRICS = ("ttft", "itl")
THROUGHPUT = "throughput"
FIGURES = (*(f"{m}-{q}" for m in METRICS for q in QUANTILES), THROUGHPUT)


def base_first(pair: int) -> bool:
    """A B B A: the base is first in every other pair, from the first on."""
    return pair % 2 == 0


@dataclass(frozen=True)
class Round:
    """``figures``: by (stage, figure), latencies in ms (+inf: so many requests failed that the quantile is one of
    them), throughput in output tokens a second; None: too few samples. ``void``: why the round counts for nothing.
    ``work``: by stage, what each request was counted to cost. ``stolen_share``: of the processors' time, by the host.
    """

    side: Which
    pair: int
    seed: int
    wall_s: float
    figures: dict[tuple[str, str], float | None]
    requests: int
    failed: int
    void: str | None
    work: Mapping[str, StageWork] = field(default_factory=dict, repr=False)
    stolen_share: float = 0.0

    def as_json(self) -> dict[str, Any]:
        stages: dict[str, dict[str, Any]] = {}
        for (stage, figure), value in self.figures.items():
            stages.setdefault(stage, {})[figure] = value if value is None or math.isfinite(value) else "failed"
        return {
            "side": self.side, "pair": self.pair, "seed": self.seed, "wall_s": round(self.wall_s, 2),
            "requests": self.requests, "failed": self.failed, "void": self.void,
            "stolen_share": round(self.stolen_share, 4), "stages": stages,
        }  # fmt: skip


class NeverUp(SeatrialError):
    """A side's server did not come up, whether it ended or hung."""


class Files:
    """Where a round leaves what it measured, and beside it what server, engine and Locust write."""

    def __init__(self, out: Path) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.server, self.locust = (out.parent / f"{out.name}.{what}.log" for what in ("server", "locust"))
        self.engine = fresh(out.parent / f"{out.name}.engine")


class Quiet(Stage):
    """A round says nothing of its own: the comparison says how far it is."""

    def say(self, text: str) -> None:
        pass

    @contextmanager
    def progress(self, total: int, what: str = "") -> Iterator[Progress]:
        yield Progress("", 0)


def run_round(
    side: Side, which: Which, pair: int, profile: Profile, profile_name: str, seed: int, out: Path, again: int = 0
) -> Round:
    """Boots the side, sends the slice, ends it; the records stay in ``out``. ``again``: prompts sent to the idle server
    once more; of two builds the same answers are compared anyway.

    Raises:
        NeverUp: the server does not come up.
        SeatrialError: it dies, or the load client fails.
    """
    began = time.monotonic()
    files = Files(out)
    with ExitStack() as opened:
        target = booted(side, files, opened)
        stolen = Stolen()
        load = measure(Quiet("ab", out.name), target, profile_name, seed, out, files.locust, again=again)
        share = stolen.share()
    return round_of(which, pair, profile, seed, files, load, share, time.monotonic() - began)


def booted(side: Side, files: Files, opened: ExitStack) -> Target:
    """
    Raises:
        NeverUp: the server does not come up.
    """
    try:
        return opened.enter_context(side.open(files.server, files.engine))
    except SeatrialError as e:
        raise NeverUp(str(e)) from e


def round_of(
    which: Which, pair: int, profile: Profile, seed: int, files: Files, load: dict[str, Any], share: float,
    wall_s: float,
) -> Round:  # fmt: skip
    """From what was measured, once the server has ended and left its logs. ``share``: of the processors' time, by the
    host.
    """
    keep(files.engine, files.out)
    add_queue_times(files.out)
    client = load["client"]
    records, _ = read_run(files.out)
    rows = measured(records)
    return Round(
        side=which,
        pair=pair,
        seed=seed,
        wall_s=wall_s,
        figures=figures_of(records, load, [s.name for s in profile.stages]),
        requests=rows.height,
        failed=rows.filter(~rows["status"].is_in(["ok", "abandoned"])).height,
        void=(client["void_reason"] or "the client was not healthy") if client["void"] else why_void(share),
        stolen_share=share,
        work={s.name: work_of(records, s.name) for s in profile.stages},
    )


def figures_of(records: Any, load: dict[str, Any], stages: list[str]) -> dict[tuple[str, str], float | None]:
    """Quantiles of each stage's raw samples by nearest rank, and its throughput.

    Args:
        records: ``records.parquet`` as a polars DataFrame.
        load: ``load.json``, for the rates.
    """
    out: dict[tuple[str, str], float | None] = {}
    for stage in stages:
        samples = stage_latencies(records, stage)
        for metric in METRICS:
            values = sorted(getattr(samples, f"{metric}_ms"))
            for name, q in QUANTILES.items():
                enough = len(values) >= min_samples(q)
                out[stage, f"{metric}-{name}"] = nearest_rank(values, q) if enough else None
        rate = load["stages"][stage]["output_tokens_per_s"]
        out[stage, THROUGHPUT] = rate if rate > 0 else math.inf  # nothing came: no rate, as for any failure
    return out
