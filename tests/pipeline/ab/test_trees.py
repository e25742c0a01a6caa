"""Revisions as source trees: checked out once, with this environment where the lock is the same, and artifacts reused
where the recipe is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.ab import trees
from pipeline.ab.sides import Project, side_of
from pipeline.ab.trees import artifact_of, checkout, interpreter
from pipeline.errors import SeatrialError
from pipeline.provenance import engine_identity


def git(*arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def history(project: Project) -> Project:
    """Two revisions: in the second the engine and its settings differ."""
    Path(".gitignore").write_text("artifacts/\n.seatrial/\n")
    Path("engine").mkdir()
    Path("engine/core.py").write_text("STEP = 1\n")
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "first")
    git("tag", "first")
    Path("engine/core.py").write_text("STEP = 2\n")
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("max_num_seqs: 16", "max_num_seqs: 12"))
    git("add", "-A")
    git("commit", "-qm", "second")
    return project


def test_a_revision_brings_its_own_engine_and_settings(history: Project) -> None:
    old = side_of("git:first", history)
    assert side_of("first", history) == old.__class__(**{**old.__dict__, "given": "first"})
    new = side_of("HEAD", history)
    assert (old.settings["max_num_seqs"], new.settings["max_num_seqs"]) == (16, 12)
    assert old.tree is not None
    assert old.tree.python == sys.executable
    assert (old.tree.root / "engine/core.py").read_text() == "STEP = 1\n"
    assert old.identities[1] == engine_identity(old.settings, root=old.tree.root / "engine")
    assert old.identities[1].digest != new.identities[1].digest
    assert old.identities[2] == new.identities[2]  # the same artifact: the recipe did not change
    assert old.artifact == Path("artifacts/int8").absolute()


def test_a_checkout_is_kept_and_mended(history: Project) -> None:
    tree = checkout("first")
    stamp = (tree.root / "engine/core.py").stat().st_mtime_ns
    assert checkout("first").root == tree.root
    assert (tree.root / "engine/core.py").stat().st_mtime_ns == stamp
    (tree.root / "engine/core.py").write_text("STEP = 3\n")
    assert (checkout("first").root / "engine/core.py").read_text() == "STEP = 1\n"


def test_another_recipe_is_built_in_the_tree(history: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = checkout("first")
    ran: list[tuple[str, ...]] = []

    def stage_in(tree: trees.Tree, *module: str) -> None:
        ran.append(module)
        final = tree.root / "artifacts" / ("base" if "fetch" in module[0] else module[-1])
        final.mkdir(parents=True)
        (final / "seatrial.json").write_text("{}")

    monkeypatch.setattr(trees, "_stage_in", stage_in)
    here = dict(history.raw)
    here["quantization"] = here["quantization"] | {"int8": {"recipe": "int8", "smoothing": 0.5}}
    Path("artifacts/base").mkdir()
    Path("artifacts/base/seatrial.json").write_text("{}")
    assert artifact_of(tree, "int8", here) == tree.root / "artifacts/int8"
    assert ran == [("pipeline.quantize", "--tier", "int8")]  # the base is made the same way in both
    assert artifact_of(tree, "int8", here) == tree.root / "artifacts/int8"
    assert len(ran) == 1
    with pytest.raises(SeatrialError, match="describes no tier 'absent'"):
        artifact_of(tree, "absent", here)


def test_another_lock_needs_an_environment_and_says_so_where_there_is_none(
    history: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = checkout("first")
    lock = Path("requirements/lock-cpu.txt")
    (tree.root / lock).write_text("seatrial-that-is-nowhere==9\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SeatrialError, match="cannot be installed, so that revision cannot be measured here"):
        interpreter(tree.root)
    assert not list(Path(".seatrial/ab/envs").glob("*/bin"))
    (tree.root / lock).write_text("# nothing\n")
    python = interpreter(tree.root)
    assert python != sys.executable
    assert interpreter(tree.root) == python
    (tree.root / lock).unlink()
    with pytest.raises(SeatrialError, match="does not say what it runs on"):
        interpreter(tree.root)
