"""A newcomer's project: made, sound, and built on a model of one's own, by its README's commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers

from engine.artifact import verify
from loadtests.traffic import prompt_of
from loadtests.words import WORDS
from loadtests.workload import load_profile
from pipeline.errors import SeatrialError
from pipeline.evaluation import sets
from pipeline.evaluation.check import examine
from pipeline.evaluation.items import load_evalset
from pipeline.fetch.run import fetch
from pipeline.gate.__main__ import judge, write_verdict
from pipeline.gate.policy import read_policy
from pipeline.gate.verdict import verdict_exit_code
from pipeline.params import load_params
from pipeline.project import init as project_init
from pipeline.project.code import CODE, STAGES, code_digests, write_code
from pipeline.project.init import DEFAULT_SHA256, DEFAULT_SOURCE, init
from pipeline.project.traffic import short_profile
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


def _readme_command(what: str) -> list[str]:
    """Arguments of a command of the project's README, for this week."""
    line = next(x for x in Path("README.md").read_text().splitlines() if x.strip().startswith(f"seatrial {what}"))
    return shlex.split(line.replace("$(date +%G-W%V)", "2026-W50"))[2:]


def test_the_first_questions_of_ones_own_are_the_set_that_the_rules_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the examples and commands of the project's README, which must not need params.yaml to be changed as well."""
    init(tmp_path, None, "ours", "2026-W49")
    monkeypatch.chdir(tmp_path)
    folder = Path("evalsets/ours")
    lines = [x.strip() for x in Path("README.md").read_text().splitlines() if x.startswith('    {"question"')]
    Path("questions.jsonl").write_text("\n".join(lines))
    sets.main(_readme_command("evalset import"))
    said = capsys.readouterr()
    assert (said.out.splitlines()[-1], said.err) == ("Next: seatrial check-evalsets", "")  # no row was left out
    evalset = load_evalset(folder)
    assert {i.kind for i in evalset.items} == {"choice", "math", "extract", "instruct", "code"}
    assert len(evalset.items) == len(lines)
    params = load_params()
    rules = read_policy(params.gate, params.tiers).rules
    named = {rule.evalset for rule in rules if getattr(rule, "evalset", None)}  # type: ignore[union-attr]
    assert named == {evalset.identity.name} == {"ours-v1"}
    with (folder / "items/ours.jsonl").open("a") as file:
        file.write(evalset.items[1].model_copy(update={"id": "ours-more", "reference": 24}).model_dump_json() + "\n")
    sets.main(_readme_command("evalset record"))
    assert load_evalset(folder).manifest.version == "1.1.0"
    assert load_evalset(folder).identity.name == "ours-v1"


@pytest.mark.parametrize(("context", "share"), [(8192, None), (512, "10%"), (320, "5%")])
def test_a_load_test_fits_the_models_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: int, share: str | None
) -> None:
    """Bytes are this model's tokens, some six a word, so a profile that counts words asks for far more than it says."""
    model = make_tiny_artifact(tmp_path / "model", max_position_embeddings=context)
    monkeypatch.setattr(project_init, "CONTEXT", 8192)
    init(tmp_path / "mine", str(model), "own", "2026-W49")
    monkeypatch.chdir(tmp_path / "mine")
    params = load_params()
    client = next(r for r in read_policy(params.gate, params.tiers).rules if r.id == "load-client")
    assert Path("load-short.yaml").exists() == (share is not None)
    assert params.load.profile == ("ci" if share is None else "load-short.yaml")
    profile = load_profile(params.load.profile)
    assert profile.name in client.profiles  # type: ignore[union-attr]
    assert {s.name for s in profile.stages} == {"short_burst", "long_context", "mixed_random"}  # what the limits name
    if share is not None:
        assert f"with prompts of {share} of its" in Path("load-short.yaml").read_text()
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for spec in profile.stages:
        prompts = [prompt_of(spec, params.load.seed, index) for index in range(150)]
        texts = ["".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in p.messages) for p in prompts]
        asked = [len(e.ids) for e in tokenizer.encode_batch([f"{x}<|im_start|>assistant\n" for x in texts])]
        assert max(a + p.max_tokens for a, p in zip(asked, prompts, strict=True)) <= params.engine.max_model_len


def test_a_context_that_no_load_test_fits_is_told_before_anything_is_written(tmp_path: Path) -> None:
    model = make_tiny_artifact(tmp_path / "model", max_position_embeddings=100)
    with pytest.raises(SeatrialError, match=r"a context of 100 tokens .* is too short for a load test"):
        init(tmp_path / "mine", str(model), "own", "2026-W49")
    assert not (tmp_path / "mine").exists()


def test_a_usual_vocabulary_and_context_take_the_usual_profile(tmp_path: Path) -> None:
    """Of words that are tokens, with the least context that the profile needs."""
    model = make_tiny_artifact(tmp_path / "model")
    vocab = {w: i for i, w in enumerate(sorted({w for word in WORDS for w in (word, word.capitalize())}))}
    whole = Tokenizer(models.WordLevel(vocab | {"?": len(vocab)}, unk_token="?"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    whole.save(str(model / "tokenizer.json"))
    assert short_profile(model, 1024) is None
    short = short_profile(model, 512)
    assert short is not None
    assert "75% of its" in short or "50% of its" in short
    (model / "tokenizer.json").unlink()
    assert short_profile(model, 16) is None  # nothing to count with
    (model / "tokenizer.json").write_text("{}")
    with pytest.raises(SeatrialError, match=r"tokenizer\.json: .*; expected one that the library tokenizers reads"):
        short_profile(model, 16)


def test_an_edited_profile_of_ones_own_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph depends on no file of the project's for its traffic, so the digest of the code covers it."""
    init(tmp_path / "mine", str(make_tiny_artifact(tmp_path / "model")), "own", "2026-W49")
    monkeypatch.chdir(tmp_path / "mine")
    write_code()
    before = json.loads(CODE.read_text())
    path = Path("load-short.yaml")
    path.write_text(path.read_text().replace("concurrency: 10", "concurrency: 12"))
    write_code()
    after = json.loads(CODE.read_text())
    assert {k for k in after if after[k] != before[k]} == {"loadtest", "loadtest_foreign"}
    path.write_text(path.read_text().replace("kind: ci", "kind: fast"))
    with pytest.raises(SeatrialError, match=r"load-short\.yaml has 1 problem\(s\):\n  kind"):
        write_code()


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
