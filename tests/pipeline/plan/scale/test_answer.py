"""The sentence, and that flip points do flip."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pipeline.plan.scale.answer import DO_NOT_SPREAD, Answer, answer
from pipeline.plan.scale.devices import PRESETS as DEVICES
from pipeline.plan.scale.flips import FIGURES, Knob, crossing, duration, flip
from pipeline.plan.scale.links import Links, links_of
from pipeline.plan.scale.parallel import Split, splits
from pipeline.plan.scale.predict import Setting, Times, predict, times_of
from pipeline.plan.scale.report import flip_lines
from tests.pipeline.plan.scale.settings import link_of, roomy, setting_of


def asked(setting: Setting, links: Links, devices: int) -> Answer:
    return answer(setting, links, [predict(setting, s, links) for s in splits(devices)])


def sure(setting: Setting, split: Split, links: Links) -> Times:
    times = predict(setting, split, links).times
    assert times is not None
    return times


def test_one_machine_fast_two_machines_slower() -> None:
    """The incident: an 8B model fits one H100; its owner spreads it over two hosts, on 10 Gb/s Ethernet."""
    setting, ethernet = setting_of("llama-3.1-8b", "h100"), links_of("ethernet-10", None)
    one, two = sure(setting, Split(), ethernet), sure(setting, Split(tensor=2), ethernet)
    assert two.itl_s > 1.15 * one.itl_s
    assert two.ttft_s > 10 * one.ttft_s
    assert two.decode.memory_s == pytest.approx(one.decode.memory_s / 2)  # each reads half, which was the hope
    assert two.decode.wire.messages == 2 * 32 * 2 + 1  # two steps for each of 64 all-reduces, and the logits
    assert two.decode.wire.seconds > one.decode.memory_s / 2
    told = asked(setting, ethernet, 2)
    assert told.sentence.startswith(DO_NOT_SPREAD)
    assert "tp2 would take 1.19x as long a token, 58% of it on the wire" in told.sentence
    assert "Copies (data parallel) would serve more requests" in told.sentence
    flips = {(f.spread, f.figure, f.knob): f for f in told.flips}
    assert flips[Split(tensor=2), "itl", "bandwidth"].at is None  # the latency of 129 messages alone is too much
    at = flips[Split(tensor=2), "itl", "latency"].at
    assert at == pytest.approx(20.2, abs=0.05)
    for latency, faster in ((0.9 * at, True), (1.1 * at, False)):
        links = links_of("ethernet-10", None, None, latency)
        assert (sure(setting, Split(tensor=2), links).itl_s < one.itl_s) == faster


def test_the_same_two_machines_on_a_fast_link_are_faster() -> None:
    told = asked(setting_of("llama-3.1-8b", "h100"), links_of("nvlink4", None), 2)
    assert "spreading pays for inter-token latency (tp2: " in told.sentence
    assert told.best["itl"] == Split(tensor=2)


def test_many_requests_on_a_slow_link_want_copies() -> None:
    told = asked(setting_of("llama-3.1-8b", "h100", concurrency=64), links_of("ethernet-25", None), 4)
    assert told.sentence.startswith(DO_NOT_SPREAD)
    assert "For throughput run copies (data parallel): 4 give " in told.sentence
    assert told.best["throughput"] == Split(data=4)


def test_a_model_that_needs_several_gets_the_best_split() -> None:
    told = asked(setting_of("llama-3.1-70b", "h100", concurrency=16), links_of("nvlink4", None), 4)
    assert told.sentence.startswith("does not fit on one device (141 GB of weights")
    assert "use tp4, " in told.sentence
    slow = asked(setting_of("llama-3.1-70b", "h100", concurrency=16), links_of("ethernet-1", None), 4)
    assert "use pp2 x dp2, " in slow.sentence
    assert [f.at is not None for f in told.flips] == [True] * 6  # where tp4 and pp4 change places


def test_a_model_that_fits_nowhere_says_how_many_would_do() -> None:
    told = asked(setting_of("llama-3.1-405b", "l4"), links_of("pcie4", None), 4)
    assert told.sentence == "does not fit on 4 devices of l4; 64 would hold it."
    tiny = replace(DEVICES["l4"], memory_bytes=2**20)
    never = asked(setting_of("llama-3.1-8b", tiny), links_of("pcie4", None), 3)
    assert never.sentence.endswith("nor on any number up to 1024: 32 heads do not divide by 3.")


def test_one_device_alone_has_nothing_to_be_spread_over() -> None:
    told = asked(setting_of(), links_of("pcie4", None), 1)
    assert told.sentence.startswith(f"{DO_NOT_SPREAD}. One device: ")
    assert "copies" not in told.sentence.lower()
    assert told.flips == []


def test_a_device_that_holds_few_of_the_requests_says_so() -> None:
    told = asked(setting_of("llama-3.1-8b", "a100-40", concurrency=64, prompt=16384), links_of("ethernet-1", None), 2)
    assert " of 64 requests at a time)" in told.sentence


@hypothesis_settings(max_examples=30)
@given(
    split=st.sampled_from([Split(tensor=2), Split(tensor=8), Split(pipeline=2), Split(pipeline=8), Split(2, 2)]),
    figure=st.sampled_from(sorted(FIGURES)),
    knob=st.sampled_from(["bandwidth", "latency"]),
    concurrency=st.sampled_from([1, 8, 64]),
    gb_per_s=st.floats(0.1, 500),
    latency_us=st.floats(1, 500),
)
def test_a_flip_point_flips(
    split: Split, figure: str, knob: Knob, concurrency: int, gb_per_s: float, latency_us: float
) -> None:
    setting = setting_of(device=roomy(DEVICES["a100"]), concurrency=concurrency)
    links, cost = link_of(gb_per_s, latency_us), FIGURES[figure].cost
    found = flip(setting, links, split, Split(), (concurrency, concurrency), figure, knob)
    one = cost(times_of(setting, Split(), links, concurrency))

    def spread(value: float) -> float:
        changed = link_of(value, latency_us) if knob == "bandwidth" else link_of(gb_per_s, value)
        return cost(times_of(setting, split, changed, concurrency))

    if found.at is not None:
        better, worse = (1.01, 0.99) if knob == "bandwidth" else (0.99, 1.01)
        assert spread(found.at * better) < one < spread(found.at * worse)
    elif found.always == split:
        assert max(spread(1e-3), spread(1e4)) < one or spread(1e6) < one
    else:
        assert min(spread(v) for v in (1e-2, 1.0, 1e2, 1e4)) >= one
    perfect = cost(times_of(setting, split, link_of(1e4, 1e-2), concurrency))
    assert found.hopeless == (perfect >= one)


def test_a_crossing_is_found_to_a_millionth() -> None:
    assert crossing(lambda x: x - 7.25, 1e-3, 1e4) == pytest.approx(7.25, rel=2e-6)
    assert crossing(lambda x: 7.25 - x, 1e-3, 1e4) == pytest.approx(7.25, rel=2e-6)
    assert crossing(lambda x: 1.0, 1e-3, 1e4) is None


def test_flip_points_are_told_in_one_line_each() -> None:
    lines = flip_lines(asked(setting_of("llama-3.1-8b", "h100"), links_of("ethernet-10", None), 2).flips)
    assert lines[0] == (
        "inter-token latency: tp2 beats one device at no bandwidth alone; below 20.2 us a message (now 30)"
    )
    assert "one device beats pp2 whatever the link: inter-token latency, time to first token, throughput" in lines
    assert "one device beats tp2 unless both figures are better: throughput" in lines


def test_durations_read_well() -> None:
    assert [duration(s) for s in (3e-6, 0.00652, 1.104, 5000)] == ["3 us", "6.52 ms", "1.1 s", "5,000 s"]
