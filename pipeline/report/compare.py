"""``seatrial scorecard --compare A B``: any two runs on one page, without a verdict.

Each side is a tier of ``results``, a folder like one, or the name of a release. What a page of two runs cannot say is
said on it: one run of each does not decide whether latency changed, and two machines do not compare at all.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from altair.utils.schemapi import debug_mode

from pipeline.errors import SeatrialError
from pipeline.files import atomic_write
from pipeline.gate.statistics.paired import mcnemar
from pipeline.params import Params, ReleaseParams
from pipeline.provenance import utc_now
from pipeline.release.record import RELEASES, Release, read_record
from pipeline.report import numbers as say
from pipeline.report.inputs import Json, RunData, TierData, read_tier
from pipeline.report.page import context_of, render_page
from pipeline.report.quality import flips_of
from pipeline.report.sections import all_series
from pipeline.report.summary import header_of, summarise
from pipeline.report.tiers import TierFigures, Value, all_figures

OUT = Path("reports/compare.html")


@dataclass(frozen=True)
class PairFigure:
    """One figure of both sides. ``ratio``: B over A; ``judged``: "better", "worse", "same" or "" where neither is."""

    group: str
    name: str
    term: str
    a: str
    b: str
    ratio: str
    judged: str
    reason: str = ""


def side_of(given: str, root: Path) -> tuple[TierData, Path]:
    """What ``given`` names, and the folder it lies in as seen from ``root``.

    Raises:
        SeatrialError: it names neither a tier, a folder that a run wrote, nor a release.
    """
    for folder in (Path("results") / given, Path(given)):
        if any((root / folder / part).exists() for part in ("load/load.json", "eval/eval.json", "plan.json")):
            return read_tier(root / folder, given, root), folder
    record = RELEASES / f"{given}.json"
    if (root / record).is_file():
        return _of_release(read_record(root / record, Release)), RELEASES
    raise SeatrialError(
        f"{given!r} is no run: expected a tier of results/ (as int8), a folder like it (with load/load.json or "
        f"eval/eval.json), or a release of {RELEASES}/"
    )


def _of_release(release: Release) -> TierData:
    """A release record holds its percentiles and scores, and neither requests nor answers."""
    only = f"the record of release {release.name} holds percentiles and scores, not the records behind them"
    scores = list(release.scores.values())
    right = sum(s == 1 for s in scores)
    whole = all(s in {0, 1} for s in scores)
    evaluation: Json = {
        "header": release.evaluation.model_dump(mode="json"),
        "accuracy": fmean(scores) if scores else None,
        "n": len(scores) if whole else None,
        "correct": right if whole else None,
        "scenarios": release.scenarios,
        "reason": only,
    }
    load: Json = {"header": release.load.model_dump(mode="json"), "stages": release.latency, "reason": only}
    parts = ("plan", "items", "run", "server", "records", "samples")
    return TierData(
        release.name, None, evaluation, None, load, None, None, None, None, missing=dict.fromkeys(parts, only)
    )


def read_pair(a: str, b: str, params: Params, root: Path) -> RunData:
    """Both sides as one run of two tiers: A in the place of the reference, B in that of the candidate.

    Raises:
        SeatrialError: see :func:`side_of`; or both are the same.
    """
    if a == b:
        raise SeatrialError(f"both sides are {a!r}; expected two runs")
    tiers, folders = {}, {}
    for given in (a, b):
        tiers[given], folders[given] = side_of(given, root)
    asked = params.model_copy(
        update={"tiers": [a, b], "release": ReleaseParams.model_construct(candidate=b, reference=a)}
    )
    return RunData(asked, None, None, tiers, [], {}, root, folders=folders)


def pair_figures(figures: dict[str, TierFigures], a: str, b: str) -> list[PairFigure]:
    """The figures that both sides may have, in the order in which they are read."""
    one, two = figures[a], figures[b]
    rows = [
        _figure("Whole run", "Weights", "weights", one.weights_bytes, two.weights_bytes, "bytes", "lower"),
        _figure("Whole run", "Resident memory, peak", "rss", one.rss_bytes, two.rss_bytes, "bytes", "lower"),
        _figure(
            "Whole run",
            "Output",
            "tokens_per_s",
            one.output_tokens_per_s,
            two.output_tokens_per_s,
            "tokens/s",
            "higher",
        ),
        _figure("Whole run", "Accuracy", "accuracy", one.accuracy, two.accuracy, "share", "higher"),
    ]
    for stage in dict.fromkeys([*one.stages, *two.stages]):
        for metric in ("ttft", "itl"):
            for q in ("p50", "p95", "p99"):
                both = [
                    f.stages[stage].latency[f"{metric}_ms", q]
                    if stage in f.stages
                    else Value(None, f"{f.tier} has no stage {stage}")
                    for f in (one, two)
                ]
                rows.append(_figure(stage, f"{metric.upper()} {q.upper()}", metric, both[0], both[1], "ms", "lower"))
        rates = [
            f.stages[stage].rates["output_tokens_per_s"] if stage in f.stages else Value(None, "no such stage")
            for f in (one, two)
        ]
        rows.append(_figure(stage, "Output", "tokens_per_s", rates[0], rates[1], "tokens/s", "higher"))
    return rows


def _figure(group: str, name: str, term: str, a: Value, b: Value, unit: str, better: str) -> PairFigure:
    texts = [say.ABSENT if v.value is None else say.with_unit(float(v.value), unit) for v in (a, b)]
    if a.value is None or b.value is None:
        return PairFigure(group, name, term, texts[0], texts[1], "", "", a.reason or b.reason)
    ratio = f"× {b.value / a.value:.3f}" if a.value else ""
    judged = "same" if a.value == b.value else "better" if (b.value < a.value) == (better == "lower") else "worse"
    return PairFigure(group, name, term, texts[0], texts[1], ratio, judged)


def caveats(run: RunData, a: str, b: str) -> list[str]:
    """What keeps the differences on the page from being read as more than they are."""
    out = []
    one, two = (header_of(run.tiers[t], "load") for t in (a, b))
    if one and two and one.machine.machine_class != two.machine.machine_class:
        out.append(
            f"Latency and throughput must not be compared: {a} was measured on {one.machine.machine_class}, {b} on "
            f"{two.machine.machine_class}."
        )
    elif one and two and one.workload.digest != two.workload.digest:
        out.append(f"The load differs: {one.workload.name} and {two.workload.name}.")
    if one and two:
        out.append(
            "One run of each, at different times: a difference of latency of a few percent may be the machine's. "
            "An A/B (seatrial ab) interleaves rounds of both and decides."
        )
    asked = [header_of(run.tiers[t], "eval") for t in (a, b)]
    if asked[0] and asked[1] and asked[0].workload.digest != asked[1].workload.digest:
        out.append(f"The regression set differs: {asked[0].workload.name} and {asked[1].workload.name}.")
    return out


def write_comparison(a: str, b: str, params: Params, root: Path = Path(), out: Path = OUT) -> Path:
    """Writes the page of A and B below ``root``; returns its path.

    Raises:
        SeatrialError: see :func:`read_pair`.
    """
    run = read_pair(a, b, params, root)
    figures, series = all_figures(run), all_series(run)
    with debug_mode(False):
        context = context_of(run, summarise(run), figures, series, utc_now())
    found = flips_of(run.tiers[a], run.tiers[b])
    context |= {
        "title": f"{a} and {b} · Seatrial",
        "comparing": True,
        "pair_figures": pair_figures(figures, a, b),
        "caveats": caveats(run, a, b),
        "mcnemar": None if found is None else mcnemar(len(found.lost), len(found.gained)),
        "command": f"seatrial scorecard --compare {json.dumps(a)} {json.dumps(b)}",
    }
    target = root / out
    atomic_write(target, render_page(context, "compare.html.j2"))
    return Path(os.path.relpath(target, root))
