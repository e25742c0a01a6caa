"""A newcomer's project: made, sound, and built on a model of one's own, by its README's commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.artifact import verify
from pipeline.errors import SeatrialError
from pipeline.evaluation.check import examine
from pipeline.evaluation.items import load_evalset
from pipeline.evaluation.versions import next_version, record
from pipeline.fetch.run import fetch
from pipeline.gate.__main__ import judge, write_verdict
from pipeline.gate.policy import read_policy
from pipeline.gate.verdict import verdict_exit_code
from pipeline.params import load_params
from pipeline.project.code import STAGES, code_digests, write_code
from pipeline.project.init import DEFAULT_SHA256, DEFAULT_SOURCE, init
from pipeline.quantize.run import quantise
from pipeline.stage import Stage
from tests.tiny import make_tiny_artifact

ROOT = Path(__file__).resolve().parents[3]
SOURCE_FOLDERS = ("engine", "loadtests", "pipeline")


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=env, capture_output=True, text=True, timeout=240
    )


def test_a_project_builds_on_ones_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_artifact(tmp_path / "my-model")
    folder = tmp_path / "mine"
    files = init(folder, str(tmp_path / "my-model"), "ours", "2026-W49")
    assert all(p.is_file() for p in files)
    assert "%" not in "".join(p.name for p in files)
    for name in ("params.yaml", "dvc.yaml", "README.md", ".gitignore", ".dvc/config", "evalsets/ours/manifest.yaml",
                 "evalsets/expectations/ours.json", ".github/workflows/pull-request.yml", ".git"):  # fmt: skip
        assert (folder / name).exists(), name
    params = load_params(folder / "params.yaml")
    assert (params.model.source, params.model.sha256) == ("path:../my-model", None)
    assert (params.tiers, params.engine.max_model_len) == (["bf16", "int8", "int4-g32"], 512)  # what suits it
    read_policy(params.gate, params.tiers)
    evalset = load_evalset(folder / "evalsets/ours")
    assert evalset.identity.name == "ours-v0"
    monkeypatch.chdir(folder)
    report = examine(Path("evalsets/ours"), params)
    assert report["success"], [c for c in report["checks"] if not c["success"]]
    base, work, s = Path("artifacts/base"), Path(".seatrial/work"), Stage("test", None)
    fetch(params.model, base, work, s)
    for tier in params.tiers:
        quantise(tier, params.recipe_of(tier), base, Path("artifacts") / tier, work, s)
        assert verify(Path("artifacts") / tier).recipe == params.recipe_of(tier)["recipe"]
    write_verdict(judge(params, datetime(2026, 12, 1, tzinfo=UTC)))
    code, text = verdict_exit_code()
    assert code == 2  # nothing was measured, and no evidence is no pass
    assert "is stale" not in text


@pytest.mark.parametrize(
    ("config", "group", "context"),
    [
        ({"hidden_size": 576, "num_attention_heads": 9, "intermediate_size": 1536}, 64, 2048),
        ({"hidden_size": 64, "num_attention_heads": 4, "head_dim": 24, "intermediate_size": 192}, 32, 2048),
        (
            {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 168, "max_position_embeddings": 512},
            8,
            512,
        ),
        (
            {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 161},
            64,
            2048,
        ),  # no group suits: it is told
    ],
)
def test_settings_suit_the_model(tmp_path: Path, config: dict[str, int], group: int, context: int) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    init(tmp_path / "mine", str(tmp_path / "model"), "own", "2026-W49")
    params = load_params(tmp_path / "mine/params.yaml")
    assert (params.tiers[-1], params.engine.max_model_len) == (f"int4-g{group}", context)
    assert params.recipe_of(f"int4-g{group}")["group_size"] == group


def test_a_config_that_is_none_is_told_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SeatrialError, match=r"config\.json: KeyError\('hidden_size'\); expected hidden_size"):
        init(tmp_path / "mine", str(tmp_path), "own", "2026-W49")
    assert not (tmp_path / "mine").exists()


def test_the_first_questions_of_ones_own_are_the_set_that_the_rules_name(tmp_path: Path) -> None:
    """By the command of the project's README, which must not need params.yaml to be changed as well."""
    init(tmp_path, None, "ours", "2026-W49")
    folder = tmp_path / "evalsets/ours"
    path = folder / "items/sums.jsonl"
    path.write_text(path.read_text().replace("14 + 9", "15 + 8"))
    command = next(line for line in (tmp_path / "README.md").read_text().splitlines() if "evalset record" in line)
    size = re.search(r"--size (\w+)", command)
    assert size is not None
    version = next_version(load_evalset(folder).manifest.version, size[1])  # type: ignore[arg-type]
    record(folder, version, "2026-W50", "Our own questions")
    params = load_params(tmp_path / "params.yaml")
    rules = read_policy(params.gate, params.tiers).rules
    named = {rule.evalset for rule in rules if getattr(rule, "evalset", None)}  # type: ignore[union-attr]
    assert named == {load_evalset(folder).identity.name} == {"ours-v1"}


def test_the_graph_is_one_that_dvc_reads(tmp_path: Path) -> None:
    init(tmp_path, None, "own", "2026-W49")
    done = _run(tmp_path, "dvc", "stage", "list", "--name-only")
    assert done.returncode == 0, done.stderr
    assert {"fetch", "quantize@int8", "evaluate@bf16", "loadtest@int4-g64", "gate", "scorecard"} <= set(
        done.stdout.split()
    )


def _stages(path: Path) -> dict[str, dict[str, Any]]:
    return {name: s.get("do", s) for name, s in yaml.safe_load(path.read_text())["stages"].items()}


def test_its_graph_is_this_repositorys_with_digests_in_place_of_source(tmp_path: Path) -> None:
    init(tmp_path, None, "own", "2026-W49")
    here, there = _stages(ROOT / "dvc.yaml"), _stages(tmp_path / "dvc.yaml")
    assert here.keys() == there.keys()
    for name, ours in here.items():
        theirs = there[name]
        code = [d for d in ours["deps"] if d.split("/")[0] in SOURCE_FOLDERS]
        assert tuple(code) == STAGES[name] or set(code) == set(STAGES[name]), name
        assert theirs.get("deps", []) == [d for d in ours["deps"] if d not in code], name
        assert theirs["params"] == [*ours.get("params", []), {".seatrial/code.json": [name]}], name
        for key in ("cmd", "outs", "metrics", "desc"):
            assert theirs.get(key) == ours.get(key), (name, key)


def test_the_default_model_and_the_suite_are_this_repositorys(tmp_path: Path) -> None:
    model = load_params(ROOT / "params.yaml").model
    assert (model.source, model.sha256) == (DEFAULT_SOURCE, DEFAULT_SHA256)
    init(tmp_path, None, "own", "2026-W49")
    assert load_params(tmp_path / "params.yaml").model == model
    suite = json.loads((tmp_path / "evalsets/expectations/own.json").read_text())
    imported = json.loads((ROOT / "evalsets/expectations/imported.json").read_text())
    assert suite == imported | {"name": "own"}


def test_its_workflow_is_pinned_as_this_repositorys_are(tmp_path: Path) -> None:
    init(tmp_path, None, "own", "2026-W49")
    pins = set(re.findall(r"uses: (\S+ # v\S+)", (tmp_path / ".github/workflows/pull-request.yml").read_text()))
    ours = set(re.findall(r"uses: (\S+ # v\S+)", (ROOT / ".github/workflows/pull-request.yml").read_text()))
    assert pins
    assert pins <= ours


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("mine")
    with pytest.raises(SeatrialError, match=r"params\.yaml is there already; nothing was written"):
        init(tmp_path, None, "own", "2026-W49")
    assert [p.name for p in tmp_path.iterdir()] == ["params.yaml"]
    (tmp_path / "params.yaml").unlink()
    (tmp_path / "notes.txt").write_text("mine")
    init(tmp_path, None, "own", "2026-W49")
    with pytest.raises(SeatrialError, match=r"files in all\); nothing was written"):
        init(tmp_path, None, "own", "2026-W49")


@pytest.mark.parametrize(
    ("model", "evalset", "week", "words"),
    [
        ("nowhere", "own", "2026-W49", "nowhere not found; expected a model directory"),
        (".", "own", "2026-W49", r"has no config\.json"),
        (None, "Our Own", "2026-W49", "expected small letters"),
        (None, "own", "today", "expected an ISO week"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str | None, evalset: str, week: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SeatrialError, match=words):
        init(tmp_path / "new", model, evalset, week)
    assert not (tmp_path / "new").exists()


def test_without_git_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SeatrialError, match=r"no git in PATH; .* Install git .* nothing was written"):
        init(tmp_path / "new", None, "own", "2026-W49")
    assert not (tmp_path / "new").exists()


def test_digests_of_code_change_with_what_a_stage_runs(tmp_path: Path) -> None:
    for names in STAGES.values():
        for name in names:
            path = tmp_path / name
            if (ROOT / name).is_dir():
                path.mkdir(parents=True, exist_ok=True)
                path = path / "m.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('"""About."""\nx = 1\n')
    before = code_digests(tmp_path)
    (tmp_path / "pipeline/report/README.md").write_text("words")
    assert code_digests(tmp_path) == before
    (tmp_path / "pipeline/report/page.html.j2").write_text("<p>")
    assert {k for k, v in code_digests(tmp_path).items() if v != before[k]} == {"scorecard"}
    (tmp_path / "loadtests/quantiles.py").write_text("x = 2\n")
    changed = {k for k, v in code_digests(tmp_path).items() if v != before[k]}
    assert changed == {"scorecard", "gate", "loadtest", "loadtest_foreign"}


def test_unchanged_code_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "code.json"
    write_code(path)
    stamp = path.stat().st_mtime_ns
    write_code(path)
    assert path.stat().st_mtime_ns == stamp
    path.write_text("{torn")
    write_code(path)
    assert json.loads(path.read_text()).keys() == STAGES.keys()
