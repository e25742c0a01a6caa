"""Draws with a temperature, as ``engine.draw`` defines them on the host: the same token, or none.

Noise and scaled logits are float64, as there; only the logarithms may differ in their last bits, and the weights of a
nucleus in their last seven. So a token is given only where neither can matter: it wins by more than ``MARGIN``, and it
is in the nucleus however the weights are rounded. The host draws the others, one in some hundred thousands.

A token's place among others is one number, its rank: the bits of its logit, which rise with it, then the lower ids
first. What filters leave is all above a rank. ``limits`` finds it without a sort: it asks of WAYS ranks at a time how
many tokens, or how much of the mass, lie above each, and goes on between two of them until one token is left there.
"""

import triton.language as tl

from engine.kernels.triton.jit.language import device, fused_multiply_add, kernel, line_max, row_sum

NO_ID = tl.constexpr((1 << 24) - 1)  # a rank's last 24 bits are for the token
MARGIN = tl.constexpr(1e-9)  # of a scaled logit plus noise; whatever can win is below 100, its error below 1e-13
DOUBT = tl.constexpr(4e-6)  # of a mass; the host's weights are within 4e-7 of the truth, ours within 6e-7
KEY, TOP_K, TEMPERATURE, MIN_P, LEAST, TOP_P, SHARPNESS = (tl.constexpr(i) for i in range(7))  # engine.kernels.draws
COLUMNS = tl.constexpr(7)


@device
def number(row, column: tl.constexpr):
    """The float64 whose bits stand in a column."""
    return tl.load(row + column).to(tl.float64, bitcast=True)


@device
def is_drawn(row, top):
    """Whether there is a temperature, and a best that is a number."""
    return (number(row, TEMPERATURE) > 0.0) & (tl.abs(top) < float("inf"))


@device
def rising(x):
    """int64: the bits of float32 ``x`` as a number from 0 on that rises with it."""
    bits = (x + 0.0).to(tl.int32, bitcast=True).to(tl.int64)  # the sum turns -0 into 0
    return tl.where(bits < 0, -bits - 1, bits + 2147483648)


@device
def value_of(rising):
    """float32, back from there."""
    bits = tl.where(rising < 2147483648, -rising - 1, rising - 2147483648)
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@device
def rank_of(x, column):
    """int64: token ``column`` with logit ``x``, in the order in which tokens are kept."""
    return rising(x) * (NO_ID + 1) + (-column + NO_ID)


@device
def weight_of(x, top, sharpness):
    """float64: the mass of float32 ``x`` beside the best's, which is 1."""
    scaled = tl.maximum((x - top) * sharpness, -150.0)  # exp is 0 in float32 from there on
    whole = tl.floor(scaled * 1.4426950408889634 + 0.5)
    rest = fused_multiply_add(whole, tl.full(whole.shape, -0.693359375, tl.float32), scaled)  # ln 2 in two parts
    rest = fused_multiply_add(whole, tl.full(whole.shape, 2.12194440e-4, tl.float32), rest)
    return (tl.exp2(rest * 1.4426950408889634) * tl.exp2(whole)).to(tl.float64)


@device
def above(
    logits, vocab, low, high, bounds, top, sharpness, MASS: tl.constexpr, WAYS: tl.constexpr, BLOCK: tl.constexpr
):
    """float64 [WAYS]: the number of the tokens above each of the ranks ``bounds``, or their mass; and the least and the
    highest rank above ``low`` and up to ``high``."""
    found = tl.full([WAYS, BLOCK], 0.0, tl.float64)
    least = tl.full([BLOCK], 1 << 60, tl.int64)
    most = tl.full([BLOCK], -1, tl.int64)
    for start in range(0, vocab, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits + column, mask=column < vocab, other=float("-inf"))
        rank = tl.where(column < vocab, rank_of(x, column), -1)
        each = tl.full([BLOCK], 1.0, tl.float64)
        if MASS:
            each = weight_of(x, top, sharpness)
        found = found + tl.where(rank[None, :] > bounds[:, None], each[None, :], 0.0)
        between = (rank > low) & (rank <= high)
        least = tl.where(between, tl.minimum(least, rank), least)
        most = tl.where(between, tl.maximum(most, rank), most)
    return row_sum(found), -line_max(-least), line_max(most)


@device
def lowest(
    logits, vocab, floor, high, wanted, top, sharpness, MASS: tl.constexpr, WAYS: tl.constexpr, BLOCK: tl.constexpr
):
    """Of the tokens above rank ``floor`` those are kept above which there are fewer than ``wanted``, or less mass: the
    rank above which all are kept. Above ``high`` there are fewer.

    What is above ``low`` is enough, what is above ``high`` is not, once it is known that not all are kept.
    """
    low = floor
    while high - low > 1:
        bounds = low + (high - low) * tl.arange(0, WAYS).to(tl.int64) // WAYS  # the first is low itself
        found, least, most = above(logits, vocab, low, high, bounds, top, sharpness, MASS, WAYS, BLOCK)
        enough = found >= wanted
        reached = line_max(tl.where(enough, bounds, -2))
        if reached < low:  # not even all of them: so all are kept
            high = low
        else:
            low = tl.maximum(reached, least - 1)
            high = tl.minimum(-line_max(tl.where(enough, -high, -bounds)), most)
    return low


@device
def as_likely(top, temperature, least):
    """The rank above which scaled logits are ``least`` or more: what ``min_p`` keeps."""
    low, high = rising(top * 0.0 + float("-inf")), rising(top)
    while high - low > 1:
        middle = (low + high) // 2
        kept = (value_of(middle).to(tl.float64) - top.to(tl.float64)) / temperature >= least
        low = tl.where(kept, low, middle)
        high = tl.where(kept, middle, high)
    return high * (NO_ID + 1) - 1


@kernel
def limits(logits, largest, draws, surely, perhaps, vocab, WAYS: tl.constexpr, BLOCK: tl.constexpr):
    """int64 [rows]: ranks above which tokens are kept; ``perhaps``: however the mass of a nucleus is rounded."""
    at = tl.program_id(0)
    row, mine = draws + at * COLUMNS, logits + at.to(tl.int64) * vocab
    top = tl.load(largest + at)
    if is_drawn(row, top):
        best = rank_of(top, at * 0)
        floor = best * 0 - 1
        if number(row, MIN_P) > 0.0:
            floor = as_likely(top, number(row, TEMPERATURE), number(row, LEAST))
        sharpness = number(row, SHARPNESS).to(tl.float32)
        count = tl.load(row + TOP_K)
        if count > 0:
            floor = lowest(mine, vocab, floor, best, count.to(tl.float64), top, sharpness, False, WAYS, BLOCK)
        share = number(row, TOP_P)
        ceiling = floor
        if share < 1.0:
            bounds = floor + tl.full([WAYS], 0, tl.int64)
            mass, _, _ = above(mine, vocab, floor, best, bounds, top, sharpness, True, WAYS, BLOCK)
            wanted = share * line_max(mass)
            ceiling = lowest(mine, vocab, floor, best, wanted * (1.0 - DOUBT), top, sharpness, True, WAYS, BLOCK)
            mass, _, _ = above(mine, vocab, floor, best, bounds * 0 + ceiling, top, sharpness, True, WAYS, BLOCK)
            if line_max(mass) >= wanted * (1.0 + DOUBT):
                floor = ceiling
            else:
                floor = lowest(mine, vocab, floor, ceiling, wanted * (1.0 + DOUBT), top, sharpness, True, WAYS, BLOCK)
        tl.store(surely + at, ceiling)
        tl.store(perhaps + at, floor)


@device
def gumbel(key, column):
    """float64: ``engine.draw.gumbel`` of the tokens ``column``."""
    z = column.to(tl.int64).to(tl.uint64, bitcast=True) * tl.full([], 0x9E3779B97F4A7C15, tl.uint64) + key
    z = (z ^ (z >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    z = (z ^ (z >> 31)) >> 12
    uniform = (z.to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return -tl.log(-tl.log(uniform))


@kernel
def race_of_part(logits, largest, draws, perhaps, firsts, seconds, places, vocab, parts, BLOCK: tl.constexpr):
    """The largest of scaled logits plus noise of BLOCK tokens, the second, and the token of the first."""
    at, part = tl.program_id(0), tl.program_id(1)
    row, top = draws + at * COLUMNS, tl.load(largest + at)
    if is_drawn(row, top):
        column = part * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits + at.to(tl.int64) * vocab + column, mask=column < vocab, other=float("-inf"))
        kept = (column < vocab) & (rank_of(x, column) > tl.load(perhaps + at))
        noise = gumbel(tl.load(row + KEY).to(tl.uint64, bitcast=True), column)
        scaled = (x.to(tl.float64) - top.to(tl.float64)) / number(row, TEMPERATURE)
        total = tl.where(kept, scaled + noise, float("-inf"))
        first = line_max(total)
        place = -line_max(tl.where(total == first, -column, -0x7FFFFFFF))
        to = at * parts + part
        tl.store(firsts + to, first)
        tl.store(seconds + to, line_max(tl.where(column == place, float("-inf"), total)))
        tl.store(places + to, place)


@kernel
def race_of_parts(logits, largest, draws, surely, firsts, seconds, places, tokens, vocab, parts, BLOCK: tl.constexpr):
    """The winner, or -1 where the host must see."""
    at, part = tl.program_id(0), tl.arange(0, BLOCK)
    token = at.to(tl.int64) * 0 - 1
    if is_drawn(draws + at * COLUMNS, tl.load(largest + at)):
        first = tl.load(firsts + at * parts + part, mask=part < parts, other=float("-inf"))
        second = tl.load(seconds + at * parts + part, mask=part < parts, other=float("-inf"))
        best = line_max(first)
        whose = -line_max(tl.where(first == best, -part, -0x7FFFFFFF))
        behind = line_max(tl.where(part == whose, second, first))
        place = tl.load(places + at * parts + whose)
        rank = rank_of(tl.load(logits + at.to(tl.int64) * vocab + place), place)
        clear = (best - behind > MARGIN) & (rank > tl.load(surely + at))
        token = tl.where(clear, place.to(tl.int64), token)
    tl.store(tokens + at, token)
