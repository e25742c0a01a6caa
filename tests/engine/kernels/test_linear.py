"""Products of every scheme: against the dequantised matrix, and bit by bit whatever the rows beside them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.artifact import ArtifactError, LinearSpec
from engine.kernels.interface import Kernels, PackedLinear
from engine.kernels.reference.matmul import row_tile, tiled_linear
from tests.engine.kernels.conftest import BACKENDS, DTYPES, assert_close, slow
from tests.tiny import pack_nibbles, quantise_w4a16, quantise_w8a8

SCHEMES = ["bf16", "w8a8", "w4a8", "w4a8-symmetric", "w4a16", "w4a16-symmetric", "w8a16", "fp8"]
INTEGER = ["w8a8", "w4a8", "w4a8-symmetric"]  # whose activations are rounded to 8 bits a token
SHAPES = [(64, 96), (160, 64), (256, 40), (576, 200)]  # K, N: N beside and beyond whole panels
FEW = SHAPES[:2]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stored(scheme: str, k: int, n: int) -> tuple[dict[str, torch.Tensor], LinearSpec | None, torch.Tensor]:
    """(tensors, spec, the weight they stand for in float64), dequantised here without the code under test."""
    weight = (normal(n, k) * k**-0.5).to(torch.bfloat16)
    if scheme == "bf16":
        return {"weight": weight}, None, weight.double()
    if scheme == "w8a8":
        tensors = quantise_w8a8("m", weight)
        meant = tensors["m.weight"].double() * tensors["m.weight_scale"].double()
        spec = LinearSpec(pattern="*", scheme="w8a8")
    elif scheme in {"w4a16", "w4a8"}:
        tensors = quantise_w4a16("m", weight, 32)
        words, zeros = tensors["m.weight_packed"], tensors["m.weight_zero_point"]
        q = torch.tensor([[(w >> 4 * j) & 15 for w in row for j in range(8)] for row in words.tolist()])
        z = torch.tensor([[(w >> 4 * j) & 15 for w in column for j in range(8)] for column in zeros.t().tolist()]).t()
        scale = tensors["m.weight_scale"].double().repeat_interleave(32, 1)
        meant = (q.double() - z.double().repeat_interleave(32, 1)) * scale
        spec = LinearSpec.model_validate({"pattern": "*", "scheme": scheme, "group_size": 32, "symmetric": False})
    elif scheme == "w8a16":
        q = torch.randint(-128, 128, (n, k), generator=torch.Generator().manual_seed(1))
        scale = (normal(n, 1, seed=2).abs() * 0.002 + 0.001).to(torch.bfloat16)
        words = [
            [sum((q + 128) << 8 * j for j, q in enumerate(row[i : i + 4])) for i in range(0, k, 4)]
            for row in q.tolist()
        ]
        packed = torch.tensor(words)
        tensors = {
            "weight_packed": packed.where(packed < 2**31, packed - 2**32).int(), "weight_scale": scale,
            "weight_shape": torch.tensor([n, k]),
        }  # fmt: skip
        meant, spec = q.double() * scale.double(), LinearSpec(pattern="*", scheme="w8a16")
    elif scheme == "fp8":
        scale = weight.float().abs().amax(1, keepdim=True) / 448
        codes = (weight.float() / scale).to(torch.float8_e4m3fn)
        tensors = {"weight": codes, "weight_scale": scale}
        meant, spec = codes.double() * scale.double(), LinearSpec(pattern="*", scheme="fp8")
    else:
        q = torch.randint(-8, 8, (n, k), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
        scale = (normal(n, k // 32, seed=2).abs() * 0.02 + 0.01).to(torch.bfloat16)
        tensors = {
            "m.weight_packed": pack_nibbles(q), "m.weight_scale": scale, "m.weight_shape": torch.tensor([n, k]),
        }  # fmt: skip
        meant = q.double() * scale.double().repeat_interleave(32, 1)
        spec = LinearSpec(pattern="*", scheme="w4a8" if scheme == "w4a8-symmetric" else "w4a16", group_size=32)
    return {key.removeprefix("m."): t for key, t in tensors.items()}, spec, meant


def skip_if_slow(kernels: Kernels, *shape: int) -> None:
    if slow(kernels) and shape not in FEW:
        pytest.skip("seconds in the interpreter; it tries the small shapes")


def packed(kernels: Kernels, scheme: str, k: int, n: int, bias: torch.Tensor | None = None) -> PackedLinear:
    tensors, spec, _ = stored(scheme, k, n)
    return kernels.pack_linear(tensors, spec, bias)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_equals_the_dequantised_product(kernels: Kernels, scheme: str, k: int, n: int) -> None:
    skip_if_slow(kernels, k, n)
    tensors, spec, meant = stored(scheme, k, n)
    bias = normal(n, seed=5)
    x = normal(21, k, seed=3).to(kernels.dtype)
    seen = x.double()
    if scheme in INTEGER:
        scale = x.float().abs().amax(1, keepdim=True) / 127
        seen = (x.float() / scale).round().double() * scale.double()
    if scheme == "fp8":
        scale = x.float().abs().amax(1, keepdim=True) / 448
        seen = (x.float() / scale).to(torch.float8_e4m3fn).double() * scale.double()
    for own_bias in (None, bias):
        found = kernels.linear(x, kernels.pack_linear(tensors, spec, own_bias))
        assert found.dtype == kernels.dtype
        assert_close(found, seen @ meant.T + (0 if own_bias is None else own_bias.double()), kernels.dtype)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_a_row_does_not_see_its_neighbours(kernels: Kernels, scheme: str, k: int, n: int) -> None:
    skip_if_slow(kernels, k, n)
    w = packed(kernels, scheme, k, n, normal(n))
    count, tried = (12, [1, 7]) if slow(kernels) else (150, [*range(1, 27), 31, 32, 33, 64, 149])
    x = normal(count, k, seed=4).to(kernels.dtype) * torch.linspace(0.01, 30, count)[:, None].to(kernels.dtype)
    full = kernels.linear(x, w)
    draw = random.Random(k * n)
    for rows in tried:
        chosen = draw.sample(range(count), rows)
        assert torch.equal(kernels.linear(x[chosen], w), full[chosen]), f"{rows} rows"


@pytest.mark.parametrize("scheme", INTEGER)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integer_products_are_the_same_bits_in_all_backends(scheme: str, dtype: torch.dtype) -> None:
    for k, n in SHAPES:
        x = normal(21, k, seed=3).to(dtype)
        bias = normal(n, seed=5).to(dtype)
        first, *others = (
            (made.linear(x, w), made.logits(x, w))
            for made in (b(dtype, threads=2) for b in BACKENDS[: len(BACKENDS) if (k, n) in FEW else 2])
            for w in [packed(made, scheme, k, n, bias)]
        )
        for other in others:
            assert torch.equal(first[0], other[0])
            assert torch.equal(first[1], other[1])


@pytest.mark.parametrize("scheme", ["bf16", "w4a16", "w4a8"])
def test_logits_are_float32_and_row_invariant(kernels: Kernels, scheme: str) -> None:
    w = packed(kernels, scheme, 64, 96)
    x = normal(40, 64).to(kernels.dtype)
    full = kernels.logits(x, w)
    assert full.dtype == torch.float32
    assert_close(full, kernels.linear(x, w), kernels.dtype)
    assert torch.equal(kernels.logits(x[7:10], w), full[7:10])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_rows(kernels: Kernels, scheme: str) -> None:
    w, x = packed(kernels, scheme, 64, 96, normal(96)), torch.empty(0, 64, dtype=kernels.dtype)
    assert kernels.linear(x, w).shape == kernels.logits(x, w).shape == (0, 96)


def test_quantised_weights_stay_small(kernels: Kernels) -> None:
    k, n = 256, 128
    assert packed(kernels, "w8a8", k, n).nbytes <= k * n + 8 * n
    four = packed(kernels, "w4a16", k, n).nbytes
    assert four == k * n // 2 + 3 * n * k // 32  # bf16 scale and a byte of zero point for each group


def test_embed_gives_rows_of_the_weight(kernels: Kernels) -> None:
    for k in (64, 31):
        weight = normal(75, k).to(torch.bfloat16)
        w = kernels.pack_linear({"weight": weight}, None, None)
        tokens = torch.tensor([0, 74, 33, 33, 5])
        assert torch.equal(kernels.embed(tokens, w), weight[tokens].to(kernels.dtype))
        x = normal(9, k).to(kernels.dtype)  # an odd number of inputs, too
        assert_close(kernels.linear(x, w), x.double() @ weight.double().T, kernels.dtype)


def test_float32_weights(kernels: Kernels) -> None:
    weight = normal(50, 48)
    w = kernels.pack_linear({"weight": weight}, None, None)
    x = normal(30, 48, seed=1).to(kernels.dtype)
    expected = x.double() @ weight.to(kernels.dtype).double().T
    assert_close(kernels.linear(x, w), expected, kernels.dtype)
    assert torch.equal(kernels.linear(x[4:9], w), kernels.linear(x, w)[4:9])


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("w8a8", {"weight_scale": None}, r"a w8a8 linear has the tensors \['weight'\]"),
    ("w8a8", {"weight": torch.zeros(96, 64)}, r"weight is torch.float32; expected torch.int8"),
    ("w8a8", {"weight_scale": torch.ones(96)}, r"weight_scale has shape \[96\]; expected \[96, 1\]"),
    ("w4a16", {"weight_scale": torch.ones(96, 3).bfloat16()}, r"weight_scale has shape \[96, 3\]; expected \[96, 2\]"),
    ("w4a16", {"weight_zero_point": None}, "expected .*weight_zero_point"),
    ("w8a16", {"weight_scale": torch.ones(96)}, r"weight_scale has shape \[96\]; expected \[96, 1\]"),
    ("fp8", {"weight": torch.zeros(96, 64)}, r"weight is torch.float32; expected torch.float8_e4m3fn"),
    ("bf16", {"extra": torch.ones(1)}, "a bf16 linear has the tensors"),
]


@pytest.mark.parametrize(("scheme", "change", "message"), BROKEN)
def test_wrong_tensors_are_refused(kernels: Kernels, scheme: str, change: dict[str, Any], message: str) -> None:
    tensors, spec, _ = stored(scheme, 64, 96)
    broken = {key: t for key, t in {**tensors, **change}.items() if t is not None}
    with pytest.raises(ArtifactError, match=message):
        kernels.pack_linear(broken, spec, None)


def test_group_size_must_fit(kernels: Kernels) -> None:
    tensors, spec, _ = stored("w4a16", 64, 96)
    assert spec is not None
    for size in (None, 48, 4):
        with pytest.raises(ArtifactError, match=f"group_size is {size}; expected a multiple of 8"):
            kernels.pack_linear(tensors, spec.model_copy(update={"group_size": size}), None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_in_tiles(dtype: torch.dtype) -> None:
    tile = row_tile(64, 96, dtype, 2)
    assert tile >= 1
    x, weight = normal(37, 64).to(dtype), normal(96, 64, seed=1).to(dtype)
    assert_close(tiled_linear(x, weight, tile), x.double() @ weight.double().T, dtype)


def test_a_single_row_is_the_same_in_a_long_batch(kernels: Kernels) -> None:
    """Library products take another routine for one row; it differs in few elements, so many are tried."""
    n, k, count = (64, 512, 5) if slow(kernels) else (576, 1536, 100)
    packed = kernels.pack_linear({"weight": (normal(n, k) * 0.05).bfloat16()}, None, None)
    x = normal(count, k, seed=2).to(kernels.dtype)
    together = kernels.linear(x, packed)
    assert all(torch.equal(kernels.linear(x[i : i + 1], packed)[0], together[i]) for i in range(count))
