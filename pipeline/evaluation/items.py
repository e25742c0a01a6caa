"""What a regression set is: a folder of JSONL files with ``manifest.yaml``, and the typed items in it.

evalsets/
  core/manifest.yaml        name, version, composition, changelog
  core/items/*.jsonl        one file a scenario, one a week of production requests
  expectations/core.json    the Great Expectations suite of `core`; a manifest may name another one
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.artifact import Named
from pipeline.errors import SeatrialError

EVALSETS = Path("evalsets")

Kind = Literal["choice", "extract", "code", "math", "instruct", "long_context", "chat"]
Origin = Literal["production", "pinned", "written", "imported"]


_WEEK = re.compile(r"^\d{4}-W(0[1-9]|[1-4]\d|5[0-3])$")


def is_week(text: str) -> bool:
    """Whether it is an ISO week such as 2026-W49."""
    return bool(_WEEK.match(text))


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(_Strict):
    role: Literal["system", "user", "assistant"]
    content: str


class Grader(_Strict):
    """Which grader of ``pipeline.evaluation.graders`` judges an item, and its parameters."""

    name: str
    params: dict[str, Any] = {}


class Item(_Strict):
    """One question. ``prompt`` is raw text (choice: the context that each choice continues), ``messages`` a chat."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    scenario: str
    kind: Kind
    origin: Origin
    week: str = Field(pattern=r"^\d{4}-W\d{2}$", description="ISO week in which it came in")
    source: str = Field(description="items of one source are correlated: the cluster in statistics")
    prompt: str | None = None
    messages: list[Message] | None = None
    choices: list[str] | None = None
    reference: Any = Field(None, description="choice: 0-based index; others as the grader says")
    grader: Grader
    max_tokens: int = Field(0, ge=0, description="0 for choice")
    watches_for: str | None = Field(None, description="pinned cases: the mistake it guards against")


def to_line(item: Item) -> str:
    """One line of JSON: absent fields left out, keys in the order of the type, text as it is read."""
    return json.dumps(item.model_dump(exclude_none=True), ensure_ascii=False) + "\n"


class Rotation(_Strict):
    """How production requests come and go; see ``pipeline.evaluation.rotation``."""

    items_per_week: int = Field(ge=1)
    weeks_kept: int = Field(ge=1, description="a week's items are retired after so many rotations")
    minimum_share: float = Field(gt=0, lt=1, description="of production items, once there has been a rotation")
    stale_after_weeks: int = Field(2, ge=1, description="age of the newest production item that is too old")
    waived_until: str = Field(pattern=r"^\d{4}-W\d{2}$", description="last ISO week without a first rotation")


class Manifest(_Strict):
    """``manifest.yaml``. ``content_digest`` makes any change of content without a new version an error."""

    name: str
    version: str
    description: str
    scenarios: dict[str, dict[str, Any]] = Field(description="scenario: {items: n, pinned: m, kind: ...}")
    content_digest: str
    changelog: list[dict[str, str]]
    suite: str | None = Field(None, description="file below evalsets/expectations/, without .json; null: as `name`")
    rotation: Rotation | None = Field(None, description="null: the set has no production requests by intent")


class Evalset(_Strict):
    manifest: Manifest
    items: list[Item]

    @property
    def identity(self) -> Named:
        """Named by the major version, which is what margins are chosen for; the digest tells every content apart."""
        major = self.manifest.version.partition(".")[0]
        return Named(name=f"{self.manifest.name}-v{major}", digest=self.manifest.content_digest)


def content_digest(folder: Path) -> str:
    """sha256 over the names and bytes of ``items/*.jsonl``."""
    h = hashlib.sha256()
    for path in sorted((folder / "items").glob("*.jsonl")):
        h.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()


def load_evalset(folder: Path) -> Evalset:
    """Reads a regression set.

    Raises:
        SeatrialError: a missing file, or a line that does not parse, named as file:line.
    """
    manifest_path = folder / "manifest.yaml"
    if not manifest_path.is_file():
        raise SeatrialError(f"{manifest_path} not found; an evalset is a folder with manifest.yaml and items/*.jsonl")
    try:
        manifest = Manifest.model_validate(yaml.safe_load(manifest_path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as e:
        raise SeatrialError(f"{manifest_path}: {e}") from e
    items: list[Item] = []
    for path in sorted((folder / "items").glob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                items.append(Item.model_validate_json(line))
            except ValidationError as e:
                first = e.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise SeatrialError(
                    f"{path}:{number}: {where + ': ' if where else ''}{first['msg']}; mend or remove that line"
                ) from e
    if not items:
        raise SeatrialError(f"{folder / 'items'} has no items; expected at least one *.jsonl with one JSON item a line")
    return Evalset(manifest=manifest, items=items)
