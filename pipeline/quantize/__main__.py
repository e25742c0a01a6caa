"""``python -m pipeline.quantize --tier int8``"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.params import load_params
from pipeline.stage import run_main, stage


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.quantize", description="Makes artifacts/TIER from artifacts/base."
    )
    parser.add_argument("--tier", required=True, help="an entry of quantization in params.yaml")
    tier = parser.parse_args().tier
    entry = load_params().recipe_of(tier)
    with stage("quantize", tier) as s:
        from pipeline.quantize.run import quantise

        quantise(tier, entry, Path("artifacts/base"), Path("artifacts") / tier, Path(".seatrial/work"), s)


if __name__ == "__main__":
    run_main(main)
