"""Runs Locust headless as children that cannot outlive this process, and watches both them and the server.

One child drives the load, or a master and as many workers as are asked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import loadtests
from engine.ports import free_port
from loadtests.workload import Profile
from pipeline.errors import SeatrialError
from pipeline.processes import tail
from pipeline.targets.keys import NO_KEY, Key

LOCUSTFILE = Path(loadtests.__file__).with_name("locustfile.py")
_LOCUST = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE)]
_LOOPBACK = "127.0.0.1"
_END_S = 10.0
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
    workers: int = 1,
    key: Key = NO_KEY,
    check: Callable[[], None] = lambda: None,
    tick: Callable[[float], None] = lambda elapsed_s: None,
) -> None:
    """Leaves ``records.parquet`` and ``run.json`` in ``out``; what Locust prints goes to ``log`` (workers: beside it).

    Args:
        workers: processes that send; from two on there is a master besides.
        key: the server's; Locust is told the name of its variable and inherits the value.
        check: called a few times a second; raises when the run has become pointless (the server died).
        tick: called with the seconds since the start.

    Raises:
        SeatrialError: Locust failed, or did not end in the time that the profile allows; with the end of its log.
    """
    command = [
        *_LOCUST, "--headless", "--only-summary", "--exit-code-on-error", "0",
        "--host", base_url, "--profile", str(profile_file), "--seed", str(seed), "--out", str(out),
        "--model", model, "--end-with-pid", str(os.getpid()),
    ]  # fmt: skip
    secret = [] if key.variable is None else ["--api-key-env", key.variable]
    command += secret
    helpers: list[list[str]] = []
    if workers > 1:
        port = str(free_port(_LOOPBACK))
        command += ["--master", "--master-bind-host", _LOOPBACK, "--master-bind-port", port]
        command += ["--expect-workers", str(workers), "--expect-workers-max-wait", f"{_START_S:.0f}"]
        helper = [*_LOCUST, "--worker", "--master-host", _LOOPBACK, "--master-port", port, *secret]
        helpers = [[*helper, "--end-with-pid", str(os.getpid())]] * workers
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    child = _start(command, log)
    others = [_start(line, log.with_suffix(f".worker{k}.log")) for k, line in enumerate(helpers)]
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
        for p in (child, *others):
            if p.poll() is None and (p is child or child.poll() != 0):
                p.kill()
            _end(p)
    check()
    if child.returncode:
        raise SeatrialError(
            f"Locust ended with exit code {child.returncode}; the end of {log}:\n{tail(log, before=_TABLES)}"
        )


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOCUST_")}
    with log.open("wb") as f:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, env=env)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Workers end by themselves when their master has; one that does not is ended."""
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
