"""Which tier to serve, and when not to quantise, from what has been measured.

seatrial advise --concurrency 16 --context 2048 --loss-points 2
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from pipeline.advise.facts import read_facts
from pipeline.advise.judge import LOSS_POINTS, Load, advise
from pipeline.params import load_params
from pipeline.stage import run_main


def main(argv: Sequence[str] | None = None) -> None:
    """
    Raises:
        ArtifactError, SeatrialError: an artifact or a result that is missing or cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="seatrial advise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tier", action="append", default=[], help="repeatable; default: the tiers of a trial")
    parser.add_argument("--concurrency", type=_positive, help="requests at once; default: engine.max_num_seqs")
    parser.add_argument("--context", type=_positive, help="tokens of each; default: engine.max_model_len")
    parser.add_argument(
        "--loss-points", type=float, default=LOSS_POINTS, help="loss of accuracy that matters; default 2"
    )
    parser.add_argument("--json", action="store_true", help="sentences with their figures and files")
    given = parser.parse_args(argv)
    if not 0 < given.loss_points < 100:
        parser.error(f"--loss-points is {given.loss_points}; expected more than 0 and less than 100")
    params = load_params()
    for tier in given.tier:
        params.recipe_of(tier)
    from engine.config import resolve_dtypes
    from pipeline.provenance import this_machine

    compute, kv, _reason = resolve_dtypes(params.engine, this_machine().isa)
    facts = read_facts(Path(), params.release.reference, given.tier or params.tiers, params.engine, compute, kv)
    engine = params.engine
    load = Load(given.concurrency or engine.max_num_seqs, given.context or engine.max_model_len, given.loss_points)
    found = advise(facts, load)
    if given.json:
        print(json.dumps({"schema_version": 1, "advice": [a.as_json() for a in found]}, indent=2, allow_nan=False))
        return
    for advice in found:
        print(f"- {advice.text}\n  ({', '.join(advice.sources)})")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}; expected 1 or more")
    return value


if __name__ == "__main__":
    run_main(main)
