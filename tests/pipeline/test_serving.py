"""How long a server may take to be ready."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import EngineConfig
from pipeline.serving import START_TIMEOUTS_S, start_timeout_of


@pytest.mark.parametrize(
    ("config", "backend"),
    [
        (EngineConfig(), "cpu"),
        (EngineConfig(device="cuda"), "cuda"),  # type: ignore[call-arg]
        ({"device": "cuda", "max_num_seqs": 4}, "cuda"),
        ({"backend": "cuda"}, "cuda"),
        ({"max_num_seqs": 4}, "cpu"),
        ({"backend": "of a later revision"}, "cpu"),
    ],
)
def test_a_gpu_is_given_time_to_compile(config: EngineConfig | dict[str, Any], backend: str) -> None:
    assert start_timeout_of(config) == START_TIMEOUTS_S[backend]
    assert START_TIMEOUTS_S["cuda"] > START_TIMEOUTS_S["cpu"]
