"""What a model directory is.

An artifact is a Hugging Face style directory (``config.json``, ``*.safetensors``, tokenizer files,
``generation_config.json``) plus ``seatrial.json``, the manifest defined here. The manifest decides the arithmetic:
which linear layers are stored in which scheme. Tensors of quantised linears follow the compressed-tensors layout:

``w8a8``   ``X.weight`` int8 [out, in], ``X.weight_scale`` float32 [out, 1]; activations int8 per token, dynamic
``w4a16``  ``X.weight_packed`` int32 [out, in/8] (nibble k of word j is column 8j+k, lowest bits first, value + 8),
           ``X.weight_scale`` bfloat16 [out, in/group], for asymmetric ``X.weight_zero_point`` int32
           [out/8, in/group] (nibble k of word j is row 8j+k, value + 8), ``X.weight_shape`` int64 [2]
``w4a8``   the tensors of ``w4a16``; activations int8 per token, dynamic
``w8a16``  ``X.weight_packed`` int32 [out, in/4] (byte k of word j is column 4j+k, lowest bits first, value + 128),
           ``X.weight_scale`` bfloat16 [out, 1], ``X.weight_shape`` int64 [2]
``fp8``    ``X.weight`` float8_e4m3fn [out, in], ``X.weight_scale`` float32 [out, 1]; activations e4m3 per
           token, dynamic
``bf16``   ``X.weight`` bfloat16 [out, in]
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MANIFEST = "seatrial.json"
Scheme = Literal["bf16", "w8a8", "w4a16", "w4a8", "w8a16", "fp8"]
GROUPED: frozenset[Scheme] = frozenset({"w4a16", "w4a8"})  # stored as packed 4-bit groups
WORD_VALUES: dict[Scheme, int] = {"w4a16": 8, "w4a8": 8, "w8a16": 4}  # weights in an int32 word, where they are packed


class ArtifactError(Exception):
    """A model directory that cannot be used: says what was found, what was expected, what to do."""


class Named(BaseModel):
    """A readable name and the sha256 of what it names."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")


class FileEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    bytes: int
    sha256: str


class LinearSpec(BaseModel):
    """How the linears whose module name matches ``pattern`` (fnmatch) are stored. The first match counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    pattern: str
    scheme: Scheme
    group_size: int | None = None
    symmetric: bool = True


class Manifest(BaseModel):
    """``seatrial.json``. Holds no time and no path: the same inputs give the same bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    name: str = Field(description="the tier, for instance int4-g64")
    source: Named = Field(description="the model it was made from: readable revision and digest of its files")
    recipe: str
    parameters: dict[str, Any] = {}
    calibration: Named | None = None
    linears: list[LinearSpec] = Field(description="linears that match no pattern are bf16")
    weight_bytes: int = Field(description="bytes of all tensors")
    files: dict[str, FileEntry]
    report: dict[str, Any] = Field({}, description="what the recipe measured, for instance error per layer")

    @property
    def digest(self) -> str:
        """sha256 over the names and digests of the files: the identity of what is served."""
        lines = [f"{name} {entry.sha256}\n" for name, entry in sorted(self.files.items())]
        spec = json.dumps([s.model_dump() for s in self.linears], sort_keys=True)
        return hashlib.sha256(("".join(lines) + spec).encode()).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def list_files(directory: Path) -> dict[str, FileEntry]:
    """Sizes and digests of every file below ``directory`` but the manifest, by relative POSIX name."""
    found = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {
        p.relative_to(directory).as_posix(): FileEntry(bytes=p.stat().st_size, sha256=sha256_file(p)) for p in found
    }


def read_manifest(directory: Path) -> Manifest:
    """The manifest of ``directory``.

    Raises:
        ArtifactError: no such directory, no manifest, or one that does not parse.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise ArtifactError(
            f"{directory} is not a directory; expected an artifact such as artifacts/int8 (run `dvc repro`)"
        )
    if not path.is_file():
        raise ArtifactError(
            f"{directory} has no {MANIFEST}; expected a directory that `seatrial fetch` or `seatrial quantize` wrote"
        )
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as e:
        raise ArtifactError(f"{path} is not a manifest this version reads: {e}") from e


def write_manifest(directory: Path, manifest: Manifest) -> None:
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def verify(directory: Path) -> Manifest:
    """Reads the manifest and checks that every file has the recorded size and digest (reads all bytes).

    Raises:
        ArtifactError: a file is missing, extra or changed.
    """
    manifest = read_manifest(directory)
    found = list_files(directory)
    for name in sorted(manifest.files.keys() | found.keys()):
        want, have = manifest.files.get(name), found.get(name)
        if want != have:
            raise ArtifactError(
                f"{directory / name}: found {have or 'no file'}, the manifest says {want or 'no such file'}; "
                "build the artifact again"
            )
    return manifest
