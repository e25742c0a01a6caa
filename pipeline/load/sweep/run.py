"""The command's work: a server, a search, ``sweep.json``, ``sweep.svg`` and a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from engine.artifact import Named
from engine.config import EngineConfig
from loadtests.workload import Goodput, Profile, workload_digest
from pipeline.errors import SeatrialError
from pipeline.files import atomic_write, write_json
from pipeline.load.measure import read_profile
from pipeline.load.sweep.probing import Plan, run_probe
from pipeline.load.sweep.search import Bounds, Found, Probe, Rate, search
from pipeline.params import PARAMS, Params, load_params
from pipeline.provenance import Header, this_machine, utc_now
from pipeline.stage import Stage
from pipeline.stage import stage as stage_of
from pipeline.targets.choose import Choice, choose, url_spec
from pipeline.targets.spec import BUNDLED, BundledSpec
from pipeline.targets.target import LOGS, Target

SEED = 1


@dataclass(frozen=True)
class Asked:
    """The command's options."""

    server: str | None  # name of a target
    base_url: str | None
    model: str | None
    tier: str | None
    profile: str
    stage: str | None
    ttft_ms: float | None
    tpot_ms: float | None
    target: float
    lowest: float
    highest: float
    budget_s: float
    requests: int
    probe_s: float
    tolerance: float
    seed: int | None
    out: Path

    def slo(self, profile: Profile) -> Goodput:
        """
        Raises:
            SeatrialError: neither the options nor the profile set both limits.
        """
        known = profile.goodput.model_dump() if profile.goodput else {}
        given = {k: v for k, v in (("ttft_ms", self.ttft_ms), ("tpot_ms", self.tpot_ms)) if v is not None}
        if missing := sorted({"ttft_ms", "tpot_ms"} - set(known | given)):
            raise SeatrialError(
                f"profile {profile.name} sets no limit {missing[0]} (goodput): give --{missing[0].replace('_', '-')}"
            )
        return Goodput.model_validate(known | given)

    def choice(self, params: Params | None) -> Choice:
        """
        Raises:
            SeatrialError: an unknown target or tier, or no params.yaml that could name one.
        """
        if self.base_url is not None:
            return Choice(self.base_url, url_spec(self.base_url, self.model), self.tier or "server")
        if params is None and self.server is None:
            return Choice(BUNDLED, BundledSpec(), str(self.tier))
        if params is None:
            raise SeatrialError(f"{PARAMS} not found in {Path.cwd()}; where its targets would stand")
        return choose(params, self.tier or str(self.server), self.server, None, None)


def run_sweep(asked: Asked) -> dict[str, Any]:
    """Searches, writes and prints; returns ``sweep.json``.

    Raises:
        SeatrialError: a wrong profile or stage, no server, or a budget in which no probe fits.
    """
    profile = read_profile(asked.profile)
    plan = Plan(profile, asked.stage or profile.stages[0].name, asked.slo(profile), asked.requests, asked.probe_s)
    try:
        bounds = Bounds(
            asked.lowest, asked.highest, target=asked.target, tolerance=asked.tolerance, budget_s=asked.budget_s
        )
    except ValueError as e:
        raise SeatrialError(str(e)) from e
    if plan.cost_s(asked.lowest) > asked.budget_s:
        raise SeatrialError(
            f"a probe at {asked.lowest:g}/s takes up to {plan.cost_s(asked.lowest):.0f} s, more than the budget of "
            f"{asked.budget_s:g} s: raise --budget-s or --from, or lower --requests"
        )
    params = load_params() if PARAMS.is_file() else None
    seed = asked.seed if asked.seed is not None else params.load.seed if params else SEED
    with stage_of("sweep", asked.tier, measuring=True, note=False) as s:
        config = params.engine if params else EngineConfig()
        with asked.choice(params).open(config, LOGS / "sweep.server.log") as target:
            began_at, seeds = utc_now(), count(seed)

            def probe(rate: float) -> Probe:
                return run_probe(target, plan, rate, next(seeds), LOGS / "sweep")

            found = search(probe, plan.cost_s, bounds, say=lambda r: s.say(_line(r)))
            value = _json(found, bounds, plan, _header(target, plan, seed, began_at))
        write_json(asked.out / "sweep.json", value)
        if found.rates:
            from pipeline.load.sweep.draw import svg

            atomic_write(asked.out / "sweep.svg", svg(value))
        _print(s, value, asked.out)
    return value


def _line(r: Rate) -> str:
    return (
        f"{r.rate_per_s:.3g} requests/s: {r.share:.1%} of {r.requests} within the SLO ({r.low:.1%} to {r.high:.1%}), "
        f"{r.state}"
    )


def _json(found: Found, bounds: Bounds, plan: Plan, header: Header) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "header": header.model_dump(mode="json"),
        "stage": plan.stage,
        "slo": plan.slo.model_dump(),
        "target_share": bounds.target,
        "confidence": bounds.confidence,
        "knee_per_s": found.knee_per_s,
        "interval": list(found.interval),
        "stopped": found.stopped,
        "budget_s": bounds.budget_s,
        "spent_s": found.spent_s,
        "rates": [asdict(r) for r in found.rates],
        "probes": [asdict(p) for p in found.probes],
    }


def _header(target: Target, plan: Plan, seed: int, measured_at: str) -> Header:
    model, engine, quantisation = target.identities
    return Header(
        model=model,
        engine=engine,
        quantisation=quantisation,
        workload=Named(
            name=f"sweep of {plan.profile.name}/{plan.stage} (seed {seed})", digest=workload_digest(plan.profile, seed)
        ),
        machine=this_machine(),
        measured_at=measured_at,
        engine_requested=target.engine_requested,
        engine_derived=target.engine_derived,
    )


def _print(s: Stage, value: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{value['target_share']:.0%} within {value['slo']}, stage {value['stage']}")
    for head in ("requests/s", "requests", "within the SLO", "interval", "state", "TTFT P50", "TTFT P95 ms"):
        table.add_column(head, justify="right")
    for r in value["rates"]:
        mine = [p for p in value["probes"] if p["rate_per_s"] == r["rate_per_s"] and not p["void"]]
        worst = [
            max((p["figures"]["ttft_ms"][q] for p in mine if p["figures"]["ttft_ms"][q] is not None), default=None)
            for q in ("p50", "p95")
        ]
        table.add_row(
            f"{r['rate_per_s']:.3g}", str(r["requests"]), f"{r['share']:.1%}", f"{r['low']:.1%} to {r['high']:.1%}",
            r["state"], *("-" if v is None else f"{v:.0f}" for v in worst),
        )  # fmt: skip
    Console().print(table)
    low, high = (("none" if v is None else f"{v:.3g}") for v in value["interval"])
    knee = "no rate" if value["knee_per_s"] is None else f"{value['knee_per_s']:.3g} requests/s"
    print(f"knee: {knee}; surely held up to {low}, surely broken from {high} requests/s; {value['stopped']}")
    drawn = f", {out / 'sweep.svg'}" if value["rates"] else ""
    s.say(f"{value['spent_s']:.0f} s of {value['budget_s']:g} s; {out / 'sweep.json'}{drawn}")
