"""Asks a process of its own whether a grammar can be compiled, before a request that has one is handed to the core."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path

from engine.grammar.check import CPU_S
from engine.grammar.sources import Grammar, GrammarError
from engine.protocol import LENGTH_BYTES, decode, encode, length_of
from engine.server.errors import ApiError

log = logging.getLogger(__name__)
MAX_WAITING = 32  # checks are done one after the other
WALL_S = 20 * CPU_S  # for a machine that is so busy that processor time does not pass
_REMEMBERED = 1024
_ENDED_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # by a person or for want of the machine's memory


class GrammarChecker:
    """Starts its process with the first grammar. Answers are remembered: most requests repeat a grammar."""

    def __init__(self, artifact: Path) -> None:
        self._artifact = artifact
        self._known: OrderedDict[bytes, str | None] = OrderedDict()  # digest of a grammar -> problem
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def check(self, grammar: Grammar, vocab_size: int) -> None:
        """
        Raises:
            GrammarError: it cannot be used; says why.
            ApiError: 429 when too many wait, 503 when the machine is too busy.
        """
        key = sha256(encode({"grammar": grammar})).digest()
        if key not in self._known:
            if self._waiting >= MAX_WAITING:
                message = f"{self._waiting} grammars wait to be compiled; try again"
                raise ApiError(429, message, reason="queue_full", headers={"Retry-After": str(CPU_S)})
            self._waiting += 1
            # A task of its own: a client that leaves must not leave the process with half a conversation.
            await asyncio.shield(asyncio.create_task(self._ask(key, grammar, vocab_size)))
        self._known.move_to_end(key)
        if (problem := self._known[key]) is not None:
            raise GrammarError(problem)

    async def _ask(self, key: bytes, grammar: Grammar, vocab_size: int) -> None:
        try:
            async with self._lock:
                if key in self._known:
                    return
                answer = await self._answer(grammar, vocab_size)
                self._known[key] = answer
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        finally:
            self._waiting -= 1

    async def _answer(self, grammar: Grammar, vocab_size: int) -> str | None:
        if self._process is None or self._process.returncode is not None:
            self._process = await self._start(vocab_size)
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.write(encode({"grammar": grammar}))
            async with asyncio.timeout(WALL_S):
                found = await self._read(process)
            return str(found["error"]) if found["error"] is not None else None
        except TimeoutError as e:  # says nothing about the grammar, and is not remembered
            await self._end(process, kill=True)
            message = f"the grammar was not compiled within {WALL_S} s on this machine, which is too busy; try again"
            raise ApiError(503, message, reason="queue_full", headers={"Retry-After": str(WALL_S)}) from e
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._end(process, kill=False)
            if process.returncode in _ENDED_FROM_OUTSIDE:  # says nothing about the grammar either
                message = f"the process that compiles grammars was ended (exit code {process.returncode}); try again"
                raise ApiError(503, message, reason="queue_full", headers={"Retry-After": "1"}) from None
            log.warning("a %s was too hard to compile (exit code %s)", grammar[0], process.returncode)
            return f"the grammar takes more than {CPU_S} s or too much memory to compile; make it simpler"

    async def _start(self, vocab_size: int) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine.grammar.check", str(self._artifact), str(vocab_size), stdin=PIPE, stdout=PIPE
        )
        try:
            async with asyncio.timeout(WALL_S):
                await self._read(process)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as e:
            await self._end(process, kill=isinstance(e, TimeoutError))
            reason = "grammars cannot be used: the process that compiles them did not start; see the server's log"
            raise ApiError(500, reason, reason="error") from e
        return process

    async def _read(self, process: Process) -> dict[str, object]:
        assert process.stdout is not None
        prefix = await process.stdout.readexactly(LENGTH_BYTES)
        return decode(await process.stdout.readexactly(length_of(prefix)))

    async def _end(self, process: Process, kill: bool) -> None:
        """Waits for its end. It is only killed while it lives: asking whether it does takes its exit code away."""
        if kill and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()

    async def stop(self) -> None:
        if self._process is not None:
            await self._end(self._process, kill=True)
