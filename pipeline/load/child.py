"""Runs Locust headless as children that cannot outlive this process, and watches both them and the server.

One child drives the load, or a master and as many workers as are asked for. Workers may also be on other machines: then
the master waits for them, and only it is a child of ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import loadtests
from engine.ports import free_port
from loadtests.turns import Place, turn_lengths
from loadtests.workload import Profile
from pipeline.errors import SeatrialError
from pipeline.processes import tail
from pipeline.targets.keys import NO_KEY, Key

LOCUSTFILE = Path(loadtests.__file__).with_name("locustfile.py")
_LOCUST = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE)]
_LOOPBACK = "127.0.0.1"
_END_S = 10.0
_START_S = 60.0  # for imports and the first request, beyond the profile's own time
_AWAIT_S = 600.0  # for somebody to start workers elsewhere
_LOOK_EVERY_S = 0.25
_TABLES = "\nType  "  # the first words of what Locust prints when it ends


def longest_s(profile: Profile, *, awaits: bool = False, turn_s: float | None = None) -> float:
    """How long a run may take at most: each stage with its full drain, a slow first request, workers that come late.
    With turns each of them is drained, and another client has as many.
    """
    start_s = _START_S + (_AWAIT_S if awaits else 0.0) + profile.timeout_s
    if turn_s is None:
        return profile.planned_s + len(profile.stages) * (profile.drain_s + 10) + start_s
    turns = sum(len(turn_lengths(s.warmup_s, s.duration_s, turn_s)) for s in profile.stages)
    return 2 * (profile.planned_s + turns * (profile.drain_s + 10)) + start_s


def host_and_port(given: str) -> tuple[str, int]:
    """``HOST:PORT``, the host an address of this machine (0.0.0.0: all of them).

    Raises:
        SeatrialError: it is not of that form.
    """
    host, _, port = given.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SeatrialError(f"--await-workers is {given!r}; expected HOST:PORT, such as 0.0.0.0:5557")
    return host.removeprefix("[").removesuffix("]"), int(port)


def commands(
    run: list[str], workers: int, await_at: tuple[str, int] | None, secret: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """The child that drives or leads, and the workers beside it.

    Args:
        run: what Locust is told about the run itself.
        await_at: where the master listens for workers that somebody else starts. None: they are ours, on this machine.
        secret: how each of them finds the server's key.
    """
    ours = [*secret, "--end-with-pid", str(os.getpid())]
    lead = [*_LOCUST, "--headless", "--only-summary", "--exit-code-on-error", "0", *run, *ours]
    if await_at is None and workers == 1:
        return lead, []
    host, port = await_at or (_LOOPBACK, free_port(_LOOPBACK))
    wait_s = _AWAIT_S if await_at else _START_S
    lead += ["--master", "--master-bind-host", host, "--master-bind-port", str(port)]
    lead += ["--expect-workers", str(workers), "--expect-workers-max-wait", f"{wait_s:.0f}"]
    worker = [*_LOCUST, "--worker", "--master-host", host, "--master-port", str(port), *ours]
    return lead, [] if await_at else [worker] * workers


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
    await_at: tuple[str, int] | None = None,
    key: Key = NO_KEY,
    place: Place | None = None,
    check: Callable[[], None] = lambda: None,
    tick: Callable[[float], None] = lambda elapsed_s: None,
) -> None:
    """Leaves ``records.parquet`` and ``run.json`` in ``out``; what Locust prints goes to ``log`` (workers: beside it).

    Args:
        workers: processes that send; from two on there is a master besides.
        await_at: address at which a master waits for that many workers of other machines instead of starting them.
        key: the server's; Locust is told the name of its variable and inherits the value.
        place: where it is given its turns, if it takes turns with another client; goes to Locust and is closed here.
        check: called a few times a second; raises when the run has become pointless (the server died).
        tick: called with the seconds since the start.

    Raises:
        SeatrialError: Locust failed, or did not end in the time that the profile allows; with the end of its log.
    """
    told = [
        "--host", base_url, "--profile", str(profile_file), "--seed", str(seed), "--out", str(out), "--model", model,
    ]  # fmt: skip
    secret = [] if key.variable is None else ["--api-key-env", key.variable]
    command, helpers = commands(told, workers, await_at, secret)
    if place is not None:
        command += ["--turn-s", str(place.turn_s), "--turns-fd", str(place.wire.fileno())]
    turn_s = None if place is None else place.turn_s
    most_s = longest_s(profile, awaits=await_at is not None, turn_s=turn_s)
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    child = _start(command, log, [] if place is None else [place.wire.fileno()])
    if place is not None:
        place.close()
    others = [_start(line, log.with_suffix(f".worker{k}.log")) for k, line in enumerate(helpers)]
    try:
        while child.poll() is None:
            check()
            elapsed = time.monotonic() - began
            if elapsed > most_s:
                raise SeatrialError(
                    f"Locust did not end within {most_s:.0f} s, the most that profile {profile.name} can "
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


def _start(command: list[str], log: Path, keep: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOCUST_")}
    with log.open("wb") as f:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, env=env, pass_fds=keep
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Workers end by themselves when their master has; one that does not is ended."""
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
