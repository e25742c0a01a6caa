"""What a round asks of an engine, whatever it is behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.bench.engines.workloads import Workload


class EngineError(Exception):
    """Why an engine is out of the comparison: one line, without its name."""


@dataclass(frozen=True)
class Run:
    """One workload on one engine. Index i is request i; times are seconds since all requests were handed over.

    ``token_s``: when something came out; as long as the output unless the engine sends several tokens at once.
    ``tokens``: their ids; None where the engine does not give them. ``peak_bytes``: the most resident memory of its
    processes during the run; None where they are not ours to see.
    """

    token_s: list[list[float]]
    output_tokens: int
    tokens: list[list[int]] | None
    seconds: float
    peak_bytes: int | None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Facts:
    """What an engine says of itself. The three optional figures are for the shares of the machine's ceilings."""

    engine: str
    version: str = ""
    weights: str = ""
    step_weight_bytes: int | None = None  # read by one decode step
    layer_weights: int | None = None  # outside embedding and head
    arithmetic: str | None = None  # of most products: int8, bf16, float32
    about: dict[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """One contender. Started once, kept for all rounds, idle while others work."""

    name: str
    kind: str  # how it is reached, for the reader

    def start(self, limit_s: float) -> Facts:
        """Until it can work.

        Raises:
            EngineError: it cannot, or is not ready after ``limit_s``.
        """
        ...

    def run(self, workload: Workload, limit_s: float) -> Run:
        """
        Raises:
            EngineError: it died, is not done after ``limit_s``, or did not do what was asked. It is of no use then.
        """
        ...

    def cpu_s(self) -> float | None:
        """CPU time of its processes so far; None where they are not ours to see."""
        ...

    def stop(self) -> None:
        """Ends its processes, whatever state they are in. May be called twice."""
        ...
