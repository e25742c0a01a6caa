"""The exit code of a verdict: what makes it stale, what waivers do to it, and that another try shows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.gate.verdict import VERDICT, verdict_exit_code
from tests.pipeline.gate.factory import header, items, records, write_items, write_load
from tests.pipeline.gate.helpers import (
    change_params,
    damage,
    edit_json,
    items_of_int8,
    judged,
    load_of_int8,
    loses_a_pinned_case,
    rule_of,
    slow,
)

WAIVER = {"rule": "pinned", "tier": "int8", "reason": "known, being mended", "owner": "release team"}
WAIVER |= {"expires": "2099-01-01"}


def _waive(*waivers: dict[str, str]) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["gate"].update(waivers=[WAIVER | w for w in waivers])


def test_a_waiver_lets_through_until_it_expires(run: Path) -> None:
    items_of_int8(spoil=loses_a_pinned_case)(run)
    change_params(run, _waive({}))
    value = judged()
    assert value["verdict"] == "ship"
    assert "1 waived (pinned)" in value["reason"]
    found = rule_of(value, "pinned")
    assert (found["outcome"], found["waiver"]["owner"], found["waiver"]["expired"]) == ("fail", "release team", False)
    assert verdict_exit_code(VERDICT)[0] == 0
    change_params(run, _waive({"expires": "2026-11-30"}))
    value = judged()
    assert value["verdict"] == "hold"
    assert "its waiver expired on 2026-11-30" in rule_of(value, "pinned")["detail"]
    assert "its waiver expired on 2026-11-30" in value["reason"]
    change_params(run, _waive({"expires": "2026-11-30"}, {"expires": "2026-12-01"}))  # renewed, valid to the day's end
    assert judged()["verdict"] == "ship"


def test_a_waiver_lets_through_what_it_names_and_nothing_else(run: Path) -> None:
    load_of_int8(change=lambda r: slow(60, "ttft")(r) if r["stage"] != "mixed_random" else None)(run)
    change_params(run, _waive({"rule": "ttft-p95/long_context"}))
    value = judged()
    assert value["verdict"] == "hold"
    assert value["reason"].startswith("int8 is held: P95 time to first token, short_burst")
    change_params(run, _waive({"rule": "ttft-p95"}))
    assert judged()["verdict"] == "ship"
    change_params(run, _waive({"rule": "ttft-p95", "tier": "int4"}))
    assert judged()["verdict"] == "hold"


def test_an_expired_waiver_does_not_turn_doubt_into_a_failure(run: Path) -> None:
    load_of_int8(count=10)(run)
    change_params(run, _waive(*({"rule": r, "expires": "2026-11-30"} for r in ("ttft-p95", "itl-p95", "errors"))))
    value = judged()
    assert value["verdict"] == "undecided"
    assert "its waiver expired" in rule_of(value, "errors")["detail"]


@pytest.mark.parametrize(
    ("spoil", "rules", "code", "word"),
    [
        (items_of_int8(spoil=loses_a_pinned_case), ("pinned",), 1, "HOLD"),
        (load_of_int8(count=10), ("ttft-p95", "itl-p95", "errors", "truncation"), 2, "UNDECIDED"),
    ],
)
def test_a_waiver_that_lapses_after_the_verdict_takes_it_back(
    run: Path, spoil: Callable[[Path], None], rules: tuple[str, ...], code: int, word: str
) -> None:
    spoil(run)
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    change_params(run, _waive(*({"rule": r, "expires": yesterday} for r in rules)))
    assert judged(datetime.now(UTC) - timedelta(days=10))["verdict"] == "ship"
    found, text = verdict_exit_code(VERDICT)
    assert found == code
    assert text.startswith(f"{word}: the waiver of {rules[0]} for int8 by release team expired")


def test_a_waiver_that_nothing_needed_may_lapse(run: Path) -> None:
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    change_params(run, _waive({"expires": yesterday}))
    judged(datetime.now(UTC) - timedelta(days=10))
    assert verdict_exit_code(VERDICT)[0] == 0


def test_running_again_until_green_is_visible(run: Path) -> None:
    load_of_int8(change=slow(30, "ttft"))(run)
    assert judged()["verdict"] == "hold"
    again = header("int8", "ci-load") | {"measured_at": "2026-12-01T11:00:00Z"}
    write_load(run, "int8", records(1), header=again)
    value = judged()
    assert [a["verdict"] for a in value["attempts"]] == ["hold", "ship"]
    assert "attempt 2 at this build: hold, ship" in verdict_exit_code(VERDICT)[1]
    log = run / ".seatrial/attempts.jsonl"
    log.write_text(log.read_text() + '{"build": "to')  # a torn line
    assert len(judged()["attempts"]) == 2


def test_loosening_a_limit_until_green_is_visible(run: Path) -> None:
    load_of_int8(change=slow(30, "ttft"))(run)
    assert judged()["verdict"] == "hold"

    def loosen(raw: dict[str, Any]) -> None:
        limits = raw["gate"]["policies"]["pull_request"]["rules"][0]["limits_ms"]
        limits.update(dict.fromkeys(limits, 100_000))

    change_params(run, loosen)
    assert [a["verdict"] for a in judged()["attempts"]] == ["hold", "ship"]


def test_another_build_begins_anew(run: Path) -> None:
    load_of_int8(change=slow(30, "ttft"))(run)
    judged()
    for tier in ("bf16", "int8"):
        write_items(run, tier, items(tier), header=header(tier, "core-v1", engine="e!2"))
        write_load(run, tier, records(1), header=header(tier, "ci-load", engine="e!2"))
    assert [a["verdict"] for a in judged()["attempts"]] == ["ship"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: write_load(root, "int8", records(9)), "stale: results/int8/load/"),
        (lambda root: write_items(root, "bf16", items("bf16", flips=(1, 0))), "stale: results/bf16/eval/"),
        (damage("results/int4/plan.json"), "stale: results/int4/plan.json"),
        (damage("reports/evalset.json", b"{}"), "stale: reports/evalset.json"),
        (lambda root: change_params(root, lambda raw: raw["release"].update(candidate="int4")), "release or tiers"),
        (lambda root: change_params(root, _waive({})), "stale: gate, release or tiers"),
        (lambda root: change_params(root, lambda raw: raw["gate"].update(policy="release")), "stale: gate, release or"),
        (damage("params.yaml"), "cannot be held against today's params.yaml"),
        (damage("reports/verdict.json"), "there is no reports/verdict.json"),
        (damage("reports/verdict.json", b"\xff\xfe"), "not a verdict that this version reads"),
        (damage("reports/verdict.json", b"[]"), "not a verdict that this version reads"),
        (edit_json("reports/verdict.json", lambda v: v.update(verdict="green")), "not a verdict that this version"),
        (edit_json("reports/verdict.json", lambda v: v.update(verdict="hold")), "but its candidate ship"),
    ],
)
def test_a_stale_or_broken_verdict_is_undecided(run: Path, change: Callable[[Path], None], words: str) -> None:
    assert judged()["verdict"] == "ship"
    assert verdict_exit_code(VERDICT)[0] == 0
    change(run)
    code, text = verdict_exit_code(VERDICT)
    assert code == 2
    assert text.startswith("UNDECIDED: ")
    assert words in text


@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_a_verdict_with_a_key_missing_never_crashes(run: Path, data: st.DataObject) -> None:
    value = judged() if not VERDICT.is_file() else json.loads((run / "kept.json").read_text())
    (run / "kept.json").write_text(json.dumps(value))
    at = value
    while True:
        key = data.draw(st.sampled_from(sorted(at)))
        if isinstance(at[key], dict) and at[key] and data.draw(st.booleans()):
            at = at[key]
            continue
        if data.draw(st.booleans()):
            del at[key]
        else:
            at[key] = data.draw(st.sampled_from([None, 3, "x", [], {}, [None]]))
        break
    VERDICT.write_text(json.dumps(value))
    code, text = verdict_exit_code(VERDICT)
    assert code in (0, 1, 2)
    assert text


def test_the_stage_exits_0_and_the_command_says_hold(run: Path) -> None:
    load_of_int8(change=slow(30, "ttft"))(run)
    root = Path(__file__).resolve().parents[3]
    env = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    stage = subprocess.run([sys.executable, "-m", "pipeline.gate"], env=env, capture_output=True, text=True)
    assert stage.returncode == 0, stage.stderr
    assert "gate: verdict: hold. int8 is held" in stage.stderr
    assert (run / "reports/stages/gate.json").is_file()
    said = subprocess.run([sys.executable, "-m", "pipeline.cli", "verdict"], env=env, capture_output=True, text=True)
    assert said.returncode == 1, said.stderr
    assert said.stdout.startswith("HOLD: int8 is held: P95 time to first token")
    change_params(run, lambda raw: raw["gate"]["policies"]["pull_request"]["rules"][0].update(kind="vibes"))
    stage = subprocess.run([sys.executable, "-m", "pipeline.gate"], env=env, capture_output=True, text=True)
    assert stage.returncode == 3
    assert "unknown kind 'vibes'" in stage.stderr
