"""The requests of a benchmark: the same lengths, token ids and arrival times for every policy.

Lengths come in the trace's order, as a run of consecutive rows that begins at a seeded place. Rows longer than the
model serves are made to fit: all lengths are multiplied by one factor, so that the shape stays, and what is still too
long is cut. Outputs run to their full length (``ignore_eos``): the work of a request is the same under every policy.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.bench.errors import BenchError
from engine.bench.traces import Lengths, Trace
from engine.protocol import AddRequest
from engine.request import SamplingParams

FITTING_SHARE = 0.95  # of all rows that fit uncut at the factor that is chosen where none is given


@dataclass(frozen=True)
class Scaling:
    """What was done to a trace's lengths to serve them."""

    factor: float
    chosen: bool  # by FITTING_SHARE, not by the user
    max_model_len: int
    cut_requests: int  # of those taken
    cut_tokens: int


@dataclass(frozen=True)
class Arrivals:
    """Open loop: Poisson arrivals, ``rate_per_s``. Without a rate, closed loop: ``concurrency`` requests at a time."""

    rate_per_s: float | None = None
    concurrency: int = 1

    def __str__(self) -> str:
        if self.rate_per_s is not None:
            return f"open loop, {self.rate_per_s:.3g} requests/s"
        return f"closed loop, {self.concurrency} requests at a time"


@dataclass(frozen=True)
class Workload:
    """``first_row``: where in the trace the requests were taken from."""

    trace: Trace
    first_row: int
    lengths: list[Lengths]
    prompts: list[list[int]]
    scaling: Scaling
    seed: int

    def due_s(self, rate_per_s: float) -> list[float]:
        """Arrival times of a Poisson process that begins with a request at 0."""
        rng = random.Random(f"arrivals/{self.seed}")
        times = [0.0]
        for _ in self.lengths[1:]:
            times.append(times[-1] + rng.expovariate(rate_per_s))
        return times

    def first(self, count: int) -> Workload:
        """The first requests alone."""
        return replace(self, lengths=self.lengths[:count], prompts=self.prompts[:count])

    def request(self, index: int) -> AddRequest:
        params = SamplingParams(max_tokens=self.lengths[index].output, ignore_eos=True)
        return AddRequest([str(index)], self.prompts[index], params.to_wire())

    def about(self) -> dict[str, Any]:
        """What a reader of the results must know of it."""
        return {
            "trace": {
                "name": self.trace.name,
                "sha256": self.trace.digest,
                "rows": len(self.trace.rows),
                "skipped_rows": self.trace.skipped,
            },
            "first_row": self.first_row,
            "requests": len(self.lengths),
            "prompt_tokens": sum(r.prompt for r in self.lengths),
            "output_tokens": sum(r.output for r in self.lengths),
            "longest_request_tokens": max(r.total for r in self.lengths),
            "scaling": asdict(self.scaling),
            "seed": self.seed,
        }


def fitting_factor(rows: list[Lengths], max_model_len: int) -> float:
    """The largest factor of at most 1 at which FITTING_SHARE of the rows fit ``max_model_len`` uncut."""
    totals = sorted(r.total for r in rows)
    return min(1.0, max_model_len / totals[math.ceil(FITTING_SHARE * len(totals)) - 1])


def scaled(row: Lengths, factor: float, max_model_len: int) -> Lengths:
    """Both lengths times ``factor``, then cut to fit: the output to half of the room at most, the prompt to what is
    left."""
    prompt, output = (max(1, round(n * factor)) for n in row)
    if prompt + output > max_model_len:
        output = min(output, max(max_model_len // 2, max_model_len - prompt))
        prompt = min(prompt, max_model_len - output)
    return Lengths(prompt, output)


def make_workload(
    trace: Trace, requests: int, seed: int, max_model_len: int, vocab_size: int, factor: float | None = None
) -> Workload:
    """``requests`` consecutive rows of the trace with random token ids, all from ``seed``.

    Raises:
        BenchError: the trace has fewer rows.
    """
    if requests > len(trace.rows):
        raise BenchError(
            f"{requests} requests are asked for, the trace {trace.name} has {len(trace.rows)} usable rows; "
            f"give --requests {len(trace.rows)} or fewer"
        )
    rng = random.Random(f"requests/{seed}")
    first = rng.randrange(len(trace.rows) - requests + 1)
    used = factor if factor is not None else fitting_factor(trace.rows, max_model_len)
    taken = trace.rows[first : first + requests]
    lengths = [scaled(r, used, max_model_len) for r in taken]
    whole = [scaled(r, used, 2 * r.total) for r in taken]  # a limit that no row reaches
    cut = [w.total - c.total for w, c in zip(whole, lengths, strict=True)]
    return Workload(
        trace,
        first,
        lengths,
        [[rng.randrange(vocab_size) for _ in range(r.prompt)] for r in lengths],
        Scaling(used, factor is None, max_model_len, sum(1 for n in cut if n), sum(cut)),
        seed,
    )
