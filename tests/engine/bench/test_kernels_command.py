"""`seatrial bench kernels` on the CPU's own kernels, at toy sizes; nothing is said of how fast they are."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.bench import kernels_command
from engine.bench.__main__ import main
from engine.bench.gpu.clock import Ceilings
from engine.bench.gpu.kernels import Case, Cases, _row
from engine.bench.gpu.models import SHAPES, layer_weights, linears_of, weight_bytes
from engine.config import EngineConfig

CEILINGS = Ceilings(copy_gb_per_s=100.0, bf16_tflops=10.0, int8_tops=20.0)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_command, "MODELS", ("toy",))
    monkeypatch.setattr(kernels_command, "Cases", partial(Cases, toy=True))
    monkeypatch.setattr(kernels_command, "_ceilings", lambda config, kernels: (_clock(), CEILINGS))


def _clock() -> Any:
    return kernels_command.Clock(torch.device("cpu"), None, toy=True)


@pytest.mark.usefixtures("toy")
def test_every_operation_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kernels.json"
    assert main(["kernels", "--device", "cpu", "--threads", "1", "--out", str(out)]) == 0, capsys.readouterr().err
    found = json.loads(out.read_text())
    assert found["kernels"] == "cpu"
    assert {(r["operation"], r["scheme"]) for r in found["rows"]} >= {
        *((name, scheme) for name in linears_of(SHAPES["toy"]) for scheme in ("bf16", "w8a8", "w4a16", "w4a8")),
        ("attention", "decode"),
        ("attention", "prompt"),
        ("rms_norm", ""),
        ("queries and KV write", ""),
        ("best", ""),
    }
    assert all(r["microseconds"] > 0 and r["gb_per_s"] > 0 for r in found["rows"])
    assert "ceilings: 100 GB/s" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["kernels", "--device", "cuda", "--out", str(tmp_path / "x.json")]) == 3
    assert "set backend to cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nbytes", "operations", "integer", "bound", "share"),
    [
        (10**9, 10**9, False, "copy", 0.5),  # 10 ms at 100 GB/s, in 20 ms
        (10**6, 10**11, False, "bf16 peak", 0.5),  # 10 ms at 10 TFLOP/s
        (10**6, 10**11, True, "int8 peak", 0.25),
    ],
)
def test_the_share_is_of_the_ceiling_that_binds(
    nbytes: int, operations: int, integer: bool, bound: str, share: float
) -> None:
    row = _row("8B", Case("x", "bf16", 1, None, [], nbytes, operations, integer), 0.02, CEILINGS)
    assert row.bound == bound
    assert row.share == pytest.approx(share)
    assert row.gb_per_s == pytest.approx(nbytes / 0.02 / 1e9)


def test_a_cpu_without_bf16_products_is_held_to_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = SimpleNamespace(read_gb_per_s=20.0, gops={"float32": 100.0})
    found = SimpleNamespace(measure=lambda: measured)
    monkeypatch.setattr(kernels_command, "meter", lambda threads: (found, ""))
    kernels: Any = SimpleNamespace(dtype=torch.float32)
    _, ceilings = kernels_command._ceilings(EngineConfig(threads=1), kernels)
    assert ceilings == Ceilings(20.0, 0.1, None, float_dtype="float32")
    row = _row("8B", Case("x", "bf16", 1, None, [], 10**6, 10**11), 2.0, ceilings)
    assert (row.bound, row.share) == ("float32 peak", pytest.approx(0.5))


def test_the_shapes_have_the_sizes_of_their_names() -> None:
    """135 million, 1.24 and 8.03 billion weights, embeddings included (the models' cards)."""
    sizes = {name: weight_bytes(SHAPES[name], "bf16") / 2e9 for name in ("135M", "1B", "8B")}
    assert sizes == {
        "135M": pytest.approx(0.1345, rel=0.01),
        "1B": pytest.approx(1.236, rel=0.01),
        "8B": pytest.approx(8.03, rel=0.01),
    }
    assert layer_weights(SHAPES["8B"]) == 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
