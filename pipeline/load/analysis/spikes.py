"""Periodic spikes: moments at which latency jumps, and whether they come at even intervals.

The stage is cut into fine bins and each bin keeps its largest sample. Bins over a level, those close together merged,
are events; their periodogram, |sum exp(2 pi i f t)|^2 / K, is Rayleigh's statistic of the phases at each frequency f.
Under no period its tail is Zar's (1999, "Biostatistical Analysis", eq. 27.4). Two things would make false alarms and
are divided out at each frequency: clustering of the events, by the spectrum's own local level, and samples that are
taken at even intervals themselves (constant arrivals, users in step), by the spectrum of all samples. Several levels
and merging times are tried and paid for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.load.analysis.signals import Floats, Signal

_BINS = 3200
_OVERSAMPLE = 4
_LEVELS = (0.8, 0.9, 0.95, 0.98)
_MERGE = (2, 8, 32)  # bins
_FEWEST_EVENTS = 6
_FEWEST_CYCLES = 6
_HEIGHTS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
_MOST_TEETH = 6
_NEAR = 0.12  # of a period: events this close to the common phase belong to the spikes


@dataclass(frozen=True)
class Spikes:
    """``period_s`` and ``height_ms`` (median top of the spikes over the stage's median) of the likeliest period, with
    the number of spikes; meaningful where ``p_value`` is small.
    """

    p_value: float
    period_s: float
    height_ms: float
    first_s: float
    count: int


def _binned(signal: Signal) -> Floats:
    """[_BINS] largest finite sample of each bin, a failed request as the largest of all; NaN: none."""
    finite = signal.v_ms[np.isfinite(signal.v_ms)]
    v = np.where(np.isfinite(signal.v_ms), signal.v_ms, finite.max() if len(finite) else np.nan)
    out = np.full(_BINS, -np.inf)
    np.maximum.at(out, np.clip((signal.t_s / signal.span_s * _BINS).astype(int), 0, _BINS - 1), v)
    return np.where(np.isneginf(out), np.nan, out)


def _events(over: NDArray[np.bool_], merge: int) -> Floats:
    """First bins of the runs of exceedances, where a gap of at most ``merge`` bins does not end a run."""
    at = np.flatnonzero(over)
    return at[np.diff(at, prepend=-10 * _BINS) > merge].astype(np.float64)


def _spectrum(at: Floats) -> Floats:
    """Periodogram at frequencies k / (_OVERSAMPLE * _BINS) a bin."""
    impulses = np.zeros(_OVERSAMPLE * _BINS)
    impulses[at.astype(int)] = 1.0
    return np.abs(np.fft.rfft(impulses)) ** 2 / max(len(at), 1)


def _tail(k: int, z: Floats) -> Floats:
    """P(K R^2 >= z) of K phases at random."""
    zed = np.clip(z, 0, k)
    return np.asarray(np.exp(np.sqrt(1 + 4 * k + 4 * (k * k - zed * k)) - (1 + 2 * k)))


def _local_level(z: Floats) -> Floats:
    """Median of the spectrum around each frequency over that of white noise, ln 2; at least 1. By octaves."""
    out = np.ones_like(z)
    low = 1
    while low < len(z):
        part = slice(low, min(2 * low, len(z)))
        around = z[max(low // 2, 1) : min(4 * low, len(z))]
        out[part] = max(1.0, float(np.median(around)) / math.log(2))
        low *= 2
    return out


def _one_setting(bins: Floats, occupied: Floats, level: float, merge: int) -> tuple[float, int, Floats] | None:
    """(p, index of the frequency, events) at one level and merging time; None where there is nothing to test."""
    events = _events(np.nan_to_num(bins, nan=-np.inf) > level, merge)
    k = len(events)
    if not _FEWEST_EVENTS <= k <= _BINS / (4 * merge):
        return None
    z = _spectrum(events)
    regular = 1 + (k - 1) * occupied
    usable = np.arange(len(z))
    first, last = _OVERSAMPLE * _FEWEST_CYCLES, int(_OVERSAMPLE * _BINS / (4 * merge))
    band = (usable >= first) & (usable <= last)
    if not band.any():
        return None
    scaled = np.where(band, z / np.maximum(_local_level(z), regular), 0.0)
    best = int(np.argmax(scaled))
    p = min(float(_tail(k, scaled[best : best + 1])[0]) * int(band.sum()), 1.0)
    return p, best, events


def spikes(signal: Signal) -> Spikes | None:
    """The likeliest period; None where there are too few samples over any level."""
    if not np.isfinite(signal.v_ms).any():
        return None
    bins = _binned(signal)
    tops = bins[~np.isnan(bins)]
    if len(tops) < 5 * _FEWEST_EVENTS:
        return None
    taken = np.flatnonzero(~np.isnan(bins)).astype(np.float64)
    occupied = _spectrum(taken) / len(taken)
    tried = 0
    best: tuple[float, int, Floats] | None = None
    for level in np.quantile(tops, _LEVELS):
        for merge in _MERGE:
            found = _one_setting(bins, occupied, float(level), merge)
            if found is not None:
                tried += 1
                best = min(best or found, found, key=lambda f: f[0])
    if best is None:
        return None
    p, k, events = best
    median = signal.median_ms()
    period = _refined(events, k)
    comb = _comb(bins, events, period, median)
    # The spectrum of a comb repeats at the multiples of its frequency: where nearly all of the height stands at every
    # m-th tooth, the period is m times as long.
    for m in range(_MOST_TEETH, 1, -1):
        by_tooth = np.bincount(comb.cycles % m, weights=comb.heights, minlength=m)
        if by_tooth.max() >= 0.7 * comb.heights.sum() and m * period <= _BINS / _FEWEST_CYCLES:
            period *= m
            comb = _comb(bins, events, period, median, comb.first + int(np.argmax(by_tooth)) * period / m)
            break
    scale = signal.span_s / _BINS
    tall = comb.heights[comb.heights >= comb.heights.max() / 3] if len(comb.heights) else comb.heights
    height = float(np.median(tall)) if len(tall) else 0.0
    return Spikes(min(p * tried, 1.0), period * scale, height, comb.first % period * scale, len(tall))


@dataclass(frozen=True)
class _Comb:
    """Teeth of a period that have an event near them: their numbers and the height above the median at each."""

    first: float
    cycles: NDArray[np.int64]
    heights: Floats


def _comb(bins: Floats, events: Floats, period: float, median_ms: float, first: float | None = None) -> _Comb:
    if first is None:
        first = float(np.angle(np.exp(2j * np.pi * events / period).sum())) / (2 * np.pi) * period % period
    cycle = np.round((events - first) / period).astype(np.int64)
    near = np.abs(events - first - cycle * period) <= max(_NEAR * period, 1.0)
    reach = max(1, int(_NEAR * period))
    tops: dict[int, float] = {}
    for c, at in zip(cycle[near], events[near], strict=True):
        top = float(np.nanmax(bins[int(at) : int(at) + reach + 1])) - median_ms
        tops[int(c)] = max(tops.get(int(c), 0.0), top)
    return _Comb(first, np.asarray(list(tops), dtype=np.int64), np.asarray(list(tops.values())))


def _refined(events: Floats, k: int) -> float:
    """Period in bins: the maximum of the periodogram within the peak around frequency index ``k``."""
    f = (k + np.linspace(-1.5, 1.5, 61)) / (_OVERSAMPLE * _BINS)
    power = np.abs(np.exp(2j * np.pi * np.outer(f, events)).sum(1))
    return float(1 / f[int(np.argmax(power))])


def detectable_height(signal: Signal, cycles: int = 12, alpha: float = 0.05) -> float | None:
    """The smallest of some heights, in times the stage's median, that is found when spikes of that height are planted
    into this very signal (``cycles`` of them at even intervals, each a twentieth of a period long); None: not even
    the largest.
    """
    period = signal.span_s / cycles
    hit = (signal.t_s % period) < period / 20
    base = signal.median_ms()
    if not math.isfinite(base):
        return None
    for factor in _HEIGHTS:
        planted = Signal(signal.metric, signal.t_s, signal.v_ms + np.where(hit, (factor - 1) * base, 0), signal.span_s)
        found = spikes(planted)
        if found and found.p_value <= alpha and abs(found.period_s / period - 1) < 0.05:
            return factor
    return None
