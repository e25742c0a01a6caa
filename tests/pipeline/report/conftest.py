"""One synthetic run for the whole folder: it is only read; a test that changes files makes a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.params import Params
from tests.pipeline.report import synthetic


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Params]:
    root = tmp_path_factory.mktemp("run")
    return root, synthetic.make(root)


@pytest.fixture
def run_copy(whole_run: tuple[Path, Params], tmp_path: Path) -> tuple[Path, Params]:
    root = tmp_path / "run"
    shutil.copytree(whole_run[0], root)
    return root, whole_run[1]
