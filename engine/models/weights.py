"""Tensors of an artifact by name, read one at a time from its safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from engine.artifact import ArtifactError


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
                self._files[name] = opened

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str) -> Tensor:
        """A tensor of its own: one that looked into the mapped file would keep all of the file in memory.

        Raises:
            ArtifactError: no such tensor.
        """
        if name not in self._files:
            raise ArtifactError(
                f"{self.directory} has no tensor {name!r} (it has {len(self._files)}, for instance "
                f"{', '.join(sorted(self._files)[:3])}); its manifest or config.json asks for it: build it again"
            )
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.clone()
