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


@pytest.fixture(scope="session")
def built(whole_run: tuple[Path, Params], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic run with its reports written; only read."""
    from pipeline.report.build import build

    root = tmp_path_factory.mktemp("built") / "run"
    shutil.copytree(whole_run[0], root)
    build(root, whole_run[1])
    return root


@pytest.fixture(scope="session")
def page(built: Path) -> str:
    return (built / "reports/scorecard.html").read_text(encoding="utf-8")
