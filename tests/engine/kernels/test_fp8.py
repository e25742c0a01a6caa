"""8-bit floats, which CPUs leave to GPUs: codes and scales, products of them, keys and values in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.artifact import LinearSpec
from engine.config import EngineConfig
from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.reference.backend import quantise_rows_fp8
from engine.kernels.triton import TritonKernels
from tests.engine.kernels.conftest import DTYPES, assert_close
from tests.engine.kernels.cuda.fakes import FakeGraphs, device_runner
from tests.engine.kernels.cuda.test_runner import decode_batch, prefilled
from tests.engine.kernels.test_attention import Sequence, exact, place, run
from tests.engine.kernels.test_linear import normal, packed
from tests.engine.kernels.triton.conftest import interpreted
from tests.engine.runners import compute
from tests.tiny import make_tiny_artifact

CODES = torch.float8_e4m3fn
SPEC = LinearSpec(pattern="*", scheme="fp8")
BACKENDS: list[Any] = [ReferenceKernels, *([TritonKernels] if os.environ.get("TRITON_INTERPRET") == "1" else [])]


@pytest.fixture(params=BACKENDS, ids=lambda b: b.name)
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def kernels(request: pytest.FixtureRequest, backend: Any) -> Kernels:
    made: Kernels = backend(request.param, threads=1)
    return made


def wide_rows(dtype: torch.dtype, width: int) -> torch.Tensor:
    """Of all sizes, with zeros, halves between two codes, and numbers that are no codes even of the smallest scale."""
    rows = normal(40, width) * torch.logspace(-40, 30, 40)[:, None]
    rows[3] = 0.0
    rows[4] = torch.arange(width) / 512 * (448 / width) + 2**-10  # between the smallest codes
    rows[5, :3] = torch.tensor([448.0, 17.0, 19.0])
    return rows.to(dtype)


@interpreted
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_codes_and_scales_are_the_references(dtype: torch.dtype) -> None:
    x = wide_rows(dtype, 24)
    codes, scales = TritonKernels(dtype).quantise(x, torch.uint8)
    right, right_scales = quantise_rows_fp8(x)
    assert torch.equal(scales, right_scales[:, 0])
    assert torch.equal(codes.view(CODES).float(), right.float())


@interpreted
def test_all_codes_are_read_as_they_are() -> None:
    triton, reference = TritonKernels(torch.float32), ReferenceKernels(torch.float32, threads=1)
    numbers = torch.arange(256).to(torch.uint8).view(CODES).float()
    numbers = numbers[numbers.isfinite()].view(-1, 1, 2)  # 127 tokens of a head of two
    largest = torch.full((127, 1, 1), 448.0)
    k = torch.cat([numbers, largest, largest], dim=2)  # so that the scale is 1
    cache = triton.new_kv_cache(8, 16, 1, 4, CODES)
    triton.write_kv(k, k, cache, torch.arange(127))
    assert cache.k.dtype == torch.uint8
    assert torch.equal(cache.k.reshape(-1, 4)[:127].view(CODES).float(), k[:, 0])
    w = triton.pack_linear({"weight": k[:, 0].to(CODES), "weight_scale": torch.ones(127, 1)}, SPEC, None)
    right = reference.pack_linear({"weight": k[:, 0].to(CODES), "weight_scale": torch.ones(127, 1)}, SPEC, None)
    one_hot = torch.eye(4)
    assert torch.equal(triton.logits(one_hot, w), reference.logits(one_hot, right))


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block_size"), [(4, 1, 24, 4)])
def test_attention_over_codes(
    kernels: Kernels, heads: int, kv_heads: int, dim: int, block_size: int, window: int | None
) -> None:
    """Plain attention over what the codes stand for; in two pieces and in another place the same bits."""
    s = Sequence(1, 37, heads, kv_heads, dim, kernels.dtype)
    blocks = place([s], block_size, seed=1)
    whole = run(kernels, [(s, 0, 37)], kernels.new_kv_cache(blocks, block_size, kv_heads, dim, CODES), window)[0]
    meant = Sequence(1, 37, heads, kv_heads, dim, torch.float64)
    meant.q = s.q.double()
    for name in "kv":
        codes, scale = quantise_rows_fp8(getattr(s, name))
        setattr(meant, name, codes.double() * scale.double())
    assert_close(whole, exact(meant, torch.float64, window), kernels.dtype)
    place([s], block_size, seed=2)
    cache = kernels.new_kv_cache(blocks, block_size, kv_heads, dim, CODES)
    pieces = [run(kernels, [(s, a, b)], cache, window)[0] for a, b in ((0, 11), (11, 36), (36, 37))]
    assert torch.equal(torch.cat(pieces), whole)


def test_what_is_not_finite_is_not_hidden(kernels: Kernels) -> None:
    for bad in (torch.nan, torch.inf):
        s = Sequence(0, 9, 2, 1, 16, kernels.dtype)
        s.v[3, 0, 7] = bad
        place([s], 16, seed=0)
        out = run(kernels, [(s, 0, 9)], kernels.new_kv_cache(4, 16, 1, 16, CODES))[0].float()
        assert torch.isfinite(out[:3]).all()
        assert not torch.isfinite(out[3:]).all(-1).any()
        x = normal(3, 64).to(kernels.dtype)
        x[1, 5] = bad
        rows = torch.isfinite(kernels.logits(x, packed(kernels, "fp8", 64, 96))).all(1)
        assert rows.tolist() == [True, False, True]


def test_a_codes_weights_are_a_byte_each() -> None:
    triton = TritonKernels(torch.bfloat16)
    assert packed(triton, "fp8", 256, 128).nbytes == 256 * 128 + 4 * 128


def test_a_runner_with_keys_and_values_in_codes(tmp_path: Path) -> None:
    """Recorded and eager steps have the same bits, close to those over keys and values in bf16, in half the memory."""
    artifact, lengths = make_tiny_artifact(tmp_path, num_hidden_layers=1, head_dim=64), [33, 1, 50]
    made = {
        name: prefilled(device_runner(artifact, graphs, kv_dtype=kv), lengths)
        for name, graphs, kv in (
            ("recorded", FakeGraphs(), "fp8"), ("eager", None, "fp8"), ("wide", None, "bfloat16"),
        )
    }  # fmt: skip
    rows = {
        name: torch.cat([r for r in compute(r_, decode_batch(lengths)) if r is not None]) for name, r_ in made.items()
    }
    assert torch.equal(rows["recorded"], rows["eager"])
    assert (rows["recorded"] - rows["wide"]).abs().max() < 0.1 * rows["wide"].abs().max()
    narrow, wide = (made[name].derived["ledger"]["kv_bytes_per_token"] for name in ("recorded", "wide"))
    assert (narrow, wide) == (2 * made["wide"].shape.kv_heads * (64 + 4), 2 * made["wide"].shape.kv_heads * 64 * 2)
    pairs = [(0, 1)]
    made["eager"].copy_blocks(pairs)
    for tensor in made["eager"].caches[0].tensors:
        assert torch.equal(tensor[1], tensor[0])


def test_a_cpu_refuses_them() -> None:
    with pytest.raises(
        ValueError, match=r"kv_dtype is fp8 but backend is cpu; .*set device to cuda, or kv_dtype to int8"
    ):
        EngineConfig(kv_dtype="fp8")
    assert EngineConfig(kv_dtype="fp8", backend="cuda").kv_dtype == "fp8"
