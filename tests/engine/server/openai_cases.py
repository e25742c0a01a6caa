"""What the official ``openai`` client is made to ask, and what it understood, as transcripts.

A transcript is the call with its arguments and the answer, or the chunks of a stream, as the client parsed them: only
the fields that the server sent, so that an absent field and a null differ. Ids and creation times are checked and
replaced. The prefix cache must not make a transcript depend on what was asked before, so every case is asked twice and
the second answer is the transcript: it shows the prompt's full blocks as cached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from openai import AsyncOpenAI, OpenAI

from tests.engine.server.booted import MODEL
from tests.tiny import EOS_ID, make_tiny_artifact

GOLDEN = Path(__file__).with_name("golden")
CONFIG: dict[str, Any] = {"max_queue": 64}  # on top of booted.CONFIG: all cases fit at once
KEY = "sesame"
TOLERANCE = 1e-5  # of a log-probability in float32 on another CPU
DECIMALS = 6

USAGE = {"include_usage": True}
IGNORE_EOS = {"ignore_eos": True}
GREEDY: dict[str, Any] = {"temperature": 0, "extra_body": IGNORE_EOS}
SEEDED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 11, "extra_body": IGNORE_EOS}
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TALK = [
    {"role": "system", "content": "short"},
    {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
    {"role": "assistant", "content": "three"},
    {"role": "user", "content": "four"},
]
TWO_BYTES = {str(byte): 100 for byte in "é".encode()}  # two tokens that, in turns, are one character
SCHEMA = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["ship", "hold", "undecided"]},
        "knots": {"type": "integer", "minimum": 0, "maximum": 30},
        "calm": {"type": "boolean"},
        "crew": {"type": "array", "items": {"enum": ["Ada", "Zoë"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["verdict", "knots", "calm", "crew"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "trial", "schema": SCHEMA, "strict": True}}


@dataclass(frozen=True)
class Case:
    resource: str  # of the client
    arguments: dict[str, Any]

    @property
    def stream(self) -> bool:
        return bool(self.arguments.get("stream"))


def completion(**arguments: Any) -> Case:
    return Case("completions", arguments)


def chat(**arguments: Any) -> Case:
    return Case("chat.completions", arguments)


CASES: dict[str, Case] = {
    "completion": completion(prompt="abc", max_tokens=8, **GREEDY),
    "completion_stream": completion(prompt="abc", max_tokens=8, stream=True, **GREEDY),
    "completion_stream_usage": completion(prompt="abc", max_tokens=3, stream=True, stream_options=USAGE, **GREEDY),
    "completion_logprobs": completion(prompt="log", max_tokens=4, logprobs=3, **GREEDY),
    "completion_logprobs_stream": completion(prompt="log", max_tokens=4, logprobs=3, stream=True, **GREEDY),
    "completion_echo": completion(prompt="echo é", max_tokens=2, echo=True, logprobs=1, **GREEDY),
    "completion_echo_stream": completion(
        prompt="echo é", max_tokens=2, echo=True, logprobs=1, stream=True, stream_options=USAGE, **GREEDY
    ),
    "completion_scores": completion(
        prompt=[[115, 99, 111, 114, 101], [109, 101]], max_tokens=0, echo=True, logprobs=0, temperature=0
    ),
    "completion_batch_n": completion(prompt=["left", "right"], n=2, max_tokens=4, **SEEDED),
    "completion_batch_n_stream": completion(
        prompt=["left", "right"], n=2, max_tokens=4, stream=True, stream_options=USAGE, **SEEDED
    ),
    "completion_stop": completion(prompt="abc", max_tokens=8, stop=["never", "lA"], **GREEDY),
    "completion_stop_stream": completion(
        prompt="abc", max_tokens=8, stop=["never", "lA"], stream=True, stream_options=USAGE, **GREEDY
    ),
    "completion_eos": completion(
        prompt="end", max_tokens=9, temperature=0, logit_bias={str(EOS_ID): 100}, extra_body={"min_tokens": 2}
    ),
    "completion_eos_stream": completion(
        prompt="end", max_tokens=9, temperature=0, logit_bias={str(EOS_ID): 100}, extra_body={"min_tokens": 2},
        stream=True, stream_options=USAGE,
    ),
    "completion_split_character_stream": completion(
        prompt="accent", max_tokens=6, logit_bias=TWO_BYTES, frequency_penalty=2, stream=True, **GREEDY
    ),
    "completion_cached": completion(
        prompt="a prompt that is longer than two blocks of sixteen", max_tokens=2, **GREEDY
    ),
    "chat": chat(messages=HELLO, max_tokens=8, **GREEDY),
    "chat_stream": chat(messages=HELLO, max_completion_tokens=8, stream=True, **GREEDY),
    "chat_stream_usage": chat(messages=HELLO, max_tokens=3, stream=True, stream_options=USAGE, **GREEDY),
    "chat_parts_and_turns": chat(messages=TALK, max_completion_tokens=4, **GREEDY),
    "chat_logprobs": chat(messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2, **GREEDY),
    "chat_logprobs_stream": chat(messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2, stream=True, **GREEDY),
    "chat_n": chat(messages=HELLO, n=3, max_tokens=4, **SEEDED),
    "chat_n_stream": chat(messages=HELLO, n=3, max_tokens=4, stream=True, stream_options=USAGE, **SEEDED),
    "chat_top_k": chat(messages=HELLO, max_tokens=6, temperature=1.5, seed=3, extra_body={"top_k": 5, **IGNORE_EOS}),
    "chat_eos_stream": chat(
        messages=HELLO, max_tokens=9, temperature=0, logit_bias={str(EOS_ID): 100}, extra_body={"min_tokens": 1},
        stream=True, stream_options=USAGE,
    ),
    "chat_min_p": chat(messages=HELLO, max_tokens=6, temperature=1.5, seed=4, extra_body={"min_p": 0.2, **IGNORE_EOS}),
    "chat_json_schema": chat(messages=HELLO, max_tokens=200, temperature=0, response_format=FORMAT),
    "chat_json_schema_stream": chat(
        messages=HELLO, max_tokens=200, temperature=0, response_format=FORMAT, stream=True, stream_options=USAGE
    ),
    "chat_json_schema_seeded_n": chat(
        messages=HELLO, max_tokens=200, temperature=1, seed=5, n=2, response_format=FORMAT
    ),
    "completion_regex": completion(
        prompt="date", max_tokens=30, temperature=0, extra_body={"structured_outputs": {"regex": "20[0-9]{2}-0[1-9]"}}
    ),
    "completion_regex_stream": completion(
        prompt="date", max_tokens=30, temperature=0, extra_body={"structured_outputs": {"regex": "20[0-9]{2}-0[1-9]"}},
        stream=True,
    ),
    "chat_choice": chat(
        messages=HELLO, max_tokens=30, temperature=0, extra_body={"structured_outputs": {"choice": ["ship", "hold"]}}
    ),
}  # fmt: skip


def make_artifact(path: Path) -> Path:
    """The tiny model with weights that are the same on every CPU: the last bits of ``torch.randn`` are not, and some
    of them decide how a weight is rounded."""
    with mock.patch.object(torch, "randn", _nearly_normal):
        return make_tiny_artifact(path)


def _nearly_normal(*shape: int, generator: torch.Generator) -> torch.Tensor:
    """Float32 with mean 0 and variance 1: the sum of twelve uniform integers."""
    total = torch.randint(-(2**15), 2**15, (12, *shape), generator=generator).sum(0)
    return (total.double() / 2**16).float()


def sync_client(port: int, **options: Any) -> OpenAI:
    return OpenAI(**_options(port, options))


def async_client(port: int, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(**_options(port, options))


def _options(port: int, options: dict[str, Any]) -> dict[str, Any]:
    return {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": KEY, "timeout": 60, "max_retries": 0, **options}


def record(client: OpenAI, case: Case) -> dict[str, Any]:
    """The transcript of a case, by the blocking client."""
    create = attrgetter(case.resource)(client).create
    create(model=MODEL, **{**case.arguments, "stream": False, "stream_options": None})
    answer = create(model=MODEL, **case.arguments)
    return _transcript(case, list(answer) if case.stream else [answer])


async def record_async(client: AsyncOpenAI, case: Case) -> dict[str, Any]:
    """The transcript of a case, by the client for asyncio."""
    create = attrgetter(case.resource)(client).create
    await create(model=MODEL, **{**case.arguments, "stream": False, "stream_options": None})
    answer = await create(model=MODEL, **case.arguments)
    return _transcript(case, [c async for c in answer] if case.stream else [answer])


def _transcript(case: Case, answers: list[Any]) -> dict[str, Any]:
    found = [a.model_dump(mode="json", exclude_unset=True) for a in answers]
    assert len({(a["id"], a["created"]) for a in found}) == 1, "chunks of one answer differ in id or creation time"
    for answer in found:
        assert re.fullmatch(r"(chat)?cmpl-[0-9a-f]{32}", answer["id"]), answer["id"]
        assert answer["created"] > 1_700_000_000
        answer |= {"id": answer["id"].partition("-")[0] + "-*", "created": 0}
    call = {"call": f"{case.resource}.create", "arguments": {"model": MODEL, **case.arguments}}
    return {**call, "chunks": by_choice(found)} if case.stream else {**call, "answer": found[0]}


def by_choice(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of each choice together, in their order: which choice comes next is the scheduler's affair."""
    assert all(len(c["choices"]) == 1 for c in chunks[:-1]), "only the last chunk may be without a choice"
    return sorted(chunks, key=lambda c: c["choices"][0]["index"] if c["choices"] else len(chunks))


def differences(found: Any, golden: Any, at: str = "") -> Iterator[str]:
    """Every place where a transcript is not the golden one. Floats may differ by ``TOLERANCE``."""
    if isinstance(golden, float) and isinstance(found, float):
        if not abs(found - golden) <= TOLERANCE:
            yield f"{at}: found {found}, golden {golden}"
    elif isinstance(golden, dict) and isinstance(found, dict):
        for key in [*golden, *(k for k in found if k not in golden)]:
            if key in found and key in golden:
                yield from differences(found[key], golden[key], f"{at}.{key}")
            else:
                yield f"{at}.{key}: {'found, not in golden' if key in found else 'in golden, not found'}"
    elif isinstance(golden, list) and isinstance(found, list):
        for i, (f, g) in enumerate(zip(found, golden, strict=False)):
            yield from differences(f, g, f"{at}[{i}]")
        if len(found) != len(golden):
            yield f"{at}: found {len(found)} entries, golden {len(golden)}"
    elif type(found) is not type(golden) or found != golden:
        yield f"{at}: found {found!r}, golden {golden!r}"


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return found


def rounded(value: Any) -> Any:
    """With floats as they are kept."""
    if isinstance(value, float):
        return round(value, DECIMALS)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value
