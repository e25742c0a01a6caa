"""Who is asked: the bundled engine on an artifact, or a foreign OpenAI-compatible server; and by what identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from engine.artifact import Named, verify
from engine.config import EngineConfig
from pipeline.errors import SeatrialError
from pipeline.provenance import digest_of, engine_identity, model_identity, quantisation_identity
from pipeline.serving import bundled_server

LOGS = Path(".seatrial/logs")
# What decides the arithmetic on a machine; answers that were computed in another way are not reused.
DECISIVE = ("compute_dtype", "kv_dtype", "kernels", "isa")


@dataclass(frozen=True)
class Target:
    """``cache_identity`` is None where nothing proves that the same model answers tomorrow: then nothing is reused.

    ``check_alive`` raises SeatrialError once the server is known to be dead. ``health_url`` is None where the server
    is not known to have one.
    """

    base_url: str
    model_name: str
    model: Named
    engine: Named
    quantisation: Named
    engine_requested: dict[str, Any]
    engine_derived: dict[str, Any]
    cache_identity: dict[str, Any] | None
    check_alive: Callable[[], None] = field(default=lambda: None)
    health_url: str | None = None


@contextmanager
def bundled(artifact: Path, config: EngineConfig, log: Path, options: Sequence[str] = ()) -> Iterator[Target]:
    """Checks the artifact's bytes, boots the bundled server on it with further ``options``, and ends it.

    Raises:
        ArtifactError: the artifact is not what its manifest says.
        SeatrialError: the server does not come up.
    """
    manifest = verify(artifact)
    with bundled_server(artifact, config, log, options=options) as server:
        info = server.info()
        derived = dict(info.get("derived", {}))
        engine = engine_identity(config)
        yield Target(
            base_url=server.base_url,
            model_name=server.model,
            model=model_identity(manifest),
            engine=engine,
            quantisation=quantisation_identity(manifest),
            engine_requested=config.model_dump(mode="json"),
            engine_derived=derived,
            cache_identity={
                "artifact": manifest.digest,
                "engine": engine.digest,
                **{k: derived[k] for k in DECISIVE if k in derived},
            },
            check_alive=server.check,
            health_url=f"{server.base_url}/health",
        )


@contextmanager
def foreign(base_url: str, model: str | None) -> Iterator[Target]:
    """A server that runs already. Its identity is what it says of itself, and is named as unverified.

    ``model`` None: the first that the server lists.

    Raises:
        SeatrialError: it does not answer, or does not list the model.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    try:
        answer = httpx.get(f"{root}/v1/models", timeout=30)
        answer.raise_for_status()
        listed = {str(m["id"]): m for m in answer.json()["data"]}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as e:
        raise SeatrialError(f"{root}/v1/models: {e}; expected an OpenAI-compatible server that is running") from e
    model = model or next(iter(listed), None)
    if model is None:
        raise SeatrialError(f"{root}/v1/models lists no model")
    if model not in listed:
        raise SeatrialError(f"{root} does not list model {model!r}; it lists {', '.join(sorted(listed)) or 'none'}")
    # Of the model's entry only what tells models apart: servers put the moment of the request into `created`.
    says = {k: v for k, v in listed[model].items() if k in {"id", "root", "owned_by", "parent", "max_model_len"}}
    software = answer.headers.get("server", "unknown software")
    yield Target(
        base_url=root,
        model_name=model,
        model=Named(name=f"{model} (as the server calls it, unverified)", digest=digest_of(["foreign", says])),
        engine=Named(name=f"foreign at {root} (unverified)", digest=digest_of(["foreign", root, software])),
        quantisation=Named(name="unknown (foreign server)", digest=digest_of(["foreign", "unknown"])),
        engine_requested={},
        engine_derived={"server_header": software, "model_entry": says},
        cache_identity=None,
    )
