"""The server under test: its process, its memory, its books."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.behaviours import MODEL
from tests.chaos.wire import connected

START_S = 400.0  # with the kernels built first, on a busy machine


@dataclass
class Footprint:
    server_bytes: int
    core_bytes: int
    files: list[str]  # what the server has open

    def growth(self, later: Footprint) -> dict[str, float]:
        """Per cent of each process."""
        return {
            "server": 100 * (later.server_bytes / self.server_bytes - 1),
            "core": 100 * (later.core_bytes / self.core_bytes - 1),
        }


class Watched:
    def __init__(self, artifact: Path, config: dict[str, Any], options: dict[str, Any], folder: Path) -> None:
        self.folder = folder
        command = [
            sys.executable, "-m", "engine.server", "--artifact", str(artifact), "--port", "0", "--exit-with-stdin",
            "--served-model-name", MODEL, "--config-json", json.dumps(config), "--log-dir", str(folder / "logs"),
            *(x for name, value in options.items() for x in (f"--{name}", str(value))),
        ]  # fmt: skip
        self.err = (folder / "server.log").open("w")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err, text=True
        )
        self.port = 0

    async def start(self) -> dict[str, Any]:
        """``/info`` of the running server."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), START_S)
        if not line:
            raise RuntimeError(f"the server did not start: {self.log()[-2000:]}")
        self.port = int(json.loads(line)["port"])
        info: dict[str, Any] = json.loads(await self.get("/info"))
        self.server, self.core = (psutil.Process(info["processes"][p]) for p in ("server", "core"))
        return info

    async def get(self, path: str) -> str:
        async with asyncio.timeout(240), connected(self.port) as wire:
            await wire.request("GET", path)
            status, _, body = await wire.answer()
        if status != 200:
            raise RuntimeError(f"{path} answers {status}: {body[:300]!r}")
        return body.decode()

    async def metrics(self) -> dict[str, float]:
        """Name, with the value of a single label if there is one, to value."""
        found = {}
        for family in text_string_to_metric_families(await self.get("/metrics")):
            for sample in family.samples:
                label = "".join(f".{v}" for v in sample.labels.values())
                found[sample.name.removeprefix("seatrial_") + label] = sample.value
        return found

    async def settle(self, timeout_s: float) -> dict[str, float]:
        """Waits until nothing runs, waits or holds a block, and only this connection is open."""
        deadline = time.monotonic() + timeout_s
        while True:
            metrics = await self.metrics()
            busy = {
                name: metrics[name]
                for name in ("num_requests_running", "num_requests_waiting", "kv_blocks_used")
                if metrics[name]
            }
            if metrics["connections"] > 1:
                busy["connections"] = metrics["connections"]
            if not busy:
                return metrics
            if time.monotonic() > deadline:
                raise RuntimeError(f"after {timeout_s:.0f} s without requests there are still {busy}")
            await asyncio.sleep(0.2)

    async def footprint(self) -> Footprint:
        """The least of a few looks: a process that has just worked has not given everything back."""
        looks = []
        for _ in range(8):
            looks.append((self.server.memory_info().rss, self.core.memory_info().rss))
            await asyncio.sleep(0.5)
        return Footprint(*(min(column) for column in zip(*looks, strict=True)), self._open_files())

    def _open_files(self) -> list[str]:
        found = []
        for link in Path(f"/proc/{self.server.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(re.sub(r"\d+", "N", str(link.readlink())))
        return sorted(found)

    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def logged_requests(self) -> pl.DataFrame:
        return pl.read_parquet(self.folder / "logs" / "requests-*.parquet")

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        try:
            self.process.wait(240)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.err.close()
