"""The instruction set decides the speed of the tiers with integer sums, never their tokens or log-probabilities.

Two things do depend on it, and are therefore asked for here: ``auto`` takes another compute dtype where there are bf16
instructions, and a bf16 head in the compute dtype bfloat16 is then summed by them. Without fused multiply-add
(``baseline``) norms, rotations and attention round more often: that is another arithmetic.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.isa import LEVELS, IsaLimit, isa_features, target_of
from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import Kernels
from tests.engine.kernels.conftest import DTYPES
from tests.engine.kernels.test_attention import KV_DTYPES, Sequence, place, run
from tests.engine.kernels.test_linear import normal, packed
from tests.engine.kernels.test_same_bytes import DRAWS, Operation, inputs, operations, same
from tests.engine.runners import runner_on
from tests.engine.traffic import alone, core_of, expect_same, mixed_jobs, serve
from tests.tiny import Tier, make_tiny_artifact

FOUND = isa_features()
LIMITS: list[IsaLimit] = [limit for limit in ("avx512", "avx2") if LEVELS[limit].needs in FOUND]
TARGETS = [target_of(limit, FOUND) for limit in LIMITS]
pytestmark = pytest.mark.skipif(not LIMITS, reason="needs an x86 CPU with AVX2")
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def check(dtype: torch.dtype, operation: Operation, arguments: list[torch.Tensor]) -> None:
    expected = operation(CpuKernels(dtype, threads=2), arguments)
    for target in TARGETS:
        found = operation(CpuKernels(dtype, 2, target), arguments)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True)), target


@dtypes
@settings(DRAWS, max_examples=30)
@given(operation=operations)
def test_operations_on_rows(dtype: torch.dtype, operation: tuple[Operation, list[tuple[int, ...]]]) -> None:
    check(dtype, operation[0], inputs(*operation[1], dtype=dtype))


def product_of(
    scheme: str, k: int, n: int, bias: torch.Tensor | None, kernels: Kernels, x: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    w = packed(kernels, scheme, k, n, bias)
    return kernels.linear(x[0], w), kernels.logits(x[0], w)


@dtypes
@pytest.mark.parametrize("scheme", ["w8a8", "w4a8", "w4a8-symmetric"])
@pytest.mark.parametrize("rows", [1, 7, 600])
def test_integer_products(dtype: torch.dtype, scheme: str, rows: int) -> None:
    for k, n in ((64, 96), (160, 40), (576, 200)):
        x = [x[:rows] for x in inputs((k,), dtype=dtype)]
        check(dtype, partial(product_of, scheme, k, n, None), x)
        check(dtype, partial(product_of, scheme, k, n, normal(n)), x)


@dtypes
@DRAWS
@given(
    st.sampled_from([(9, 3, 64), (4, 2, 16), (6, 1, 40)]),
    st.sampled_from(KV_DTYPES),
    st.lists(st.integers(1, 200), min_size=1, max_size=5),
)
def test_attention(dtype: torch.dtype, sizes: tuple[int, int, int], kv_dtype: torch.dtype, lengths: list[int]) -> None:
    heads, kv_heads, dim = sizes

    def attend(kernels: Kernels, _: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        queries = [Sequence(i, n, heads, kv_heads, dim, dtype) for i, n in enumerate(lengths)]
        cache = kernels.new_kv_cache(place(queries, 16, seed=0), 16, kv_heads, dim, kv_dtype)
        return tuple(run(kernels, [(q, 0, q.length) for q in queries], cache, None))

    check(dtype, attend, [])


@pytest.mark.parametrize("tier", ["int8", "int4-a8"])
@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "int8_head"),
    [("float32", "int8", False), ("float32", "int4", False), ("bfloat16", "auto", True)],
)
def test_tokens_and_log_probabilities(tmp_path: Path, tier: Tier, dtype: str, kv_dtype: str, int8_head: bool) -> None:
    artifact = make_tiny_artifact(tmp_path, tier, int8_head=int8_head)
    jobs = mixed_jobs(20, 272, 300)
    asked = {"compute_dtype": dtype, "kv_dtype": kv_dtype, "max_model_len": 512, "max_num_seqs": 48, "threads": 2}
    expected = alone(runner_on("cpu", artifact, EngineConfig.model_validate(asked)), jobs)
    for limit in LIMITS:
        runner = runner_on("cpu", artifact, EngineConfig.model_validate(asked | {"isa": limit}))
        expect_same(serve(core_of(runner), jobs), expected)
