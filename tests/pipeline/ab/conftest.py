"""A project of its own: params.yaml, a lock file and a tiny artifact."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.ab.sides import Project
from pipeline.params import load_params
from tests.tiny import make_tiny_artifact

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/lock-cpu.txt").write_text("numpy==1\n")
    make_tiny_artifact(tmp_path / "artifacts" / "int8", "int8")
    return Project.here(load_params(), None)
