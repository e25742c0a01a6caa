"""The frequencies that calibration uses against transformers'."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from pipeline.errors import SeatrialError
from pipeline.quantize.rotary import rotary_frequencies
from tests.tiny import LLAMA3, YARN


@pytest.mark.parametrize(
    "scaling",
    [
        {},
        {"rope_theta": 500.0},
        {"type": "linear", "factor": 4.0},
        LLAMA3,
        YARN,
        YARN | {"attention_factor": 0.75},
        YARN | {"beta_fast": 8, "beta_slow": 2.0},
        YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
        YARN | {"truncate": False},
        YARN | {"beta_fast": 4, "beta_slow": 4, "truncate": False},
    ],
)
def test_equal_those_of_transformers(scaling: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 32, "max_position_embeddings": 512}
    oracle = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters={"rope_theta": 1e5, **deepcopy(scaling)}))
    frequencies, factor = rotary_frequencies(scaling, 1e5, 32)
    assert torch.allclose(frequencies, oracle.inv_freq, rtol=1e-5)
    assert factor == pytest.approx(oracle.attention_scaling)


def test_unknown_kinds_and_missing_parameters_are_refused() -> None:
    with pytest.raises(SeatrialError, match=r"rotary scaling 'su' is not known to calibration; known: default, linear"):
        rotary_frequencies({"rope_type": "su"}, 1e4, 16)
    with pytest.raises(SeatrialError, match="rotary scaling 'yarn' has no 'original_max_position_embeddings'"):
        rotary_frequencies({"rope_type": "yarn", "factor": 2.0}, 1e4, 16)
