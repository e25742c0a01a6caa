"""Answers that are given as a whole."""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine.request import TokenLogprob
from engine.server.endpoints import ChatFormat, CompletionFormat, Format
from engine.server.generation import Piece, Prompt
from engine.server.whole import WholeAnswer
from engine.text import TextCodec
from tests.tiny import write_byte_tokenizer

HEAD, USAGE = {"id": "one", "object": "text", "created": 7, "model": "m"}, {"total_tokens": 3}
PROMPT = Prompt([104, 195, 164], "h\u00e4", [0, 1, 1])


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Any:
    write_byte_tokenizer(path := tmp_path_factory.mktemp("tokenizer"))
    return SimpleNamespace(codec=TextCodec(path))


def form(state: Any, kind: str, with_logprobs: bool, echo: bool = False) -> Format:
    if kind == "chat":
        return ChatFormat(state, with_logprobs)
    return CompletionFormat(state, [PROMPT], 3, echo, with_logprobs)


def pieces(tokens: int, alternatives: int | None, choices: int = 3) -> Iterator[Piece]:
    """Of choices that come in another order than their numbers; one ends by a stop token, which is no text, one by an
    abort, which is no token."""
    draw = random.Random(0)
    for at in range(tokens):
        for choice in reversed(range(choices)):
            last = at == tokens - 1
            token = None if last and choice == 1 else draw.choice([97, 228, 195, 164, 34, 256])
            found = prompt = None
            if alternatives is not None:
                ids = draw.sample(range(200), alternatives)
                found = TokenLogprob(-draw.random(), ids, [-draw.random() for _ in ids]) if token is not None else None
                prompt = [TokenLogprob(-1.5, [], []), TokenLogprob(-2.5, [], [])] if at == 0 else None
            text = "" if token is None or (last and choice == 0) else draw.choice(["a", "\u00e4\u20ac", '"', ""])
            reason = "shutting down" if last and choice == 1 else None
            finish: Any = ("stop", "abort", "length")[choice] if last else None
            yield Piece(choice, token, text, at, found, prompt, finish, reason)


def joined(kind: str, chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole choice of a stream's chunks, put together in the simplest way."""
    parts = [c["logprobs"] for c in chunks if c["logprobs"]]
    logprobs = {name: [x for part in parts for x in part[name]] for name in parts[0]} if parts else None
    end = {k: v for k, v in chunks[-1].items() if k in ("finish_reason", "stop_reason")}
    if kind == "chat":
        text: dict[str, Any] = {
            "message": {"role": "assistant", "content": "".join(c["delta"]["content"] for c in chunks)}
        }
    else:
        text = {"text": "".join(c["text"] for c in chunks)}
    return {"index": chunks[0]["index"], **text, "logprobs": logprobs, **end}


@pytest.mark.parametrize("kind", ["completion", "chat"])
@pytest.mark.parametrize(("alternatives", "echo"), [(None, False), (0, False), (3, False), (3, True), (None, True)])
def test_a_whole_answer_is_its_chunks_joined(state: Any, kind: str, alternatives: int | None, echo: bool) -> None:
    answer, apart = (form(state, kind, alternatives is not None, echo) for _ in range(2))
    whole = WholeAnswer(answer)
    chunks: dict[int, list[dict[str, Any]]] = {}
    for piece in pieces(5, alternatives):
        whole.add(piece)
        chunks.setdefault(piece.choice, []).append(apart.chunk_choice(piece))
    expected = {**HEAD, "choices": [joined(kind, chunks[i]) for i in range(3)], "usage": USAGE}
    found = whole.encoded(HEAD, USAGE)
    assert found == json.dumps(expected, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_what_is_kept_of_a_token_is_no_object_for_each_alternative(state: Any, kind: str) -> None:
    """Blocks of the interpreter's heap, which is left full of holes when a long answer has been given."""
    tokens = 200

    def blocks_per_token(keep: Any) -> float:
        gc.collect()
        before = sys.getallocatedblocks()
        for piece in pieces(tokens, 20, choices=1):
            keep(piece)
        gc.collect()
        return (sys.getallocatedblocks() - before) / tokens

    apart, kept = form(state, kind, True), list[Any]()
    assert blocks_per_token(lambda piece: kept.append(apart.chunk_choice(piece))) > 20
    whole = WholeAnswer(form(state, kind, True))
    assert blocks_per_token(whole.add) < 2
    assert len(whole.encoded(HEAD, USAGE)) > 500 * tokens
