"""What is read from /proc/cpuinfo, and what a limit leaves of it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import get_args

import pytest

from engine.isa import KNOWN, LEVELS, IsaLimit, isa_features, reason_of, target_of, within
from engine.kernels.errors import UnavailableError

ALL = ["x86_64", *KNOWN[:7]]


def test_known_features_in_a_fixed_order(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t: fpu avx512_bf16 avx2 sse4_2\nprocessor : 1\nflags : none\n")
    assert isa_features(info) == [platform.machine(), "avx2", "avx512_bf16"]
    info.write_text("Features\t: fp asimd bf16\n")
    assert isa_features(info) == [platform.machine(), "bf16", "asimd"]


def test_without_the_file_only_the_machine_is_known(tmp_path: Path) -> None:
    assert isa_features(tmp_path / "none") == [platform.machine()]


@pytest.mark.parametrize(
    ("limit", "left", "target"),
    [
        ("auto", ALL, None),
        ("avx512", ["x86_64", "avx2", "avx512f", "avx512_vnni"], "-march=skylake-avx512 -mavx512vnni"),
        ("avx2", ["x86_64", "avx2"], "-march=haswell"),
        ("baseline", ["x86_64"], "-march=x86-64"),
    ],
)
def test_a_limit_hides_the_rest(limit: IsaLimit, left: list[str], target: str | None) -> None:
    assert within(limit, ALL) == left
    assert target_of(limit, ALL, "x86_64") == target
    hidden = set(ALL) - set(left)
    assert all(f in reason_of(limit, ALL) for f in hidden)
    assert (limit in reason_of(limit, ALL)) is (limit != "auto")


def test_a_limit_does_not_add_what_the_cpu_lacks() -> None:
    older = ["x86_64", "avx2", "avx512f"]
    assert within("avx512", older) == older
    assert target_of("avx512", older, "x86_64") == "-march=skylake-avx512"
    assert reason_of("avx512", older) == "limited to avx512; unused: nothing"
    assert target_of("baseline", ["aarch64", "asimd"], "aarch64") == "-march=armv8-a"


@pytest.mark.parametrize(
    ("limit", "found", "machine", "message"),
    [
        ("avx512", ["x86_64", "avx2"], "x86_64", "isa is 'avx512', but this x86_64 CPU has avx2; set it to auto"),
        ("avx2", ["aarch64", "asimd"], "aarch64", "isa is 'avx2', but this aarch64 CPU has asimd"),
        ("baseline", ["riscv64"], "riscv64", "isa is 'baseline', but this riscv64 CPU has none of the known features"),
    ],
)
def test_more_than_there_is_is_refused(limit: IsaLimit, found: list[str], machine: str, message: str) -> None:
    with pytest.raises(UnavailableError, match=message):
        target_of(limit, found, machine)


def test_every_limit_has_a_level() -> None:
    assert {"auto", *LEVELS} == set(get_args(IsaLimit))
    assert all(set(level.keeps) <= set(KNOWN) for level in LEVELS.values())
