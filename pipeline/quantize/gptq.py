"""GPTQ (Frantar et al. 2023, arXiv 2210.17323, algorithm 1): columns are rounded one after the other, and what each
loses is made up for by the columns that are still to come.

The Hessian of a linear's squared output error is the second moment of its inputs, H = sum x x^T. With U the upper
Cholesky factor of (H + damping * mean(diag H) * I)^-1, rounding column j with the error e_j = (w_j - q_j) / U_jj moves
the columns after it by -e_j U_j. The factor is computed in float64, the rest in float32; nothing is drawn at random.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.errors import SeatrialError
from pipeline.quantize.awq import Rounding
from pipeline.quantize.formats import group_grid, group_range

COLUMNS = 128  # about so many between two updates of all that follow; whole groups


def round_columns(
    weight: Tensor, second: Tensor, how: Rounding, damping: float, act_order: bool, clip: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes int8 [out, in], scale bf16 [out, in/group], zero point int8 [out, in/group] or None, as
    ``formats.round_groups`` gives them.

    Args:
        second: float32 [in, in], the second moment of the inputs.
        act_order: round the inputs of the largest moment first. Groups stay where they are, with the grids of the
            unchanged weight: the artifact needs no order of its columns.
        clip: [out, in/group], at most 1: shrinks the range of each group.

    Raises:
        SeatrialError: the damped moment has no Cholesky factor.
    """
    n_out, n_in = weight.shape
    size, groups = how.group_size, n_in // how.group_size
    moments = second.diagonal()
    order = torch.argsort(moments, descending=True, stable=True) if act_order else torch.arange(n_in)
    upper = _upper_factor(second[order][:, order], damping)
    scale = torch.empty(groups, n_out, dtype=torch.bfloat16)
    zero = None if how.symmetric else torch.empty(groups, n_out)
    if act_order:
        _write_grid(weight.float().view(n_out, groups, size), how, clip, scale, zero)
    left = weight.float().t()[order].contiguous()  # [in, out], in the order of rounding: what is still to be stored
    codes = torch.empty(n_in, n_out)
    step = max(size, COLUMNS // size * size)
    for start in range(0, n_in, step):
        stop = min(start + step, n_in)
        errors = torch.empty(stop - start, n_out)
        for j in range(start, stop):
            at = int(order[j])
            group = at // size
            if not act_order and j % size == 0:
                own = None if zero is None else zero[group : group + 1]
                ratio = None if clip is None else clip[:, group : group + 1]
                _write_grid(left[j : j + size].t().unsqueeze(1), how, ratio, scale[group : group + 1], own)
            wide, offset = scale[group].float(), torch.zeros(n_out) if zero is None else zero[group]
            codes[at] = (left[j] / wide + offset).round_().clamp_(-8, 7)
            errors[j - start] = (left[j] - (codes[at] - offset) * wide) / upper[j, j]
            left[j + 1 : stop].addr_(upper[j, j + 1 : stop], errors[j - start], alpha=-1)
        left[stop:].addmm_(upper[start:stop, stop:].t(), errors, alpha=-1)
    q = codes.t().to(torch.int8).contiguous()
    return q, scale.t().contiguous(), None if zero is None else zero.t().to(torch.int8).contiguous()


def shrunk(second: Tensor, share: float) -> Tensor:
    """``second`` [in, in] with ``share`` of its moments between different inputs taken away: the shrinkage of a
    covariance towards its diagonal (after Ledoit and Wolf 2004, doi:10.1016/S0047-259X(03)00096-4)."""
    return second * (1 - share) + torch.diag(second.diagonal() * share)


def _write_grid(grouped: Tensor, how: Rounding, clip: Tensor | None, scale: Tensor, zero: Tensor | None) -> None:
    """The grid of ``grouped`` [out, groups, group] to ``scale`` and ``zero`` [groups, out]."""
    own_scale, own_zero = group_grid(*group_range(grouped, how.symmetric), clip)
    scale.copy_(own_scale.t())
    if zero is not None and own_zero is not None:
        zero.copy_(own_zero.t())


def _upper_factor(second: Tensor, damping: float) -> Tensor:
    """float32 [in, in], U with U^T U = (H + damping * mean(diag H) * I)^-1. An input that was never seen has a moment
    of its own, so that its weights are rounded to the nearest."""
    h = second.double()
    mean = float(h.diagonal().mean()) or 1.0
    h.diagonal().copy_(torch.where(h.diagonal() > 0, h.diagonal(), mean) + damping * mean)
    lower, failed = torch.linalg.cholesky_ex(h)
    upper, failed_again = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
    if int(failed) or int(failed_again):
        raise SeatrialError(
            f"gptq: the second moment of {second.shape[0]} inputs has no Cholesky factor at damping {damping}; raise "
            "damping or calibration_tokens"
        )
    return upper.float()
