"""What answers of the bundled engine are kept under."""

from __future__ import annotations

from pipeline.targets.target import decisive

ON_A_CPU = {"compute_dtype": "bfloat16", "kv_dtype": "bfloat16", "kernels": "cpu", "isa": ["avx2"], "threads": 2}


def test_answers_of_one_kind_of_device_are_not_anothers() -> None:
    assert decisive(ON_A_CPU) == {k: v for k, v in ON_A_CPU.items() if k != "threads"}
    there = ON_A_CPU | {"kernels": "cuda", "device": {"name": "NVIDIA H200", "capability": [9, 0], "step_bytes": 1}}
    again = there | {"device": {"name": "NVIDIA H200", "capability": [9, 0], "step_bytes": 2}}
    other = there | {"device": {"name": "NVIDIA L4", "capability": [8, 9], "step_bytes": 1}}
    assert decisive(there) == decisive(again)
    assert len({str(decisive(d)) for d in (ON_A_CPU, there, other)}) == 3
