"""What the gate judges: the records of one tier, read once and checked; what is missing or broken is said, not raised.

A file that does not hold what its stage writes is as good as absent. So a figure that is not a number, a time that
runs backwards or a row that was left out cannot pass for a good result.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from engine.artifact import sha256_file
from pipeline.provenance import Header
from pipeline.stage import FAILED, why_it_failed

if TYPE_CHECKING:
    import polars as pl

RESULTS = Path("results")
EVALSET = Path("reports/evalset.json")
_STAGES = {"plan.json": "plan", "eval": "evaluate", "load": "loadtest"}  # first part of a file's name -> who writes it
_BEFORE = ("fetch", "quantize@{tier}")  # whose outputs those stages read
CHECKED_BY = "check_evalsets"
_FOUND_CHARS = 60
REVIEW = Path("reports/review.json")
FIDELITY = Path("reports/fidelity")
NARROW_KV = ("int8", "fp8", "int4")  # KV dtypes below 16 bits
IN_SERVICE = "in-service"  # RESULTS/IN_SERVICE/eval: the release in service, asked what the set has become since
FILES = (
    "plan.json",
    "eval/eval.json",
    "eval/items.jsonl",
    "load/load.json",
    "load/records.parquet",
    "load/samples.parquet",
    "load/server.json",
)


class _Part(BaseModel):
    """What the gate reads of a file; the rest of it is let be."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Named(_Part):
    digest: str


class _Ledger(_Part):
    weights_bytes: int = Field(gt=0)
    kv_pool_bytes: int = Field(gt=0)


class _Plan(_Part):
    ledger: _Ledger


class _EvalsetName(_Part):
    name: str
    version: str


class _Restart(_Part):
    words: str


class _Steadiness(_Part):
    """Whether one process answered throughout; absent in records of an older version."""

    restarts: list[_Restart] = []


class _Evaluation(_Part):
    header: dict[str, Any]
    evalset: _EvalsetName
    n: int = Field(ge=1)
    accuracy: float = Field(ge=0, le=1)
    scenarios: dict[str, dict[str, Any]]
    partial: bool
    server: _Steadiness | None = None


class _Item(_Part):
    id: str
    scenario: str
    kind: str
    origin: str
    source: str
    correct: bool
    score: float = Field(ge=0, le=1)
    status: Literal["ok", "error"]
    finish_reason: str | None
    output_tokens: Annotated[int, Field(ge=0)] | None
    choice_logprobs: list[float] | None = None


class _Slope(_Part):
    per_1000_tokens: float
    upper: float
    confidence: float = Field(gt=0.5, lt=1)
    bins: int = Field(ge=3)


class _Long(_Part):
    tokens: int = Field(ge=0)
    kl_mean: float | None
    slope: _Slope | None


class _Quantised(_Part):
    quantisation: _Named


class _Computed(_Part):
    kv_dtype: str


class _Of(_Part):
    engine_derived: _Computed


class _Fidelity(_Part):
    tier: str
    kv_dtype: str
    header: _Quantised
    reference: _Of
    long: _Long


class _Stage(_Part):
    requests: int = Field(ge=0)


class _StopAtLimit(_Part):
    words: str


class _Truncation(_Part):
    stop_at_limit: _StopAtLimit | None = None


class _Load(_Part):
    header: dict[str, Any]
    profile: str
    client: dict[str, Any]
    stages: dict[str, _Stage]
    overall: dict[str, Any]
    server_metrics: _Steadiness | None = None
    truncation: _Truncation | None = None


_ITEMS = TypeAdapter(list[_Item])


@dataclass
class TierRun:
    """Records of one tier. A part that is absent or unreadable is None, and ``problems`` says why; ``earlier``: which
    records are there from before, though a stage that leads to them did not end well when it was run last.
    """

    tier: str
    plan: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    items: list[dict[str, Any]] | None = None
    load: dict[str, Any] | None = None
    records: pl.DataFrame | None = None
    server: dict[str, Any] | None = None
    samples: pl.DataFrame | None = None
    fidelity: dict[str, dict[str, Any]] = field(default_factory=dict)  # by KV dtype: reports/fidelity
    problems: dict[str, str] = field(default_factory=dict)
    earlier: list[str] = field(default_factory=list)

    def header(self, part: str) -> Header | None:
        value = {"evaluation": self.evaluation, "load": self.load}[part]
        if value is None:
            return None
        try:
            return Header.model_validate(value["header"])
        except ValidationError as e:
            self.problems[f"{part} header"] = f"incomplete provenance: {_first(e)}"
            return None

    def restarts(self, part: Literal["evaluation", "load"]) -> list[str]:
        """In words, each time at which another process answered than before."""
        value, key = {"evaluation": (self.evaluation, "server"), "load": (self.load, "server_metrics")}[part]
        return [str(r["words"]) for r in ((value or {}).get(key) or {}).get("restarts") or []]

    def missing(self, *names: str) -> str | None:
        """Why these parts cannot be judged; None where all are there."""
        found = [why for name, why in self.problems.items() if any(name.startswith(n) for n in names)]
        return "; ".join(found) or None


def read_tier(tier: str, root: Path = RESULTS) -> TierRun:
    """Reads ``results/TIER``; never raises for a missing or broken file."""
    import polars as pl

    run, folder = TierRun(tier), root / tier

    def attempt(name: str, read: Callable[[Path], Any], **names: Any) -> Any:
        path = folder / name
        try:
            return read(path, **names)
        except FileNotFoundError:
            failed = why_it_failed(f"{_STAGES[_part(name)]}@{tier}")
            run.problems[name] = f"{path} is missing" + (f"; its stage ended with: {failed}" if failed else "")
        except ValidationError as e:
            run.problems[name] = f"{path} is not what its stage writes: {_first(e)}"
        except (OSError, ValueError, RecursionError, pl.exceptions.PolarsError) as e:
            run.problems[name] = f"{path} cannot be read: {e}"
        return None

    run.plan = attempt("plan.json", _checked(_Plan))
    run.evaluation = attempt("eval/eval.json", _checked(_Evaluation))
    run.items = attempt("eval/items.jsonl", lambda path: _items(path, run.evaluation))
    run.load = attempt("load/load.json", _checked(_Load))
    run.server = attempt("load/server.json", read_json)
    run.records = attempt("load/records.parquet", lambda path: _records(path, run.load))
    run.samples = attempt("load/samples.parquet", pl.read_parquet)
    if root == RESULTS:
        run.earlier = [
            f"{folder / _part(name)} is of an earlier run: {why}"
            for name, value in (("eval/eval.json", run.evaluation), ("load/load.json", run.load))
            if value is not None and (why := _not_run_well(_STAGES[_part(name)], tier))
        ]
        _read_fidelity(run)
    return run


def _read_fidelity(run: TierRun) -> None:
    """The records of ``seatrial fidelity`` on narrow KV caches, by the name of the variant; most runs have none."""
    for dtype in NARROW_KV:
        record, why = _optional(FIDELITY / f"{run.tier}+kv-{dtype}.json", _Fidelity, "seatrial fidelity")
        if record is not None and (record["tier"], record["kv_dtype"]) == (run.tier, dtype):
            run.fidelity[dtype] = record
        elif why is not None:
            run.problems[f"fidelity {dtype}"] = why


def _part(name: str) -> str:
    return name.partition("/")[0]


def _not_run_well(stage: str, tier: str) -> str | None:
    """The first of the stages that lead to a record whose last run did not end well, and what became of it."""
    for label in (*_BEFORE, f"{stage}@{{tier}}"):
        if said := why_it_failed(label.format(tier=tier)):
            return f"the last run of {label.format(tier=tier)} did not end well ({said})"
    return None


class _Criterion(_Part):
    """An interval without a problem decides, so it must be one, and all that is said with it must be there."""

    items: int = Field(ge=0)
    alpha: float | None
    candidate_mean: float | None
    baseline_mean: float | None
    difference: float | None
    interval: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    confidence: float | None = None
    problem: str | None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.interval is not None and self.interval[0] > self.interval[1]:
            raise ValueError(f"its interval ends before it begins: {self.interval}")
        said = ("alpha", "candidate_mean", "baseline_mean", "difference")
        absent = [name for name in said if getattr(self, name) is None]
        if self.interval is not None and not self.problem and absent:
            raise ValueError(f"it has an interval and no problem, but {absent[0]} is null")
        return self


class _Build(_Part):
    model: _Named
    engine: _Named
    quantisation: _Named


class _Review(_Part):
    candidate: str
    baseline: str
    build: _Build | None = None
    criteria: dict[str, _Criterion]


def read_review(path: Path = REVIEW) -> tuple[dict[str, Any] | None, str | None]:
    """(people's ratings, None), (None, None) where nobody was asked, (None, why) where they cannot be read."""
    return _optional(path, _Review, "seatrial review import")


def _optional(path: Path, model: type[_Part], writer: str) -> tuple[dict[str, Any] | None, str | None]:
    """(what it holds, None), (None, None) where there is no such file, (None, why) where it cannot be read."""
    try:
        return _checked(model)(path), None
    except FileNotFoundError:
        return None, None
    except ValidationError as e:
        return None, f"{path} is not what `{writer}` writes: {_first(e)}"
    except (OSError, ValueError, RecursionError) as e:
        return None, f"{path} cannot be read: {e}"


def _first(e: ValidationError) -> str:
    """The first mistake: where, what was expected, and what was found."""
    x = e.errors()[0]
    found = repr(x["input"])
    found = found if len(found) <= _FOUND_CHARS else f"{found[:_FOUND_CHARS]}..."
    return f"{'.'.join(map(str, x['loc'])) or 'content'}: {x['msg']} (found {found})"


def read_json(path: Path) -> dict[str, Any]:
    """
    Raises:
        ValueError: not a JSON object, or one with NaN or Infinity in it.
    """
    value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a figure; an absent one is null with a reason beside it")


def _checked(model: type[_Part]) -> Callable[[Path], dict[str, Any]]:
    def read(path: Path) -> dict[str, Any]:
        value = read_json(path)
        model.model_validate(value)
        return value

    return read


def _items(path: Path, evaluation: dict[str, Any] | None) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line, parse_constant=_no_number))
            except ValueError as e:
                raise ValueError(f"line {number}: {e}") from e
    _ITEMS.validate_python(rows)
    if twice := [k for k, n in Counter(r["id"] for r in rows).items() if n > 1]:
        raise ValueError(f"item {twice[0]} stands in it twice")
    if evaluation is not None and len(rows) != evaluation["n"]:
        raise ValueError(f"it has {len(rows)} items, but eval.json counts {evaluation['n']}")
    accuracy = sum(r["score"] for r in rows) / max(1, len(rows))
    if evaluation is not None and not math.isclose(accuracy, evaluation["accuracy"], abs_tol=1e-6):
        raise ValueError(f"its scores have the mean {accuracy:.4f}, but eval.json says {evaluation['accuracy']:.4f}")
    return rows


def _records(path: Path, load: dict[str, Any] | None) -> pl.DataFrame:
    """
    Raises:
        ValueError: a column is missing or of another type, a time is not a number or runs backwards, or a stage has
            other requests than load.json counts: a request that left the denominator would look like a fast one.
    """
    import polars as pl

    from loadtests.records import SCHEMA, Status, complete

    rows = complete(pl.read_parquet(path))
    for name, dtype in SCHEMA.items():
        if name not in rows.columns:
            raise ValueError(f"it has no column {name!r}")
        if rows.schema[name] != dtype:
            raise ValueError(f"column {name!r} is {rows.schema[name]}, expected {dtype}")
    if rows["request_id"].is_duplicated().any() or rows["request_id"].has_nulls():
        raise ValueError("a request_id is missing or stands in it twice")
    if rows["due_s"].has_nulls() or rows["phase"].has_nulls():
        raise ValueError("a request has no due time or no phase")
    if odd := sorted(set(rows["status"].fill_null("null")) - set(get_args(Status))):
        raise ValueError(f"status {odd[0]!r} is none of {', '.join(get_args(Status))}")
    for name in (n for n, dtype in SCHEMA.items() if dtype == pl.Float64):
        if rows.filter(pl.col(name).is_not_null() & ~pl.col(name).is_finite()).height:
            raise ValueError(f"column {name!r} holds what is not a number")
    times = rows.filter(pl.col("token_times_s").list.len() > 0).select("request_id", "due_s", "token_times_s")
    gaps = pl.col("token_times_s").list.diff(null_behavior="drop")
    bad = times.filter(
        pl.col("token_times_s").list.eval(pl.element().is_null() | ~pl.element().is_finite()).list.any()
        | (gaps.list.min() < 0)
        | (pl.col("token_times_s").list.first() < pl.col("due_s"))
    )
    if bad.height:
        raise ValueError(f"the token times of request {bad['request_id'][0]} are not times that follow its due time")
    for stage, figures in (load or {}).get("stages", {}).items():
        found = rows.filter((pl.col("stage") == stage) & (pl.col("phase") == "measured")).height
        if found != figures["requests"]:
            raise ValueError(f"it has {found} measured requests in {stage}, but load.json counts {figures['requests']}")
    return rows


def input_digests(tiers: list[str], root: Path = RESULTS, evalset: Path = EVALSET) -> dict[str, str | None]:
    """sha256 of every file that a verdict rests on (None: absent), by which a stale verdict is recognised; and of what
    stages left that did not end well, since their results may be of an earlier run.
    """
    again = [root / IN_SERVICE / name for name in ("eval/eval.json", "eval/items.jsonl")]
    drift = [p for t in tiers for dtype in NARROW_KV if (p := FIDELITY / f"{t}+kv-{dtype}.json").is_file()]
    paths = [root / tier / name for tier in tiers for name in FILES] + [evalset, REVIEW, *again, *drift]
    failed = [p for p in sorted(FAILED.glob("*.txt")) if _matters(p.stem, tiers)]
    return {p.as_posix(): sha256_file(p) if p.is_file() else None for p in [*paths, *failed]}


def _matters(label: str, tiers: list[str]) -> bool:
    stage, _, tier = label.partition("@")
    return label in {"fetch", CHECKED_BY} or (stage in {"quantize", *_STAGES.values()} and tier in tiers)
