"""The runner: same bits for a request in any batch, split and block placement and after preemption, on all tiers."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import config as engine_config
from engine.artifact import ArtifactError
from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.kernels.errors import UnavailableError
from engine.runner import ModelRunner
from tests.engine.runners import compute, runner_on
from tests.engine.same_bits import check_any_batch_and_any_split, sequences
from tests.tiny import Tier

TIERS: list[Tier] = ["bf16", "int8", "int4", "int4-a8"]
BASE: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 8, "threads": 2}


def runner_of(artifact: Path, dtype: str, kernels: str = "cpu", **config: Any) -> ModelRunner:
    return runner_on(kernels, artifact, EngineConfig(**(BASE | {"compute_dtype": dtype} | config)))


@pytest.mark.parametrize(
    ("tier", "kv_dtype", "dtype", "kernels"),
    [
        *(
            (tier, kv, dtype, "cpu")
            for tier, kv in (*((t, "auto") for t in TIERS), ("bf16", "int8"), ("bf16", "int4"))
            for dtype in ("float32", "bfloat16")
        ),
        # The reference is slow; test_same_bytes.py has it through the whole core.
        ("bf16", "auto", "float32", "reference"),
        ("bf16", "int8", "bfloat16", "reference"),
        ("bf16", "int4", "float32", "reference"),
        ("int8", "auto", "bfloat16", "reference"),
        ("int4", "auto", "float32", "reference"),
        ("int4-a8", "auto", "float32", "reference"),
    ],
)
def test_any_batch_and_any_split_give_the_same_bits(
    artifacts: dict[str, Path], tier: Tier, dtype: str, kernels: str, kv_dtype: str
) -> None:
    cpu = kernels == "cpu"
    runner = runner_of(artifacts[tier], dtype, kernels, kv_dtype=kv_dtype)
    check_any_batch_and_any_split(runner, sequences(8 if cpu else 4), rounds=3 if cpu else 1)


@pytest.mark.parametrize("tier", TIERS)
def test_decoding_equals_recomputing_by_prefill(artifacts: dict[str, Path], tier: Tier) -> None:
    """After a preemption the decoded tokens are computed again in chunks: same logits, so the same next token."""
    runner = runner_of(artifacts[tier], "auto")
    ids = sequences(4)[3]
    (logits,) = compute(runner, [BatchEntry("a", ids, 0, [0, 1], "last")])
    assert logits is not None
    history, steps = list(ids), []
    for _ in range(30):
        steps.append(logits)
        history.append(int(logits[-1].argmax()))
        place = list(range(-(-len(history) // 16)))
        (logits,) = compute(runner, [BatchEntry("a", history[-1:], len(history) - 1, place, "last")])
        assert logits is not None
    other = [20, 9, 14, 11]
    (again,) = compute(runner, [BatchEntry("b", history, 0, other, "all")])
    assert again is not None
    assert torch.equal(torch.cat(steps), again[len(ids) - 1 : -1])
    assert torch.equal(logits, again[-1:])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_number_of_threads_changes_nothing(artifacts: dict[str, Path], dtype: str) -> None:
    ids = sequences(8)[7]
    found = []
    for threads in (1, 2):
        runner = runner_of(artifacts["int4"], dtype, threads=threads)
        found.append(compute(runner, [BatchEntry("a", ids, 0, list(range(5)), "all")])[0])
    assert found[0] is not None
    assert found[1] is not None
    assert torch.equal(found[0], found[1])


def test_quantised_tiers_stay_near_the_plain_one(artifacts: dict[str, Path]) -> None:
    ids = sequences(6)[5]
    logits = {}
    for tier in TIERS:
        out = compute(runner_of(artifacts[tier], "float32"), [BatchEntry("a", ids, 0, list(range(4)), "all")])[0]
        assert out is not None
        logits[tier] = out
    error = {t: ((logits[t] - logits["bf16"]).norm() / logits["bf16"].norm()).item() for t in TIERS}
    assert error["int8"] < 0.2
    assert error["int8"] < error["int4"] < 1.0


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
@pytest.mark.parametrize("kv_dtype", ["float32", "int8", "int4"])
def test_a_copied_block_serves_another_request(artifacts: dict[str, Path], kernels: str, kv_dtype: str) -> None:
    runner = runner_of(artifacts["bf16"], "float32", kernels, kv_dtype=kv_dtype)
    ids = sequences(4)[3]
    compute(runner, [BatchEntry("a", ids, 0, [3, 4], "none")])
    runner.copy_blocks([])
    runner.copy_blocks([(3, 11), (4, 12)])
    runner.copy_blocks([(11, 10), (12, 11)])  # every source is read before it becomes a target
    (direct,) = compute(runner, [BatchEntry("a", [65], len(ids), [3, 4], "last")])
    compute(runner, [BatchEntry("c", sequences(4, seed=9)[3], 0, [3, 4], "none")])
    (copied,) = compute(runner, [BatchEntry("b", [65], len(ids), [10, 11], "last")])
    assert direct is not None
    assert copied is not None
    assert torch.equal(direct, copied)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int4"])
def test_the_ledger_is_what_is_allocated(artifacts: dict[str, Path], tier: Tier, dtype: str, kv_dtype: str) -> None:
    runner = runner_of(artifacts[tier], dtype, kv_dtype=kv_dtype)
    memory, ledger = runner.memory(), runner.derived["ledger"]
    assert memory["kv_pool_bytes"] == ledger["kv_pool_bytes"] == runner.num_blocks * ledger["kv_bytes_per_block"]
    assert memory["weights_bytes"] == ledger["weights_bytes"]


def test_kv_dtype_of_its_own(artifacts: dict[str, Path]) -> None:
    ids = sequences(6)[5]
    entry = [BatchEntry("a", ids, 0, list(range(4)), "all")]
    wide = runner_of(artifacts["bf16"], "float32")
    narrow = runner_of(artifacts["bf16"], "float32", kv_dtype="bfloat16")
    assert narrow.derived["kv_dtype"] == "bfloat16"
    assert narrow.memory()["kv_pool_bytes"] * 2 == wide.memory()["kv_pool_bytes"]
    eight = runner_of(artifacts["bf16"], "float32", kv_dtype="int8")
    assert eight.derived["kv_dtype"] == "int8"
    assert eight.memory()["kv_pool_bytes"] * 64 == wide.memory()["kv_pool_bytes"] * 20  # 16 x 4 bytes: 16 and a scale
    four = runner_of(artifacts["bf16"], "float32", kv_dtype="int4")
    assert four.derived["kv_dtype"] == "int4"
    assert four.memory()["kv_pool_bytes"] * 128 == wide.memory()["kv_pool_bytes"] * 24  # K and V: 8 bytes and 4 each
    expected, *found = (compute(runner, entry)[0] for runner in (wide, narrow, eight, four))
    assert expected is not None
    for logits, bound in zip(found, (0.02, 0.05, 0.6), strict=True):
        assert logits is not None
        assert 0 < (logits - expected).norm() / expected.norm() < bound


@pytest.mark.parametrize(
    ("isa", "dtype", "reason"),
    [
        (["x86_64", "avx512_bf16"], "bfloat16", "avx512_bf16 found"),
        (["x86_64", "avx2"], "float32", "bf16 -> f32: no avx512_bf16, no amx_bf16"),
    ],
)
def test_auto_dtype_and_its_reason(
    artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch, isa: list[str], dtype: str, reason: str
) -> None:
    monkeypatch.setattr("engine.runner.isa_features", lambda: isa)
    derived = runner_of(artifacts["bf16"], "auto").derived
    assert (derived["compute_dtype"], derived["compute_dtype_reason"]) == (dtype, reason)
    assert derived["isa"] == isa
    assert derived["threads"] == 2
    assert engine_config.resolve_dtypes(EngineConfig(), isa)[0] == dtype


def test_a_limit_of_instructions_decides_build_and_dtype(artifacts: dict[str, Path]) -> None:
    """As far as any machine goes; which levels there are, and what they hide, is tested in test_isa."""
    runner = runner_of(artifacts["bf16"], "auto", isa="baseline", kv_dtype="float32")
    assert runner.derived["compute_dtype"] == "float32"
    assert runner.derived["compute_dtype_reason"].endswith("(isa limited to baseline)")
    assert not {"avx2", "avx512f"} & set(runner.derived["isa"])
    assert runner.derived["isa_reason"].startswith("limited to baseline; unused: ")
    assert (runner.derived["kernels"], runner.derived["kernels_reason"]) == ("cpu", "available")
    (logits,) = compute(runner, [BatchEntry("a", [1, 2, 3], 0, [0], "all")])
    (expected,) = compute(runner_of(artifacts["bf16"], "float32"), [BatchEntry("a", [1, 2, 3], 0, [0], "all")])
    assert logits is not None
    assert expected is not None
    assert torch.allclose(logits, expected, atol=1e-4)


def test_more_instructions_than_there_are(artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.runner.isa_features", lambda: [platform.machine()])
    with pytest.raises(UnavailableError, match=r"isa is 'avx512', but this .* CPU has none of the known features"):
        runner_of(artifacts["bf16"], "auto", isa="avx512")


def test_without_a_compiler_a_limit_is_not_kept_and_the_log_says_so(
    artifacts: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    runner = runner_of(artifacts["bf16"], "float32", "reference", isa="baseline")
    assert "no C compiler" in runner.derived["kernels_reason"]
    assert "PyTorch chooses its instructions itself" in caplog.text


def test_model_length_is_the_smaller_of_config_and_model(artifacts: dict[str, Path]) -> None:
    assert runner_of(artifacts["bf16"], "float32").max_model_len == 128
    assert runner_of(artifacts["bf16"], "float32", max_model_len=4096).max_model_len == 512


def test_too_little_memory_is_refused(artifacts: dict[str, Path]) -> None:
    with pytest.raises(ArtifactError, match="raise memory_limit_bytes"):
        runner_of(artifacts["bf16"], "float32", memory_limit_bytes=1000)


def test_an_empty_batch(artifacts: dict[str, Path]) -> None:
    assert compute(runner_of(artifacts["bf16"], "float32"), []) == []


BAD: list[tuple[dict[str, Any], str]] = [
    ({"token_ids": []}, "request a: no tokens in this step"),
    ({"start": 126}, "positions 126 to 128; expected 0 to 127"),
    ({"start": 15, "block_table": [0]}, "1 blocks; 18 tokens need 2"),
    ({"token_ids": [1, 272, 3]}, "token ids must be 0 to 271"),
    ({"token_ids": [-1, 2, 3]}, "token ids must be 0 to 271"),
    ({"block_table": [10**6]}, "block ids must be 0 to"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_impossible_entries_are_refused(artifacts: dict[str, Path], change: dict[str, Any], message: str) -> None:
    runner = runner_of(artifacts["bf16"], "float32")
    fine: dict[str, Any] = {"token_ids": [1, 2, 3], "start": 0, "block_table": list(range(8)), "logits": "last"}
    with pytest.raises(ValueError, match=message):
        compute(runner, [BatchEntry("a", **(fine | change))])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_of_a_chunk_are_computed_when_they_are_looked_at(artifacts: dict[str, Path], dtype: str) -> None:
    runner = runner_of(artifacts["bf16"], dtype)
    asked: list[int] = []
    head = runner.model.logits
    runner.model.logits = lambda hidden: asked.append(len(hidden)) or head(hidden)  # type: ignore[method-assign]
    ids = sequences(8)[7]
    rows, last = runner.execute(
        [BatchEntry("a", ids, 0, list(range(5)), "all"), BatchEntry("b", ids, 0, list(range(8, 13)), "last")]
    )
    assert rows is not None
    assert last is not None
    assert (len(rows), asked) == (71, [1])
    parts = torch.cat([rows[i : i + 9] for i in range(0, 71, 9)])
    assert asked == [1, 32, 32, 17]  # rows 0, 27 and 54 were the first that were not there yet
    assert torch.equal(rows[:], parts)
    assert torch.equal(rows[-1:], last[:])
    assert asked == [1, 32, 32, 17, 71]


def test_few_rows_of_several_requests_go_through_the_head_together(artifacts: dict[str, Path]) -> None:
    runner = runner_of(artifacts["bf16"], "float32")
    ids = sequences(8)
    whole = [compute(runner, [BatchEntry("x", ids[k], 0, list(range(5)), "all")])[0] for k in (6, 7)]
    asked: list[int] = []
    head = runner.model.logits
    runner.model.logits = lambda hidden: asked.append(len(hidden)) or head(hidden)  # type: ignore[method-assign]
    found = runner.execute(
        [
            BatchEntry("a", ids[6], 0, list(range(5)), "all", rows_from=61),
            BatchEntry("b", ids[7], 0, list(range(8, 13)), "none"),
            BatchEntry("c", ids[7], 0, list(range(16, 21)), "all", rows_from=70),
        ]
    )
    assert found[1] is None
    for rows, truth, first in ((found[0], whole[0], 61), (found[2], whole[1], 70)):
        assert rows is not None
        assert truth is not None
        assert torch.equal(rows[:], truth[first:])
    assert asked == [4]
