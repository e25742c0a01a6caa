"""The demonstration of the check in short: a tiny model, twice the prompt's computation, and a clock that only work
moves. Whether code of a branch comes out red, with the cause named, is then no matter of how fast the machine is.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from loadtests.workload import Profile
from pipeline.ab import compare
from pipeline.ab.__main__ import main as run_ab
from pipeline.ab.counts import work_of
from pipeline.ab.rounds import FIGURES, THROUGHPUT, Round, Which
from pipeline.ab.sides import Side
from pipeline.checks import pull_request
from pipeline.checks.reuse import keep
from pipeline.drill.trial import judged
from pipeline.files import write_json
from tests.crosscheck import counted_cost
from tests.crosscheck.pull_request import ROOT, Branch, branches, commands_of, commit, git, posted, problems, settings
from tests.pipeline.diagnosis import simulated
from tests.tiny import make_tiny_artifact

CODE = ("engine", "pipeline", "loadtests")
BRANCHES = {b.name: b for b in branches(slower_percent=100)}


class CountedRounds:
    """Rounds of an engine on paper at the prices that the side's own code was counted to have."""

    def __init__(self) -> None:
        self.now_s, self.rng = 0.0, np.random.default_rng(3)
        self.costs: dict[str, dict[str, float]] = {}

    def clock(self) -> float:
        return self.now_s

    def cost_of(self, side: Side) -> dict[str, float]:
        engine = side.identities[1].digest
        if engine not in self.costs:
            assert side.tree is not None
            assert side.artifact is not None
            command = [side.tree.python, str(Path(counted_cost.__file__)), str(side.artifact)]
            env = os.environ | {"PYTHONPATH": str(side.tree.root)}
            done = subprocess.run(command, cwd=side.tree.root, env=env, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr
            self.costs[engine] = json.loads(done.stdout)
        return self.costs[engine]

    def round(
        self, side: Side, which: Which, pair: int, profile: Profile, profile_name: str, seed: int, out: Path
    ) -> Round:
        self.now_s += 60.0
        run = simulated.run(simulated.Engine(**self.cost_of(side)), name=which)
        out.mkdir(parents=True)
        assert run.records is not None
        assert run.steps is not None
        assert run.requests is not None
        for name, frame in (("records", run.records), ("steps", run.steps), ("requests", run.requests)):
            frame.write_parquet(out / f"{name}.parquet")
        write_json(out / "load.json", run.load)
        write_json(out / "server.json", run.server)
        of = run.stages["s"]
        figures: dict[tuple[str, str], float | None] = {}
        for stage in (s.name for s in profile.stages):
            for figure in FIGURES:
                metric, _, q = figure.partition("-")
                value = of["output_tokens_per_s"] if figure == THROUGHPUT else of[f"{metric}_ms"][q]
                figures[stage, figure] = None if value is None else value * float(np.exp(self.rng.normal(0, 0.005)))
        work = {s.name: work_of(run.records, "s") for s in profile.stages}
        return Round(which, pair, seed, 30.0, figures, of["requests"], 0, None, work)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this tree's code with a model, and a trial of it that ships, kept for its commit."""
    root = tmp_path_factory.mktemp("base") / "clone"
    for name in CODE:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "requirements").mkdir()
    for name in (".gitignore", "requirements/lock-cpu.txt"):
        shutil.copy(ROOT / name, root / name)
    make_tiny_artifact(root / "artifacts/int8", "int8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # whose policy it is judged under
        assert judged(root, lambda _root: None)["verdict"] == "ship"
        patch.chdir(root)
        git(root, "init", "-q", "-b", "main")
        git(root, "add", "--all")
        commit(root, "A project")
        assert keep("The trial's summary.") is not None
    return root


@pytest.fixture
def clone(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(base, tmp_path / "clone")
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


def checked(clone: Path, branch: Branch, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """(exit code, comment) of the check. All of it is the real one but the rounds' measuring."""
    rounds = CountedRounds()
    measured = functools.partial(compare.compare_builds, round_=rounds.round, clock=rounds.clock)

    def in_this_process(command: list[str]) -> int:
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            run_ab()
        return int(str(ended.value.code))

    monkeypatch.setattr("pipeline.stage._MEASURING_LOCK", clone / ".seatrial/lock")  # nothing is measured
    monkeypatch.setattr(compare, "compare_builds", measured)
    monkeypatch.setattr(pull_request, "exit_code_of", in_this_process)
    git(clone, "checkout", "-q", "-b", branch.name)
    branch.edit(clone)
    commit(clone, branch.name)
    monkeypatch.setattr(sys, "argv", ["check", "--base", "main", "--judged"])
    with pytest.raises(SystemExit) as ended:
        pull_request.main()
    return int(str(ended.value.code)), posted(clone)


def test_twice_the_prompts_computation_is_red_with_the_cause_in_the_comment(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, comment = checked(clone, BRANCHES["slower"], monkeypatch)
    assert list(problems(BRANCHES["slower"], code, comment)) == []
    dearer = re.search(r"a prompt token costs (\d\.\d\d) times as much", comment)
    assert dearer is not None
    assert 1.7 < float(dearer[1]) < 2  # a step has a price of its own beside that of its tokens
    value = json.loads(Path("reports/ab/ab.json").read_text())
    assert value["what_differs"] == ["engine"]
    assert value["cause"]["causes"][0]["cause"] == "prefill_compute"


def test_other_code_that_does_the_same_is_green(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, comment = checked(clone, BRANCHES["same"], monkeypatch)
    assert list(problems(BRANCHES["same"], code, comment)) == []
    assert "Seatrial: SHIP" in comment
    assert "**Cause**" not in comment


def test_other_words_repeat_the_verdict_and_measure_nothing(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, comment = checked(clone, BRANCHES["words"], monkeypatch)
    assert list(problems(BRANCHES["words"], code, comment)) == []
    assert "Seatrial: SHIP" in comment
    assert "The trial's summary." in comment
    assert not Path("reports/ab").exists()


def test_the_commands_are_those_of_the_workflow() -> None:
    run = commands_of(ROOT / ".github/workflows/pull-request.yml")
    assert [c.split()[2] for c in run] == ["pipeline.checks.control", "pipeline.checks.pull_request"]
    assert '--base "$BASE"' in run[1]


def test_what_a_branch_must_show_is_checked() -> None:
    slower = BRANCHES["slower"]
    assert list(problems(slower, 1, " ".join(slower.said))) == []
    assert list(problems(slower, 0, "Seatrial: SHIP")) == [
        "exit code 0, expected 1", *(f"the comment does not say {words!r}" for words in slower.said)
    ]  # fmt: skip


@pytest.mark.parametrize("whole", [False, True])
def test_the_settings_of_the_long_form_are_settings(tmp_path: Path, whole: bool) -> None:
    from pipeline.gate.policy import read_policy
    from pipeline.params import load_params

    raw: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text())
    settings(raw, tmp_path, 9, whole=whole)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    params = load_params(tmp_path / "params.yaml")
    assert read_policy(params.gate, params.tiers).name == "pull_request"
    assert params.evaluation.items == (None if whole else 2)
