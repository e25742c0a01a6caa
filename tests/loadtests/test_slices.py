"""The load client asks for short slices, and takes nothing else from anybody."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.slices import _CALL, SLICE_NS

ROOT = Path(__file__).resolve().parents[2]
FROM = (6, 12)
ASK = "import os; from loadtests.slices import ask_for_short_slices as ask; "


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def _told(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", ASK + code], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in _CALL, reason="of Linux on these machines"
)
def test_niceness_and_other_policies_are_kept() -> None:
    assert _told("nice = os.nice(3); ask(); print(os.nice(0) - nice)") == "0"
    batch = "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); "
    assert _told(batch + "print(ask(), os.sched_getscheduler(0) == os.SCHED_BATCH)") == "False True"


@pytest.mark.skipif(platform.system() != "Linux" or _kernel() < FROM, reason="from Linux 6.12 on")
def test_the_kernel_has_taken_it() -> None:
    if not os.access("/proc/self/sched", os.R_OK) or "se.slice" not in Path("/proc/self/sched").read_text():
        pytest.skip("this kernel does not tell its slices")
    told = _told("ask(); print(next(x for x in open('/proc/self/sched') if 'se.slice' in x).split(':')[1])")
    assert int(told) == SLICE_NS
