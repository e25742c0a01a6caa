"""The instrument that quantisers are held to: what it reads of a directory, and the arithmetic of its ratios."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import SeatrialError
from pipeline.fidelity.figures import Scored
from pipeline.params import load_params
from tests.crosscheck.divergences import decoded, distributions, eight_bits, loaded, mean_ratio, scored
from tests.crosscheck.quantisers import (
    METHODS,
    PARTS,
    Answers,
    Compared,
    calibration,
    check_probe,
    comparisons,
    ratios_table,
)
from tests.pipeline.quantize import making
from tests.tiny import make_tiny_artifact

IDS = list(range(3, 40))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("tiny") / "base")


def test_four_bits_are_read_as_they_were_stored(base: Path, tmp_path: Path) -> None:
    artifact = making.make(making.INT4, base, tmp_path)
    found = decoded(artifact)
    assert found.bits == 4 + (16 + 4) / 32  # a scale of 16 bits and a zero point of 4 for a group of 32
    assert not found.rounded
    expected = distributions(making.loaded(artifact), IDS)
    assert torch.equal(distributions(loaded(base, found), IDS), expected)


def test_eight_bits_meet_inputs_of_eight_bits(base: Path, tmp_path: Path) -> None:
    artifact = making.make(making.SMOOTH, base, tmp_path)
    found = decoded(artifact)
    assert 8 < found.bits <= 8.5  # a scale of 32 bits for a row
    model = making.loaded(artifact)
    weights_alone = distributions(model, IDS)
    making.eight_bit_activations(model)
    of_instrument = distributions(loaded(base, found), IDS)
    torch.testing.assert_close(of_instrument, distributions(model, IDS))
    assert not torch.allclose(of_instrument, weights_alone)


def test_the_unquantised_model_diverges_from_itself_by_nothing(base: Path) -> None:
    found = decoded(base)
    assert (found.bits, found.rounded) == (16.0, frozenset())
    d = distributions(loaded(base, found), IDS)
    assert scored(d, IDS, d).kl == [0.0] * (len(IDS) - 1)


def test_what_is_not_understood_is_refused(base: Path, tmp_path: Path) -> None:
    artifact = making.make(making.INT4 | {"activations": "int8"}, base, tmp_path)
    with pytest.raises(SeatrialError, match=r"has groups of \[\(4, 8\)\]"):
        decoded(artifact)
    found = decoded(base)
    found.weights["model.layers.9.mlp.up_proj.weight"] = found.weights.pop("model.norm.weight")
    with pytest.raises(SeatrialError, match="1 missing, 1 unknown"):
        loaded(base, found)


def test_divergence_and_agreement_of_two_known_distributions() -> None:
    reference = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]).log()
    other = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]]).log()
    found = scored(other, [0, 2, 1], reference)
    assert found.kl == pytest.approx([0.25 * np.log(2), 0.0], abs=1e-7)
    assert found.best == [1, 1]
    assert found.logprobs == pytest.approx([np.log(0.25), np.log(0.8)])


def test_a_token_keeps_its_largest_input_and_loses_half_a_step_of_the_others() -> None:
    x = torch.tensor([[1.27, 0.014, -0.016], [-254.0, 1.1, 0.0]])
    torch.testing.assert_close(eight_bits(x), torch.tensor([[1.27, 0.01, -0.02], [-254.0, 2.0, 0.0]]))
    assert eight_bits(torch.zeros(1, 3)).tolist() == [[0.0] * 3]
    assert eight_bits(torch.tensor([[-127.5, 127.5, 1.4]]), 127.5).tolist() == [[-128.0, 127.0, 1.0]]


def test_the_ratio_is_that_of_means_over_tokens() -> None:
    theirs = [[1.0, 3.0], [2.0], [6.0, 6.0, 6.0]]
    same = mean_ratio(theirs, theirs)
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)
    half = mean_ratio([[x / 2 for x in s] for s in theirs], theirs)
    assert (half.value, half.low, half.high) == (0.5, 0.5, 0.5)
    uneven = mean_ratio([[2.0, 2.0], [5.0], [6.0, 6.0, 6.0]], theirs)
    assert uneven.value == 27 / 24
    assert uneven.low < 27 / 24 < uneven.high
    assert str(uneven).startswith("1.125 (0.")
    for other in (theirs[:1], [[1.0], [2.0], [6.0] * 3]):
        with pytest.raises(ValueError, match=r"3 sequences of ours, . of theirs; expected the same"):
            mean_ratio(theirs, other)


def test_the_interval_covers_a_known_ratio() -> None:
    draw = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        level = draw.lognormal(0.0, 0.8, 40)  # texts differ far more than quantisers do
        sides = [[list(x * draw.gamma(2.0, 0.5, 30)) for x in level * factor] for factor in (1.1, 1.0)]
        r = mean_ratio(*sides)
        covered += r.low <= 1.1 <= r.high
    assert 0.92 <= covered / 400 <= 0.98


def answers(kl: float) -> Answers:
    one = Scored(logprobs=[-1.0, -1.0], best=[0, 0], kl=[kl, kl])
    return {part: [one, one] for part in PARTS}


def test_every_tier_is_held_to_its_methods_and_searches_to_rounding() -> None:
    ours = {tier: answers(0.1) for tier in METHODS} | {"awq-int4-g64": answers(0.04), "gptq-int4-g64": answers(0.2)}
    theirs = {method: answers(0.1) for methods in METHODS.values() for method in methods}
    found = {(c.ours, c.other): c for c in comparisons(ours, theirs)}
    assert len(found) == 7
    assert {key: c.verdict for key, c in found.items() if c.verdict != "holds"} == {
        ("gptq-int4-g64", "llmcompressor gptq"): "broken",
        ("gptq-int4-g64", "int4-g64"): "broken",
    }
    assert found["awq-int4-g64", "int4-g64"].ratios["both"].value == pytest.approx(0.4)
    assert len(ratios_table(list(found.values())).rows) == 7


def test_an_interval_that_holds_the_limit_is_open() -> None:
    wide = mean_ratio([[1.0], [1.2]], [[1.0], [1.0]])
    assert Compared("a", "b", 1.05, dict.fromkeys((*PARTS, "both"), wide)).verdict == "open"


def test_a_directory_read_otherwise_than_it_was_meant_is_an_error() -> None:
    assert check_probe("awq", [-1.0, -2.0], [-1.0, -2.01]) == pytest.approx(0.005)
    with pytest.raises(SeatrialError, match=r"awq: .* differ by 0.5000 nats a token"):
        check_probe("awq", [-1.0, -2.0], [-1.0, -3.0])
    with pytest.raises(SeatrialError, match="differ by nan"):
        check_probe("awq", [-1.0], [float("nan")])


def test_both_sides_calibrate_on_the_same_sequences(base: Path) -> None:
    entries = [load_params().recipe_of(tier) for tier in METHODS if tier != "int4-g64"]
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    for entry in entries:
        found = calibration(base, {**entry, "calibration_tokens": 700})
        assert sum(map(len, found)) == 700
        assert max(map(len, found)) <= min(512, config["max_position_embeddings"])
