"""``kernels``: each kernel's GB/s and TFLOP/s on the shapes of Llama models, beside ceilings measured on the spot.

seatrial bench kernels --device cuda --shape 8B --shape 1B
seatrial bench kernels --device cpu --shape 135M
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch

from engine.bench.engines.ceilings import meter
from engine.bench.errors import BenchError
from engine.bench.files import write_json
from engine.bench.gpu.clock import Ceilings, Clock
from engine.bench.gpu.kernels import Cases, Row, measure
from engine.bench.machine import machine_facts, source_digest
from engine.bench.options import at_least, config_of
from engine.bench.report import show
from engine.bench.rounds import say
from engine.bench.show import Table
from engine.config import EngineConfig, resolve_dtypes
from engine.isa import isa_features
from engine.kernels.interface import Kernels
from engine.kernels.registry import capability_of, select
from engine.ledger import compute_threads

HELP = "each kernel's GB/s and TFLOP/s on a model's shapes, beside the machine's ceilings"
MODELS = ("135M", "1B", "8B")
KINDS = {"products": Cases.products, "attention": Cases.attention, "others": Cases.others}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", choices=("cpu", "cuda"), help="whose kernels (default: as the settings say)")
    parser.add_argument("--shape", action="append", choices=MODELS, help=f"in any number (default {MODELS[0]})")
    parser.add_argument("--only", choices=sorted(KINDS), action="append", help="kinds of operations (default: all)")
    parser.add_argument("--threads", type=at_least(1), help="of a CPU's kernels (default: as the settings say)")
    parser.add_argument("--out", type=Path, default=Path("reports/bench-kernels.json"), help="JSON of all rows")
    parser.add_argument("--config-json", default="{}", help="an EngineConfig as JSON")


def main(arguments: argparse.Namespace) -> None:
    """
    Raises:
        BenchError, UnavailableError: no such device, or nothing to measure it with.
    """
    config = config_of(arguments.config_json)
    changes = {"backend": arguments.device or config.backend, "threads": arguments.threads or config.threads}
    config = config.model_copy(update=changes)
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    kernels = _kernels(config)
    clock, ceilings = _ceilings(config, kernels)
    rows: list[Row] = []
    for shape in arguments.shape or MODELS[:1]:
        cases = Cases(kernels, clock.device, shape)
        for row in measure(cases, [KINDS[k] for k in arguments.only or KINDS], clock, ceilings):
            rows.append(row)
            say(f"{shape}, {row.operation} {row.scheme}, {row.rows} rows: {row.microseconds:.1f} us")
    show([table(rows, kernels.name, ceilings)], [])
    write_json(
        arguments.out,
        {
            "schema_version": 1,
            "kind": "kernels",
            "began_at": began_at,
            "machine": machine_facts(),
            "engine_source_sha256": source_digest(),
            "kernels": kernels.name,
            "device": kernels.about() or None,
            "compute_dtype": str(kernels.dtype).removeprefix("torch."),
            "ceilings": asdict(ceilings),
            "rows": [asdict(row) for row in rows],
        },
    )


def _kernels(config: EngineConfig) -> Kernels:
    compute, _, _ = resolve_dtypes(config, isa_features(), capability_of(config.backend))
    kernels, _ = select(config.backend, getattr(torch, compute), compute_threads(config))
    if kernels.name == "reference":
        raise BenchError("only the reference kernels can run here, which are not made to be fast: install a C compiler")
    torch.set_num_threads(kernels.torch_threads)
    return kernels


def _ceilings(config: EngineConfig, kernels: Kernels) -> tuple[Clock, Ceilings]:
    """On a CPU a product's bytes are read and hardly any are written: its ceiling is that of reading."""
    if config.backend == "cuda":
        from engine.kernels.cuda.device import current

        own = current()
        clock = Clock(own.device, own.graphs)
        return clock, clock.ceilings()
    found, reason = meter(compute_threads(config))
    if found is None:
        raise BenchError(f"the machine's ceilings cannot be measured: {reason}")
    measured = found.measure()
    dtype = "bf16" if kernels.dtype == torch.bfloat16 else "float32"
    floats, int8 = measured.gops.get(dtype), measured.gops.get("int8")
    return Clock(torch.device("cpu"), None), Ceilings(
        measured.read_gb_per_s,
        None if floats is None else floats / 1000,
        None if int8 is None else int8 / 1000,
        float_dtype=dtype,
    )


def table(rows: list[Row], kernels: str, ceilings: Ceilings) -> Table:
    head = ["shape", "operation", "scheme", "rows", "context", "us", "GB/s", "TFLOP/s", "bound", "share"]
    peaks = [f"{ceilings.copy_gb_per_s:.4g} GB/s"]
    peaks += [
        f"{v:.4g} {n}"
        for v, n in (
            (ceilings.bf16_tflops, f"TFLOP/s in {ceilings.float_dtype}"),
            (ceilings.int8_tops, "TOP/s in int8"),
            (ceilings.fp8_tflops, "TFLOP/s in fp8"),
        )
        if v
    ]
    return Table(
        f"kernels/{kernels}; ceilings: {', '.join(peaks)}",
        head,
        [
            [
                r.model,
                r.operation,
                r.scheme,
                f"{r.rows}",
                "" if r.context is None else f"{r.context}",
                f"{r.microseconds:.1f}",
                f"{r.gb_per_s:.4g}",
                f"{r.tflops:.3g}",
                r.bound,
                "" if r.share is None else f"{100 * r.share:.0f} %",
            ]
            for r in rows
        ],
        ["share: of the time that the work takes at its bound, its ceiling"],
    )
