"""A git revision as something that can be run: a source tree, an interpreter whose packages are those of its lock file,
and artifacts as its own recipes make them.

    .seatrial/ab/trees/COMMIT      a `git worktree`, kept from run to run
    .seatrial/ab/envs/LOCK         a virtual environment for a lock file that is not this environment's
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from engine.artifact import MANIFEST, sha256_file
from pipeline.errors import SeatrialError
from pipeline.params import PARAMS
from pipeline.processes import die_with_parent
from pipeline.provenance import digest_of, engine_source_digest
from pipeline.stage import say

CACHE = Path(".seatrial/ab")
LOCK = Path("requirements/lock-cpu.txt")
FETCH = ("pipeline/fetch", "pipeline/weights.py", "engine/artifact.py")
QUANTIZE = (*FETCH, "pipeline/quantize")


@dataclass(frozen=True)
class Tree:
    """A source tree and the interpreter that runs it. ``commit`` is None for a folder that is no checkout of ours."""

    root: Path
    python: str
    commit: str | None

    @property
    def params(self) -> dict[str, Any]:
        """The tree's own params.yaml, unchecked: another revision may know other keys.

        Raises:
            SeatrialError: there is none, or it is not YAML.
        """
        path = self.root / PARAMS
        try:
            value = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as e:
            raise SeatrialError(f"{path}: {e}; expected the settings of that revision") from e
        if not isinstance(value, dict):
            raise SeatrialError(f"{path} holds no settings")
        return value


def git(*arguments: str) -> str:
    """
    Raises:
        SeatrialError: git is missing or says no, with what it says.
    """
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    except FileNotFoundError as e:
        raise SeatrialError("git is not installed; an A/B of revisions needs it") from e
    if done.returncode:
        raise SeatrialError(f"git {' '.join(arguments)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def commit_of(revision: str) -> str:
    """The commit that a branch, tag or abbreviated hash names.

    Raises:
        SeatrialError: git knows no such revision.
    """
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except SeatrialError as e:
        raise SeatrialError(
            f"{revision!r} names no commit here; a shallow clone has few (git fetch --unshallow gets the rest)"
        ) from e


def checkout(revision: str, *, cache: Path = CACHE, lock: Path = LOCK) -> Tree:
    """The tree of a revision, made if it is not there yet.

    Raises:
        SeatrialError: no such revision, or no environment for its lock file.
    """
    commit = commit_of(revision)
    root = (cache / "trees" / commit[:16]).absolute()
    if not _is_at(root, commit):
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        git("worktree", "prune")
        git("worktree", "add", "--force", "--detach", str(root), commit)
    return Tree(root, interpreter(root, cache=cache, lock=lock), commit)


def _is_at(root: Path, commit: str) -> bool:
    """Whether a whole and unchanged checkout of the commit is there (artifacts made in it are ignored files)."""
    if not (root / ".git").exists():
        return False
    try:
        at, changed = git("-C", str(root), "rev-parse", "HEAD"), git("-C", str(root), "status", "--porcelain")
    except SeatrialError:
        return False
    return at == commit and not changed


def interpreter(root: Path, *, cache: Path = CACHE, lock: Path = LOCK) -> str:
    """A Python whose packages are those of the tree's lock file: this one where the lock is the same, else that of a
    virtual environment made for it.

    Raises:
        SeatrialError: the tree has no such lock file, or its environment cannot be made.
    """
    wanted = root / lock
    if not wanted.is_file():
        raise SeatrialError(f"{wanted} not found: that revision does not say what it runs on; another --lock?")
    if lock.is_file() and sha256_file(lock) == sha256_file(wanted):
        return sys.executable
    folder = (cache / "envs" / sha256_file(wanted)[:16]).absolute()
    python, stamp = folder / "bin" / "python", folder / ".complete"
    if stamp.is_file() and python.is_file():
        return str(python)
    say(f"{root.name}: its {lock} is not this environment's; making {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise SeatrialError(
            f"the packages of {wanted} cannot be installed, so that revision cannot be measured here:\n{last}\n"
            "give pip an index or a wheel folder that has them (PIP_INDEX_URL, PIP_FIND_LINKS) and run again"
        )
    stamp.touch()
    return str(python)


def recipe_digest(root: Path, tier: str | None, params: dict[str, Any]) -> str:
    """Of what decides the bytes of ``artifacts/base`` (``tier`` None) or of a tier's artifact: code and parameters."""
    parts: list[Any] = [params.get("model")]
    if tier is not None:
        parts.append((params.get("quantization") or {}).get(tier))
    for name in FETCH if tier is None else QUANTIZE:
        path = root / name
        if path.is_dir():
            parts.append(engine_source_digest(path))
            parts.append([[p.name, sha256_file(p)] for p in sorted(path.rglob("*")) if p.suffix in {".txt", ".jsonl"}])
        else:
            parts.append(sha256_file(path) if path.is_file() else None)
    return digest_of(parts)


def artifact_of(tree: Tree, tier: str, here: dict[str, Any]) -> Path:
    """The tier's artifact as the tree's recipes make it: this project's own where the recipe is the same, else built
    in the tree (once).

    Args:
        here: this project's params.yaml.

    Raises:
        SeatrialError: the tier is not described there, this project's is not built, or building failed.
    """
    theirs = tree.params
    if tier not in (theirs.get("quantization") or {}):
        raise SeatrialError(
            f"{tree.root / PARAMS} describes no tier {tier!r}; choose one that both sides have (--tier)"
        )
    own = Path("artifacts")
    if recipe_digest(tree.root, tier, theirs) == recipe_digest(Path(), tier, here):
        return built(own / tier)
    final = tree.root / "artifacts" / tier
    if (final / MANIFEST).is_file():
        return final
    base = tree.root / "artifacts" / "base"
    if not base.exists():
        if recipe_digest(tree.root, None, theirs) == recipe_digest(Path(), None, here):
            base.parent.mkdir(parents=True, exist_ok=True)
            base.symlink_to(built(own / "base").absolute())
        else:
            _stage_in(tree, "pipeline.fetch")
    _stage_in(tree, "pipeline.quantize", "--tier", tier)
    return built(final)


def built(artifact: Path) -> Path:
    """
    Raises:
        SeatrialError: the artifact is not there.
    """
    if not (artifact / MANIFEST).is_file():
        raise SeatrialError(f"{artifact} is not built; run `dvc repro quantize@{artifact.name}` first")
    return artifact


def _stage_in(tree: Tree, *module: str) -> None:
    say(f"{tree.root.name}: {' '.join(module)}")
    done = subprocess.run(
        [tree.python, "-m", *module], cwd=tree.root, env={**os.environ, "PYTHONPATH": str(tree.root)},
        preexec_fn=die_with_parent,
    )  # fmt: skip
    if done.returncode:
        raise SeatrialError(f"{' '.join(module)} of {tree.root.name} ended with exit code {done.returncode}; see above")
