"""Making artifacts from the tiny models, and reading them back as transformers would compute them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from engine.artifact import verify
from pipeline.quantize.calibrate import calibration_sequences
from pipeline.quantize.formats import dequantise
from pipeline.quantize.keep import spec_of
from pipeline.quantize.run import quantise
from pipeline.stage import Stage
from pipeline.weights import TensorFiles

INT4: dict[str, Any] = {"recipe": "int4", "group_size": 32, "symmetric": False}
SMOOTH: dict[str, Any] = {"recipe": "int8", "smoothing": 0.5, "calibration_tokens": 768}
AWQ: dict[str, Any] = {"recipe": "awq-int4", "group_size": 32, "symmetric": False, "calibration_tokens": 768, "grid": 4}
GPTQ: dict[str, Any] = {"recipe": "gptq-int4", "group_size": 32, "symmetric": False, "calibration_tokens": 768}
SILENT = Stage("quantize", None)


def make(entry: dict[str, Any], base: Path, root: Path, tier: str = "t") -> Path:
    quantise(tier, entry, base, root / "artifacts" / tier, root / "work", SILENT)
    return root / "artifacts" / tier


def bits(artifact: Path) -> dict[str, torch.Tensor]:
    files = TensorFiles(artifact)
    return {n: files.read(n) for n in files.names()}


def same(a: Path, b: Path) -> bool:
    return (verify(a).files, verify(a).report) == (verify(b).files, verify(b).report)


def loaded(artifact: Path) -> torch.nn.Module:
    """transformers' float32 model with the artifact's weights as they read back."""
    manifest = verify(artifact)
    config = json.loads((artifact / "config.json").read_text())
    config.pop("quantization_config", None)
    plain = artifact.parent / f"{artifact.name}-plain"
    plain.mkdir(exist_ok=True)
    (plain / "config.json").write_text(json.dumps(config))
    tensors, weights = bits(artifact), {}
    for name in sorted({n.rpartition(".")[0] for n in tensors}):
        own = {n.rpartition(".")[2]: t for n, t in tensors.items() if n.rpartition(".")[0] == name}
        spec = spec_of(manifest.linears, name) if name.endswith("_proj") else None
        weights[f"{name}.weight"] = dequantise(own, spec)
        if "bias" in own:
            weights[f"{name}.bias"] = own["bias"].float()
    save_file({k: v.contiguous() for k, v in weights.items()}, plain / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    assert isinstance(model, torch.nn.Module)
    return model


def eight_bit_activations(model: torch.nn.Module) -> None:
    """Every linear of the layers sees its input as the engine's w8a8 does: one symmetric scale a token."""

    def rounded(_module: Any, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        step = inputs[0].abs().amax(-1, keepdim=True) / 127
        return (inputs[0] / step).round() * step

    for module in model.model.layers.modules():  # type: ignore[union-attr,operator]
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)


def layer_errors(artifact: Path, base: Path, ids: torch.Tensor) -> list[float]:
    """Relative squared error of what leaves each layer, when the base's own activations enter it."""
    found = []
    reference, model = loaded(base), loaded(artifact)
    with torch.no_grad():
        entered: list[torch.Tensor] = []
        left: list[torch.Tensor] = []

        def note(module: object, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            entered.append(args[0])
            left.append(output)

        for layer in reference.model.layers:  # type: ignore[union-attr]
            layer.register_forward_hook(note)
        reference(ids[None])
        for i, layer in enumerate(model.model.layers):  # type: ignore[union-attr]
            layer.register_forward_pre_hook(lambda m, args, i=i: (entered[i], *args[1:]))
            layer.register_forward_hook(lambda m, a, o: found.append(o))
        model(ids[None])
    return [
        float((f - w).square().sum() / (w - e).square().sum()) for f, w, e in zip(found, left, entered, strict=True)
    ]


def check_awq_loses_less_than_rounding(base: Path, root: Path) -> dict[str, Any]:
    """In every layer, and by its own report, which is returned."""
    awq, plain = make(AWQ, base, root, "awq"), make(INT4, base, root, "int4")
    ids = calibration_sequences("v1", base, 768, 512)[0]
    errors = zip(layer_errors(awq, base, ids), layer_errors(plain, base, ids), strict=True)
    for layer, (of_awq, of_rounding) in enumerate(errors):
        assert 1e-5 < of_awq < of_rounding < 0.5, layer
    report = verify(awq).report
    assert report["output_error_awq_mean"] < report["output_error_rounded_mean"]
    return report
