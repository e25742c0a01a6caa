"""``python -m pipeline.fetch``"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.fetch.run import fetch
from pipeline.params import load_params
from pipeline.stage import run_main, stage


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m pipeline.fetch", description="Brings params.model.source to artifacts/base."
    ).parse_args()
    params = load_params()
    with stage("fetch") as s:
        fetch(params.model, Path("artifacts/base"), Path(".seatrial/work"), s)


if __name__ == "__main__":
    run_main(main)
