"""GPTQ against its definition, and its recipe on the tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.artifact import verify
from pipeline.errors import SeatrialError
from pipeline.quantize.awq import Rounding, output_error, search_clip
from pipeline.quantize.calibrate import calibration_sequences
from pipeline.quantize.formats import expand_groups, round_groups
from pipeline.quantize.gptq import round_columns, shrunk
from tests.pipeline.quantize.making import GPTQ, INT4, layer_errors, make
from tests.tiny import make_tiny_artifact


def problem(n_out: int, n_in: int, tokens: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight, and the second moment of inputs that depend on each other."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, n_in // 2, generator=g) @ torch.randn(n_in // 2, n_in, generator=g)
    x += 0.3 * torch.randn(tokens, n_in, generator=g)
    return torch.randn(n_out, n_in, generator=g), x.t() @ x


def by_definition(weight: torch.Tensor, second: torch.Tensor, size: int, damping: float) -> torch.Tensor:
    """The optimal brain surgeon step, column by column, with the inverse of what is left solved anew each time; the
    grid of a group is that of its columns when the first of them is rounded. Float64, returns the weight as stored."""
    h = second.double() + damping * second.double().diagonal().mean() * torch.eye(len(second))
    w = weight.double().clone()
    for j in range(w.shape[1]):
        if j % size == 0:
            _, scale, zero = round_groups(w[:, j : j + size].float(), size, symmetric=False)
            assert zero is not None
        inverse = torch.linalg.inv(h[j:, j:])
        code = (w[:, j] / scale[:, 0].double() + zero[:, 0]).round().clamp(-8, 7)
        stored = (code - zero[:, 0]) * scale[:, 0].double()
        w[:, j:] -= torch.outer((w[:, j] - stored) / inverse[0, 0], inverse[0])
        w[:, j] = stored
    return w


@pytest.mark.parametrize("size", [8, 16])
def test_it_is_the_optimal_brain_surgeon_step(size: int) -> None:
    weight, second = problem(24, 48)
    found = expand_groups(*round_columns(weight, second, Rounding(size, False), 0.01, act_order=False))
    want = by_definition(weight, second, size, 0.01)
    assert (found.double() - want).abs().max() < 1e-5


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_it_loses_less_than_rounding(symmetric: bool, act_order: bool) -> None:
    """Over several blocks of columns, too."""
    weight, second = problem(32, 320)
    how = Rounding(32, symmetric)
    plain = weight - expand_groups(*round_groups(weight, 32, symmetric))
    q, scale, zero = round_columns(weight, second, how, 0.01, act_order)
    assert (q.dtype, scale.dtype, zero is None) == (torch.int8, torch.bfloat16, symmetric)
    found = weight - expand_groups(q, scale, zero)
    assert output_error(found, second) < 0.5 * output_error(plain, second)


def test_inputs_that_do_not_depend_on_each_other_leave_nothing_to_make_up_for() -> None:
    weight, _ = problem(16, 64)
    second = torch.diag(torch.linspace(1, 9, 64))
    second[5, 5] = second[40, 40] = 0  # never seen
    for act_order in (False, True):
        found = round_columns(weight, second, Rounding(16, False), 0.01, act_order)
        for have, want in zip(found, round_groups(weight, 16, False), strict=True):
            assert want is not None
            assert torch.equal(have, want)  # type: ignore[arg-type]


@pytest.mark.parametrize("act_order", [False, True])
def test_clipped_ranges_pay_where_one_large_weight_takes_the_grid(act_order: bool) -> None:
    weight, _ = problem(32, 64)
    x = torch.randn(400, 64, generator=torch.Generator().manual_seed(1))
    weight[:, ::16] *= 6  # one in each group, on an input that hardly speaks
    x[:, ::16] *= 0.01
    second = x.t() @ x
    how = Rounding(16, False)
    lost = [
        output_error(weight - expand_groups(*round_columns(weight, second, how, 0.01, act_order, clip)), second)
        for clip in (None, search_clip(weight, second, how))
    ]
    assert lost[1] < 0.9 * lost[0]


def test_of_few_tokens_less_is_believed() -> None:
    """Twice as many tokens as inputs: what is made up for by the moments as measured loses more on other tokens of the
    same kind than it would with a part of them. With no moments left between inputs it is rounding."""
    weight, _ = problem(32, 64)
    g = torch.Generator().manual_seed(3)
    seen, other = torch.randn(128, 64, generator=g), torch.randn(4000, 64, generator=g)
    second = seen.t() @ seen
    how = Rounding(16, False)
    lost = {
        share: float(
            (other @ (weight - expand_groups(*round_columns(weight, shrunk(second, share), how, 0.01, False))).t())
            .square()
            .sum()
        )
        for share in (0.0, 0.5, 1.0)
    }
    assert lost[1.0] < lost[0.5] < 0.9 * lost[0.0]
    assert torch.equal(
        round_columns(weight, shrunk(second, 1), how, 0.01, False)[0], round_groups(weight, 16, False)[0]
    )


def test_a_moment_without_a_factor_is_refused() -> None:
    with pytest.raises(SeatrialError, match=r"no Cholesky factor at damping 0\.01; raise damping"):
        round_columns(torch.ones(8, 16), -torch.ones(16, 16), Rounding(8, False), 0.01, False)


def test_the_recipe_loses_less_than_rounding_in_every_layer(tmp_path: Path) -> None:
    base = make_tiny_artifact(tmp_path / "base", attention_bias=True)
    made, plain = make(GPTQ, base, tmp_path, "gptq"), make(INT4, base, tmp_path, "int4")
    ids = calibration_sequences("v1", base, 768, 512)[0]
    errors = zip(layer_errors(made, base, ids), layer_errors(plain, base, ids), strict=True)
    for layer, (of_gptq, of_rounding) in enumerate(errors):
        assert 1e-5 < of_gptq < of_rounding < 0.5, layer
    report = verify(made).report
    assert report["output_error_gptq_mean"] < report["output_error_rounded_mean"]
    assert all(e["gptq"] < e["rounded"] for layer in report["layers"].values() for e in layer.values())
