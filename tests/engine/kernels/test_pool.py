"""The thread pool of the C kernels: callers from several threads at once, and a forked child."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from engine.kernels.cpu import CpuKernels
from engine.kernels.errors import UnavailableError
from engine.kernels.reference import ReferenceKernels
from tests.tiny import make_tiny_artifact

FORKED = """
import os, torch
from engine.kernels.cpu import CpuKernels
kernels = CpuKernels(torch.float32, threads=3)
w = kernels.pack_linear({"weight": torch.randn(640, 64)}, None, None)
x = torch.randn(50, 64)
before = kernels.linear(x, w)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(kernels.linear(x, w), before) else 9)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
raise SystemExit(status if torch.equal(kernels.linear(x, w), before) else 8)
"""

# The next CPUs after the first, which is left for the caller; in turn where there are fewer CPUs than helpers.
PINNED = """
import os, sys
from pathlib import Path
from engine.config import EngineConfig
from engine.runner import ModelRunner

def helpers():
    tasks = [int(p.name) for p in Path("/proc/self/task").iterdir()]
    named = [t for t in tasks if Path(f"/proc/self/task/{t}/comm").read_text().strip() == "seatrial-pool"]
    return [os.sched_getaffinity(t) for t in named]

artifact, allowed = Path(sys.argv[1]), sorted(os.sched_getaffinity(0))
config = EngineConfig(max_model_len=64, threads=len(allowed) + 1, pin_threads=True)
ModelRunner(artifact, config)
found = helpers()
assert len(found) == len(allowed), found
assert all(len(cpus) == 1 for cpus in found), found
turns = [allowed[(i + 1) % len(allowed)] for i in range(len(found))]
assert sorted(min(cpus) for cpus in found) == sorted(turns), found
assert sorted(os.sched_getaffinity(0)) == allowed
ModelRunner(artifact, config.model_copy(update={"pin_threads": False}))
assert all(sorted(cpus) == allowed for cpus in helpers()), helpers()
"""


def test_callers_from_several_threads_do_not_disturb_each_other() -> None:
    kernels = CpuKernels(torch.float32, threads=3)
    g = torch.Generator().manual_seed(0)
    w = kernels.pack_linear({"weight": torch.randn(640, 64, generator=g)}, None, None)
    inputs = [torch.randn(rows, 64, generator=g) for rows in (1, 9, 50, 130)]
    expected = [kernels.linear(x, w) for x in inputs]

    def work(i: int) -> bool:
        return all(torch.equal(kernels.linear(inputs[i], w), expected[i]) for _ in range(100))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [True] * 4


def test_more_helpers_than_work_and_than_cores() -> None:
    alone, many = CpuKernels(torch.float32, threads=1), CpuKernels(torch.float32, threads=16)
    x = torch.randn(100, 2 * 48, generator=torch.Generator().manual_seed(0))
    for rows in (1, 8, 9, 100):
        assert torch.equal(many.gated_mul(x[:rows], "silu"), alone.gated_mul(x[:rows], "silu"))


def test_a_forked_child_starts_helpers_of_its_own() -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", FORKED], cwd=root, timeout=240, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_pinned_helpers_have_a_cpu_each(tmp_path: Path) -> None:
    """In a process of its own: here, the libraries of other tests have helpers, too."""
    make_tiny_artifact(tmp_path)
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", PINNED, str(tmp_path)]
    done = subprocess.run(command, cwd=root, timeout=240, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_reference_refuses_to_pin() -> None:
    kernels = ReferenceKernels(torch.float32, threads=1)
    kernels.pin_threads(False)
    with pytest.raises(UnavailableError, match="set it to false"):
        kernels.pin_threads(True)
