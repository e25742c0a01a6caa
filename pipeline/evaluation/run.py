"""Asks every item and judges every answer. What goes wrong with one item is that item's result; what goes wrong with
the server ends the run.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from pipeline.errors import SeatrialError
from pipeline.evaluation.cache import AnswerCache
from pipeline.evaluation.client import Client, Refused, Reply, TransportFailure, open_http, request_for
from pipeline.evaluation.graders import Grade, check_item, grade, grader_of
from pipeline.evaluation.items import Item
from pipeline.targets.target import Target

MAX_TRANSPORT_FAILURE_SHARE = 0.02  # more, and the result says something of the network and not of the model
HEALTH_EVERY_S, UNHEALTHY_S = 5.0, 60.0
SANDBOXES = 2


@dataclass(frozen=True)
class Answered:
    """One item and what came of asking it: a reply, or the reason why there is none.

    ``lacks``: the capability for want of which the server was not asked at all.
    """

    item: Item
    reply: Reply | None
    reason: str | None = None
    reused: bool = False
    lacks: str | None = None


@dataclass(frozen=True)
class Judged:
    answered: Answered
    grade: Grade


def select(items: Sequence[Item], per_scenario: int | None) -> list[Item]:
    """The first ``per_scenario`` items of each scenario (None: all), in their order; checked.

    Raises:
        SeatrialError: two items of one id, or an item that does not suit its grader.
    """
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise SeatrialError(f"two items have the id {item.id!r}; ids must be unique")
        seen.add(item.id)
        check_item(item)
    taken: collections.Counter[str] = collections.Counter()
    chosen = []
    for item in items:
        if per_scenario is None or taken[item.scenario] < per_scenario:
            taken[item.scenario] += 1
            chosen.append(item)
    return chosen


def needed_by(item: Item) -> str | None:
    """The capability (``pipeline.targets.capabilities``) without which an item cannot be judged; None: any server will
    do.
    """
    return "prompt_logprobs" if grader_of(item).scores_choices else None


def answer_all(
    items: Sequence[Item], target: Target, cache: AnswerCache, concurrency: int, advance: Callable[[], None]
) -> list[Answered]:
    """Asks what the cache does not know, ``concurrency`` at a time; results in the order of ``items``. Items that the
    server lacks a capability for are not asked.

    Raises:
        SeatrialError: the server died, is not healthy, answers in a wrong form, or too many items were not answered.
    """
    return asyncio.run(_answer_all(items, target, cache, concurrency, advance))


async def _answer_all(
    items: Sequence[Item], target: Target, cache: AnswerCache, concurrency: int, advance: Callable[[], None]
) -> list[Answered]:
    found: dict[str, Answered] = {}
    waiting: list[Item] = []
    choices_alone = target.has("prompt_logprobs_from")
    for item in items:
        known = cache.get(item, request_for(item, target.model_name, choices_alone))
        need = needed_by(item)
        if need is not None and (why := target.lacking(need)) is not None:
            found[item.id] = Answered(item, None, why, lacks=need)
            advance()
        elif known is not None:
            found[item.id] = Answered(item, known, reused=True)
            advance()
        else:
            waiting.append(item)
    # Long answers first, so that none of them runs alone at the end. Neighbours with a common prefix stay neighbours.
    queue = collections.deque(sorted(waiting, key=lambda x: -x.max_tokens))
    allowed = int(MAX_TRANSPORT_FAILURE_SHARE * len(items))
    failed: list[str] = []

    async with open_http(target.base_url, concurrency, target.key) as http:
        client = Client(target.base_url, target.check_alive, http, target.key)

        async def worker() -> None:
            while queue:
                item = queue.popleft()
                request = request_for(item, target.model_name, choices_alone)
                try:
                    reply = await client.ask(item, request)
                except Refused as e:
                    found[item.id] = Answered(item, None, f"the server refused it: {e}")
                except TransportFailure as e:
                    found[item.id] = Answered(item, None, f"no answer: {e}")
                    failed.append(f"{item.id}: {e}")
                    if len(failed) > allowed:
                        raise SeatrialError(
                            f"{len(failed)} of {len(items)} items got no answer, at most {allowed} may; the last: "
                            f"{failed[-1]}. See to the server and run again; answers that are complete were kept"
                        ) from e
                else:
                    cache.put(item, request, reply)
                    found[item.id] = Answered(item, reply)
                advance()

        workers = [asyncio.create_task(worker()) for _ in range(min(concurrency, len(queue)))]
        watch = asyncio.create_task(_watch(target))
        await _finish(workers, watch)
    return [found[item.id] for item in items]


async def _finish(workers: list[asyncio.Task[None]], watch: asyncio.Task[None]) -> None:
    """Waits for the workers; the first failure of any, or of the watch, ends all of them."""
    try:
        left = set(workers)
        while left:
            done, _ = await asyncio.wait({*left, watch}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            left -= done
    finally:
        for task in (*workers, watch):
            task.cancel()
        await asyncio.gather(*workers, watch, return_exceptions=True)


async def _watch(target: Target) -> None:
    """Sees within a moment that the server is dead, and within a minute that it is alive and does nothing."""
    loop = asyncio.get_running_loop()
    healthy_at = asked_at = loop.time()
    async with open_http(target.base_url, 1, target.key) as http:
        while True:
            await asyncio.sleep(0.25)
            target.check_alive()
            if target.health_url is None or loop.time() - asked_at < HEALTH_EVERY_S:
                continue
            asked_at = loop.time()
            try:
                healthy = (await http.get(target.health_url, timeout=10)).status_code == 200
            except httpx.TransportError:
                healthy = False
            if healthy:
                healthy_at = loop.time()
            elif loop.time() - healthy_at > UNHEALTHY_S:
                raise SeatrialError(f"{target.health_url} has not been healthy for {UNHEALTHY_S:.0f} s; see its log")


def judge_all(answered: Sequence[Answered], advance: Callable[[], None]) -> list[Judged]:
    """Grades in the order given. Graders that start processes run ``SANDBOXES`` at a time.

    An item without an answer, or with one that was cut off, is wrong.
    """

    def one(a: Answered) -> Judged:
        if a.reply is None:
            return Judged(a, Grade(False, a.reason, status="error"))
        g = grade(a.item, a.reply.answer)
        if a.reply.finish_reason == "length" and g.status == "ok":
            cut = f"cut off at {a.reply.output_tokens} tokens"
            g = Grade(False, f"{cut}; {g.reason}" if g.reason else cut, g.shown, g.status, g.detail)
        return Judged(a, g)

    with ThreadPoolExecutor(SANDBOXES) as pool:
        futures = {a.item.id: pool.submit(one, a) for a in answered if grader_of(a.item).needs_process}
        judged = []
        for a in answered:
            judged.append(futures[a.item.id].result() if a.item.id in futures else one(a))
            advance()
    return judged
