"""The newcomer's path from a model directory and twenty questions to a scorecard, by the commands that are named on it.

The stages run in this process and not through DVC, whose graph `test_init` reads and `tests/test_graph.py` runs.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.artifact import MANIFEST
from pipeline.evaluation import sets
from pipeline.gate.verdict import VERDICT, verdict_exit_code
from pipeline.project.init import init
from pipeline.project.traffic import FILE
from tests.tiny import make_tiny_artifact

ROOT = Path(__file__).resolve().parents[3]
WEEK = "2026-W49"
TOWNS = ("Ulm", "Graz", "Porto", "Lyon", "Gent")
Run = Callable[..., None]


def questions() -> list[dict[str, Any]]:
    """Twenty, of four kinds."""
    rows: list[dict[str, Any]] = []
    for n, town in enumerate(TOWNS):
        rows += [
            {"question": f"Which town has {n + 2} bridges?", "choices": ["Bern", town], "answer": town},
            {"question": f"Order {n + 11} goes to {town}. Which town is it?", "answer": town},
            {"question": f"{n + 2} tickets cost 7 euros each. What do they cost?", "answer": 7 * (n + 2)},
            {
                "question": f"Describe {town}.",
                "constraints": [{"type": "not_contains", "text": "nice"}],
                "max_tokens": 24,
            },
        ]
    rows[0]["watches_for"] = "taking the first town"
    return rows


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a stage in a new project for a tiny model, which is the working directory."""
    monkeypatch.setattr("pipeline.stage._MEASURING_LOCK", tmp_path / "lock")  # not the machine's
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # nor that of child processes
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # whose code is this tree's, wherever they run
    model = make_tiny_artifact(tmp_path / "my-model")
    (model / MANIFEST).unlink()  # a model as it is found, not an artifact of ours
    init(tmp_path / "mine", str(model), "ours", WEEK)
    monkeypatch.chdir(tmp_path / "mine")

    def one(module: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        importlib.import_module(f"pipeline.{module}").main()

    return one


def shorten() -> list[str]:
    """Two tiers, and stages of load of a second and a half; all else as `init` wrote it. The tiers."""
    params, profile = yaml.safe_load(Path("params.yaml").read_text()), yaml.safe_load(Path(FILE).read_text())
    params["tiers"] = params["tiers"][:2]
    for stage in profile["stages"]:
        stage |= {"warmup_s": 0, "duration_s": 1.5}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    Path(FILE).write_text(yaml.safe_dump(profile | {"drain_s": 3000, "timeout_s": 3000}))
    return list(params["tiers"])


def test_a_model_and_twenty_questions_reach_a_scorecard(tmp_path: Path, run: Run) -> None:
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions()))
    sets.main(["import", "--format", "own", "../questions.jsonl", "--out", "evalsets/ours", "--week", WEEK])
    tiers = shorten()
    run("fetch.__main__")
    for tier in tiers:
        run("quantize.__main__", "--tier", tier)
        run("plan.__main__", "--tier", tier)
    run("evaluation.check")
    for tier in tiers:
        run("evaluation.__main__", "--tier", tier)
        run("load.__main__", "--tier", tier)
    run("gate.__main__")
    run("report.__main__")

    for tier in tiers:
        evaluation = json.loads(Path(f"results/{tier}/eval/eval.json").read_text())
        assert (evaluation["n"], evaluation["errors"]) == (20, 0)
        load = json.loads(Path(f"results/{tier}/load/load.json").read_text())
        for name, stage in load["stages"].items():
            assert stage["requests"] > 0, name
            assert stage["ok"] == stage["requests"], name
    value = json.loads(VERDICT.read_text())
    rules = {r["id"]: r for r in value["tiers"]["int8"]["rules"]}
    assert rules["evalset"]["outcome"] == rules["provenance"]["outcome"] == "pass"
    assert rules["accuracy"]["outcome"] == "undecided"
    assert "20 items" in rules["accuracy"]["detail"]
    assert verdict_exit_code()[0] in (1, 2)  # twenty questions are no evidence that nothing was lost
    page = Path("reports/scorecard.html").read_text()
    assert "ours version 1.0.0, 20 items" in page
    assert "my-model" in page
