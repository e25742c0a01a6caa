"""awq-int4: W4A16 with activation-aware scales and clipping (Lin et al. 2023), layer by layer.

Input channels that carry large activations are scaled up before rounding, so that they lose less; the inverse goes
into what produces them, and the function of the layer stays the same:

    norm -> q, k, v      the norm's weight          v  -> o      rows of v (shared by the query heads of a KV head)
    norm -> gate, up     the norm's weight          up -> down   rows of up

A norm's weight is stored in bf16, so the scale used is the one that the stored weight carries exactly. Activations
come from the unquantised layers. A finished layer is kept in the work folder: a killed run goes on from there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.artifact import LinearSpec
from pipeline.errors import SeatrialError
from pipeline.quantize.awq import Moments, Rounding, output_error, search_clip, search_scale
from pipeline.quantize.calibrate import calibration_identity, calibration_sequences
from pipeline.quantize.formats import check_groups, dequantise, quantise_w4a16
from pipeline.quantize.llama import INPUTS, LlamaLayers
from pipeline.quantize.recipe import LAYERS, GroupParams, Job, Recipe
from pipeline.quantize.recipes.int4 import spec
from pipeline.quantize.threads import LANES, in_lanes

NORM_OF = {"qkv": "input_layernorm.weight", "gate_up": "post_attention_layernorm.weight"}
NOT_CLIPPED = ("self_attn.q_proj", "self_attn.k_proj")  # as in the paper's code: attention scores bear it badly


class Params(GroupParams):
    calibration: str = Field("v1", description="file below pipeline/quantize/calibration/, without .jsonl")
    calibration_tokens: int = Field(8192, ge=64, le=1_000_000)
    grid: int = Field(10, ge=1, le=100, description="exponents tried between 0 and 1")


def check(job: Job[Params]) -> None:
    """
    Raises:
        SeatrialError: a linear that the group size does not fit, or a model family without a layer to run.
    """
    for module, shape in job.linears().items():
        check_groups(module, shape, job.params.group_size, job.params.symmetric)
    architecture = job.config["architectures"][0]
    if architecture != "LlamaForCausalLM":
        raise SeatrialError(f"awq-int4 runs layers of LlamaForCausalLM, the model is {architecture}; use recipe int4")


def _tensors(job: Job[Params]) -> Iterator[tuple[str, Tensor]]:
    names = job.names()
    count = int(job.config["num_hidden_layers"])
    of_layer = {i: [n for n in names if n.startswith(f"{LAYERS}{i}.")] for i in range(count)}
    outside = [n for n in names if not n.startswith(LAYERS)]
    for name in outside:
        yield name, job.read(name)
    layers = LlamaLayers(job.config)
    sequences = calibration_sequences(
        job.params.calibration, job.source, job.params.calibration_tokens, int(job.config["max_position_embeddings"])
    )
    embedding = job.read("model.embed_tokens.weight")
    hidden = [embedding[ids].float() for ids in sequences]
    del embedding
    job.work.mkdir(parents=True, exist_ok=True)
    job.report["layers"] = {}
    for i in job.stage.track(range(count), "layers"):
        prefix = f"{LAYERS}{i}."
        weights = {n.removeprefix(prefix): job.read(n).float() for n in of_layer[i]}
        kept = job.work / f"layer-{i:05d}.safetensors"
        hidden, moments = run_layer(layers, weights, hidden)
        if not kept.is_file():
            _keep(kept, *quantise_layer(weights, moments, layers, job.params))
        stored, errors = _read_kept(kept)
        job.report["layers"][str(i)] = errors
        for name, tensor in stored.items():
            yield prefix + name, tensor
    job.report |= _summary(job.report["layers"])


def run_layer(
    layers: LlamaLayers, weights: dict[str, Tensor], hidden: list[Tensor]
) -> tuple[list[Tensor], dict[str, Moments]]:
    """What leaves the layer for each sequence [tokens, hidden], and the moments of each of INPUTS over all of them."""

    def lane(mine: list[Tensor]) -> tuple[list[Tensor], dict[str, Moments]]:
        moments: dict[str, Moments] = {}

        def see(name: str, x: Tensor) -> None:
            moments.setdefault(name, Moments(x.shape[1])).add(x)

        return [layers.forward(weights, x, see) for x in mine], moments

    half = (len(hidden) + 1) // LANES
    lanes = in_lanes(lane, [part for part in (hidden[:half], hidden[half:]) if part])
    outputs = [x for out, _ in lanes for x in out]
    first, *others = (moments for _, moments in lanes)
    return outputs, {name: sum((m[name] for m in others), start=first[name]) for name in first}


def quantise_layer(
    weights: dict[str, Tensor], moments: dict[str, Moments], layers: LlamaLayers, params: Params
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Stored tensors of one layer (names without its prefix) and, for each linear, the relative output error on the
    calibration tokens, plainly rounded and as stored: sqrt(tr(D G D^T) / tr(W G W^T))."""
    how = Rounding(params.group_size, params.symmetric)
    columns, norms = _column_scales(weights, moments, layers, how, params.grid)
    rows = {
        "self_attn.v_proj": _to_kv_heads(columns["o"], layers),
        "mlp.up_proj": columns["down"],
    }
    the_spec = spec(params)

    def finish(linear: tuple[str, str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        source, name = linear
        s, second = columns[source], moments[source].second
        weight, row = weights[f"{name}.weight"], rows.get(name)
        changed = weight * s if row is None else weight * s / row[:, None]
        clip = None if name in NOT_CLIPPED else search_clip(changed, second / s / s[:, None], how)
        tensors = quantise_w4a16(changed, how.group_size, how.symmetric, clip)
        stored = {f"{name}.{part}": value for part, value in tensors.items()}
        if (bias := weights.get(f"{name}.bias")) is not None:
            stored[f"{name}.bias"] = (bias if row is None else bias / row).to(torch.bfloat16)
        back = dequantise(tensors, the_spec) / s
        plain = dequantise(quantise_w4a16(weight, how.group_size, how.symmetric), the_spec)
        whole = output_error(weight, second) or 1.0
        return stored, {
            "rounded": _relative(output_error(weight - plain, second), whole),
            "awq": _relative(output_error(weight - (back if row is None else back * row[:, None]), second), whole),
        }

    linears = [(source, name) for source, names in INPUTS.items() for name in names]
    done = in_lanes(finish, linears)
    stored = norms | {name: tensor for tensors, _ in done for name, tensor in tensors.items()}
    return stored, {name: error for (_, name), (_, error) in zip(linears, done, strict=True)}


def _column_scales(
    weights: dict[str, Tensor], moments: dict[str, Moments], layers: LlamaLayers, how: Rounding, grid: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The scale of every input of INPUTS, and the norms' weights that carry two of them, in bf16."""

    def search(source: str) -> Tensor:
        norm = weights.get(NORM_OF.get(source, ""))

        def realise(s: Tensor) -> Tensor:
            if norm is not None:
                return _carried(norm, _divided(norm, s))
            return _to_query_heads(_to_kv_heads(s, layers), layers) if source == "o" else s

        linears = [weights[f"{n}.weight"] for n in INPUTS[source]]
        return search_scale(linears, moments[source], how, grid, realise)

    # The dearest search first, so that the lanes end at about the same time.
    order = sorted(INPUTS, key=lambda source: moments[source].second.shape[0], reverse=True)
    columns = dict(zip(order, in_lanes(search, order), strict=True))
    norms = {norm: _divided(weights[norm], columns[source]) for source, norm in NORM_OF.items()}
    return columns, norms


def _divided(norm: Tensor, s: Tensor) -> Tensor:
    return (norm / s).to(torch.bfloat16)


def _carried(norm: Tensor, stored: Tensor) -> Tensor:
    """The scale that ``stored`` stands for; 1 where the norm silences a channel."""
    return torch.where((norm != 0) & (stored != 0), norm / stored.float(), torch.ones_like(norm))


def _to_kv_heads(s: Tensor, layers: LlamaLayers) -> Tensor:
    """[heads * D] -> [kv_heads * D]: geometric mean over the query heads that read one KV head."""
    by_head = s.view(layers.kv_heads, layers.heads // layers.kv_heads, layers.head_dim)
    return by_head.log().mean(1).exp().reshape(-1)


def _to_query_heads(s: Tensor, layers: LlamaLayers) -> Tensor:
    """[kv_heads * D] -> [heads * D], each repeated for the query heads that read it."""
    by_head = s.view(layers.kv_heads, 1, layers.head_dim)
    return by_head.expand(-1, layers.heads // layers.kv_heads, -1).reshape(-1)


def _relative(error: float, whole: float) -> float:
    return round(math.sqrt(max(0.0, error / whole)), 6)


def _summary(layers: dict[str, Any]) -> dict[str, Any]:
    """Means over all linears."""
    rows = [e for linears in layers.values() for e in linears.values()]
    return {f"output_error_{k}_mean": round(sum(r[k] for r in rows) / len(rows), 6) for k in ("rounded", "awq")}


def _keep(path: Path, tensors: dict[str, Tensor], errors: dict[str, Any]) -> None:
    temporary = path.with_suffix(".partial")
    save_file(tensors, temporary, metadata={"errors": json.dumps(errors)})
    temporary.replace(path)


def _read_kept(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as f:
        return {name: f.get_tensor(name) for name in f.keys()}, json.loads(f.metadata()["errors"])  # noqa: SIM118


def _linears(params: Params) -> list[LinearSpec]:
    return [spec(params)]


RECIPE = Recipe(
    "awq-int4",
    Params,
    linears=_linears,
    tensors=_tensors,
    check=check,
    calibration=lambda params: calibration_identity(params.calibration),
)
