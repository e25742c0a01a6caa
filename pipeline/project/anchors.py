"""Which section of Seatrial's README explains an error: by the innermost module of ours that it came through.

An anchor is an ``id`` in README.md; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, TracebackType

ANCHORS = {
    "engine.artifact": "tier",
    "engine.config": "server",
    "loadtests": "traffic",
    "pipeline.ab": "ab",
    "pipeline.checks": "pull-requests",
    "pipeline.diagnosis": "diagnosis",
    "pipeline.drill": "drill",
    "pipeline.evaluation": "evalset",
    "pipeline.fetch": "model",
    "pipeline.gate": "policy",
    "pipeline.load": "traffic",
    "pipeline.load.sweep": "saturation",
    "pipeline.measure": "memory",
    "pipeline.plan": "memory",
    "pipeline.project": "newcomers",
    "pipeline.quantize": "tier",
    "pipeline.release": "release",
    "pipeline.report": "what-happens",
    "pipeline.serving": "server",
    "pipeline.trial": "what-happens",
}


def anchor_of(error: BaseException) -> str | None:
    """``README.md#policy``; None where no section says more than the error does."""
    for name in reversed([*_modules(error.__traceback__)]):
        while name:
            if name in ANCHORS:
                return f"README.md#{ANCHORS[name]}"
            name = name.rpartition(".")[0]
    return None


def _modules(traceback: TracebackType | None) -> Iterator[str]:
    while traceback is not None:
        yield _name(traceback.tb_frame)
        traceback = traceback.tb_next


def _name(frame: FrameType) -> str:
    """The module's name; of one that was started by ``python -m`` the name that it was started by."""
    name, spec = frame.f_globals.get("__name__", ""), frame.f_globals.get("__spec__")
    return str(spec.name) if name == "__main__" and spec is not None else str(name)
