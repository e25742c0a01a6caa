"""Runs Locust headless as a child that cannot outlive this process, and watches both it and the server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import loadtests
from loadtests.workload import Profile
from pipeline.errors import SeatrialError
from pipeline.processes import tail

LOCUSTFILE = Path(loadtests.__file__).with_name("locustfile.py")
_START_S = 60.0  # for imports and the first request, beyond the profile's own time
_LOOK_EVERY_S = 0.25
_TABLES = "\nType  "  # the first words of what Locust prints when it ends


def longest_s(profile: Profile) -> float:
    """How long a run may take at most: each stage with its full drain, and a slow first request."""
    return profile.planned_s + len(profile.stages) * (profile.drain_s + 10) + profile.timeout_s + _START_S


def run_locust(
    profile: Profile,
    profile_file: Path,
    *,
    base_url: str,
    model: str,
    seed: int,
    out: Path,
    log: Path,
    check: Callable[[], None] = lambda: None,
    tick: Callable[[float], None] = lambda elapsed_s: None,
) -> None:
    """Leaves ``records.parquet`` and ``run.json`` in ``out``; what Locust prints goes to ``log``.

    Args:
        check: called a few times a second; raises when the run has become pointless (the server died).
        tick: called with the seconds since the start.

    Raises:
        SeatrialError: Locust failed, or did not end in the time that the profile allows; with the end of its log.
    """
    command = [
        sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary",
        "--exit-code-on-error", "0",
        "--host", base_url, "--profile", str(profile_file), "--seed", str(seed), "--out", str(out),
        "--model", model, "--end-with-pid", str(os.getpid()),
    ]  # fmt: skip
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOCUST_")}
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as f:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, env=env)
    try:
        while child.poll() is None:
            check()
            elapsed = time.monotonic() - began
            if elapsed > longest_s(profile):
                raise SeatrialError(
                    f"Locust did not end within {longest_s(profile):.0f} s, the most that profile {profile.name} can "
                    f"take; the end of {log}:\n{tail(log, before=_TABLES)}"
                )
            tick(elapsed)
            time.sleep(_LOOK_EVERY_S)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
    check()
    if child.returncode:
        raise SeatrialError(
            f"Locust ended with exit code {child.returncode}; the end of {log}:\n{tail(log, before=_TABLES)}"
        )
