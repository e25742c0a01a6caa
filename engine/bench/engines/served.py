"""An engine behind an OpenAI-compatible server: ours over HTTP, or any other by URL or by the command that starts it.

All requests are sent at once, each on a connection and a thread of its own, streamed, with token ids as the prompt.
What stands in a request beyond the API's own parameters is offered and taken back when the server refuses it by name.
The client costs some 60 us of CPU a token on the same machine, which is in what such an engine is measured at.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from engine.bench.engines.engine import EngineError, Facts, Run
from engine.bench.engines.processes import Processes
from engine.bench.engines.workloads import Job, Workload
from engine.ports import free_port

PORT = "{port}"
HEALTH = ("/health", "/v1/models")  # the first for servers that load a model behind an open port
DONE = b"[DONE]"
POLL_S, ASK_S = 0.25, 10.0
QUOTED = 160  # characters of a server's own words
# Beyond the API: to the last token, nothing kept from the round before, ids of tokens beside their text.
OFFERED: dict[str, Any] = {
    "ignore_eos": True,
    "cache_prompt": False,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
}


@dataclass
class _Stream:
    """What one request got. ``failure`` says why it did not."""

    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    ended_s: float | None = None  # of an event without text that says how it ended: with or after the last token
    failure: str | None = None


class ServedEngine:
    """Implements engine.Engine over HTTP. ``target``: a URL, or a command in which ``{port}`` stands for a free one."""

    def __init__(self, name: str, kind: str, target: str | list[str]) -> None:
        self.name, self.kind = name, kind
        self.url = target if isinstance(target, str) else ""
        self.command = [] if isinstance(target, str) else target
        self._processes: Processes | None = None
        self._model = ""
        self._offered = dict(OFFERED)
        self._settled = False  # which of them the server takes is known

    def start(self, limit_s: float) -> Facts:
        if self.command:
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            self._processes = Processes([part.replace(PORT, str(port)) for part in self.command])
            _drain(self._processes)
        self._wait(time.monotonic() + limit_s, limit_s)
        models = self._models()
        self._model = str(models.get("id", ""))
        about = {"url": self.url, "command": shlex.join(self.command), "model": self._model}
        return Facts(str(models.get("owned_by") or "openai-compatible server"), "", self._model, about=about)

    def _wait(self, deadline: float, limit_s: float) -> None:
        while True:
            status, problem = self._get(HEALTH[0])
            if status == 404:  # has no such page: the one that every server has will do
                status, problem = self._get(HEALTH[1])
            if status == 200:
                return
            if self._processes is not None and self._processes.popen.poll() is not None:
                raise EngineError(f"not ready: {self._processes.last_words()}")
            if self._processes is None and status is None:
                raise EngineError(f"{self.url} does not answer: {problem}")
            if time.monotonic() > deadline:
                raise EngineError(f"not ready after {limit_s:g} s: {self.url}{HEALTH[0]} says {problem}")
            time.sleep(POLL_S)

    def _get(self, path: str) -> tuple[int | None, str]:
        """Status and body; None and the reason without an answer."""
        try:
            with contextlib.closing(self._connect(ASK_S)) as connection:
                connection.request("GET", self._path(path))
                answer = connection.getresponse()
                return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as e:
            return None, str(e) or repr(e)

    def _models(self) -> dict[str, Any]:
        status, body = self._get(HEALTH[1])
        try:
            found = json.loads(body)["data"][0]
        except (ValueError, KeyError, IndexError, TypeError):
            found = None
        if status != 200 or not isinstance(found, dict) or "id" not in found:
            raise EngineError(f"{self.url}{HEALTH[1]} names no model; expected an OpenAI-compatible server")
        return found

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=timeout)

    def _path(self, path: str) -> str:
        """Below the URL's own path, which may or may not end in /v1 already."""
        base = urlsplit(self.url).path.rstrip("/")
        return base + (path.removeprefix("/v1") if base.endswith("/v1") else path)

    def run(self, workload: Workload, limit_s: float) -> Run:
        self._settle(limit_s)
        if self._processes is not None:
            self._processes.forget_peak()
        streams = [_Stream() for _ in workload.jobs]
        bodies = [self._body(job) for job in workload.jobs]
        began = time.monotonic()
        threads = [
            threading.Thread(target=self._stream, args=(body, stream, began, limit_s), daemon=True)
            for body, stream in zip(bodies, streams, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, began + limit_s - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            raise EngineError(f"no answer to {workload.name} after {limit_s:g} s; it was ended")
        failures = [f"request {i}: {s.failure}" for i, s in enumerate(streams) if s.failure]
        if failures:
            if self._processes is not None and self._processes.popen.poll() is not None:
                raise EngineError(f"{workload.name}: {self._processes.last_words()}")
            raise EngineError(f"{workload.name}, {failures[0]}")
        return self._outcome(workload, streams)

    def _settle(self, limit_s: float) -> None:
        """Before the first run: takes back what the server refuses of the offered parameters."""
        while not self._settled:
            stream = _Stream()
            self._stream(self._body(Job([1, 2, 3], 2)), stream, time.monotonic(), limit_s)
            failure = stream.failure or ""
            refused = next((name for name in self._offered if name in failure), None)
            if stream.failure is not None and refused is None:
                raise EngineError(failure)
            if refused is not None:
                del self._offered[refused]
            self._settled = stream.failure is None

    def _body(self, job: Job) -> bytes:
        return json.dumps(
            {
                "model": self._model,
                "prompt": job.prompt,
                "max_tokens": job.max_tokens,
                "temperature": 0,
                "stream": True,
                **self._offered,
            }
        ).encode()

    def _stream(self, body: bytes, stream: _Stream, began: float, limit_s: float) -> None:
        """Sends one request and notes when something of the output comes. Runs in a thread of its own."""
        try:
            with contextlib.closing(self._connect(limit_s)) as connection:
                connection.request("POST", self._path("/v1/completions"), body, {"content-type": "application/json"})
                answer = connection.getresponse()
                if answer.status != 200:
                    said = " ".join(answer.read().decode(errors="replace").split())
                    stream.failure = f"HTTP {answer.status}: {said[:QUOTED]}"
                    return
                data = b""
                while line := answer.readline():
                    now = time.monotonic() - began
                    if line.startswith(b"data:") and (data := line[5:].strip()) != DONE:
                        _take(json.loads(data), now, stream)
                if data != DONE and stream.failure is None:
                    stream.failure = f"the connection ended after {len(stream.times)} events, in the middle"
        except (OSError, http.client.HTTPException) as e:
            stream.failure = f"the connection ended: {e or repr(e)}"
        except (ValueError, TypeError, AttributeError) as e:
            stream.failure = f"an event is not as the API says: {e}"

    def _outcome(self, workload: Workload, streams: list[_Stream]) -> Run:
        notes = []
        asked = workload.output_tokens
        told = [s.usage.get("completion_tokens") for s in streams]
        for s in streams:  # the usage tells whether the event that ended a request was its last token
            if s.ended_s is not None and s.usage.get("completion_tokens") == len(s.times) + 1:
                s.times.append(s.ended_s)
        events = sum(len(s.times) for s in streams)
        counted = sum(told) if all(isinstance(n, int) for n in told) else events  # type: ignore[arg-type]
        if any(not s.times for s in streams):
            raise EngineError(f"{workload.name}: a request got no token")
        if counted != asked:
            notes.append(f"{workload.name}: {counted} tokens came of {asked}: it ended requests early")
        if events != counted:
            notes.append(f"{workload.name}: {events} events for {counted} tokens; gaps are between events")
        if not all(isinstance(n, int) for n in told):
            notes.append("sends no usage: tokens are counted by events")
        cached = sum((s.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for s in streams)
        if cached:
            notes.append(f"{workload.name}: {cached} prompt tokens came from its cache: TTFT is not comparable")
        whole = all(len(s.tokens) == job.max_tokens for s, job in zip(streams, workload.jobs, strict=True))
        return Run(
            [s.times for s in streams],
            counted,
            [s.tokens for s in streams] if whole else None,
            max(s.times[-1] for s in streams),
            None if self._processes is None else self._processes.peak_bytes(),
            notes,
        )

    def cpu_s(self) -> float | None:
        return None if self._processes is None else self._processes.cpu_s()

    def stop(self) -> None:
        if self._processes is not None:
            self._processes.end()
            self._processes = None


def _take(event: dict[str, Any], now: float, stream: _Stream) -> None:
    if event.get("error"):
        stream.failure = f"the stream says: {json.dumps(event['error'])[:QUOTED]}"
    if isinstance(event.get("usage"), dict):
        stream.usage = event["usage"]
    for choice in event.get("choices") or []:
        ids = choice.get("token_ids") or []
        if ids or choice.get("text") or choice.get("finish_reason") is None:
            stream.times.append(now)
            stream.tokens += ids
        else:
            stream.ended_s = now


def _drain(processes: Processes) -> None:
    """A server may print what it likes: nobody reads it, and it must not wait for that."""

    def read() -> None:
        assert processes.popen.stdout is not None
        with processes.popen.stdout as pipe:
            while pipe.read(65536):
                pass

    threading.Thread(target=read, daemon=True).start()
