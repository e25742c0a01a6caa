"""The simulator as a child process: not in the client's, whose lag would then be both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtests.simulator.scenario import Scenario
from loadtests.simulator.truth import Truth, read_truth


@dataclass(frozen=True)
class Simulated:
    """A running simulator."""

    url: str
    pid: int
    log: Path

    def truth(self) -> list[Truth]:
        """Every chat request that has ended so far, in order of arrival."""
        return read_truth(self.log)


@contextmanager
def simulator(scenario: Scenario, folder: Path) -> Iterator[Simulated]:
    """Plays ``scenario`` while the block runs. ``folder`` gets the scenario and the truth log, readable afterwards too.

    Raises:
        RuntimeError: it did not start; what it wrote is on this process's standard error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given, log = folder / "scenario.json", folder / "truth.jsonl"
    given.write_text(scenario.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", "loadtests.simulator", "--scenario", str(given), "--truth", str(log)]
    with subprocess.Popen([*command, "--end-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise RuntimeError(f"the simulator ended with exit code {child.wait()} before it listened")
            yield Simulated(f"http://127.0.0.1:{json.loads(line)['port']}", child.pid, log)
            child.stdin.close()
            child.wait(60)
        finally:
            child.kill()
