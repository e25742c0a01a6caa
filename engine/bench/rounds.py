"""All runs of a comparison: one loaded model, one workload, every policy under every load, in rounds."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

from engine.bench.drive import RunRecord, drive
from engine.bench.metrics import BY_NAME
from engine.bench.policies import Policy, small_pool_blocks
from engine.bench.traces import Trace
from engine.bench.workload import Arrivals, Workload, make_workload
from engine.config import EngineConfig
from engine.runner import ModelRunner

CONCURRENCY = 2  # times the slots: there is always a next request
RATE_SHARE = 0.8  # of the requests/s of the saturated engine: busy, with a queue that empties now and then
WARM_UP = 2  # times the slots: so many requests, uncounted


@dataclass(frozen=True)
class Measured:
    """All runs under one load: records by policy, one a round."""

    name: str
    arrivals: Arrivals
    records: dict[str, list[RunRecord]]

    def __str__(self) -> str:
        return f"{self.name} ({self.arrivals})"


@dataclass(frozen=True)
class Setup:
    """What every run shares."""

    runner: ModelRunner
    base: EngineConfig
    workload: Workload
    block_bytes: int
    small_blocks: int | None  # None: no policy wants a small pool

    def run(self, policy: Policy, arrivals: Arrivals, workload: Workload | None = None) -> RunRecord:
        """On a fresh core: no prefix is cached, no counter set."""
        return drive(
            self.runner,
            policy.config(self.base),
            workload or self.workload,
            arrivals,
            num_blocks=self.small_blocks if policy.small_pool else None,
            block_bytes=self.block_bytes,
        )


def prepare(arguments: argparse.Namespace, config: EngineConfig, policies: list[Policy], trace: Trace) -> Setup:
    """Loads the model and makes the requests.

    Raises:
        ArtifactError: the artifact cannot be served.
        BenchError: the trace or the pools do not fit what is asked.
    """
    runner = ModelRunner(arguments.artifact, config)
    workload = make_workload(
        trace, arguments.requests, arguments.seed, runner.max_model_len, runner.vocab_size, arguments.scale
    )
    small = None
    if any(p.small_pool for p in policies):
        small = small_pool_blocks(workload.lengths, config, arguments.pool_share, runner.num_blocks)
    return Setup(runner, config, workload, runner.memory()["kv_pool_bytes"] // runner.num_blocks, small)


def loads_of(arguments: argparse.Namespace, config: EngineConfig) -> dict[str, Arrivals | None]:
    """Saturated, where throughput shows and batches do not depend on the machine's speed; and busy, where latency does
    as a user would see it. None: at a rate that the saturated runs of the first round will tell."""
    if arguments.rate is not None:
        return {"given load": Arrivals(rate_per_s=arguments.rate)}
    if arguments.concurrency is not None:
        return {"given load": Arrivals(concurrency=arguments.concurrency)}
    return {"saturated": Arrivals(concurrency=CONCURRENCY * config.max_num_seqs), "busy": None}


def measure(setup: Setup, policies: list[Policy], loads: dict[str, Arrivals | None], rounds: int) -> list[Measured]:
    """Every policy under every load. The order of policies is A B C, C B A, ...: what drifts hits all alike."""
    records: dict[str, dict[str, list[RunRecord]]] = {load: {p.name: [] for p in policies} for load in loads}
    arrivals = dict[str, Arrivals]()
    _warm_up(setup, policies[0])
    began, done, total = time.monotonic(), 0, rounds * len(policies) * len(loads)
    for number in range(rounds):
        for load, given in loads.items():
            if load not in arrivals:
                arrivals[load] = given or _busy(records["saturated"][policies[0].name][0])
            for policy in policies if number % 2 == 0 else policies[::-1]:
                record = setup.run(policy, arrivals[load])
                records[load][policy.name].append(record)
                done += 1
                left = (time.monotonic() - began) / done * (total - done)
                speed = BY_NAME["output_tokens_per_s"].formula([record]).value or 0.0
                say(
                    f"round {number + 1}/{rounds}, {load}, {policy.name}: {record.end_s:.1f} s, {speed:.0f} output "
                    f"tokens/s" + (f"; about {left:.0f} s left" if left else "")
                )
    return [Measured(load, arrivals[load], records[load]) for load in loads]


def _busy(saturated: RunRecord) -> Arrivals:
    return Arrivals(rate_per_s=RATE_SHARE * len(saturated.due_s) / saturated.end_s)


def _warm_up(setup: Setup, policy: Policy) -> None:
    slots = setup.base.max_num_seqs
    count = min(len(setup.workload.lengths), WARM_UP * slots)
    record = setup.run(policy, Arrivals(concurrency=slots), setup.workload.first(count))
    say(f"warm-up: {count} requests in {record.end_s:.1f} s, not counted")


def say(text: str) -> None:
    """One milestone line on standard error."""
    print(text, file=sys.stderr, flush=True)
