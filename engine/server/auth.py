"""API keys: who may use the server, where ``--api-key-file`` is given."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.errors import ApiError

OPEN_PATHS = ("/health", "/metrics")  # for probes and collectors


class ApiKeyError(ValueError):
    """The file of keys cannot be used."""


class ApiKeys:
    """Digests of the keys. A key is compared with all of them, each in constant time: how long that takes tells nothing
    about how much of a key was right."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """One key a line; empty lines and lines that begin with ``#`` do not count.

        Raises:
            ApiKeyError: no key is in it, one has a blank or an invisible character, or it cannot be read. No message
                shows a key.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as e:
            raise ApiKeyError(f"{path}: {e.strerror}; expected a file with one API key a line") from e
        except UnicodeDecodeError as e:
            raise ApiKeyError(f"{path} is not text in UTF-8; expected one API key a line") from e
        keys = [(n, line.strip()) for n, line in enumerate(lines, 1)]
        keys = [(n, key) for n, key in keys if key and not key.startswith("#")]
        if not keys:
            raise ApiKeyError(f"{path} has no API key; expected one a line")
        for n, key in keys:
            if not all("!" <= c <= "~" for c in key):
                raise ApiKeyError(f"{path}, line {n}: expected printable ASCII without blanks, as a header can carry")
        return cls([key for _, key in keys])

    def accept(self, authorization: bytes) -> bool:
        """Whether the header's value is ``Bearer KEY`` with one of the keys."""
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        given, found = _digest(key.strip()), False
        for digest in self._digests:
            found |= hmac.compare_digest(given, digest)
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Authorised:
    """ASGI middleware: 401 for whatever is not in ``OPEN_PATHS`` and has no accepted key."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, refuse: Callable[[ApiError], Response]) -> None:
        self.app, self.keys, self.refuse = app, keys, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) == 1 and self.keys.accept(given[0]):
            await self.app(scope, receive, send)
            return
        found = "the API key is not accepted" if given else "there is no API key"
        error = ApiError(
            401,
            f"{found}; expected the header 'Authorization: Bearer KEY'",
            reason="unauthorised",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await self.refuse(error)(scope, receive, send)
