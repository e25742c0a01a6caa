"""``fit``: how many requests of a trace fit a KV pool, paged and contiguous; no weights are read."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from engine.artifact import read_manifest
from engine.bench import page, report
from engine.bench.files import check_writable
from engine.bench.fit import Fit
from engine.bench.options import add_common, config_of, fits_of, kv_bytes_per_token, trace_of
from engine.bench.show import fit_finding, fit_table
from engine.bench.traces import Trace

HELP = "how many requests of a trace fit a KV pool, paged against contiguous, without running the model"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common(parser, "reports/bench-fit")


def main(arguments: argparse.Namespace) -> None:
    config, trace = config_of(arguments.config_json), trace_of(arguments)
    manifest = read_manifest(arguments.artifact)
    per_token = kv_bytes_per_token(arguments.artifact, config)
    check_writable(arguments.out)
    fits = fits_of(trace, arguments, per_token, config.block_size)
    tables = [fit_table(fits)]
    said = [fit_finding(fits)]
    report.show(tables, said)
    facts = [
        ("artifact", f"{manifest.name}, {manifest.digest[:12]}"),
        ("KV cache", f"{per_token:,} bytes a token, blocks of {config.block_size} tokens"),
        ("trace", f"{trace.name}, {len(trace.rows):,} rows, sha256 {trace.digest[:12]}"),
        ("seed", str(arguments.seed)),
    ]
    lead = "The engine's own scheduler and block pool, walked with the trace's lengths."
    html = page.render("What fits the KV pool", lead, manifest.name, [], said, tables, [page.fit_group(fits)], facts)
    results = {
        "schema_version": 1,
        "kind": "fit",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "artifact": {"name": manifest.name, "digest": manifest.digest},
        "seed": arguments.seed,
        "findings": said,
        "fit": fit_results(fits, trace, per_token, config.block_size),
    }
    report.write(arguments.out, html, results)


def fit_results(fits: list[Fit], trace: Trace, bytes_per_token: int, block_size: int) -> dict[str, Any]:
    return {
        "trace": {"name": trace.name, "sha256": trace.digest, "rows": len(trace.rows), "skipped_rows": trace.skipped},
        "kv_bytes_per_token": bytes_per_token,
        "block_size": block_size,
        "reservations": [asdict(f) | {"used_share": f.used_share} for f in fits],
    }
