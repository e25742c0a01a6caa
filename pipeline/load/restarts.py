"""Whether one and the same process answered from the first request to the last.

Three signs, none of which a slow server gives: the process's own start time (``process_start_time_seconds``, which
Prometheus's client libraries export by themselves) changes; a counter goes down, which a counter does only where it
begins anew; connections are refused several times in a row, so that nobody listened. Behind an address that several
processes share the first two show as well: then, too, the figures are not of one server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from pipeline.load.metrics import Scrape

START_TIME = "process_start_time_seconds"
REFUSED = "ConnectionRefusedError"
IN_A_ROW = 3  # requests, or looks at the metrics, that found nobody listening: fewer may be a full backlog
_SLACK_S = 1.0


@dataclass(frozen=True)
class Restart:
    """``at_s`` and ``stage`` on the run's clock (a stage: null between two, or where there are none); ``figure``: what
    shows it; ``back``: whether it answered again.
    """

    at_s: float
    stage: str | None
    figure: str
    back: bool

    @property
    def words(self) -> str:
        where = f" of {self.stage}" if self.stage else ""
        what = "began anew" if self.back else "went away and did not come back"
        return f"the server {what} in the middle{where}, {self.at_s:.1f} s into the run ({self.figure})"

    def json(self) -> dict[str, Any]:
        return asdict(self) | {"words": self.words}


def restarts(
    scrapes: Sequence[Scrape],
    zero_unix_s: float,
    stages: Mapping[str, tuple[float, float]] | None = None,
    records: pl.DataFrame | None = None,
) -> list[Restart]:
    """In order of time.

    Args:
        zero_unix_s: when the run began, on the clock of the scrapes.
        stages: (from_s, to_s) of each, on the run's clock.
        records: of a load test, whose requests may have found nobody listening.
    """
    spans = [*_between_looks(scrapes, zero_unix_s)]
    for from_s, to_s, figure, back in _refused_requests(records):
        same = next((i for i, s in enumerate(spans) if s[0] <= to_s + _SLACK_S and s[1] >= from_s - _SLACK_S), None)
        if same is None:
            spans.append((from_s, to_s, figure, back))
        else:
            a, b, more, returned = spans[same]
            spans[same] = (max(a, min(from_s, b)), b, f"{more}; {figure}", returned)
    found = []
    for from_s, to_s, figure, back in sorted(spans):
        inside = [name for name, (a, b) in (stages or {}).items() if from_s <= b and to_s >= a]
        found.append(Restart(round(from_s, 2), inside[0] if inside else None, figure, back))
    return found


def _between_looks(scrapes: Sequence[Scrape], zero: float) -> list[tuple[float, float, str, bool]]:
    """(from, to, figure, back) of each pair of looks between which the process changed or was away."""
    out: list[tuple[float, float, str, bool]] = []
    refused: list[Scrape] = []
    last: Scrape | None = None
    reached: Scrape | None = None
    for s in scrapes:
        if s.refused:
            refused.append(s)
            continue
        signs = [f"nobody listened at {len(refused)} looks in a row"] if len(refused) >= IN_A_ROW and reached else []
        if s.values is not None:
            signs = [*_signs(last, s), *signs]
            last = s
        if signs and reached is not None:
            out.append((reached.at_unix_s - zero, s.at_unix_s - zero, "; ".join(signs), True))
        reached, refused = s, []
    if reached is not None and len(refused) >= IN_A_ROW:
        figure = f"nobody listened at the last {len(refused)} looks"
        out.append((reached.at_unix_s - zero, refused[-1].at_unix_s - zero, figure, False))
    return out


def _signs(a: Scrape | None, b: Scrape) -> list[str]:
    if a is None:
        return []
    signs = []
    then, now = (_started(s.values or {}) for s in (a, b))
    if then is not None and now is not None and then != now:
        signs.append(f"{START_TIME} {then:.2f} -> {now:.2f}")
    down = [(k, v, b.counters.get(k, 0.0)) for k, v in sorted(a.counters.items()) if b.counters.get(k, 0.0) < v]
    if down:
        name, before, after = down[0]
        more = f", and {len(down) - 1} more counters went down" if len(down) > 1 else ""
        signs.append(f"{name} {before:g} -> {after:g}{more}")
    return signs


def _started(values: Mapping[str, float]) -> float | None:
    """Of several processes that one address exports, the newest."""
    return max((v for k, v in values.items() if k.partition("{")[0] == START_TIME), default=None)


def _refused_requests(records: pl.DataFrame | None) -> list[tuple[float, float, str, bool]]:
    if records is None:
        return []
    rows = records.filter(pl.col("sent_s").is_not_null()).sort("sent_s").select("sent_s", "status", "reason")
    runs: list[list[float]] = [[]]
    back: list[bool] = [False]
    for sent, status, reason in rows.iter_rows():
        if status == "error" and str(reason).startswith(REFUSED):
            runs[-1].append(sent)
        elif runs[-1]:
            back[-1] = True
            runs.append([])
            back.append(False)
    return [
        (r[0], r[-1], f"{len(r)} requests in a row found nobody listening", again)
        for r, again in zip(runs, back, strict=True)
        if len(r) >= IN_A_ROW
    ]


def told(
    scrapes: Sequence[Scrape], zero_unix_s: float, stages: Mapping[str, tuple[float, float]], records: pl.DataFrame
) -> dict[str, Any]:
    """The block ``server_metrics`` of ``load.json``: whose names they are, the figures of each stage's measured part
    (:func:`pipeline.load.server_metrics.of_span`), ``restarts``; ``reason``: why there are no figures.
    """
    from pipeline.load.server_metrics import FAMILIES, family_of, of_span

    answered = [s for s in scrapes if s.values is not None]
    family = next((f for s in answered if (f := family_of(s.values or {}))), None)
    reason = None
    if not answered:
        reason = "the server exports no /metrics"
    elif family is None:
        reason = f"the server's /metrics has no name of {', '.join(FAMILIES)}"
    figures = {}
    if family is not None:
        spans = {n: (zero_unix_s + a, zero_unix_s + b) for n, (a, b) in stages.items()}
        figures = {n: of_span(scrapes, a, b, family) for n, (a, b) in spans.items()}
    return {
        "family": family,
        "reason": reason,
        "looks": len(scrapes),
        "stages": figures,
        "restarts": [r.json() for r in restarts(scrapes, zero_unix_s, stages, records)],
    }
