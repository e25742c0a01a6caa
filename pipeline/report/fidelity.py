"""How far each tier is from the reference, token by token, beside what it costs: the records of ``seatrial fidelity``.

They are made beside the graph, so they may be older than the run. A record of another artifact than the one that this
run judged is left out, by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from pipeline.errors import SeatrialError
from pipeline.fidelity.graded import Graded, graded
from pipeline.fidelity.records import RECORDS, read_records
from pipeline.report import numbers as say
from pipeline.report.figures import INK, Figure, Palette, render
from pipeline.report.inputs import RunData
from pipeline.report.records import Record, record_at
from pipeline.report.summary import header_of


@dataclass(frozen=True)
class Row:
    """One variant on held-out text; ``pareto``: no other one is both as small and as near to the reference."""

    variant: str
    weight_bytes: int
    tokens: int
    kl_mean: float
    kl_p99: float
    perplexity: float
    reference_perplexity: float
    top1_agreement: float
    same_greedy: float | None
    graded: Graded | None
    pareto: bool
    source: Record | None


@dataclass(frozen=True)
class Fidelity:
    """``reason``: why there is no row; ``left_out``: variants of which there is a record of another artifact."""

    rows: list[Row] = field(default_factory=list)
    reason: str = ""
    left_out: list[str] = field(default_factory=list)
    panel: Figure | None = None
    reference: str = ""

    def kl_of(self, tier: str) -> float | None:
        """Mean divergence of a tier on the KV cache as the engine is configured."""
        return next((r.kl_mean for r in self.rows if r.variant == tier), None)


def pareto(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Of (cost, loss) pairs, which no other one beats: as low in both and lower in one."""
    return [not any(c <= x and d <= y and (c < x or d < y) for c, d in points) for x, y in points]


def fidelity_of(run: RunData, palette: Palette) -> Fidelity:
    """What the page shows. Nothing raises: what cannot be read becomes a reason."""
    try:
        records = read_records(run.root / RECORDS)
        fresh = [r for r in records if _of_this_run(run, r)]
        left_out = [str(r["variant"]) for r in records if r not in fresh]
        if not fresh:
            return Fidelity(reason="every record is of another artifact than this run judged", left_out=left_out)
        unbeaten = pareto([(float(r["weight_bytes"]), float(r["parts"]["held_out"]["kl_mean"])) for r in fresh])
        rows = [_row(run, record, best) for record, best in zip(fresh, unbeaten, strict=True)]
        return Fidelity(rows, "", left_out, divergence(rows, palette), str(fresh[0]["reference"]["variant"]))
    except SeatrialError as e:
        return Fidelity(reason=str(e).replace(f"{run.root}/", ""))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        return Fidelity(reason=f"a record in {RECORDS} cannot be read ({type(e).__name__}: {e}); measure it again")


def _row(run: RunData, record: dict[str, Any], unbeaten: bool) -> Row:
    part, same = record["parts"]["held_out"], record["greedy"]["identical_share"]
    return Row(
        variant=str(record["variant"]),
        weight_bytes=int(record["weight_bytes"]),
        tokens=int(part["tokens"]),
        kl_mean=float(part["kl_mean"]),
        kl_p99=float(part["kl_p99"]),
        perplexity=float(part["perplexity"]),
        reference_perplexity=float(part["reference_perplexity"]),
        top1_agreement=float(part["top1_agreement"]),
        same_greedy=None if same is None else float(same),
        graded=graded(record, run.root),
        pareto=unbeaten,
        source=record_at(run, str(RECORDS / f"{record['variant']}.json")),
    )


def _of_this_run(run: RunData, record: dict[str, Any]) -> bool:
    """Whether it measured what this run judged, as far as the run has judged this tier at all."""
    tier = run.tiers.get(record["tier"])
    head = header_of(tier, "eval") or header_of(tier, "load")
    return head is None or head.quantisation.model_dump() == record["header"]["quantisation"]


def divergence(rows: Sequence[Row], palette: Palette) -> Figure:
    """Mean divergence against bytes of weights, one mark a variant, a ring around those that none beats. The axis is
    that of the root: tiers lie orders of magnitude apart, and the reference at zero."""
    looks = Palette([*palette.tiers, *(r.variant for r in rows if r.variant not in palette.tiers)])
    marks: list[dict[str, Any]] = [
        {"tier": r.variant, "x": round(r.weight_bytes / 2**20, 3), "y": r.kl_mean, "ring": r.pareto} for r in rows
    ]
    left, right = min(m["x"] for m in marks), max(m["x"] for m in marks)
    room = max(0.12 * (right - left), 0.04 * right)
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[max(0.0, left - room), right + 3 * room], nice=False, zero=False),
        axis=alt.Axis(title="MiB of weights, stored", tickCount=5, format=",~r", grid=False),
    )
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(type="sqrt", domain=[0, 1.15 * max([m["y"] for m in marks] + [1e-6])], nice=False),
        axis=alt.Axis(title="mean KL, nats a token", tickCount=5, format="~r"),
    )
    base = alt.Chart(alt.Data(values=marks))
    rings = alt.Chart(alt.Data(values=[m for m in marks if m["ring"]]))
    layers = [
        rings.mark_point(size=190, filled=False, stroke=INK, strokeWidth=1.2).encode(x, y),
        base.mark_point(size=60, filled=True, opacity=1).encode(x, y, looks.colours(), looks.shapes()),
        base.mark_text(align="left", dx=11, fontSize=10.5, fontWeight="bold").encode(
            x, y, looks.colours(), text="tier:N"
        ),
    ]
    told = "; ".join(
        f"{m['tier']} {say.number(m['y'], 3)} at {say.number(m['x'])} MiB{', Pareto' if m['ring'] else ''}"
        for m in marks
    )
    chart = alt.layer(*layers).properties(width=430, height=200)
    return render(chart, "Divergence from the reference against weights", told + ".")
