"""Products with weights. The weights stand on the left, [OUTS, inputs], the rows of x beside them, [inputs, ROWS]: so
tensor cores take the few rows of a decode step without padding them to the 64 of a warp group's instruction, and
weights that are unpacked in registers need not go back through shared memory.

Whatever ROWS is, an output is the sum of the same products in the same order: inputs rise, one tensor-core step after
the other into one accumulator, and no program has part of a sum. (That the classes of ROWS also compile to the same
kind of instruction is for the tests of engine.kernels.triton.aot to see.)
"""

import torch
import triton.language as tl

from engine.kernels.triton.jit.language import (
    activate,
    decode_e4m3,
    device,
    dot,
    fused_multiply_add,
    kernel,
    narrow,
    widen,
)

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


@device
def outs_of(outs, GATED: tl.constexpr, OUTS: tl.constexpr):
    """int64 [OUTS]: this program's rows of the weight. Gated: gate, up, gate, up, ..., whose halves lie apart."""
    at = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    if GATED:
        at = at // 2 + (at % 2) * (outs // 2)
        return tl.where(tl.program_id(1) * OUTS + tl.arange(0, OUTS) < outs, at, outs).to(tl.int64)
    else:
        return at.to(tl.int64)


@device
def rows_of(ROWS: tl.constexpr):
    return (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)


@device
def finish(
    acc, bias, out, rows, outs, out_at, row, DTYPE: tl.constexpr, BIAS: tl.constexpr,
    GATED: tl.constexpr, GELU: tl.constexpr, OUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """float32 [OUTS, ROWS] + bias -> out [rows, outs], or the gated half of it, from values rounded to DTYPE."""
    if BIAS:
        acc = acc + widen(tl.load(bias + out_at, mask=out_at < outs, other=0.0))[:, None]
    if GATED:
        rounded = widen(narrow(acc, DTYPE))
        gate, up = tl.split(tl.reshape(tl.trans(rounded), [ROWS, OUTS // 2, 2]))
        column = tl.program_id(1) * (OUTS // 2) + tl.arange(0, OUTS // 2)
        seen = (row < rows)[:, None] & (column < outs // 2)[None, :]
        to = row[:, None] * (outs // 2) + column[None, :]
        tl.store(out + to, narrow(activate(gate, GELU) * up, out.dtype.element_ty), mask=seen)
    else:
        seen = (out_at < outs)[:, None] & (row < rows)[None, :]
        tl.store(out + row[None, :] * outs + out_at[:, None], narrow(acc, out.dtype.element_ty), mask=seen)


@device
def pair(x, w, out_at, row, rows, outs, inputs, start, DEPTH: tl.constexpr):
    """Inputs start ... start + DEPTH - 1 of the weight [OUTS, DEPTH] and of x [DEPTH, ROWS]: 0 beyond the ends."""
    at = start + tl.arange(0, DEPTH)
    known = (at < inputs)[None, :]
    mine = tl.load(w + out_at[:, None] * inputs + at[None, :], mask=(out_at < outs)[:, None] & known, other=0.0)
    theirs = tl.load(x + row[:, None] * inputs + at[None, :], mask=(row < rows)[:, None] & known, other=0.0)
    return mine, tl.trans(theirs)


@device
def rescaled(acc, x_scales, w_scales, out_at, row, rows, outs):
    """float32 [OUTS, ROWS] from products of codes, with a scale each row of x and each output."""
    of_row = tl.load(x_scales + row, mask=row < rows, other=0.0)
    of_out = tl.load(w_scales + out_at, mask=out_at < outs, other=0.0)
    return acc.to(tl.float32) * of_row[None, :] * of_out[:, None]


@kernel
def dense(
    x, w, bias, out, rows, outs, inputs, BIAS: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr,
    OUTS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """x [rows, inputs], w [outs, inputs], both of the compute dtype."""
    out_at, row = outs_of(outs, GATED, OUTS), rows_of(ROWS)
    acc = tl.full([OUTS, ROWS], 0.0, tl.float32)
    for start in range(0, inputs, DEPTH):
        mine, theirs = pair(x, w, out_at, row, rows, outs, inputs, start, DEPTH)
        acc = dot(mine, theirs, acc)
    finish(acc, bias, out, rows, outs, out_at, row, x.dtype.element_ty, BIAS, GATED, GELU, OUTS, ROWS)


@kernel
def int8(
    x, x_scales, w, w_scales, bias, out, rows, outs, inputs, DTYPE: tl.constexpr, BIAS: tl.constexpr,
    GATED: tl.constexpr, GELU: tl.constexpr, OUTS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """x int8 [rows, inputs] with a scale each row, w int8 [outs, inputs] with a scale each output; exact int32 sums."""
    out_at, row = outs_of(outs, GATED, OUTS), rows_of(ROWS)
    acc = tl.full([OUTS, ROWS], 0, tl.int32)
    for start in range(0, inputs, DEPTH):
        mine, theirs = pair(x, w, out_at, row, rows, outs, inputs, start, DEPTH)
        acc = dot(mine, theirs, acc)
    acc = rescaled(acc, x_scales, w_scales, out_at, row, rows, outs)
    finish(acc, bias, out, rows, outs, out_at, row, DTYPE, BIAS, GATED, GELU, OUTS, ROWS)


@kernel
def fp8(
    x, x_scales, w, w_scales, bias, out, rows, outs, inputs, DTYPE: tl.constexpr, BIAS: tl.constexpr,
    GATED: tl.constexpr, GELU: tl.constexpr, OUTS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """x [rows, inputs] with a scale each row, w [outs, inputs] with a scale each output, both e4m3 codes. Their
    products are exact in float32. NATIVE: the tensor cores multiply codes, and add up 128 products in fewer bits than
    float32 has before they join the sum; otherwise codes become DTYPE, which has them exactly."""
    out_at, row = outs_of(outs, GATED, OUTS), rows_of(ROWS)
    if NATIVE:
        w = w.to(tl.pointer_type(tl.float8e4nv), bitcast=True)
        x = x.to(tl.pointer_type(tl.float8e4nv), bitcast=True)
    acc = tl.full([OUTS, ROWS], 0.0, tl.float32)
    for start in range(0, inputs, DEPTH):
        mine, theirs = pair(x, w, out_at, row, rows, outs, inputs, start, DEPTH)
        if NATIVE:
            acc = tl.dot(mine, theirs, acc, max_num_imprecise_acc=128)
        else:
            acc = dot(decode_e4m3(mine, DTYPE, True), decode_e4m3(theirs, DTYPE, True), acc)
    acc = rescaled(acc, x_scales, w_scales, out_at, row, rows, outs)
    finish(acc, bias, out, rows, outs, out_at, row, DTYPE, BIAS, GATED, GELU, OUTS, ROWS)


@device
def halves(
    codes, scales, zeros, x, out_at, row, rows, outs, inputs, group, start, HALF: tl.constexpr, PART: tl.constexpr
):
    """Of the two halves of inputs start ... start + 2 HALF - 1 the codes less their zero points, int8 [OUTS, PART], the
    scales float32 [OUTS] and x [ROWS, PART], which is 0 beyond HALF."""
    at = tl.arange(0, PART)
    own, near = (out_at < outs)[:, None] & (at < HALF)[None, :], (row < rows)[:, None] & (at < HALF)[None, :]
    packed = tl.load(codes + out_at[:, None] * (inputs // 2) + start // 2 + at[None, :], mask=own, other=0)
    first = out_at * (inputs // group) + start // group
    second = out_at * (inputs // group) + (start + HALF) // group
    zero = tl.load(zeros + first, mask=out_at < outs, other=0).to(tl.int8)
    low = (packed & 15).to(tl.int8) - zero[:, None]
    zero = tl.load(zeros + second, mask=out_at < outs, other=0).to(tl.int8)
    high = (packed >> 4).to(tl.int8) - zero[:, None]
    low_scale = widen(tl.load(scales + first, mask=out_at < outs, other=0.0))
    high_scale = widen(tl.load(scales + second, mask=out_at < outs, other=0.0))
    low_x = tl.load(x + row[:, None] * inputs + start + at[None, :], mask=near, other=0)
    high_x = tl.load(x + row[:, None] * inputs + start + HALF + at[None, :], mask=near, other=0)
    return low, low_scale, low_x, high, high_scale, high_x


@kernel
def int4(
    x, codes, scales, zeros, bias, out, rows, outs, inputs, group,
    BIAS: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr,
    OUTS: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """x [rows, inputs] in the compute dtype, to which the weights (code - zero) * scale are rounded."""
    out_at, row = outs_of(outs, GATED, OUTS), rows_of(ROWS)
    dtype: tl.constexpr = x.dtype.element_ty
    acc = tl.full([OUTS, ROWS], 0.0, tl.float32)
    for start in range(0, inputs, 2 * HALF):
        low, low_scale, low_x, high, high_scale, high_x = halves(
            codes, scales, zeros, x, out_at, row, rows, outs, inputs, group, start, HALF, PART
        )
        acc = dot(narrow(low.to(tl.float32) * low_scale[:, None], dtype), tl.trans(low_x), acc)
        acc = dot(narrow(high.to(tl.float32) * high_scale[:, None], dtype), tl.trans(high_x), acc)
    finish(acc, bias, out, rows, outs, out_at, row, dtype, BIAS, GATED, GELU, OUTS, ROWS)


@kernel
def int4a8(
    x, x_scales, codes, scales, zeros, bias, out, rows, outs, inputs, group,
    DTYPE: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr,
    OUTS: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """x int8 [rows, inputs] with a scale each row. A group's sum is exact; they are scaled and added up in order."""
    out_at, row = outs_of(outs, GATED, OUTS), rows_of(ROWS)
    acc = tl.full([OUTS, ROWS], 0.0, tl.float32)
    for first in range(0, inputs, group):
        whole = tl.full([OUTS, ROWS], 0, tl.int32)
        scale = tl.full([OUTS], 0.0, tl.float32)
        for start in range(first, first + group, 2 * HALF):
            low, scale, low_x, high, _, high_x = halves(
                codes, scales, zeros, x, out_at, row, rows, outs, inputs, group, start, HALF, PART
            )
            whole = dot(low, tl.trans(low_x), whole)
            whole = dot(high, tl.trans(high_x), whole)
        acc = fused_multiply_add(whole.to(tl.float32), tl.broadcast_to(scale[:, None], [OUTS, ROWS]), acc)
    of_row = tl.load(x_scales + row, mask=row < rows, other=0.0)
    finish(acc * of_row[None, :], bias, out, rows, outs, out_at, row, DTYPE, BIAS, GATED, GELU, OUTS, ROWS)
