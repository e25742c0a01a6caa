"""``/score``: teacher-forced log-probabilities of prompts, and their divergence from stored references.

A prompt runs through the same queue, scheduler and blocks as any other, with no token to draw.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import Field

from engine.request import SamplingParams
from engine.scoring.references import NAME
from engine.server.endpoints import encoded, parse
from engine.server.errors import ApiError
from engine.server.generation import Generation, Piece, Prompt
from engine.server.schemas import Prompts, Strict, each_prompt
from engine.server.state import ServerState
from engine.text import TextRules

Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class ScoreBody(Strict):
    """``store`` keeps the whole distribution of every position under a name, ``reference`` compares with one."""

    model: str
    prompt: Prompts
    top_logprobs: int = Field(0, ge=0, le=20, description="the likeliest ids to report at each position")
    store: Name | None = None
    reference: Name | None = None
    add_special_tokens: bool | None = Field(None, description="for text: as the tokenizer is configured, by default")


def prepare(state: ServerState, raw: bytes, received_s: float) -> Generation:
    """Parses and tokenises a body. Takes long for a long prompt: not for the event loop.

    Raises:
        ApiError: 400 or 404.
    """
    body = parse(ScoreBody, raw)
    state.check_model(body.model)
    prompts = [_prompt(state, p, body.add_special_tokens) for p in each_prompt(body.prompt)]
    if empty := [i for i, p in enumerate(prompts) if not p.ids]:
        raise ApiError(400, f"prompt {empty[0]} has no token, expected at least one")
    params = SamplingParams(0, prompt_logprobs=body.top_logprobs, store=body.store, reference=body.reference)
    return Generation(state, prompts, params, 1, TextRules(), received_s)


def _prompt(state: ServerState, prompt: str | list[int], add_special_tokens: bool | None) -> Prompt:
    if isinstance(prompt, str):
        return encoded(state, prompt, add_special_tokens is not False, max_tokens=0)
    if add_special_tokens is not None:
        raise ApiError(400, "add_special_tokens is for text; this prompt is token ids, which are taken as they are")
    return Prompt(prompt, "", [])  # no text is echoed


async def scores(state: ServerState, prepare: Callable[[], Generation]) -> dict[str, Any]:
    """The body of the answer. ``prepare`` runs in a thread.

    Raises:
        ApiError: the request is refused, or the server ends before it does.
    """
    generation = await state.in_thread(prepare)
    found: dict[int, Piece] = {}
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            piece.check_whole()
            found[piece.choice] = piece
    entries = [_entry(i, p.ids, found[i]) for i, p in enumerate(generation.prompts)]
    return {"object": "score", "model": state.model, "data": entries, "usage": generation.usage.body()}


def _entry(index: int, tokens: list[int], piece: Piece) -> dict[str, Any]:
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
