from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from loadtests.workload import PROFILES, load_profile
from pipeline.errors import SeatrialError
from pipeline.load.commands import app
from pipeline.load.plan import sparkline
from pipeline.load.times import with_times
from tests.loadtests.replay.traces import azure


def plan(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def replay(folder: Path) -> str:
    azure(folder / "a.csv", [(float(i), 100 + i, 10) for i in range(90)])
    stage = {
        "name": "again", "warmup_s": 0, "duration_s": 30,
        "arrivals": {"kind": "replay", "file": "a.csv", "rate_per_s": 2, "fit_share": 0.9, "context_tokens": 128},
    }  # fmt: skip
    value = {"name": "r", "kind": "custom", "output": {"fixed_by": "ignore_eos"}, "stages": [stage]}
    (folder / "r.yaml").write_text(yaml.safe_dump(value))
    return str(folder / "r.yaml")


def test_a_plan_for_people(tmp_path: Path) -> None:
    text = plan("smoke", "--latency-s", "1")
    assert "short_burst" in text
    assert "closed loop, 8 users" in text
    assert "about 48" in text  # 8 users for 6 s
    text = plan(replay(tmp_path))
    assert "60 requests at 2/s (recorded 1/s, rate factor 2)" in text
    assert "replay of a.csv" in text


def test_a_plan_for_programs(tmp_path: Path) -> None:
    found = json.loads(plan(replay(tmp_path), "--json", "--seed", "3"))
    assert (found["profile"], found["seed"]) == ("r", 3)
    (stage,) = found["stages"]
    assert stage["arrivals_measured"] == stage["replay"]["requests"] == 60
    assert stage["replay"]["cut_prompts"] == 6
    assert stage["prompt_tokens"] == stage["replay"]["prompt_tokens"]["replayed"]


def test_what_cannot_be_planned() -> None:
    with pytest.raises(SeatrialError, match=r"'nope'.*or give the path of a .yaml"):
        plan("nope")
    with pytest.raises(SeatrialError, match="short_burst measures 60 s; a release profile measures at least 30 min"):
        plan("release", "--duration-s", "60")


def test_other_times_make_another_profile(tmp_path: Path) -> None:
    name = with_times(replay(tmp_path), None, 10)
    copy = load_profile(name)
    assert copy.name == "r duration_s=10"
    assert copy.stages[0].duration_s == 10
    assert copy.stages[0].replayed is not None
    assert len(copy.stages[0].replayed.requests) == 20
    assert with_times("ci", None, None) == "ci"
    assert load_profile(with_times("smoke", 2, 3)).name == "smoke warmup_s=2 duration_s=3"


def test_a_release_may_be_longer_but_not_shorter() -> None:
    longer = load_profile(with_times("release", None, 3600))
    assert longer.name == "release"
    assert {s.duration_s for s in longer.stages} == {3600}
    with pytest.raises(SeatrialError, match="at least 30 minutes"):
        with_times("release", 0, 1799)


def test_a_copied_release_is_held_to_its_kind_too(tmp_path: Path) -> None:
    shutil.copy(PROFILES / "release.yaml", tmp_path / "mine.yaml")
    with pytest.raises(SeatrialError, match="at least 30 minutes"):
        with_times("mine.yaml", None, 30)


def test_a_course_in_bars() -> None:
    assert sparkline([3, 3, 3]) == ""
    assert sparkline([0, 1, 2, 4]) == "  ▁▃▅█"
    assert len(sparkline([float(i % 7) for i in range(1000)])) == 42
