"""The seam: where something is planted into a running engine, to see whether what watches it notices.

``python -m engine.server --seam module:Class`` makes one ``Class`` in the server and one in the core's process, and
calls once, before anything is served, what it has of

    core(core: EngineCore)       when the model is loaded; runner, scheduler and block pool hang on it
    server(state: ServerState)   before the core is started; torch must not be imported here

What is planted is its own affair: the engine holds no fault of its own, and without the option it is as if this file
were not there. A server that was started so says so (``derived.seam`` in ``/info``, and with that in the provenance of
whatever is measured on it), and nothing measured on it can be released.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal


class SeamError(Exception):
    """What was named is no seam."""


def plant(path: str, part: Literal["core", "server"], target: Any) -> None:
    """
    Raises:
        SeamError: ``path`` is not ``module:Class``, there is no such module or class, or it has neither method.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise SeamError(f"--seam is {path!r}, expected module:Class")
    try:
        seam = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as e:
        raise SeamError(f"--seam {path}: {e}; the module must be importable from the working directory") from e
    found = {p: getattr(seam, p, None) for p in ("core", "server")}
    if not any(map(callable, found.values())):
        raise SeamError(f"--seam {path} has neither a method core nor a method server")
    if (method := found[part]) is not None:
        method(target)
