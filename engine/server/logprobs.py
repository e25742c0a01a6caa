"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.request import TokenLogprob
from engine.text import TextCodec


def legacy(
    codec: TextCodec, tokens: Sequence[int], logprobs: Sequence[TokenLogprob | None], offsets: Sequence[int]
) -> dict[str, list[Any]]:
    """The parallel lists of ``/v1/completions``; null for the first token of a prompt, which nothing predicts.

    ``top_logprobs`` always has the token itself, so it may have one entry more than was asked for. Of two tokens with
    the same text the likelier one is shown.
    """
    tops: list[dict[str, float] | None] = []
    for token, found in zip(tokens, logprobs, strict=True):
        if found is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        for other, value in (*zip(found.top_ids, found.top_logprobs, strict=True), (token, found.logprob)):
            top.setdefault(codec.token_string(other), value)
        tops.append(top)
    return {
        "tokens": [codec.token_string(t) for t in tokens],
        "token_logprobs": [None if p is None else p.logprob for p in logprobs],
        "top_logprobs": tops,
        "text_offset": list(offsets),
    }


def chat(codec: TextCodec, token: int, found: TokenLogprob) -> dict[str, Any]:
    """One entry of ``logprobs.content`` of ``/v1/chat/completions``."""

    def entry(of: int, logprob: float) -> dict[str, Any]:
        return {"token": codec.token_string(of), "logprob": logprob, "bytes": list(codec.bytes_of(of))}

    tops = [entry(t, v) for t, v in zip(found.top_ids, found.top_logprobs, strict=True)]
    return {**entry(token, found.logprob), "top_logprobs": tops}
