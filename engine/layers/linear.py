"""Linear layers from the artifact's tensors, those that read the same input fused into one product."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from engine.artifact import GROUPED, WORD_VALUES, ArtifactError, LinearSpec, Manifest
from engine.kernels.interface import Activation, Kernels, Operations, PackedLinear
from engine.models.weights import Weights

SUFFIXES = {
    "bf16": ["weight"],
    "w8a8": ["weight", "weight_scale"],
    "w4a16": ["weight_packed", "weight_scale", "weight_shape"],
    "w4a8": ["weight_packed", "weight_scale", "weight_shape"],
    "w8a16": ["weight_packed", "weight_scale", "weight_shape"],
    "fp8": ["weight", "weight_scale"],
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

    def __init__(self, parts: list[PackedLinear]) -> None:
        self.parts = parts

    @classmethod
    def load(
        cls,
        kernels: Kernels,
        store: Weights,
        manifest: Manifest,
        modules: list[str],
        bias: bool = False,
        sizes: list[tuple[int, int]] | None = None,
    ) -> Linear:
        """Reads, joins and packs ``modules``, all of them with or all without a bias.

        ``sizes``: (outputs, inputs) of each; None: what is stored is believed.

        Raises:
            ArtifactError: a tensor is missing or does not have the form its scheme and ``sizes`` ask for, or there is
                a bias that config.json does not have.
        """
        runs: list[tuple[LinearSpec | None, list[_Stored]]] = []
        for i, module in enumerate(modules):
            spec = spec_of(manifest, module)
            read = _read(store, spec, module, bias, sizes[i] if sizes else None)
            if runs and _same(runs[-1][0], spec):
                runs[-1][1].append(read)
            else:
                runs.append((spec, [read]))
        return cls([part for spec, found in runs for part in _pack(kernels, store, spec, found)])

    def __call__(self, ops: Operations, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N]."""
        if len(self.parts) == 1:
            return ops.linear(x, self.parts[0])
        return ops.join([ops.linear(x, part) for part in self.parts])

    def gated(self, ops: Operations, x: Tensor, activation: Activation) -> Tensor:
        """x [T, K] -> [T, N / 2]: the activation of the first half of the outputs times the second half."""
        if len(self.parts) == 1:
            return ops.gated_linear(x, self.parts[0], activation)
        return ops.gated_mul(self(ops, x), activation)


def _same(a: LinearSpec | None, b: LinearSpec | None) -> bool:
    """Stored alike, whatever pattern said so."""
    if a is None or b is None:
        return a is b
    return a.model_copy(update={"pattern": ""}) == b.model_copy(update={"pattern": ""})


@dataclass(frozen=True)
class _Stored:
    module: str
    tensors: dict[str, Tensor]
    bias: Tensor | None
    rows: int


def _pack(kernels: Kernels, store: Weights, spec: LinearSpec | None, found: list[_Stored]) -> list[PackedLinear]:
    if len(found) > 1 and (spec is None or spec.scheme not in GROUPED or all(f.rows % 8 == 0 for f in found)):
        found = [_joined(store, found)]
    packed = []
    for f in found:
        try:
            packed.append(kernels.pack_linear(f.tensors, spec, f.bias))
        except ArtifactError as e:
            raise ArtifactError(f"{store.directory}: {f.module}: {e}") from e
    return packed


def _joined(store: Weights, found: list[_Stored]) -> _Stored:
    """One module with the outputs of all, side by side."""
    name, rows = " + ".join(f.module for f in found), sum(f.rows for f in found)
    joined = {}
    for key in found[0].tensors:
        parts = [f.tensors[key] for f in found]
        if key == "weight_shape":
            joined[key] = torch.stack([torch.tensor(rows), parts[0][1]])
        elif len({(p.dtype, p.shape[1:]) for p in parts}) > 1:
            forms = ", ".join(f"{p.dtype} {list(p.shape)}" for p in parts)
            raise ArtifactError(
                f"{store.directory}: {name}: {key} is {forms}; expected one dtype and number of columns for all"
            )
        else:
            joined[key] = torch.cat(parts)
    own = [f.bias for f in found if f.bias is not None]
    return _Stored(name, joined, torch.cat(own) if own else None, rows)


def _read(store: Weights, spec: LinearSpec | None, module: str, bias: bool, size: tuple[int, int] | None) -> _Stored:
    suffixes = list(SUFFIXES["bf16" if spec is None else spec.scheme])
    if spec is not None and spec.scheme in GROUPED and not spec.symmetric:
        suffixes.append("weight_zero_point")
    tensors = {suffix: store.get(f"{module}.{suffix}") for suffix in suffixes}
    in_a_word = None if spec is None else WORD_VALUES.get(spec.scheme)
    weight = tensors["weight" if in_a_word is None else "weight_packed"]
    stored = tuple(weight.shape) if in_a_word is None else (*weight.shape[:-1], weight.shape[-1] * in_a_word)
    if len(stored) != 2 or (size is not None and stored != size):
        expected = "two dimensions" if size is None else f"[{size[0]}, {size[1]}], as config.json says"
        raise ArtifactError(f"{store.directory}: {module} is stored as {list(stored)}; expected {expected}")
    if in_a_word is not None and tuple(tensors["weight_shape"].tolist()) != stored:
        raise ArtifactError(
            f"{store.directory}: {module}.weight_shape says {tensors['weight_shape'].tolist()}, weight_packed holds "
            f"{list(stored)}; build the artifact again"
        )
    rows = stored[0]
    for suffix, tensor in tensors.items():
        wanted = rows // 8 if suffix == "weight_zero_point" else rows
        if suffix != "weight_shape" and tensor.shape[0] != wanted:
            raise ArtifactError(
                f"{store.directory}: {module}.{suffix} has {tensor.shape[0]} rows; expected {wanted} for {rows} outputs"
            )
    return _Stored(module, tensors, _bias(store, module, rows, bias), rows)


def _bias(store: Weights, module: str, rows: int, wanted: bool) -> Tensor | None:
    name = f"{module}.bias"
    if wanted:
        return store.get(name, rows).float()
    if name in store:
        raise ArtifactError(f"{store.directory} has {name}, but config.json describes {module} without a bias")
    return None
