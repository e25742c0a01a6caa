"""Causal attention over the paged cache: one kernel for prompts and for single tokens.

A program has ROWS queries of one KV head: as many neighbouring tokens of a request as fit, each with the GROUP heads
that share the KV head. Keys are looked at in chunks of CHUNK positions at absolute multiples, a chunk by itself (Dao et
al. 2023, "Flash-Decoding", with chunks of a fixed size instead of a fixed number), in steps of KEYS. ``SPLIT``: a
program has one chunk and ``reduce`` merges them; otherwise it has all, and merges them by the same operations in the
same order. So a row's bits depend neither on which way was taken nor on what else is in its program or its batch: a key
that a row does not see adds an exact 0.

There is one shape of tile, because a row's sum of weights is added up across the threads that share the row.
"""

import triton.language as tl

from engine.kernels.triton.jit.four_bits import KEY_GROUP, VALUE_GROUP, load_four_bits
from engine.kernels.triton.jit.language import convert, device, dot, kernel, row_max, row_sum


@device
def find_request(query_starts, requests, tile, QUERIES: tl.constexpr):
    """(request, the tile's number in it): request r's tiles begin at query_starts[r] // QUERIES + r, so that where a
    tile belongs can be found without the host; some tiles are left without a query."""
    low, high = tile * 0, requests
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // QUERIES + middle <= tile:
            low = middle + 1
        else:
            high = middle
    request = low - 1
    return request, tile - (tl.load(query_starts + request) // QUERIES + request)


@device
def rows_of(query_starts, context_lens, request, tile, window, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Of each row its token, its head in the group, whether it is there, its position and the first that it sees; of
    the tile its number of tokens, their last position and the first that any of them sees."""
    queries: tl.constexpr = ROWS // GROUP
    stop = tl.load(query_starts + request + 1)
    begin = tl.load(query_starts + request) + tile * queries
    count = tl.minimum(stop - begin, queries)
    start = tl.load(context_lens + request) - (stop - begin)  # the position of the tile's first token
    at = tl.arange(0, ROWS)
    there = at // GROUP < count
    position = tl.where(there, start + at // GROUP, -1)
    first = tl.where(there, tl.maximum(position - window + 1, 0), 0x7FFFFFFF)
    return (
        begin + at // GROUP,
        at % GROUP,
        there,
        position,
        first,
        count,
        start + count - 1,
        tl.maximum(start - window + 1, 0),
    )


@device
def merge(highest, total, acc, other_highest, other_total, other_acc):
    """Two softmax sums in one (Milakov and Gimelshein 2018); one without keys, -inf and zeros, changes nothing."""
    new = tl.maximum(highest, other_highest)
    base = tl.where(new == float("-inf"), 0.0, new)
    shrink, other_shrink = tl.exp2(highest - base), tl.exp2(other_highest - base)
    total = total * shrink + other_total * other_shrink
    acc = acc * shrink[:, None] + other_acc * other_shrink[:, None]
    return new, total, acc


@device
def chunk_of(
    q, k_cache, v_cache, k_scales, v_scales, table, start, stop, position, first, kv_head, scale, dim,
    block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
    QUANTISED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The softmax sums over keys start ... stop - 1: the largest score in units of log 2 [ROWS], the sum of weights
    [ROWS] and of weighted values [ROWS, D]."""
    FOUR_BITS: tl.constexpr = QUANTISED and k_scales.dtype.element_ty == tl.bfloat16
    column = tl.arange(0, BLOCK_D)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.full([ROWS], 0.0, tl.float32)
    acc = tl.full([ROWS, BLOCK_D], 0.0, tl.float32)
    for at in range(start, stop, KEYS):
        key = at + tl.arange(0, KEYS)
        there = key < stop
        block = tl.load(table + key // block_size, mask=there, other=0).to(tl.int64)
        base = block * stride_block + (key % block_size) * stride_token + kv_head * stride_head
        scaled_at = block * scale_block + (key % block_size) * scale_token + kv_head * scale_head
        inside = there[None, :] & (column < dim)[:, None]
        if FOUR_BITS:
            keys = load_four_bits(
                k_cache, k_scales, base[None, :], scaled_at[None, :], column[:, None], inside, dim, KEY_GROUP
            )
        else:
            keys = tl.load(k_cache + base[None, :] + column[:, None], mask=inside, other=0)
        scores = dot(q, convert(keys, q.dtype), tl.full([ROWS, KEYS], 0.0, tl.float32))
        if QUANTISED and not FOUR_BITS:
            scores = scores * tl.load(k_scales + scaled_at, mask=there, other=0.0)[None, :]
        seen = (key[None, :] <= position[:, None]) & (key[None, :] >= first[:, None])
        scores = tl.where(seen, scores * scale, float("-inf"))
        new = tl.maximum(highest, row_max(scores))
        base_score = tl.where(new == float("-inf"), 0.0, new)
        weights = tl.exp2(scores - base_score[:, None])
        shrink = tl.exp2(highest - base_score)
        total = total * shrink + row_sum(weights)
        inside = there[:, None] & (column < dim)[None, :]
        if FOUR_BITS:
            values = load_four_bits(
                v_cache, v_scales, base[:, None], scaled_at[:, None], column[None, :], inside, dim, VALUE_GROUP
            )
            broken = row_max((values - values != 0.0).to(tl.int32)) > 0  # not finite: 0 x NaN is not 0
            values = tl.where(broken[:, None], 0.0, values)
            weights = tl.where(seen & broken[None, :], float("nan"), weights)
        else:
            values = tl.load(v_cache + base[:, None] + column[None, :], mask=inside, other=0)
        if QUANTISED and not FOUR_BITS:
            by = tl.load(v_scales + scaled_at, mask=there, other=0.0)
            weights = tl.where(seen, weights * by[None, :], 0.0)  # 0 x NaN is not 0
        acc = dot(convert(weights, q.dtype), convert(values, q.dtype), acc * shrink[:, None])
        highest = new
    return highest, total, acc


@kernel
def attend(
    q, out, part_acc, part_highest, part_total, k_cache, v_cache, k_scales, v_scales,
    query_starts, context_lens, tables, requests, table_stride, tokens, heads, dim, scale, window,
    block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
    SPLIT: tl.constexpr, QUANTISED: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """``part_*``: [chunks, tokens, heads] and for acc D more; only where SPLIT. ``scale`` has log2(e) in it."""
    kv_head = tl.program_id(1)
    request, tile = find_request(query_starts, requests, tl.program_id(0), ROWS // GROUP)
    token, in_group, there, position, first, count, last, lowest = rows_of(
        query_starts, context_lens, request, tile, window, GROUP, ROWS
    )
    if count > 0:
        column = tl.arange(0, BLOCK_D)
        head = kv_head * GROUP + in_group
        at = token.to(tl.int64) * heads + head
        seen = there[:, None] & (column < dim)[None, :]
        mine = tl.load(q + at[:, None] * dim + column[None, :], mask=seen, other=0.0)
        table = tables + request.to(tl.int64) * table_stride
        if SPLIT:
            chunk = tl.program_id(2)
            if (chunk * CHUNK <= last) & ((chunk + 1) * CHUNK > lowest):
                highest, total, acc = chunk_of(
                    mine, k_cache, v_cache, k_scales, v_scales, table,
                    chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, last + 1), position, first, kv_head, scale, dim,
                    block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
                    QUANTISED, ROWS, KEYS, BLOCK_D,
                )  # fmt: skip
                to = (token.to(tl.int64) + chunk * tokens) * heads + head
                tl.store(part_acc + to[:, None] * dim + column[None, :], acc, mask=seen)
                tl.store(part_highest + to, highest, mask=there)
                tl.store(part_total + to, total, mask=there)
        else:
            highest = tl.full([ROWS], float("-inf"), tl.float32)
            total = tl.full([ROWS], 0.0, tl.float32)
            acc = tl.full([ROWS, BLOCK_D], 0.0, tl.float32)
            for start in range(lowest // CHUNK * CHUNK, last + 1, CHUNK):
                own_highest, own_total, own_acc = chunk_of(
                    mine, k_cache, v_cache, k_scales, v_scales, table,
                    start, tl.minimum(start + CHUNK, last + 1), position, first, kv_head, scale, dim,
                    block_size, stride_block, stride_token, stride_head, scale_block, scale_token, scale_head,
                    QUANTISED, ROWS, KEYS, BLOCK_D,
                )  # fmt: skip
                highest, total, acc = merge(highest, total, acc, own_highest, own_total, own_acc)
            acc = acc / total[:, None]
            tl.store(out + at[:, None] * dim + column[None, :], convert(acc, out.dtype.element_ty), mask=seen)


@kernel
def reduce(
    out, part_acc, part_highest, part_total, query_starts, context_lens, requests, tokens, heads, dim, window,
    GROUP: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The merged chunks of what ``attend`` has split."""
    kv_head = tl.program_id(1)
    request, tile = find_request(query_starts, requests, tl.program_id(0), ROWS // GROUP)
    token, in_group, there, _, _, count, last, lowest = rows_of(
        query_starts, context_lens, request, tile, window, GROUP, ROWS
    )
    if count > 0:
        column = tl.arange(0, BLOCK_D)
        head = kv_head * GROUP + in_group
        at = token.to(tl.int64) * heads + head
        seen = there[:, None] & (column < dim)[None, :]
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.full([ROWS], 0.0, tl.float32)
        acc = tl.full([ROWS, BLOCK_D], 0.0, tl.float32)
        for chunk in range(lowest // CHUNK, last // CHUNK + 1):
            part = (token.to(tl.int64) + chunk * tokens) * heads + head
            highest, total, acc = merge(
                highest,
                total,
                acc,
                tl.load(part_highest + part, mask=there, other=float("-inf")),
                tl.load(part_total + part, mask=there, other=0.0),
                tl.load(part_acc + part[:, None] * dim + column[None, :], mask=seen, other=0.0),
            )
        acc = acc / total[:, None]
        tl.store(out + at[:, None] * dim + column[None, :], convert(acc, out.dtype.element_ty), mask=seen)
