"""A soak that drifted, stepped or kept what it was given is red with the reason; what could not be told is said."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from loadtests.records import SCHEMA, ClientHealth
from pipeline.checks.soak import BOOKS, looks_at, read, verdict_of
from pipeline.errors import SeatrialError
from pipeline.load.analysis.findings import Finding, StageWindow, findings

ROOT = Path(__file__).resolve().parents[3]
CLIENT: dict[str, Any] = {"void": False, "void_reason": None, "lag_p99_ms": 1.0, "lag_limit_ms": 15.0}
SERVER = {f"metrics_{when}": {BOOKS: 0.0} for when in ("before", "after")}
TREND = Finding("trend", "s", "TTFT P95", False, "no drift", 0.1, "%", (-1.0, 1.2), 4.0)
STEP = Finding("step", "s", "TTFT P95", False, "no step", 0.2, "%", None, 5.0)
BLOCKS = Finding("blocks", None, None, False, "0 KV blocks in use when idle after the load, 0 before it")
MEMORY = Finding("memory", "s", None, False, "resident memory +1.0 MiB")
CALM = (TREND, STEP, BLOCKS, MEMORY)


def _load(*found: Finding, **changes: Any) -> dict[str, Any]:
    value = {"client": CLIENT, "findings": [f.json() for f in found], "profile": "soak", "duration_s": 14400.0,
             "started_at": "2026-12-01T01:00:00Z"}  # fmt: skip
    return value | changes


def _with(changed: Finding) -> list[Finding]:
    return [changed if (f.kind, f.stage) == (changed.kind, changed.stage) else f for f in CALM]


@pytest.mark.parametrize(
    ("changed", "verdict", "words"),
    [
        (TREND, "ship", "all of 4 looks found the server as it was"),
        (replace(TREND, found=True, size=30.0, interval=(18.0, 42.0), words="+30 %"), "hold", "of s: drift: +30 %"),
        (replace(TREND, found=True, size=12.0, interval=(6.0, 18.0), words="+12 %"), "undecided", "drift: +12 %"),
        (replace(TREND, found=True, size=3.0, interval=(1.0, 5.0), words="+3 %"), "ship", "as it was"),
        (replace(TREND, found=True, size=-40.0, interval=(-50.0, -30.0), words="-40 %"), "ship", "as it was"),
        (replace(TREND, found=True, size=90.0, interval=(40.0, float("inf"))), "hold", "drift"),
        (replace(TREND, found=None, words="too few samples"), "undecided", "too few samples"),
        (replace(TREND, detectable=25.0), "undecided", "10 % might have been missed"),
        (replace(STEP, found=True, size=25.0, words="+25.0 % at 900.0 s"), "hold", "step: +25.0 % at 900.0 s"),
        (replace(STEP, found=True, size=4.0, words="+4 %"), "ship", "as it was"),
        (replace(STEP, found=True, size=float("inf"), words="all fail"), "hold", "all fail"),
        (replace(STEP, detectable=None), "undecided", "might have been missed"),
        (replace(BLOCKS, found=True, words="7 KV blocks in use"), "hold", "KV blocks: 7 KV blocks in use"),
        (replace(BLOCKS, found=None, words="no metrics"), "undecided", "no metrics"),
        (replace(MEMORY, found=True, words="+90 MiB an hour"), "hold", "memory in s: +90 MiB an hour"),
    ],
)
def test_each_look_is_judged(changed: Finding, verdict: str, words: str) -> None:
    found, reason = verdict_of(looks_at(_load(*_with(changed)), SERVER, 10))
    assert (found, words in reason) == (verdict, True), reason


def test_a_fault_outweighs_a_doubt_and_both_are_counted() -> None:
    leak = replace(BLOCKS, found=True, words="7 KV blocks in use")
    looks = looks_at(_load(replace(TREND, found=None), STEP, leak, replace(MEMORY, found=True)), SERVER, 10)
    assert verdict_of(looks) == ("hold", "KV blocks: 7 KV blocks in use (and 1 more)")


@pytest.mark.parametrize(
    ("load", "server", "verdict", "words"),
    [
        (_load(*CALM), {"metrics_before": {BOOKS: 1.0}, "metrics_after": {BOOKS: 3.0}}, "hold", "2 idle checks"),
        (_load(*CALM), None, "undecided", f"holds no {BOOKS}"),
        (_load(*CALM, client=CLIENT | {"void": True, "void_reason": "lag"}), SERVER, "undecided", "void: lag"),
        (_load(), SERVER, "undecided", "the run has none"),
    ],
)
def test_what_else_is_evidence(load: dict[str, Any], server: Any, verdict: str, words: str) -> None:
    found, reason = verdict_of(looks_at(load, server, 10))
    assert (found, words in reason) == (verdict, True), reason


def _records(last_s: float, drift: float) -> pl.DataFrame:
    """A request every half second; its first token takes ``drift`` times as long at the end as at the beginning."""
    rng, rows = np.random.default_rng(5), []
    for i in range(int(last_s * 2)):
        due = i / 2
        first = due + 0.2 * (1 + (drift - 1) * due / last_s) * float(np.exp(rng.normal(0, 0.1)))
        times = [first + 0.02 * k for k in range(5)]
        row: dict[str, Any] = dict.fromkeys(SCHEMA)
        row |= {
            "request_id": str(i), "stage": "s", "phase": "measured", "seed": i, "due_s": due, "sent_s": due,
            "first_byte_s": first, "first_token_s": first, "end_s": times[-1], "token_times_s": times,
            "status": "ok", "http_status": 200, "finish_reason": "length", "prompt_tokens": 9, "output_tokens": 5,
            "cached_tokens": 0, "max_tokens": 5, "concurrency": 4,
        }  # fmt: skip
        rows.append(row)
    return pl.DataFrame(rows, schema=SCHEMA)


@pytest.mark.parametrize(("drift", "verdict"), [(1.0, "ship"), (1.6, "hold")])
def test_what_the_load_test_finds_itself_is_what_is_judged(drift: float, verdict: str) -> None:
    """From records to the verdict, through the detectors and the form in which load.json holds their findings."""
    samples = pl.DataFrame(
        {"t_s": [float(t) for t in range(1200)], "rss_bytes": [10**9] * 1200, "stolen_s": [0.0] * 1200}
    )
    client = ClientHealth.model_validate(CLIENT | {"cpu_share": 0.1})
    calm = {"seatrial_kv_blocks_used": 0.0, "seatrial_num_requests_running": 0.0, "seatrial_num_requests_waiting": 0.0}
    window = StageWindow("s", 0.0, 1200.0, closed=True)
    found = findings(_records(1200.0, drift), [window], samples, (calm, calm), client)
    said, reason = verdict_of(looks_at(json.loads(json.dumps(_load(*found))), SERVER, 10))
    assert said == verdict, reason
    assert (verdict == "ship") or "TTFT" in reason


def test_a_folder_without_a_load_test_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match="holds no findings; expected what `seatrial loadtest --profile soak"):
        read(tmp_path)
    (tmp_path / "load.json").write_text("{")
    with pytest.raises(SeatrialError, match="is not JSON"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        (TREND, 0, "Soak: SHIP"),
        (replace(MEMORY, found=True, words="+90 MiB an hour"), 1, "::error title=Soak hold::memory in s: +90 MiB"),
        (replace(TREND, found=None, words="too few"), 0, "::warning title=Soak undecided::TTFT P95 of s: too few"),
    ],
)
def test_the_nightly_script_is_red_on_a_leak(tmp_path: Path, changed: Finding, code: int, said: str) -> None:
    """The script as the workflow calls it; the model and the hours of load are made up, the judge is the real one."""
    copy = tmp_path / "copy"
    (copy / ".github/scripts").mkdir(parents=True)
    (copy / ".venv/bin").mkdir(parents=True)
    (copy / "params.yaml").symlink_to(ROOT / "params.yaml")
    script = copy / ".github/scripts/nightly.sh"
    script.write_bytes((ROOT / ".github/scripts/nightly.sh").read_bytes())
    (copy / "measured").mkdir()
    (copy / "measured/load.json").write_text(json.dumps(_load(*_with(changed))))
    (copy / "measured/server.json").write_text(json.dumps(SERVER))
    fake = {
        "python": f'case "$2" in dvc) exit 0;; *) exec {shlex.quote(sys.executable)} "$@";; esac',
        "seatrial": '[ "$1" = machine ] || { mkdir -p reports && cp -r measured "$7"; }',
    }
    for name, text in fake.items():
        (copy / ".venv/bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (copy / ".venv/bin" / name).chmod(0o755)
    env = os.environ | {"PYTHONPATH": str(ROOT), "GITHUB_ACTIONS": "true"}
    done = subprocess.run(["bash", str(script), "soak"], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stderr
    assert said in done.stdout
    assert json.loads((copy / "reports/soak-verdict.json").read_text())["looks"]
