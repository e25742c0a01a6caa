"""Figures while a run is under way, for the terminal and the web page: TTFT and ITL by stage.

Counted in buckets 2 % wide, so that they cost nothing, can be sent by workers and added up. They are a view; the
figures that count are computed from the raw records.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

from loadtests.client import Exchange

_WIDTH = math.log(1.02)
_LEAST_MS = 0.01
COLUMNS = {
    "name": "Stage",
    "requests": "# Requests",
    "failed": "# Not ok",
    "tokens": "# Tokens",
    "ttft_p50": "TTFT P50 (ms)",
    "ttft_p95": "TTFT P95 (ms)",
    "ttft_p99": "TTFT P99 (ms)",
    "itl_p50": "ITL P50 (ms)",
    "itl_p95": "ITL P95 (ms)",
    "itl_p99": "ITL P99 (ms)",
    "itl_max": "ITL max (ms)",
}


def _bucket(ms: float) -> int:
    return math.floor(math.log(max(ms, _LEAST_MS) / _LEAST_MS) / _WIDTH)


def _quantile(counts: Counter[int], q: float) -> float | None:
    """Upper edge of the bucket that holds it, in ms."""
    rank, seen = math.ceil(q * counts.total()), 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return _LEAST_MS * math.exp((bucket + 1) * _WIDTH)
    return None


class Live:
    """Counts of one process; ``take`` and ``merge`` carry them to another."""

    def __init__(self) -> None:
        self._stages: dict[str, dict[str, Counter[int]]] = {}

    def _of(self, stage: str) -> dict[str, Counter[int]]:
        return self._stages.setdefault(stage, {"ttft": Counter(), "itl": Counter(), "all": Counter()})

    def add(self, e: Exchange) -> None:
        mine = self._of(e.stage)
        mine["all"].update({0: 1, 1: int(e.status not in ("ok", "abandoned")), 2: len(e.token_times_s)})
        if e.token_times_s:
            mine["ttft"][_bucket((e.token_times_s[0] - e.due_s) * 1000)] += 1
            mine["itl"].update(_bucket((b - a) * 1000) for a, b in pairwise(e.token_times_s))

    def take(self) -> dict[str, Any]:
        """What has been counted since the last time, as plain values."""
        found = {s: {k: list(c.items()) for k, c in v.items()} for s, v in self._stages.items()}
        self._stages = {}
        return found

    def merge(self, taken: dict[str, Any]) -> None:
        for stage, values in taken.items():
            for key, items in values.items():
                self._of(stage)[key].update(dict(items))

    def rows(self) -> list[dict[str, Any]]:
        """One a stage, with the keys of :data:`COLUMNS`; None where there is nothing."""
        out = []
        for stage, c in self._stages.items():
            row: dict[str, Any] = {"name": stage, "requests": c["all"][0], "failed": c["all"][1], "tokens": c["all"][2]}
            for key in ("ttft", "itl"):
                for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                    value = _quantile(c[key], q)
                    row[f"{key}_{name}"] = None if value is None else round(value, 2 if value < 10 else 1)
            most = _quantile(c["itl"], 1.0)
            row["itl_max"] = None if most is None else round(most, 1)
            out.append(row)
        return out

    def table(self) -> str:
        """The rows as text, for a terminal."""
        lines = [list(COLUMNS.values())]
        lines += [["-" if row[k] is None else str(row[k]) for k in COLUMNS] for row in self.rows()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
        return "\n".join("  ".join(v.rjust(w) for v, w in zip(line, widths, strict=True)) for line in lines)
