"""The evaluate stage as a command: files, identities, kills, dying servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.artifact import ArtifactError
from engine.config import EngineConfig
from pipeline import stage
from pipeline.errors import SeatrialError
from pipeline.evaluation import __main__ as command
from pipeline.provenance import Header, differing
from pipeline.serving import Server, _end, _wait_ready
from pipeline.targets import target
from tests.pipeline.evaluation import fake_openai
from tests.pipeline.evaluation.fake_openai import Fake, serving
from tests.pipeline.evaluation.make import (
    chat_item,
    code_item,
    read_results,
    some_items,
    write_artifact,
    write_evalset,
    write_params,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two tiers and twelve items, as the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage, "_MEASURING_LOCK", tmp_path / "lock")
    write_params(tmp_path)
    write_evalset(tmp_path, some_items())
    write_artifact(tmp_path, "bf16")
    write_artifact(tmp_path, "int8", "smaller weights")
    return tmp_path


def serve_bundled_as(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> None:
    """Puts ``fake`` where the bundled server would be booted."""

    class Running(Server):
        def __init__(self) -> None:
            self.base_url, self.model = fake.base_url, "m"
            self.process = SimpleNamespace(pid=os.getpid())  # type: ignore[assignment]

        def check(self) -> None:
            pass

    @contextmanager
    def boot(*args: Any, **options: Any) -> Iterator[Server]:
        yield Running()

    monkeypatch.setattr(target, "bundled_server", boot)


def serve_process(monkeypatch: pytest.MonkeyPatch, **fake: Any) -> None:
    """The same with the fake in a process of its own, started and watched as the real one is."""

    @contextmanager
    def boot(artifact: Path, config: EngineConfig, log: Path, **options: Any) -> Iterator[Server]:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as err:
            process = subprocess.Popen(
                [sys.executable, str(fake_openai.__file__), json.dumps(fake)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True,
            )  # fmt: skip
        try:
            yield Server(process, f"http://127.0.0.1:{_wait_ready(process, 'm', log, 240)}", "m", log)
        finally:
            _end(process)
            assert process.stdout
            process.stdout.close()

    monkeypatch.setattr(target, "bundled_server", boot)


def test_figures_and_rows(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = {f"Question {i}?": "It is Paris." for i in (0, 2, 3)}
    with serving(Fake(right)) as fake:
        fake.refuse = {"Question 1?"}
        serve_bundled_as(monkeypatch, fake)
        command.main(["--tier", "int8"])
    outcome, rows = read_results(project, "int8")
    assert [r["id"] for r in rows] == [f"choice.{i}" for i in range(6)] + [f"extract.{i}" for i in range(6)]
    assert (outcome["n"], outcome["correct"], outcome["accuracy"]) == (12, 9, 0.75)
    assert outcome["scenarios"]["extract"] == {
        "kind": "extract", "n": 6, "correct": 3, "accuracy": 0.5, "pinned": 1, "pinned_correct": 1,
    }  # fmt: skip
    assert (outcome["errors"], outcome["cut_off"], outcome["partial"]) == (1, 0, False)
    assert outcome["evalset"] == {"name": "core", "version": "1", "items": 12}
    assert outcome["usage"]["prompt_tokens"] == 6 * 7 + 5 * 5
    assert outcome["usage"]["output_tokens"] == 5 * 3
    assert outcome["output_tokens_mean"] == 3.0
    refused = rows[7]
    assert (refused["status"], refused["correct"], refused["answer"]) == ("error", False, None)
    assert refused["reason"] == "the server refused it: 400: prompt too long"
    chosen = rows[0]
    assert (chosen["answer"], chosen["choice_logprobs"]) == ("1: right here", [-2.0, -1.25, -2.0])
    assert rows[6]["prompt_text"] == "Question 0?"
    assert rows[6]["grader"] == "extract.match@1"


def test_the_header_names_all_four_and_compares(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Fake()) as fake:
        serve_bundled_as(monkeypatch, fake)
        for tier in ("bf16", "int8"):
            command.main(["--tier", tier])
    a, b = (Header.model_validate(read_results(project, t)[0]["header"]) for t in ("bf16", "int8"))
    assert differing(a, b) == ["quantisation"]
    assert (a.model.name, a.quantisation.name, b.quantisation.name, a.workload.name) == (
        "tiny@1", "bf16", "int8", "core-v1",
    )  # fmt: skip
    assert a.engine_derived == {"compute_dtype": "float32"}
    assert a.engine_requested["max_num_seqs"] == 16


def test_a_part_of_the_set_is_another_workload(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Fake()) as fake:
        serve_bundled_as(monkeypatch, fake)
        command.main(["--tier", "bf16"])
        write_params(project, items=2)
        command.main(["--tier", "int8"])
    (a, _), (b, rows) = read_results(project, "bf16"), read_results(project, "int8")
    assert b["partial"] is True
    assert len(rows) == 4
    assert b["header"]["workload"]["name"] == "core-v1-first-2"
    assert "workload" in differing(Header.model_validate(a["header"]), Header.model_validate(b["header"]))


def test_a_changed_item_is_another_workload_even_under_an_old_manifest(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    with serving(Fake()) as fake:
        serve_bundled_as(monkeypatch, fake)
        for _ in range(2):
            command.main(["--tier", "bf16"])
            digests.append(read_results(project, "bf16")[0]["header"]["workload"]["digest"])
            path = project / "evalsets/core/items/extract.jsonl"
            path.write_text(path.read_text().replace("Paris", "Rome"))
    assert digests[0] != digests[1]


def test_a_second_run_asks_nothing_and_says_when_it_was_measured(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Fake()) as fake:
        serve_bundled_as(monkeypatch, fake)
        command.main(["--tier", "bf16"])
        first, rows = read_results(project, "bf16")
        for path in (project / ".seatrial/work").glob("*/answers.jsonl"):  # as if it had been last year
            path.write_text(path.read_text().replace('"answered_at": "20', '"answered_at": "19'))
        command.main(["--tier", "bf16"])
    assert len(fake.requests) == 12
    again, rows_again = read_results(project, "bf16")
    assert rows_again == rows
    assert (first["usage"]["answers_reused"], again["usage"]["answers_reused"]) == (0, 12)
    assert again["header"]["measured_at"].startswith("19")


def test_a_server_that_dies_leaves_earlier_results_and_its_answers(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_params(project, concurrency=1)  # so that it is known how many answers are complete when it dies
    serve_process(monkeypatch)
    command.main(["--tier", "bf16"])
    before = read_results(project, "bf16")
    for path in (project / ".seatrial/work").glob("*/answers.jsonl"):
        path.unlink()

    serve_process(monkeypatch, die_after=5)
    with pytest.raises(SeatrialError, match=r"evaluate@bf16: the server of m ended with exit code 7(.|\n)*out of luck"):
        command.main(["--tier", "bf16"])
    assert read_results(project, "bf16") == before
    assert sorted(p.name for p in (project / "results/bf16").iterdir()) == ["eval"]

    serve_process(monkeypatch, die_after=7)  # enough for the rest, not for all
    command.main(["--tier", "bf16"])
    outcome, rows = read_results(project, "bf16")
    assert rows == before[1]
    assert outcome["usage"]["answers_reused"] == 5


def test_killed_in_the_middle_it_resumes(project: Path) -> None:
    fake = Fake()
    write_evalset(project, [chat_item(f"extract.{i}", f"Question {i}?") for i in range(40)])
    (project / "evalsets/core/items/choice.jsonl").unlink()
    with serving(fake):
        code = f"from tests.pipeline.evaluation.test_stage import resume_child\nresume_child({fake.base_url!r})\n"
        argv = [sys.executable, "-c", code]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        killed = subprocess.Popen(argv, cwd=project, env={**environment, "KILL_AT": "10"}, stderr=subprocess.DEVNULL)
        assert killed.wait(240) == -signal.SIGKILL
        assert not (project / "results/bf16").exists()
        asked = len(fake.requests)
        assert 10 <= asked < 40
        subprocess.run(argv, cwd=project, env=environment, check=True, timeout=240, stderr=subprocess.DEVNULL)
    outcome, rows = read_results(project, "bf16")
    assert len(rows) == 40
    assert outcome["usage"]["answers_reused"] >= 9
    assert len(fake.requests) - asked == 40 - outcome["usage"]["answers_reused"]


def resume_child(base_url: str) -> None:
    """The stage against ``base_url``; kills itself with SIGKILL when KILL_AT answers are on disk."""
    fake = Fake()
    fake.base_url = base_url
    patch = pytest.MonkeyPatch()
    serve_bundled_as(patch, fake)
    patch.setattr(stage, "_MEASURING_LOCK", Path("lock"))
    kill_at = int(os.environ.get("KILL_AT", "0"))
    if kill_at:
        from pipeline.evaluation.cache import AnswerCache

        put, count = AnswerCache.put, [0]

        def counted(self: AnswerCache, *args: Any) -> None:
            put(self, *args)
            count[0] += 1
            if count[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(10)

        patch.setattr(AnswerCache, "put", counted)
    command.main(["--tier", "bf16"])


def test_a_foreign_server_is_named_as_what_it_says_it_is(project: Path) -> None:
    with serving(Fake()) as fake:
        command.main(["--tier", "theirs", "--base-url", fake.base_url + "/v1/", "--model", "m"])
        command.main(["--tier", "theirs", "--base-url", fake.base_url])  # the first it lists
    outcome, _ = read_results(project, "theirs")
    head = outcome["header"]
    assert head["model"]["name"] == "m (as the server calls it, unverified)"
    assert head["engine"]["name"] == f"foreign at {fake.base_url} (unverified)"
    assert head["quantisation"]["name"] == "unknown (foreign server)"
    items = [r for r in fake.requests if asks_an_item(r)]
    assert (outcome["usage"]["answers_reused"], len(items)) == (0, 24)  # nothing proves that it is the same model


def asks_an_item(request: dict[str, Any]) -> bool:
    """And not what the server can do."""
    asked = request["messages"][-1]["content"] if "messages" in request else request["prompt"]
    return "Question" in asked or any("says the way is" in str(part) for part in asked)


def test_choices_are_not_measurable_at_a_server_that_scores_no_prompt(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Fake({"Question 0?": "It is Paris."}, fault="no_logprobs")) as fake:
        command.main(["--tier", "theirs", "--base-url", fake.base_url])
    outcome, rows = read_results(project, "theirs")
    why = outcome["not_measurable_by"]["prompt_logprobs"].pop("why")
    assert outcome["not_measurable_by"] == {"prompt_logprobs": {"items": 6, "kinds": ["choice"]}}
    assert why.startswith("not measurable here: prompt_logprobs, log-probabilities of the prompt")
    assert outcome["capabilities"]["found"]["prompt_logprobs"]["state"] == "no"
    assert (outcome["n"], outcome["correct"], outcome["errors"], outcome["not_measurable"]) == (12, 1, 6, 6)
    choices, others = rows[:6], rows[6:]
    assert {(r["kind"], r["lacks"], r["status"], r["correct"]) for r in choices} == {
        ("choice", "prompt_logprobs", "error", False)
    }
    assert {r["lacks"] for r in others} == {None}
    assert not [r for r in fake.requests if "says the way is" in str(r.get("prompt"))]  # not asked in vain
    assert "6 items (choice) are not measurable here: prompt_logprobs" in capsys.readouterr().err


def test_the_bundled_engines_capabilities_are_promised_and_not_asked_for(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Fake()) as fake:
        serve_bundled_as(monkeypatch, fake)
        command.main(["--tier", "int8"])
    assert len(fake.requests) == 12
    outcome, _ = read_results(project, "int8")
    assert outcome["capabilities"]["source"] == "promised"
    assert {f["state"] for f in outcome["capabilities"]["found"].values()} == {"yes"}
    assert outcome["not_measurable_by"] == {}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tier", "int3"], "unknown tier 'int3'"),
        (["--tier", "../up"], "expected letters, digits"),
        (["--tier", "x", "--model", "m"], "--model goes with --base-url"),
        (["--tier", "x", "--base-url", "http://127.0.0.1:9", "--model", "m"], "expected an OpenAI-compatible server"),
        (["--tier", "x", "--base-url", "http://127.0.0.1:9", "--target", "vllm"], "leave out --target vllm"),
        (["--tier", "x", "--base-url", "http://me:pass@127.0.0.1:9"], "holds a user name or password"),
        (["--tier", "x", "--base-url", "ftp://127.0.0.1:9"], "expected http://HOST:PORT"),
        (["--tier", "int8", "--target", "nobody"], "unknown target 'nobody'; params.yaml has bundled"),
    ],
)
def test_wrong_arguments_are_named(project: Path, argv: list[str], message: str) -> None:
    with pytest.raises(SeatrialError, match=message):
        command.main(argv)


def test_a_foreign_server_without_that_model(project: Path) -> None:
    with serving(Fake()) as fake, pytest.raises(SeatrialError, match="does not list model 'n'; it lists m"):
        command.main(["--tier", "x", "--base-url", fake.base_url, "--model", "n"])


def test_a_broken_line_of_the_evalset_is_named(project: Path) -> None:
    path = project / "evalsets/core/items/extract.jsonl"
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(SeatrialError, match=r"extract\.jsonl:7: "):
        command.main(["--tier", "bf16"])


def test_a_changed_artifact_is_not_evaluated_under_its_old_name(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "artifacts/bf16/model.safetensors").write_text("other weights")
    serve_bundled_as(monkeypatch, Fake())
    with pytest.raises(ArtifactError, match="the manifest says"):
        command.main(["--tier", "bf16"])


def test_code_that_could_not_be_measured_is_said_aloud(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.evaluation import sandbox

    write_evalset(project, [code_item()])
    monkeypatch.setattr(sandbox, "run", lambda *a, **k: sandbox.Result("not_measurable", "no isolation: refused"))
    with serving(Fake({"Write f.": "def f(x): return 2 * x"})) as fake:
        serve_bundled_as(monkeypatch, fake)
        command.main(["--tier", "bf16"])
    outcome, rows = read_results(project, "bf16")
    assert (outcome["not_measurable"], outcome["errors"], outcome["n"]) == (1, 1, 13)
    assert "1 items were not measurable here" in capsys.readouterr().err
    assert [r["status"] for r in rows if r["kind"] == "code"] == ["error"]


def test_what_only_people_can_judge_is_in_no_accuracy(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_evalset(project, [*some_items(4), chat_item("chat.1", "Be kind?", kind="chat", scenario="chat",
                                                      reference=None, grader={"name": "people.rubric"})])  # fmt: skip
    with serving(Fake({"Be kind?": "Gladly."})) as fake:
        serve_bundled_as(monkeypatch, fake)
        command.main(["--tier", "bf16"])
    outcome, rows = read_results(project, "bf16")
    assert (outcome["left_to_people"], outcome["n"]) == (1, len(rows))
    assert "chat" not in outcome["scenarios"]
    (row,) = [json.loads(x) for x in (project / "results/bf16/eval/people.jsonl").read_text().splitlines()]
    assert (row["id"], row["answer"], row["status"]) == ("chat.1", "Gladly.", "ok")


def test_a_long_prompt_is_shown_from_both_ends() -> None:
    from pipeline.evaluation.results import PROMPT_CHARS, prompt_text

    text = prompt_text(chat_item(question="begin " + "x" * 5000 + " end?"))
    assert len(text) <= PROMPT_CHARS
    assert text.startswith("begin ")
    assert text.endswith(" end?")
