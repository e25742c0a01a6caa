"""What a profile will send, before it is sent: counted from the requests themselves where the plan fixes them.

An open loop's arrivals are fixed, so they are counted. A closed loop sends as fast as the server answers, so how much
it sends is only known for an answer time that somebody assumes (``latency_s``): users / (latency + think), by Little's
law; likewise how many requests of an open loop are in flight.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath
from statistics import fmean, pstdev

from loadtests.arrivals import Closed, Open, OpenLoop, Replay, Steps, Walk
from loadtests.distributions import Strict
from loadtests.replay.scale import Scaling, quantiles
from loadtests.schedule import closed_loop, due_times
from loadtests.traffic import Prompt, session_of
from loadtests.words import about_tokens
from loadtests.workload import Profile, StageSpec, workload_digest

MOST_DRAWN = 1000  # arrivals whose texts are made to be counted; a stage with more is known well enough by them


class Rate(Strict):
    """Arrivals of an open loop. ``gap_cv``: coefficient of variation of the gaps, 1 for Poisson; null below 3."""

    mean_per_s: float
    busiest_s: int  # arrivals in the busiest whole second
    gap_cv: float | None


class Concurrency(Strict):
    """``levels`` is [(from_s of the stage, users or requests in flight), ...]; the mean is over the whole stage."""

    min: float
    mean: float
    max: float
    levels: list[tuple[float, float]]


class StagePlan(Strict):
    """Tokens are words and full stops, which is what lengths are aimed at; prompts include the session so far."""

    name: str
    warmup_s: float
    duration_s: float
    arrivals: str
    arrivals_warmup: int | None  # exact; of sessions, where the stage has them; null: closed loop
    arrivals_measured: int | None
    turns_mean: float
    requests_measured: float | None
    requests_reason: str | None
    rate: Rate | None
    concurrency: Concurrency | None
    concurrency_reason: str | None
    drawn: int  # arrivals of which the following was counted
    prompt_tokens: dict[str, int]
    output_tokens: dict[str, int]
    shared_share: float  # of the prompt tokens: they begin as an earlier prompt of the stage did
    leaving_share: float
    think_mean_s: float | None
    replay: Scaling | None


class ProfilePlan(Strict):
    schema_version: int = 1
    profile: str
    kind: str
    seed: int
    workload_digest: str
    latency_s: float | None
    planned_s: float
    stages: list[StagePlan]


def plan_of(profile: Profile, seed: int, latency_s: float | None = None) -> ProfilePlan:
    """The plan of all stages. ``latency_s``: assumed time of an answer, for what depends on the server."""
    return ProfilePlan(
        profile=profile.name,
        kind=profile.kind,
        seed=seed,
        workload_digest=workload_digest(profile, seed),
        latency_s=latency_s,
        planned_s=profile.planned_s,
        stages=[_stage(spec, seed, latency_s) for spec in profile.stages],
    )


def _stage(spec: StageSpec, seed: int, latency_s: float | None) -> StagePlan:
    due = [at_s for _, at_s in due_times(spec, seed)] if isinstance(spec.arrivals, OpenLoop) else None
    count = MOST_DRAWN if due is None else min(len(due), MOST_DRAWN)
    sessions = [session_of(spec, seed, i) for i in range(count)]
    prompts = [p for turns in sessions for p in turns]
    turns_mean = len(prompts) / len(sessions) if sessions else 1.0
    think_mean_s = fmean(p.think_s for p in prompts) if spec.think and prompts else None
    measured = None if due is None else sum(at_s >= spec.warmup_s for at_s in due)
    requests, reason = None if measured is None else measured * turns_mean, None
    if due is not None:
        levels = None if latency_s is None else _in_flight(due, sessions, latency_s, spec.length_s)
    else:
        levels = [(at_s, float(users)) for at_s, users in closed_loop(spec, seed).levels]
        requests, reason = _of_closed(spec, levels, latency_s, think_mean_s)
    sizes, shared = _sizes(sessions)
    replay = spec.replayed.scaling if spec.replayed else None
    return StagePlan(
        name=spec.name,
        warmup_s=spec.warmup_s,
        duration_s=spec.duration_s,
        arrivals=_arrivals(spec),
        arrivals_warmup=None if due is None or measured is None else len(due) - measured,
        arrivals_measured=measured,
        turns_mean=turns_mean,
        requests_measured=requests,
        requests_reason=reason,
        rate=None if due is None else _rate(due, spec.length_s),
        concurrency=None if levels is None else _concurrency(levels, spec.length_s),
        concurrency_reason="an open loop's depends on the server: assume an answer time" if levels is None else None,
        drawn=len(sessions),
        prompt_tokens=replay.prompt_tokens.replayed if replay else quantiles(sizes or [0]),
        output_tokens=replay.output_tokens.replayed if replay else quantiles([p.max_tokens for p in prompts] or [0]),
        shared_share=replay.shared_share[1] if replay and replay.shared_share else shared,
        leaving_share=fmean(p.leave_after_s is not None for p in prompts) if prompts else 0.0,
        think_mean_s=think_mean_s,
        replay=replay,
    )


def _arrivals(spec: StageSpec) -> str:
    match spec.arrivals:
        case Closed(concurrency=n):
            return f"closed loop, {n} users"
        case Walk() as w:
            return f"closed loop, random walk of {w.min} to {w.max} users, up to {w.step} every {w.every_s:g} s"
        case Steps(levels=levels):
            return "closed loop, " + ", ".join(f"{users} users from {at_s:g} s" for at_s, users in levels)
        case Open() as o:
            shape = f" with burstiness {o.burstiness:g}" if o.burstiness else ""
            rates = ", ".join(f"{per_s:g}/s at {at_s:g} s" for at_s, per_s in o.points)
            return f"open loop, {o.kind}{shape}, " + (rates if o.rates else f"{o.rate_per_s:g}/s")
        case Replay() as r:
            return f"open loop, replay of {PurePath(r.file).name}"


def _of_closed(
    spec: StageSpec, levels: Sequence[tuple[float, float]], latency_s: float | None, think_s: float | None
) -> tuple[float | None, str | None]:
    if latency_s is None:
        return None, "a closed loop's depends on the server: assume an answer time"
    user_s = sum(users * max(to_s - max(from_s, spec.warmup_s), 0.0) for from_s, to_s, users in _spans(levels, spec))
    return user_s / (latency_s + (think_s or 0.0)), None


def _spans(levels: Sequence[tuple[float, float]], spec: StageSpec) -> Iterator[tuple[float, float, float]]:
    ends = [*(at_s for at_s, _ in levels[1:]), spec.length_s]
    yield from ((from_s, min(to_s, spec.length_s), n) for (from_s, n), to_s in zip(levels, ends, strict=True))


def _in_flight(
    due: Sequence[float], sessions: Sequence[Sequence[Prompt]], latency_s: float, length_s: float
) -> list[tuple[float, float]]:
    """Requests in flight at each whole second, if each took ``latency_s``."""
    begun = list[float]()
    for i, at_s in enumerate(due):
        for p in sessions[i % len(sessions)]:
            begun.append(at_s)
            at_s += latency_s + p.think_s
    begun.sort()
    moments = [float(t) for t in range(math.ceil(length_s))]
    return [(t, float(bisect_right(begun, t) - bisect_right(begun, t - latency_s))) for t in moments]


def _concurrency(levels: list[tuple[float, float]], length_s: float) -> Concurrency:
    ends = [*(at_s for at_s, _ in levels[1:]), length_s]
    spans = [(max(min(to_s, length_s) - from_s, 0.0), n) for (from_s, n), to_s in zip(levels, ends, strict=True)]
    counts = [n for length, n in spans if length > 0]
    return Concurrency(min=min(counts), mean=sum(s * n for s, n in spans) / length_s, max=max(counts), levels=levels)


def _rate(due: Sequence[float], length_s: float) -> Rate:
    gaps = [b - a for a, b in pairwise(due)]
    mean = fmean(gaps) if len(gaps) > 1 else 0.0
    return Rate(
        mean_per_s=len(due) / length_s,
        busiest_s=max(Counter(int(at_s) for at_s in due).values(), default=0),
        gap_cv=pstdev(gaps) / mean if mean else None,
    )


def _sizes(sessions: Sequence[Sequence[Prompt]]) -> tuple[list[int], float]:
    """Prompt sizes with the session so far, answers at their longest; and the share of them that is shared: words that
    begin as an earlier prompt did, in the order in which the arrivals come."""
    seen, shared, total, sizes = set[int](), 0, 0, list[int]()
    for number, turns in enumerate(sessions):
        chain, size = 0, 0  # the last of the session's prefix hashes
        prefixes = list[int]()
        for p in turns:
            for role, text in p.messages:
                for word in f"{role}:{text}".split():
                    chain = hash((chain, word))
                    prefixes.append(chain)
                size += about_tokens(text)
            sizes.append(size)
            shared += next((i for i, h in enumerate(prefixes) if h not in seen), len(prefixes))
            total += len(prefixes)
            for i in range(p.max_tokens):  # no other answer is like this one
                chain = hash((chain, number, i))
                prefixes.append(chain)
            size += p.max_tokens
            seen.update(prefixes)
    return sizes, shared / total if total else 0.0
