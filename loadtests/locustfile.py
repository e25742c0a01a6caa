"""The traffic profiles of this project, for Locust.

    locust -f loadtests/locustfile.py --host http://127.0.0.1:8000            (web UI)
    locust -f loadtests/locustfile.py --host URL --headless --profile ci --out DIR  (as the pipeline runs it)
    locust -f loadtests/locustfile.py --master --expect-workers 2 ...         (and --worker, as often, anywhere)

Any OpenAI-compatible server will do.

Locust holds the users, carries the messages between master and workers and shows live numbers: its own rows are the
requests, from when they were due to their end; TTFT and ITL by stage are columns of the page's tab "Tokens" and of the
table at the end. The figures that count are computed from the raw records in ``--out``, not from these. This file alone
imports Locust, which patches sockets and threads on import; everything else in this package runs patched or not.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

from locust import LoadTestShape, User, constant, events, task
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from loadtests.client import Endpoint, Exchange
from loadtests.clocks import Clock
from loadtests.distributed import TO_MASTER, TO_WORKER, Master, Worker
from loadtests.driver import Driver
from loadtests.live import COLUMNS, Live
from loadtests.output import write_records, write_run
from loadtests.preflight import PreflightError, Ready, preflight
from loadtests.turns import Seat
from loadtests.workload import Profile, ProfileError, load_profile, profile_path

DEFAULT_PROFILE = "ci"
DEFAULT_SEED = 20261129
FAILED = 2  # exit code of a run that is worth nothing
_GATHER_S = 20.0  # how long the master waits for the records of workers that were told to stop
_PREFIX = "seatrial_"

log = logging.getLogger("seatrial")


class _Run:
    """The one run that this process is making; in the web UI one follows another.

    A single process has a ``driver``, a master a ``master``, a worker a ``worker`` and its driver.
    """

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self.driver: Driver | None = None
        self.master: Master | None = None
        self.worker: Worker | None = None
        self.live = Live()
        self.clock = Clock()
        self.runs = 0
        self.over = False

    @property
    def finished(self) -> bool:
        if self.master is not None:
            return self.over or self.master.done
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
        "--api-key-env", type=str, default="", help="Or the environment variable that holds it", include_in_web_ui=False
    )
    parser.add_argument(
        "--end-with-pid", type=int, default=0, help="End when this parent process is gone", include_in_web_ui=False
    )
    parser.add_argument(
        "--turn-s", type=float, default=0, help="Send in turns of so many seconds", include_in_web_ui=False
    )
    parser.add_argument(
        "--turns-fd", type=int, default=-1, help="The open socket by which they are given", include_in_web_ui=False
    )


def _init(environment: Any, runner: Any, **_: Any) -> None:
    options = environment.parsed_options
    if options.end_with_pid:
        runner.greenlet.spawn(_end_with, options.end_with_pid)
    if isinstance(runner, WorkerRunner):
        key = _key(options)  # before the master's options replace ours
        for kind in TO_WORKER:
            runner.register_message(_PREFIX + kind, _from_master(environment, kind, key))
        environment.events.report_to_master.add_listener(_report)
        return
    if isinstance(runner, MasterRunner):
        for kind in TO_MASTER:
            runner.register_message(_PREFIX + kind, _from_worker(kind))
        environment.events.worker_report.add_listener(_reported)
    if _load(environment) is None:
        raise SystemExit(FAILED)
    if environment.web_ui is not None:
        _extend(environment.web_ui)


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


def _key(options: Any) -> str | None:
    """
    Raises:
        ValueError: the variable that should hold it is not set.
    """
    if options.api_key_env:
        if not (key := os.environ.get(options.api_key_env, "").strip()):
            raise ValueError(f"the environment variable {options.api_key_env} (--api-key-env) is not set or empty")
        return key
    return Path(options.api_key_file).read_text(encoding="utf-8").strip() if options.api_key_file else None


def _seat(options: Any) -> Seat | None:
    """
    Raises:
        ValueError: only one of the two options was given.
        OSError: that is no open socket.
    """
    if (options.turn_s > 0) != (options.turns_fd >= 0):
        raise ValueError(f"--turn-s is {options.turn_s:g}, --turns-fd {options.turns_fd}; expected both or neither")
    return Seat(socket.socket(fileno=options.turns_fd), options.turn_s) if options.turn_s else None


def _fail(environment: Any, why: str) -> None:
    log.error("%s", why)
    environment.process_exit_code = FAILED
    run.over = True


# --- a run ---


def _begin(environment: Any, **_: Any) -> None:
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        return  # the master has sent its plan
    run.driver = run.master = None
    run.over, run.live = False, Live()
    profile, options = _load(environment), environment.parsed_options
    if profile is None:
        return _fail(environment, "no usable profile")
    try:
        endpoint = Endpoint(environment.host or "", _key(options))
        ready = preflight(profile, endpoint, options.model or None)
    except (OSError, ValueError, PreflightError) as e:
        return _fail(environment, str(e))
    # Sent twice, the same prompts would find their prefixes cached: each further run of this process has its own seed.
    seed = options.seed + run.runs
    run.runs += 1
    if isinstance(runner, MasterRunner):
        if options.turn_s:
            return _fail(environment, "--turn-s is for one client, not for a master with workers")
        return _plan(runner, profile, options.profile or DEFAULT_PROFILE, endpoint, ready, seed)
    try:
        run.driver = Driver(
            profile,
            endpoint,
            ready.model,
            seed,
            continuous_usage=ready.continuous_usage,
            on_end=lambda exchange: _show(environment, exchange),
            clock=run.clock.read,
            seat=_seat(options),
        )
    except (OSError, ValueError) as e:
        return _fail(environment, str(e))


def _go(environment: Any = None, **_: Any) -> None:
    if run.driver is not None and not run.driver.started:
        gc.collect()
        gc.freeze()  # a collection that walks through all that was imported stops the client for tens of milliseconds
        run.driver.start()


def _show(environment: Any, e: Exchange) -> None:
    """Locust's live table: the request, due to end. Its tokens go into ours: one of Locust's events each costs much."""
    end_s = e.due_s if e.end_s is None else e.end_s
    environment.events.request.fire(
        request_type="chat",
        name=e.stage,
        response_time=(end_s - e.due_s) * 1000,
        response_length=e.output_tokens or 0,
        exception=None if e.status in ("ok", "abandoned") else RuntimeError(f"{e.status}: {e.reason}"),
        context={},
    )
    run.live.add(e)


def _stop(environment: Any, **_: Any) -> None:
    if run.worker is not None:
        run.worker.stop()
    elif run.master is not None:
        run.master.stop()
    elif run.driver is not None and not run.driver.done.is_set():
        run.driver.stop()


def _finish(environment: Any, **_: Any) -> None:
    run.over = True
    if isinstance(environment.runner, WorkerRunner):
        if run.worker is not None and not run.worker.delivered.wait(10):
            log.error("the run did not come to an end; no records were handed over")
        return
    if run.master is not None:
        return _gather(environment, run.master)
    driver = run.driver
    if driver is None or not driver.started:
        return
    if not driver.done.wait(10):
        return _fail(environment, "the run did not come to an end; no records were written")
    if driver.failure:
        return _fail(environment, driver.failure)
    info = driver.info()
    _say(info.client)
    if out := environment.parsed_options.out:
        try:
            write_run(Path(out), driver.rows(), info)
        except OSError as e:
            _fail(environment, f"could not write the records to {out}: {e}")


def _say(health: Any) -> None:
    log.info("client: %s", health.model_dump_json())
    log.info("tokens, as counted live in buckets of 2 %%:\n%s", run.live.table())
    if health.void:
        log.warning("the run is void: %s", health.void_reason)


# --- master and workers ---


def _plan(runner: Any, profile: Profile, name: str, endpoint: Endpoint, ready: Ready, seed: int) -> None:
    plan = {
        "profile": profile.model_dump(mode="json", exclude_none=True),
        "folder": str(profile_path(name).resolve().parent),
        "base_url": endpoint.url,
        "model": ready.model,
        "continuous_usage": ready.continuous_usage,
        "seed": seed,
    }
    peers = sorted(node.id for node in runner.clients.ready)
    run.master = Master(peers, plan, lambda kind, data, id: runner.send_message(_PREFIX + kind, data, id), run.clock)
    run.master.plan()


def _from_master(environment: Any, kind: str, key: str | None) -> Any:
    def receive(msg: Any, **_: Any) -> None:
        if kind != "plan":
            if run.worker is not None:
                run.worker.receive(kind, msg.data)
            return
        run.over, run.live = False, Live()

        def send(kind: str, data: dict[str, Any]) -> None:
            live = {"live": run.live.take()} if kind == "end" else {}
            environment.runner.send_message(_PREFIX + kind, {**data, **live})

        run.worker = Worker(
            msg.data,
            key,
            send,
            run.clock,
            on_end=lambda exchange: _show(environment, exchange),
        )
        run.driver = run.worker.driver

    return receive


def _from_worker(kind: str) -> Any:
    def receive(msg: Any, **_: Any) -> None:
        if run.master is not None:
            run.live.merge(msg.data.get("live") or {})
            run.master.receive(kind, msg.data, msg.node_id)

    return receive


def _report(data: dict[str, Any], **_: Any) -> None:
    data["seatrial_live"] = run.live.take()


def _reported(data: dict[str, Any], **_: Any) -> None:
    run.live.merge(data.get("seatrial_live") or {})


def _look(runner: Any, master: Master) -> None:
    """A worker that Locust has not heard of for some seconds is lost."""
    for id in master.ids:
        node = runner.clients.get(id)
        if node is None or node.state == STATE_MISSING:
            master.lost(id, "it left" if node is None else "it sent no heartbeat any more")


def _gather(environment: Any, master: Master) -> None:
    until = time.monotonic() + _GATHER_S
    master.stop()
    while not master.done and time.monotonic() < until:
        _look(environment.runner, master)
        time.sleep(0.1)
    master.give_up(f"it did not hand over its records within {_GATHER_S:g} s")
    found = None if master.failure else master.result()
    if found is None:
        return _fail(environment, master.failure or "no worker handed over any records")
    records, info = found
    _say(info.client)
    if out := environment.parsed_options.out:
        try:
            write_records(Path(out), records, info)
        except OSError as e:
            _fail(environment, f"could not write the records to {out}: {e}")


# --- the web page ---


def _extend(web_ui: Any) -> None:
    """A tab with TTFT and ITL as columns, by the page's own means for it ("extended" tabs and tables)."""
    structure = [{"key": key, "title": title} for key, title in COLUMNS.items()]
    web_ui.template_args["extended_tabs"] = [{"title": "Tokens", "key": "tokens"}]
    web_ui.template_args["extended_tables"] = [{"key": "tokens", "structure": structure}]

    from flask import Response, request

    @web_ui.app.after_request  # type: ignore[untyped-decorator]
    def with_tokens(response: Response) -> Response:
        if request.path.endswith("/stats/requests") and response.is_json:
            value = response.get_json()
            value["extended_stats"] = [{"key": "tokens", "data": run.live.rows()}]
            response.set_data(json.dumps(value))
        return response


events.init_command_line_parser.add_listener(_arguments)
events.init.add_listener(_init)
events.test_start.add_listener(_begin)
events.spawning_complete.add_listener(_go)
events.test_stopping.add_listener(_stop)
events.test_stop.add_listener(_finish)


class Shape(LoadTestShape):  # type: ignore[misc]
    """As many users as the busiest stage needs, until the last stage is over. The driver says which of them work."""

    def tick(self) -> tuple[int, float] | None:
        runner = self.runner
        if isinstance(runner, MasterRunner) and run.master is not None and not run.over:
            _look(runner, run.master)
            run.master.watch()
        if run.profile is None or run.finished:
            return None
        users = run.profile.users
        if isinstance(runner, MasterRunner):
            workers = len(run.master.ids) if run.master else len(runner.clients.ready)
            if not workers:
                log.error("no worker is there: start some with --worker, and the master with --expect-workers")
                return None
            users = workers * -(-users // workers)  # Locust shares them out evenly; those without a slot are idle
        return users, float(users)


class ChatUser(User):  # type: ignore[misc]
    """One closed-loop user; open-loop requests are sent beside them."""

    wait_time = constant(1)

    @task  # type: ignore[untyped-decorator]
    def serve(self) -> None:
        driver = run.driver
        if driver is not None and not driver.done.is_set() and (slot := driver.take_slot()) is not None:
            driver.run_slot(slot)
