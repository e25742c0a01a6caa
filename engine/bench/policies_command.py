"""``policies``: the same workload under each scheduling policy, in rounds that alternate their order."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from engine.artifact import Manifest, read_manifest
from engine.bench import page, report, samples
from engine.bench.compare import Result, check_same_outputs, compare
from engine.bench.drive import RunRecord, drive
from engine.bench.files import check_writable
from engine.bench.fit_command import fit_results
from engine.bench.machine import machine_facts, other_load
from engine.bench.metrics import BY_NAME
from engine.bench.options import add_common, at_least, config_of, fits_of, trace_of
from engine.bench.policies import DEFAULT_POLICIES, POLICIES, Policy, choose, small_pool_blocks
from engine.bench.show import figures_table, findings, fit_finding, fit_table, ratios_table
from engine.bench.workload import Arrivals, Workload, make_workload
from engine.config import EngineConfig
from engine.runner import ModelRunner

HELP = "throughput, latency, occupancy and KV bytes of the same requests under each scheduling policy"
RATE_SHARE = 0.8  # of the requests/s that the baseline reaches in warm-up: busy, yet with a queue that can empty
BUSY_SHARE = 0.5  # of the cores, wanted by other processes in the last minute
WARM_UP_ROUNDS = 2  # of full batches


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common(parser, "reports/bench-policies")
    known = ", ".join(POLICIES)
    parser.add_argument(
        "--policies", default=",".join(DEFAULT_POLICIES), help=f"comma-separated (default: %(default)s; known: {known})"
    )
    parser.add_argument("--requests", type=at_least(1), default=64, help="requests of a run (default 64)")
    parser.add_argument("--rounds", type=at_least(1), default=2, help="runs of each policy (default 2)")
    arrivals = parser.add_mutually_exclusive_group()
    arrivals.add_argument(
        "--rate",
        type=at_least(1e-6, float),
        help=f"open loop: Poisson arrivals a second (default: {RATE_SHARE:g} of what the baseline reaches in warm-up)",
    )
    arrivals.add_argument("--concurrency", type=at_least(1), help="closed loop: so many requests at a time")
    parser.add_argument(
        "--scale", type=at_least(1e-6, float), help="factor on all lengths (default: 95 %% of the trace fit uncut)"
    )
    parser.add_argument(
        "--pool-share",
        type=at_least(1e-6, float, 1.0),
        default=0.5,
        help="small pools, as a share of what a full batch of average requests reserves (default 0.5)",
    )


@dataclass(frozen=True)
class Setup:
    """What every run shares."""

    runner: ModelRunner
    base: EngineConfig
    workload: Workload
    block_bytes: int
    small_blocks: int | None  # None: no policy wants a small pool

    def run(self, policy: Policy, arrivals: Arrivals, workload: Workload | None = None) -> RunRecord:
        return drive(
            self.runner,
            policy.config(self.base),
            workload or self.workload,
            arrivals,
            num_blocks=self.small_blocks if policy.small_pool else None,
            block_bytes=self.block_bytes,
        )


def main(arguments: argparse.Namespace) -> None:
    began_at, began_load = datetime.now(UTC).isoformat(timespec="seconds"), other_load()
    if began_load > BUSY_SHARE * len(os.sched_getaffinity(0)):
        _say(f"the machine is busy (load average {began_load}): expect noise, or come back later")
    policies = choose([n.strip() for n in arguments.policies.split(",") if n.strip()])
    config, trace = config_of(arguments.config_json), trace_of(arguments)
    # Every request is served under every policy: what a full queue turns away could not be compared.
    config = config.model_copy(update={"max_queue": max(config.max_queue, arguments.requests)})
    manifest = read_manifest(arguments.artifact)
    runner = ModelRunner(arguments.artifact, config)
    workload = make_workload(
        trace, arguments.requests, arguments.seed, runner.max_model_len, runner.vocab_size, arguments.scale
    )
    small = None
    if any(p.small_pool for p in policies):
        small = small_pool_blocks(workload.lengths, config, arguments.pool_share, runner.num_blocks)
    block_bytes = runner.memory()["kv_pool_bytes"] // runner.num_blocks
    setup = Setup(runner, config, workload, block_bytes, small)
    fits = fits_of(trace, arguments, block_bytes // config.block_size, config.block_size)
    check_writable(arguments.out)
    gc.collect()
    gc.freeze()
    arrivals = _warm_up(setup, arguments)
    records = _measure(setup, policies, arrivals, arguments.rounds)
    check_same_outputs(records)
    results = compare(policies, records)
    tables = [figures_table(results), *filter(None, [ratios_table(results)]), fit_table(fits)]
    said = [*findings(results), fit_finding(fits)]
    report.show(tables, said)
    groups = [*page.run_groups(policies, records), page.fit_group(fits)]
    machine = machine_facts()
    loads = (began_load, other_load())
    facts = _facts(setup, manifest, arrivals, arguments, machine, loads)
    lead = (
        f"{len(workload.lengths)} requests, the same under every policy, {arguments.rounds} round(s) in alternating "
        f"order; {arrivals}."
    )
    html = page.render("Scheduling policies compared", lead, manifest.name, policies, said, tables, groups, facts)
    samples.write(arguments.out, records)
    report.write(
        arguments.out,
        html,
        {
            "schema_version": 1,
            "kind": "policies",
            "began_at": began_at,
            "artifact": {"name": manifest.name, "digest": manifest.digest},
            "engine_config": config.model_dump(),
            "engine_derived": runner.derived,
            "machine": machine,
            "load_average_1min": {"before": loads[0], "after": loads[1]},
            "seed": arguments.seed,
            "rounds": arguments.rounds,
            "arrivals": asdict(arrivals),
            "workload": workload.about(),
            "small_pool_blocks": small,
            "policies": [_result(r, setup.base, records[r.policy.name]) for r in results],
            "findings": said,
            "fit": fit_results(fits, trace, block_bytes // config.block_size, config.block_size),
        },
    )


def _warm_up(setup: Setup, arguments: argparse.Namespace) -> Arrivals:
    """Runs a part of the workload under the baseline, uncounted; its speed gives the rate where none was asked for."""
    slots = setup.base.max_num_seqs
    count = min(len(setup.workload.lengths), WARM_UP_ROUNDS * slots)
    part = setup.workload.first(count)
    record = setup.run(POLICIES["baseline"], Arrivals(concurrency=slots), part)
    reached = count / record.end_s
    _say(f"warm-up: {count} requests in {record.end_s:.1f} s, {reached:.3g} requests/s")
    if arguments.concurrency is not None:
        return Arrivals(concurrency=arguments.concurrency)
    return Arrivals(rate_per_s=arguments.rate if arguments.rate is not None else RATE_SHARE * reached)


def _measure(setup: Setup, policies: list[Policy], arrivals: Arrivals, rounds: int) -> dict[str, list[RunRecord]]:
    """A B C, C B A, ...: what drifts hits all alike."""
    records: dict[str, list[RunRecord]] = {p.name: [] for p in policies}
    began, done, total = time.monotonic(), 0, rounds * len(policies)
    for number in range(rounds):
        for policy in policies if number % 2 == 0 else policies[::-1]:
            record = setup.run(policy, arrivals)
            records[policy.name].append(record)
            done += 1
            left = (time.monotonic() - began) / done * (total - done)
            speed = BY_NAME["output_tokens_per_s"].formula([record]).value or 0.0
            _say(
                f"round {number + 1}/{rounds}, {policy.name}: {record.end_s:.1f} s, {speed:.0f} output tokens/s"
                + (f"; about {left:.0f} s left" if left else "")
            )
    return records


def _result(result: Result, base: EngineConfig, records: list[RunRecord]) -> dict[str, Any]:
    return {
        "name": result.policy.name,
        "about": result.policy.about,
        "against": result.policy.against,
        "engine_config": result.policy.config(base).model_dump(),
        "num_blocks": records[0].num_blocks,
        "pooled": {k: v._asdict() for k, v in result.pooled.items()},
        "rounds": {k: [f._asdict() for f in v] for k, v in result.rounds.items()},
        "ratios": {k: asdict(v) for k, v in result.ratios.items()},
    }


def _facts(
    setup: Setup,
    manifest: Manifest,
    arrivals: Arrivals,
    arguments: argparse.Namespace,
    machine: dict[str, Any],
    loads: tuple[float, float],
) -> list[tuple[str, str]]:
    w, s, c = setup.workload, setup.workload.scaling, setup.base
    small = "none of these policies"
    if setup.small_blocks is not None:
        small = (
            f"{setup.small_blocks} blocks, {setup.small_blocks * setup.block_bytes / 1024**2:.1f} MiB: "
            f"{arguments.pool_share:g} of what {c.max_num_seqs} average requests reserve"
        )
    return [
        ("artifact", f"{manifest.name}, {manifest.digest[:12]}"),
        ("trace", f"{w.trace.name}, {len(w.trace.rows):,} rows, sha256 {w.trace.digest[:12]}"),
        ("requests", f"{len(w.lengths)} from row {w.first_row:,} on, seed {w.seed}"),
        ("tokens", f"{sum(r.prompt for r in w.lengths):,} of prompts, {sum(r.output for r in w.lengths):,} of outputs"),
        (
            "lengths",
            f"all times {s.factor:.3g} ({'chosen' if s.chosen else 'given'}), {s.cut_requests} requests cut to "
            f"{s.max_model_len:,} tokens ({s.cut_tokens:,} tokens cut)",
        ),
        ("arrivals", str(arrivals)),
        ("slots, step budget, chunk", f"{c.max_num_seqs}, {c.max_num_batched_tokens}, {c.prefill_chunk_tokens} tokens"),
        (
            "KV pool",
            f"{setup.runner.num_blocks} blocks of {c.block_size} tokens, "
            f"{setup.runner.num_blocks * setup.block_bytes / 1024**2:.1f} MiB",
        ),
        ("small KV pool", small),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['os']}"),
        ("other load", f"load average {loads[0]} before, {loads[1]} after, this run included"),
        ("arithmetic", f"{setup.runner.derived['compute_dtype']}, kernels/{setup.runner.derived['kernels']}"),
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
