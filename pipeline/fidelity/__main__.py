"""How far tiers are from the 16-bit reference: perplexity, KL divergence, top-1 agreement, greedy divergence.

seatrial fidelity                                    the tiers of a trial
seatrial fidelity --tier fp8 --tier gptq-int4-g64    these; built if they are not there
seatrial fidelity --all --kv int8                    every entry of `quantization`, also on an int8 KV cache
seatrial fidelity --tier bf16 --kv int8 --kv int4    what the KV cache alone loses
seatrial fidelity --table                            what has been measured, side by side
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.fidelity.records import read_records
from pipeline.fidelity.run import ARTIFACTS, KV, Variant, measure
from pipeline.fidelity.table import markdown
from pipeline.fidelity.texts import Sizes, workload
from pipeline.params import Params, load_params
from pipeline.stage import Stage, run_main, stage
from pipeline.targets.spec import BUNDLED

WORK = Path(".seatrial/work")


def main(argv: Sequence[str] | None = None) -> None:
    """
    Raises:
        SeatrialError: unknown tier, text that is not held out, a server that fails, records that do not go together.
    """
    given = _arguments(argv)
    if not given.table:
        params = load_params()
        tiers = list(params.quantization) if given.all else given.tier or params.tiers
        for tier in tiers:
            params.recipe_of(tier)
        with stage("fidelity") as s:
            if params.target != BUNDLED:
                s.say(f"target {params.target} has no /score with whole distributions: measured on the bundled engine")
            _measure(given, params, tiers, s)
    print(markdown(read_records()))


def _measure(given: argparse.Namespace, params: Params, tiers: list[str], s: Stage) -> None:
    from pipeline.evaluation.items import EVALSETS, load_evalset

    for tier in dict.fromkeys([params.release.reference, *tiers]):
        _build_if_missing(params, tier, s)
    sizes = Sizes(
        given.held_out_tokens, given.sequence_tokens, given.prompts_per_scenario, given.long_tokens, given.output_tokens
    )
    reference = params.release.reference
    evalset = load_evalset(EVALSETS / params.evaluation.evalset)
    work = workload(ARTIFACTS / reference, given.text, evalset.items, sizes, evalset.identity)
    variants = [Variant(tier) for tier in tiers]
    variants += [Variant(tier, kv) for kv in given.kv for tier in tiers if kv != "auto"]
    measure(reference, variants, params.engine, work, sizes, WORK / "fidelity", s)


def _build_if_missing(params: Params, tier: str, s: Stage) -> None:
    if (ARTIFACTS / tier).is_dir():
        return
    from pipeline.quantize.run import quantise

    s.say(f"artifacts/{tier} is not there; building it")
    quantise(tier, params.recipe_of(tier), ARTIFACTS / "base", ARTIFACTS / tier, WORK, s)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="seatrial fidelity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--tier", action="append", default=[], help="an entry of quantization in params.yaml; repeatable"
    )
    which.add_argument("--all", action="store_true", help="every entry of quantization")
    which.add_argument("--table", action="store_true", help="measure nothing, print the records that are there")
    parser.add_argument("--kv", action="append", default=[], choices=KV, help="also on this KV cache; repeatable")
    parser.add_argument("--text", default="v1", help="file below pipeline/fidelity/held_out/, without .jsonl")
    sizes = Sizes()
    for name, least in (
        ("held_out_tokens", 2),
        ("sequence_tokens", 8),
        ("prompts_per_scenario", 0),
        ("long_tokens", 0),
        ("output_tokens", 1),
    ):
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=_at_least(least), default=getattr(sizes, name), metavar="N",
            help=f"default {getattr(sizes, name)}",
        )  # fmt: skip
    return parser.parse_args(argv)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value}; expected {least} or more")
        return value

    return number


if __name__ == "__main__":
    run_main(main)
