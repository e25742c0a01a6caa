"""Work that is counted, not timed: what each request cost in tokens, of the same requests on both sides.

Both rounds of a pair send the same requests, so each can be held against itself by its number. What a server counts of
it has no noise: that less of a prompt is found in the cache, or that an answer ends early, shows at once and on any
machine, and spends nothing of the error that the latencies share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from pipeline.diagnosis.causes import Cause
from pipeline.gate.statistics.shares import Outcome
from pipeline.params import AbParams

Key = tuple[int, int]  # number of the arrival in its stage, turn of its session


class Work(NamedTuple):
    """Of one request, as its server counted it; None: not reported."""

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


StageWork = Mapping[Key, Work]
Both = Sequence[tuple[Work, Work]]  # the same requests, of base and candidate


@dataclass(frozen=True)
class Count:
    """``of``: None where the server did not report it. ``cause``: what is told where the candidate is worse."""

    words: str
    higher_is_worse: bool
    of: Callable[[Work], int | None]
    cause: Callable[[Both], Cause]


def _computed(w: Work) -> int | None:
    return None if w.prompt_tokens is None or w.cached_tokens is None else w.prompt_tokens - w.cached_tokens


def _more_computed(both: Both) -> Cause:
    """Either less of the prompt was found in the cache, or the prompt itself has grown: whichever is the more."""
    prompt, cached = ([sum(w[i] or 0 for w in side) for side in zip(*both, strict=True)] for i in (0, 1))
    if cached[0] - cached[1] >= prompt[1] - prompt[0]:
        share = [100 * c / max(p, 1) for c, p in zip(cached, prompt, strict=True)]
        return Cause("cold_cache", 1.0, f"{share[0]:.0f} % -> {share[1]:.0f} % of prompt tokens came from the cache")
    mean = [p / len(both) for p in prompt]
    return Cause("template", 1.0, f"prompts of {mean[0]:.1f} -> {mean[1]:.1f} tokens")


def _fewer_answered(both: Both) -> Cause:
    shorter = sum((b.output_tokens or 0) < (a.output_tokens or 0) for a, b in both)
    return Cause("cut_short", 1.0, f"{shorter} of {len(both)} answers are shorter")


COUNTS: dict[str, Count] = {
    "computed_tokens": Count("prompt tokens computed", True, _computed, _more_computed),
    "output_tokens": Count("tokens answered", False, lambda w: w.output_tokens, _fewer_answered),
}


@dataclass(frozen=True)
class Counted:
    """One count of one stage over all pairs. ``base`` and ``candidate``: the mean of a request, None where there is
    none; ``requests``: so many, each on both sides; ``cause``: of a fail.
    """

    stage: str
    name: str
    outcome: Outcome
    why: str
    requests: int
    base: float | None = None
    candidate: float | None = None
    cause: Cause | None = None

    @property
    def words(self) -> str:
        return f"{COUNTS[self.name].words} a request of {self.stage}"


def work_of(records: pl.DataFrame, stage: str) -> dict[Key, Work]:
    """The requests of a stage that were answered to their end, by number.

    Those of the warm-up too: the quicker of two sides has sent in it what the slower one measures.
    Not those sent before the first was answered: whether they find its beginning in the cache is a matter of moments.

    Args:
        records: ``records.parquet``; requests without a number (of another load client) are left out.
    """
    rows = records.filter((pl.col("stage") == stage) & (pl.col("status") == "ok") & pl.col("arrival").is_not_null())
    rows = rows.filter(pl.col("sent_s") >= pl.col("end_s").min())
    columns = rows.select("arrival", pl.col("turn").fill_null(0), "prompt_tokens", "cached_tokens", "output_tokens")
    return {(arrival, turn): Work(*tokens) for arrival, turn, *tokens in columns.iter_rows()}


def counted(
    pairs: Sequence[tuple[Mapping[str, StageWork], Mapping[str, StageWork]]], stages: Sequence[str], params: AbParams
) -> list[Counted]:
    """Every count of the policy in every stage.

    A candidate passes that is not worse by more than the policy's margin; the margin is there for builds that differ in
    what they are meant to do, since equal ones do not differ at all.

    Args:
        pairs: work by stage of base and candidate, of each pair of rounds.
    """
    out = []
    for stage in stages:
        both = [
            (a[stage][key], b[stage][key])
            for a, b in pairs
            if stage in a and stage in b
            for key in sorted(a[stage].keys() & b[stage].keys())
        ]
        out += [_counted(stage, name, both, params.margin_percent / 100) for name in params.counts]
    return out


def _counted(stage: str, name: str, both: Both, margin: float) -> Counted:
    count = COUNTS[name]
    if not both:
        return Counted(stage, name, "undecided", "no request was answered to its end on both sides", 0)
    sides = [[count.of(w) for w in side] for side in zip(*both, strict=True)]
    known = [[v for v in side if v is not None] for side in sides]
    for which, values in zip(("base", "candidate"), known, strict=True):
        if missing := len(both) - len(values):
            why = f"the {which} does not report it for {missing} of {len(both)} requests"
            return Counted(stage, name, "undecided", why, len(both))
    base, candidate = (sum(values) / len(both) for values in known)
    worse, better = (candidate, base) if count.higher_is_worse else (base, candidate)
    said = f"{base:.1f} -> {candidate:.1f} ({_change(base, candidate)}; the same {len(both)} requests on both sides)"
    if worse <= better * (1 + margin):
        return Counted(stage, name, "pass", f"not worse by more than {margin:.1%}: {said}", len(both), base, candidate)
    cause = count.cause(both)
    why = f"worse by more than {margin:.1%}: {said}; {cause.figure}"
    return Counted(stage, name, "fail", why, len(both), base, candidate, cause)


def _change(base: float, candidate: float) -> str:
    return f"{candidate / base - 1:+.1%}" if base else "from none"
