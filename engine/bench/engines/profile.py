"""``--profile``: the time of a step by kernel, by layer, and what is left of it for Python."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import altair as alt
from pydantic import BaseModel, ConfigDict

from engine.bench.charts import axis, colours_of, svg
from engine.bench.engines.engine import EngineError
from engine.bench.engines.piped import PipedEngine
from engine.bench.show import Table, number, with_unit

PRODUCTS = ("product", "product_int")
IN_A_LAYER = ("q, k, v", "attention out", "gate and up", "down")  # products, in order, where there are as many
HEAD = "head"
REST = "between kernels: Python"


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    prompt: int
    steps: int  # 0: the steps of the prefill


CASES = (
    Case("decode, 1 request", batch=1, prompt=128, steps=64),
    Case("decode, 16 requests", batch=16, prompt=128, steps=24),
    Case("prefill, 1,024 tokens", batch=1, prompt=1024, steps=0),
)


class StepProfile(BaseModel):
    """Means over ``steps`` steps."""

    model_config = ConfigDict(frozen=True)
    batch: int
    prompt: int
    steps: int
    step_s: float
    ops: list[tuple[str, int | None, float]]

    @property
    def rest_s(self) -> float:
        """What the step took beyond its kernels."""
        return max(0.0, self.step_s - sum(seconds for *_, seconds in self.ops))

    def by_kernel(self) -> dict[str, float]:
        """Seconds a step, products by what they are for, the longest first, Python last."""
        found: dict[str, float] = {}
        counts: dict[int | None, int] = {}
        in_a_layer = sum(kind in PRODUCTS and layer == 0 for kind, layer, _ in self.ops)
        for kind, layer, seconds in self.ops:
            name = kind
            if kind in PRODUCTS:
                at = counts[layer] = counts.get(layer, -1) + 1
                known = IN_A_LAYER[at] if in_a_layer == len(IN_A_LAYER) and at < len(IN_A_LAYER) else str(at + 1)
                name = f"{kind}: {HEAD if layer is None else known}"
            found[name] = found.get(name, 0.0) + seconds
        return dict(sorted(found.items(), key=lambda x: -x[1])) | {REST: self.rest_s}

    def by_layer(self) -> list[float]:
        """Seconds a step of each layer; what belongs to none (embedding, last norm, head, draw) is not in it."""
        layers: dict[int, float] = {}
        for _, layer, seconds in self.ops:
            if layer is not None:
                layers[layer] = layers.get(layer, 0.0) + seconds
        return [layers[i] for i in sorted(layers)]


def profile(engine: PipedEngine, limit_s: float) -> dict[str, StepProfile]:
    """By case.

    Raises:
        EngineError: it has no clock in its kernels, or is not done in time.
    """
    found = {}
    for case in CASES:
        asked: dict[str, Any] = {"profile": {"batch": case.batch, "prompt": case.prompt, "steps": case.steps}}
        engine.ask(
            json.dumps(asked).encode() + b"\n", limit_s
        )  # once before, so that nothing is done for the first time
        answer = json.loads(engine.ask(json.dumps(asked).encode() + b"\n", limit_s))
        if "error" in answer:
            raise EngineError(f"no profile: {answer['error']}")
        found[case.name] = StepProfile.model_validate(answer)
    return found


def table(name: str, profiles: dict[str, StepProfile]) -> Table:
    """A kernel a row, a case a column: milliseconds of a step, and its share."""
    sides = {case: p.by_kernel() for case, p in profiles.items()}
    kernels = list(dict.fromkeys(k for side in sides.values() for k in side if k != REST))

    def cell(case: str, kernel: str) -> str:
        seconds = sides[case].get(kernel, 0.0)
        return f"{number(1000 * seconds)} ({with_unit(seconds / profiles[case].step_s, 'share')})"

    rows = [[kernel, *(cell(case, kernel) for case in sides)] for kernel in (*kernels, REST)]
    rows.append(["the step", *(number(1000 * p.step_s) for p in profiles.values())])
    notes = []
    for case, p in profiles.items():
        layers = [1000 * s for s in p.by_layer()]
        between = f"{number(min(layers))} to {number(max(layers))} ms each" if layers else "no layer was timed"
        notes.append(f"{case}: {p.batch} x {p.prompt} tokens, mean of {p.steps} steps; {len(layers)} layers, {between}")
    return Table(f"{name}: milliseconds of a step by kernel, and their share", ["", *sides], rows, notes)


def layers_chart(name: str, profiles: dict[str, StepProfile]) -> tuple[str, str]:
    """(title, SVG): each layer's share of the step, a line a case."""
    cases = list(profiles)
    rows = [
        {"case": case, "layer": i, "share": seconds / p.step_s}
        for case, p in profiles.items()
        for i, seconds in enumerate(p.by_layer())
    ]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(strokeWidth=1.6)
        .encode(
            alt.X("layer:Q", scale=alt.Scale(nice=False), axis=axis("layer", grid=False)),
            alt.Y("share:Q", scale=alt.Scale(zero=True), axis=axis("share of the step", format=".1%")),
            alt.Color("case:N", scale=alt.Scale(domain=cases, range=colours_of(cases)), legend=None),
        )
    )
    return f"{name}: share of each layer", svg(chart, f"{name}: share of the step by layer")


def legend() -> list[tuple[str, str]]:
    cases = [case.name for case in CASES]
    return list(zip(cases, colours_of(cases), strict=True))


def as_results(profiles: dict[str, dict[str, StepProfile]]) -> list[dict[str, Any]]:
    return [
        {
            "engine": engine,
            "case": case,
            **p.model_dump(),
            "python_share": p.rest_s / p.step_s,
            "kernels_s": p.by_kernel(),
            "layers_s": p.by_layer(),
        }
        for engine, cases in profiles.items()
        for case, p in cases.items()
    ]
