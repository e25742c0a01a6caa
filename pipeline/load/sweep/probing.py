"""One probe: a short open-loop stage through Locust at one rate, and which of its requests kept the SLO."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import yaml

from loadtests.output import read_run
from loadtests.workload import Goodput, Profile, StageSpec
from pipeline.errors import SeatrialError
from pipeline.gate.statistics.effective import serial_design_effect
from pipeline.load.child import run_locust
from pipeline.load.samples import measured
from pipeline.load.summary import kept, summarise
from pipeline.load.sweep.search import Probe
from pipeline.targets.target import Target

FEWEST_S = 2.0
_WARMUP_S = 2.0
_START_S = 6.0  # for Locust to start and end, usually


@dataclass(frozen=True)
class Plan:
    """Whose content a probe has (one stage of a profile), how many requests it measures, and how long it may take.

    Raises:
        SeatrialError: there is no such stage, or its content does not come by single requests.
    """

    profile: Profile
    stage: str
    slo: Goodput
    requests: int
    most_s: float

    def __post_init__(self) -> None:
        names = [s.name for s in self.profile.stages]
        if self.stage not in names:
            raise SeatrialError(f"profile {self.profile.name} has no stage {self.stage!r}; it has {', '.join(names)}")
        spec = self.spec
        what = "replays a trace" if spec.replayed else "holds sessions" if spec.sessions else None
        if what is not None:
            raise SeatrialError(
                f"stage {self.stage} of profile {self.profile.name} {what}; a sweep sends single requests at a rate: "
                "choose another stage (--stage), or copy the profile and give the stage lengths of its own"
            )

    @property
    def spec(self) -> StageSpec:
        return next(s for s in self.profile.stages if s.name == self.stage)

    def duration_s(self, rate_per_s: float) -> float:
        return min(max(self.requests / rate_per_s, FEWEST_S), self.most_s)

    def at(self, rate_per_s: float) -> Profile:
        """The profile of one probe: the stage's content, arriving as a Poisson process at this rate. A pause to think
        says when a user comes back; here the rate does.
        """
        changes = {
            "name": "probe",
            "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
            "warmup_s": _WARMUP_S,
            "duration_s": self.duration_s(rate_per_s),
            "think": None,
        }
        value = self.profile.model_dump(mode="json") | {
            "name": f"{self.profile.name}-{self.stage}-at-{rate_per_s:.3g}",
            "kind": "custom",
            "goodput": self.slo.model_dump(),
            "stages": [self.spec.model_dump(mode="json") | changes],
        }
        return Profile.model_validate(value)

    def cost_s(self, rate_per_s: float) -> float:
        """The most that a probe takes, but for a Locust that hangs: warm-up, stage, a full drain and its start."""
        return self.at(rate_per_s).planned_s + self.profile.drain_s + _START_S


def run_probe(target: Target, plan: Plan, rate_per_s: float, seed: int, work: Path) -> Probe:
    """Sends one probe and removes its files again.

    Raises:
        SeatrialError: the server died or Locust failed.
    """
    profile = plan.at(rate_per_s)
    folder, log = work / "probe", work / "locust.log"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    file = folder / "profile.yaml"
    file.write_text(yaml.safe_dump(profile.model_dump(mode="json")), encoding="utf-8")
    run_locust(
        profile, file.resolve(), base_url=target.base_url, model=target.model_name, seed=seed,
        out=folder.resolve(), log=log, key=target.key, check=target.check_alive,
    )  # fmt: skip
    try:
        records, run = read_run(folder)
    except (OSError, ValueError, pl.exceptions.PolarsError) as e:
        raise SeatrialError(f"Locust ended well but left no readable records: {e}; see {log}") from e
    shutil.rmtree(folder)
    rows = measured(records)
    good = kept(rows, plan.slo.model_dump())
    stage = run.stages[0]
    window = {stage["name"]: (stage["start_s"] + stage["warmup_s"], stage["end_s"])}
    figures = summarise(records, window, fixed_output=False, goodput=plan.slo.model_dump())
    bad = [float(not g) for g in good]
    return Probe(
        rate_per_s=rate_per_s,
        requests=rows.height,
        good=int(good.sum()),
        effective=rows.height / serial_design_effect(bad, 0.5),
        figures={
            k: figures[k] for k in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s", "error_share")
        },
        void=run.client.void_reason if rows.height else "no request was due in the measured part",
    )
