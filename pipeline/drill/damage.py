"""Artifacts with a fault and a manifest that is true of them: what a broken recipe would build, and no digest shows."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine.artifact import list_files, read_manifest, write_manifest
from pipeline.errors import SeatrialError

WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer_config.json"
Damage = Callable[[Path], None]


def damaged(artifact: Path, into: Path, damage: Damage) -> Path:
    """A copy of the artifact in ``into``, damaged, under the old name and a new digest."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(artifact.resolve(), into)
    damage(into)
    write_manifest(into, read_manifest(into).model_copy(update={"files": list_files(into)}))
    return into


def scale_of_one_layer(folder: Path, factor: float = 16.0) -> None:
    """Multiplies one float32 weight scale of a middle layer, in place.

    Raises:
        SeatrialError: the artifact has no such tensor: its scheme is another.
    """
    path = folder / WEIGHTS
    with path.open("r+b") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        tensors = json.loads(f.read(length))
        names = sorted(n for n, t in tensors.items() if n.endswith("down_proj.weight_scale") and t["dtype"] == "F32")
        if not names:
            raise SeatrialError(f"{folder} has no float32 weight scale; drill on an int8 artifact")
        begin, end = tensors[names[len(names) // 2]]["data_offsets"]
        f.seek(8 + length + begin)
        scales = np.frombuffer(f.read(end - begin), dtype="<f4") * np.float32(factor)
        f.seek(8 + length + begin)
        f.write(scales.astype("<f4").tobytes())


def doubled_bos(folder: Path) -> None:
    """The chat template writes the first token of the text twice."""
    _template(folder, lambda settings: f"{settings['bos_token']}{settings['chat_template']}")


def wrong_template(folder: Path) -> None:
    """The chat template of another family."""
    text = "{% for m in messages %}{{ '[' + m['role'] | upper + '] ' + m['content'] + '\n' }}{% endfor %}[ASSISTANT]"
    _template(folder, lambda settings: text)


def _template(folder: Path, change: Callable[[dict[str, Any]], str]) -> None:
    path = folder / TOKENIZER
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["chat_template"] = change(settings)
    path.write_text(json.dumps(settings, indent=2), encoding="utf-8")
