"""Settings that choose the device, and the dtypes that follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.config import EngineConfig, resolve_dtypes
from pipeline.params import load_params

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_but_the_setting_makes_a_gpu_be_used() -> None:
    assert EngineConfig().backend == "cpu"


def test_device_is_another_name_of_backend(tmp_path: Path) -> None:
    """The one line that a trial on a GPU needs."""
    params = (ROOT / "params.yaml").read_text(encoding="utf-8").replace("\nengine:\n", "\nengine:\n  device: cuda\n")
    (tmp_path / "params.yaml").write_text(params, encoding="utf-8")
    assert load_params(tmp_path / "params.yaml").engine == load_params(ROOT / "params.yaml").engine.model_copy(
        update={"backend": "cuda"}
    )
    assert EngineConfig.model_validate_json('{"device": "cuda", "backend": "cuda"}').backend == "cuda"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "cuda", "backend": "cpu"}, "device is 'cuda' and backend is 'cpu'; they are one setting"),
        ({"device": "tpu"}, "Input should be 'cpu' or 'cuda'"),
    ],
)
def test_other_devices_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineConfig(**given)


@pytest.mark.parametrize(
    ("config", "capability", "expected"),
    [
        ({}, (9, 0), ("bfloat16", "bfloat16")),
        ({}, None, ("bfloat16", "bfloat16")),
        ({}, (7, 5), ("float32", "bfloat16")),
        ({"compute_dtype": "float32"}, (9, 0), ("float32", "float32")),
        ({"kv_dtype": "int8"}, (9, 0), ("bfloat16", "int8")),
        ({"kv_dtype": "int4"}, (9, 0), ("bfloat16", "int4")),
    ],
)
def test_dtypes_follow_the_devices_capability(
    config: dict[str, Any], capability: tuple[int, int] | None, expected: tuple[str, str]
) -> None:
    compute, kv, reason = resolve_dtypes(EngineConfig(backend="cuda", **config), [], capability)
    assert (compute, kv) == expected
    if capability == (7, 5):
        assert reason == "bf16 -> f32: compute capability (7, 5), bf16 products need (8, 0)"
