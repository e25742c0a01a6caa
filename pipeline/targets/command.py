"""A server that a command of params.yaml starts: on a free port, with a log, ended with all its children.

The process that is started here is the guard (``pipeline.targets.guard``), which ends the server when the pipe to this
process closes. What the server prints goes through this process into the log, without the API key.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from engine.artifact import MANIFEST, Named, sha256_file, verify
from engine.ports import free_port
from pipeline.errors import SeatrialError
from pipeline.processes import tail
from pipeline.provenance import digest_of, model_identity, quantisation_identity
from pipeline.serving import ServerEnded
from pipeline.stage import say
from pipeline.targets import guard
from pipeline.targets.foreign import Started, foreign
from pipeline.targets.keys import Key
from pipeline.targets.spec import CommandSpec
from pipeline.targets.target import Target

HOST = "127.0.0.1"
_LOOK_EVERY_S = 0.1
_ANSWER_S = 5.0  # of one look at the health path
_SLACK_S = 15.0  # beyond stop_timeout_s, for the guard to see that all have gone


@contextmanager
def started(name: str, spec: CommandSpec, tier: str, log: Path) -> Iterator[Target]:
    """Starts the server of target ``name`` for ``tier``, waits until it serves, and ends it.

    Raises:
        ArtifactError: it is to load an artifact that is not what its manifest says.
        SeatrialError: no artifact, no such program, no key, or it does not serve in time; with the end of its log.
    """
    model, quantisation = loaded_identity(spec.model.replace("{tier}", tier))
    port = free_port(HOST)
    command = spec.command(tier, port)
    process = _Process(name, command, spec, log)
    try:
        url = f"http://{HOST}:{port}"
        process.wait_ready(url + spec.health_path, spec.start_timeout_s, spec.key)
        known = Started(
            name=name,
            template=[*spec.template, *(f"{k}={v}" for k, v in sorted(spec.environment.items()))],
            command=spec.key.scrub(command),
            model=model,
            quantisation=quantisation,
            pid=process.pid,
            check_alive=process.check,
            health_url=url + spec.health_path,
        )
        yield foreign(url, key=spec.key, image=spec.image, started=known)
    finally:
        process.end(spec.stop, spec.stop_timeout_s)


def loaded_identity(model: str) -> tuple[Named | None, Named | None]:
    """(model, quantisation) of what a server is to load: of an artifact by its manifest, of a file by its bytes;
    (None, None) of anything else, such as a name that the server looks up itself.

    Raises:
        ArtifactError: the artifact is not what its manifest says.
        SeatrialError: it names an artifact that is not there.
    """
    path = Path(model)
    if (path / MANIFEST).is_file():
        manifest = verify(path)
        return model_identity(manifest), quantisation_identity(manifest)
    if path.is_file():
        digest = sha256_file(path)
        return Named(name=path.name, digest=digest), Named(name=path.name, digest=digest_of(["file", digest]))
    if path.parts[:1] == ("artifacts",):
        raise SeatrialError(f"{path} is not built; run `dvc repro quantize@{path.name}` first, or name another model")
    return None, None


class _Process:
    """The guard with the server below it."""

    def __init__(self, name: str, command: list[str], spec: CommandSpec, log: Path) -> None:
        self._name, self._log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **spec.environment}
        if spec.preset is not None and (value := spec.key.value) is not None:
            environment[str(spec.known.key_variable)] = value
        line = [sys.executable, "-I", str(guard.__file__), str(spec.stop_timeout_s), *command]
        self._guard = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        self._pump = threading.Thread(target=self._copy, args=(spec.key,), daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._guard.pid

    def _copy(self, key: Key) -> None:
        assert self._guard.stdout is not None
        with self._guard.stdout as printed, self._log.open("w", encoding="utf-8") as log:
            for line in printed:
                log.write(key.scrub(line.decode("utf-8", errors="replace")))
                log.flush()

    def check(self) -> None:
        """
        Raises:
            ServerEnded: it has ended by itself; with the end of its log.
        """
        if self._guard.poll() is not None:
            self._pump.join(_ANSWER_S)
            raise ServerEnded(
                f"the server of target {self._name} ended with exit code {self._guard.returncode} while it was "
                f"needed; the end of {self._log}:\n{tail(self._log)}"
            )

    def wait_ready(self, url: str, timeout_s: float, key: Key) -> None:
        """
        Raises:
            ServerEnded: it ended first.
            SeatrialError: it did not answer 200 in time; with the end of its log.
        """
        until, seen = time.monotonic() + timeout_s, "nothing"
        with httpx.Client(timeout=_ANSWER_S, headers=key.headers, trust_env=False) as http:
            while time.monotonic() < until:
                self.check()
                try:
                    status = http.get(url).status_code
                    if status == 200:
                        self.check()  # whoever answers there: ours is alive
                        return
                    seen = f"status {status}"
                except httpx.HTTPError as e:
                    seen = type(e).__name__
                time.sleep(_LOOK_EVERY_S)
        raise SeatrialError(
            f"the server of target {self._name} did not answer 200 at {url} within {timeout_s:g} s (last: {seen}); the "
            f"end of {self._log}:\n{tail(self._log)}"
        )

    def end(self, stop: list[str] | None, timeout_s: float) -> None:
        if stop is not None and self._guard.poll() is None:
            try:
                done = subprocess.run(stop, capture_output=True, timeout=timeout_s)
                if done.returncode:
                    say(f"target {self._name}: its stop command ended with exit code {done.returncode}")
            except (OSError, subprocess.TimeoutExpired) as e:
                say(f"target {self._name}: its stop command failed: {type(e).__name__}")
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            self._guard.wait(timeout_s + _SLACK_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._pump.join(_ANSWER_S)
