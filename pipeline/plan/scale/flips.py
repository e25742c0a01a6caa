"""At which bandwidth, or latency, of the link another split wins: the answer's flip points.

Both splits' times are computed anew for each value that is tried: no formula is inverted, so what flips here flips in
the table too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pipeline.plan.scale.links import Links
from pipeline.plan.scale.parallel import Split
from pipeline.plan.scale.predict import Setting, Times, times_of

Knob = Literal["bandwidth", "latency"]
BANDWIDTHS_GB_PER_S = (1e-3, 1e4)
LATENCIES_US = (1e-2, 1e6)
STEPS_A_DECADE = 8


@dataclass(frozen=True)
class Figure:
    """One of the three that splits are judged by. ``cost`` is smaller for the better."""

    name: str
    cost: Callable[[Times], float]
    shown: Callable[[Times], str]


FIGURES = {
    "itl": Figure("inter-token latency", lambda t: t.itl_s, lambda t: duration(t.itl_s)),
    "ttft": Figure("time to first token", lambda t: t.ttft_s, lambda t: duration(t.ttft_s)),
    "throughput": Figure("throughput", lambda t: 1 / t.tokens_per_s, lambda t: f"{t.tokens_per_s:,.4g} tokens/s"),
}


def duration(seconds: float) -> str:
    """For people: three digits, in the unit that fits."""
    for limit, scale, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


@dataclass(frozen=True)
class Flip:
    """``spread`` beats ``other`` in a figure while the bandwidth is above ``at`` (GB/s reached), or the latency below
    (us). Without ``at``: ``always`` says which of them wins at every value that was tried. ``hopeless``: ``spread``
    loses even where bandwidth and latency are both as good as any."""

    spread: Split
    other: Split
    figure: str
    knob: Knob
    now: float
    at: float | None
    always: Split | None
    hopeless: bool


def flip(
    setting: Setting, links: Links, spread: Split, other: Split, residents: tuple[int, int], figure: str, knob: Knob
) -> Flip:
    """The value of the knob at which the two are equal; the other knob stays as it is."""
    devices = max(spread.of_a_copy, other.of_a_copy)
    link = links.of_group(devices)
    now = link.bytes_per_s / 1e9 if knob == "bandwidth" else link.latency_us

    def ahead_with(gb_per_s: float | None, latency_us: float | None) -> float:
        """Above 0 where ``spread`` is the faster."""
        changed = links.varied(devices, gb_per_s, latency_us)
        a, b = (times_of(setting, s, changed, n) for s, n in zip((spread, other), residents, strict=True))
        return FIGURES[figure].cost(b) - FIGURES[figure].cost(a)

    def ahead(value: float) -> float:
        return ahead_with(value, None) if knob == "bandwidth" else ahead_with(None, value)

    low, high = BANDWIDTHS_GB_PER_S if knob == "bandwidth" else LATENCIES_US
    found = crossing(ahead, low, high)
    always = None if found is not None else (spread if ahead(high) > 0 else other)
    hopeless = ahead_with(BANDWIDTHS_GB_PER_S[1], LATENCIES_US[0]) <= 0
    return Flip(spread, other, figure, knob, now, found, always, hopeless)


def crossing(ahead: Callable[[float], float], low: float, high: float) -> float | None:
    """Where a function of a positive number first changes its sign, to a millionth; None where it does not."""
    steps = round(STEPS_A_DECADE * math.log10(high / low))
    grid = [low * (high / low) ** (i / steps) for i in range(steps + 1)]
    for left, right in pairwise(grid):
        side = ahead(left) > 0
        if side != (ahead(right) > 0):
            while right / left > 1 + 1e-6:
                middle = math.sqrt(left * right)
                left, right = (middle, right) if (ahead(middle) > 0) == side else (left, middle)
            return math.sqrt(left * right)
    return None
