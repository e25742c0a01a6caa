from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from statistics import median
from typing import Any

import pytest
from scipy import stats

from loadtests.distributions import Fixed, Lognormal, Uniform, draw_length
from loadtests.traffic import TRAFFIC_VERSION, Conversation, Prompt, prompt_of, session_of
from loadtests.words import about_tokens
from loadtests.workload import StageSpec, load_profile

CI = load_profile("ci")
# Of the first 20 prompts of each stage of a frozen profile. Differs: raise TRAFFIC_VERSION, then this.
GOLDEN = {1: "1137a11217ae28b1063db95d4ba4c9228ec24ae763b5238b54fe42688f6eb6d4"}


def spec(system: object = "unique", **kwargs: object) -> StageSpec:
    return StageSpec.model_validate(
        {
            "name": "s",
            "warmup_s": 0,
            "duration_s": 1,
            "arrivals": {"kind": "closed", "concurrency": 1},
            "prompt_tokens": {"kind": "uniform", "min": 40, "max": 80},
            "output_tokens": {"kind": "lognormal", "median": 10, "sigma": 0.5, "min": 2, "max": 40},
            "system": system,
            **kwargs,
        }
    )


def words(text: str) -> int:
    return len(text.split())


def test_the_version_and_the_traffic_belong_together() -> None:
    made = [prompt_of(spec(system), 7, i) for system in ("none", "shared", "unique") for i in range(20)]
    text = json.dumps([[p.messages, p.max_tokens] for p in made])
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN[TRAFFIC_VERSION]


def test_a_request_is_the_same_whenever_it_is_made() -> None:
    later = [prompt_of(spec(), 1, i) for i in reversed(range(50))]
    assert [prompt_of(spec(), 1, i) for i in range(50)] == later[::-1]


@pytest.mark.parametrize("stage", CI.stages, ids=lambda s: s.name)
def test_no_two_requests_begin_alike_unless_asked(stage: StageSpec) -> None:
    begins = set()
    for i in range(400):
        messages = dict(prompt_of(stage, 3, i).messages)
        first = messages["user"] if stage.system in ("shared", "none") else messages["system"]
        begins.add(" ".join(first.split()[:8]))
    assert len(begins) == 400


def test_stages_and_seeds_do_not_share_prompts() -> None:
    def of(stage: StageSpec, seed: int) -> set[str]:
        return {dict(prompt_of(stage, seed, i).messages)["user"] for i in range(100)}

    assert not of(spec(), 1) & of(spec(), 2)
    assert not of(spec(), 1) & of(spec(name="t"), 1)


def test_system_messages() -> None:
    assert len(prompt_of(spec("none"), 1, 0).messages) == 1
    shared = {dict(prompt_of(spec("shared"), 1, i).messages)["system"] for i in range(20)}
    unique = {dict(prompt_of(spec("unique"), 1, i).messages)["system"] for i in range(20)}
    assert (len(shared), len(unique)) == (1, 20)


@pytest.mark.parametrize("tokens", [8, 40, 400, 1200])
def test_lengths_are_about_what_was_asked(tokens: int) -> None:
    for i in range(20):
        prompt = prompt_of(spec("none", prompt_tokens={"kind": "fixed", "tokens": tokens}), 5, i)
        text = prompt.messages[0][1]
        assert abs(words(text) + text.count(".") - tokens) <= max(2, tokens * 0.02)


def test_draws_stay_in_bounds_and_reach_them() -> None:
    rng = random.Random(0)
    assert {draw_length(Fixed(kind="fixed", tokens=9), rng) for _ in range(5)} == {9}
    assert {draw_length(Uniform(kind="uniform", min=3, max=6), rng) for _ in range(200)} == {3, 4, 5, 6}


def test_the_lognormal_has_its_median_and_nothing_piled_up_at_the_end() -> None:
    lengths = Lognormal(kind="lognormal", median=100, sigma=0.8, min=10, max=300)
    rng = random.Random(1)
    drawn = [draw_length(lengths, rng) for _ in range(4000)]
    assert min(drawn) >= 10
    assert max(drawn) <= 300
    assert sum(d == 300 for d in drawn) < 20
    assert 80 < median(drawn) < 105  # a little below 100: the long tail is cut


# --- system prompts --------------------------------------------------------------------------------------------------


def test_several_system_prompts_have_their_shares_and_lengths() -> None:
    three = [{"tokens": 40, "weight": 3}, {"tokens": 100, "weight": 2}, {"tokens": 300}]
    stage = spec(system={"share": 0.75, "prompts": three})
    counts = Counter(dict(prompt_of(stage, 1, i).messages).get("system") for i in range(2000))
    without = counts.pop(None)
    assert len(counts) == 3
    by_length = sorted(counts, key=lambda text: len(text or ""))
    assert [about_tokens(text or "") for text in by_length] == pytest.approx([40, 100, 300], abs=2)
    expected = [2000 * share for share in (0.25, 0.375, 0.25, 0.125)]
    assert stats.chisquare([without, *(counts[t] for t in by_length)], expected).pvalue > 1e-4


def test_system_prompts_leave_the_users_messages_alone() -> None:
    with_them = spec(system={"prompts": [{"tokens": 40}]})
    assert [prompt_of(with_them, 1, i).messages[-1] for i in range(20)] == [
        prompt_of(spec("none"), 1, i).messages[-1] for i in range(20)
    ]


# --- users' ways -----------------------------------------------------------------------------------------------------

PATIENCE = {"kind": "exponential", "mean_s": 2}


def test_some_users_leave_and_the_text_does_not_change() -> None:
    stage = spec(abandon={"share": 0.3, "patience": PATIENCE}, think={"kind": "fixed", "s": 1.5})
    made = [prompt_of(stage, 1, i) for i in range(3000)]
    left = [p.leave_after_s for p in made if p.leave_after_s is not None]
    assert stats.binomtest(len(left), 3000, 0.3).pvalue > 1e-4
    assert stats.kstest(left, stats.expon(scale=2).cdf).pvalue > 1e-4
    assert {p.think_s for p in made} == {1.5}
    plain = [prompt_of(spec(), 1, i) for i in range(50)]
    assert [(p.messages, p.max_tokens) for p in made[:50]] == [(p.messages, p.max_tokens) for p in plain]
    assert {(p.leave_after_s, p.think_s, p.session, p.turn) for p in plain} == {(None, 0.0, None, 0)}


# --- sessions --------------------------------------------------------------------------------------------------------


def sessions(**settings: Any) -> StageSpec:
    return spec("shared", sessions={"turns": 6, "context_tokens": 4000} | settings, think={"kind": "fixed", "s": 1})


def test_a_session_begins_as_its_first_prompt_and_goes_on_with_the_user_alone() -> None:
    turns = session_of(sessions(next_tokens={"kind": "fixed", "tokens": 12}), 1, 5)
    assert turns[0] == prompt_of(sessions(), 1, 5)
    assert [p.turn for p in turns] == list(range(6))
    assert {p.session for p in turns} == {"s-5"}
    assert [[role for role, _ in p.messages] for p in turns] == [["system", "user"]] + [["user"]] * 5
    assert all(about_tokens(p.messages[0][1]) == pytest.approx(12, abs=2) for p in turns[1:])
    assert len({p.messages for p in turns}) == 6
    assert turns == session_of(sessions(next_tokens={"kind": "fixed", "tokens": 12}), 1, 5)


def test_without_sessions_an_arrival_is_one_prompt() -> None:
    assert session_of(spec(), 1, 3) == (prompt_of(spec(), 1, 3),)


def test_sessions_go_on_as_often_as_the_profile_says() -> None:
    lengths = Counter(len(session_of(sessions(go_on_share=0.5), 1, i)) for i in range(2000))
    expected = [2000 * 0.5**n for n in range(1, 6)] + [2000 * 0.5**5]
    assert stats.chisquare([lengths[n] for n in range(1, 7)], expected).pvalue > 1e-4


@pytest.mark.parametrize("context_tokens", [250, 500, 900])
def test_a_session_never_outgrows_the_context(context_tokens: int) -> None:
    counts = set()
    for i in range(200):
        talk, used = Conversation(), 0
        turns = session_of(sessions(turns=50, context_tokens=context_tokens), 1, i)
        for p in turns:
            sent = talk.ask(p)
            used = sum(about_tokens(text) for _, text in sent) + p.max_tokens
            talk.answered(p, " ".join(["word"] * p.max_tokens))  # an answer at its longest
        assert used <= context_tokens
        counts.add(len(turns))
    assert max(counts) > 1
    assert max(counts) < 50


def test_later_turns_carry_the_answers_that_came() -> None:
    talk = Conversation()
    first, second = Prompt((("system", "S"), ("user", "A")), 5), Prompt((("user", "B"),), 5, turn=1)
    assert talk.ask(first) == (("system", "S"), ("user", "A"))
    talk.answered(first, "one")
    assert talk.ask(second) == (("system", "S"), ("user", "A"), ("assistant", "one"), ("user", "B"))
    talk.answered(second, "")
    assert talk.ask(Prompt((("user", "C"),), 5, turn=2))[-2:] == (("assistant", ""), ("user", "C"))
