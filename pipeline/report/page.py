"""Renders ``reports/scorecard.html``: one file, no script, no reference to anything outside it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pipeline.report import evidence, findings, glossary, sections
from pipeline.report import numbers as say
from pipeline.report.advice import advice_of
from pipeline.report.fidelity import fidelity_of
from pipeline.report.figures import Palette
from pipeline.report.gates import gate_rows
from pipeline.report.inputs import RunData
from pipeline.report.quality import Flip, blind_of, flips_of, pinned_cases, scenarios_of
from pipeline.report.records import record_of, records_of
from pipeline.report.servers import servers
from pipeline.report.summary import Summary
from pipeline.report.tiers import TierFigures, pick, wilson
from pipeline.report.trust import trust_of
from pipeline.report.walked import diagnosed, walked

TEMPLATES = Path(__file__).parent / "templates"
FLIPS_OPEN, FLIPS_MOST = 8, 120
LIMIT_BYTES = 3_000_000


@cache
def environment() -> jinja2.Environment:
    """Jinja with everything escaped, and undefined names as errors."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (
        say.number,
        say.count,
        say.milliseconds,
        say.sentence,
        say.share,
        say.points,
        say.mebibytes,
        say.with_bytes,
        say.seconds,
        say.moment,
        say.with_unit,
    ):
        env.filters[function.__name__] = function
    return env


def stylesheet() -> Markup:
    return Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))


def _flips(run: RunData) -> dict[str, Any]:
    reference = run.tiers.get(run.reference)
    found = {}
    if reference is not None:
        found = {n: flips_of(reference, t) for n, t in run.tiers.items() if n != run.reference}
    mine = found.get(run.candidate)
    changed: list[Flip] = mine.all if mine else []
    return {
        "flips": found,
        "flips_open": changed[:FLIPS_OPEN],
        "flips_rest": changed[FLIPS_OPEN:FLIPS_MOST],
        "flips_left_out": max(0, len(changed) - FLIPS_MOST),
    }


def _interval(block: dict[str, Any]) -> str:
    """Wilson's interval of one scenario's accuracy; empty where it holds partial scores."""
    n, correct = block.get("n"), block.get("correct")
    if not say.is_number(n) or not say.is_number(correct) or n is None or correct is None:
        return ""
    found = wilson(float(correct), int(n))
    return f"{say.share(found[0], 0)} … {say.share(found[1], 0)}" if found else ""


def _gaps(figures: dict[str, TierFigures]) -> list[str]:
    """Reasons behind the absent figures of the stage table, each once."""
    found: dict[str, None] = {}
    for f in figures.values():
        for stage in f.stages.values():
            for (metric, q), v in stage.latency.items():
                if v.value is None and metric != "e2e_ms":
                    found.setdefault(f"{f.tier}, {stage.stage}, {metric[:-3].upper()} {q.upper()}: {v.reason}")
            for name, v in stage.rates.items():
                if v.value is None and name != "prompt_tokens_per_s":
                    found.setdefault(f"{f.tier}, {stage.stage}, {name}: {v.reason}")
    return list(found)


def context_of(
    run: RunData, summary: Summary, figures: dict[str, TierFigures], series: sections.Series, now: str
) -> dict[str, Any]:
    """All that the templates read."""
    palette = Palette(list(run.tiers))
    memory = evidence.memory_rows(run, figures)
    fidelity = fidelity_of(run, palette)
    notes = evidence.stage_notes(run)
    derived_tiers, derived = evidence.derived_facts(run)
    groups = [
        sections.over_time(run, series, palette, "ttft"),
        sections.over_time(run, series, palette, "itl"),
        sections.server_panels(run),
    ]
    return _flips(run) | {
        "run": run,
        "s": summary,
        "figures": figures,
        "palette": palette,
        "overview": sections.overview(figures, palette),
        "stage_names": run.stage_names(),
        "tradeoff": sections.tradeoff_panels(figures, palette),
        "fidelity": fidelity,
        "advice": advice_of(run, fidelity),
        "rules": {t: gate_rows(run, t, series) for t in run.tiers},
        "records": lambda *parts: records_of(run, *parts),
        "record": lambda tier, part: record_of(run, tier, part),
        "time_groups": [g for g in groups if g],
        "found_over_time": findings.found_over_time(run),
        "percentiles": sections.percentile_panels(run, series, palette),
        "scenarios": scenarios_of(run),
        "blind": blind_of(run),
        "evaluated": lambda tier, *path: pick(tier.eval, *path, reason=tier.why("eval")),
        "interval_of": _interval,
        "scenario_panel": sections.scenario_panel(run, palette),
        "pinned": pinned_cases(run),
        "memory": memory,
        "memory_panel": sections.memory_panel(memory),
        "notes": notes,
        "time_panel": sections.time_panel(notes),
        "total_s": sum(n.wall_s or 0 for n in notes),
        "peak_bytes": max((n.peak_bytes or 0 for n in notes), default=0),
        "tuples": evidence.four_tuples(run),
        "tuple_head": evidence.TUPLE_HEAD,
        "derived_tiers": derived_tiers,
        "derived": derived,
        "servers": servers(run),
        "diagnosed": diagnosed(run),
        "walked": walked(run),
        "trust": trust_of(run),
        "holes": evidence.holes(run, figures),
        "limits": evidence.known_limits(run, figures),
        "absent": evidence.not_measured(run),
        "gaps": _gaps(figures),
        "terms": glossary.TERMS,
        "css": stylesheet(),
        "title": f"{summary.word}: {summary.candidate} · Seatrial scorecard",
        "comparing": False,
        "now": now,
    }


def render_page(context: dict[str, Any], template: str = "page.html.j2") -> str:
    """The page as text.

    Raises:
        ValueError: it grew beyond 3 MB (its parts are bounded, so that would be a defect).
    """
    html = environment().get_template(template).render(context)
    size = len(html.encode())
    if size > LIMIT_BYTES:
        raise ValueError(f"the scorecard is {size:,} bytes, expected at most {LIMIT_BYTES:,}")
    return html
