"""Limits are for a class of machine: on another they decide nothing, whatever the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.gate.machines import MachineClass, class_of
from pipeline.provenance import Machine
from tests.pipeline.gate.factory import MACHINE, header, records, write_load
from tests.pipeline.gate.helpers import change_params, judged, rule_of, slow

H200 = {"accelerators": ["NVIDIA H200"]}


@pytest.mark.parametrize(
    ("asked", "machine", "why"),
    [
        ({}, H200, None),
        ({"cores": [2, 4], "accelerator": "none"}, {}, None),
        ({"cores": [2, 4]}, {"cores": 8}, "8 cores, not 2 to 4"),
        ({"memory_gib": 16}, {}, "8 GiB, not 16"),
        ({"isa": ["avx2", "avx512_vnni"]}, {}, "no avx512_vnni"),
        ({"accelerator": "none"}, H200, "an accelerator (NVIDIA H200), not none"),
        ({"accelerator": "H200"}, H200, None),
        ({"accelerator": "H200"}, {}, "no accelerator, not H200"),
        ({"accelerator": "H[12]00"}, {"accelerators": ["NVIDIA A100"]}, "accelerator NVIDIA A100, not H[12]00"),
    ],
)
def test_a_machine_is_of_a_class_or_it_is_said_why_not(
    asked: dict[str, Any], machine: dict[str, Any], why: str | None
) -> None:
    assert MachineClass.model_validate(asked).mismatch(MACHINE.model_copy(update=machine)) == why


@pytest.mark.parametrize(
    ("changes", "name"),
    [({}, "cpu/2-core/avx2"), ({"isa": ["avx2", "avx512f", "avx512_vnni"]}, "cpu/2-core/avx512_vnni"),
     ({"isa": []}, "cpu/2-core/baseline"), (H200, "NVIDIA H200")],
)  # fmt: skip
def test_a_machine_has_a_short_name(changes: dict[str, Any], name: str) -> None:
    assert class_of(Machine(**MACHINE.model_dump() | changes)) == name


@pytest.mark.parametrize("factor", [1, 60])
def test_limits_of_another_class_decide_nothing_in_either_direction(run: Path, factor: float) -> None:
    elsewhere = header("int8", "ci-load")
    elsewhere["machine"] |= {"cores": 64}
    write_load(run, "int8", records(1, change=slow(factor, "ttft")), header=elsewhere)
    value = judged()
    found = rule_of(value, "ttft-p95/short_burst")
    assert found["outcome"] == "undecided"
    assert found["detail"].startswith(
        "limits are for class small-cpu, measured on cpu/64-core/avx2 (64 cores, not 2 to 4)"
    )
    assert "a measurement on a machine of class small-cpu" in found["would_decide"]
    assert value["verdict"] == "undecided"
    assert rule_of(value, "errors")["outcome"] == "pass"  # a share of failures is not a matter of the machine


def test_a_policy_for_another_class_is_a_matter_of_params(run: Path) -> None:
    def large(raw: dict[str, Any]) -> None:
        raw["gate"]["machine_classes"]["large"] = {"cores": [32, 128]}
        raw["gate"]["policies"]["pull_request"]["limits_for"] = "large"

    change_params(run, large)
    found = rule_of(judged(), "itl-p95/long_context")
    assert (found["outcome"], found["detail"][:32]) == ("undecided", "limits are for class large, meas")
