"""A server that lies, counts nothing or begins anew, from the load stage to the verdict: explained, never a pass."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtests.simulator.process import simulator
from loadtests.simulator.scenario import Scenario
from pipeline.errors import SeatrialError
from pipeline.load import __main__ as load_main
from tests.pipeline.gate.helpers import edit_json, judged, rule_of

ROOT = Path(__file__).resolve().parents[3]
TIERS = ("bf16", "int8", "int4")
STAGE = {
    "name": "short_burst", "warmup_s": 0, "duration_s": 1.5, "arrivals": {"kind": "constant", "rate_per_s": 30},
    "prompt_tokens": {"kind": "fixed", "tokens": 12}, "output_tokens": {"kind": "fixed", "tokens": 3},
}  # fmt: skip
PROFILE = {"name": "t", "kind": "smoke", "drain_s": 60, "output": {"fixed_by": "ignore_eos"}, "stages": [STAGE]}


@pytest.fixture(autouse=True)
def _alone(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.stage._MEASURING_LOCK", tmp_path / "lock")  # not the machine's
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # nor that of child processes
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # whose code is this tree's, wherever they run
    shutil.rmtree(run / "results/int8/load")  # of the made-up run


def _measured(fault: dict[str, Any], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads a simulator with the fault as tier int8, and says that all else is of that server too: so nothing but the
    fault stands between the run and a pass of the rules that are looked at.
    """
    profile = tmp_path / "profile.yaml"
    profile.write_text(yaml.safe_dump(PROFILE))
    scenario = Scenario.model_validate({"ttft_ms": 5, "itl_ms": 1, "exports": "vllm", "faults": [fault]})
    with simulator(scenario, tmp_path / "simulator") as server:
        line = ["load", "--tier", "int8", "--base-url", server.url, "--profile", str(profile)]
        monkeypatch.setattr(sys, "argv", line)
        load_main.main()
    header: dict[str, Any] = {}
    edit_json("results/int8/load/load.json", lambda v: header.update(v["header"]))(run)
    same = {k: header[k] for k in ("model", "engine", "quantisation")}
    for tier in TIERS:
        edit_json(f"results/{tier}/eval/eval.json", lambda v: v["header"].update(same))(run)
    for tier in ("bf16", "int4"):
        both = same | {"workload": header["workload"]}
        edit_json(f"results/{tier}/load/load.json", lambda v, b=both: v["header"].update(b))(run)  # type: ignore[misc]


def test_a_restart_in_the_middle_of_a_stage(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _measured({"kind": "restart", "at_request": 25}, run, tmp_path, monkeypatch)
    value = judged()
    assert value["verdict"] in ("hold", "undecided")
    found = rule_of(value, "provenance")
    assert found["outcome"] == "undecided"
    assert "not one server throughout: under load the server began anew in the middle" in found["detail"]
    assert "process_start_time_seconds" in found["detail"]


def test_length_well_before_the_limit_is_held(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _measured({"kind": "truncate", "to_tokens": 1, "finish_reason": "length"}, run, tmp_path, monkeypatch)
    value = judged()
    found = rule_of(value, "truncation")
    assert (value["verdict"], found["outcome"]) == ("hold", "fail")
    assert "answers have fewer tokens than asked for, though they end with 'length'" in found["detail"]
    assert rule_of(value, "provenance")["outcome"] == "pass"  # of a server that stays up nothing else is said


def test_stop_at_exactly_the_limit_is_no_pass(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _measured({"kind": "finish", "reason": "stop"}, run, tmp_path, monkeypatch)
    value = judged()
    found = rule_of(value, "truncation")
    assert value["verdict"] in ("hold", "undecided")
    assert found["outcome"] == "undecided"
    assert "answers that end at exactly their limit say 'stop'" in found["detail"]


def test_missing_usage_is_the_reason_that_the_gate_gives(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SeatrialError, match="without usage"):
        _measured({"kind": "omit", "what": "usage"}, run, tmp_path, monkeypatch)
    value = judged()
    assert value["verdict"] == "undecided"
    for rule in ("errors", "truncation", "load-client"):
        found = rule_of(value, rule)
        assert found["outcome"] == "undecided"
        assert "is missing; its stage ended with: stage loadtest@int8: " in found["detail"]
        assert "the stream ended without usage" in found["detail"]
