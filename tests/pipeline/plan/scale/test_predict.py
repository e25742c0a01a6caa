"""Times of splits: a few by hand, and what must hold for all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.scale.devices import PRESETS as DEVICES
from pipeline.plan.scale.devices import device_of
from pipeline.plan.scale.disaggregate import disaggregation
from pipeline.plan.scale.efficiency import MEMORY_SHARE
from pipeline.plan.scale.links import links_of
from pipeline.plan.scale.parallel import Split, splits
from pipeline.plan.scale.predict import predict, times_of
from tests.pipeline.plan.scale.settings import link_of, roomy, setting_of

SPLITS = [s for n in (1, 2, 4, 8) for s in splits(n)]


def test_a_token_of_one_request_takes_the_time_to_read_the_weights() -> None:
    """8.03e9 x 2 bytes without the embedding, of 3,350 GB/s what is reached."""
    times = times_of(setting_of(prompt=1, output=1), Split(), link_of(1, 1), 1)
    read = (8.0303e9 - 128256 * 4096) * 2
    assert times.itl_s == pytest.approx(read / (3350e9 * MEMORY_SHARE), rel=1e-3)
    assert times.bound_by == "memory"


def test_a_long_prompt_takes_the_time_to_compute_it() -> None:
    """Kaplan et al. 2020: two operations a weight and token, and attention's; one row of logits, which only reads."""
    setting = setting_of(prompt=2048)
    times = times_of(setting, Split(), link_of(1, 1), 1)
    body = 8.0303e9 - 2 * 128256 * 4096
    flops, head = 2048 * (2 * body + 4 * 1024 * 4096 * 32), 128256 * 4096 * 2 / setting.device.bytes_per_s
    assert times.ttft_s == pytest.approx(flops / setting.device.flops_per_s(False) + head, rel=1e-3)


@given(split=st.sampled_from(SPLITS), concurrency=st.sampled_from([1, 3, 16, 64]), faster=st.floats(1, 1e3))
def test_a_better_link_never_makes_a_split_slower(split: Split, concurrency: int, faster: float) -> None:
    setting = setting_of(device=roomy(DEVICES["h100"]), concurrency=concurrency)
    resident = -(-concurrency // split.data)
    now = times_of(setting, split, link_of(1.0, 50.0), resident)
    for links in (link_of(faster, 50.0), link_of(1.0, 50.0 / faster)):
        then = times_of(setting, split, links, resident)
        assert then.itl_s <= now.itl_s
        assert then.ttft_s <= now.ttft_s
        assert then.tokens_per_s >= now.tokens_per_s


@given(copies=st.integers(1, 8), concurrency=st.integers(1, 64))
def test_one_device_and_copies_of_it_have_no_wire(copies: int, concurrency: int) -> None:
    setting = setting_of(concurrency=concurrency)
    slow = predict(setting, Split(data=copies), link_of(1e-3, 1e6)).times
    fast = predict(setting, Split(data=copies), link_of(1e3, 0.0)).times
    assert slow == fast
    assert slow is not None
    assert (slow.prefill.wire.seconds, slow.decode.wire.messages) == (0, 0)


def test_copies_multiply_throughput_where_there_are_requests_for_all() -> None:
    one = predict(setting_of(concurrency=8), Split(), link_of(1, 1)).times
    four = predict(setting_of(concurrency=32), Split(data=4), link_of(1, 1)).times
    idle = predict(setting_of(concurrency=1), Split(data=4), link_of(1, 1)).times
    alone = predict(setting_of(concurrency=1), Split(), link_of(1, 1)).times
    assert one is not None and four is not None and idle is not None and alone is not None  # noqa: PT018
    assert four.tokens_per_s == pytest.approx(4 * one.tokens_per_s)
    assert four.itl_s == one.itl_s
    assert idle.tokens_per_s == alone.tokens_per_s


@given(stages=st.sampled_from([2, 4, 8, 16]), concurrency=st.integers(1, 64))
def test_a_pipeline_is_never_quicker_for_one_request_and_never_beats_its_stages(stages: int, concurrency: int) -> None:
    perfect = link_of(1e6, 0.0)
    alone = setting_of(device=roomy(DEVICES["h100"]))
    one = times_of(alone, Split(), perfect, 1)
    spread = times_of(alone, Split(pipeline=stages), perfect, 1)
    assert spread.itl_s >= one.itl_s * (1 - 1e-9)
    assert spread.ttft_s >= one.ttft_s * (1 - 1e-9)
    many = setting_of(device=roomy(DEVICES["h100"]), concurrency=concurrency)
    both = [times_of(many, s, perfect, concurrency) for s in (Split(), Split(pipeline=stages))]
    assert both[1].tokens_per_s <= stages * both[0].tokens_per_s * (1 + 1e-9)
    assert both[1].groups == min(stages, concurrency)


def test_a_perfect_link_divides_a_token_by_the_devices() -> None:
    alone = setting_of(device=roomy(DEVICES["h100"]))
    one, eight = (times_of(alone, Split(tensor=n), link_of(1e9, 0.0), 1) for n in (1, 8))
    assert eight.itl_s == pytest.approx(one.itl_s / 8, rel=1e-4)


def test_a_group_beyond_one_host_is_as_fast_as_the_link_between_hosts() -> None:
    setting = setting_of("llama-3.1-405b", "h200")
    near_and_far = links_of("nvlink4,ethernet-25", 8)
    near, far = links_of("nvlink4", None), links_of("ethernet-25", None)
    assert times_of(setting, Split(tensor=8), near_and_far, 1) == times_of(setting, Split(tensor=8), near, 1)
    assert times_of(setting, Split(tensor=16), near_and_far, 1) == times_of(setting, Split(tensor=16), far, 1)


def test_eight_bit_products_are_faster_where_a_device_has_them() -> None:
    assert DEVICES["h100"].flops_per_s(True) == pytest.approx(2 * DEVICES["h100"].flops_per_s(False), rel=0.01)
    assert DEVICES["v100"].flops_per_s(True) == DEVICES["v100"].flops_per_s(False)


def test_a_prompts_kv_goes_over_the_link_once() -> None:
    setting = setting_of(prompt=4096)
    times = times_of(setting, Split(), link_of(1, 1), 1)
    link = link_of(10.0, 20.0).between
    found = disaggregation(setting, Split(), times, link)
    assert found.kv_bytes == 4096 * 128 * 1024
    assert found.transfer_s == pytest.approx(found.kv_bytes / 10e9 + 20e-6)
    assert found.exposed_s >= found.transfer_s / 32  # the last layer's part at least
    quick = disaggregation(setting, Split(), times, link_of(1000.0, 0.0).between)
    assert quick.exposed_s == pytest.approx(quick.transfer_s / 32)
    enough = disaggregation(setting, Split(), times, link_of(found.negligible_gb_per_s, 0.0).between)
    assert enough.transfer_s == pytest.approx(0.1 * times.ttft_s)
    assert found.link_keeps_up


def test_more_requests_than_fit_do_not_count_twice() -> None:
    device = device_of("own", 1000.0, 100.0, 20.0)
    setting = setting_of(device=device, concurrency=64, prompt=4096)
    found = predict(setting, Split(), link_of(1, 1))
    assert found.times is not None
    assert not found.all_at_once
    fewer = predict(setting_of(device=device, concurrency=found.times.resident, prompt=4096), Split(), link_of(1, 1))
    assert fewer.times is not None
    assert fewer.times.tokens_per_s == pytest.approx(found.times.tokens_per_s)
