"""Prints the plan of a load profile, stage by stage."""

from __future__ import annotations

from itertools import pairwise

from loadtests.plan import ProfilePlan, StagePlan
from loadtests.replay.scale import QUANTILES


def show(plan: ProfilePlan) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"profile {plan.profile} ({plan.kind}), seed {plan.seed}: {len(plan.stages)} stages, {_span(plan.planned_s)} "
        f"without the drains; workload {plan.workload_digest[:12]}",
        highlight=False,
    )
    for stage in plan.stages:
        table = Table(title=stage.name, show_header=False, title_justify="left")
        for row in rows_of(stage):
            table.add_row(*row)
        console.print(table)


def rows_of(s: StagePlan) -> list[tuple[str, str]]:
    """The lines of one stage: what, and how much."""
    rows = [("time", f"{_span(s.warmup_s)} warm-up, {_span(s.duration_s)} measured"), ("arrivals", s.arrivals)]
    if s.arrivals_measured is not None:
        what = "sessions" if s.turns_mean > 1 else "requests"
        rows.append((f"{what} due", f"{s.arrivals_measured} measured, {s.arrivals_warmup} in warm-up"))
    if s.requests_measured is None:
        rows.append(("requests measured", f"{s.requests_reason} (--latency-s)"))
    elif s.turns_mean > 1 or s.arrivals_measured is None:
        rows.append(("requests measured", f"about {s.requests_measured:.0f}"))
    if s.rate:
        cv = "unknown" if s.rate.gap_cv is None else f"{s.rate.gap_cv:.2f}"
        rows.append(("rate", f"{s.rate.mean_per_s:.3g}/s, {s.rate.busiest_s} in the busiest second, CV of gaps {cv}"))
    if c := s.concurrency:
        what = "requests in flight" if s.rate else "users"
        text = f"{c.max:.0f}" if c.min == c.max else f"{c.min:.0f} to {c.max:.0f}, mean {c.mean:.1f}"
        rows.append((what, f"{text}{sparkline([n for _, n in c.levels])}"))
    else:
        rows.append(("requests in flight", f"{s.concurrency_reason} (--latency-s)"))
    for name, of in (("prompt tokens, about", s.prompt_tokens), ("output tokens, at most", s.output_tokens)):
        rows.append((name, ", ".join(f"{q} {of[q]}" for q in QUANTILES)))
    if s.turns_mean > 1:
        rows.append(("turns a session", f"{s.turns_mean:.2f} on average"))
    if s.think_mean_s is not None:
        rows.append(("think time", f"{s.think_mean_s:.2f} s on average"))
    if s.leaving_share:
        rows.append(("users who leave", f"{s.leaving_share:.1%} of the requests, if they are not answered before"))
    rows.append(("shared prefixes", f"{s.shared_share:.1%} of the prompt tokens, with a cache that forgets nothing"))
    rows += [("replay", line) for line in s.replay.lines()] if s.replay else []
    rows.append(("counted over", f"{s.drawn} arrivals"))
    return rows


def sparkline(values: list[float], width: int = 40) -> str:
    """The course of values in up to ``width`` bars, each the largest of its part; nothing where they do not change."""
    if len(set(values)) < 2:
        return ""
    starts = [i * len(values) // width for i in range(width)] if len(values) > width else list(range(len(values)))
    tops = [max(values[a:b]) for a, b in pairwise([*starts, len(values)])]
    return "  " + "".join("▁▂▃▄▅▆▇█"[min(int(top / max(tops) * 8), 7)] for top in tops)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
