"""The shared cases on a GPU, where the kernels run compiled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels.interface import Activation, AttentionMeta, KvCache, PackedLinear
from engine.kernels.triton import TritonKernels
from engine.kernels.triton.launch import PRODUCT_TILES
from tests.engine.kernels import test_attention, test_draws, test_fp8, test_linear, test_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
DTYPES = [torch.float32, torch.bfloat16]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


class There(TritonKernels):
    """Takes tensors from the CPU to the GPU and back."""

    name = "triton on a GPU"

    def linear(self, x: Tensor, w: PackedLinear) -> Tensor:
        return super().linear(x.cuda(), w).cpu()

    def logits(self, x: Tensor, w: PackedLinear) -> Tensor:
        return super().logits(x.cuda(), w).cpu()

    def gated_linear(self, x: Tensor, w: PackedLinear, activation: Activation) -> Tensor:
        return super().gated_linear(x.cuda(), w, activation).cpu()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return super().rms_norm(x.cuda(), weight.cuda(), eps).cpu()

    def gated_mul(self, gate_up: Tensor, activation: Activation) -> Tensor:
        return super().gated_mul(gate_up.cuda(), activation).cpu()

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        q, k = super().rope(*(t.cuda() for t in (q, k, cos, sin)))
        return q.cpu(), k.cpu()

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        token, value = super().best(logits.cuda())
        return token.cpu(), value.cpu()

    def draw(self, logits: Tensor, largest: Tensor, draws: Tensor) -> Tensor:
        return super().draw(*(t.cuda() for t in (logits, largest, draws))).cpu()

    def follow(self, tokens: Tensor, best: Tensor) -> Tensor:
        return super().follow(tokens.cuda(), best.cuda()).cpu()

    def write_kv(self, k: Tensor, v: Tensor, cache: KvCache, slots: Tensor) -> None:
        super().write_kv(k.cuda(), v.cuda(), cache, slots.cuda())

    def paged_attention(
        self, q: Tensor, cache: KvCache, meta: AttentionMeta, scale: float, window: int | None = None
    ) -> Tensor:
        there = AttentionMeta(meta.query_starts.cuda(), meta.context_lens.cuda(), meta.block_tables.cuda())
        return super().paged_attention(q.cuda(), cache, there, scale, window).cpu()


@dtypes
@pytest.mark.parametrize("scheme", test_linear.SCHEMES)
@pytest.mark.parametrize(("k", "n"), test_linear.SHAPES)
def test_products(dtype: torch.dtype, scheme: str, k: int, n: int) -> None:
    test_linear.test_equals_the_dequantised_product(There(dtype), scheme, k, n)
    test_linear.test_a_row_does_not_see_its_neighbours(There(dtype), scheme, k, n)


def test_draws_with_a_temperature() -> None:
    kernels = There(torch.float32)
    for filters in test_draws.FILTERS:
        test_draws.test_the_tokens_are_the_hosts(kernels, filters)
    test_draws.test_a_vocabulary_of_several_parts(kernels)
    test_draws.test_rows_that_nothing_is_drawn_from(kernels)
    test_draws.test_where_rounding_decides_the_host_is_asked(kernels)
    test_draws.test_tokens_that_follow_a_step(kernels)


@dtypes
@pytest.mark.parametrize("window", [None, 20])
def test_keys_and_values_in_8_bit_floats(dtype: torch.dtype, window: int | None) -> None:
    test_fp8.test_attention_over_codes(There(dtype), 8, 2, 128, 16, window)
    test_fp8.test_what_is_not_finite_is_not_hidden(There(dtype))


@pytest.mark.parametrize("scheme", test_linear.SCHEMES)
def test_tiles_of_every_class_give_a_row_the_same_bits(scheme: str) -> None:
    """On shapes of an 8B model."""
    kernels = There(torch.bfloat16)
    w = test_linear.packed(kernels, scheme, 4096, 1024)
    x = test_linear.normal(300, 4096).bfloat16()
    full = kernels.linear(x, w)
    for most, _ in PRODUCT_TILES[:-1]:
        for rows in (1, most, most + 1):
            assert torch.equal(kernels.linear(x[:rows], w), full[:rows]), f"{rows} rows"


@dtypes
@pytest.mark.parametrize("scheme", ["bf16", "w8a8", "w4a16"])
def test_a_gate_at_the_end_of_a_product(dtype: torch.dtype, scheme: str) -> None:
    kernels = There(dtype)
    w, x = test_linear.packed(kernels, scheme, 256, 160), test_linear.normal(90, 256).to(dtype)
    assert torch.equal(kernels.gated_linear(x, w, "silu"), kernels.gated_mul(kernels.linear(x, w), "silu"))


@dtypes
@pytest.mark.parametrize("kv_dtype", test_attention.KV_DTYPES, ids=test_attention.kv_id)
@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("shape", test_attention.SHAPES)
def test_attention_of_any_batch(
    dtype: torch.dtype, kv_dtype: torch.dtype, window: int | None, shape: tuple[int, int, int, int]
) -> None:
    test_attention.test_equals_plain_attention(There(dtype), *shape, kv_dtype, window)
    test_attention.test_any_batch_and_any_split_give_the_same_bits(There(dtype), *shape, kv_dtype, window)


@dtypes
@pytest.mark.parametrize("kv_dtype", test_attention.KV_DTYPES, ids=test_attention.kv_id)
def test_split_and_whole_give_the_same_bits(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    s = test_attention.Sequence(1, 3000, 8, 2, 128, dtype)
    outs = []
    for split_programs in (0, 1 << 30):
        kernels = There(dtype, split_programs=split_programs)
        cache = test_attention.filled(kernels, s, 16, kv_dtype)
        outs.append(test_attention.last_rows(kernels, s, cache, [1, 255, 256, 257, 2999, 3000], 3))
    for whole, split in zip(*outs, strict=True):
        assert torch.equal(whole, split)


@dtypes
def test_norm_rope_and_gate(dtype: torch.dtype) -> None:
    for width in (7, 576, 4096):
        test_rows.test_rms_norm(There(dtype), width)
    for dim in (16, 128):
        test_rows.test_rope_turns_pairs_by_their_angle(There(dtype), dim)
    activations: tuple[Activation, ...] = ("silu", "gelu_tanh")
    for activation in activations:
        test_rows.test_gated_mul(There(dtype), 100, activation)
        test_rows.test_gated_mul_at_the_ends_of_the_range(There(dtype), activation)
