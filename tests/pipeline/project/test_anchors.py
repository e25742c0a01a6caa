"""Errors point into the README, at anchors that are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import SeatrialError
from pipeline.params import load_params
from pipeline.project.anchors import ANCHORS, anchor_of
from tests.test_layout import MODULES

ROOT = Path(__file__).resolve().parents[3]


def test_every_anchor_is_in_the_readme_and_every_module_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    headings = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}
    ids = re.findall(r'<a id="([^"]+)">', text)
    assert len(ids) == len(set(ids))
    assert set(ANCHORS.values()) - headings - set(ids) == set()
    assert ANCHORS.keys() - MODULES.keys() == set()


def test_the_innermost_module_that_has_one_decides() -> None:
    from pipeline.gate.policy import read_policy

    with pytest.raises(SeatrialError) as caught:
        read_policy({"policy": "x", "policies": {}}, ["bf16"])
    assert anchor_of(caught.value) == "README.md#policy"
    with pytest.raises(SeatrialError) as caught:
        load_params(Path("nowhere"))
    assert anchor_of(caught.value) is None


@pytest.mark.parametrize(
    ("command", "anchor"),
    [
        (["pipeline.evaluation.check", "--folder", "nowhere"], "evalset"),
        (["pipeline.checks.rotation", "--week", "x"], "pull-requests"),
    ],
)
def test_a_command_says_it_with_the_error(command: list[str], anchor: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert done.stderr.rstrip().endswith(f"(more on this: README.md#{anchor})")
