"""The whole comparison: rounds until the figures decide or the budget is used up, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtests.workload import workload_digest
from pipeline.ab.cause import cause_of
from pipeline.ab.counts import COUNTS, Counted, counted
from pipeline.ab.decide import LEAST_PAIRS, Look, held_stages, look_at, pairs_in, plan_looks, resolved_in, whole_pairs
from pipeline.ab.gaps import not_comparable
from pipeline.ab.pairs import Broke, Pairs, RunRound
from pipeline.ab.rounds import NeverUp, Round
from pipeline.ab.sides import Side
from pipeline.errors import SeatrialError
from pipeline.gate.statistics.looks import LookPlan
from pipeline.load.measure import read_profile
from pipeline.params import AbParams
from pipeline.provenance import this_machine, utc_now
from pipeline.serving import ServerEnded
from pipeline.stage import Stage

IDENTITIES = ("model", "engine", "quantisation")
FEWEST = 2  # pairs from which there is an interval at all


def compare_builds(
    base: Side, candidate: Side, params: AbParams, seed: int, out: Path, s: Stage,
    *, round_: RunRound | None = None, clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:  # fmt: skip
    """Runs pairs of rounds, looks as planned, and returns the content of ab.json.

    The number of looks is fixed once the first pair has shown how long one takes; only the clock can end the
    comparison before the last of them, never a figure that nearly suits. What is counted has no noise and waits for no
    look: work that has grown holds as soon as ``FEWEST`` pairs are there. Between two engines of this project, that is;
    of another project's server it is reported.

    A server that does not come up or dies, or a load client that fails, ends it: the verdict says so, and no figure of
    what was measured until then decides anything.

    Args:
        round_: measures whole rounds; None: as ``params`` has it.

    Raises:
        SeatrialError: no such profile.
    """
    profile = read_profile(params.profile)
    stages = [x.name for x in profile.stages]
    budget_s, began, as_of = params.budget_minutes * 60, clock(), utc_now()
    rounds: list[Round] = []
    counts: list[int] = []
    work: list[Counted] = []
    ours = base.opened is None and candidate.opened is None
    looks: list[Look] = []
    plan: LookPlan | None = None
    pair_s, pair = 0.0, 0
    broken: Broke | None = None
    pairs = Pairs({"base": base, "candidate": candidate}, params, profile, round_)
    while True:
        try:
            for r in pairs.run(pair, seed + pair, out):
                rounds.append(r)
        except Broke as e:
            broken = e
        pair += 1
        if broken is not None:
            whole = len(whole_pairs(rounds))
            s.say(f"the {broken.side} broke off in pair {pair}: {broken.why}")
            break
        pair_s = (clock() - began) / pair
        plan = plan or plan_looks(pairs_in(budget_s, pair_s), params)
        last = clock() - began + pair_s > budget_s
        whole = len(whole_pairs(rounds))
        s.say(_progress(rounds[-2:], whole, plan, pair_s))
        new = whole > (counts[-1] if counts else 0)  # a void pair brings nothing to look at
        work = counted([(a.work, b.work) for a, b in whole_pairs(rounds)], stages, params)
        grown = ours and any(c.outcome == "fail" for c in work)  # whatever a look then says of the latencies
        if new and (whole >= plan.at[len(counts)] or (whole >= FEWEST and (last or grown))):
            counts.append(whole)
            final = last or grown or len(counts) == len(plan.at)
            looks.append(look_at(rounds, stages, params, plan, counts, final=final, work=work if ours else ()))
            s.say(f"look {len(looks)} of {len(plan.at)}, {whole} pairs: {looks[-1].verdict}: {looks[-1].reason}")
            if final or looks[-1].verdict != "undecided":
                break
        elif last:
            break
    verdict, reason = _outcome(looks, whole, params) if broken is None else _broken(broken, rounds)
    cause = None
    if looks and verdict == "hold":
        cause = cause_of(out, [a.pair for a, _ in whole_pairs(rounds)], work, held_stages(looks[-1], params))
    return {
        "schema_version": 1,
        "as_of": as_of,
        "verdict": verdict,
        "reason": reason,
        "base": base.describe(),
        "candidate": candidate.describe(),
        "what_differs": what_differs(base, candidate),
        "not_comparable": not_comparable({"base": base, "candidate": candidate}, profile),
        "machine": this_machine().model_dump(),
        "profile": profile.name,
        "workload_digest": workload_digest(profile, seed, pairs.turn_s),
        "traffic_digest": workload_digest(profile, 0, pairs.turn_s),  # whatever the seed
        "turns": pairs.as_json(),
        "seed": seed,
        "policy": params.model_dump(mode="json"),
        "looks": {
            "planned_pairs": list(plan.at) if plan else [],
            "spending": plan.spending if plan else None,
            "taken": [{"pairs": x.pairs, "verdict": x.verdict, "reason": x.reason} for x in looks],
        },
        "minutes": round((clock() - began) / 60, 2),
        "pair_s": round(pair_s, 2),
        "void_pairs": pair - whole,
        "cause": cause,
        "broken_off": None if broken is None else {"side": broken.side, "why": str(broken.why)},
        "estimates": _estimates(looks[-1], rounds, params) if looks else [],
        "work": [_work_row(c, blocking=ours) for c in work],
        "resolves": resolved_in(looks[-1], pair_s, params.confidence) if looks else {},
        "rounds": [r.as_json() for r in rounds],
    }


def what_differs(base: Side, candidate: Side) -> list[str]:
    """Which identities differ; more than one, and a difference cannot be attributed to either."""
    return [
        name
        for name, a, b in zip(IDENTITIES, base.identities, candidate.identities, strict=True)
        if a.digest != b.digest
    ]


def _outcome(looks: list[Look], whole: int, params: AbParams) -> tuple[str, str]:
    if looks:
        return looks[-1].verdict, looks[-1].reason
    return "undecided", (
        f"{whole} whole pairs of rounds in {params.budget_minutes:g} minutes; an interval needs {FEWEST}, a decision "
        f"rarely fewer than {LEAST_PAIRS}: a longer budget, or a quieter machine if rounds were void"
    )


def _broken(broken: Broke, rounds: list[Round]) -> tuple[str, str]:
    """A candidate whose server ends under traffic that its base has borne is held, and one that never comes up, hung or
    ended, where its base has. Of anything else - the base breaks off, or the load client, or nothing has run yet -
    nothing can be said of the candidate.
    """
    which, why = broken.side, broken.why
    theirs = [r for r in rounds if r.side == "base"]
    borne = any(r.void is None and not r.failed for r in theirs)
    if which == "candidate" and (theirs or broken.other_up) and isinstance(why, NeverUp):
        return "hold", f"the candidate did not come up, the base did: {str(why).splitlines()[0]}"
    reason = f"the {which} broke off after {len(rounds)} rounds: {str(why).splitlines()[0]}"
    if which == "candidate" and borne and isinstance(why, ServerEnded):
        return "hold", f"{reason} The base bore the same traffic."
    return "undecided", f"{reason} Nothing follows from what was measured before; see the logs beside the rounds."


def without_answers(verdict: str, reason: str, why: SeatrialError) -> dict[str, Any]:
    """What of ab.json changes where the answers that were asked for could not be compared: a hold stays one."""
    said = f"the answers could not be compared: {str(why).splitlines()[0]}"
    if verdict == "hold":
        return {"quality": None, "reason": f"{reason}; {said}"}
    return {"quality": None, "verdict": "undecided", "reason": f"{said} (latency alone: {verdict}: {reason})"}


def _progress(pair: list[Round], whole: int, plan: LookPlan, pair_s: float) -> str:
    void = next((f"; void: {r.side}: {r.void}" for r in pair if r.void), "")
    failed = sum(r.failed for r in pair)
    more = f"; {failed} requests failed" if failed else ""
    return f"{whole} of at most {plan.at[-1]} pairs, {pair_s:.0f} s each{more}{void}"


def _estimates(look: Look, rounds: list[Round], params: AbParams) -> list[dict[str, Any]]:
    """One row a figure: the ratio candidate/base (base/candidate for a throughput, so that above 1 is always worse)."""
    pairs = whole_pairs(rounds)
    out = []
    for (stage, figure), c in look.compared.items():
        r = c.ratio
        row: dict[str, Any] = {
            "stage": stage,
            "figure": figure,
            "blocking": figure in params.blocking.get(stage, []),
            "outcome": c.outcome,
            "why": c.why,
            "ratio": r and r.ratio,
            "interval": r and [r.low, r.high],
            "confidence": 1 - c.level,
            "p_worse": c.p_worse,
            "pairs": look.pairs,
            "pairs_needed": c.pairs_needed,
        }
        for side, of in enumerate(("base", "candidate")):
            values = sorted(v for p in pairs if (v := p[side].figures.get((stage, figure))) is not None)
            row[of] = values[len(values) // 2] if values and values[-1] < float("inf") else None
        out.append(row)
    out += [
        {"stage": stage, "figure": figure, "blocking": False, "outcome": "undecided", "why": why, "ratio": None}
        for (stage, figure), why in look.absent.items()
    ]
    return out


def _work_row(c: Counted, *, blocking: bool) -> dict[str, Any]:
    """Tokens a request; a ratio above 1 is worse, as with the latencies."""
    worse, better = (c.candidate, c.base) if COUNTS[c.name].higher_is_worse else (c.base, c.candidate)
    return {
        "stage": c.stage,
        "count": c.name,
        "blocking": blocking,
        "outcome": c.outcome,
        "why": c.why,
        "base": c.base,
        "candidate": c.candidate,
        "ratio": worse / better if worse is not None and better else None,
        "requests": c.requests,
    }
