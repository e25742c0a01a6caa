"""The two generating endpoints: a body in, a generation, and its pieces in the endpoint's form."""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from engine.request import RequestError
from engine.server import logprobs
from engine.server.errors import ApiError, refused_parameters, too_long
from engine.server.generation import Generation, Piece, Prompt
from engine.server.schemas import ChatBody, CompletionBody, each_prompt
from engine.server.state import ServerState
from engine.text import TemplateError, TooManyTokensError

B = TypeVar("B", bound=BaseModel)


class Format(Protocol):
    """How pieces look in an endpoint's answers."""

    prefix: str  # of the answer's id
    chunk_object: str
    object: str

    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        """The entry of ``choices`` in the stream chunk of one token. Called once for each piece, in order."""

    def text(self, chunk: dict[str, Any]) -> str:
        """The new text in such an entry."""

    def choice(self, last: dict[str, Any], text: str) -> dict[str, Any]:
        """The entry of ``choices`` for a whole answer: what its last chunk says of all but the text, and the text. Its
        log-probabilities are those of all chunks: the same lists, joined."""


@dataclass
class Call:
    """A request that is ready to run."""

    generation: Generation
    format: Format
    stream: bool
    include_usage: bool
    continuous_usage: bool


def parse(model: type[B], raw: bytes) -> B:
    """
    Raises:
        ApiError: 400, naming each parameter at fault.
    """
    try:
        data = json.loads(raw)
        json.dumps(data, ensure_ascii=False).encode()  # JSON can spell half a character, which no text has
    except UnicodeEncodeError as e:
        raise ApiError(400, "the body has an unpaired surrogate (\\ud800 to \\udfff), which is no character") from e
    except RecursionError as e:
        raise ApiError(400, "the body is nested too deeply") from e
    except ValueError as e:
        raise ApiError(400, f"the body is not JSON: {e}") from e
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise refused_parameters(e) from e


def _call(
    state: ServerState,
    body: CompletionBody | ChatBody,
    prompts: list[Prompt],
    max_tokens: int,
    counts: tuple[int | None, int | None],
    make_format: Callable[[], Format],
    received_s: float,
) -> Call:
    try:
        params = body.sampling(max_tokens, state.codec.eos_ids, *counts)
    except RequestError as e:
        raise ApiError(400, str(e), param=e.param) from e
    choices, room = len(prompts) * body.n, state.config.max_num_seqs + state.config.max_queue
    if choices > room:  # asking again would not help
        raise ApiError(400, f"{len(prompts)} prompts with n {body.n} are {choices} choices, this server takes {room}")
    if any(not p.ids for p in prompts):
        raise ApiError(400, "the prompt has no token, expected at least one", param="prompt")
    generation = Generation(
        state,
        prompts,
        params,
        body.n,
        body.text_rules,
        received_s,
        body.priority,
        body.grammar_param,
    )
    if state.prompt_log and state.prompt_log.takes(generation.id):
        generation.asked = body.asked
    options = body.stream_options
    return Call(
        generation,
        make_format(),
        body.stream,
        bool(options and options.include_usage),
        bool(options and options.continuous_usage_stats),
    )


# /v1/completions


@dataclass
class CompletionFormat:
    state: ServerState
    prompts: list[Prompt]
    n: int
    echo: bool
    with_logprobs: bool
    prefix: str = "cmpl-"
    chunk_object: str = "text_completion"
    object: str = "text_completion"
    _begun: set[int] = field(default_factory=set)

    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        first = piece.choice not in self._begun
        self._begun.add(piece.choice)
        prompt = self.prompts[piece.choice // self.n]
        echoed = prompt.text[prompt.offsets[prompt.first] :] if first and self.echo else ""
        choice = {
            "index": piece.choice,
            "text": echoed + piece.text,
            "logprobs": None,
            "finish_reason": piece.finish_reason,
        }
        if piece.reason:
            choice["stop_reason"] = piece.reason
        if self.with_logprobs:
            tokens, found, offsets = list[int](), list[Any](), list[int]()
            if first and self.echo:
                tokens += prompt.ids[prompt.first :]
                found += [*([] if prompt.first else [None]), *(piece.prompt_logprobs or [])]
                offsets += prompt.offsets[prompt.first :]
            if piece.token is not None:
                tokens.append(piece.token)
                found.append(piece.logprob)
                offsets.append((len(prompt.text) if self.echo else 0) + piece.text_offset)
            if len(found) == len(tokens):  # a request that was aborted before its first token has none
                choice["logprobs"] = logprobs.legacy(self.state.codec, tokens, found, offsets)
        return choice

    def text(self, chunk: dict[str, Any]) -> str:
        return str(chunk["text"])

    def choice(self, last: dict[str, Any], text: str) -> dict[str, Any]:
        return {**last, "text": text}


def completion(state: ServerState, raw: bytes, received_s: float) -> Call:
    """Parses and tokenises a body of ``/v1/completions``. Takes long for a long prompt: not for the event loop.

    Raises:
        ApiError: 400 or 404.
    """
    body = parse(CompletionBody, raw)
    state.check_model(body.model)
    prompts = [
        _echoed(_prompt(state, p, body), start)
        for p, start in zip(each_prompt(body.prompt), body.echoed_from, strict=True)
    ]
    top = body.logprobs
    return _call(
        state,
        body,
        prompts,
        body.max_tokens,
        (top, top if body.echo else None),
        lambda: CompletionFormat(state, prompts, body.n, body.echo, top is not None),
        received_s,
    )


def _prompt(state: ServerState, prompt: str | list[int], body: CompletionBody) -> Prompt:
    if isinstance(prompt, str):
        return encoded(state, prompt, body.add_special_tokens, body.max_tokens)
    return _of_ids(state, prompt, body)


def _echoed(prompt: Prompt, start: int) -> Prompt:
    """From the token on that begins behind ``start`` characters; where none does, from the one that they end in.

    Raises:
        ApiError: 400 where the text ends there or before.
    """
    if not start:
        return prompt
    if start >= len(prompt.text):
        message = f"prompt_logprobs_from is {start} in a prompt of {len(prompt.text)} characters; expected fewer"
        raise ApiError(400, message, param="prompt_logprobs_from")
    first = bisect.bisect_left(prompt.offsets, start)
    if first == len(prompt.offsets) or prompt.offsets[first] > start:
        first -= 1
    return replace(prompt, first=first)


def encoded(state: ServerState, text: str, add_special_tokens: bool, max_tokens: int) -> Prompt:
    """
    Raises:
        ApiError: 400 for a text that is too long by itself; ``max_tokens`` is for its words.
    """
    limit = state.client.about["max_model_len"]
    try:
        ids, offsets = state.codec.encode(text, add_special_tokens, most=limit)
    except TooManyTokensError as e:
        raise too_long(e.count, max_tokens, limit) from e
    return Prompt(ids, text, offsets)


def _of_ids(state: ServerState, ids: list[int], body: CompletionBody) -> Prompt:
    """A prompt given as tokens is echoed as their text, special tokens included."""
    limit = state.client.about["max_model_len"]
    if len(ids) > limit:
        raise too_long(len(ids), body.max_tokens, limit)
    state.check_tokens(ids, "prompt")
    detokenizer = state.codec.detokenizer(skip_special_tokens=False)
    pieces, offsets, at = [], [], 0
    for token in ids:
        offsets.append(at)
        pieces.append(detokenizer.push(token))
        at += len(pieces[-1])
    return Prompt(ids, "".join(pieces) + detokenizer.flush(), offsets)


# /v1/chat/completions


@dataclass
class ChatFormat:
    state: ServerState
    with_logprobs: bool
    prefix: str = "chatcmpl-"
    chunk_object: str = "chat.completion.chunk"
    object: str = "chat.completion"
    _begun: set[int] = field(default_factory=set)

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        if piece.token is None or piece.logprob is None:
            return {"content": []}
        return {"content": [logprobs.chat(self.state.codec, piece.token, piece.logprob)]}

    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        delta = {"content": piece.text}
        if piece.choice not in self._begun:  # the role comes with the first token, not before it
            self._begun.add(piece.choice)
            delta = {"role": "assistant", **delta}
        choice: dict[str, Any] = {
            "index": piece.choice,
            "delta": delta,
            "logprobs": self._logprobs(piece),
            "finish_reason": piece.finish_reason,
        }
        return {**choice, "stop_reason": piece.reason} if piece.reason else choice

    def text(self, chunk: dict[str, Any]) -> str:
        return str(chunk["delta"]["content"])

    def choice(self, last: dict[str, Any], text: str) -> dict[str, Any]:
        rest = {k: v for k, v in last.items() if k not in ("index", "delta")}
        return {"index": last["index"], "message": {"role": "assistant", "content": text}, **rest}


def chat_completion(state: ServerState, raw: bytes, received_s: float) -> Call:
    """Parses, renders and tokenises a body of ``/v1/chat/completions``. Not for the event loop.

    Raises:
        ApiError: 400 or 404.
    """
    body = parse(ChatBody, raw)
    state.check_model(body.model)
    try:
        text = state.codec.render_chat([m.plain() for m in body.messages])
    except TemplateError as e:
        raise ApiError(400, str(e), param="messages") from e
    limit = state.client.about["max_model_len"]
    try:
        ids, offsets = state.codec.encode(text, body.add_special_tokens, most=limit - 1)
    except TooManyTokensError as e:
        raise ApiError(
            400,
            f"the prompt has {e.count} tokens; this model serves at most {limit} with the answer",
            reason="too_long",
            param="messages",
        ) from e
    asked = body.max_tokens or body.max_completion_tokens
    top = (body.top_logprobs or 0) if body.logprobs else None
    return _call(
        state,
        body,
        [Prompt(ids, text, offsets)],
        asked or limit - len(ids),
        (top, None),
        lambda: ChatFormat(state, body.logprobs),
        received_s,
    )
