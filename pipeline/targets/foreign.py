"""A server that speaks the OpenAI API and is not this project's: what it lists, and the identity it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from engine.artifact import Named
from pipeline.errors import SeatrialError
from pipeline.provenance import digest_of
from pipeline.targets.identity import Software, software_of
from pipeline.targets.keys import NO_KEY, Key
from pipeline.targets.target import Target

# Of a model's entry only what tells models apart: servers put the moment of the request into `created`.
ENTRY = {"id", "root", "owned_by", "parent", "max_model_len"}


@dataclass(frozen=True)
class Started:
    """What is known of a server beyond what it says, because a command of ours started it.

    Args:
        name: of the target in params.yaml.
        template: what two boots and two tiers have in common of its command line and environment; its identity.
        command: its command line.
        model, quantisation: of the artifact that it was given, whose bytes were checked; None: unverified.
    """

    name: str
    template: list[str]
    command: list[str]
    model: Named | None
    quantisation: Named | None
    pid: int
    check_alive: Callable[[], None]
    health_url: str


def root_of(base_url: str) -> str:
    """The base URL without ``/v1``.

    Raises:
        SeatrialError: it is none, or holds a name and password, which would be written into every record.
    """
    parts = urlsplit(base_url)
    if parts.username is not None or parts.password is not None:
        raise SeatrialError("a base URL holds a user name or password; give the key by api_key_env, never in the URL")
    return base_url.rstrip("/").removesuffix("/v1")


def foreign(
    base_url: str,
    model: str | None = None,
    *,
    key: Key = NO_KEY,
    image: str | None = None,
    started: Started | None = None,
) -> Target:
    """A server that answers now. Its identity is what it says of itself and is named as unverified, but for what was
    started here.

    Args:
        model: None: the first that the server lists.
        image: digest of the container image that it runs from, as params.yaml gives it.

    Raises:
        SeatrialError: it does not answer, refuses the key, or does not list the model.
    """
    root = root_of(base_url)
    listed, header = _models(root, key)
    model = model or next(iter(listed), None)
    if model is None:
        raise SeatrialError(f"{root}/v1/models lists no model")
    if model not in listed:
        raise SeatrialError(f"{root} does not list model {model!r}; it lists {', '.join(sorted(listed)) or 'none'}")
    says = {k: v for k, v in listed[model].items() if k in ENTRY}
    software = software_of(root, key)
    return Target(
        base_url=root,
        model_name=model,
        model=(started and started.model)
        or Named(name=f"{model} (as the server calls it, unverified)", digest=digest_of(["foreign", says])),
        engine=_engine(root, software, header, image, started),
        quantisation=(started and started.quantisation)
        or Named(name="unknown (foreign server)", digest=digest_of(["foreign", "unknown"])),
        engine_requested={"target": started.name, "template": started.template} if started else {},
        engine_derived={
            "server_header": header,
            "model_entry": says,
            "software": software.json() if software else None,
            "image": image,
            **({"command": started.command} if started else {}),
        },
        cache_identity=None,
        check_alive=started.check_alive if started else lambda: None,
        health_url=started.health_url if started else None,
        pid=started.pid if started else None,
        key=key,
    )


def _engine(root: str, software: Software | None, header: str, image: str | None, started: Started | None) -> Named:
    said = None if software is None else f"{software.name} {software.version}"
    if started is None:
        name = f"foreign at {root}{f': {said}' if said else ''} (unverified)"
        return Named(name=name, digest=digest_of(["foreign", root, header, said, image]))
    what = said or f"{started.template[0]} of unknown version"
    return Named(
        name=f"foreign {what} (target {started.name})", digest=digest_of(["started", started.template, said, image])
    )


def _models(root: str, key: Key) -> tuple[dict[str, dict[str, Any]], str]:
    try:
        answer = httpx.get(f"{root}/v1/models", timeout=30, headers=key.headers)
        answer.raise_for_status()
        listed = {str(m["id"]): dict(m) for m in key.scrub(answer.json()["data"])}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as e:
        raise SeatrialError(
            key.scrub(f"{root}/v1/models: {e}; expected an OpenAI-compatible server that is running")
        ) from e
    return listed, key.scrub(answer.headers.get("server", "unknown software"))
