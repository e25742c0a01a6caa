"""``/score``: teacher-forced log-probabilities of prompts, and their divergence from stored references.

A prompt runs through the same queue, scheduler and blocks as any other, with no token to draw.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import JSONResponse, Response
from starlette.types import Scope, Send

from engine.request import SamplingParams
from engine.server.endpoints import parse
from engine.server.errors import ApiError, too_long
from engine.server.generation import Generation, Piece, Prompt
from engine.server.respond import WhileConnected, error_response, never
from engine.server.schemas import Tokens
from engine.server.state import ServerState
from engine.text import TextRules, TooManyTokensError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ScoreBody(BaseModel):
    """``store`` keeps the whole distribution of every position under a name, ``reference`` compares with one."""

    model_config = ConfigDict(extra="forbid")
    model: str
    prompt: str | Tokens | Annotated[list[str], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)]
    top_logprobs: int = Field(0, ge=0, le=20, description="the likeliest ids to report at each position")
    store: Name | None = None
    reference: Name | None = None
    add_special_tokens: bool | None = Field(None, description="for text: as the tokenizer is configured, by default")

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data

    @property
    def prompts(self) -> list[str | list[int]]:
        single = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return cast(list[str | list[int]], [self.prompt] if single else self.prompt)


@dataclass
class Scoring:
    prompts: list[list[int]]
    generation: Generation


def prepare(state: ServerState, raw: bytes, received_s: float) -> Scoring:
    """Parses and tokenises a body. Takes long for a long prompt: not for the event loop.

    Raises:
        ApiError: 400 or 404.
    """
    body = parse(ScoreBody, raw)
    state.check_model(body.model)
    prompts = [_tokens(state, p, body.add_special_tokens) for p in body.prompts]
    if empty := [i for i, ids in enumerate(prompts) if not ids]:
        raise ApiError(400, f"prompt {empty[0]} has no token, expected at least one")
    params = SamplingParams(0, prompt_logprobs=body.top_logprobs, store=body.store, reference=body.reference)
    given = [Prompt(ids, "", []) for ids in prompts]  # no text is echoed
    generation = Generation(
        state.client, state.codec, state.metrics, given, params, 1, TextRules(), received_s, state.grammars
    )
    return Scoring(prompts, generation)


def _tokens(state: ServerState, prompt: str | list[int], add_special_tokens: bool | None) -> list[int]:
    if isinstance(prompt, str):
        limit = state.client.about["max_model_len"]
        try:
            return state.codec.encode(prompt, add_special_tokens is not False, most=limit)[0]
        except TooManyTokensError as e:
            raise too_long(e.count, 0, limit) from e
    if add_special_tokens is not None:
        raise ApiError(400, "add_special_tokens is for text; this prompt is token ids, which are taken as they are")
    return prompt


def answer(state: ServerState, ready: Callable[[], Scoring]) -> Response:
    """The response to a request for scores. ``ready`` runs in a thread; a client that goes ends it."""

    async def produce(scope: Scope, send: Send) -> None:
        response: JSONResponse
        try:
            if reason := state.unready():
                raise ApiError(503, reason, reason="unhealthy" if state.accepting else "shutting_down")
            scoring = await state.in_thread(ready)
            found: dict[int, Piece] = {}
            async with aclosing(scoring.generation.pieces()) as pieces:
                async for piece in pieces:
                    if piece.finish_reason == "abort":
                        raise ApiError(503, piece.reason or "aborted", reason="shutting_down")
                    found[piece.choice] = piece
            entries = [entry(i, ids, found[i]) for i, ids in enumerate(scoring.prompts)]
            usage = scoring.generation.usage.body()
            response = JSONResponse({"object": "score", "model": state.model, "data": entries, "usage": usage})
        except ApiError as e:
            response = error_response(state, e)
        await response(scope, never, send)

    return WhileConnected(produce)


def entry(index: int, tokens: list[int], piece: Piece) -> dict[str, Any]:
    """One prompt's scores; the first position, which nothing predicts, is null everywhere."""
    scored = piece.prompt_logprobs or []
    score = piece.score or {"kl": None, "reference": None, "stored": None}
    top = [[{"id": i, "logprob": v} for i, v in zip(s.top_ids, s.top_logprobs, strict=True)] for s in scored]
    return {
        "index": index,
        "tokens": tokens,
        "logprobs": [None, *(s.logprob for s in scored)],
        "top": [None, *top],
        **score,
        "kl": None if score["kl"] is None else [None, *score["kl"]],
    }
