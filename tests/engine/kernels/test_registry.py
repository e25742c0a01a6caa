"""Which kernels are taken, and what is recorded when the C ones cannot be had."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from engine.kernels.cpu import compile as compiler
from engine.kernels.cpu.backend import CpuKernels
from engine.kernels.errors import UnavailableError
from engine.kernels.reference import ReferenceKernels
from engine.kernels.registry import select


def test_the_compiled_kernels_come_first() -> None:
    kernels, reason = select("cpu", torch.float32, 1)
    assert (kernels.name, reason) == ("cpu", "available")


def test_without_a_compiler_the_reference_runs_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    kernels, reason = select("cpu", torch.float32, 1)
    assert isinstance(kernels, ReferenceKernels)
    assert reason == "cpu -> no C compiler: none of cc, gcc, clang is on the PATH"


def test_a_failing_compiler_is_reported_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "cc"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo cc 0 && exit 0\necho "no space for headers" >&2\nexit 1\n'
    )
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kernels, reason = select("cpu", torch.float32, 1)
    assert kernels.name == "reference"
    assert "failed: no space for headers" in reason
    assert "no space for headers" in caplog.text
    assert not list((tmp_path / "cache").rglob("*.so"))
    assert not list((tmp_path / "cache" / "seatrial" / "kernels").iterdir())


def test_an_unwritable_cache_is_a_reason(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(UnavailableError, match="cannot be built in"):
        compiler.load(directory=taken / "kernels")


def test_unknown_backend() -> None:
    with pytest.raises(UnavailableError, match="backend 'tpu' has no kernels in this version; expected one of cpu"):
        select("tpu", torch.float32, 1)


def test_built_once_and_kept_by_source_and_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compiler, "FLAGS", compiler.FLAGS.replace("-O3", "-O1")
    )  # built, not computed with: in less time
    compiler.load(directory=tmp_path)
    (built,) = tmp_path.iterdir()
    before = built.stat().st_mtime_ns
    compiler.load(directory=tmp_path)
    assert [p.stat().st_mtime_ns for p in tmp_path.iterdir()] == [before]


@pytest.mark.skipif("avx2" not in compiler.isa_features(), reason="needs an x86 CPU with AVX2")
@pytest.mark.parametrize("target", ["-march=x86-64", "-march=haswell"])
def test_older_machines_get_the_same_results(target: str) -> None:
    """The narrow-register builds agree with the reference and keep rows apart, too."""
    from tests.engine.kernels import test_attention, test_linear, test_rows

    for dtype in (torch.float32, torch.bfloat16):
        kernels = CpuKernels(dtype, threads=2, target=target)
        for scheme in test_linear.SCHEMES:
            test_linear.test_equals_the_dequantised_product(kernels, scheme, 160, 64)
            test_linear.test_a_row_does_not_see_its_neighbours(kernels, scheme, 256, 40)
        for kv_dtype in (dtype, torch.int8, torch.uint4):
            test_attention.test_equals_plain_attention(kernels, 9, 3, 64, 16, kv_dtype, 20)
            test_attention.test_any_batch_and_any_split_give_the_same_bits(kernels, 4, 2, 16, 16, kv_dtype, 21)
        test_rows.test_rms_norm(kernels, 40)
        test_rows.test_gated_mul(kernels, 100, "gelu_tanh")
