"""One instrument for quantised models, whoever made them: what a directory stores, in float32, in plain transformers.

Both sides write the form of compressed-tensors, so one decoder reads both, and no kernel, no head and no dtype of an
engine is in what is compared: only the weights that a recipe chose. Where a linear's inputs are of 8 bits (W8A8), they
are rounded for each token before the product, with a scale of max|x| / 127 as our kernels and vLLM's have it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from engine.artifact import LinearSpec
from pipeline.errors import SeatrialError
from pipeline.fidelity.figures import Scored
from pipeline.quantize.formats import dequantise
from pipeline.weights import TensorFiles

HEAD = "lm_head.weight"
STORED = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape")
CONFIDENCE = 0.95
SPAN = 127.0  # the code of a token's largest magnitude, as our kernels and vLLM's have it
SPAN_OF_COMPRESSED_TENSORS = 127.5


@dataclass(frozen=True)
class Decoded:
    """``weights``: float32, by the names of the unquantised model. ``bits``: stored for each weight of the linears that
    are quantised, scales and zero points among them. ``rounded``: linears whose inputs are of 8 bits."""

    weights: dict[str, Tensor]
    bits: float
    rounded: frozenset[str]


def decoded(directory: Path) -> Decoded:
    """
    Raises:
        SeatrialError: it is not one group of W4A16 or W8A8, or a tensor is missing.
    """
    files = TensorFiles(directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    schemes = list((config.get("quantization_config") or {}).get("config_groups", {}).values())
    kinds = [(g["weights"]["num_bits"], (g.get("input_activations") or {}).get("num_bits")) for g in schemes]
    if kinds not in ([], [(4, None)], [(8, 8)]):
        raise SeatrialError(
            f"{directory} has groups of {kinds} (bits of weights, of inputs); expected one, 4 or 8 and 8"
        )
    weights: dict[str, Tensor] = {}
    stored_bits = count = 0
    modules = [name.removesuffix(".weight_scale") for name in files.names() if name.endswith(".weight_scale")]
    for module in modules:
        parts = {part: files.read(f"{module}.{part}") for part in ("weight", *STORED) if f"{module}.{part}" in files}
        weight = dequantise(parts, _spec(parts))
        weights[f"{module}.weight"] = weight
        stored_bits += 8 * sum(t.nbytes for part, t in parts.items() if part != "weight_shape")
        count += weight.numel()
    for name in files.names():
        if name.rpartition(".")[0] not in modules or name.endswith(".bias"):
            weights[name] = files.read(name).float()
    return Decoded(weights, stored_bits / count if count else 16.0, frozenset(modules if kinds == [(8, 8)] else ()))


def _spec(parts: dict[str, Tensor]) -> LinearSpec:
    if "weight_packed" not in parts:
        return LinearSpec(pattern="*", scheme="w8a8")
    return LinearSpec(pattern="*", scheme="w4a16", symmetric="weight_zero_point" not in parts)


def loaded(base: Path, found: Decoded, span: float = SPAN) -> Any:
    """The model of ``base`` with these weights; ``span``: of inputs of 8 bits.

    Raises:
        SeatrialError: weights that the model does not have, or lacks.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(base)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    lacking, odd = model.load_state_dict(found.weights, strict=False)
    missing = [name for name in lacking if not (name == HEAD and config.tie_word_embeddings)]
    if missing or odd:
        examples = ", ".join([*missing, *odd][:3])
        raise SeatrialError(f"not the weights of {base}: {len(missing)} missing, {len(odd)} unknown ({examples})")
    model.tie_weights()
    for name, module in model.named_modules():
        if name in found.rounded:
            module.register_forward_pre_hook(lambda _, inputs: (eight_bits(inputs[0], span), *inputs[1:]))
    return model.eval()


def eight_bits(x: Tensor, span: float = SPAN) -> Tensor:
    """Each token (the last dimension) rounded to steps of its own largest magnitude / ``span``."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / span
    return (x / scale).round().clamp(-128, 127) * scale


@torch.no_grad()
def distributions(model: Any, ids: Sequence[int]) -> Tensor:
    """Log-probabilities [tokens - 1, vocabulary] of what follows each token but the last."""
    found: Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :-1].log_softmax(-1)
    return found


def scored(found: Tensor, ids: Sequence[int], reference: Tensor | None = None) -> Scored:
    """What ``pipeline.fidelity`` keeps of a sequence; KL(reference || found) in nats, each sum over the vocabulary in
    float64."""
    kl = None
    if reference is not None:
        kl = (reference.exp() * (reference - found)).sum(-1, dtype=torch.float64).tolist()
    there = torch.tensor(list(ids[1:]))[:, None]
    return Scored(logprobs=found.gather(1, there)[:, 0].tolist(), best=found.argmax(-1).tolist(), kl=kl)


@dataclass(frozen=True)
class Ratio:
    """Of two means over the tokens of the same sequences, with its interval of 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def mean_ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Ratio:
    """Sum over sum. The sequence is the unit: the ratio estimator of a clustered sample (Cochran 1977, section 6.4),
    with an interval by Student's t on the logarithm.

    Raises:
        ValueError: fewer than two sequences, or others on one side than on the other.
    """
    if len(ours) < 2 or [len(s) for s in ours] != [len(s) for s in theirs]:
        raise ValueError(f"{len(ours)} sequences of ours, {len(theirs)} of theirs; expected the same, and at least two")
    a, b = (np.array([math.fsum(s) for s in side]) for side in (ours, theirs))
    value = float(a.sum() / b.sum())
    n = len(a)
    error = math.sqrt(n / (n - 1) * float(((a - value * b) ** 2).sum())) / float(a.sum())  # of the logarithm
    wide = math.exp(float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * error)
    return Ratio(value, value / wide, value * wide)
