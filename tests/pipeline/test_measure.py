"""The ledger against a booted engine: every part within 5 % of what is really there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from pipeline import measure
from pipeline.errors import SeatrialError
from pipeline.measure import PARTS, compared, measure_directory, off_percent
from pipeline.plan.memory import plan_of_directory
from tests.tiny import Tier, make_tiny_artifact

WITHIN_PERCENT = 5.0


def check(directory: Path, config: EngineConfig) -> None:
    _, ledger, _, kv = plan_of_directory(directory, config)
    found = measure_directory(directory, config)
    off = {part: off_percent(getattr(ledger, part), found.measured[part]) for part in PARTS}
    assert all(abs(value) <= WITHIN_PERCENT for value in off.values()), off
    assert found.largest_step.tokens == config.max_num_batched_tokens
    assert found.largest_step.requests == config.max_num_seqs
    if config.kv_dtype != "auto":
        assert kv == config.kv_dtype


# Wide enough that two megabytes of Python's objects are little beside it.
WIDE: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "head_dim": 64,
    "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize(
    ("tier", "kv_dtype", "seqs"), [("bf16", "auto", 48), ("int4", "int8", 96), ("bf16", "int4", 96)]
)
def test_a_tiny_model(tmp_path: Path, tier: Tier, kv_dtype: Any, seqs: int) -> None:
    make_tiny_artifact(tmp_path, tier, **WIDE)
    check(
        tmp_path,
        EngineConfig(
            kv_dtype=kv_dtype, max_model_len=4096, max_num_seqs=seqs, max_num_batched_tokens=2048, threads=2
        ),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, {"compute_dtype": "float32", "kv_dtype": "int8"}], ids=str)
def test_the_default_model(real_model_dir: Path, config: dict[str, Any]) -> None:
    check(real_model_dir, EngineConfig(threads=2, **config))


def test_the_table_says_what_was_planned_and_found(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    config = EngineConfig(max_model_len=64, max_num_seqs=2, threads=1)
    _, ledger, _, _ = plan_of_directory(tmp_path, config)
    found = measure.Measured(
        measured={part: getattr(ledger, part) * 2 for part in PARTS},
        largest_step=measure.LargestStep(tokens=124, requests=2),
    )
    rows = compared(ledger, found)
    assert rows[0] == ("", "planned", "measured", "off by")
    assert rows[3] == ("KV pool", f"{ledger.kv_pool_bytes:,}", f"{2 * ledger.kv_pool_bytes:,}", "+100.00 %")
    assert rows[-1][2] == "124 tokens, 2 requests"


def test_what_cannot_be_measured_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_artifact(tmp_path)
    with pytest.raises(
        SeatrialError, match=r"cannot be measured: the KV pool has room for .* raise memory_limit_bytes"
    ):
        measure_directory(tmp_path, EngineConfig(max_model_len=64, memory_limit_bytes=1000))
    monkeypatch.setattr(measure, "LIMIT_S", 0.01)
    with pytest.raises(SeatrialError, match=r"took more than 0.01 s; plan a smaller KV pool"):
        measure_directory(tmp_path, EngineConfig())
    monkeypatch.undo()
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(SeatrialError, match=r"failed \(exit code 1\)"):
        measure_directory(tmp_path, EngineConfig())
