"""Queries, keys and values on their way from the projection: norm of each head, rotation, the paged cache.

A program has one head of BLOCK_T tokens. A rotated element needs its partner half a head away, which is simply loaded a
second time: it is in the first-level cache. After each step values are rounded as if it had been an operation of its
own (engine.kernels.composed).
"""

import triton.language as tl

from engine.kernels.triton.jit.four_bits import KEY_GROUP, VALUE_GROUP, store_four_bits
from engine.kernels.triton.jit.language import convert, device, kernel, narrow, quantise, quantise_e4m3, row_sum, widen


@device
def turn(x, partner, cos, sin, first_half):
    """float32 [R, D]: pairs (i, i + D/2) by their angle."""
    return x * cos + tl.where(first_half[None, :], -partner, partner) * sin


@device
def store_kv(
    x, cache, scales, slot, there, head, column, dim,
    block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
    QUANTISED: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """x [R, D] of one head into the rows' slots. GROUP: of values of 4 bits."""
    block, offset = slot // block_size, slot % block_size
    seen = there[:, None] & (column < dim)[None, :]
    first = block * stride_block + offset * stride_token + head * stride_head
    at = cache + first[:, None] + column[None, :]
    if QUANTISED:
        entry = block * scale_block + offset * scale_token + head * scale_head
        scaled_at = scales + entry
        if scales.dtype.element_ty == tl.bfloat16:
            store_four_bits(widen(x), cache, scales, first, entry, there, seen, dim, GROUP)
        elif cache.dtype.element_ty == tl.uint8:
            codes, scale = quantise_e4m3(widen(x))
            tl.store(at, codes, mask=seen)
            tl.store(scaled_at, scale, mask=there)
        else:
            values, scale = quantise(widen(x))
            tl.store(at, values, mask=seen)
            tl.store(scaled_at, scale, mask=there)
    else:
        tl.store(at, convert(x, cache.dtype.element_ty), mask=seen)


@kernel
def queries(
    qkv, q_out, k_cache, v_cache, k_scales, v_scales, cos, sin, positions, slots, q_norm, k_norm,
    rows, heads, kv_heads, dim, eps,
    block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
    NORM: tl.constexpr, QUANTISED: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    head = tl.program_id(1)  # of queries, then of keys, then of values
    column = tl.arange(0, BLOCK_D)
    there = row < rows
    seen = there[:, None] & (column < dim)[None, :]
    start = row.to(tl.int64) * ((heads + 2 * kv_heads) * dim) + head * dim
    x = tl.load(qkv + start[:, None] + column[None, :], mask=seen, other=0.0)
    slot = tl.load(slots + row, mask=there, other=0)
    if head >= heads + kv_heads:
        store_kv(
            x, v_cache, v_scales, slot, there, head - heads - kv_heads, column, dim,
            block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
            QUANTISED, VALUE_GROUP,
        )  # fmt: skip
    else:
        half = dim // 2
        first_half = column < half
        across = tl.where(first_half, column + half, column - half)
        partner = tl.load(qkv + start[:, None] + across[None, :], mask=seen, other=0.0)
        dtype: tl.constexpr = qkv.dtype.element_ty
        if NORM:
            shrink = tl.rsqrt(row_sum(widen(x) * widen(x)) / dim + eps)[:, None]
            weight = q_norm
            if head >= heads:
                weight = k_norm
            own = tl.load(weight + column, mask=column < dim, other=0.0)[None, :]
            other = tl.load(weight + across, mask=column < dim, other=0.0)[None, :]
            x = narrow(widen(x) * shrink * own, dtype)
            partner = narrow(widen(partner) * shrink * other, dtype)
        place = tl.load(positions + row, mask=there, other=0)
        angle = place[:, None] * half + tl.where(first_half, column, column - half)[None, :]
        turned = turn(
            widen(x),
            widen(partner),
            tl.load(cos + angle, mask=seen, other=0.0),
            tl.load(sin + angle, mask=seen, other=0.0),
            first_half,
        )
        turned = narrow(turned, dtype)
        if head < heads:
            to = row.to(tl.int64) * (heads * dim) + head * dim
            tl.store(q_out + to[:, None] + column[None, :], turned, mask=seen)
        else:
            store_kv(
                turned, k_cache, k_scales, slot, there, head - heads, column, dim,
                block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
                QUANTISED, KEY_GROUP,
            )  # fmt: skip


@kernel
def rope(x, out, cos, sin, rows, heads, dim, stride_row, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    """cos, sin [rows, dim], as engine.kernels.interface.Kernels.rope has them."""
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK_D)
    half = dim // 2
    first_half = column < half
    across = tl.where(first_half, column + half, column - half)
    seen = (row < rows)[:, None] & (column < dim)[None, :]
    start = row.to(tl.int64)[:, None] * stride_row + head * dim
    angle = row.to(tl.int64)[:, None] * dim + column[None, :]
    turned = turn(
        widen(tl.load(x + start + column[None, :], mask=seen, other=0.0)),
        widen(tl.load(x + start + across[None, :], mask=seen, other=0.0)),
        tl.load(cos + angle, mask=seen, other=0.0),
        tl.load(sin + angle, mask=seen, other=0.0),
        first_half,
    )
    to = (row.to(tl.int64)[:, None] * heads + head) * dim + column[None, :]
    tl.store(out + to, narrow(turned, out.dtype.element_ty), mask=seen)


@kernel
def write_kv(
    k, v, k_cache, v_cache, k_scales, v_scales, slots, rows, kv_heads, dim, k_stride, v_stride,
    block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
    QUANTISED: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK_D)
    there = row < rows
    seen = there[:, None] & (column < dim)[None, :]
    slot = tl.load(slots + row, mask=there, other=0)
    far = row.to(tl.int64)[:, None]
    store_kv(
        tl.load(k + far * k_stride + head * dim + column[None, :], mask=seen, other=0.0),
        k_cache, k_scales, slot, there, head, column, dim,
        block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
        QUANTISED, KEY_GROUP,
    )  # fmt: skip
    store_kv(
        tl.load(v + far * v_stride + head * dim + column[None, :], mask=seen, other=0.0),
        v_cache, v_scales, slot, there, head, column, dim,
        block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
        QUANTISED, VALUE_GROUP,
    )  # fmt: skip
