"""A server that answers, whoever started it, and by what identity its answers go.

bundled   this project's engine on an artifact whose bytes were checked      pipeline.targets.target
url       a server that somebody else runs                                   pipeline.targets.foreign
command   a server that a command starts and that ends with the stage        pipeline.targets.command
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.artifact import Named, verify
from engine.config import EngineConfig
from pipeline.provenance import engine_identity, model_identity, quantisation_identity
from pipeline.serving import bundled_server
from pipeline.targets.capabilities import Capabilities, promised
from pipeline.targets.keys import NO_KEY, Key

LOGS = Path(".seatrial/logs")
# What decides the arithmetic on a machine; answers that were computed in another way are not reused.
DECISIVE = ("compute_dtype", "kv_dtype", "kernels", "isa")


@dataclass(frozen=True)
class Target:
    """``cache_identity`` is None where nothing proves that the same model answers tomorrow: then nothing is reused.

    ``check_alive`` raises SeatrialError once the server is known to be dead. ``health_url`` is None where the server
    is not known to have one. ``pid``: of the process that serves, where it is ours. ``capabilities``: None where nobody
    has asked (``pipeline.targets.probe``).
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
    pid: int | None = None
    bundled: bool = False
    key: Key = NO_KEY
    capabilities: Capabilities | None = None

    @property
    def identities(self) -> tuple[Named, Named, Named]:
        """Model, engine, quantisation."""
        return self.model, self.engine, self.quantisation

    def has(self, capability: str) -> bool:
        """Whether it is known to have the capability."""
        return self.capabilities is not None and self.capabilities.lacking(capability) is None

    def lacking(self, capability: str) -> str | None:
        """Why a task that needs the capability is not measurable here; None where it is, or where nobody has asked."""
        return None if self.capabilities is None else self.capabilities.lacking(capability)


def decisive(derived: dict[str, Any]) -> dict[str, Any]:
    """Of what an engine derived, DECISIVE, and which kind of device computes: another one adds up in another order."""
    device = derived.get("device") or {}
    found = {k: derived[k] for k in DECISIVE if k in derived}
    return found | ({"device": device["name"]} if "name" in device else {})


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
            cache_identity={"artifact": manifest.digest, "engine": engine.digest, **decisive(derived)},
            check_alive=server.check,
            health_url=f"{server.base_url}/health",
            pid=server.process.pid,
            bundled=True,
            capabilities=promised(),
        )
