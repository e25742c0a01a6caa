"""What a stage of dvc.yaml names as code is what it imports: a change of either would else bring back old results."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_layout import MODULES, imports

ROOT = Path(__file__).resolve().parents[1]
STAGES: dict[str, dict[str, Any]] = {
    name: stage.get("do", stage) for name, stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].items()
}
# No stage need name these, nor what only they import: what it leaves does not come from them.
AROUND = {
    "engine.kernels.errors": "words of an error",
    "pipeline.errors": "words of an error",
    "pipeline.files": "writes under a temporary name, then renames",
    "pipeline.params": "reads settings, which a stage names by key",
    "pipeline.processes": "ends children with their parent",
    "pipeline.project.anchors": "words of an error",
    "pipeline.stage": "progress, exit codes, the lock of measuring stages",
}
# Named, but what they import besides is not: identities take the engine's settings only for their type.
LAST = {"pipeline.provenance"}


def entry(stage: str) -> str:
    """The module that a stage's command runs."""
    words = shlex.split(STAGES[stage]["cmd"])
    assert words[:2] == ["python", "-m"], f"{stage} runs {words}; expected python -m MODULE"
    return f"{words[2]}.__main__" if f"{words[2]}.__main__" in MODULES else words[2]


def reached(start: str) -> dict[str, str]:
    """Every module of ours that ``start`` can come to import -> the one by which it was come to."""
    found: dict[str, str] = {}
    waiting = [(start, start)]
    while waiting:
        name, by = waiting.pop()
        if name in found or name in AROUND or name not in MODULES:
            continue
        found[name] = by
        if name not in LAST:
            waiting += [(other, name) for other in imports(name)]
    return found


def named(path: str, deps: list[str]) -> bool:
    return any(path == dep or path.startswith(f"{dep}/") for dep in deps)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_names_every_module_that_it_imports(stage: str) -> None:
    deps = STAGES[stage]["deps"]
    missing = {
        path: by
        for name, by in reached(entry(stage)).items()
        if not named(path := MODULES[name].relative_to(ROOT).as_posix(), deps)
    }
    assert missing == {}, f"{stage} imports files that its deps do not name (file: by which module)"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_names_no_module_twice_and_none_that_it_does_not_import(stage: str) -> None:
    deps: list[str] = STAGES[stage]["deps"]
    assert [d for d in deps if not (ROOT / d).exists() and d.split("/")[0] in ("engine", "loadtests", "pipeline")] == []
    modules = [d for d in deps if d.endswith(".py")]
    paths = {MODULES[name].relative_to(ROOT).as_posix() for name in reached(entry(stage))}
    assert [m for m in modules if m not in paths] == []
    assert [m for m in modules if named(m, [d for d in deps if d != m])] == []


def test_a_module_that_is_left_out_would_be_seen() -> None:
    """The measure itself: known ways through lazy imports and packages."""
    assert "pipeline.load.summary" in reached(entry("gate"))
    assert "pipeline.provenance" in reached(entry("fetch"))
    assert "loadtests.quantiles" in reached(entry("scorecard"))
    assert not named("pipeline/load/summary.py", ["pipeline/load/sum", "pipeline/gate"])
