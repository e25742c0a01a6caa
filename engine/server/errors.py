"""Errors in the form that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError


class ApiError(Exception):
    """An answer other than success. ``reason`` is the label under which a refusal is counted."""

    def __init__(
        self, status: int, message: str, *, reason: str = "invalid", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.reason, self.headers = status, message, reason, headers or {}

    @property
    def body(self) -> dict[str, Any]:
        kind = {
            400: "invalid_request_error",
            401: "authentication_error",
            404: "not_found_error",
            408: "timeout_error",
            413: "invalid_request_error",
            429: "rate_limit_error",
            503: "unavailable_error",
            507: "insufficient_storage_error",
        }
        return {"error": {"message": self.message, "type": kind.get(self.status, "server_error"), "code": self.status}}


def refused_parameters(error: ValidationError) -> ApiError:
    """A 400 that names every parameter at fault and what was expected of it."""
    parts = []
    for e in error.errors(include_url=False):
        name = ".".join(str(p) for p in e["loc"])
        if e["type"] == "extra_forbidden":
            parts.append(f"parameter {name!r} is not supported by this server; remove it")
        elif e["type"] == "missing":
            parts.append(f"parameter {name!r} is missing")
        else:
            parts.append(f"{f'parameter {name!r}: ' if name else ''}{e['msg']}, found {e['input']!r:.80}")
    return ApiError(400, "; ".join(parts))
