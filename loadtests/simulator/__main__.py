"""Serves a scenario until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from pathlib import Path

from loadtests.simulator.scenario import Scenario, ScenarioError, load_scenario
from loadtests.simulator.server import Simulator, serve
from loadtests.simulator.truth import TruthLog


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.simulator", description=__doc__)
    parser.add_argument("--scenario", type=Path, help="YAML or JSON file; default: a plain server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: one that is free, named in the line that is printed")
    parser.add_argument("--truth", type=Path, help="write what was sent and when to this file, one line a request")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when standard input is closed")
    args = parser.parse_args()
    try:
        scenario = load_scenario(args.scenario) if args.scenario else Scenario()
    except ScenarioError as e:
        sys.exit(str(e))
    log = TruthLog(args.truth, scenario.model_dump(mode="json")) if args.truth else None
    gc.freeze()  # what the imports made need not be looked at again: a pause here would be a stall of the server
    try:
        asyncio.run(_run(Simulator(scenario, log), args.host, args.port, args.end_with_stdin))
    finally:
        if log is not None:
            log.close()


async def _run(simulator: Simulator, host: str, port: int, end_with_stdin: bool) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, over.set)
    if end_with_stdin:
        loop.add_reader(0, lambda: None if os.read(0, 65536) else over.set())
    server = await serve(simulator, host, port)
    ready = {"event": "ready", "host": host, "port": server.sockets[0].getsockname()[1]}
    print(json.dumps(ready), flush=True)
    await over.wait()
    server.close()
    for stream in list(simulator.open):
        stream.client_gone()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.wait_closed(), 0.1)


if __name__ == "__main__":
    main()
