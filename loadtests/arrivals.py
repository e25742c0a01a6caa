"""How requests arrive, as a profile says it: closed-loop (a concurrency) or open-loop (a rate)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from loadtests.distributions import Strict, located


class Closed(Strict):
    """``concurrency`` users, each sending its next request when its last one has ended."""

    kind: Literal["closed"]
    concurrency: int = Field(ge=1)


class Walk(Strict):
    """Closed loop whose concurrency takes a seeded random walk: every ``every_s`` up to ``step`` users up or down."""

    kind: Literal["walk"]
    min: int = Field(ge=1)
    max: int = Field(ge=1)
    step: int = Field(ge=1)
    every_s: float = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min >= self.max:
            raise ValueError(f"min is {self.min}, not below max {self.max}; use kind closed for a steady concurrency")
        return self


class Steps(Strict):
    """Closed loop whose concurrency changes at given moments: ``levels`` is [[from_s, users], ...], the first at 0."""

    kind: Literal["steps"]
    levels: list[tuple[Annotated[float, Field(ge=0)], Annotated[int, Field(ge=0)]]] = Field(min_length=2)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        starts = [at for at, _ in self.levels]
        if starts[0] != 0 or any(b <= a for a, b in pairwise(starts)):
            raise ValueError(f"levels begin at {starts}; expected 0 first, then each later than the one before")
        if not any(users for _, users in self.levels):
            raise ValueError("levels have no user at any time; expected at least one somewhere")
        return self


class OpenLoop(Strict):
    """Requests are due at times that do not depend on the server.

    ``max_in_flight`` bounds the client: an arrival beyond it is recorded as a failed request that was never sent.
    """

    max_in_flight: int = Field(512, ge=1)


class Open(OpenLoop):
    """Arrivals at a rate, whatever the server does.

    ``constant`` spaces them evenly, ``poisson`` draws the gaps from an exponential distribution, ``gamma`` from a gamma
    distribution of shape ``burstiness``: 1 is Poisson, below 1 they come in bursts, above 1 more evenly than Poisson
    (the coefficient of variation of the gaps is 1 / sqrt(burstiness)).

    The rate is ``rate_per_s`` throughout, or follows ``rates``: points [at_s, per_s], straight lines between them, two
    points at one moment for a step, the last rate to the end. Seconds count from the stage's start, warm-up included.
    """

    kind: Literal["constant", "poisson", "gamma"]
    rate_per_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    rates: list[tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0, allow_inf_nan=False)]]] | None = None
    burstiness: float | None = Field(None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.burstiness is None) == (self.kind == "gamma"):
            raise ValueError(f"kind {self.kind} {'needs' if self.kind == 'gamma' else 'has no'} burstiness")
        if (self.rate_per_s is None) == (self.rates is None):
            raise ValueError("give either rate_per_s or rates")
        if self.rates is not None:
            starts = [at for at, _ in self.rates]
            if len(starts) < 2 or starts[0] != 0 or any(b < a for a, b in pairwise(starts)):
                raise ValueError(
                    f"rates has points at {starts}; expected two or more, the first at 0, in order of time"
                )
            if not any(per_s for _, per_s in self.rates):
                raise ValueError("rates is 0 at all its points; expected a rate above 0 somewhere")
        return self

    @property
    def points(self) -> list[tuple[float, float]]:
        """The rate as points (at_s, per_s), the first at 0."""
        return [(0.0, self.rate_per_s)] if self.rates is None and self.rate_per_s else list(self.rates or [])


class Replay(OpenLoop):
    """Arrivals, lengths and shared prefixes of a recorded trace (``loadtests.replay.formats`` says which forms).

    ``file`` is relative to the profile's folder; a pattern names all segments of a request log. ``sha256`` is filled in
    when it is read; written in the profile it is checked.

    Time: the trace from ``from_s`` on, ``rate_factor`` times as fast, or so that its mean rate becomes ``rate_per_s``.
    Traces whose times are rounded get each arrival ``spread_s`` later at most, by a seeded draw that keeps their order
    and does not reach the next recorded time.

    Length: tokens times ``length_factor``, outputs times ``output_factor`` if that is given. Without ``length_factor``
    it is the largest, up to 1, with which ``fit_share`` of the requests fit ``context_tokens`` less ``reserve_tokens``
    (the chat template's own, and where words are more than one token). A request that is still ``longer`` is cut (its
    output to half the room, its prompt from the end to what is left) or dropped.
    """

    kind: Literal["replay"]
    file: str
    sha256: str | None = None
    from_s: float = Field(0.0, ge=0, allow_inf_nan=False)
    rate_factor: float | None = Field(None, gt=0, allow_inf_nan=False)
    rate_per_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    spread_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    context_tokens: int = Field(ge=16)
    reserve_tokens: int = Field(48, ge=0)
    length_factor: float | None = Field(None, gt=0, allow_inf_nan=False)
    output_factor: float | None = Field(None, gt=0, allow_inf_nan=False)
    fit_share: float | None = Field(None, gt=0, le=1)
    longer: Literal["cut", "drop"] = "cut"
    block_tokens: int = Field(512, ge=1, description="tokens that one of the trace's block hashes stands for")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, dict) and isinstance(value.get("file"), str):
            return value | located(value["file"], value.get("sha256"), info)
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.rate_factor is None) == (self.rate_per_s is None):
            raise ValueError("give either rate_factor (1: as recorded) or rate_per_s")
        if (self.length_factor is None) == (self.fit_share is None):
            raise ValueError("give either length_factor (1: as recorded) or fit_share (for instance 0.95)")
        if self.reserve_tokens > self.context_tokens - 8:
            raise ValueError(
                f"reserve_tokens {self.reserve_tokens} leave less than 8 of context_tokens {self.context_tokens}"
            )
        return self

    @property
    def room_tokens(self) -> int:
        """For a prompt and its output together."""
        return self.context_tokens - self.reserve_tokens


ClosedLoop = Closed | Walk | Steps
