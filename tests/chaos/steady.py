"""Clients that behave, and whose answers must be the same bytes in any weather."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

from tests.chaos.behaviours import COMPLETIONS, MODEL, Sea, Wrong, no_room, text
from tests.chaos.wire import Closed, connected

Answer = list[Any]  # text, log-probabilities, reason of the end


def prompts(max_model_len: int) -> list[str]:
    """Short and long ones; three share the beginning, so that the prefix cache has work."""
    rng = random.Random(0)
    shared = text(rng, max_model_len // 8)
    lengths = [1, 7, max_model_len // 16, max_model_len // 4]
    return [*(text(rng, n) for n in lengths), shared + "a", shared + "b c", shared]


def body(prompt: str, max_model_len: int, stream: bool) -> dict[str, Any]:
    return {
        "model": MODEL, "prompt": prompt, "max_tokens": min(24, max_model_len // 8), "temperature": 0,
        "ignore_eos": True, "logprobs": 0, "stream": stream,
    }  # fmt: skip


def read(raw: bytes, stream: bool) -> Answer:
    """The same form for both kinds of answer."""
    if not stream:
        choices = [json.loads(raw)["choices"][0]]
    else:
        events = [line[6:] for line in raw.split(b"\n\n") if line.startswith(b"data: {")]
        choices = [json.loads(e)["choices"][0] for e in events]
    texts, logprobs = [c["text"] for c in choices], [c["logprobs"]["token_logprobs"] for c in choices if c["logprobs"]]
    return ["".join(texts), [x for part in logprobs for x in part], choices[-1]["finish_reason"]]


async def once(sea: Sea, prompt: str, stream: bool) -> Answer | float:
    """The answer, or the seconds after which to come back."""
    async with connected(sea.port) as wire:
        await wire.post(COMPLETIONS, body(prompt, sea.max_model_len, stream))
        status, headers, raw = await wire.answer()
        if status == 200:
            return read(raw, stream)
        no_room(status, headers, raw)
        return float(headers["retry-after"])


async def sail(sea: Sea, truth: dict[str, Answer], counts: Counter[str], over: asyncio.Event, timeout_s: float) -> None:
    """Asks again and again until it is over.

    Raises:
        Wrong: an answer differs from the undisturbed one, or none comes.
    """
    while not over.is_set():
        prompt, stream = sea.rng.choice(list(truth)), sea.rng.random() < 0.5
        floods, flooding = sea.floods, sea.flooding
        try:
            async with asyncio.timeout(timeout_s):
                found = await once(sea, prompt, stream)
        except TimeoutError as e:
            raise Wrong(f"a well-behaved client had no answer for {timeout_s:.0f} s") from e
        except (Closed, OSError) as e:
            if not (flooding or sea.flooding or sea.floods > floods):
                raise Wrong(f"a well-behaved client was cut off: {e!r}") from e
            counts["cut off by a flood"] += 1
            continue
        if isinstance(found, float):
            counts["told to come back"] += 1
            await asyncio.sleep(min(found, 2.0) * (0.2 + sea.rng.random()))
            continue
        if found != truth[prompt]:
            raise Wrong(f"prompt {prompt[:40]!r}...: {found} differs from the undisturbed {truth[prompt]}")
        counts["same bytes"] += 1
