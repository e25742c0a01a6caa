"""Which build of torch `make` installs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


@pytest.mark.parametrize(
    ("params", "options", "build"),
    [
        ("engine:\n  isa: auto\n", [], "cpu"),
        ("engine:\n  device: cuda\n", [], "cuda"),
        ("engine: {isa: auto, backend: cuda}\n", [], "cuda"),
        ("engine:\n  # device: cuda\n  isa: auto  # not device: cuda\n", [], "cpu"),
        ("engine:\n  device: cuda\n", ["TORCH=cpu"], "cpu"),
        ("engine: {}\n", ["TORCH=cuda"], "cuda"),
        (None, [], "cpu"),
    ],
)
def test_it_is_the_build_that_the_engine_computes_with(
    tmp_path: Path, params: str | None, options: list[str], build: str
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    if params is not None:
        (tmp_path / "params.yaml").write_text(params)
    command = ["make", "--dry-run", "--no-print-directory", *options, "setup"]
    # As if no make had started these tests.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS")) and k != "TORCH"}
    said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert f"-r requirements/lock-{build}.txt" in said.stdout
    assert said.stderr == ""
