"""What clients do. Each behaviour is a coroutine that returns a word for how it went, and raises ``Wrong`` if the
server did not answer as it must."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import string
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.chaos.wire import Closed, Wire, connected

MODEL = "chaos"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Wrong(Exception):
    """The server did what it must not do."""


@dataclass
class Sea:
    """What behaviours know of the server."""

    port: int
    rng: random.Random
    max_model_len: int
    capacity: int  # requests that may run and wait
    max_connections: int
    header_timeout_s: float
    write_timeout_s: float
    flooding: int = 0  # floods of connections that go on
    floods: int = 0  # that have ended


Behaviour = Callable[[Sea], Awaitable[str]]
BEHAVIOURS: dict[str, tuple[Behaviour, int]] = {}  # name -> what is done, how often relative to others
ANSWERED: set[str] = set()  # those that must be answered


def behaviour(weight: int = 4, *, answered: bool = False) -> Callable[[Behaviour], Behaviour]:
    def note(what: Behaviour) -> Behaviour:
        BEHAVIOURS[what.__name__] = (what, weight)
        if answered:
            ANSWERED.add(what.__name__)
        return what

    return note


def text(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(string.ascii_lowercase + "    ", k=length))


def ask(sea: Sea, **parameters: Any) -> dict[str, Any]:
    prompt = text(sea.rng, sea.rng.randrange(1, sea.max_model_len // 4))
    return {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **parameters}


def long(sea: Sea, **parameters: Any) -> dict[str, Any]:
    return ask(sea, max_tokens=sea.max_model_len // 2, **parameters)


def refusal(status: int, body: bytes, *expected: int) -> str:
    """Checks that a refused client was told why, in OpenAI's form."""
    if status not in expected:
        raise Wrong(f"status {status}, expected {expected}: {body[:300]!r}")
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError) as e:
        raise Wrong(f"status {status} without an error body: {body[:300]!r}") from e
    if not error.get("message") or not error.get("type") or error.get("code") != status:
        raise Wrong(f"status {status} with an error that does not say why: {error}")
    return f"{status}"


async def served(wire: Wire, path: str, body: dict[str, Any]) -> str:
    """200 or, when there is no room, 429 with the time to come back."""
    await wire.post(path, body)
    status, headers, raw = await wire.answer()
    if status == 200:
        if body.get("stream"):
            if not raw.endswith(b"data: [DONE]\n\n"):
                raise Wrong(f"a stream without an end: {raw[-300:]!r}")
        elif not json.loads(raw).get("choices"):
            raise Wrong(f"an answer without choices: {raw[:300]!r}")
        return "200"
    return no_room(status, headers, raw)


def no_room(status: int, headers: dict[str, str], raw: bytes) -> str:
    found = refusal(status, raw, 429, 503)
    if not headers.get("retry-after", "").isdigit():
        raise Wrong(f"status {status} without Retry-After: {raw[:300]!r}")
    return found


async def pause(sea: Sea, most_s: float) -> None:
    await asyncio.sleep(sea.rng.random() ** 2 * most_s)


async def leave(sea: Sea, wire: Wire) -> str:
    if sea.rng.random() < 0.3:
        wire.reset()
        return "reset"
    return "closed"


# Leaving, at every phase


@behaviour()
async def leaves_in_headers(sea: Sea) -> str:
    async with connected(sea.port) as wire:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: chaos\r\nContent-Length: 10\r\n\r\n"
        await wire.send(head[: sea.rng.randrange(1, len(head))])
        await pause(sea, 0.2)
        return await leave(sea, wire)


@behaviour()
async def leaves_in_body(sea: Sea) -> str:
    async with connected(sea.port) as wire:
        raw = json.dumps(ask(sea)).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: chaos\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        await wire.send(head + raw[: sea.rng.randrange(len(raw))])
        await pause(sea, 0.2)
        return await leave(sea, wire)


@behaviour(6)
async def leaves_at_once(sea: Sea) -> str:
    """While its prompt is tokenised, waits or is computed."""
    async with connected(sea.port) as wire:
        long_prompt = text(sea.rng, sea.max_model_len // 3)
        await wire.post(COMPLETIONS, long(sea, prompt=long_prompt, stream=sea.rng.random() < 0.5))
        await pause(sea, 0.1)
        return await leave(sea, wire)


@behaviour(6)
async def leaves_in_decode(sea: Sea) -> str:
    async with connected(sea.port) as wire:
        await wire.post(COMPLETIONS, long(sea, stream=True))
        for _ in range(sea.rng.randrange(2, 30)):
            await wire.event()
        return await leave(sea, wire)


@behaviour()
async def leaves_whole_answer(sea: Sea) -> str:
    async with connected(sea.port) as wire:
        await wire.post(COMPLETIONS, long(sea))
        await pause(sea, 1.0)
        return await leave(sea, wire)


@behaviour()
async def leaves_samples(sea: Sea) -> str:
    """Some of them running, some not begun."""
    async with connected(sea.port) as wire:
        n = sea.rng.randrange(2, sea.capacity // 2)
        await wire.post(COMPLETIONS, long(sea, n=n, temperature=1.0, stream=True))
        for _ in range(sea.rng.choice([0, 0, 2, n, 3 * n])):
            await wire.event()
        await pause(sea, 0.3)
        return await leave(sea, wire)


@behaviour(2)
async def half_closes(sea: Sea) -> str:
    async with connected(sea.port) as wire:
        await wire.post(COMPLETIONS, ask(sea))
        wire.writer.write_eof()
        return "answered" if await wire.until_closed() else "closed"


# Slowness


@behaviour(2, answered=True)
async def reads_slowly(sea: Sea) -> str:
    async with connected(sea.port, receive_bytes=2048) as wire:
        await wire.post(COMPLETIONS, ask(sea, max_tokens=40, stream=True, logprobs=5, n=2))
        status, found = None, b""
        while not found.endswith(b"data: [DONE]\n\n"):
            event = await wire.event()
            status = getattr(event, "status_code", status)
            if status != 200:
                return "429"
            found += getattr(event, "data", b"")
            await asyncio.sleep(0.01)
        return "200"


@behaviour(1)
async def stops_reading(sea: Sea) -> str:
    async with connected(sea.port, receive_bytes=2048) as wire:
        n, most = sea.capacity - 2, sea.max_model_len - 10
        await wire.post(COMPLETIONS, ask(sea, prompt="x", max_tokens=most, n=n, temperature=1.0, logprobs=20))
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(sea.rng.random() * 20)
        return await leave(sea, wire)


def last_words(raw: bytes, *expected: int) -> str:
    """Of a connection that the server has ended."""
    return refusal(int(raw.split()[1]), raw.partition(b"\r\n\r\n")[2], *expected) if raw else "closed"


async def drips(sea: Sea, begin: bytes, drop: bytes) -> str:
    async with connected(sea.port) as wire:
        await wire.send(begin)
        answer = asyncio.create_task(wire.until_closed())
        with contextlib.suppress(OSError):
            for _ in range(100):
                await asyncio.wait([answer], timeout=sea.header_timeout_s / 20)
                if answer.done():
                    break
                await wire.send(drop)
        return last_words(await answer, 408, 503)


@behaviour(2)
async def drips_headers(sea: Sea) -> str:
    return await drips(sea, b"GET /health HTTP/1.1\r\n", b"X-Slow: yes\r\n")


@behaviour(2)
async def drips_body(sea: Sea) -> str:
    return await drips(sea, b"POST /v1/completions HTTP/1.1\r\nHost: chaos\r\nContent-Length: 5000\r\n\r\n", b" ")


@behaviour(1)
async def says_nothing(sea: Sea) -> str:
    async with connected(sea.port) as wire:
        return last_words(await wire.until_closed(), 503)


# Nonsense


async def refused(sea: Sea, path: str, raw: Any, *expected: int, method: str = "POST") -> str:
    async with connected(sea.port) as wire:
        data = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
        await wire.request(method, path, data)
        status, headers, body = await wire.answer()
        if status == 503:  # too many connections: that is seen before what is wrong with this request
            return no_room(status, headers, body)
        return refusal(status, body, *expected)


@behaviour(answered=True)
async def sends_no_json(sea: Sea) -> str:
    kinds = [sea.rng.randbytes(200), b"{", b"[]", b"null", b'{"model": "\\ud800"}', b"[" * 50_000, b"\xff\xfe{}", b""]
    return await refused(sea, sea.rng.choice([COMPLETIONS, CHAT]), sea.rng.choice(kinds), 400)


WRONG: list[dict[str, Any]] = [
    {"prompt": 5}, {"prompt": [[]]}, {"prompt": [-1]}, {"prompt": {}}, {"prompt": [10**9]}, {"prompt": ["a", 1]},
    {"max_tokens": "many"}, {"max_tokens": -1}, {"max_tokens": 10**30}, {"n": 0}, {"n": 10**6}, {"n": "x"},
    {"temperature": -1}, {"temperature": "hot"}, {"top_p": 0}, {"top_p": 2}, {"top_k": 10**30}, {"seed": 10**40},
    {"stop": [""]}, {"stop": 7}, {"logit_bias": {"x": 1}}, {"logit_bias": {"1": 1000}}, {"logprobs": 1000},
    {"min_tokens": 100}, {"stream": "perhaps"}, {"stream_options": {"include_usage": True}}, {"best_of": 3},
    {"nobody_knows": 1}, {"echo": 9}, {"presence_penalty": 9}, {"repetition_penalty": 0}, {"suffix": "x"},
]  # fmt: skip


@behaviour(answered=True)
async def sends_wrong_types(sea: Sea) -> str:
    return await refused(sea, COMPLETIONS, ask(sea, **sea.rng.choice(WRONG)), 400)


@behaviour(2, answered=True)
async def asks_for_what_is_not_there(sea: Sea) -> str:
    kind = sea.rng.randrange(3)
    if kind == 0:
        return await refused(sea, COMPLETIONS, ask(sea, model="other"), 404)
    if kind == 1:
        return await refused(sea, f"/v{sea.rng.randrange(9)}/nothing", {}, 404)
    return await refused(sea, COMPLETIONS, b"", 405, method=sea.rng.choice(["GET", "PUT", "DELETE"]))


@behaviour(1, answered=True)
async def sends_a_huge_body(sea: Sea) -> str:
    """Too large, or on a busy machine not there in time: what is known first."""
    body = b'{"prompt": "' + b"a" * sea.rng.randrange(3, 9) * 2**20 + b'"}'
    return await refused(sea, COMPLETIONS, body, 413, 408)


@behaviour(1, answered=True)
async def sends_a_huge_text(sea: Sea) -> str:
    """Within the limit of a body: it is tokenised before it is known to be too long."""
    words = text(sea.rng, 1000) * sea.rng.randrange(100, 1500)
    return await refused(sea, COMPLETIONS, ask(sea, prompt=words), 400)


@behaviour(answered=True)
async def sends_too_long_a_prompt(sea: Sea) -> str:
    tokens = [sea.rng.randrange(200) for _ in range(sea.max_model_len + sea.rng.randrange(3))]
    return await refused(sea, COMPLETIONS, ask(sea, prompt=tokens, stream=True), 400)


@behaviour(2)
async def sends_garbage(sea: Sea) -> str:
    async with connected(sea.port) as wire:
        kinds = [sea.rng.randbytes(300), b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/x\r\n\r\n", b"A" * 200_000]
        await wire.send(sea.rng.choice(kinds) + b"\r\n\r\n")
        return last_words(await wire.until_closed(), 400, 408, 503)


@behaviour(2)
async def pipelines_garbage(sea: Sea) -> str:
    """A good request with rubbish behind it: the request is answered, or the connection is ended for its rubbish."""
    async with connected(sea.port) as wire:
        await wire.post(COMPLETIONS, ask(sea))
        await wire.send(sea.rng.randbytes(sea.rng.choice([10, 1000, 200_000])) + b"\r\n\r\n")
        status, headers, body = await wire.answer()
        return "200" if status == 200 else no_room(status, headers, body)


# Too much


@behaviour(1, answered=True)
async def comes_in_a_crowd(sea: Sea) -> str:
    """More requests at once than may run and wait."""

    async def one() -> str:
        async with connected(sea.port) as wire:
            return await served(wire, COMPLETIONS, ask(sea, max_tokens=4))

    found = await asyncio.gather(*(one() for _ in range(2 * sea.capacity)))
    return f"{'some' if '429' in found else 'none'} refused"


@behaviour(1)
async def opens_too_many_connections(sea: Sea) -> str:
    sea.flooding += 1
    try:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(sea.max_connections):
                await stack.enter_async_context(connected(sea.port))
            wire = await stack.enter_async_context(connected(sea.port))
            return last_words(await wire.until_closed(), 503)
    finally:
        sea.flooding -= 1
        sea.floods += 1


# Good manners, in all their variety


@behaviour(6, answered=True)
async def asks_properly(sea: Sea) -> str:
    rng = sea.rng
    extras: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": rng.randrange(99), "top_p": 0.8, "top_k": 40, "n": rng.randrange(1, 4)},
        {"logprobs": 3, "echo": True},
        {"stop": list("aeiou"), "max_tokens": 30},
        {"stream": True, "stream_options": {"include_usage": True}, "presence_penalty": 1.0},
        {"prompt": [text(rng, 9), text(rng, 30)], "repetition_penalty": 1.3},
        {"max_tokens": 0, "echo": True, "logprobs": 0},
        {"min_tokens": 3, "ignore_eos": False, "logit_bias": {"65": 5}},
    ]
    async with connected(sea.port) as wire:
        return await served(wire, COMPLETIONS, ask(sea, **rng.choice(extras)))


@behaviour(2, answered=True)
async def chats(sea: Sea) -> str:
    messages = [{"role": "user", "content": text(sea.rng, 40)}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 5, "stream": sea.rng.random() < 0.5}
    async with connected(sea.port) as wire:
        return await served(wire, CHAT, body)


@behaviour(2, answered=True)
async def looks(sea: Sea) -> str:
    """Probes are answered in any weather, but for a flood of connections."""
    async with connected(sea.port) as wire:
        for path in ("/health", "/metrics", "/info", "/steps?since=1000000000", "/v1/models"):
            await wire.request("GET", path)
            status, headers, body = await wire.answer()
            if status != 200:
                return no_room(status, headers, body)
        return "200"


async def act(sea: Sea, name: str, timeout_s: float) -> str:
    """One behaviour, within a time. Only a flood of connections excuses one that was closed where an answer was due: it
    takes the place of idle ones."""
    floods, flooding = sea.floods, sea.flooding
    try:
        async with asyncio.timeout(timeout_s):
            return await BEHAVIOURS[name][0](sea)
    except TimeoutError as e:
        raise Wrong(f"stuck for {timeout_s:.0f} s") from e
    except (Closed, OSError) as e:
        if name in ANSWERED and not (flooding or sea.flooding or sea.floods > floods):
            raise Wrong(f"closed where an answer was due: {e!r}") from e
        return "cut off"
