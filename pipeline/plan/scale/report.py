"""The page: first the answer, then the table, then the flip points; or all of it as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.plan.memory import size
from pipeline.plan.scale.answer import Answer
from pipeline.plan.scale.collectives import Wire
from pipeline.plan.scale.disaggregate import Disaggregation
from pipeline.plan.scale.flips import FIGURES, Flip, duration
from pipeline.plan.scale.links import Link, Links
from pipeline.plan.scale.predict import Prediction, Setting, Times
from pipeline.plan.scale.published import Cases, Check, median_off

SCHEMA_VERSION = 1
UNITS = {"bandwidth": "GB/s", "latency": "us"}


@dataclass(frozen=True)
class Plan:
    """All that was found."""

    setting: Setting
    links: Links
    predictions: Sequence[Prediction]
    answer: Answer
    apart: Disaggregation | None


def as_json(plan: Plan) -> dict[str, Any]:
    """Times in seconds, sizes in bytes; ``ledger`` is that of ``seatrial plan``, of each split's largest device."""
    setting = plan.setting
    return {
        "schema_version": SCHEMA_VERSION,
        "answer": plan.answer.sentence,
        "best": {figure: split.label for figure, split in plan.answer.best.items()},
        "model": {
            "name": setting.model.name,
            "shape": setting.model.shape.model_dump(),
            "weights_bytes": setting.model.weights_bytes,
            "kv_bytes_per_token": setting.model.kv_bytes_per_token,
            "kv_dtype": setting.model.kv_dtype,
        },
        "device": asdict(setting.device),
        "links": asdict(plan.links),
        "workload": asdict(setting.work),
        "all_reduce": setting.algorithm,
        "splits": [_split_json(p, setting.work.prompt) for p in plan.predictions],
        "flips": [_flip_json(f) for f in plan.answer.flips],
        "disaggregation": None if plan.apart is None else asdict(plan.apart) | {"keeps_up": plan.apart.link_keeps_up},
    }


def _split_json(p: Prediction, prompt: int) -> dict[str, Any]:
    t = p.times
    return {
        "split": p.split.label,
        **asdict(p.split),
        "weights_bytes_per_device": p.held.weights_bytes,
        "ledger": None if p.held.ledger is None else p.held.ledger.model_dump(),
        "why_not": p.held.why,
        "all_requests_at_once": p.all_at_once,
        "times": None if t is None else asdict(t) | {"bound_by": t.bound_by},
        "wire_per_token": None if t is None else _per_token(t, prompt),
    }


def _per_token(t: Times, prompt: int) -> dict[str, dict[str, float]]:
    """A prompt's tokens share its messages and bytes; of decode every token waits for all messages of its step, and the
    requests of the step share the bytes."""
    rows = -(-t.resident // t.groups)
    return {
        "prefill": {"messages": t.prefill.wire.messages / prompt, "bytes": t.prefill.wire.bytes_sent / prompt},
        "decode": {"messages": t.decode.wire.messages, "bytes": t.decode.wire.bytes_sent / rows},
    }


def _flip_json(f: Flip) -> dict[str, Any]:
    return {
        "spread": f.spread.label,
        "other": f.other.label,
        "figure": f.figure,
        "knob": f.knob,
        "unit": UNITS[f.knob],
        "now": f.now,
        "at": f.at,
        "always": None if f.always is None else f.always.label,
        "hopeless": f.hopeless,
    }


def show(plan: Plan) -> None:
    """For people, on a terminal or in a file."""
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    setting, work = plan.setting, plan.setting.work
    console.print(f"{plan.answer.sentence[:1].upper()}{plan.answer.sentence[1:]}", style="bold")
    console.print(
        f"\n{setting.model.name}: {size(setting.model.weights_bytes)} of weights, "
        f"{size(setting.model.kv_bytes_per_token)} of KV a token ({setting.model.kv_dtype}). {_device(setting)}. "
        f"{_links(plan.links)}. {work.concurrency} request{'s' if work.concurrency > 1 else ''} at a time, "
        f"{work.prompt:,} tokens in, {work.output:,} out.\n"
    )
    for line in table_lines(plan.predictions):
        console.print(line)
    for note in notes(plan.predictions):
        console.print(f"({note})")
    if plan.answer.flips:
        console.print("\nThe answer flips", style="bold")
        for line in flip_lines(plan.answer.flips):
            console.print(f"- {line}")
    if plan.apart is not None:
        console.print("\nPrefill on devices of its own", style="bold")
        for line in apart_lines(plan.apart):
            console.print(f"- {line}")


def _device(setting: Setting) -> str:
    d = setting.device
    rate = d.flops_per_s(setting.model.eight_bit) / 1e12
    return (
        f"Device {d.name}: {d.memory_bytes / 1024**3:.4g} GiB, reaches {d.bytes_per_s / 1e9:,.4g} GB/s and "
        f"{rate:,.4g} TFLOP/s"
    )


def _links(links: Links) -> str:
    def told(link: Link) -> str:
        return f"{link.name}, reaches {link.bytes_per_s / 1e9:,.4g} GB/s each way, {link.latency_us:g} us a message"

    if links.within == links.between:
        return f"Link {told(links.within)}"
    return f"Links {told(links.within)}, within {links.per_host} devices; {told(links.between)}, between"


HEADS = (
    "split",
    "GB a device",
    "wire, a prompt",
    "wire, a step",
    "on it",
    "compute",
    "memory",
    "a token",
    "TTFT",
    "tokens/s",
)


def table_lines(predictions: Sequence[Prediction]) -> list[str]:
    """A step is one of decode: one token for each request (of a pipeline: of a group). Times of its parts, then what a
    request sees."""
    rows = [HEADS, *(_row(p) for p in predictions)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    return [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row(p: Prediction) -> tuple[str, ...]:
    if p.held.ledger is None or p.times is None:
        return (p.split.label, f"{p.held.weights_bytes / 1e9:.3g}", *["-"] * (len(HEADS) - 2))
    t = p.times
    return (
        p.split.label,
        f"{p.held.ledger.total_bytes / 1e9:.3g}",
        _wire(t.prefill.wire),
        _wire(t.decode.wire),
        *(duration(s) if s else "-" for s in (t.decode.wire.seconds, t.decode.compute_s, t.decode.memory_s)),
        duration(t.itl_s),
        duration(t.ttft_s),
        f"{t.tokens_per_s:,.4g}",
    )


def _wire(wire: Wire) -> str:
    if wire.messages == 0:
        return "-"
    return f"{wire.messages:,.0f} x {_bytes(wire.bytes_sent / wire.messages)}"


def _bytes(n: float) -> str:
    """Decimal, as links are."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n:.3g} B"


def notes(predictions: Sequence[Prediction]) -> list[str]:
    """Why splits do not fit, and which hold fewer requests than are asked for."""
    reasons: dict[str, list[str]] = {}
    for p in predictions:
        if p.held.why:
            reasons.setdefault(f"impossible: {p.held.why}", []).append(p.split.label)
        elif not p.all_at_once and p.times is not None:
            reasons.setdefault(f"with {p.times.resident} requests a copy at a time, the others wait", []).append(
                p.split.label
            )
    return [f"{', '.join(labels)} {why}" for why, labels in reasons.items()]


def flip_lines(flips: Sequence[Flip]) -> list[str]:
    """One line for each figure and pair of splits that flips by either knob; one for those pairs that never do."""
    lines: list[str] = []
    never: dict[str, list[str]] = {}
    for i in range(0, len(flips), 2):
        pair = flips[i : i + 2]
        f = pair[0]
        fixed = [x.always for x in pair if x.at is None]
        if len(fixed) == len(pair) and fixed[0] is not None and len(set(fixed)) == 1:
            loser = f.spread if fixed[0] == f.other else f.other
            unless = "whatever the link" if f.hopeless or fixed[0] == f.spread else "unless both figures are better"
            never.setdefault(f"{fixed[0].label} beats {loser.label} {unless}", []).append(FIGURES[f.figure].name)
            continue
        parts = "; ".join(_flip_line(x) for x in pair)
        lines.append(f"{FIGURES[f.figure].name}: {f.spread.label} beats {f.other.label} {parts}")
    return lines + [f"{who}: {', '.join(figures)}" for who, figures in never.items()]


def _flip_line(f: Flip) -> str:
    if f.at is None:
        return f"at no {f.knob} alone" if f.always == f.other else f"at every {f.knob}"
    if f.knob == "bandwidth":
        return f"from {f.at:.3g} GB/s on (now {f.now:.3g})"
    return f"below {f.at:.3g} us a message (now {f.now:.3g})"


def apart_lines(d: Disaggregation) -> list[str]:
    """What it would take to prefill elsewhere."""
    enough = "carries" if d.link_keeps_up else "does not carry"
    return [
        f"a prompt's KV is {size(d.kv_bytes)}: {duration(d.transfer_s)} on the link at once, {duration(d.exposed_s)} "
        f"left over if sent layer by layer; from {d.negligible_gb_per_s:.3g} GB/s on less than a tenth of the prefill",
        f"a copy ({d.copy.label}) that only decodes takes in {d.sustained_gb_per_s:.3g} GB/s, which the link {enough}; "
        f"it takes {d.prefill_copies:.3g} copies to prefill for it",
        f"it spares running requests a pause of {duration(d.stall_s)} for each prompt that comes in",
    ]


def published_rows(done: Sequence[Check]) -> list[tuple[str, ...]]:
    """Source, setting, figure, measured, predicted, factor, and why where it is outside."""
    rows: list[tuple[str, ...]] = []
    for check in done:
        case = check.case
        device = case.device or f"as measured, {case.links}"
        where = f"{case.model}, {case.weight_bits:g} bits, {device}, tp{case.split[0]}"
        if case.concurrency > 1 or case.prompt > 16:
            where += f", {case.concurrency} x {case.prompt}+{case.output}"
        rows.append(
            (
                f"{case.source} ({check.source.year})", where, case.figure, f"{case.measured:,.5g}",
                f"{check.predicted:,.4g}", f"{check.factor:.2f}", case.outside or "",
            )
        )  # fmt: skip
    return rows


def published_summary(cases: Cases, done: Sequence[Check]) -> str:
    outside = [c for c in done if c.case.outside]
    return (
        f"{len(done)} published figures: half of the predictions are off by a factor of {median_off(list(done)):.2f} "
        f"or less, {len(done) - len(outside)} by {cases.bound_factor:g} or less, {len(outside)} by more, the worst by "
        f"{max(c.off for c in done):.2f}"
    )
