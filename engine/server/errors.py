"""Errors in the form that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from engine.server.neutral import described


class ApiError(Exception):
    """An answer other than success. ``reason`` is the label under which a refusal is counted, ``param`` the parameter
    at fault, if it is one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str = "invalid",
        headers: dict[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status, self.message, self.reason, self.headers = status, message, reason, headers or {}
        self.prompt_tokens: int | None = None  # for the request log, where the refusal is about them

    @property
    def body(self) -> dict[str, Any]:
        kind = {
            400: "invalid_request_error",
            401: "authentication_error",
            404: "not_found_error",
            405: "invalid_request_error",
            408: "timeout_error",
            413: "invalid_request_error",
            429: "rate_limit_error",
            503: "unavailable_error",
            507: "insufficient_storage_error",
        }
        kind_of = kind.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind_of, "param": self.param, "code": self.status}}


def too_long(prompt_tokens: int, max_tokens: int, limit: int) -> ApiError:
    """A prompt with which the answer does not fit, however empty the server is."""
    found = (
        f"the prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}, {prompt_tokens + max_tokens} together"
    )
    error = ApiError(400, f"{found}; this model serves at most {limit}", reason="too_long")
    error.prompt_tokens = prompt_tokens
    return error


def refused_parameters(error: ValidationError) -> ApiError:
    """A 400 that names every parameter at fault and what was expected of it."""
    parts = []
    for e in error.errors(include_url=False):
        name = ".".join(str(p) for p in e["loc"])
        if e["type"] == "extra_forbidden":
            neutral = described(str(e["loc"][-1]))
            only = f" other than as {neutral}, found {e['input']!r:.80}" if neutral else ""
            parts.append(f"parameter {name!r} is not supported by this server{only}; remove it")
        elif e["type"] == "missing":
            parts.append(f"parameter {name!r} is missing")
        elif not name and isinstance(e["input"], dict):  # of several parameters: the whole body is no help
            parts.append(e["msg"].removeprefix("Value error, "))
        else:
            said = e["msg"].removeprefix("Value error, ")
            parts.append(f"{f'parameter {name!r}: ' if name else ''}{said}, found {e['input']!r:.80}")
    params = {str(e["loc"][0]) if e["loc"] else None for e in error.errors(include_url=False)}
    return ApiError(400, "; ".join(parts), param=params.pop() if len(params) == 1 else None)
