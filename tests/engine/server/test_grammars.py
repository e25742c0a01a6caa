"""The process that compiles grammars first: asked once, bounded, and started again when it has died."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from engine.grammar.sources import Grammar, GrammarError
from engine.server import grammars
from engine.server.errors import ApiError
from engine.server.grammars import MAX_WAITING, GrammarChecker


class Slow(GrammarChecker):
    """Answers when it is let go."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.asked: list[Grammar] = []
        self.go = asyncio.Event()

    async def _answer(self, grammar: Grammar, vocab_size: int) -> str | None:
        self.asked.append(grammar)
        await self.go.wait()
        return "bad" if grammar[1] == "bad" else None


async def test_the_same_grammar_is_asked_once_and_remembered() -> None:
    checker = Slow()
    checks = [asyncio.create_task(checker.check(("regex", g), 9)) for g in ("good", "bad", "good", "bad")]
    await asyncio.sleep(0.01)
    checks[0].cancel()  # a client that leaves
    await asyncio.sleep(0.01)
    checker.go.set()
    results = await asyncio.gather(*checks, return_exceptions=True)
    assert [type(r) for r in results] == [asyncio.CancelledError, GrammarError, type(None), GrammarError]
    with pytest.raises(GrammarError, match="bad"):
        await checker.check(("regex", "bad"), 9)
    assert checker.asked == [("regex", "good"), ("regex", "bad")]


async def test_not_too_many_wait() -> None:
    checker = Slow()
    checks = [asyncio.create_task(checker.check(("regex", str(i)), 9)) for i in range(MAX_WAITING + 3)]
    await asyncio.sleep(0.01)
    late = [c for c in checks if c.done()]
    assert len(late) == 3
    for check in late:
        with pytest.raises(ApiError, match="wait to be compiled") as raised:
            await check
        assert (raised.value.status, raised.value.headers["Retry-After"]) == (429, "2")
    checker.go.set()
    await asyncio.gather(*(c for c in checks if c not in late))
    await checker.check(("regex", "again"), 9)


async def test_a_process_that_died_is_replaced(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker(artifact)
    try:
        await checker.check(("regex", "[0-9]+"), 272)
        with pytest.raises(GrammarError, match="unclosed group"):
            await checker.check(("regex", "("), 272)
        first = checker._process
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        await checker.check(("regex", "[a-z]+"), 272)
        second = checker._process
        assert second is not None
        assert second.pid != first.pid
        os.kill(second.pid, signal.SIGSTOP)
        monkeypatch.setattr(grammars, "WALL_S", 0.2)
        with pytest.raises(ApiError, match="too busy"):
            await checker.check(("regex", "[b-z]+"), 272)
        monkeypatch.undo()
        await checker.check(("regex", "[b-z]+"), 272)  # not remembered against it
        third = checker._process
        assert third is not None
        os.kill(third.pid, signal.SIGSTOP)
        asked = asyncio.create_task(checker.check(("regex", "[c-z]+"), 272))
        await asyncio.sleep(0.01)
        os.kill(third.pid, signal.SIGKILL)  # while it has the question
        with pytest.raises(ApiError, match=r"was ended \(exit code -9\); try again"):
            await asked
        await checker.check(("regex", "[c-z]+"), 272)
    finally:
        await checker.stop()


async def test_a_process_that_does_not_start(tmp_path: Path) -> None:
    checker = GrammarChecker(tmp_path)
    with pytest.raises(ApiError, match="did not start") as raised:
        await checker.check(("regex", "a"), 272)
    assert raised.value.status == 500
    await checker.stop()
