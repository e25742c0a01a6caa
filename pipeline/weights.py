"""Reading and writing safetensors directories tensor by tensor, so that memory is bounded by a shard."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import SeatrialError

if TYPE_CHECKING:
    from torch import Tensor

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 512 * 1024**2


class TensorFiles:
    """The tensors of a directory by name; each is read from disk when it is asked for.

    Raises:
        SeatrialError: no safetensors files, a file that is not safetensors, or an index that names a missing file.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file_of = {name: directory / file for name, file in _index(directory).items()}

    def names(self) -> list[str]:
        return list(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def shape(self, name: str) -> tuple[int, ...]:
        with _open(self._path(name)) as f:
            return tuple(f.get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """The tensor as stored.

        Raises:
            SeatrialError: there is no such tensor.
        """
        with _open(self._path(name)) as f:
            return f.get_tensor(name)

    def _path(self, name: str) -> Path:
        if name not in self._file_of:
            raise SeatrialError(f"{self.directory} has no tensor {name}; it has {len(self._file_of)} others")
        return self._file_of[name]


def _open(path: Path):  # type: ignore[no-untyped-def]
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as e:
        raise SeatrialError(f"{path} is not a complete safetensors file ({e}); fetch the model again") from e


def _index(directory: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    index = directory / INDEX
    if index.is_file():
        try:
            found: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, TypeError) as e:
            raise SeatrialError(f"{index} is not a safetensors index ({e}); fetch the model again") from e
        missing = sorted({file for file in found.values() if not (directory / file).is_file()})
        if missing:
            raise SeatrialError(f"{index} names {', '.join(missing)}, which is missing; fetch the model again")
        return found
    if (directory / SINGLE).is_file():
        with _open(directory / SINGLE) as f:
            return dict.fromkeys(f.keys(), SINGLE)
    others = sorted(p.name for p in directory.glob("*.bin"))
    hint = f"; {others[0]} is a pickle, which is not read: save the model as safetensors first" if others else ""
    raise SeatrialError(f"{directory} has neither {SINGLE} nor {INDEX}{hint}")


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """One safetensors file.

    Raises:
        OSError: it cannot be written. The library reports that as an error of its own, with the number in its text.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as e:
        found = re.search(r"os error (\d+)", str(e))
        if found is None:
            raise
        number = int(found.group(1))
        raise OSError(number, os.strerror(number), str(path)) from e


def write_tensors(directory: Path, tensors: Iterable[tuple[str, Tensor]], shard_bytes: int = SHARD_BYTES) -> int:
    """Writes ``tensors`` in the order given, a new file whenever one would pass ``shard_bytes``; returns their bytes.

    One file is called ``model.safetensors``; several are numbered and listed in an index, as Hugging Face does.
    """
    shards: list[list[str]] = []
    total = 0
    for shard in _shards(tensors, shard_bytes):
        part = directory / f"part-{len(shards)}"
        save_tensors(shard, part, {"format": "pt"})
        part.chmod(0o644)  # safetensors makes it private to its owner
        shards.append(list(shard))
        total += sum(map(_bytes, shard.values()))
    if len(shards) == 1:
        (directory / "part-0").rename(directory / SINGLE)
        return total
    weight_map: dict[str, str] = {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        (directory / f"part-{i}").rename(directory / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return total


def _bytes(tensor: Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _shards(tensors: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if shard and size + _bytes(tensor) > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor.contiguous()
        size += _bytes(tensor)
    yield shard
