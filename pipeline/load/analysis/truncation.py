"""Whether answers are cut short under load without anybody saying so.

Three looks, none of which trusts the finish reason: the same prompts sent again when the server is idle (on the bundled
engine the bytes must be equal, elsewhere the ratio of lengths has an interval), a length below what was asked for at
which answers pile up, and the number of requests in flight from which that happens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from pipeline.load.analysis.finish import stop_at_limit
from pipeline.load.samples import measured

_PILE_LEAST, _PILE_P, _PILE_AROUND = 5, 1e-4, 3
_ALPHA = 0.05


@dataclass(frozen=True)
class Pair:
    """One prompt under load and idle. ``same``: the answers' texts; None: one of them has no digest."""

    request_id: str
    stage: str
    concurrency: int
    loaded_tokens: int
    idle_tokens: int
    loaded_finish: str | None
    idle_finish: str | None
    same: bool | None


@dataclass(frozen=True)
class Paired:
    """``length_ratio``: geometric mean of loaded over idle lengths, with its 95 % t-interval on the logarithms; null
    where fewer than two pairs have tokens. ``p_value``: of a ratio this small where none is below one.
    """

    n: int
    same: int
    different: int
    shorter: int
    length_ratio: float | None
    interval: tuple[float, float] | None
    p_value: float | None


@dataclass(frozen=True)
class Ceiling:
    """``answers`` ended at exactly ``tokens`` although more were asked for, where ``expected`` would by chance."""

    tokens: int
    answers: int
    of: int
    expected: float


@dataclass(frozen=True)
class Onset:
    """Share of short answers from so many requests in flight on, and below that."""

    concurrency: int
    share_from: float
    share_below: float
    p_value: float


def compare(pairs: Sequence[Pair]) -> Paired:
    logs = [math.log(p.loaded_tokens / p.idle_tokens) for p in pairs if p.loaded_tokens > 0 and p.idle_tokens > 0]
    ratio = interval = p = None
    if len(logs) >= 2:
        mean, error = float(np.mean(logs)), float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
        half = float(stats.t.ppf(0.975, len(logs) - 1)) * error
        ratio, interval = math.exp(mean), (math.exp(mean - half), math.exp(mean + half))
        p = float(stats.t.cdf(mean / error, len(logs) - 1)) if error else float(mean >= 0)
    return Paired(
        len(pairs),
        sum(p.same is True for p in pairs),
        sum(p.same is False for p in pairs),
        sum(p.loaded_tokens < p.idle_tokens for p in pairs),
        ratio,
        interval,
        p,
    )


def ceiling(answers: pl.DataFrame) -> Ceiling | None:
    """The length at which most more answers end than at its neighbours, if that is no chance (Poisson, Bonferroni over
    all lengths); answers that ended at their own limit do not count.
    """
    below = answers.filter(pl.col("output_tokens") < pl.col("max_tokens"))["output_tokens"].to_numpy()
    if not len(below):
        return None
    counts = np.bincount(below)
    best: tuple[float, Ceiling] | None = None
    for length in np.flatnonzero(counts >= _PILE_LEAST):
        around = counts[max(length - _PILE_AROUND, 0) : length + _PILE_AROUND + 1]
        expected = max((around.sum() - counts[length]) / (2 * _PILE_AROUND), 0.5)
        p = float(stats.poisson.sf(counts[length] - 1, expected)) * len(counts)
        found = Ceiling(int(length), int(counts[length]), answers.height, float(expected))
        if p < _PILE_P and (best is None or found.answers > best[1].answers):
            best = (p, found)
    return best[1] if best else None


def onset(concurrency: Sequence[int], short: Sequence[bool]) -> Onset | None:
    """The number of requests in flight that parts short answers best from whole ones (Fisher's exact test, Bonferroni
    over the numbers tried); None: short answers do not depend on it.
    """
    c, s = np.asarray(concurrency), np.asarray(short, dtype=bool)
    levels = np.unique(c)[1:]
    best: Onset | None = None
    for level in levels:
        high = c >= level
        k, m, total, all_short = int(s[high].sum()), int(high.sum()), len(s), int(s.sum())
        p = min(float(stats.hypergeom.sf(k - 1, total, all_short, m)) * len(levels), 1.0)
        if p <= _ALPHA and (best is None or p < best.p_value):
            best = Onset(int(level), k / m, (all_short - k) / (total - m), p)
    return best


def truncation(
    records: pl.DataFrame, pairs: Sequence[Pair], *, fixed_output: bool, deterministic: bool
) -> dict[str, Any]:
    """The block ``truncation`` of ``load.json``.

    Args:
        fixed_output: every answer was to have exactly ``max_tokens``, so each shorter one is short.
        deterministic: the server gives the same bytes whatever else it does, so that any difference is a fault.
    """
    rows = measured(records).filter((pl.col("status") == "ok") & pl.col("output_tokens").is_not_null())
    less = rows["output_tokens"] < rows["max_tokens"]
    top = ceiling(rows)
    short = less & (
        (rows["finish_reason"] == "length").fill_null(False) | pl.Series([fixed_output] * rows.height, dtype=pl.Boolean)
    )
    if top is not None:
        short |= less & (rows["output_tokens"] == top.tokens)
    known = rows["concurrency"].is_not_null()
    begins = onset(rows.filter(known)["concurrency"].to_list(), short.filter(known).to_list()) if short.any() else None
    reasons = dict(rows.group_by(pl.col("finish_reason").fill_null("none")).len().sort("finish_reason").iter_rows())
    paired = compare(pairs)
    lied = stop_at_limit(rows, fixed_output=fixed_output)
    out: dict[str, Any] = {
        "answers": rows.height,
        "short": int(short.sum()),
        "finish_reasons": reasons,
        "ceiling": asdict(top) if top else None,
        "onset": asdict(begins) if begins else None,
        "stop_at_limit": lied.json() if lied else None,
        "length_and_load": _correlation(rows),
        "paired": asdict(paired) | {"interval": list(paired.interval) if paired.interval else None},
        "pairs": [asdict(p) for p in pairs],
        "deterministic": deterministic,
    }
    found = _found(paired, deterministic) or bool(short.any()) or lied is not None
    return out | {"found": found, "words": words(out)}


def _found(paired: Paired, deterministic: bool) -> bool:
    if deterministic:
        return paired.different > 0 or paired.shorter > 0
    return paired.interval is not None and paired.interval[1] < 1


def _correlation(rows: pl.DataFrame) -> dict[str, float] | None:
    """Spearman's correlation of the length, as a share of what was asked, with the requests in flight."""
    known = rows.filter(pl.col("concurrency").is_not_null() & (pl.col("max_tokens") > 0))
    share, load = known["output_tokens"] / known["max_tokens"], known["concurrency"]
    if share.n_unique() < 2 or load.n_unique() < 2:
        return None
    found = stats.spearmanr(share.to_numpy(), load.to_numpy())
    return {"rho": float(found.statistic), "p_value": float(found.pvalue), "n": float(known.height)}


def words(t: dict[str, Any]) -> str:
    """The block in one line."""
    p = t["paired"]
    said = [f"{t['short']} of {t['answers']} answers short of what was asked for without saying so"]
    if t["ceiling"]:
        said.append(f"{t['ceiling']['answers']} of them end at exactly {t['ceiling']['tokens']} tokens")
    if t["onset"]:
        o = t["onset"]
        said.append(
            f"from {o['concurrency']} requests in flight on {o['share_from']:.0%} are short, below that "
            f"{o['share_below']:.0%}"
        )
    if t["stop_at_limit"]:
        said.append(t["stop_at_limit"]["words"])
    if not p["n"]:
        said.append("no prompt was sent again when idle")
    elif p["different"] or p["same"]:
        said.append(
            f"{p['same']} of {p['n']} prompts gave the same bytes idle as under load, {p['shorter']} fewer tokens"
        )
    if p["interval"] and not t["deterministic"]:
        low, high = p["interval"]
        said.append(
            f"{p['n']} pairs: {p['length_ratio']:.3f} times as long under load as idle (95 %: {low:.3f} to {high:.3f})"
        )
    return "; ".join(said)
