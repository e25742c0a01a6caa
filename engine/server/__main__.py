"""``python -m engine.server``: an OpenAI-compatible server for one artifact.

Prints one line of JSON on stdout when it can serve, logs on stderr. Exit codes: 0 after an orderly end, 3 when it could
not start (port taken, artifact not usable).

On SIGTERM it takes no more requests and is not healthy, lets those that run finish for ``--grace-s``, aborts the rest
and ends; a second signal ends it at once. With ``--exit-with-stdin`` the end of its standard input ends it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import math
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import ValidationError

from engine.artifact import ArtifactError, read_manifest
from engine.config import EngineConfig
from engine.memory import stay_compact
from engine.protocol import HEARTBEAT_S, StepRow
from engine.seam import SeamError, plant
from engine.server.app import create_app
from engine.server.auth import ApiKeyError, ApiKeys
from engine.server.client import CoreClient, CoreError
from engine.server.limits import Limits, limited_protocol
from engine.server.logs import LogDir, StepRing
from engine.server.metrics import Metrics
from engine.server.prompt_log import PromptLog, PromptLogOptions
from engine.server.records import RequestRow
from engine.server.state import ServerState
from engine.text import TextCodec

log = logging.getLogger("engine.server")
LAST_CHUNKS_S = 2.0  # for aborted streams to be told so
BACKLOG = 2048
MAX_PORT = 65535
TINY = sys.float_info.min  # just below 0, where 0 may be
SPARE_FILES = 64  # beside connections: pipes, logs, artifacts


class StartError(RuntimeError):
    """The server cannot start: says why and what to do."""


class _Server(uvicorn.Server):
    """Leaves the signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """Its connections send at once (TCP_NODELAY), which asyncio asks only of sockets that say that they are TCP: held
    back until what went before is acknowledged, every token of a stream but the first may come 40 ms late.

    Raises:
        StartError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as e:
        sock.close()
        raise StartError(
            f"cannot listen on {host}:{port}: {e.strerror}; stop what uses it, or choose another port (0: a free one)"
        ) from e
    return sock


class Signals:
    """What ends the server: ``stop`` once asked to, ``now`` when it must not wait any longer."""

    def __init__(self, exit_with_stdin: bool) -> None:
        self.stop, self.now = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(sig, self._signalled)
        if exit_with_stdin:
            threading.Thread(target=self._watch_stdin, daemon=True).start()

    def _signalled(self) -> None:
        (self.now if self.stop.is_set() else self.stop).set()
        self.stop.set()

    def _at_once(self) -> None:
        self.now.set()
        self.stop.set()

    def _watch_stdin(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        with contextlib.suppress(RuntimeError):  # the loop may have ended already
            self._loop.call_soon_threadsafe(self._at_once)
        time.sleep(10)
        os._exit(0)  # nobody is left to wait for whatever hangs


def check_options(arguments: argparse.Namespace) -> None:
    """
    Raises:
        StartError: an option out of range: not a number, without end, or such that nothing could be served; or one
            that would say nothing.
    """
    least = {name: 0.0 for name in (*(f.name for f in fields(Limits)), "log_max_mib", "reference_limit_gib")}
    for name, above in (least | {"heartbeat_timeout_s": HEARTBEAT_S, "grace_s": -TINY, "port": -TINY}).items():
        value = getattr(arguments, name)
        if not above < value < math.inf:
            expected = "0 or more" if above < 0 else f"more than {above:g}"
            raise StartError(f"--{name.replace('_', '-')} is {value}, expected {expected}, and not without end")
    if arguments.port > MAX_PORT:
        raise StartError(f"--port is {arguments.port}, expected at most {MAX_PORT}")
    _prompt_log_options(arguments)
    if not arguments.host:  # which the system would take for every address of the machine
        raise StartError("--host is empty, expected a name or an address; 0.0.0.0 for all of the machine's")


async def serve(arguments: argparse.Namespace) -> None:
    """Runs until a signal.

    Raises:
        StartError, ArtifactError, CoreError, SeamError: it cannot start.
    """
    signals = Signals(arguments.exit_with_stdin)
    sock = bind(arguments.host, arguments.port)
    config, manifest = _config(arguments.config_json), read_manifest(arguments.artifact)
    codec = TextCodec(arguments.artifact)
    client = CoreClient(
        arguments.artifact, config, arguments.heartbeat_timeout_s, core_options=_core_options(arguments)
    )
    metrics = Metrics(lambda: client.stats)
    log_dir, prompt_log = _log_dir(arguments, metrics), _prompt_log(arguments, metrics)
    state = ServerState(
        model=arguments.served_model_name or manifest.name,
        manifest=manifest,
        config=config,
        client=client,
        codec=codec,
        metrics=metrics,
        steps=StepRing(),
        limits=_limits(arguments),
        log_dir=log_dir,
        prompt_log=prompt_log,
        keys=ApiKeys.read(arguments.api_key_file) if arguments.api_key_file else None,
    )
    client.on_step = state.note_step
    if arguments.seam is not None:
        plant(arguments.seam, "server", state)
    chores = [asyncio.create_task(state.tidy_up())]
    if log_dir:
        chores.append(asyncio.create_task(log_dir.run()))
    try:
        if not await _unless(signals.stop, client.start()):
            return
        if log_dir:
            log_dir.set_origin(client.clock.origin_at)
        try:
            sock.listen(BACKLOG)
        except OSError as e:
            raise StartError(f"cannot listen on port {sock.getsockname()[1]}: {e.strerror}; choose another") from e
        server = _Server(
            uvicorn.Config(
                create_app(state), log_config=None, log_level="error", access_log=False, lifespan="off", ws="none",
                proxy_headers=False, http=limited_protocol(state.limits, metrics), timeout_graceful_shutdown=1,
                timeout_keep_alive=math.ceil(state.limits.idle_timeout_s), backlog=BACKLOG,
            )
        )  # fmt: skip
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        gc.collect()
        gc.freeze()  # what is there now stays: later collections need not look at it
        print(json.dumps({"event": "ready", "port": sock.getsockname()[1]}), flush=True)
        await signals.stop.wait()
        await _drain(state, signals, arguments.grace_s)
        server.should_exit = True
        await serving
    finally:
        await client.stop()
        await state.grammars.stop()
        state.threads.shutdown()
        for chore in chores:
            chore.cancel()
        if log_dir:
            await log_dir.close()
        if prompt_log:
            prompt_log.close()
        sock.close()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Waits for ``work``, but not beyond ``stop``; whether the work was done."""
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        return False
    task.result()
    return True


async def _drain(state: ServerState, signals: Signals, grace_s: float) -> None:
    """Not ready from now on; running requests get ``grace_s``, then an abort and a moment to hear of it."""
    state.accepting = False
    if await _empty(state, signals, grace_s):
        return
    if not signals.now.is_set():
        log.warning("%d requests are aborted after %.0f s of grace", state.client.num_open, grace_s)
        state.client.abort_all()
        if await _empty(state, signals, LAST_CHUNKS_S):
            return
    state.client.give_up("the server is shutting down, and the engine core has not ended this request in time")


async def _empty(state: ServerState, signals: Signals, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while state.client.num_open and not state.client.failure:
        if time.monotonic() > deadline or signals.now.is_set():
            return False
        await asyncio.sleep(0.02)
    return True


def _core_options(arguments: argparse.Namespace) -> list[str]:
    return _reference_options(arguments) + ([] if arguments.seam is None else ["--seam", arguments.seam])


def _reference_options(arguments: argparse.Namespace) -> list[str]:
    """
    Raises:
        StartError: the directory of references cannot be written.
    """
    directory: Path | None = arguments.reference_dir
    if directory is None:
        return []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as e:
        raise StartError(
            f"--reference-dir {directory} cannot be written: {e.strerror}; choose another directory"
        ) from e
    return ["--reference-dir", str(directory), "--reference-limit-gib", str(arguments.reference_limit_gib)]


def _config(text: str) -> EngineConfig:
    try:
        return EngineConfig.model_validate_json(text)
    except ValidationError as e:
        raise StartError(f"the engine config is not valid: {e}") from e


def _limits(arguments: argparse.Namespace) -> Limits:
    """From the command line; makes sure that as many files may be open as there may be connections.

    Raises:
        StartError: more connections than the system allows.
    """
    limits = Limits(**{f.name: getattr(arguments, f.name) for f in fields(Limits)})
    needed = 2 * limits.max_connections + SPARE_FILES  # a refused one lives on for a moment
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise StartError(f"--max-connections needs {needed} open files, this system allows {hard}; lower it")
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return limits


def _log_dir(arguments: argparse.Namespace, metrics: Metrics) -> LogDir | None:
    if arguments.log_dir is None:
        return None
    try:
        return LogDir(
            arguments.log_dir,
            {"steps": StepRow, "requests": RequestRow},
            max_bytes=arguments.log_max_mib * 2**20,
            lost=lambda kind, rows: metrics.log_rows_lost.labels(kind).inc(rows),
        )
    except OSError as e:
        raise StartError(f"cannot write logs to {arguments.log_dir}: {e.strerror}; choose another --log-dir") from e


def _prompt_log_options(arguments: argparse.Namespace) -> PromptLogOptions:
    """
    Raises:
        StartError: one out of range, or without a folder.
    """
    names = [f.name for f in fields(PromptLogOptions)]
    given = {n: v for n in names if (v := getattr(arguments, f"prompt_log_{n}")) is not None}
    if given and arguments.prompt_log is None:
        options = ", ".join(f"--prompt-log-{n.replace('_', '-')}" for n in given)
        raise StartError(f"{options} without --prompt-log, which names the folder; nothing that users ask is written")
    try:
        return PromptLogOptions(**given)
    except ValueError as e:
        raise StartError(f"--prompt-log-{e}") from e


def _prompt_log(arguments: argparse.Namespace, metrics: Metrics) -> PromptLog | None:
    """
    Raises:
        StartError: the folder cannot be written.
    """
    folder: Path | None = arguments.prompt_log
    if folder is None:
        return None
    try:
        made = PromptLog(folder, _prompt_log_options(arguments), metrics.log_rows_lost.labels("prompts").inc)
    except OSError as e:
        raise StartError(f"cannot write prompts to {folder}: {e.strerror}; choose another --prompt-log") from e
    log.warning("what users ask is written to %s, of %g of the requests, as it comes", folder, made.options.share)
    return made


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="engine.server", description=__doc__)
    parser.add_argument("--artifact", type=Path, required=True, help="model directory with seatrial.json")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: a free one")
    parser.add_argument("--served-model-name", help="default: the artifact's name")
    parser.add_argument("--config-json", default="{}", help="an EngineConfig as JSON")
    parser.add_argument("--exit-with-stdin", action="store_true", help="end when standard input closes")
    parser.add_argument("--grace-s", type=float, default=30.0, help="time for running requests after SIGTERM")
    parser.add_argument("--heartbeat-timeout-s", type=float, default=30.0, help="silence of the core that is unhealthy")
    parser.add_argument("--api-key-file", type=Path, help="one key a line; without it everybody may ask")
    for limit in fields(Limits):
        name, kind = f"--{limit.name.replace('_', '-')}", type(limit.default)
        parser.add_argument(name, type=kind, default=limit.default, help="of a connection; see engine/server/limits.py")
    parser.add_argument("--log-dir", type=Path, help="where the step log and the request log are written, in parquet")
    parser.add_argument("--log-max-mib", type=int, default=1024, help="of both logs together: the oldest segments go")
    parser.add_argument(
        "--prompt-log", type=Path, metavar="DIR",
        help="where a sample of what users ask is written, personal data included: see engine/server/prompt_log.py",
    )  # fmt: skip
    for option in fields(PromptLogOptions):
        name, text = option.name.replace("_", "-"), f"{option.metadata['help']}; default {option.default:g}"
        parser.add_argument(f"--prompt-log-{name}", type=type(option.default), help=text)
    parser.add_argument("--reference-dir", type=Path, help="where /score stores and reads whole distributions")
    parser.add_argument(
        "--reference-limit-gib", type=float, default=8.0, help="bytes of --reference-dir that may be used"
    )
    parser.add_argument("--seam", metavar="MODULE:CLASS", help="plant something, never to be released: engine/seam.py")
    arguments = parser.parse_args(argv)
    stay_compact()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every write to a client that has gone
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        check_options(arguments)
        asyncio.run(serve(arguments))
    except (StartError, ApiKeyError, ArtifactError, CoreError, SeamError) as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
