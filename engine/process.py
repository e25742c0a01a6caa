"""The engine core as a process of its own: ``python -m engine.process``, started by the server with two pipes.

stdin   commands from the server; its end means that the server is gone, and the core ends at once
stdout  messages to the server (moved to a private descriptor, so that a stray print cannot damage the stream)
stderr  log
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from engine.artifact import ArtifactError, verify
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.grammar.compiler import GrammarCompiler
from engine.kernels.errors import UnavailableError
from engine.memory import MOST_KEPT_BYTES, give_back, keep_freed
from engine.protocol import HEARTBEAT_S, AddRequest, Output, encode, read_message
from engine.scoring.references import ReferenceStore
from engine.seam import plant

log = logging.getLogger(__name__)
Inbox = queue.SimpleQueue[dict[str, Any]]


def read_commands(pipe: BinaryIO, inbox: Inbox) -> None:
    """Fills the inbox until the pipe closes, then ends the process, even if a step is stuck in native code."""
    while (message := read_message(pipe)) is not None:
        inbox.put(message)
    os._exit(0)


class Loop:
    """Commands in, steps, messages out."""

    def __init__(self, core: EngineCore, inbox: Inbox, pipe: BinaryIO) -> None:
        self.core, self.inbox, self.pipe = core, inbox, pipe
        self._tidy = True  # nothing was done since freed memory was given back

    def send(self, message: dict[str, Any]) -> None:
        self.pipe.write(encode(message))
        self.pipe.flush()

    def run(self) -> None:
        while True:
            self.turn()

    def turn(self) -> None:
        """Handles the commands that are there, then takes one step; without work, waits for one heartbeat at most."""
        deadline = time.monotonic() + HEARTBEAT_S
        try:
            while True:
                left = 0.0 if self.core.has_work else deadline - time.monotonic()
                self.handle(self.inbox.get(block=left > 0, timeout=left if left > 0 else None))
        except queue.Empty:
            pass
        outputs = list[Output]()
        if self.core.has_work:
            outputs, self._tidy = self.core.step(), False
        elif not self._tidy:
            give_back()
            self._tidy = True
        self.send({"type": "step", "outputs": outputs, "rows": self.core.take_steps(), "stats": self.core.stats()})

    def handle(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "add":
                for fields in message["requests"]:
                    self.core.submit(AddRequest(*fields))
            case "abort":
                self.core.abort(message["ids"])
            case other:
                raise ValueError(f"unknown command {other!r}")


def build(
    artifact: Path,
    config: EngineConfig,
    reference_dir: Path | None = None,
    reference_limit_gib: float = 0.0,
    seam: str | None = None,
) -> tuple[EngineCore, dict[str, Any]]:
    """Loads the model. Returns the core and what the server tells others about it.

    ``seam``: see ``engine.seam``.

    Raises:
        ArtifactError, UnavailableError: the directory cannot be served, or not on this machine.
    """
    from engine.runner import ModelRunner

    with ThreadPoolExecutor(1) as thread:  # what is served is what the manifest's digest says; read while it loads
        verified = thread.submit(verify, artifact)
        runner = ModelRunner(artifact, config)
        manifest = verified.result()
    arithmetic = {k: str(runner.derived[k]) for k in ("compute_dtype", "kv_dtype", "kernels")}
    salt = f"{manifest.digest}/{arithmetic['compute_dtype']}/{arithmetic['kv_dtype']}"
    references = None
    if reference_dir is not None:
        identity = {"model": manifest.name, "model_digest": manifest.digest, **arithmetic}
        references = ReferenceStore(reference_dir, int(reference_limit_gib * 2**30), runner.vocab_size, identity)
    core = EngineCore(runner, config, salt.encode(), references, GrammarCompiler(artifact, runner.vocab_size))
    if seam is not None:
        plant(seam, "core", core)
        runner.derived["seam"] = seam
    return core, {
        "vocab_size": runner.vocab_size,
        "max_model_len": runner.max_model_len,
        "derived": runner.derived,
        "memory": runner.memory(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="engine.process", description=__doc__)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--reference-dir", type=Path)
    parser.add_argument("--reference-limit-gib", type=float, default=0.0)
    parser.add_argument("--seam")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent to the whole terminal or group: the server decides when to end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_freed(MOST_KEPT_BYTES)
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(sys.stdin.buffer, inbox), daemon=True).start()
    try:
        config = EngineConfig.model_validate_json(arguments.config_json)
        core, about = build(
            arguments.artifact, config, arguments.reference_dir, arguments.reference_limit_gib, arguments.seam
        )
        loop = Loop(core, inbox, events)
        gc.collect()
        gc.freeze()
        loop.send({"type": "ready", "began_s": core.began_s, "stats": core.stats(), **about})
        loop.run()
    except Exception as e:
        # The server says it to whoever waits; a defect leaves its traceback in the log as well.
        if not isinstance(e, ArtifactError | UnavailableError):
            log.exception("the engine core stops")
        events.write(encode({"type": "failed", "message": str(e) or repr(e)}))
        events.flush()
        logging.shutdown()
        os._exit(3)  # the reader thread still holds stdin, which an orderly exit would wait for


if __name__ == "__main__":
    main()
