"""Asking and judging all items: order, errors, limits on failures, reuse."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.artifact import Named
from pipeline.errors import SeatrialError
from pipeline.evaluation import client as client_module
from pipeline.evaluation import run, sandbox
from pipeline.evaluation.cache import AnswerCache, open_cache
from pipeline.evaluation.client import ProtocolError, Reply
from pipeline.evaluation.run import Answered, answer_all, judge_all, select
from pipeline.targets.target import Target
from tests.pipeline.evaluation.fake_openai import Fake, serving
from tests.pipeline.evaluation.make import chat_item, choice_item, code_item, some_items

NOBODY = Named(name="nobody", digest="0" * 64)


def target(fake: Fake, model: str = "m", **more: object) -> Target:
    given = {"engine_requested": {}, "engine_derived": {}, "cache_identity": {"model": model}, **more}
    return Target(fake.base_url, model, NOBODY, NOBODY, NOBODY, **given)  # type: ignore[arg-type]


def nothing() -> None:
    pass


def forgetful() -> AnswerCache:
    return AnswerCache({}, None)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ATTEMPTS", 1)


def test_results_stand_in_the_order_of_the_evalset_and_each_item_is_asked_once() -> None:
    items = [chat_item(f"extract.{i}", f"Q{i}", max_tokens=1 + i % 5) for i in range(20)] + [choice_item()]
    with serving(Fake()) as fake:
        found = answer_all(items, target(fake), forgetful(), 4, nothing)
    assert [a.item.id for a in found] == [i.id for i in items]
    assert [a.reply.text for a in found[:20] if a.reply] == [f"answer to Q{i}" for i in range(20)]
    assert len(fake.requests) == 21


def test_as_many_as_asked_for_run_at_once() -> None:
    fake = Fake()
    fake.gate = threading.Event()
    watcher = threading.Thread(target=lambda: _open_gate_at(fake, 3))
    with serving(fake):
        watcher.start()
        answer_all([chat_item(f"extract.{i}") for i in range(9)], target(fake), forgetful(), 3, nothing)
        watcher.join()
    assert fake.most_running == 3


def _open_gate_at(fake: Fake, running: int) -> None:
    pause = threading.Event()
    for _ in range(24_000):
        if fake.running >= running:
            break
        pause.wait(0.01)
    assert fake.gate is not None
    fake.gate.set()


def test_progress_reaches_the_end_with_reused_and_refused_items() -> None:
    items = some_items()
    fake, steps, cache = Fake(), [], forgetful()
    fake.refuse = {"Question 2?"}
    with serving(fake):
        answer_all(items[:4], target(fake), cache, 2, nothing)
        answer_all(items, target(fake), cache, 2, lambda: steps.append(1))
    assert len(steps) == len(items)


def test_a_refused_item_is_an_error_and_stays_in() -> None:
    items = some_items()
    fake = Fake()
    fake.refuse = {"Question 2?"}
    with serving(fake):
        found = answer_all(items, target(fake), forgetful(), 4, nothing)
    assert [a.item.id for a in found if a.reply is None] == ["extract.2"]
    judged = judge_all(found, nothing)
    assert len(judged) == len(items)
    bad = judged[2].grade
    assert (bad.status, bad.correct, bad.reason) == ("error", False, "the server refused it: 400: prompt too long")


def test_a_few_transport_failures_are_errors_of_their_items() -> None:
    items = [chat_item(f"extract.{i}", f"Q{i}") for i in range(60)]
    fake = Fake()
    fake.drop = {"Q3"}
    with serving(fake):
        found = answer_all(items, target(fake), forgetful(), 4, nothing)
    assert [a.item.id for a in found if a.reply is None] == ["extract.3"]
    assert str(found[3].reason).startswith("no answer: ")


def test_many_transport_failures_end_the_run_and_keep_what_was_answered(tmp_path: Path) -> None:
    items = [chat_item(f"extract.{i}", f"Q{i}") for i in range(60)]
    fake = Fake()
    fake.drop = {f"Q{i}" for i in range(30, 60)}
    with serving(fake), open_cache({"a": 1}, tmp_path) as cache:
        with pytest.raises(
            SeatrialError, match=r"\d of 60 items got no answer, at most 1 may; the last: extract\.\d+: "
        ):
            answer_all(items, target(fake), cache, 2, nothing)
        assert cache.get(items[0], client_module.request_for(items[0], "m")) is not None


def test_a_wrong_form_ends_the_run() -> None:
    with serving(Fake(fault="no_logprobs")) as fake, pytest.raises(ProtocolError, match="choice"):
        answer_all(some_items(), target(fake), forgetful(), 4, nothing)


def test_a_server_that_is_known_dead_ends_the_run_though_connections_hang() -> None:
    fake = Fake()
    fake.gate = threading.Event()  # no request is ever answered

    def dead() -> None:
        if fake.running:
            raise SeatrialError("ended with exit code 7")

    with serving(fake):
        with pytest.raises(SeatrialError, match="exit code 7"):
            answer_all(some_items(), target(fake, check_alive=dead), forgetful(), 4, nothing)
        fake.gate.set()


def test_a_server_that_stays_unhealthy_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "UNHEALTHY_S", 0.0)
    monkeypatch.setattr(run, "HEALTH_EVERY_S", 0.0)
    fake = Fake()
    fake.gate = threading.Event()
    with serving(fake):
        with pytest.raises(SeatrialError, match="has not been healthy for 0 s"):
            answer_all(some_items(), target(fake, health_url="http://127.0.0.1:9/health"), forgetful(), 4, nothing)
        fake.gate.set()


def test_answers_of_one_model_are_never_given_for_another(tmp_path: Path) -> None:
    items = some_items()
    a, b = Fake({f"Question {i}?": "A" for i in range(6)}), Fake({f"Question {i}?": "B" for i in range(6)})
    with serving(a), serving(b):
        for _ in range(2):
            for fake, name in ((a, "a"), (b, "b")):
                with open_cache({"artifact": name}, tmp_path) as cache:
                    found = answer_all(items, target(fake, "m"), cache, 4, nothing)
                assert [x.reply.text for x in found[:6] if x.reply] == [name.upper()] * 6
    assert (len(a.requests), len(b.requests)) == (12, 12)


def test_cut_off_answers_are_wrong_even_when_right() -> None:
    with serving(Fake({"Which city?": "Paris"}, fault="cut")) as fake:
        (judged,) = judge_all(answer_all([chat_item()], target(fake), forgetful(), 1, nothing), nothing)
    assert (judged.grade.correct, judged.grade.status, judged.grade.reason) == (False, "ok", "cut off at 3 tokens")


def test_code_without_isolation_is_an_error_and_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "run", lambda *a, **k: sandbox.Result("not_measurable", "no isolation: refused"))
    answered = Answered(code_item(), Reply("def f(x): return 2 * x", "stop", 1, 1, None, "2026-01-01T00:00:00Z"))
    (judged,) = judge_all([answered], nothing)
    assert (judged.grade.status, judged.grade.correct) == ("error", False)
    assert judged.grade.reason == "not measurable here: no isolation: refused"


def test_at_most_two_sandboxes_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, running, most, barrier = threading.Lock(), [0], [0], threading.Barrier(2, timeout=240)

    def slow(*args: object, **kwargs: object) -> sandbox.Result:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        barrier.wait()  # only passed in pairs: both places are used
        with lock:
            running[0] -= 1
        return sandbox.Result("passed")

    monkeypatch.setattr(sandbox, "run", slow)
    reply = Reply("def f(x): return 2 * x", "stop", 1, 1, None, "2026-01-01T00:00:00Z")
    judged = judge_all([Answered(code_item(f"code.{i}"), reply) for i in range(8)], nothing)
    assert all(j.grade.correct for j in judged)
    assert most[0] == 2


def test_the_first_so_many_of_each_scenario_are_taken_in_order() -> None:
    assert [i.id for i in select(some_items(), 2)] == ["extract.0", "extract.1", "choice.0", "choice.1"]
    assert select(some_items(), None) == some_items()


def test_ids_must_be_unique() -> None:
    with pytest.raises(SeatrialError, match=r"two items have the id 'extract\.0'"):
        select([*some_items(), chat_item("extract.0")], None)


def test_an_item_that_does_not_suit_its_grader_is_named_before_anything_is_asked() -> None:
    with pytest.raises(
        SeatrialError, match=r"item choice\.one: choice\.loglikelihood: reference is 7, but there are 3"
    ):
        select([choice_item(reference=7)], None)
