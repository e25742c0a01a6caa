"""A probe through Locust against the simulated server; the command with probes of a known server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from loadtests.schedule import due_times
from loadtests.simulator.process import simulator
from loadtests.simulator.scenario import Refusal, Scenario, When
from loadtests.workload import Goodput
from pipeline.errors import SeatrialError
from pipeline.load.commands import app
from pipeline.load.measure import read_profile
from pipeline.load.sweep.draw import svg
from pipeline.load.sweep.probing import Plan, run_probe
from pipeline.load.sweep.run import Asked
from pipeline.load.sweep.search import Probe
from pipeline.targets.foreign import foreign
from pipeline.targets.target import Target
from tests.loadtests.replay.traces import azure


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.stage._MEASURING_LOCK", tmp_path / "lock")


def profile(tmp_path: Path, **changes: Any) -> str:
    stage = {
        "name": "chat",
        "warmup_s": 9,
        "duration_s": 99,
        "arrivals": {"kind": "closed", "concurrency": 3},
        "prompt_tokens": {"kind": "fixed", "tokens": 12},
        "output_tokens": {"kind": "fixed", "tokens": 5},
    }
    value = {"name": "t", "kind": "smoke", "drain_s": 1, "output": {"fixed_by": "ignore_eos"}, "stages": [stage]}
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(value | changes))
    return str(path)


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def test_a_probe_is_a_short_stage_whose_good_requests_are_those_that_kept_the_slo(tmp_path: Path) -> None:
    """Every fourth request is refused; the limits are so wide that a busy machine breaks none."""
    known = read_profile(profile(tmp_path))
    plan = Plan(known, "chat", Goodput(ttft_ms=60_000, tpot_ms=60_000), requests=40, most_s=20)
    refused = Refusal(kind="refusal", status=503, when=When(every=4))
    with simulator(Scenario(ttft_ms=20, itl_ms=2, faults=(refused,)), tmp_path / "sim") as server:
        found = run_probe(foreign(server.url), plan, 20.0, 5, tmp_path / "work")
        status = {t.request_id: t.status for t in server.truth()}
    (spec,) = plan.at(20.0).stages
    measured = [status[f"probe-{i}"] for i, due_s in due_times(spec, 5) if due_s >= spec.warmup_s]
    assert found.requests == len(measured) > 20
    assert found.good == measured.count(200) < len(measured)
    assert found.figures["error_share"] == 0
    assert found.figures["ttft_ms"]["p50"] >= 20
    assert 0 < found.effective <= len(measured)
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["locust.log"]


def test_the_command_finds_the_knee_of_a_server_that_bears_70_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def probed(target: Target, plan: Plan, rate_per_s: float, seed: int, work: Path) -> Probe:
        seeds.append(seed)
        figures = {"ttft_ms": {"p50": 100.0, "p95": 200.0, "p99": None}}
        return Probe(rate_per_s, 100, 100 if rate_per_s <= 70 else 10, 100.0, figures)

    monkeypatch.setattr("pipeline.load.sweep.run.run_probe", probed)
    with simulator(Scenario(), tmp_path / "sim") as server:
        done = call(
            "sweep", "--base-url", server.url, "--profile", profile(tmp_path), "--ttft-ms", 500, "--tpot-ms", 200,
            "--from", 20, "--to", 160, "--requests", 80, "--seed", 3,
        )  # fmt: skip
    assert done.exit_code == 0
    value = json.loads(Path("reports/sweep/sweep.json").read_text())
    low, high = value["interval"]
    assert low == value["knee_per_s"] <= 70 < high <= 1.1 * low
    assert seeds == list(range(3, 3 + len(value["probes"])))
    assert value["slo"] == {"ttft_ms": 500.0, "tpot_ms": 200.0}
    assert value["header"]["workload"]["name"].startswith("sweep of t/chat")
    assert Path("reports/sweep/sweep.svg").read_text().startswith("<svg")
    assert "knee: " in done.output
    assert "requests/s" in done.output


def test_the_picture_shows_the_knee_and_its_interval() -> None:
    probe = {"rate_per_s": 2.0, "void": None, "figures": {"ttft_ms": {"p50": 100.0, "p95": 300.0, "p99": None}}}
    rate = {"rate_per_s": 2.0, "share": 0.97, "low": 0.9, "high": 0.99}
    value = {
        "probes": [probe, probe | {"rate_per_s": 4.0}], "rates": [rate, rate | {"rate_per_s": 4.0}], "stage": "chat",
        "knee_per_s": 2.0, "interval": [2.0, 4.0], "target_share": 0.95, "slo": {"ttft_ms": 500, "tpot_ms": 50},
    }  # fmt: skip
    drawn = svg(value)
    assert "95% of requests within TTFT 500 ms" in drawn
    assert len(drawn) > len(svg(value | {"knee_per_s": None, "interval": [None, None]}))


def test_a_probe_sends_the_stages_content_at_the_rate_and_knows_its_cost(tmp_path: Path) -> None:
    known = read_profile(profile(tmp_path))
    plan = Plan(known, "chat", Asked(**_asked(ttft_ms=500, tpot_ms=50)).slo(known), requests=80, most_s=20)
    made = plan.at(8.0)
    assert made.stages[0].arrivals.model_dump()["rate_per_s"] == 8.0
    assert made.stages[0].duration_s == 10
    assert made.stages[0].prompt_tokens == known.stages[0].prompt_tokens
    assert plan.duration_s(1.0) == 20
    assert plan.duration_s(1000.0) == 2
    assert plan.cost_s(8.0) == pytest.approx(2 + 10 + 1 + 6)
    with pytest.raises(SeatrialError, match=r"no stage 'nope'; it has chat"):
        Plan(known, "nope", plan.slo, 80, 20)


def test_a_stage_that_does_not_send_single_requests_is_refused(tmp_path: Path) -> None:
    name = profile(tmp_path)
    value = yaml.safe_load(Path(name).read_text())
    (stage,) = value["stages"]
    think = {"think": {"kind": "fixed", "s": 1}}
    azure(tmp_path / "a.csv", [(float(i), 100, 10) for i in range(200)])
    trace = {"kind": "replay", "file": "a.csv", "context_tokens": 128, "rate_factor": 1, "length_factor": 1}
    bare = {k: v for k, v in stage.items() if k not in ("prompt_tokens", "output_tokens")}
    value["stages"] = [
        stage | think | {"name": "thinks"},
        stage | think | {"name": "talks", "sessions": {"turns": 3, "context_tokens": 500}},
        bare | {"name": "again", "arrivals": trace},
    ]
    Path(name).write_text(yaml.safe_dump(value))
    known = read_profile(name)
    slo = Asked(**_asked(ttft_ms=500, tpot_ms=50)).slo(known)
    assert Plan(known, "thinks", slo, 80, 20).at(8.0).stages[0].think is None
    for stage_name, why in (("talks", "holds sessions"), ("again", "replays a trace")):
        with pytest.raises(
            SeatrialError, match=f"stage {stage_name} of profile t {why}; a sweep sends single requests"
        ):
            Plan(known, stage_name, slo, 80, 20)


def _asked(**changes: Any) -> dict[str, Any]:
    return {
        "server": None, "base_url": "http://x", "model": None, "tier": None, "profile": "ci", "stage": None,
        "ttft_ms": None, "tpot_ms": None, "target": 0.95, "lowest": 1.0, "highest": 4.0, "budget_s": 600.0,
        "requests": 100, "probe_s": 60.0, "tolerance": 0.1, "seed": 1, "out": Path("out"),
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of --base-url"),
        (["--tier", "int8", "--base-url", "http://127.0.0.1:1"], "give one of --base-url"),
        (["--tier", "int8", "--model", "m"], "--model goes with --base-url"),
        (["--base-url", "http://127.0.0.1:1", "--from", 5, "--to", 4], "expected 0 < from < to"),
        (["--base-url", "http://127.0.0.1:1", "--from", 0.01, "--budget-s", 20], "more than the budget of 20 s"),
    ],
)
def test_wrong_options_are_told_before_anything_starts(arguments: list[object], message: str) -> None:
    with pytest.raises(SeatrialError, match=message):
        call("sweep", *arguments)


def test_limits_come_from_the_profile_or_the_options(tmp_path: Path) -> None:
    without = read_profile(profile(tmp_path))
    with pytest.raises(SeatrialError, match=r"sets no limit tpot_ms .*--tpot-ms"):
        Asked(**_asked(ttft_ms=100)).slo(without)
    known = read_profile(profile(tmp_path, goodput={"ttft_ms": 900, "tpot_ms": 90}))
    assert Asked(**_asked(ttft_ms=100)).slo(known).model_dump() == {"ttft_ms": 100, "tpot_ms": 90}
