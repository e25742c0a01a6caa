"""Linears that a recipe leaves wider than the rest: ``keep`` of params.yaml, patterns of module names.

    keep: {"model.layers.first.*": bf16, "model.layers.last.*": int8, "*.mlp.down_proj": int8}

``first`` and ``last`` stand for the number of that layer. The first pattern that matches a linear counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal

from engine.artifact import LinearSpec, Scheme
from pipeline.errors import SeatrialError

Kept = Literal["bf16", "int8"]
SCHEMES: dict[Kept, Scheme] = {"bf16": "bf16", "int8": "w8a16"}


def kept_specs(keep: dict[str, Kept], modules: Iterable[str], layers: int) -> list[LinearSpec]:
    """One spec for each entry, to stand before that of the recipe.

    Raises:
        SeatrialError: a pattern that matches none of ``modules``.
    """
    modules = list(modules)
    specs = []
    for pattern, width in keep.items():
        numbers = {"first": "0", "last": str(layers - 1)}
        resolved = ".".join(numbers.get(part, part) for part in pattern.split("."))
        if not any(fnmatchcase(module, resolved) for module in modules):
            raise SeatrialError(
                f"keep names {pattern!r}, which matches none of {len(modules)} linears; they are called like "
                f"{modules[0]} and {modules[-1]}"
            )
        specs.append(LinearSpec(pattern=resolved, scheme=SCHEMES[width]))
    return specs


def spec_of(specs: list[LinearSpec], module: str) -> LinearSpec | None:
    """The first whose pattern matches; None: the linear is stored in bf16."""
    found = next((s for s in specs if fnmatchcase(module, s.pattern)), None)
    return None if found is None or found.scheme == "bf16" else found
