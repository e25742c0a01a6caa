"""What a tier takes in memory is planned before it is loaded, also where the engine holds it wider than on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.artifact import ArtifactError, read_manifest
from engine.config import EngineConfig
from engine.ledger import plan_artifact, weights_in_memory
from engine.runner import ModelRunner
from tests.pipeline.quantize.making import INT4, make
from tests.tiny import make_tiny_artifact

CONFIG = EngineConfig(max_model_len=64, memory_limit_bytes=2**28, threads=1)
MIXED = INT4 | {"keep": {"*.mlp.down_proj": "int8"}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("tiny") / "base")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "entry", [{"recipe": "int8"}, {"recipe": "int8-weight-only"}, {"recipe": "fp8"}, MIXED], ids=lambda e: e["recipe"]
)
def test_planned_weights_are_those_of_the_kernels(
    base: Path, tmp_path: Path, entry: dict[str, Any], dtype: str
) -> None:
    made = make(entry, base, tmp_path)
    config = CONFIG.model_copy(update={"compute_dtype": dtype})
    planned = plan_artifact(made, config, dtype, dtype).weights_bytes
    held = ModelRunner(made, config).memory()["weights_bytes"]
    assert planned == pytest.approx(held, rel=0.05)  # panels are padded, which small layers feel; what the gate allows


def test_a_device_holds_8_bit_floats_as_they_are_stored(base: Path, tmp_path: Path) -> None:
    device = CONFIG.model_copy(update={"backend": "cuda"})
    codes, integers = (make({"recipe": name}, base, tmp_path / name) for name in ("fp8", "int8-weight-only"))
    stored = read_manifest(codes).weight_bytes
    assert weights_in_memory(codes, device, "bfloat16") == weights_in_memory(codes, device, "float32") == stored
    stored = read_manifest(integers).weight_bytes
    narrow, wide = (weights_in_memory(integers, device, d) - stored for d in ("bfloat16", "float32"))
    assert wide == 3 * narrow > 0


def test_weights_that_cannot_be_read_are_named(base: Path, tmp_path: Path) -> None:
    made = make({"recipe": "fp8"}, base, tmp_path)
    (made / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(ArtifactError, match=r"model\.safetensors cannot be read as safetensors: .*build the artifact"):
        plan_artifact(made, CONFIG, "bfloat16", "bfloat16")
