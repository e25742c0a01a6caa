"""Runs model-written code in a process that can do no harm, and says whether it passed its tests.

What it may use: ``cpu_s`` CPU seconds, three times that and a little more of wall time, ``LIMITS`` of memory, disk and
processes, Python's own library. No network, no file of this machine, no privilege. See ``pipeline.evaluation.jail``
for how. It is a wall against accidents and against code that tries the usual ways out, not against a kernel exploit.

Where the machine refuses such isolation (no Linux, user namespaces turned off, as some containers and distributions
do) the outcome is ``not_measurable``; the code is not run.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

JAIL = Path(__file__).with_name("jail.py")
LIMITS = {"memory_bytes": 256 << 20, "disk_bytes": 4 << 20, "file_bytes": 1 << 20, "processes": 6}
# As isolated as -I, but -I would ignore the seed that makes the order of a set the same in every run.
COMMAND = [sys.executable, "-s", "-P", "-S", "-B", "-X", "utf8", str(JAIL)]
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_MAX_OUTPUT = 1 << 16
_WALL_FACTOR, _WALL_SLACK_S, _START_S = 3.0, 5.0, 30.0

Outcome = Literal["passed", "failed", "not_measurable"]


@dataclass(frozen=True)
class Result:
    """``reason`` is None only for a pass."""

    outcome: Outcome
    reason: str | None = None


def run(program: str, entry_point: str, tests: str, *, cpu_s: float = 5.0) -> Result:
    """Executes ``program``, then ``tests`` in the same namespace. Safe to call from several threads.

    Never raises for anything the program does.
    """
    if not sys.platform.startswith("linux"):
        return Result("not_measurable", f"isolation needs Linux, this is {sys.platform}")
    secret = secrets.token_hex(16)
    wall_s = cpu_s * _WALL_FACTOR + _WALL_SLACK_S
    with tempfile.TemporaryDirectory(prefix="seatrial-sandbox-") as folder:
        job = {
            "program": program, "entry_point": entry_point, "tests": tests, "secret": secret, "folder": folder,
            "cpu_s": cpu_s, "wall_s": wall_s, "uid": 0x70000000 + secrets.randbelow(1 << 24), **LIMITS,
        }  # fmt: skip
        out, err = _communicate(json.dumps(job) + "\n", wall_s + _START_S)
    return _judge(_events(out), err, secret, cpu_s, wall_s)


def _communicate(job: str, timeout_s: float) -> tuple[str, str]:
    """Starts the launcher and reads all it says. Its input stays open until it ends: a sign that we are alive."""
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd="/",
        start_new_session=True,
    )  # fmt: skip
    with process, suppress(BrokenPipeError):
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            with suppress(BrokenPipeError):  # it ended at once; what it said tells why
                process.stdin.write(job.encode())
                process.stdin.flush()
            with suppress(subprocess.TimeoutExpired):  # the guard has a deadline of its own, and says so
                process.wait(timeout_s)
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                process.stdin.close()  # pid 1 of the namespace ends on this, and with it everything in there
        out, err = process.stdout.read(_MAX_OUTPUT), process.stderr.read(_MAX_OUTPUT)
    return out.decode(errors="replace"), err.decode(errors="replace")


def _events(out: str) -> list[dict[str, Any]]:
    found = []
    for line in out.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


_KINDS = {
    "memory": "needed more than {mib} MiB of memory",
    "syntax": "is not Python: {what}",
    "program": "the program raised {what}",
    "missing": "does not define {what}",
    "assert": "a test failed: {what}",
    "tests": "a test raised {what}",
}


def _judge(events: list[dict[str, Any]], err: str, secret: str, cpu_s: float, wall_s: float) -> Result:
    by = {str(e.get("event")): e for e in reversed(events)}  # the first of each kind counts
    if "unavailable" in by:
        return Result("not_measurable", f"no isolation: {by['unavailable']['reason']}")
    if "started" not in by:
        return Result("not_measurable", f"the sandbox did not start: {err.strip()[-300:] or 'it said nothing'}")
    if "failed" in by:
        template = _KINDS.get(str(by["failed"].get("kind")), "failed")
        return Result("failed", template.format(what=by["failed"].get("what"), mib=LIMITS["memory_bytes"] >> 20))
    if by.get("passed", {}).get("secret") == secret:
        return Result("passed")
    ended = by.get("ended", {})
    if ended.get("how") == "exit":
        return Result("failed", f"ended before the tests were done (exit code {ended.get('code')})")
    if ended.get("how") == "signal":
        name = str(ended.get("signal"))
        why = f"used more than {cpu_s:g} s of CPU" if name in {"SIGXCPU", "SIGKILL"} else f"was ended by {name}"
        return Result("failed", why)
    return Result("failed", f"was not done after {wall_s:g} s")


@cache
def unavailable() -> str | None:
    """Why code cannot be judged on this machine; None where it can. Asks once per process."""
    probe = (
        "import bisect, collections, datetime, decimal, functools, hashlib, heapq, itertools, json, math, random, re\n"
        "def f():\n    return 1\n"
    )
    result = run(probe, "f", "assert f() == 1")
    return None if result.outcome == "passed" else result.reason
