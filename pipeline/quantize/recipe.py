"""What a recipe is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from engine.artifact import LinearSpec, Manifest, Named
from pipeline.errors import SeatrialError
from pipeline.fetch.architectures import expected_shapes
from pipeline.quantize.formats import check_linear
from pipeline.quantize.keep import Kept, spec_of
from pipeline.stage import Stage
from pipeline.weights import TensorFiles

LAYERS = "model.layers."


class RecipeParams(BaseModel):
    """Base of the parameters of a recipe: strict types, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class QuantisedParams(RecipeParams):
    """Of every recipe but the reference."""

    head: Literal["bf16", "int8"] = Field(
        "bf16", description="int8: the output head in 8 bits, apart from the embedding (pipeline.quantize.head)"
    )
    keep: dict[str, Kept] = Field(
        {},
        description="linears that stay wider, by patterns of their names (pipeline.quantize.keep): bf16, or int8 for "
        "8-bit weights with activations as they are",
    )


class GroupParams(QuantisedParams):
    """Of the 4-bit recipes."""

    group_size: int = Field(64, ge=8, le=1024, multiple_of=8, description="inputs that share a scale")
    symmetric: bool = Field(False, description="false: a zero point a group beside the scale")
    activations: Literal["bf16", "int8"] = Field(
        "bf16", description="what the weights meet: activations as they are (w4a16) or of 8 bits per token (w4a8)"
    )


P = TypeVar("P", bound=RecipeParams)


def linears_of(config: dict[str, Any], where: str) -> dict[str, tuple[int, ...]]:
    """Module name -> [out, in] of the linears of the decoder layers."""
    shapes = expected_shapes(config, where)
    return {
        name.removesuffix(".weight"): shape
        for name, shape in shapes.items()
        if name.startswith(LAYERS) and len(shape) == 2
    }


@dataclass
class Job(Generic[P]):
    """One run of a recipe. ``work`` is a folder for resumable state that belongs to exactly these inputs."""

    source: Path
    manifest: Manifest
    config: dict[str, Any]
    params: P
    work: Path
    stage: Stage
    specs: list[LinearSpec]
    report: dict[str, Any] = field(default_factory=dict)
    head_peaks: Tensor | None = None  # [hidden], largest magnitudes that the head reads, of a recipe that has seen them

    def __post_init__(self) -> None:
        self.files = TensorFiles(self.source)

    def names(self) -> list[str]:
        """All tensors in the order of the architecture."""
        return list(expected_shapes(self.config, str(self.source)))

    def linears(self) -> dict[str, tuple[int, ...]]:
        """Module name -> [out, in] of the linears of the decoder layers."""
        return linears_of(self.config, str(self.source))

    def spec_of(self, module: str) -> LinearSpec | None:
        """How a linear is stored; None: in bf16."""
        return spec_of(self.specs, module)

    def check_linears(self) -> None:
        """
        Raises:
            SeatrialError: a linear that the form it should be stored in does not fit.
        """
        for module, shape in self.linears().items():
            check_linear(module, shape, self.spec_of(module))

    def read(self, name: str) -> Tensor:
        """
        Raises:
            SeatrialError: the tensor is missing or holds NaN or infinity.
        """
        tensor = self.files.read(name)
        if not bool(tensor.isfinite().all()):
            raise SeatrialError(f"{self.source}: {name} holds NaN or infinity; it cannot be quantised. Fetch it again")
        return tensor


@dataclass(frozen=True)
class Recipe(Generic[P]):
    """``tensors`` yields all tensors of the artifact and may add to ``job.report``; ``check`` runs before anything."""

    name: str
    params: type[P]
    linears: Callable[[P], list[LinearSpec]]
    tensors: Callable[[Job[P]], Iterator[tuple[str, Tensor]]]
    check: Callable[[Job[P]], None] = lambda job: None
    calibration: Callable[[P], Named | None] = lambda params: None
