"""``policies``: the same workload under each scheduling policy, in rounds that alternate their order."""

from __future__ import annotations

import argparse
import gc
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from engine.artifact import Manifest, read_manifest
from engine.bench import page, report, samples
from engine.bench.compare import Result, check_same_outputs, compare
from engine.bench.drive import RunRecord
from engine.bench.files import check_writable
from engine.bench.fit_command import fit_results
from engine.bench.machine import machine_facts, other_load
from engine.bench.options import add_common, at_least, config_of, fits_of, trace_of
from engine.bench.policies import DEFAULT_POLICIES, POLICIES, choose
from engine.bench.rounds import RATE_SHARE, Measured, Setup, loads_of, measure, prepare, say
from engine.bench.show import Table, figures_table, findings, fit_finding, fit_table, ratios_table
from engine.config import EngineConfig
from engine.cpus import available_cpus

HELP = "throughput, latency, occupancy and KV bytes of the same requests under each scheduling policy"
BUSY_SHARE = 0.5  # of the cores, wanted by other processes in the last minute


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common(parser, "reports/bench-policies")
    known = ", ".join(POLICIES)
    parser.add_argument(
        "--policies", default=",".join(DEFAULT_POLICIES), help=f"comma-separated (default: %(default)s; known: {known})"
    )
    parser.add_argument("--requests", type=at_least(1), default=40, help="requests of a run (default 40)")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="runs of each policy (default 3)")
    arrivals = parser.add_mutually_exclusive_group()
    arrivals.add_argument(
        "--rate",
        type=at_least(1e-6, float),
        help="only an open loop: Poisson arrivals a second (default: a closed loop of twice the slots, then an open "
        f"loop at {RATE_SHARE:g} of what that reached)",
    )
    arrivals.add_argument("--concurrency", type=at_least(1), help="only a closed loop: so many requests at a time")
    parser.add_argument(
        "--scale", type=at_least(1e-6, float), help="factor on all lengths (default: 95 %% of the trace fit uncut)"
    )
    parser.add_argument(
        "--pool-share",
        type=at_least(1e-6, float, 1.0),
        default=0.5,
        help="small pools, as a share of what a full batch of average requests reserves (default 0.5)",
    )


def main(arguments: argparse.Namespace) -> None:
    began_at, began_load = datetime.now(UTC).isoformat(timespec="seconds"), other_load()
    if began_load > BUSY_SHARE * available_cpus():
        say(f"the machine is busy (load average {began_load}): expect noise, or come back later")
    policies = choose([n.strip() for n in arguments.policies.split(",") if n.strip()])
    config, trace = config_of(arguments.config_json), trace_of(arguments)
    # Every request is served under every policy: what a full queue turns away could not be compared.
    config = config.model_copy(update={"max_queue": max(config.max_queue, arguments.requests)})
    manifest = read_manifest(arguments.artifact)
    setup = prepare(arguments, config, policies, trace)
    fits = fits_of(trace, arguments, setup.block_bytes // config.block_size, config.block_size)
    check_writable(arguments.out)
    gc.collect()
    gc.freeze()
    try:
        loads = measure(setup, policies, loads_of(arguments, config), arguments.rounds)
    finally:
        gc.unfreeze()
    check_same_outputs([run for load in loads for run in load.records.items()])
    tables, groups, said, measured = list[Table](), list[page.Group](), list[str](), list[dict[str, Any]]()
    for load in loads:
        results = compare(policies, load.records)
        tables += [figures_table(results, str(load)), *filter(None, [ratios_table(results, load.name)])]
        groups += page.run_groups(policies, load.records, load.name)
        said += [f"{load.name}, {finding}" for finding in findings(results)]
        measured.append(
            {
                "name": load.name,
                "arrivals": asdict(load.arrivals),
                "policies": [_result(r, config, load.records[r.policy.name]) for r in results],
            }
        )
    tables.append(fit_table(fits))
    groups.append(page.fit_group(fits))
    said.append(fit_finding(fits))
    report.show(tables, said)
    machine, load_averages = machine_facts(), (began_load, other_load())
    facts = _facts(setup, manifest, loads, arguments, machine, load_averages)
    lead = (
        f"{len(setup.workload.lengths)} requests, the same under every policy, {arguments.rounds} round(s) in "
        "alternating order."
    )
    html = page.render("Scheduling policies compared", lead, manifest.name, policies, said, tables, groups, facts)
    samples.write(arguments.out, {load.name: load.records for load in loads})
    report.write(
        arguments.out,
        html,
        {
            "schema_version": 1,
            "kind": "policies",
            "began_at": began_at,
            "artifact": {"name": manifest.name, "digest": manifest.digest},
            "engine_config": config.model_dump(),
            "engine_derived": setup.runner.derived,
            "machine": machine,
            "load_average_1min": {"before": load_averages[0], "after": load_averages[1]},
            "seed": arguments.seed,
            "rounds": arguments.rounds,
            "workload": setup.workload.about(),
            "small_pool_blocks": setup.small_blocks,
            "loads": measured,
            "findings": said,
            "fit": fit_results(fits, trace, setup.block_bytes // config.block_size, config.block_size),
        },
    )


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
    loads: list[Measured],
    arguments: argparse.Namespace,
    machine: dict[str, Any],
    load_averages: tuple[float, float],
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
        ("load", "; ".join(map(str, loads))),
        ("slots, step budget, chunk", f"{c.max_num_seqs}, {c.max_num_batched_tokens}, {c.prefill_chunk_tokens} tokens"),
        (
            "KV pool",
            f"{setup.runner.num_blocks} blocks of {c.block_size} tokens, "
            f"{setup.runner.num_blocks * setup.block_bytes / 1024**2:.1f} MiB",
        ),
        ("small KV pool", small),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['os']}"),
        ("other load", f"load average {load_averages[0]} before, {load_averages[1]} after, this run included"),
        ("arithmetic", f"{setup.runner.derived['compute_dtype']}, kernels/{setup.runner.derived['kernels']}"),
    ]
