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
from pydantic import Field, PrivateAttr, ValidationError, model_validator

from loadtests.arrivals import Closed, ClosedLoop, Open, OpenLoop, Replay, Steps, Walk
from loadtests.distributions import Lengths, Strict, Times, read_files
from loadtests.replay.blocks import BlockWords
from loadtests.replay.formats import read_trace
from loadtests.replay.scale import Replayed, scale

PROFILES = Path(__file__).resolve().parent / "profiles"
SHORTEST_MINUTES = {"release": 30, "soak": 60}  # of the measured part of a stage, by kind of profile


class ProfileError(Exception):
    """A load profile that cannot be used: says what was found, what was expected, what to do."""


Arrivals = Annotated[Closed | Walk | Steps | Open | Replay, Field(discriminator="kind")]


class Output(Strict):
    """What ends an answer.

    ``ignore_eos``: the server goes on to exactly the number of tokens drawn (an extension that vLLM, SGLang and the
    bundled engine have), so the work of a request is the same in every tier. ``max_tokens``: the model may stop
    earlier, as in service.
    """

    fixed_by: Literal["ignore_eos", "max_tokens"]


class Goodput(Strict):
    """Limits that one request must keep to count as good (DistServe, OSDI 2024, section 3.1)."""

    ttft_ms: float = Field(gt=0)
    tpot_ms: float = Field(gt=0, description="mean time per output token after the first")


class SystemPrompt(Strict):
    """A system message of about ``tokens`` tokens; ``weight`` says how often it is taken among those of its stage."""

    tokens: int = Field(ge=1)
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)


class SystemPrompts(Strict):
    """``share`` of the sessions begin with one of these system messages; the others have none of ours."""

    share: float = Field(1.0, gt=0, le=1)
    prompts: list[SystemPrompt] = Field(min_length=1)


class Sessions(Strict):
    """Conversations: each arrival is a session, whose next turn is due ``think`` after the last one's end.

    Open loop with sessions is partly open: sessions arrive at the rate, their turns follow the server (Schroeder et
    al., Open Versus Closed, NSDI 2006). ``go_on_share`` of the sessions that reach a turn go on to another, up to
    ``turns``; a session ends before the turn that, with the answers at their longest, might pass ``context_tokens``
    (lengths are aimed at by words: leave a tenth of the model's context).
    """

    turns: int = Field(ge=2, le=1000)
    go_on_share: float = Field(1.0, gt=0, le=1)
    context_tokens: int = Field(ge=1)
    next_tokens: Lengths | None = Field(None, description="of the user's messages after the first; default: the same")


class Abandonment(Strict):
    """``share`` of the requests are of users who leave: the client closes the connection ``patience`` after sending."""

    share: float = Field(gt=0, le=1)
    patience: Times


class StageSpec(Strict):
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    warmup_s: float = Field(ge=0)
    duration_s: float = Field(gt=0, description="of the measured part, after warm-up")
    arrivals: Arrivals
    prompt_tokens: Lengths | None = Field(
        None, description="of the user's message, about; what was really sent comes from usage. A replay has its own"
    )
    output_tokens: Lengths | None = None
    system: Literal["none", "shared", "unique"] | SystemPrompts = Field(
        "none",
        description="system message: none (the chat template's own, if any), one shared by all requests of the stage "
        "(its prefix is warm), one that differs from the first word on (nothing is shared), or several with weights",
    )
    sessions: Sessions | None = None
    think: Times | None = Field(None, description="a user's pause between an answer and the next request")
    abandon: Abandonment | None = None
    _replayed: Replayed | None = PrivateAttr(None)
    _blocks: BlockWords | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.think and self.sessions is None and isinstance(self.arrivals, OpenLoop):
            raise ValueError(
                f"think has no meaning with {self.arrivals.kind} arrivals, which wait for nobody: use a closed loop, "
                "or sessions"
            )
        lengths = (self.prompt_tokens, self.output_tokens)
        if isinstance(self.arrivals, Replay):
            if any(lengths) or self.system != "none" or self.sessions:
                raise ValueError(
                    "a replay brings its own lengths and prefixes: leave out prompt_tokens, output_tokens, system and "
                    "sessions"
                )
        elif not all(lengths):
            raise ValueError("prompt_tokens and output_tokens are needed where no trace is replayed")
        return self

    @model_validator(mode="after")
    def _read_trace(self) -> Self:
        if isinstance(self.arrivals, Replay):
            file = self.arrivals.file
            self._replayed = scale(read_trace(file, read_files(file)), self.arrivals, self.length_s)
            if block_tokens := self._replayed.scaling.block_tokens:
                hashes = (b for r in self._replayed.requests for b in r.blocks)
                self._blocks = BlockWords(hashes, block_tokens)
        return self

    @property
    def replayed(self) -> Replayed | None:
        """The requests of the trace that this stage replays, and how they were scaled; None: it replays none."""
        return self._replayed

    @property
    def blocks(self) -> BlockWords | None:
        """The words of the trace's prefix blocks; None where it has none."""
        return self._blocks

    @property
    def length_s(self) -> float:
        """Warm-up and measured part together."""
        return self.warmup_s + self.duration_s


class Profile(Strict):
    name: str
    kind: Literal["ci", "smoke", "release", "soak", "custom"]
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
        if (minutes := SHORTEST_MINUTES.get(self.kind)) is not None:
            for s in self.stages:
                if s.duration_s < minutes * 60:
                    raise ValueError(
                        f"stage {s.name} measures {s.duration_s:g} s; a {self.kind} profile measures at least "
                        f"{minutes} minutes ({minutes * 60} s) a stage: raise duration_s, or use another kind for a "
                        "shorter look"
                    )
        return self

    @property
    def users(self) -> int:
        """The most closed-loop users that any stage needs; at least one."""
        return max([1, *(users_of(s.arrivals) for s in self.stages)])

    @property
    def waits_for_nobody(self) -> str | None:
        """The first stage with open-loop arrivals; None: each waits for its users."""
        return next((s.name for s in self.stages if isinstance(s.arrivals, OpenLoop)), None)

    @property
    def planned_s(self) -> float:
        """Length of the run without the drains."""
        return sum(s.warmup_s + s.duration_s for s in self.stages)


def users_of(arrivals: ClosedLoop | OpenLoop) -> int:
    """Closed-loop users of a stage; 0 for open-loop arrivals."""
    match arrivals:
        case Closed():
            return arrivals.concurrency
        case Walk():
            return arrivals.max
        case Steps():
            return max(users for _, users in arrivals.levels)
        case OpenLoop():
            return 0


def profile_path(name: str) -> Path:
    """A name below ``loadtests/profiles`` or the path of a YAML file."""
    return Path(name) if name.endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"


def load_profile(name: str, *, warmup_s: float | None = None, duration_s: float | None = None) -> Profile:
    """Reads and checks a profile.

    A profile with other times is another one: the times become part of its name, unless its kind holds them to a
    minimum. So a gate that asks for a profile by name is not given a shorter one.

    Args:
        warmup_s: instead of what the profile says, for every stage.
        duration_s: likewise. What its kind asks for still holds: a release profile is not made shorter.

    Raises:
        ProfileError: there is no such file, it is not YAML, or a key is unknown, missing or out of range.
    """
    path = profile_path(name)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.yaml")))
        raise ProfileError(f"no load profile {name!r} ({path} not found); known: {known}, or give the path of a .yaml")
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
        given = {k: v for k, v in (("warmup_s", warmup_s), ("duration_s", duration_s)) if v is not None}
        return Profile.model_validate(_with_times(value, given), context={"folder": path.parent})
    except yaml.YAMLError as e:
        raise ProfileError(f"{path} is not YAML: {e}") from e
    except ValidationError as e:
        raise ProfileError(f"{path} has {e.error_count()} problem(s):\n" + "\n".join(_lines(e))) from e


def _with_times(value: Any, given: dict[str, float]) -> Any:
    if not given or not isinstance(value, dict) or not isinstance(value.get("stages"), list):
        return value
    stages = [s | given if isinstance(s, dict) else s for s in value["stages"]]
    name = value.get("name")
    if value.get("kind") not in SHORTEST_MINUTES:
        name = " ".join([str(name), *(f"{k}={v:g}" for k, v in given.items())])
    return value | {"stages": stages, "name": name}


def _lines(e: ValidationError) -> Iterable[str]:
    for x in e.errors():
        yield f"  {'.'.join(map(str, x['loc'])) or '(top)'}: {x['msg']} (found {str(x['input'])[:80]!r})"


def workload_digest(profile: Profile, seed: int, turn_s: float | None = None) -> str:
    """Identity of the traffic: the profile's settings, the version of the code that makes prompts, the seed, and how
    long its client sent at a time, where it took turns with another.

    A file that the profile names counts by its content (``sha256``), wherever it lies.
    """
    from loadtests.traffic import TRAFFIC_VERSION

    value: list[Any] = [_identity(profile.model_dump(mode="json", exclude_none=True)), TRAFFIC_VERSION, seed]
    if turn_s is not None:
        value.append(turn_s)
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _identity(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _identity(v) for k, v in value.items() if not (k == "file" and "sha256" in value)}
    return [_identity(v) for v in value] if isinstance(value, list) else value
