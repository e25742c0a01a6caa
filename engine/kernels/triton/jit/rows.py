"""Operations on rows. A program has a tile of BLOCK_T of them; what a row's elements are added up by depends on the
width alone.
"""

import triton.language as tl

from engine.kernels.triton.jit.language import (
    activate,
    kernel,
    narrow,
    quantise,
    quantise_e4m3,
    row_max,
    row_sum,
    widen,
)


@kernel
def rms_norm(
    x, residual, weight, out, total, rows, width, eps, ADD: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, BLOCK)
    seen = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    wide = widen(tl.load(x + at, mask=seen, other=0.0))
    if ADD:
        summed = narrow(wide + widen(tl.load(residual + at, mask=seen, other=0.0)), total.dtype.element_ty)
        tl.store(total + at, summed, mask=seen)
        wide = widen(summed)
    mean = row_sum(wide * wide) / width
    by = tl.load(weight + column, mask=column < width, other=0.0)
    tl.store(out + at, narrow(wide * tl.rsqrt(mean + eps)[:, None] * by[None, :], out.dtype.element_ty), mask=seen)


@kernel
def gated_mul(x, out, rows, width, GELU: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    seen = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * (2 * width) + column[None, :]
    gate = widen(tl.load(x + at, mask=seen, other=0.0))
    up = widen(tl.load(x + at + width, mask=seen, other=0.0))
    to = row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(out + to, narrow(activate(gate, GELU) * up, out.dtype.element_ty), mask=seen)


@kernel
def quantise_rows(x, q, scales, rows, width, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, BLOCK)
    seen = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    wide = widen(tl.load(x + at, mask=seen, other=0.0))
    if q.dtype.element_ty == tl.uint8:
        codes, scale = quantise_e4m3(wide)
        tl.store(q + at, codes, mask=seen)
        tl.store(scales + row, scale, mask=row < rows)
    else:
        values, scale = quantise(wide)
        tl.store(q + at, values, mask=seen)
        tl.store(scales + row, scale, mask=row < rows)


@kernel
def best_of_part(logits, values, places, width, parts, BLOCK: tl.constexpr):
    """The first of the largest of BLOCK logits of a row; NaN is larger than all."""
    row, part = tl.program_id(0), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row.to(tl.int64) * width + column, mask=column < width, other=float("-inf"))[None, :]
    bad = x != x
    largest = row_max(tl.where(bad, float("inf"), x))  # [1]
    first = -row_max(-tl.where(bad | (x == largest[:, None]), column[None, :], 0x7FFFFFFF))
    only = tl.arange(0, 1)
    value = tl.where(row_max(bad.to(tl.int32)) > 0, float("nan"), largest)
    tl.store(values + row * parts + part + only, value)
    tl.store(places + row * parts + part + only, first)


@kernel
def best_of_parts(values, places, best_value, best_place, parts, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(values + row * parts + part, mask=part < parts, other=float("-inf"))[None, :]
    at = tl.load(places + row * parts + part, mask=part < parts, other=0x7FFFFFFF)[None, :]
    bad = x != x
    largest = row_max(tl.where(bad, float("inf"), x))
    first = -row_max(-tl.where(bad | (x == largest[:, None]), at, 0x7FFFFFFF))
    only = tl.arange(0, 1)
    value = tl.where(row_max(bad.to(tl.int32)) > 0, float("nan"), largest)
    tl.store(best_value + row + only, value)
    tl.store(best_place + row + only, first.to(tl.int64))


@kernel
def follow(tokens, best, out, count, BLOCK: tl.constexpr):
    """See engine.kernels.interface.Kernels.follow."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + at, mask=at < count, other=0)
    follows = token < 0
    row = best + tl.where(follows, -1 - token, 0) * 3
    first = tl.load(row, mask=follows, other=0)
    drawn = tl.load(row + 2, mask=follows, other=0)
    said = tl.where(drawn < 0, first, drawn).to(tl.int64)
    tl.store(out + at, tl.where(follows, said, token), mask=at < count)
