"""Presets, measured figures in their place, and what is refused."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from pipeline.errors import SeatrialError
from pipeline.plan.scale import devices
from pipeline.plan.scale.devices import PRESETS, device_of, of_ceilings
from pipeline.plan.scale.efficiency import CAPACITY_SHARE, LINK_SHARE
from pipeline.plan.scale.links import PRESETS as LINKS
from pipeline.plan.scale.links import links_of

CEILINGS = {"schema_version": 1, "device": "cpu", "threads": 2, "read_gb_per_s": 20.5, "gops": {"float32": 200.0}}


def test_presets_are_in_the_order_that_everybody_knows() -> None:
    for slower, faster in (("a100", "h100"), ("h100", "h200"), ("l4", "l40s"), ("v100", "a100")):
        assert PRESETS[slower].bytes_per_s < PRESETS[faster].bytes_per_s
    for slower, faster in (
        ("ethernet-1", "ethernet-10"),
        ("pcie3", "pcie4"),
        ("ib-hdr", "ib-ndr"),
        ("nvlink3", "nvlink4"),
    ):
        assert LINKS[slower].bytes_per_s < LINKS[faster].bytes_per_s
        assert LINKS[slower].latency_us >= LINKS[faster].latency_us
    assert PRESETS["a100"].memory_bytes == round(80 * 1024**3 * CAPACITY_SHARE)
    assert all(p.source for p in PRESETS.values())


def test_a_measured_figure_is_what_is_reached() -> None:
    measured = device_of("h100", gb_per_s=2500.0)
    assert measured.bytes_per_s == 2500e9
    assert measured.flops_per_s(False) == PRESETS["h100"].flops_per_s(False)
    assert device_of("h100", tflops=500.0).flops_per_s(True) == 500e12
    assert device_of("h100", memory_gib=40).memory_bytes == 40 * 1024**3
    link = links_of("ethernet-10", None, 1.1, 17.0).between
    assert (link.bytes_per_s, link.latency_us) == (1.1e9, 17.0)
    assert links_of("ethernet-10", None).between.bytes_per_s == 1.25e9 * LINK_SHARE
    far = links_of("nvlink4,ib-ndr", 8, 45.0)
    assert (far.within.bytes_per_s, far.between.bytes_per_s) == (LINKS["nvlink4"].bytes_per_s, 45e9)


@pytest.mark.parametrize(
    ("name", "figures", "words"),
    [
        ("abacus", {}, "'abacus' is no preset .* give --device-gbs, --device-tflops, --device-memory-gib as well"),
        ("abacus", {"gb_per_s": 1.0, "tflops": 1.0}, "give --device-memory-gib as well"),
    ],
)
def test_a_device_of_ones_own_needs_its_figures(name: str, figures: dict[str, Any], words: str) -> None:
    with pytest.raises(SeatrialError, match=words):
        device_of(name, **figures)


@pytest.mark.parametrize(
    ("names", "per_host", "words"),
    [
        ("carrier-pigeon", None, "'carrier-pigeon' is no preset .* needs --link-gbs and --link-latency-us"),
        ("nvlink4,ib-ndr", None, "two links .* go with --per-host"),
        ("nvlink4", 8, "one link goes without"),
        ("a,b,c", 8, "names 3 links; expected one, or two"),
    ],
)
def test_links_that_make_no_sense_are_refused(names: str, per_host: int | None, words: str) -> None:
    with pytest.raises(SeatrialError, match=words):
        links_of(names, per_host)


def test_this_cpu_is_what_the_engines_bench_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-m", "engine.bench", "ceilings"]
        return subprocess.CompletedProcess(command, 0, json.dumps(CEILINGS), "")

    monkeypatch.setattr(devices.subprocess, "run", run)
    found = device_of("this")
    assert found.backend == "cpu"
    assert found.bytes_per_s == 20.5e9
    assert found.flops_per_s(True) == 200e9  # no 8-bit products were measured
    wider = of_ceilings(json.dumps(CEILINGS | {"gops": {"float32": 200.0, "bf16": 900.0, "int8": 1500.0}}))
    assert (wider.flops_per_s(False), wider.flops_per_s(True)) == (900e9, 1500e9)


def test_a_cpu_that_cannot_be_measured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 3, "", "error: no compiler\n")

    monkeypatch.setattr(devices.subprocess, "run", run)
    with pytest.raises(SeatrialError, match="this CPU cannot be measured: error: no compiler; give its figures"):
        device_of("this")
    with pytest.raises(SeatrialError, match=r"gave '\{\}', expected a line of JSON"):
        of_ceilings("{}")
