"""``quantization_config`` of config.json, by which vLLM, SGLang and transformers load the same files.

Fields: compressed-tensors, ``QuantizationConfig``. The spec of the layers becomes the group that targets every linear;
linears with a spec of their own are named one by one, since a name counts before a class there. A group says its format
where the format of the whole does not: of several, or where 4 bits beside 8-bit activations would be taken for one
value a byte.

``dequantize`` is read by transformers alone: weights as they load, not when they are first used. In 5.24 it is the
only way in for packed zero points, since compressed-tensors prepares a model for unpacked ones; it knows but one group,
and rounds no activations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from engine.artifact import LinearSpec, Scheme
from pipeline.quantize.formats import HEAD
from pipeline.quantize.keep import spec_of
from pipeline.quantize.recipe import LAYERS

FORMATS: dict[Scheme, str] = {
    "w8a8": "int-quantized",
    "w4a16": "pack-quantized",
    "w4a8": "pack-quantized",
    "w8a16": "pack-quantized",
    "fp8": "float-quantized",
}
ALL = f"{LAYERS}*"
FOUR_BITS = {"w4a16", "w4a8"}
ACTIVATIONS = {"w8a8": "int", "w4a8": "int", "fp8": "float"}  # rounded to 8 bits, to what


def compressed_tensors_config(specs: list[LinearSpec], modules: Iterable[str]) -> dict[str, Any] | None:
    """``modules``: the linears of the layers. None where nothing is quantised."""
    if all(s.scheme == "bf16" for s in specs):
        return None
    named: dict[int, list[str]] = defaultdict(list)  # by the place of a spec in specs
    ignored = [] if any(s.pattern == HEAD and s.scheme != "bf16" for s in specs) else [HEAD]
    for module in modules:
        spec = spec_of(specs, module)
        if spec is None:
            ignored.append(module)
        elif spec.pattern != ALL:
            named[specs.index(spec)].append(module)
    targets = [(s, [HEAD] if s.pattern == HEAD else named[i]) for i, s in enumerate(specs) if s.scheme != "bf16"]
    targets = [(s, names or ["Linear"]) for s, names in targets if names or s.pattern == ALL]
    targets.sort(key=lambda t: (t[0].pattern != HEAD, t[0].pattern == ALL))  # the first match counts
    formats = {FORMATS[s.scheme] for s, _ in targets}
    told = len(formats) > 1 or any(s.scheme == "w4a8" for s, _ in targets)
    groups = [_group(s, names) | ({"format": FORMATS[s.scheme]} if told else {}) for s, names in targets]
    asymmetric = len(targets) == 1 and targets[0][0].scheme == "w4a16" and not targets[0][0].symmetric
    return {
        "quant_method": "compressed-tensors",
        **({"dequantize": True} if asymmetric else {}),
        "format": "mixed-precision" if len(formats) > 1 else formats.pop(),
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
        "ignore": ignored,
        "kv_cache_scheme": None,
    }


def _group(spec: LinearSpec, targets: list[str]) -> dict[str, Any]:
    four = spec.scheme in FOUR_BITS
    weights = {
        "num_bits": 4 if four else 8,
        "type": "float" if spec.scheme == "fp8" else "int",
        "strategy": "group" if four else "channel",
        "group_size": spec.group_size,
        "symmetric": spec.symmetric,
        "dynamic": False,
    }
    rounded = ACTIVATIONS.get(spec.scheme)
    activations = {"num_bits": 8, "type": rounded, "strategy": "token", "symmetric": True, "dynamic": True}
    return {
        "targets": targets,
        "weights": weights,
        "input_activations": None if rounded is None else activations,
        "output_activations": None,
    }
