"""One draw from one row of logits: the filters, the noise, and a way to find the winner without noise for every token.

Filters, in this order, each looking at what the one before has left (the order of vLLM; temperature comes first):

    temperature   scaled = (logit - the largest) / temperature
    min_p         scaled >= log(min_p): at least ``min_p`` times as likely as the likeliest (Nguyen et al., "Turning Up
                  the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", ICLR 2025)
    top_k         the ``top_k`` likeliest; of equal ones those with the lower ids
    top_p         the fewest likeliest that have ``top_p`` of the mass (Holtzman et al., "The Curious Case of Neural
                  Text Degeneration", ICLR 2020)

The draw is the Gumbel-max rule (Maddison, Tarlow, Minka, "A* sampling", NIPS 2014): the token with the largest scaled
logit plus noise. It is an argmax, so no sum's order matters, and two models with nearly the same logits mostly draw the
same token. The noise comes from a counter based generator (SplitMix64; Steele, Lea, Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014) keyed by (seed, position, token id), so a draw depends on nothing else.

Without a filter all tokens of the vocabulary are in the race, and logarithms of so much noise would cost most of the
time. So the likely tokens run first; of the others only those can still win whose noise is above a bound, which can be
seen on the generator's integers.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.request import SamplingParams

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]
_Words = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
    (np.uint64(31), np.uint64(1)),
)
_BITS = 52  # of a uniform number
_HEAD = 10.0  # scaled logits this far below the best run first
_SLACK = 1e-6  # far above the rounding of a bound, far below what would let many through
_NUCLEUS_COUNTS = (256, 2048, 16_384)  # sorting a whole vocabulary is slow and seldom needed


class Filters(Protocol):
    """What a draw takes of a request's ``SamplingParams``."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...


def draw(logits: Logits, params: SamplingParams, seed: int, position: int, ids: Ids | None = None) -> int:
    """A token id for ``position``.

    ``logits`` [n] belong to the tokens ``ids`` [n], rising (None: to 0 ... n - 1); the largest is finite.
    ``params.temperature`` is above 0.
    """
    return draw_keyed(logits, params, key_of(seed, position), ids)


def draw_keyed(logits: Logits, params: Filters, key: int, ids: Ids | None = None) -> int:
    """``draw`` for the ``key_of`` a seed and a position."""
    top = float(logits.max())
    left = kept(logits, params)
    if left is None:
        return _race(logits, top, params.temperature, key, ids)
    chosen = left if ids is None else ids[left]
    totals = _scaled(logits[left], top, params.temperature) + _gumbel_at(key, chosen)
    return int(chosen[totals.argmax()])


def key_of(seed: int, position: int) -> int:
    """Where the generator starts for this position of this seed, in 64 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{position}".encode()).digest()[:8], "big")


def _scaled(logits: Logits, top: float, temperature: float) -> NDArray[np.float64]:
    """The largest is 0 at any temperature, so that the smallest one above 0 is still greedy and not infinity."""
    with np.errstate(over="ignore"):
        return (logits.astype(np.float64) - top) / temperature


# Filters


def kept(logits: Logits, params: Filters) -> Ids | None:
    """Places in ``logits`` [n] that the filters leave, likeliest first where ``top_k`` or ``top_p`` acts; None: all."""
    places: Ids | None = None
    top = float(logits.max())
    if params.min_p > 0:
        least = math.log(params.min_p)
        places = np.flatnonzero(logits >= np.float32(_below(top + params.temperature * least)))
        places = places[_scaled(logits[places], top, params.temperature) >= least]
    if params.top_k and params.top_k < len(logits if places is None else places):
        values = logits if places is None else logits[places]
        order = _best(values, params.top_k)[: params.top_k]
        places = order if places is None else places[order]
    if params.top_p < 1.0:
        values = logits if places is None else logits[places]
        order = _nucleus(values, top, params)
        places = order if places is None else places[order]
    return places


def _below(value: float) -> float:
    """The next float32 but one below: a bound that rounding cannot have lifted."""
    low = np.float32(-np.inf)
    return float(np.nextafter(np.nextafter(np.float32(max(value, -3e38)), low), low))


def _best(values: Logits, count: int) -> Ids:
    """Places by falling value, then by place: all as good as the best ``count``, so more than these on ties."""
    if count >= len(values):
        pool = np.arange(len(values))
    else:
        pool = np.flatnonzero(values >= np.partition(values, len(values) - count)[len(values) - count])
    return pool[_falling(values[pool])]


def _falling(values: Logits) -> Ids:
    """Places by falling value, then by place: a stable sort, but of integers that have both in them, which NumPy sorts
    several times as fast."""
    bits = (values + np.float32(0)).view(np.uint32)  # the sum turns -0 into 0
    rising = bits ^ np.where(bits >> np.uint32(31), np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    keys = (~rising).astype(np.uint64) << np.uint64(32) | np.arange(len(values), dtype=np.uint64)
    keys.sort()
    order: Ids = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return order


def _nucleus(values: Logits, top: float, params: Filters) -> Ids:
    """The fewest likeliest with ``top_p`` of the mass. Weights are float32, summed in float64."""
    sharpness = sharpness_of(params.temperature)

    def weights(of: Logits) -> NDArray[np.float32]:
        found: NDArray[np.float32] = np.exp((of - np.float32(top)) * sharpness)
        return found

    wanted = params.top_p * float(weights(values).sum(dtype=np.float64))
    for count in (*(c for c in _NUCLEUS_COUNTS if c < len(values)), len(values)):
        order = _best(values, count)
        mass = weights(values[order]).cumsum(dtype=np.float64)
        size = int((mass < wanted).sum()) + 1
        if size <= len(order):
            return order[:size]
    return order  # the sums' last bits differ, and all is wanted


def sharpness_of(temperature: float) -> np.float32:
    """By what distances to the best are multiplied before a nucleus is weighed; beyond these bounds no weight
    changes."""
    return np.float32(min(1e30, max(1e-30, 1 / max(temperature, 1e-30))))


# Noise


def gumbel(seed: int, position: int, ids: Ids) -> NDArray[np.float64]:
    """Standard Gumbel noise for token ``ids`` at ``position``: the same for the same three, anywhere."""
    return _gumbel_at(key_of(seed, position), ids)


def _gumbel_at(key: int, ids: Ids) -> NDArray[np.float64]:
    return _gumbel_of(_words(ids.astype(np.uint64) * _STEP, key))


def _words(steps: _Words, key: int) -> _Words:
    """The generator's output, its upper ``_BITS`` bits, for token ids times ``_STEP``."""
    z = steps + np.uint64(key)
    shifted = np.empty_like(z)
    for shift, factor in _MIX:
        np.right_shift(z, shift, out=shifted)
        z ^= shifted
        z *= factor
    z >>= np.uint64(64 - _BITS)
    return z


def _gumbel_of(words: _Words) -> NDArray[np.float64]:
    uniform = (words.astype(np.float64) + 0.5) / 2**_BITS  # strictly between 0 and 1
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


@lru_cache(maxsize=4)
def _all_steps(count: int) -> _Words:
    return np.arange(count, dtype=np.uint64) * _STEP


# The race


def _race(logits: Logits, top: float, temperature: float, key: int, ids: Ids | None) -> int:
    """The id with the largest scaled logit plus noise, as if all noise had been computed.

    Whoever is not in the head has a logit below ``edge``, so with x = (edge - top) / temperature it can only win with
    noise above ``best - x``, that is with a uniform number above exp(-exp(x - best)).
    """
    words = _words(_all_steps(len(logits)) if ids is None else ids.astype(np.uint64) * _STEP, key)
    edge = np.float32(min(top - _HEAD * temperature, _below(top)) if temperature < 1e30 else -np.inf)
    head = np.flatnonzero(logits >= edge)

    def totals(places: Ids) -> NDArray[np.float64]:
        return _scaled(logits[places], top, temperature) + _gumbel_of(words[places])

    found = totals(head)
    if len(head) < len(logits):
        best = float(found.max())
        bound = math.exp(-math.exp(min(700.0, (float(edge) - top) / temperature - best + _SLACK)))
        late = np.flatnonzero(words >= np.uint64(max(0.0, bound * 2**_BITS - 1)))
        late = late[logits[late] < edge]
        head = np.concatenate([head, late])
        found = np.concatenate([found, totals(late)])
    winner = int(head[found == found.max()].min())  # the lowest id on ties, in whatever order they ran
    return winner if ids is None else int(ids[winner])
