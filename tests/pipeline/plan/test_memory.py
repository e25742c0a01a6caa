"""The ledger's arithmetic, against figures that everybody in the field knows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.artifact import ArtifactError
from engine.config import EngineConfig, resolve_dtypes
from engine.ledger import ModelShape, activation_bytes, kv_bytes_per_token, plan, shared_range_bytes
from pipeline.errors import SeatrialError
from pipeline.plan.memory import plan_numbers, rows_of, shape_of_numbers, size

SEVEN_B = {"layers": 32, "hidden": 4096, "heads": None, "kv_heads": None, "intermediate": None, "vocab": 32000}


def test_seven_billion_weights_in_half_precision() -> None:
    shape = shape_of_numbers(**SEVEN_B)
    assert kv_bytes_per_token(shape, "float16") == 512 * 1024
    assert kv_bytes_per_token(shape, "float16") * 2048 == 1024**3
    assert kv_bytes_per_token(shape, "float16") * 8192 == 4 * 1024**3
    _, weights, ledger = plan_numbers(
        **SEVEN_B, params=7e9, weight_bits=16, kv_dtype="float16", max_model_len=2048, memory_bytes=None, max_num_seqs=8
    )
    assert weights == 14_000_000_000
    assert ledger is None
    assert ("KV of 8,192 tokens (float16)", "4 GiB (4.29 GB)") in rows_of(shape, weights, "float16", None)


def test_grouped_queries_divide_the_cache() -> None:
    full, grouped = shape_of_numbers(**SEVEN_B), shape_of_numbers(**{**SEVEN_B, "kv_heads": 8})
    assert kv_bytes_per_token(full, "bfloat16") == 4 * kv_bytes_per_token(grouped, "bfloat16")


def test_eight_bit_keys_and_values_count_their_scales() -> None:
    shape = shape_of_numbers(**{**SEVEN_B, "kv_heads": 8})  # heads of 128: 132 bytes for 256
    assert kv_bytes_per_token(shape, "int8") == 2 * 32 * 8 * (128 + 4)
    assert kv_bytes_per_token(shape, "bfloat16") == 2 * 32 * 8 * 256
    assert resolve_dtypes(EngineConfig(compute_dtype="bfloat16", kv_dtype="int8"), [])[:2] == ("bfloat16", "int8")


def test_four_bit_keys_and_values_count_scale_and_base_of_every_group() -> None:
    shape = shape_of_numbers(**{**SEVEN_B, "kv_heads": 8})  # heads of 128: 8 groups of keys, 2 of values
    assert kv_bytes_per_token(shape, "int4") == 32 * 8 * (64 + 8 * 4 + 64 + 2 * 4)
    short = shape.model_copy(update={"head_dim": 24})  # the last group is smaller
    assert kv_bytes_per_token(short, "int4") == 32 * 8 * (12 + 2 * 4 + 12 + 4)
    with pytest.raises(ArtifactError, match=r"head_dim is 25, which is odd; .* even sizes \(such as 24 or 26\)"):
        kv_bytes_per_token(shape.model_copy(update={"head_dim": 25}), "int4")


@given(
    limit=st.integers(2**27, 2**34),
    weights=st.integers(1, 2**32),
    seqs=st.integers(1, 64),
    length=st.integers(2, 4096),
    block=st.sampled_from([1, 8, 16, 64]),
)
def test_the_plan_stays_within_the_limit(limit: int, weights: int, seqs: int, length: int, block: int) -> None:
    shape = ModelShape(layers=3, hidden=96, heads=6, kv_heads=2, head_dim=16, intermediate=256, vocab=500)
    config = EngineConfig(
        memory_limit_bytes=limit, max_num_seqs=seqs, max_model_len=length, block_size=block,
        max_num_batched_tokens=512, prefill_chunk_tokens=256,
    )  # fmt: skip
    try:
        ledger = plan(shape, weights, config, "bfloat16", "bfloat16")
    except ArtifactError:
        one_request = -(-length // block) * block * kv_bytes_per_token(shape, "bfloat16")
        assert weights + one_request + ledger_activations(shape, config) > limit
        return
    assert ledger.total_bytes <= limit
    assert ledger.requests_that_fit >= 1
    assert ledger.num_blocks <= seqs * -(-length // block)


def test_a_pool_of_its_own_size_stays_within_the_limit() -> None:
    shape = ModelShape(layers=3, hidden=96, heads=6, kv_heads=2, head_dim=16, intermediate=256, vocab=500)
    config = EngineConfig(kv_pool_bytes=2**24, memory_limit_bytes=2**24, max_model_len=256, max_num_seqs=200)
    with pytest.raises(
        ArtifactError, match=r"kv_pool_bytes asks for .* 16773120 bytes; .* memory_limit_bytes is 16777216"
    ):
        plan(shape, 1000, config, "bfloat16", "bfloat16")
    plan(shape, 1000, config.model_copy(update={"memory_limit_bytes": 2**26}), "bfloat16", "bfloat16")


def test_the_largest_step_counts_what_is_alive_at_once() -> None:
    shape = ModelShape(layers=3, hidden=96, heads=6, kv_heads=2, head_dim=16, intermediate=256, vocab=500)
    one = EngineConfig(threads=1, max_num_seqs=1)
    base = activation_bytes(shape, one, "bfloat16")
    many = [activation_bytes(shape, one.model_copy(update={"max_num_seqs": n}), "bfloat16") for n in (2000, 2001)]
    assert many[1] - many[0] == 2 * 500 * 4  # rows of logits: those of a recorded step stay while others are scored
    # A second table of cosines and sines of max_model_len positions.
    two = shape.model_copy(update={"rotary_tables": 2})
    assert activation_bytes(two, one, "bfloat16") - base == 2048 * 16 * 4
    wide = activation_bytes(shape, one, "float32")
    assert base < wide < 2 * base


def ledger_activations(shape: ModelShape, config: EngineConfig) -> int:
    return activation_bytes(shape, config, "bfloat16")


def test_impossible_numbers_are_refused_with_both() -> None:
    with pytest.raises(SeatrialError, match="hidden 100 is not a multiple of heads 3"):
        shape_of_numbers(2, 100, 3, None, None, 10)
    with pytest.raises(SeatrialError, match="4 heads do not divide into 3 KV heads"):
        shape_of_numbers(2, 512, 4, 3, None, 10)
    with pytest.raises(SeatrialError, match="unknown KV dtype 'fp3'"):
        plan_numbers(
            **SEVEN_B, params=7e9, weight_bits=16, kv_dtype="fp3", max_model_len=64, memory_bytes=None, max_num_seqs=1
        )


@pytest.mark.parametrize(
    ("isa", "dtype", "reason"),
    [
        (["avx2", "avx512_bf16"], "bfloat16", "avx512_bf16 found"),
        (["avx2"], "float32", "bf16 -> f32: no avx512_bf16, no amx_bf16"),
    ],
)
def test_the_dtype_follows_the_instructions_and_says_why(isa: list[str], dtype: str, reason: str) -> None:
    assert resolve_dtypes(EngineConfig(), isa) == (dtype, "bfloat16", reason)
    assert resolve_dtypes(EngineConfig(compute_dtype="float32"), isa)[:2] == ("float32", "float32")
    assert resolve_dtypes(EngineConfig(compute_dtype="float32", kv_dtype="bfloat16"), isa)[:2] == (
        "float32",
        "bfloat16",
    )


def test_shared_ranges_grow_with_threads_and_with_the_longest_request() -> None:
    shape = ModelShape(layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49152)
    two = shared_range_bytes(shape, EngineConfig(threads=2))
    assert two == 9 * (16 * 96 * 66 * 4 + 8)  # 3 tiles of 3 heads; 16 ranges of 96 queries
    assert shared_range_bytes(shape, EngineConfig(threads=1)) == 0
    assert shared_range_bytes(shape, EngineConfig(threads=4)) > 2 * two
    assert 1.9 * two < shared_range_bytes(shape, EngineConfig(threads=2, max_model_len=4096)) < 2 * two
    longer = activation_bytes(shape, EngineConfig(threads=2, max_model_len=2049), "float32")
    assert longer - activation_bytes(shape, EngineConfig(threads=2), "float32") == 64 * 4 + 9 * 96 * 66 * 4


def test_sizes_read_well() -> None:
    assert [size(n) for n in (12, 2048, 5 * 1024**2, 14_000_000_000)] == [
        "12 bytes",
        "2 KiB",
        "5 MiB",
        "13 GiB (14 GB)",
    ]
