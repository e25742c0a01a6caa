"""API keys: known by the name of an environment variable, read when a request is made, written nowhere.

A server may say the key again, in an error or in what it tells of itself. So whatever comes from one that was given a
key is scrubbed before it is recorded, logged or raised.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pipeline.errors import SeatrialError

HIDDEN = "***"
_WORDS = ("key", "token", "secret", "password", "credential", "auth")
_HARMLESS = ("tokens", "tokenizer")
_PLACES = ("file", "path", "dir", "env")  # where a secret is found, not what it is


def looks_secret(name: str) -> bool:
    """Whether an option or setting of this name would hold what must not be shown: ``--api-key``, ``HF_TOKEN``."""
    plain = name.lower()
    for word in _HARMLESS:
        plain = plain.replace(word, "")
    return any(word in plain for word in _WORDS) and not plain.endswith(_PLACES)


@dataclass(frozen=True)
class Key:
    """``variable``: name of the environment variable; None: the server asks for no key. Never holds the value."""

    variable: str | None = None

    @property
    def value(self) -> str | None:
        """
        Raises:
            SeatrialError: the variable is not set.
        """
        if self.variable is None:
            return None
        found = os.environ.get(self.variable, "").strip()
        if not found:
            raise SeatrialError(
                f"the environment variable {self.variable} (api_key_env) is not set or empty; export the server's API "
                "key under that name"
            )
        return found

    @property
    def headers(self) -> dict[str, str]:
        value = self.value
        return {} if value is None else {"Authorization": f"Bearer {value}"}

    def scrub(self, value: Any) -> Any:
        """A JSON value without the key in any of its texts."""
        secret = self.value
        return value if secret is None else _scrub(value, secret)


def _scrub(value: Any, secret: str) -> Any:
    if isinstance(value, str):
        return value.replace(secret, HIDDEN)
    if isinstance(value, dict):
        return {_scrub(k, secret): _scrub(v, secret) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_scrub(v, secret) for v in value]
    return value


NO_KEY = Key()
