"""Keys and values of 4 bits: engine.kernels.interface.Kernels.write_kv says what they are.

Two neighbouring codes are a byte, the first its lower half. Behind each other lie, for a token and head, scale and base
of each group; the last group may be smaller. The cache is told from one of e4m3 by its scales, which are bfloat16.
"""

import triton.language as tl

from engine.kernels.triton.jit.language import device, narrow, row_max, widen
from engine.ledger import KV_GROUPS

KEY_GROUP, VALUE_GROUP = tl.constexpr(KV_GROUPS[0]), tl.constexpr(KV_GROUPS[1])


@device
def quantise_four_bits(x, seen, GROUP: tl.constexpr):
    """float32 [R, C] and where it is one's own -> (uint8 [R, C/2], bfloat16 scales and bases [R, groups])."""
    ROWS: tl.constexpr = x.shape[0]
    SIZE: tl.constexpr = GROUP if x.shape[1] > GROUP else x.shape[1]
    GROUPS: tl.constexpr = x.shape[1] // SIZE
    own = tl.reshape(x, [ROWS * GROUPS, SIZE])
    there = tl.reshape(seen, [ROWS * GROUPS, SIZE])
    bad = row_max((own != own).to(tl.int32)) > 0  # the largest of numbers and NaN may be a number
    lowest = -row_max(tl.where(there, -own, float("-inf")))
    highest = row_max(tl.where(there, own, float("-inf")))
    span = tl.div_rn(highest - lowest, tl.full(lowest.shape, 15.0, tl.float32))
    scale = widen(narrow(span, tl.bfloat16))
    scale = tl.where(scale == 0.0, 1.0, scale)
    scale = tl.where(bad, float("nan"), scale)
    base = widen(narrow(lowest, tl.bfloat16))
    codes = tl.div_rn(own - base[:, None], tl.broadcast_to(scale[:, None], own.shape))
    codes = (codes + 12582912.0) - 12582912.0  # 1.5 * 2^23: what is left is rounded to a whole number, halves to even
    codes = tl.where(codes == codes, codes, 0.0)
    codes = tl.minimum(tl.maximum(codes, 0.0), 15.0).to(tl.int32)
    low, high = tl.split(tl.reshape(codes, [ROWS, x.shape[1] // 2, 2]))
    return (
        (low | (high << 4)).to(tl.uint8),
        narrow(tl.reshape(scale, [ROWS, GROUPS]), tl.bfloat16),
        narrow(tl.reshape(base, [ROWS, GROUPS]), tl.bfloat16),
    )


@device
def store_four_bits(x, cache, scales, at, entry, there, seen, dim, GROUP: tl.constexpr):
    """x float32 [R, C] to the bytes from ``at`` on and the scales of the tokens and heads ``entry``, both [R]."""
    codes, scale, base = quantise_four_bits(x, seen, GROUP)
    byte = tl.arange(0, codes.shape[1])
    tl.store(cache + at[:, None] + byte[None, :], codes, mask=there[:, None] & (byte < dim // 2)[None, :])
    groups = (dim + GROUP - 1) // GROUP
    group = tl.arange(0, scale.shape[1])
    to = scales + (entry * (2 * groups))[:, None] + 2 * group[None, :]
    own = there[:, None] & (group < groups)[None, :]
    tl.store(to, scale, mask=own)
    tl.store(to + 1, base, mask=own)


@device
def load_four_bits(cache, scales, at, entry, column, seen, dim, GROUP: tl.constexpr):
    """float32 of the shape of ``seen``, to which the others broadcast: 0 where it is not."""
    both = tl.load(cache + at + column // 2, mask=seen, other=0).to(tl.int32)
    codes = ((both >> ((column % 2) * 4)) & 15).to(tl.float32)
    of = scales + entry * (2 * ((dim + GROUP - 1) // GROUP)) + 2 * (column // GROUP)
    scale = widen(tl.load(of, mask=seen, other=0.0))
    return codes * scale + widen(tl.load(of + 1, mask=seen, other=0.0))
