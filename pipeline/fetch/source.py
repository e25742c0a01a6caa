"""The forms of ``model.source`` as types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import SeatrialError

FORMS = "wheel:NAME==VERSION:PATH, hf:ORG/NAME@REVISION, path:DIR, gguf:FILE"
_WHEEL = re.compile(r"(?P<project>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^:\s]+):(?P<member>.+)")
_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)@(?P<revision>[^\s@]+)")
_QUANT_SUFFIX = re.compile(r"[.-](?:i?q\d\w*|bf16|f16|f32)$", re.IGNORECASE)


@dataclass(frozen=True)
class WheelSource:
    project: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version}"

    @property
    def name(self) -> str:
        return f"{model_name(self.member)} (wheel {self.requirement})"


@dataclass(frozen=True)
class HubSource:
    repo: str
    revision: str

    @property
    def name(self) -> str:
        return f"{self.repo}@{self.revision}"


@dataclass(frozen=True)
class PathSource:
    directory: Path

    @property
    def name(self) -> str:
        return f"{self.directory.resolve().name} (directory)"


@dataclass(frozen=True)
class GgufSource:
    file: Path

    @property
    def name(self) -> str:
        return f"{model_name(self.file.name)} (GGUF file)"


Source = WheelSource | HubSource | PathSource | GgufSource


def model_name(file: str) -> str:
    """``a/SmolLM2-135M-Instruct.Q4_1.gguf`` -> ``smollm2-135m-instruct``."""
    return _QUANT_SUFFIX.sub("", Path(file).name.removesuffix(".gguf")).lower()


def parse_source(text: str) -> Source:
    """
    Raises:
        SeatrialError: not one of the four forms.
    """
    kind, _, rest = text.partition(":")
    if kind == "wheel" and (m := _WHEEL.fullmatch(rest)):
        return WheelSource(**m.groupdict())
    if kind == "hf" and (m := _HUB.fullmatch(rest)):
        return HubSource(**m.groupdict())
    if kind == "path" and rest:
        return PathSource(Path(rest))
    if kind == "gguf" and rest:
        return GgufSource(Path(rest))
    raise SeatrialError(f"model.source is {text!r}; expected one of {FORMS}")
