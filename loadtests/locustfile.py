"""The traffic profiles of this project, for Locust.

    locust -f loadtests/locustfile.py --host http://127.0.0.1:8000            (web UI)
    locust -f loadtests/locustfile.py --host URL --headless --profile ci --out DIR  (as the pipeline runs it)

Any OpenAI-compatible server will do.

Locust holds the users and shows live numbers: rows ``TTFT`` and ``ITL`` beside the requests, in ms. The figures that
count are computed from the raw records in ``--out``, not from Locust's statistics. This file alone imports Locust,
which patches sockets and threads on import; everything else in this package runs patched or not.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from pathlib import Path
from typing import Any

from locust import LoadTestShape, User, constant, events, task

from loadtests.client import Endpoint, Exchange
from loadtests.driver import Driver
from loadtests.output import write_run
from loadtests.preflight import PreflightError, preflight
from loadtests.workload import Profile, ProfileError, load_profile

DEFAULT_PROFILE = "ci"
DEFAULT_SEED = 20261129
FAILED = 2  # exit code of a run that is worth nothing

log = logging.getLogger("seatrial")


class _Run:
    """The one run that this process is making; in the web UI one follows another."""

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self.driver: Driver | None = None
        self.runs = 0
        self.over = False

    @property
    def finished(self) -> bool:
        return self.over or (self.driver is not None and self.driver.done.is_set())


run = _Run()


def _arguments(parser: Any) -> None:
    # --profile is an option that Locust has already: a free text, also in the form of the web UI.
    parser.add_argument("--model", type=str, default="", help="Model to ask for; default: the first of /v1/models")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="Of prompts, lengths and arrivals")
    parser.add_argument("--out", type=str, default="", help="Folder for records.parquet and run.json")
    parser.add_argument(
        "--api-key-file", type=str, default="", help="File with the bearer token", include_in_web_ui=False
    )
    parser.add_argument(
        "--end-with-pid", type=int, default=0, help="End when this parent process is gone", include_in_web_ui=False
    )


def _init(environment: Any, runner: Any, **_: Any) -> None:
    options = environment.parsed_options
    if options.master or options.worker:
        log.error("found --master or --worker, expected one process: a profile's schedule is not split over workers")
        raise SystemExit(FAILED)
    if options.end_with_pid:
        runner.greenlet.spawn(_end_with, options.end_with_pid)
    if _load(environment) is None:
        raise SystemExit(FAILED)


def _end_with(pid: int) -> None:
    while os.getppid() == pid:
        time.sleep(0.5)
    os._exit(FAILED)


def _load(environment: Any) -> Profile | None:
    try:
        run.profile = load_profile(environment.parsed_options.profile or DEFAULT_PROFILE)
    except ProfileError as e:
        log.error("%s", e)
        run.profile = None
    return run.profile


def _fail(environment: Any, why: str) -> None:
    log.error("%s", why)
    environment.process_exit_code = FAILED
    run.over = True


def _begin(environment: Any, **_: Any) -> None:
    run.driver, run.over = None, False
    profile, options = _load(environment), environment.parsed_options
    if profile is None:
        return _fail(environment, "no usable profile")
    try:
        key = Path(options.api_key_file).read_text(encoding="utf-8").strip() if options.api_key_file else None
        endpoint = Endpoint(environment.host or "", key)
        ready = preflight(profile, endpoint, options.model or None)
    except (OSError, ValueError, PreflightError) as e:
        return _fail(environment, str(e))
    # Sent twice, the same prompts would find their prefixes cached: each further run of this process has its own seed.
    seed = options.seed + run.runs
    run.runs += 1
    run.driver = Driver(
        profile,
        endpoint,
        ready.model,
        seed,
        continuous_usage=ready.continuous_usage,
        on_end=lambda exchange: _show(environment, exchange),
    )


def _go(**_: Any) -> None:
    if run.driver is not None and not run.driver.started:
        run.driver.start()


def _show(environment: Any, e: Exchange) -> None:
    """Locust's live table: the request, its time to first token and its gaps between tokens."""
    fire, ms = environment.events.request.fire, 1000
    failed = None if e.status == "ok" else RuntimeError(f"{e.status}: {e.reason}")
    times, end_s = e.token_times_s, e.due_s if e.end_s is None else e.end_s
    common: dict[str, Any] = {"name": e.stage, "context": {}, "exception": None}
    fire(
        **{**common, "exception": failed},
        request_type="chat",
        response_time=(end_s - e.due_s) * ms,
        response_length=e.output_tokens or 0,
    )
    if failed is None and times:
        fire(**common, request_type="TTFT", response_time=(times[0] - e.due_s) * ms, response_length=0)
        for a, b in itertools.pairwise(times):
            fire(**common, request_type="ITL", response_time=(b - a) * ms, response_length=0)


def _stop(**_: Any) -> None:
    if run.driver is not None and not run.driver.done.is_set():
        run.driver.stop()


def _finish(environment: Any, **_: Any) -> None:
    driver, run.over = run.driver, True
    if driver is None or not driver.started:
        return
    if not driver.done.wait(10):
        return _fail(environment, "the run did not come to an end; no records were written")
    if driver.failure:
        return _fail(environment, driver.failure)
    info = driver.info()
    log.info("client: %s", info.client.model_dump_json())
    if out := environment.parsed_options.out:
        try:
            write_run(Path(out), driver.rows(), info)
        except OSError as e:
            _fail(environment, f"could not write the records to {out}: {e}")


events.init_command_line_parser.add_listener(_arguments)
events.init.add_listener(_init)
events.test_start.add_listener(_begin)
events.spawning_complete.add_listener(_go)
events.test_stopping.add_listener(_stop)
events.test_stop.add_listener(_finish)


class Shape(LoadTestShape):  # type: ignore[misc]
    """As many users as the busiest stage needs, until the last stage is over. The driver says which of them work."""

    def tick(self) -> tuple[int, float] | None:
        if run.profile is None or run.finished:
            return None
        return run.profile.users, float(run.profile.users)


class ChatUser(User):  # type: ignore[misc]
    """One closed-loop user; open-loop requests are sent beside them."""

    wait_time = constant(1)

    @task  # type: ignore[untyped-decorator]
    def serve(self) -> None:
        driver = run.driver
        if driver is not None and not driver.done.is_set():
            slot = driver.take_slot()
            if slot is not None:
                driver.run_slot(slot)
