"""What a foreign server says of its own software. Each kind has an endpoint of its own; the first that answers counts.

Only the named fields are read: some servers tell their whole command line there, API key included.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import httpx

from pipeline.targets.keys import Key

TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Software:
    """``at``: the endpoint that said so."""

    name: str
    version: str
    at: str

    def json(self) -> dict[str, str]:
        return asdict(self)


# (software, endpoint, key of the version in its JSON). The bundled engine's /info has no such key.
ENDPOINTS = (
    ("vllm", "/version", "version"),
    ("sglang", "/get_server_info", "version"),
    ("llama.cpp", "/props", "build_info"),
)


def software_of(root: str, key: Key) -> Software | None:
    """None where no endpoint of the table answers with a version."""
    with httpx.Client(timeout=TIMEOUT_S, headers=key.headers) as http:
        for name, path, field in ENDPOINTS:
            version = _field(http, root + path, field)
            if version is not None:
                return Software(name, key.scrub(version), path)
    return None


def _field(http: httpx.Client, url: str, field: str) -> str | None:
    try:
        answer = http.get(url)
        value: Any = answer.json() if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, str) and found else None
