"""``/tokenize`` and ``/detokenize``: the tokens that a request's prompt becomes, and back. Neither asks the core."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from engine.server.endpoints import parse
from engine.server.errors import ApiError
from engine.server.schemas import Message, Strict, TokenId
from engine.server.state import ServerState
from engine.text import TemplateError


class TokenizeBody(Strict):
    """Either a ``prompt``, as for ``/v1/completions``, or ``messages``, as for ``/v1/chat/completions``."""

    model: str
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = Field(None, description="default: true for a prompt, false for messages")
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("expected either prompt or messages")
        return self


class DetokenizeBody(Strict):
    model: str
    tokens: list[TokenId]


def tokenize(state: ServerState, raw: bytes) -> dict[str, Any]:
    """Takes long for a long text: not for the event loop.

    Raises:
        ApiError: 400 or 404.
    """
    body = parse(TokenizeBody, raw)
    state.check_model(body.model)
    if body.messages is None:
        ids, _ = state.codec.encode(body.prompt or "", body.add_special_tokens is not False)
    else:
        try:
            text = state.codec.render_chat([m.plain() for m in body.messages])
        except TemplateError as e:
            raise ApiError(400, str(e), param="messages") from e
        ids, _ = state.codec.encode(text, body.add_special_tokens is True)
    found = {"tokens": ids, "count": len(ids), "max_model_len": state.client.about["max_model_len"]}
    return {**found, "token_strs": [state.codec.token_string(t) for t in ids]} if body.return_token_strs else found


def detokenize(state: ServerState, raw: bytes) -> dict[str, Any]:
    """The text of all tokens, special ones included; bytes that are no character become U+FFFD.

    Raises:
        ApiError: 400 or 404.
    """
    body = parse(DetokenizeBody, raw)
    state.check_model(body.model)
    state.check_tokens(body.tokens, "tokens")
    detokenizer = state.codec.detokenizer(skip_special_tokens=False)
    return {"prompt": "".join(detokenizer.push(t) for t in body.tokens) + detokenizer.flush()}
