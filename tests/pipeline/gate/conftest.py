"""A clean made-up run as the working directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.pipeline.gate.factory import make_run


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once; copy it before changing anything."""
    root = tmp_path_factory.mktemp("clean") / "run"
    root.mkdir()
    make_run(root)
    return root


@pytest.fixture
def run(clean_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "run"
    shutil.copytree(clean_run, root)
    monkeypatch.chdir(root)
    return root
