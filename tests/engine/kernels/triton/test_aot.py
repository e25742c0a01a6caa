"""Every kernel compiles for GPUs that are not there, fits them, and sums the same way in tiles of every size.

The compiler runs in a process of its own: in this one, Triton's functions are the interpreter's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
WAYS = {"attend", "reduce", "queries", "write_kv", "rope", "rms_norm", "gated_mul", "quantise_rows"}
DRAWS = {"best_of_part", "best_of_parts", "limits", "race_of_part", "race_of_parts", "follow"}
PRODUCTS = {"dense", "int8", "int4", "int4a8", "fp8"}


def run_aot(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "engine.kernels.triton.aot", *arguments]
    return subprocess.run(command, cwd=ROOT, env=own | environment, capture_output=True, text=True, timeout=1500)


@pytest.mark.timeout(1600)
def test_all_kernels_compile_and_fit(tmp_path: Path) -> None:
    out = tmp_path / "aot.json"
    done = run_aot("--once", "--out", str(out))
    assert done.returncode == 0, done.stderr
    kernels: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["kernels"]
    by_target: dict[str, set[str]] = defaultdict(set)
    instructions: dict[tuple[str, str], list[list[str]]] = defaultdict(list)
    for made in kernels:
        by_target[made["target"]].add(made["kernel"])
        assert made["fits"], made
        if made["kernel"] in PRODUCTS | {"attend"}:
            instructions[made["target"], made["kernel"]].append(made["instructions"])
    assert by_target.keys() == {"sm_80", "sm_90", "gfx942"}
    for names in by_target.values():
        assert names == WAYS | PRODUCTS | DRAWS
    for (target, name), found in instructions.items():
        assert len(found) == (4 if name == "attend" else 3), "one for each class of tiles or kind of cache"
        assert len(found[0]) == 1, f"{name} on {target} takes {found[0]}"
        assert all(other == found[0] for other in found), f"{name} on {target} sums in several ways: {found}"
        assert ("wgmma" in found[0][0]) == (target == "sm_90")
        assert ("e4m3" in found[0][0]) == (target == "sm_90" and name == "fp8")


def test_the_interpreters_kernels_are_not_compiled() -> None:
    done = run_aot("--once", TRITON_INTERPRET="1")
    assert done.returncode == 2
    assert "TRITON_INTERPRET is set" in done.stderr
