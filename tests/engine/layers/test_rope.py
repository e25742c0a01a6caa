"""Cosines and sines against transformers', for each scaling, in both forms of config.json."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from engine.artifact import ArtifactError
from engine.layers.rope import SCALINGS, Rope, RotaryTable
from engine.models.fields import Fields
from tests.tiny import LLAMA3, YARN

CONFIGS: list[dict[str, Any]] = [
    {"rope_theta": 10000.0},
    {"rope_theta": 500000.0, "rope_scaling": None},
    {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
    {"rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}},
    {"rope_parameters": {"rope_theta": 500000.0, **LLAMA3}},
    {"rope_theta": 10000.0, "rope_scaling": YARN},
    {"rope_theta": 10000.0, "rope_scaling": YARN | {"attention_factor": 0.75}},
    {"rope_theta": 10000.0, "rope_scaling": YARN | {"beta_fast": 8, "beta_slow": 2.0}},
    {"rope_theta": 10000.0, "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}},
    {"rope_theta": 10000.0, "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0}},
    {"rope_theta": 10000.0, "rope_scaling": YARN | {"truncate": False}},
    {"rope_theta": 10000.0, "rope_scaling": YARN | {"factor": 1.0}},
    {"rope_theta": 10000.0, "rope_scaling": YARN | {"beta_fast": 4, "beta_slow": 4, "truncate": False}},
    {"rope_parameters": {"rope_theta": 1000000.0, **YARN}},
]


@pytest.mark.parametrize("config", CONFIGS)
def test_equals_transformers(config: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    oracle = LlamaRotaryEmbedding(LlamaConfig(**sizes, max_position_embeddings=512, **deepcopy(config)))
    positions = torch.tensor([0, 1, 63, 64, 200, 511])
    table = RotaryTable(Fields(config, "test").rope(32), positions=512)
    cos, sin = (half[positions].repeat(1, 2) for half in (table.cos, table.sin))
    want_cos, want_sin = oracle(torch.zeros(1, 6, 32), positions[None])
    assert torch.allclose(cos, want_cos[0], atol=1e-5)
    assert torch.allclose(sin, want_sin[0], atol=1e-5)


def test_the_scalings_differ() -> None:
    """So that no entry above passes for the reason that its parameters do nothing."""
    tables = [RotaryTable(Fields(c, "test").rope(32), 64).cos for c in CONFIGS if c.get("rope_theta") == 10000.0]
    same = [(i, j) for i in range(len(tables)) for j in range(i) if torch.equal(tables[i], tables[j])]
    assert same == [(6, 2)]  # both mscale values count or neither


def test_unknown_scaling_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ArtifactError, match=f"rope scaling 'su'; this version has {', '.join(SCALINGS)}"):
        Rope.of(32, 1e4, {"rope_type": "su", "factor": 2.0})


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_scalings_that_follow_the_length_are_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(ArtifactError, match=rf"'{kind}': its frequencies depend on the current length, .* same bytes"):
        Rope.of(32, 1e4, {"type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "linear"}, "rope scaling 'linear' has no 'factor'"),
        ({"rope_type": "yarn", "factor": 2.0}, "rope scaling 'yarn' has no 'original_max_position_embeddings'"),
        ({"rope_type": "linear", "factor": "4"}, "rope scaling 'linear' has factor = '4', expected a number"),
        (
            YARN | {"finetuned": True},
            "'yarn' has finetuned = True, which this version does not know; it knows factor, ",
        ),
        ({"factor": 2.0}, "'default' has factor = 2.0, which this version does not know; it knows no parameters"),
        ({"partial_rotary_factor": 0.5}, "'default' has partial_rotary_factor = 0.5"),
    ],
)
def test_parameters_that_are_missing_unknown_or_no_numbers(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        Rope.of(32, 1e4, scaling)


def test_an_odd_head() -> None:
    with pytest.raises(ArtifactError, match="head_dim is 33; rotary positions turn pairs"):
        Rope.of(33, 1e4, {})


def test_null_parameters_are_absent_ones_and_the_whole_head_may_be_named() -> None:
    assert Rope.of(32, 1e4, YARN | {"mscale": None}) == Rope.of(32, 1e4, YARN)
    assert Rope.of(32, 1e4, {"partial_rotary_factor": 1.0}) == Rope.of(32, 1e4, {})
