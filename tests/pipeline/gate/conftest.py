"""A clean made-up run as the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.gate.factory import make_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
