"""Another project's server as a side: what it is, and what cannot be compared with it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from pipeline.ab.compare import compare_builds
from pipeline.ab.gaps import not_comparable
from pipeline.ab.quality import compared
from pipeline.ab.report import markdown
from pipeline.ab.sides import Project, Side, side_of
from pipeline.errors import SeatrialError
from pipeline.evaluation.client import Reply
from pipeline.evaluation.graders import Grade
from pipeline.evaluation.run import Answered, Judged
from pipeline.load.measure import read_profile
from pipeline.params import AbParams, load_params
from pipeline.stage import Stage
from tests.pipeline.ab.made_up import Machine, side
from tests.pipeline.evaluation.make import chat_item, choice_item
from tests.pipeline.targets import pretend


def with_target(project: Project, **more: Any) -> Project:
    line = [sys.executable, str(pretend.__file__), "{port}", json.dumps({"lacks": ["ignore_eos", "prompt_logprobs"]})]
    value = yaml.safe_load(Path("params.yaml").read_text())
    value["targets"]["theirs"] = {"kind": "command", "start": line, **more}
    Path("params.yaml").write_text(yaml.safe_dump(value))
    return replace(project, params=load_params())


def test_a_target_is_started_for_each_round_and_asked_once_what_it_can_do(project: Project) -> None:
    known = with_target(project)
    theirs, ours = side_of("target:theirs", known), side_of("bundled", known)
    assert ours.identities == side_of("artifacts/int8", known).identities == side_of("target:bundled", known).identities
    assert theirs.identities[1].name == "foreign vllm 1.2.3 (target theirs)"
    assert (theirs.identities[0], theirs.identities[2]) == (ours.identities[0], ours.identities[2])  # one artifact
    json.dumps(theirs.describe())
    assert theirs.describe()["capabilities"]["found"]["ignore_eos"]["state"] == "no"
    pids = set()
    for _ in range(2):
        with theirs.open(Path("round.log")) as target:
            assert target.capabilities == theirs.capabilities
            assert not target.bundled
            pids.add(target.pid)
    assert len(pids) == 2


def test_what_cannot_be_compared_stands_in_the_record_and_in_the_report(project: Project, tmp_path: Path) -> None:
    theirs = side_of("target:theirs", with_target(project, model="elsewhere"))
    ours = side("ours")
    said = not_comparable({"base": theirs, "candidate": ours}, read_profile("ab"))
    about = [text.partition(":")[0] for text in said]
    assert about == [
        "queue time and causes inside the engine", "model", "quantisation", "throughput and answers' lengths",
        "items with choices",
    ]  # fmt: skip
    assert all("base" in text and "candidate" not in text for text in said)
    assert not_comparable({"base": ours, "candidate": ours}, read_profile("ab")) == []
    machine = Machine({})
    value = compare_builds(
        theirs, ours, AbParams(budget_minutes=10), 7, tmp_path, Stage("ab", None), round_=machine.round,
        clock=machine.clock,
    )  # fmt: skip
    assert value["not_comparable"] == said
    assert "Cannot be compared:\n\n- queue time" in markdown(value)


def test_items_that_one_side_cannot_be_asked_are_counted_apart() -> None:
    def judged(text: str | None, correct: bool, lacks: str | None = None) -> Judged:
        reply = None if text is None else Reply(text, "stop", 1, 1, None, "now")
        item = choice_item() if lacks else chat_item()
        return Judged(Answered(item, reply, lacks=lacks), Grade(correct))

    base = [judged("a", True), judged("b", True), judged(None, False, "prompt_logprobs")]
    candidate = [judged("a", True), judged("c", False), judged("d", True)]
    found = compared(base, candidate)
    assert (found["items"], found["answers_changed"], found["lost"], found["gained"]) == (2, 1, 1, 0)
    assert found["not_comparable"] == {"prompt_logprobs": 1}


def test_an_unknown_target_is_told(project: Project) -> None:
    with pytest.raises(SeatrialError, match="unknown target 'nobody'"):
        side_of("target:nobody", project)


def test_a_server_that_runs_already_is_only_looked_at(project: Project) -> None:
    server = pretend.serve(pretend.Pretend(), 0)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    found: Side = side_of(f"http://127.0.0.1:{server.server_address[1]}/v1", project)
    with found.open(Path("round.log")) as target:
        assert target.pid is None
        assert target.engine.name.endswith("vllm 1.2.3 (unverified)")
    server.shutdown()
    server.server_close()
    thread.join()
