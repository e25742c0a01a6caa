"""A made-up trial that may ship, in a git repository of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.artifact import Manifest, Named, list_files, write_manifest
from pipeline.provenance import quantisation_identity
from pipeline.release.flow import Done, promote, propose
from tests.pipeline.gate.conftest import clean_run  # noqa: F401 (a fixture)
from tests.pipeline.gate.factory import Row, header, items, records, write_items, write_load
from tests.pipeline.gate.helpers import judged, slow

TIER = "int8"
Git = Callable[..., str]


def write_artifact(content: bytes = b"weights") -> dict[str, str]:
    """``artifacts/int8`` with its manifest; the identity that results of it must carry."""
    folder = Path("artifacts") / TIER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    manifest = Manifest(
        name=TIER, source=Named(name="m", digest="0" * 64), recipe=TIER, linears=[], weight_bytes=len(content),
        files=list_files(folder),
    )  # fmt: skip
    write_manifest(folder, manifest)
    return quantisation_identity(manifest).model_dump()


def write_candidate(root: Path, content: bytes = b"weights", flips: tuple[int, int] = (0, 0), **load: object) -> None:
    """Results of ``artifacts/int8`` and the verdict on them."""
    identity = {"quantisation": write_artifact(content)}
    rows: list[Row] = records(1, **load)  # type: ignore[arg-type]
    write_items(root, TIER, items(TIER, flips=flips), header=header(TIER, "core-v1") | identity)
    write_load(root, TIER, rows, header=header(TIER, "ci-load") | identity)
    assert judged()["verdict"] == "ship"


def call_git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def release(name: str) -> Done:
    """Proposes, commits and promotes."""
    path = propose(name, artifact="model")
    call_git("add", str(path))
    call_git("commit", "-qm", f"Propose {name}")
    return promote(name, artifact="model")


@pytest.fixture
def git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Git:
    """Git that knows no settings of this machine."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "no-such-file"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return call_git


@pytest.fixture(scope="module")
def made(clean_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:  # noqa: F811
    """Made once: ``clean``, a project that may ship; ``two``, with 1.0.0 and 1.1.0 in it, which has another artifact,
    is slower, and lost three answers and won one.
    """
    root = tmp_path_factory.mktemp("releases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", str(root / "no-such-file"))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        shutil.copytree(clean_run, root / "two")
        patch.chdir(root / "two")
        call_git("init", "-q", "-b", "main")
        call_git("config", "user.name", "Release Team")
        call_git("config", "user.email", "team@example.org")
        Path(".gitignore").write_text("/results/\n/reports/\n/artifacts/\n/.seatrial/\n")
        write_candidate(Path())
        call_git("add", ".")
        call_git("commit", "-qm", "A project")
        shutil.copytree(root / "two", root / "clean")
        release("1.0.0")
        write_candidate(Path(), b"other weights", flips=(3, 1), change=slow(1.2, "ttft"))
        release("1.1.0")
    return {name: root / name for name in ("clean", "two")}


@pytest.fixture
def project(made: dict[str, Path], git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made["clean"], tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def two(made: dict[str, Path], git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made["two"], tmp_path / "two")
    monkeypatch.chdir(tmp_path / "two")
    return tmp_path / "two"
