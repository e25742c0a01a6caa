"""The one sentence that the table comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.plan.scale.flips import FIGURES, Flip, flip
from pipeline.plan.scale.links import Links
from pipeline.plan.scale.parallel import Split, refusal, splits
from pipeline.plan.scale.predict import Prediction, Setting, Times, predict

WORTH = 1.1  # a spread must be a tenth better: it fails when any of its devices does
DO_NOT_SPREAD = "fits on one device: do not spread"
MOST_DEVICES = 1024


@dataclass(frozen=True)
class Answer:
    """``best``: the winner of each figure; empty where nothing fits."""

    sentence: str
    best: dict[str, Split]
    flips: list[Flip]


def answer(setting: Setting, links: Links, found: Sequence[Prediction]) -> Answer:
    """What to do with the devices that were planned for, and where that would change."""
    fitting = {p.split: p.times for p in found if p.times is not None}
    if not fitting:
        return Answer(_nowhere(setting, links, found), {}, [])
    best = {figure: _best(fitting, figure) for figure in FIGURES}
    return Answer(_sentence(setting, found, fitting, best), best, _flips(setting, links, fitting))


def _best(times: dict[Split, Times], figure: str) -> Split:
    """The first of equals, which has the fewest wires."""
    return min(times, key=lambda s: (FIGURES[figure].cost(times[s]), s.of_a_copy, s.devices))


def _ahead(times: dict[Split, Times], figure: str, a: Split, b: Split) -> float:
    """By which factor ``a`` is better than ``b``."""
    cost = FIGURES[figure].cost
    return cost(times[b]) / cost(times[a])


def _sentence(setting: Setting, found: Sequence[Prediction], times: dict[Split, Times], best: dict[str, Split]) -> str:
    one = next(p for p in found if p.split.devices == 1)
    wireless = {s: t for s, t in times.items() if s.of_a_copy == 1}
    if not wireless:
        return _must_spread(one, times, best)
    crowd = (
        "" if one.all_at_once else f" ({times[one.split].resident} of {setting.work.concurrency} requests at a time)"
    )
    pays = [f for f in FIGURES if best[f].of_a_copy > 1 and _ahead(times, f, best[f], _best(wireless, f)) >= WORTH]
    copies = _copies(wireless, one.split, max(s.devices for s in times))
    if not pays:
        slower = _slower(times, _best(wireless, "itl"))
        return f"{DO_NOT_SPREAD}{crowd}. One device: {_told(times[one.split])}.{slower}{copies}"
    parts = []
    for figure in pays:
        win, lose = best[figure], _best(wireless, figure)
        shown = FIGURES[figure].shown
        parts.append(f"{FIGURES[figure].name} ({win.label}: {shown(times[win])}; {lose.label}: {shown(times[lose])})")
    rest = "" if "throughput" in pays else copies
    return f"fits on one device{crowd}; spreading pays for {', '.join(parts)}.{rest}"


def _told(times: Times) -> str:
    return f"{FIGURES['itl'].shown(times)} a token, {FIGURES['throughput'].shown(times)}"


def _copies(wireless: dict[Split, Times], one: Split, devices: int) -> str:
    """What data parallelism is good for: throughput, where there are requests enough to share out."""
    if devices == 1:
        return ""
    copies = _best(wireless, "throughput")
    if _ahead(wireless, "throughput", copies, one) >= WORTH:
        shown = FIGURES["throughput"].shown
        return f" For throughput run copies (data parallel): {copies.data} give {shown(wireless[copies])}."
    return (
        f" Copies (data parallel) would serve more requests: {devices} devices, {devices} times as many, none slower."
    )


def _slower(times: dict[Split, Times], quick: Split) -> str:
    """What spreading would cost, of the widest tensor split: the usual mistake."""
    spread = [s for s in times if s.of_a_copy > 1]
    if not spread:
        return ""
    widest = max(spread, key=lambda s: (s.of_a_copy, s.tensor))
    factor = _ahead(times, "itl", quick, widest)
    if factor < 1:
        return f" {widest.label} would be {1 / factor:.2f}x as fast a token, less than a spread is worth."
    wire = times[widest].decode.wire.seconds / times[widest].decode.seconds
    return f" {widest.label} would take {factor:.3g}x as long a token, {wire:.0%} of it on the wire."


def _must_spread(one: Prediction, times: dict[Split, Times], best: dict[str, Split]) -> str:
    quick, much = best["itl"], best["throughput"]
    told = f"does not fit on one device ({one.held.why}): use {quick.label}, {_told(times[quick])}"
    if quick != much and _ahead(times, "throughput", much, quick) >= WORTH:
        return f"{told}; for throughput {much.label}, {_told(times[much])}."
    return f"{told}."


def _nowhere(setting: Setting, links: Links, found: Sequence[Prediction]) -> str:
    devices = max(p.split.devices for p in found)
    told = f"does not fit on {devices} device{'s' if devices > 1 else ''} of {setting.device.name}"
    n = 1
    while (n := n * 2) <= MOST_DEVICES:
        if n > devices and any(predict(setting, s, links).times is not None for s in splits(n) if s.data == 1):
            return f"{told}; {n} would hold it."
    why = {w for p in found if (w := refusal(p.split, setting.model.shape))}
    return f"{told}, nor on any number up to {MOST_DEVICES}{': ' + '; '.join(sorted(why)) if why else ''}."


def _flips(setting: Setting, links: Links, times: dict[Split, Times]) -> list[Flip]:
    """Of the pure tensor and the pure pipeline split over all devices: against the best without wires, or, where only
    spreads fit, against each other."""
    devices = max(s.devices for s in times)
    pure = [s for s in (Split(tensor=devices), Split(pipeline=devices)) if s in times and s.of_a_copy > 1]
    wireless = {s: t for s, t in times.items() if s.of_a_copy == 1}
    found: list[Flip] = []
    for figure in FIGURES:
        if wireless:
            pairs = [(spread, _best(wireless, figure)) for spread in pure]
        else:
            pairs = [(pure[0], pure[1])] if len(pure) == 2 else []
        for spread, other in pairs:
            residents = (times[spread].resident, times[other].resident)
            found.append(flip(setting, links, spread, other, residents, figure, "bandwidth"))
            found.append(flip(setting, links, spread, other, residents, figure, "latency"))
    return found
