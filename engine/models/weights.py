"""Tensors of an artifact by name, read one at a time from its safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from engine.artifact import ArtifactError

COMPUTED = ".rotary_emb.inv_freq"  # which old checkpoints store, and config.json gives


class Weights(Protocol):
    """Where a model's tensors come from. ``directory`` is what messages name."""

    directory: Path

    def __contains__(self, name: str) -> bool: ...
    def get(self, name: str, *shape: int) -> Tensor: ...
    def refuse_unread(self) -> None: ...


class TensorStore:
    """Reads lazily: a tensor takes memory only while someone holds it."""

    def __init__(self, directory: Path) -> None:
        """
        Raises:
            ArtifactError: no safetensors file, or one that cannot be read.
        """
        from safetensors import SafetensorError, safe_open

        self.directory = directory
        self._files: dict[str, Any] = {}
        paths = sorted(directory.glob("*.safetensors"))
        if not paths:
            raise ArtifactError(f"{directory} has no *.safetensors file; expected the weights there")
        for path in paths:
            try:
                opened: Any = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as e:
                raise ArtifactError(f"{path} cannot be read as safetensors: {e}; build the artifact again") from e
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                if name in self._files:
                    raise ArtifactError(
                        f"{path} has {name} again, which another file has too; build the artifact again"
                    )
                self._files[name] = opened
        self._unread = set(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str, *shape: int) -> Tensor:
        """A tensor of its own: one that looked into the mapped file would keep all of the file in memory.

        Raises:
            ArtifactError: no such tensor, or, if ``shape`` is given, one of another shape.
        """
        if name not in self._files:
            raise ArtifactError(
                f"{self.directory} has no tensor {name!r} (it has {len(self._files)}, for instance "
                f"{', '.join(sorted(self._files)[:3])}); its manifest or config.json asks for it: build it again"
            )
        tensor: Tensor = self._files[name].get_tensor(name)
        if shape and tuple(tensor.shape) != shape:
            raise ArtifactError(
                f"{self.directory}: {name} has shape {list(tensor.shape)}; config.json says {list(shape)}"
            )
        self._unread.discard(name)
        return tensor.clone()

    def refuse_unread(self) -> None:
        """A tensor that nobody asked for is a part of the model that would silently be left out.

        Raises:
            ArtifactError: names it.
        """
        left = sorted(name for name in self._unread if not name.endswith(COMPUTED))
        if left:
            raise ArtifactError(
                f"{self.directory} has {len(left)} tensors that neither config.json nor the manifest asks for: "
                f"{', '.join(left[:3])}; build the artifact again"
            )
