"""Load profiles: ``loadtests/profiles/NAME.yaml`` as typed models.

A profile is a list of stages, run one after the other on one server. Each stage warms up, is measured, and drains;
traffic does not pause between warm-up and measurement, and a request belongs to the phase in which it was *due*.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

PROFILES = Path(__file__).resolve().parent / "profiles"
RELEASE_MINUTES = 30


class ProfileError(Exception):
    """A load profile that cannot be used: says what was found, what was expected, what to do."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fixed(_Strict):
    """Always the same number of tokens."""

    kind: Literal["fixed"]
    tokens: int = Field(ge=1)


class Uniform(_Strict):
    """Every whole number from ``min`` to ``max`` is as likely."""

    kind: Literal["uniform"]
    min: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, above max {self.max}")
        return self


class Lognormal(_Strict):
    """Heavy-tailed: log-normal with this median and sigma (of the logarithm), truncated to [min, max]."""

    kind: Literal["lognormal"]
    median: float = Field(gt=0)
    sigma: float = Field(gt=0)
    min: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min <= self.median <= self.max:
            raise ValueError(f"expected min <= median <= max, found {self.min}, {self.median}, {self.max}")
        return self


Lengths = Annotated[Fixed | Uniform | Lognormal, Field(discriminator="kind")]


class Closed(_Strict):
    """``concurrency`` users, each sending its next request when its last one has ended."""

    kind: Literal["closed"]
    concurrency: int = Field(ge=1)


class Walk(_Strict):
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


class Open(_Strict):
    """Arrivals at a rate, whatever the server does; ``poisson`` draws the gaps, ``constant`` spaces them evenly.

    ``max_in_flight`` bounds the client: an arrival beyond it is recorded as a failed request that was never sent.
    """

    kind: Literal["constant", "poisson"]
    rate_per_s: float = Field(gt=0)
    max_in_flight: int = Field(512, ge=1)


Arrivals = Annotated[Closed | Walk | Open, Field(discriminator="kind")]


class Output(_Strict):
    """What ends an answer.

    ``ignore_eos``: the server goes on to exactly the number of tokens drawn (an extension that vLLM, SGLang and the
    bundled engine have), so the work of a request is the same in every tier. ``max_tokens``: the model may stop
    earlier, as in service.
    """

    fixed_by: Literal["ignore_eos", "max_tokens"]


class Goodput(_Strict):
    """Limits that one request must keep to count as good (DistServe, OSDI 2024, section 3.1)."""

    ttft_ms: float = Field(gt=0)
    tpot_ms: float = Field(gt=0, description="mean time per output token after the first")


class StageSpec(_Strict):
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    warmup_s: float = Field(ge=0)
    duration_s: float = Field(gt=0, description="of the measured part, after warm-up")
    arrivals: Arrivals
    prompt_tokens: Lengths = Field(description="of the user's message, about; what was really sent comes from usage")
    output_tokens: Lengths
    system: Literal["none", "shared", "unique"] = Field(
        "none",
        description="system message: none (the chat template's own, if any), one shared by all requests of the stage "
        "(its prefix is warm), or one that differs from the first word on (nothing is shared)",
    )


class Profile(_Strict):
    name: str
    kind: Literal["ci", "smoke", "release", "soak"]
    timeout_s: float = Field(60, gt=0, description="for one request, from the moment it was sent")
    drain_s: float = Field(15, ge=0, description="how long the end of a stage waits; what runs then is censored")
    output: Output
    goodput: Goodput | None = None
    stages: list[StageSpec] = Field(min_length=1)

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        names = [s.name for s in self.stages]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"stage names must be unique; found twice: {', '.join(twice)}")
        if self.kind == "release":
            for s in self.stages:
                if s.duration_s < RELEASE_MINUTES * 60:
                    raise ValueError(
                        f"stage {s.name} measures {s.duration_s:g} s; a release profile measures at least "
                        f"{RELEASE_MINUTES} minutes ({RELEASE_MINUTES * 60} s) a stage: raise duration_s, or use "
                        "another kind for a shorter look"
                    )
        return self

    @property
    def users(self) -> int:
        """The most closed-loop users that any stage needs; at least one."""
        return max([1, *(users_of(s.arrivals) for s in self.stages)])

    @property
    def planned_s(self) -> float:
        """Length of the run without the drains."""
        return sum(s.warmup_s + s.duration_s for s in self.stages)


def users_of(arrivals: Closed | Walk | Open) -> int:
    """Closed-loop users of a stage; 0 for open-loop arrivals."""
    match arrivals:
        case Closed():
            return arrivals.concurrency
        case Walk():
            return arrivals.max
        case Open():
            return 0


def profile_path(name: str) -> Path:
    """A name below ``loadtests/profiles`` or the path of a YAML file."""
    return Path(name) if name.endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"


def load_profile(name: str) -> Profile:
    """Reads and checks a profile.

    Raises:
        ProfileError: there is no such file, it is not YAML, or a key is unknown, missing or out of range.
    """
    path = profile_path(name)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.yaml")))
        raise ProfileError(f"no load profile {name!r} ({path} not found); known: {known}, or give the path of a .yaml")
    try:
        return Profile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as e:
        raise ProfileError(f"{path} is not YAML: {e}") from e
    except ValidationError as e:
        raise ProfileError(f"{path} has {e.error_count()} problem(s):\n" + "\n".join(_lines(e))) from e


def _lines(e: ValidationError) -> Iterable[str]:
    for x in e.errors():
        yield f"  {'.'.join(map(str, x['loc'])) or '(top)'}: {x['msg']} (found {str(x['input'])[:80]!r})"


def workload_digest(profile: Profile, seed: int) -> str:
    """Identity of the traffic: the profile's settings, the version of the code that makes prompts, and the seed."""
    from loadtests.traffic import TRAFFIC_VERSION

    value: list[Any] = [profile.model_dump(mode="json"), TRAFFIC_VERSION, seed]
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
