"""Faults of an artifact's files: whoever reads it must refuse it before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from engine.artifact import ArtifactError, Manifest, Named, list_files, verify, write_manifest
from pipeline.drill.fault import Fault, Seen

CONTENT = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(4096), "tokenizer.json": b"{}"}


def written(root: Path) -> Path:
    """A few bytes in the layout of an artifact, with a manifest that is true of them."""
    folder = root / "artifact"
    folder.mkdir()
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    source = Named(name="drill", digest="0" * 64)
    manifest = Manifest(
        name="drill", source=source, recipe="bf16", linears=[], weight_bytes=4096, files=list_files(folder)
    )
    write_manifest(folder, manifest)
    return folder


def by_verify(plant: Callable[[Path], None], words: str) -> Callable[[Path], Seen]:
    """Caught if the artifact is refused; named if the refusal names the file."""

    def run(root: Path) -> Seen:
        folder = written(root)
        verify(folder)
        plant(folder)
        try:
            verify(folder)
        except ArtifactError as e:
            return Seen(True, words in str(e), "artifact digest", str(e).replace(f"{folder}/", ""))
        return Seen(False, False, "artifact digest", "accepted")

    return run


def _flip(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


def _torn(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _extra(folder: Path) -> None:
    (folder / "adapter.safetensors").write_bytes(b"1")


def _claims(folder: Path) -> None:
    path = folder / "seatrial.json"
    value = json.loads(path.read_text())
    del value["source"]
    path.write_text(json.dumps(value))


FAULTS = [
    Fault("flipped-bit", "artifact", "one bit of the weights", by_verify(_flip, "model.safetensors: found")),
    Fault("torn-file", "artifact", "weights that end early", by_verify(_torn, "model.safetensors: found")),
    Fault("extra-file", "artifact", "a file that the manifest does not know", by_verify(_extra, "adapter.safetensors")),
    Fault("no-provenance", "artifact", "a manifest without the model's source", by_verify(_claims, "source")),
]
