"""Linear layers from the artifact's tensors, those that read the same input fused into one product."""

from __future__ import annotations

from fnmatch import fnmatchcase

import torch
from torch import Tensor

from engine.artifact import ArtifactError, LinearSpec, Manifest
from engine.kernels.interface import Kernels, PackedLinear
from engine.models.weights import TensorStore

SUFFIXES = {
    "bf16": ["weight"],
    "w8a8": ["weight", "weight_scale"],
    "w4a16": ["weight_packed", "weight_scale", "weight_shape"],
}


def spec_of(manifest: Manifest, module: str) -> LinearSpec | None:
    """The first spec whose pattern matches ``module``; None for bf16."""
    found = next((s for s in manifest.linears if fnmatchcase(module, s.pattern)), None)
    return None if found is None or found.scheme == "bf16" else found


class Linear:
    """y = x W^T + b for one or several stored modules, their outputs side by side.

    Modules of one scheme become one product; where schemes differ within a group (a recipe that spares some layers)
    there is one product for each run of equal ones, and the results are joined.
    """

    def __init__(self, kernels: Kernels, parts: list[PackedLinear]) -> None:
        self.kernels, self.parts = kernels, parts

    @classmethod
    def load(
        cls, kernels: Kernels, store: TensorStore, manifest: Manifest, modules: list[str], bias: bool = False
    ) -> Linear:
        """Reads, joins and packs ``modules``, all of them with or all without a bias.

        Raises:
            ArtifactError: a tensor is missing or does not have the form its scheme asks for, or there is a bias
                that config.json does not have.
        """
        runs: list[tuple[LinearSpec | None, list[str]]] = []
        for module in modules:
            spec = spec_of(manifest, module)
            if runs and _same(runs[-1][0], spec):
                runs[-1][1].append(module)
            else:
                runs.append((spec, [module]))
        return cls(kernels, [part for spec, names in runs for part in _pack(kernels, store, spec, names, bias)])

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N]."""
        if len(self.parts) == 1:
            return self.kernels.linear(x, self.parts[0])
        return torch.cat([self.kernels.linear(x, part) for part in self.parts], dim=1)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def _same(a: LinearSpec | None, b: LinearSpec | None) -> bool:
    """Stored alike, whatever pattern said so."""
    if a is None or b is None:
        return a is b
    return a.model_copy(update={"pattern": ""}) == b.model_copy(update={"pattern": ""})


def _pack(
    kernels: Kernels, store: TensorStore, spec: LinearSpec | None, modules: list[str], bias: bool
) -> list[PackedLinear]:
    read = [_read(store, spec, module) for module in modules]
    biases = [_bias(store, module, bias) for module in modules]
    rows = [_out_features(tensors) for tensors in read]
    if len(read) > 1 and (spec is None or spec.scheme != "w4a16" or all(n % 8 == 0 for n in rows)):
        joined = {key: torch.cat([t[key] for t in read]) for key in read[0] if key != "weight_shape"}
        if "weight_shape" in read[0]:
            joined["weight_shape"] = torch.stack([torch.tensor(sum(rows)), read[0]["weight_shape"][1]])
        own = [b for b in biases if b is not None]
        read, biases, modules = [joined], [torch.cat(own) if own else None], [" + ".join(modules)]
    packed = []
    for module, tensors, its_bias in zip(modules, read, biases, strict=True):
        try:
            packed.append(kernels.pack_linear(tensors, spec, its_bias))
        except ArtifactError as e:
            raise ArtifactError(f"{store.directory}: {module}: {e}") from e
    return packed


def _read(store: TensorStore, spec: LinearSpec | None, module: str) -> dict[str, Tensor]:
    suffixes = list(SUFFIXES["bf16" if spec is None else spec.scheme])
    if spec is not None and spec.scheme == "w4a16" and not spec.symmetric:
        suffixes.append("weight_zero_point")
    return {suffix: store.get(f"{module}.{suffix}") for suffix in suffixes}


def _bias(store: TensorStore, module: str, wanted: bool) -> Tensor | None:
    name = f"{module}.bias"
    if wanted:
        return store.get(name).float()
    if name in store:
        raise ArtifactError(f"{store.directory} has {name}, but config.json describes {module} without a bias")
    return None


def _out_features(tensors: dict[str, Tensor]) -> int:
    return int((tensors["weight"] if "weight" in tensors else tensors["weight_packed"]).shape[0])
