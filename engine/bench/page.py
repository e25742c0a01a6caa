"""The page: one HTML file without script and without a reference to anything outside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import jinja2
from markupsafe import Markup

from engine.bench import charts
from engine.bench.drive import RunRecord
from engine.bench.fit import Fit
from engine.bench.metrics import reserved_bytes
from engine.bench.policies import Policy
from engine.bench.show import Table

TEMPLATES = Path(__file__).parent / "templates"


class Compared(Protocol):
    """One side of a comparison, as the page names it."""

    @property
    def name(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def against(self) -> str | None: ...


@dataclass(frozen=True)
class Panel:
    title: str
    svg: Markup


@dataclass(frozen=True)
class Group:
    title: str
    about: str
    panels: list[Panel]
    legend: list[tuple[str, str]] = field(default_factory=list)  # (what, a CSS colour)


def run_groups(policies: list[Policy], records: dict[str, list[RunRecord]], load: str) -> list[Group]:
    """Latency over all rounds; the time courses are those of the first round."""
    first = {p.name: records[p.name][0] for p in policies}
    end_s = max(r.end_s for r in first.values())
    return [
        Group(
            f"Latency, {load}",
            "Share of samples up to a time, all rounds pooled. TTFT counts from the moment a request was due.",
            [Panel(m, Markup(charts.latency_ecdf(records, m))) for m in ("TTFT", "ITL")],
            list(zip(records, charts.colours_of(list(records)), strict=True)),
        ),
        Group(
            f"Batch occupancy over time, {load}",
            "First round. The rule is the number of slots.",
            [Panel(name, Markup(charts.occupancy_over_time(name, r, end_s))) for name, r in first.items()],
            [("computed in a step", "var(--policy-0)"), ("waiting (dashed)", "var(--policy-1)")],
        ),
        Group(
            f"KV bytes over time, {load}",
            "First round. The rule is the size of a small pool.",
            [
                Panel(p.name, Markup(charts.kv_over_time(p.name, first[p.name], end_s, _top(policies, first, p))))
                for p in policies
            ],
            [("used", "var(--part-0)"), ("reserved, not used", "var(--part-1)")],
        ),
    ]


def _top(policies: list[Policy], records: dict[str, RunRecord], of: Policy) -> float:
    """A common axis for all pools of a kind: the pool itself for small ones, the most that was reserved for others."""
    alike = [records[p.name] for p in policies if p.small_pool == of.small_pool]
    if of.small_pool:
        return float(max(r.num_blocks * r.block_bytes for r in alike))
    return float(max((reserved_bytes(r, s) for r in alike for s in r.steps), default=1))


def fit_group(fits: list[Fit]) -> Group:
    return Group(
        "What fits the pool",
        "Mean bytes of a simulated pool while requests wait for it. Internal waste is reserved and not used; external "
        "waste is free, but too little, or not in one piece, for the next request.",
        [Panel("bytes by reservation", Markup(charts.fit_parts(fits)))],
        list(zip(charts.FIT_PARTS, charts.FIT_COLOURS, strict=True)),
    )


def render(
    title: str,
    lead: str,
    artifact: str,
    policies: Sequence[Compared],
    findings: list[str],
    tables: list[Table],
    figures: list[Group],
    facts: list[tuple[str, str]],
) -> str:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return env.get_template("page.html.j2").render(
        title=title,
        lead=lead,
        artifact=artifact,
        policies=policies,
        findings=findings,
        tables=tables,
        figures=figures,
        facts=facts,
        css=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
    )
