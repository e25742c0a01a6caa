from __future__ import annotations

import hashlib
import json
import random
from statistics import median

import pytest

from loadtests.distributions import Fixed, Lognormal, Uniform, draw_length
from loadtests.traffic import TRAFFIC_VERSION, prompt_of
from loadtests.workload import StageSpec, load_profile

CI = load_profile("ci")
# Of the first 20 prompts of each stage of a frozen profile. Differs: raise TRAFFIC_VERSION, then this.
GOLDEN = {1: "1137a11217ae28b1063db95d4ba4c9228ec24ae763b5238b54fe42688f6eb6d4"}


def spec(system: str = "unique", **kwargs: object) -> StageSpec:
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
