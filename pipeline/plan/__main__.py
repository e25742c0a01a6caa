"""Stage: the memory ledger of a tier (``python -m pipeline.plan --tier T``)."""

from __future__ import annotations

import argparse

from pipeline.params import load_params
from pipeline.plan.memory import size, write_plan
from pipeline.stage import run_main, stage


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the memory ledger of a tier to results/TIER/plan.json.")
    parser.add_argument("--tier", required=True)
    tier = parser.parse_args().tier
    params = load_params()
    params.recipe_of(tier)
    with stage("plan", tier) as s:
        ledger = write_plan(tier, params.engine)["ledger"]
        s.say(f"weights {size(ledger['weights_bytes'])}, KV pool {size(ledger['kv_pool_bytes'])}")


if __name__ == "__main__":
    run_main(main)
