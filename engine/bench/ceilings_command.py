"""``ceilings``: what this machine can do at most, as one line of JSON: memory read bandwidth and arithmetic peaks."""

from __future__ import annotations

import argparse
import json

from engine.bench.engines.ceilings import meter
from engine.cpus import available_cpus
from engine.kernels.errors import UnavailableError

HELP = "memory read bandwidth and arithmetic peaks of this machine, as JSON; takes about a second"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what is measured; default cpu")


def main(arguments: argparse.Namespace) -> None:
    """
    Raises:
        UnavailableError: no compiler, or no such device.
    """
    threads = available_cpus()
    found, why_not = meter(threads, arguments.device)
    if found is None:
        raise UnavailableError(why_not)
    ceilings = found.measure()
    value = {
        "schema_version": 1,
        "device": arguments.device,
        "threads": threads,
        "read_gb_per_s": ceilings.read_gb_per_s,
        "gops": ceilings.gops,
        "instructions": found.names,
    }
    print(json.dumps(value))
