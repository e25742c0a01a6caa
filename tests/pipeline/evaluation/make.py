"""Items for tests of the stage, and a project with an evalset and an artifact on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from engine.artifact import Manifest, Named, list_files, write_manifest
from pipeline.evaluation.items import Item, content_digest

COMMON = {"origin": "written", "week": "2026-W01"}


def chat_item(name: str = "extract.one", question: str = "Which city?", **changes: Any) -> Item:
    given: dict[str, Any] = {
        "id": name, "scenario": "extract", "kind": "extract", "source": name, "reference": "Paris", "max_tokens": 8,
        "messages": [{"role": "user", "content": question}], "grader": {"name": "extract.match"},
    }  # fmt: skip
    return Item.model_validate({**COMMON, **given, **changes})


def choice_item(name: str = "choice.one", **changes: Any) -> Item:
    given: dict[str, Any] = {
        "id": name, "scenario": "choice", "kind": "choice", "source": name, "prompt": f"{name} says the way is",
        "choices": [" left here", " right here", " up there"], "reference": 1,
        "grader": {"name": "choice.loglikelihood"},
    }  # fmt: skip
    return Item.model_validate({**COMMON, **given, **changes})


def code_item(name: str = "code.one", question: str = "Write f.", **changes: Any) -> Item:
    given: dict[str, Any] = {
        "id": name, "scenario": "code", "kind": "code", "source": name, "max_tokens": 64,
        "messages": [{"role": "user", "content": question}],
        "grader": {"name": "code.unit_tests", "params": {"entry_point": "f", "tests": "assert f(2) == 4"}},
    }  # fmt: skip
    return Item.model_validate({**COMMON, **given, **changes})


def some_items(n: int = 12) -> list[Item]:
    """Half extraction, half choices, one pinned each."""
    pinned = {"origin": "pinned", "watches_for": "losing its way"}
    return [
        *[chat_item(f"extract.{i}", f"Question {i}?", **(pinned if i == 0 else {})) for i in range(n // 2)],
        *[choice_item(f"choice.{i}", **(pinned if i == 0 else {})) for i in range(n - n // 2)],
    ]


def write_evalset(root: Path, items: list[Item], name: str = "core") -> Path:
    folder = root / "evalsets" / name
    (folder / "items").mkdir(parents=True, exist_ok=True)
    for scenario in {i.scenario for i in items}:
        lines = [i.model_dump_json() for i in items if i.scenario == scenario]
        (folder / "items" / f"{scenario}.jsonl").write_text("\n".join(lines) + "\n")
    digest = content_digest(folder)
    first = {"version": "1", "week": "2026-W01", "what": "first", "content_digest": digest}
    manifest = {
        "name": name, "version": "1", "description": "for tests", "scenarios": {}, "content_digest": digest,
        "changelog": [first],
    }  # fmt: skip
    (folder / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    return folder


def write_artifact(root: Path, tier: str, content: str = "weights") -> Path:
    folder = root / "artifacts" / tier
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(content)
    write_manifest(folder, Manifest(
        name=tier, source=Named(name="tiny@1", digest="a" * 64), recipe=tier, linears=[], weight_bytes=len(content),
        files=list_files(folder),
    ))  # fmt: skip
    return folder


def write_params(root: Path, **evaluation: Any) -> None:
    params = {
        "model": {"source": "path:x"}, "tiers": ["bf16", "int8"],
        "quantization": {"bf16": {"recipe": "bf16"}, "int8": {"recipe": "int8"}},
        "engine": {}, "evaluation": {"concurrency": 4, **evaluation}, "load": {}, "gate": {"policy": "p"},
        "release": {"candidate": "int8", "reference": "bf16"},
    }  # fmt: skip
    (root / "params.yaml").write_text(yaml.safe_dump(params))


def read_results(root: Path, tier: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    folder = root / "results" / tier / "eval"
    rows = [json.loads(x) for x in (folder / "items.jsonl").read_text().split("\n") if x]
    return json.loads((folder / "eval.json").read_text()), rows
