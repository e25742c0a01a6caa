"""Recipes that need activations: one decoder layer at a time, in bounded memory, resumable by layer.

Activations come from the unquantised layers. A finished layer is kept in the work folder: a killed run goes on there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch
from pydantic import Field
from safetensors import safe_open
from torch import Tensor

from engine.artifact import LinearSpec
from pipeline.errors import SeatrialError
from pipeline.quantize.calibrate import calibration_sequences
from pipeline.quantize.decoder import INPUTS, DecoderLayers
from pipeline.quantize.recipe import LAYERS, Job, RecipeParams
from pipeline.quantize.threads import LANES, in_lanes
from pipeline.weights import save_tensors

CALIBRATION = Field("v1", description="file below pipeline/quantize/calibration/, without .jsonl")
CALIBRATION_TOKENS = Field(8192, ge=64, le=1_000_000)


class Statistic(Protocol):
    """What is kept of an input [tokens, in] of a linear; the sum of two is that of both inputs."""

    def add(self, x: Tensor) -> None: ...
    def __add__(self, other: Self) -> Self: ...


S = TypeVar("S", bound=Statistic)
P = TypeVar("P", bound=RecipeParams)
SpecOf = Callable[[str], LinearSpec | None]  # of a linear by its name in the layer; None: bf16
Stored = tuple[dict[str, Tensor], dict[str, Any]]


def check_architecture(job: Job[Any]) -> None:
    """
    Raises:
        SeatrialError: a model whose layers cannot be run here.
    """
    try:
        DecoderLayers(job.config)
    except SeatrialError as e:
        raise SeatrialError(f"{job.source}: {e}; use a recipe without calibration") from e


def calibrated_tensors(
    job: Job[P],
    text: str,
    tokens: int,
    statistic: Callable[[int], S],
    quantise_layer: Callable[[dict[str, Tensor], dict[str, S], DecoderLayers, SpecOf], Stored],
) -> Iterator[tuple[str, Tensor]]:
    """All tensors of the artifact; what ``quantise_layer`` reports of each layer goes to ``job.report["layers"]``, what
    the head reads to ``job.head_peaks``.

    ``statistic`` makes one for an input of so many channels; ``quantise_layer`` gets the float32 weights of a layer
    (names without its prefix), the statistic of each of INPUTS and how each linear is to be stored, and gives the
    tensors to store.
    """
    names = job.names()
    count = int(job.config["num_hidden_layers"])
    of_layer = {i: [n for n in names if n.startswith(f"{LAYERS}{i}.")] for i in range(count)}
    for name in (n for n in names if not n.startswith(LAYERS)):
        yield name, job.read(name)
    layers = DecoderLayers(job.config)
    sequences = calibration_sequences(text, job.source, tokens, int(job.config["max_position_embeddings"]))
    embedding = job.read("model.embed_tokens.weight")
    hidden = [layers.embed(embedding, ids) for ids in sequences]
    del embedding
    job.work.mkdir(parents=True, exist_ok=True)
    job.report["layers"] = {}
    for i in job.stage.track(range(count), "layers"):
        prefix = f"{LAYERS}{i}."
        weights = {n.removeprefix(prefix): job.read(n).float() for n in of_layer[i]}
        kept = job.work / f"layer-{i:05d}.safetensors"
        hidden, seen = run_layer(layers, i, weights, hidden, statistic)
        if not kept.is_file():
            _keep(kept, *quantise_layer(weights, seen, layers, partial(_spec_below, job, prefix)))
        stored, report = _read_kept(kept)
        job.report["layers"][str(i)] = report
        for name, tensor in stored.items():
            yield prefix + name, tensor
    norm = job.read("model.norm.weight").float()
    job.head_peaks = torch.stack([layers.norm(x, norm).abs().amax(0) for x in hidden]).amax(0)


def _spec_below(job: Job[Any], prefix: str, name: str) -> LinearSpec | None:
    return job.spec_of(prefix + name)


def unchanged(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Norms and biases of a layer, in bf16 as they were."""
    kept = {n: w for n, w in weights.items() if n.endswith(("norm.weight", ".bias"))}
    return {n: w.to(torch.bfloat16) for n, w in kept.items()}


def each_linear(finish: Callable[[str, str], Stored]) -> Stored:
    """``finish(source, name)`` for every linear of a layer and the one of INPUTS that it reads, in lanes.

    Returns the tensors of all under their names, and what was reported of each.
    """
    linears = [(source, name) for source, names in INPUTS.items() for name in names]
    done = in_lanes(lambda linear: finish(*linear), linears)
    stored: dict[str, Tensor] = {}
    reports: dict[str, Any] = {}
    for (_, name), (tensors, report) in zip(linears, done, strict=True):
        stored |= {f"{name}.{part}": value for part, value in tensors.items()}
        reports[name] = report
    return stored, reports


def relative(error: float, whole: float) -> float:
    """The root of a share of squares, as reports have it."""
    return round(math.sqrt(max(0.0, error / whole)), 6)


def mean_errors(layers: dict[str, Any]) -> dict[str, Any]:
    """``output_error_KIND_mean`` over all linears for each kind of error that a layer's report has."""
    rows = [e for linears in layers.values() for e in linears.values()]
    return {f"output_error_{k}_mean": round(sum(r[k] for r in rows) / len(rows), 6) for k in rows[0]}


def run_layer(
    layers: DecoderLayers, i: int, weights: dict[str, Tensor], hidden: list[Tensor], statistic: Callable[[int], S]
) -> tuple[list[Tensor], dict[str, S]]:
    """What leaves layer ``i`` for each sequence [tokens, hidden], and the statistic of each of INPUTS over all."""

    def lane(mine: list[Tensor]) -> tuple[list[Tensor], dict[str, S]]:
        seen: dict[str, S] = {}

        def see(name: str, x: Tensor) -> None:
            seen.setdefault(name, statistic(x.shape[1])).add(x)

        return [layers.forward(i, weights, x, see) for x in mine], seen

    half = (len(hidden) + 1) // LANES
    lanes = in_lanes(lane, [part for part in (hidden[:half], hidden[half:]) if part])
    total = dict(lanes[0][1])
    for _, seen in lanes[1:]:
        total = {name: total[name] + seen[name] for name in total}
    return [x for out, _ in lanes for x in out], total


def _keep(path: Path, tensors: dict[str, Tensor], report: dict[str, Any]) -> None:
    temporary = path.with_suffix(".partial")
    save_tensors(tensors, temporary, {"report": json.dumps(report)})
    temporary.replace(path)


def _read_kept(path: Path) -> Stored:
    with safe_open(path, framework="pt") as f:
        return {name: f.get_tensor(name) for name in f.keys()}, json.loads(f.metadata()["report"])  # noqa: SIM118
