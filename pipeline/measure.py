"""The memory ledger held against a booted engine (``seatrial plan --measure``).

``engine.measure`` does the measuring, in a process of its own; how is said there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.config import EngineConfig
from engine.ledger import Ledger
from pipeline.errors import SeatrialError
from pipeline.processes import die_with_parent

LIMIT_S = 1800
PARTS = {
    "weights_bytes": "weights",
    "activation_bytes": "activations of the largest step",
    "kv_pool_bytes": "KV pool",
    "total_bytes": "total",
}


class LargestStep(BaseModel):
    """What was really run."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    tokens: int
    requests: int


class Measured(BaseModel):
    """The part of the answer that is compared."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    measured: dict[str, int]
    largest_step: LargestStep


def measure_directory(directory: Path, config: EngineConfig) -> Measured:
    """Boots an engine on an artifact, fills its KV pool and runs its largest steps; takes seconds for a small model.

    Raises:
        SeatrialError: the engine refuses the artifact, or the machine does not let memory be measured.
    """
    command = [sys.executable, "-m", "engine.measure", "--artifact", str(directory)]
    command += ["--config-json", config.model_dump_json()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, preexec_fn=die_with_parent)
    except subprocess.TimeoutExpired as e:
        raise SeatrialError(f"measuring {directory} took more than {LIMIT_S} s; plan a smaller KV pool") from e
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        answer = json.loads(last)
        if "error" in answer:
            raise SeatrialError(f"{directory} cannot be measured: {answer['error']}")
        return Measured.model_validate(answer)
    except (ValueError, ValidationError) as e:
        tail = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise SeatrialError(f"measuring {directory} failed (exit code {done.returncode}):\n{tail}") from e


def off_percent(planned: int, measured: int) -> float:
    """How far the measured bytes are above the planned ones."""
    return (measured - planned) / planned * 100


def compared(ledger: Ledger, found: Measured) -> list[tuple[str, ...]]:
    """Lines of a table: part, planned, measured, difference; and the step that was run."""
    rows: list[tuple[str, ...]] = [("", "planned", "measured", "off by")]
    for key, name in PARTS.items():
        planned, measured = getattr(ledger, key), found.measured[key]
        rows.append((name, f"{planned:,}", f"{measured:,}", f"{off_percent(planned, measured):+.2f} %"))
    step = found.largest_step
    return [*rows, ("largest step run", "", f"{step.tokens:,} tokens, {step.requests:,} requests", "")]
