from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from loadtests.replay.scale import Replayed, quantiles
from loadtests.schedule import Share, due_times
from loadtests.traffic import about_tokens, prompt_of
from loadtests.workload import StageSpec
from tests.loadtests.replay.traces import BLOCK, azure, conversations, mooncake, replaying

STEADY = [(float(i), 100 + i, 10 + i) for i in range(60)]


def of(spec: StageSpec) -> Replayed:
    assert spec.replayed is not None
    return spec.replayed


def test_as_recorded(tmp_path: Path) -> None:
    spec = replaying(azure(tmp_path / "a.csv", STEADY), warmup_s=3, duration_s=9, from_s=5)
    sent = of(spec).requests
    assert [round(r.due_s, 3) for r in sent] == list(range(12))
    assert [(r.prompt_tokens, r.output_tokens) for r in sent] == [(100 + i, 10 + i) for i in range(5, 17)]
    assert [i for i, _ in due_times(spec, 1)] == list(range(12))
    scaling = of(spec).scaling
    assert (scaling.requests, scaling.length_factor, scaling.rate_factor) == (12, 1, 1)
    assert (scaling.cut_prompts, scaling.cut_outputs, scaling.dropped, scaling.rows) == (0, 0, 0, 60)
    assert scaling.recorded_per_s == scaling.replayed_per_s == 1


def test_faster_by_a_factor(tmp_path: Path) -> None:
    sent = of(replaying(azure(tmp_path / "a.csv", STEADY), duration_s=10, rate_factor=2.5)).requests
    assert [r.due_s for r in sent] == pytest.approx([i / 2.5 for i in range(25)], abs=1e-5)


@pytest.mark.parametrize("per_s", [0.5, 2, 5])
def test_at_a_rate_of_ones_own(tmp_path: Path, per_s: float) -> None:
    gaps = [(0.1 if i % 7 else 6.0) for i in range(80)]  # bursts, so the mean of the whole is not that of a part
    rows = [(sum(gaps[: i + 1]), 50, 5) for i in range(80)]
    replayed = of(replaying(azure(tmp_path / "a.csv", rows), duration_s=12, rate_per_s=per_s))
    assert len(replayed.requests) == per_s * 12
    scaling = replayed.scaling
    assert scaling.replayed_per_s == per_s
    assert scaling.recorded_per_s * scaling.rate_factor == pytest.approx(per_s)


@settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=25
)
@given(
    st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 900)), min_size=3, max_size=40),
    st.floats(0.05, 1),
    st.sampled_from(["cut", "drop"]),
)
def test_the_length_factor_is_the_largest_that_fits(
    tmp_path: Path, lengths: list[tuple[int, int]], fit: float, longer: str
) -> None:
    file = azure(tmp_path / "a.csv", [(float(i), p, o) for i, (p, o) in enumerate(lengths)])
    spec = replaying(
        file, duration_s=len(lengths), context_tokens=1048, fit_share=fit, longer=longer, reserve_tokens=24
    )
    scaling = of(spec).scaling

    def fitting(factor: float) -> int:
        return sum((p + o) * factor <= 1024 * (1 + 1e-9) for p, o in lengths)

    assert fitting(scaling.length_factor) >= math.floor(fit * len(lengths))
    if scaling.length_factor < 1:
        assert fitting(scaling.length_factor * 1.001) < fit * len(lengths)
    assert all(r.prompt_tokens + r.output_tokens <= 1024 for r in of(spec).requests)
    assert scaling.requests + scaling.dropped == len(lengths)
    if longer == "cut":
        assert scaling.dropped == 0
    else:
        assert scaling.cut_prompts == scaling.cut_outputs == 0


def test_what_is_too_long_is_cut_from_the_prompts_end(tmp_path: Path) -> None:
    file = azure(tmp_path / "a.csv", [(0, 90, 10), (1, 120, 30), (2, 50, 300), (3, 1, 1)])
    spec = replaying(file, duration_s=4, context_tokens=100, reserve_tokens=0)
    assert [r[2:4] for r in of(spec).requests] == [(90, 10), (70, 30), (50, 50), (1, 1)]
    scaling = of(spec).scaling
    assert (scaling.cut_prompts, scaling.cut_outputs) == (1, 1)
    assert scaling.prompt_tokens.recorded["max"] == 120
    assert scaling.prompt_tokens.replayed["max"] == 90
    dropped = of(replaying(file, duration_s=4, context_tokens=100, reserve_tokens=0, longer="drop")).scaling
    assert (dropped.dropped, dropped.requests) == (2, 2)
    assert any("2 requests dropped" in line for line in dropped.lines())


def test_outputs_by_a_factor_of_their_own(tmp_path: Path) -> None:
    file = azure(tmp_path / "a.csv", [(0, 1000, 100), (1, 2000, 100), (2, 3000, 100)])
    spec = replaying(file, duration_s=3, context_tokens=1000, reserve_tokens=0, fit_share=0.6, output_factor=2)
    assert of(spec).scaling.length_factor == 0.4
    assert [r[2:4] for r in of(spec).requests] == [(400, 200), (800, 200), (800, 200)]
    with pytest.raises(ValidationError, match="lower output_factor or fit_share"):
        replaying(file, duration_s=3, context_tokens=1000, fit_share=0.6, output_factor=20)


def test_requests_of_one_tick_are_spread_in_order_but_not_past_the_next(tmp_path: Path) -> None:
    rows = [(0, 10, i + 1) for i in range(50)] + [(2, 10, i + 51) for i in range(50)] + [(20, 10, 101)]
    spec = replaying(azure(tmp_path / "a.csv", rows), duration_s=10, rate_factor=2, spread_s=5)
    due = [at_s for _, at_s in due_times(spec, 1)]
    assert due == sorted(due) == [at_s for _, at_s in due_times(spec, 1)] != [at_s for _, at_s in due_times(spec, 2)]
    assert 0 < due[0] < due[49] < 1 < due[50] < due[99] < 3.5  # 2 s and 5 s of the trace, twice as fast
    assert due[99] > 2.5
    assert [prompt_of(spec, 1, i).max_tokens for i in range(100)] == list(range(1, 101))
    assert of(spec).scaling.same_time == 98
    parts = [list(due_times(spec, 1, Share(k, 3))) for k in range(3)]
    assert sorted(x for part in parts for x in part) == list(enumerate(due))


def test_without_a_spread_a_tick_is_a_burst_and_the_report_says_so(tmp_path: Path) -> None:
    spec = replaying(azure(tmp_path / "a.csv", [(0, 9, 9), (0, 9, 9), (9, 9, 9)]), duration_s=9)
    assert [at_s for _, at_s in due_times(spec, 1)] == [0, 0]
    assert any("sent at once" in line for line in of(spec).scaling.lines())


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ({"rate_factor": 10}, "trace ends at 59 s and has 60 requests from 0 s on; a stage of 10 s needs its seconds"),
        ({"rate_per_s": 7}, "needs 70 requests: lower from_s, the rate or the stage's seconds"),
        ({"from_s": 300}, "has 0 requests from 300 s on; expected two or more"),
        ({"longer": "drop", "context_tokens": 60}, "all 10 requests are longer than 12 tokens: lower length_factor"),
        ({"rate_per_s": 1, "rate_factor": 1}, "either rate_factor"),
        ({"length_factor": 1, "fit_share": 1}, "either length_factor"),
        ({"context_tokens": 50}, "leave less than 8"),
        ({"sha256": "ab"}, "the profile says ab"),
    ],
)
def test_a_replay_that_cannot_be(tmp_path: Path, arrivals: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        replaying(azure(tmp_path / "a.csv", STEADY), **arrivals)  # type: ignore[arg-type]


def test_a_replay_has_no_lengths_of_its_own(tmp_path: Path) -> None:
    spec = replaying(azure(tmp_path / "a.csv", STEADY))
    for key, value in (("prompt_tokens", {"kind": "fixed", "tokens": 4}), ("system", "shared")):
        with pytest.raises(ValidationError, match="brings its own lengths and prefixes"):
            StageSpec.model_validate(spec.model_dump(exclude_none=True) | {key: value}, context={"folder": tmp_path})


# --- prefixes --------------------------------------------------------------------------------------------------------


def common(a: list[str], b: list[str]) -> int:
    """Words that two texts have in common at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize(("factor", "block"), [(1.0, 512), (0.05, 26), (0.01, 5)])
def test_prompts_share_the_blocks_that_the_trace_shares(tmp_path: Path, factor: float, block: int) -> None:
    rows = conversations(3, 60)
    spec = replaying(mooncake(tmp_path / "m.jsonl", rows), duration_s=45, length_factor=factor)
    texts = [prompt_of(spec, 7, i).messages[0][1].split() for i in range(len(rows))]
    assert of(spec).scaling.block_tokens == block
    shared_blocks, near = 0, 0
    for i, (_, _, _, mine) in enumerate(rows):
        for j in range(i):
            hashes = common([str(h) for h in mine], [str(h) for h in rows[j][3]])
            words = common(texts[i], texts[j])
            full = min(hashes * block, len(texts[i]), len(texts[j]))
            assert full <= words < full + block
            near = max(near, words - full)
            shared_blocks += hashes
    assert shared_blocks > 100
    assert near <= 2  # by chance, what the trace does not share begins with the same word or two


@pytest.mark.parametrize("factor", [1.0, 0.05])
def test_the_share_of_shared_tokens_by_an_independent_count(tmp_path: Path, factor: float) -> None:
    rows = conversations(5, 120)
    spec = replaying(mooncake(tmp_path / "m.jsonl", rows), duration_s=90, length_factor=factor)
    scaling = of(spec).scaling
    texts = [prompt_of(spec, 1, i).messages[0][1].split() for i in range(len(rows))]
    hits = sum(max(common(texts[i], texts[j]) for j in range(i)) for i in range(1, len(rows)))
    total = sum(map(len, texts))
    assert scaling.shared_share is not None
    recorded, replayed = scaling.shared_share
    assert replayed == pytest.approx(hits / total, abs=0.005)  # a word or two by chance
    assert recorded == pytest.approx(replayed, abs=0.01)
    assert 0.2 < recorded < 0.9


def test_lengths_keep_their_factor_and_texts_their_lengths(tmp_path: Path) -> None:
    rows = conversations(5, 40)
    spec = replaying(mooncake(tmp_path / "m.jsonl", rows), duration_s=30, length_factor=0.1)
    scaling = of(spec).scaling
    assert scaling.length_factor == 51 / BLOCK
    for i, (_, prompt, _, _) in enumerate(rows):
        assert about_tokens(prompt_of(spec, 1, i).messages[0][1]) == max(1, round(prompt * 51 / BLOCK))


def test_another_seed_shares_nothing_with_the_first(tmp_path: Path) -> None:
    spec = replaying(mooncake(tmp_path / "m.jsonl", conversations(5, 40)), duration_s=30, length_factor=0.1)
    texts = [[prompt_of(spec, seed, i).messages[0][1].split() for i in range(40)] for seed in (1, 2)]
    assert max(common(a, b) for a in texts[0] for b in texts[1]) <= 3


def test_block_hashes_that_do_not_go_with_the_lengths(tmp_path: Path) -> None:
    file = mooncake(tmp_path / "m.jsonl", [(0, 600, 5, [1, 2]), (5, 600, 5, [1])])
    with pytest.raises(ValidationError, match=r"at 5.000 s of the trace has 1 block hashes for 600 tokens; expected 2"):
        replaying(file)


def test_blocks_too_short_to_differ(tmp_path: Path) -> None:
    file = mooncake(tmp_path / "m.jsonl", conversations(5, 400))
    with pytest.raises(ValidationError, match=r"becomes 1 words, and \d+ blocks need 2 to differ: raise length_factor"):
        replaying(file, duration_s=290, length_factor=0.002)


def test_quantiles_of_a_population() -> None:
    assert quantiles(list(range(1, 201))) == {"p50": 100, "p95": 190, "p99": 198, "max": 200}
