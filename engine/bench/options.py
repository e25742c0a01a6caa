"""Command line options that the benchmarks share, and the inputs they stand for."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from engine import ledger
from engine.bench.errors import BenchError
from engine.bench.fit import Fit, fit_all
from engine.bench.traces import EXPECTED, Trace, draw_trace, read_trace
from engine.config import EngineConfig, resolve_dtypes
from engine.isa import isa_features


class Parser(argparse.ArgumentParser):
    """A mistake in the options is an error like any other: one line, exit code 3."""

    def error(self, message: str) -> NoReturn:
        raise BenchError(f"{message} (see --help)")


def at_least(low: float, kind: Callable[[str], Any] = int, high: float | None = None) -> Callable[[str], Any]:
    """An argparse type: a number from ``low`` on, up to ``high``."""

    def parse(text: str) -> Any:
        bounds = f"a number of at least {low:g}" + (f" and at most {high:g}" if high is not None else "")
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}, expected {bounds}") from None
        if not low <= value <= (float("inf") if high is None else high) or value == float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r}, expected {bounds}")
        return value

    return parse


def add_common(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument("--artifact", type=Path, required=True, help="model directory with seatrial.json")
    parser.add_argument("--trace", type=Path, help=f"{EXPECTED}; default: seeded log-normal lengths")
    parser.add_argument("--seed", type=int, default=0, help="of place in the trace, token ids, arrivals (default 0)")
    parser.add_argument("--out", type=Path, default=Path(out), help=f"folder of page and results (default {out})")
    parser.add_argument("--config-json", default="{}", help="an EngineConfig as JSON")
    parser.add_argument(
        "--fit-pool-mib",
        type=at_least(0.001, float),
        default=1024.0,
        help="KV pool that the trace's unscaled lengths are fitted into, without the model (default 1024)",
    )
    parser.add_argument(
        "--fit-requests", type=at_least(1), default=1000, help="requests of the trace that are fitted (default 1000)"
    )


def config_of(text: str) -> EngineConfig:
    """
    Raises:
        BenchError: not an EngineConfig.
    """
    try:
        return EngineConfig.model_validate_json(text)
    except ValidationError as e:
        problems = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors())
        raise BenchError(f"--config-json is not a valid engine config: {problems}") from e


def trace_of(arguments: argparse.Namespace) -> Trace:
    return draw_trace(arguments.seed) if arguments.trace is None else read_trace(arguments.trace)


def kv_bytes_per_token(artifact: Path, config: EngineConfig) -> int:
    """From the artifact's shape; the weights are not read.

    Raises:
        ArtifactError: not an artifact.
    """
    compute, kv, _ = resolve_dtypes(config, isa_features())
    return ledger.plan_artifact(artifact, config, compute, kv).kv_bytes_per_token


def fits_of(trace: Trace, arguments: argparse.Namespace, bytes_per_token: int, block_size: int) -> list[Fit]:
    """The trace's own lengths, from a seeded place on."""
    count = min(arguments.fit_requests, len(trace.rows))
    first = random.Random(f"fit/{arguments.seed}").randrange(len(trace.rows) - count + 1)
    pool = round(arguments.fit_pool_mib * 1024**2)
    return fit_all(trace.rows[first : first + count], pool, bytes_per_token, block_size)
