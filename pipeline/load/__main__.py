"""Stage ``loadtest``: staged load through Locust, one record per request, figures from the raw records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.params import load_params
from pipeline.stage import Stage, run_main, stage
from pipeline.targets.choose import add_options, choose

RESULTS = Path("results")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.load", description=__doc__)
    parser.add_argument("--tier", required=True, help="a tier of params.yaml; results go to results/TIER/load")
    parser.add_argument("--profile", help="a name below loadtests/profiles or a .yaml; default: load.profile")
    parser.add_argument("--seed", type=int, help="of prompts, lengths and arrivals; default: load.seed")
    parser.add_argument("--warmup-s", type=float, help="instead of the profile's, in every stage")
    parser.add_argument("--duration-s", type=float, help="likewise; a release or soak profile is not made too short")
    parser.add_argument("--workers", type=int, help="processes that send the load; default: load.workers")
    parser.add_argument(
        "--await-workers",
        metavar="HOST:PORT",
        help="listen there for --workers load clients on other machines instead of starting them (loadtests/README.md)",
    )
    add_options(parser)
    parser.add_argument("--out", type=Path, help="default: results/TIER/load")
    args = parser.parse_args()
    if args.workers is not None and args.workers < 1:
        raise SeatrialError(f"--workers is {args.workers}; expected 1 or more")
    params = load_params()
    choice = choose(params, args.tier, args.target, args.base_url, args.model)
    if args.await_workers and choice.bundled:
        raise SeatrialError(
            "--await-workers goes with --base-url or --target, a server that other machines reach; the engine that "
            "this stage starts listens on this machine alone (`seatrial serve --host` serves others)"
        )
    from pipeline.load.child import host_and_port
    from pipeline.load.engine_log import fresh, keep
    from pipeline.load.measure import engine_logs, measure, read_profile
    from pipeline.load.queueing import add_queue_times
    from pipeline.load.times import with_times
    from pipeline.targets.probe import with_capabilities
    from pipeline.targets.target import LOGS

    profile = with_times(args.profile or params.load.profile, args.warmup_s, args.duration_s)
    seed = params.load.seed if args.seed is None else args.seed
    workers = args.workers or params.load.workers
    await_at = host_and_port(args.await_workers) if args.await_workers else None
    out = args.out or RESULTS / args.tier / "load"

    read_profile(profile)  # a wrong profile is told before a server is started
    log = LOGS / f"load-{args.tier}.locust.log"
    with stage("loadtest", args.tier, measuring=True) as s:
        try:
            logs = fresh(engine_logs(args.tier))
            server_log = LOGS / f"load-{args.tier}.server.log"
            with choice.open(params.engine, server_log, ("--log-dir", str(logs))) as target:
                load = measure(s, with_capabilities(target), profile, seed, out, log, workers, await_at)
            if choice.bundled:  # a foreign server keeps its logs to itself
                keep(logs, out)
            load = add_queue_times(out)
        except SeatrialError as e:
            raise SeatrialError(f"stage {s.label}: {e}\nnothing was written to {out}; an earlier result stays") from e
        _report(s, load)


def _report(s: Stage, load: dict[str, Any]) -> None:
    from pipeline.load.printed import lines

    for line in lines(load):
        s.say(line)
    for what in load["not_comparable"].values():
        s.say(what)
    if load["client"]["void"]:
        s.say(f"the run is void: {load['client']['void_reason']}")


if __name__ == "__main__":
    run_main(main)
