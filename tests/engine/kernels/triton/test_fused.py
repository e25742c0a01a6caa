"""What Triton's kernels do in one launch, against the same in several; and the greedy draw."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.composed import Composed
from engine.kernels.errors import UnavailableError
from engine.kernels.interface import Activation, AttentionMeta, Heads, StepInput
from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton import TritonKernels
from tests.engine.kernels.conftest import assert_close
from tests.engine.kernels.test_linear import packed
from tests.engine.kernels.triton.conftest import interpreted

pytestmark = interpreted


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kv_dtype", [None, torch.int8, torch.uint4], ids=["kv", "kv-int8", "kv-int4"])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("dim", [16, 24])
def test_queries_are_norm_rope_and_write(
    triton: TritonKernels, dim: int, norms: bool, kv_dtype: torch.dtype | None
) -> None:
    rows, angles = 7, normal(40, dim // 2, seed=1)
    weights = [normal(dim, seed=i) if norms else None for i in (2, 3)]
    about = Heads(4, 2, dim, *weights, eps=1e-5)
    slots = torch.randperm(24, generator=torch.Generator().manual_seed(4))[:rows]
    nothing = torch.zeros(1, dtype=torch.int32)
    positions = torch.tensor([0, 1, 2, 39, 7, 8, 3])
    step = StepInput(positions, positions, slots, AttentionMeta(nothing, nothing, nothing[None]), positions)
    qkv = normal(rows, 8 * dim, seed=5).to(triton.dtype)
    made = []
    for kernels, run in ((triton, triton.queries), (triton, None), (ReferenceKernels(triton.dtype, threads=1), None)):
        cache = kernels.new_kv_cache(3, 8, 2, dim, kv_dtype or triton.dtype)
        queries = run or Composed.queries.__get__(kernels)
        made.append([queries(qkv, about, angles.cos(), angles.sin(), step, cache), *cache.tensors])
    for fused, apart, expected in zip(*made, strict=True):
        assert torch.equal(fused, apart)
        if expected.dtype == torch.int8:
            assert (fused.int() - expected.int()).abs().max() <= 1
        else:
            assert_close(fused, expected, triton.dtype)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("scheme", ["bf16", "w8a8", "w4a8", "w4a16", "w8a16", "fp8"])
def test_a_gate_at_the_end_of_a_product_gives_the_bits_of_a_gate_afterwards(
    triton: TritonKernels, scheme: str, activation: Activation
) -> None:
    for rows in (0, 1, 5):
        x = normal(rows, 64).to(triton.dtype)
        w = packed(triton, scheme, 64, 80, normal(80, seed=1))  # halves beside whole tiles
        found = triton.gated_linear(x, w, activation)
        assert torch.equal(found, triton.gated_mul(triton.linear(x, w), activation))


def test_the_best_is_the_first_of_the_largest() -> None:
    triton = TritonKernels(torch.float32)
    logits = normal(6, 9000)
    logits[0, [17, 5000, 8999]] = 50.0
    logits[1] = -torch.inf
    logits[2, [4095, 4096]] = 7.0
    logits[3, [3, 4100]] = torch.nan
    logits[4, 8999] = torch.inf
    ids, values = triton.best(logits)
    assert ids.tolist() == logits.argmax(1).tolist() == [17, 0, 4095, 3, 8999, int(logits[5].argmax())]
    assert torch.equal(values.nan_to_num(7.5), logits.amax(1).nan_to_num(7.5))
    assert [t.shape for t in triton.best(logits[:0])] == [(0,), (0,)]


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UnavailableError, match="set it to false"):
        TritonKernels(torch.float32).pin_threads(True)
    with pytest.raises(UnavailableError, match="TRITON_INTERPRET=1"):
        TritonKernels(torch.float32, device=torch.device("cuda"))
