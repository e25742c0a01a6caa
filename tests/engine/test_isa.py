"""What is read from /proc/cpuinfo."""

from __future__ import annotations

import platform
from pathlib import Path

from engine.isa import isa_features


def test_known_features_in_a_fixed_order(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t: fpu avx512_bf16 avx2 sse4_2\nprocessor : 1\nflags : none\n")
    assert isa_features(info) == [platform.machine(), "avx2", "avx512_bf16"]
    info.write_text("Features\t: fp asimd bf16\n")
    assert isa_features(info) == [platform.machine(), "bf16", "asimd"]


def test_without_the_file_only_the_machine_is_known(tmp_path: Path) -> None:
    assert isa_features(tmp_path / "none") == [platform.machine()]
