"""Distributions that a profile may name: of lengths in tokens, and of times in seconds.

Each has one function of its own, the inverse of its cumulative distribution (``length_at``, ``seconds_at``): a draw is
that function of one uniform number, and the plan of a profile prints the quantiles that the draws come from. Bounds
cut a distribution off, they do not clip it: nothing piles up at the ends.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import random
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator

MOST_TOKENS = 1 << 24  # a length beyond this is a mistake in a file, not a prompt


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fixed(Strict):
    """Always the same number of tokens."""

    kind: Literal["fixed"]
    tokens: int = Field(ge=1)


class Uniform(Strict):
    """Every whole number from ``min`` to ``max`` is as likely."""

    kind: Literal["uniform"]
    min: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, above max {self.max}")
        return self


class Lognormal(Strict):
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


class Bin(Strict):
    """Lengths from ``min`` to ``max``, each as likely, together with this weight."""

    min: int = Field(ge=1)
    max: int = Field(ge=1, le=MOST_TOKENS)
    weight: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, above max {self.max}")
        return self


class Empirical(Strict):
    """Lengths as they were seen: a ``histogram``, or a ``file`` (path relative to the profile's folder).

    The file has one length a line, or is a CSV file of which ``column`` is read. Each length is multiplied by
    ``factor`` and rounded, at least 1; those outside [min, max] are left out. ``sha256`` is the file's, filled in when
    it is read; written in the profile it is checked.
    """

    kind: Literal["empirical"]
    histogram: list[Bin] | None = Field(None, min_length=1)
    file: str | None = None
    column: str | None = None
    sha256: str | None = None
    factor: float | None = Field(None, gt=0, allow_inf_nan=False)
    min: int | None = Field(None, ge=1)
    max: int | None = Field(None, ge=1)
    _bins: tuple[tuple[int, int], ...] = PrivateAttr(())
    _below: tuple[float, ...] = PrivateAttr(())  # weight of the bins up to and with each

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, dict) and isinstance(value.get("file"), str):
            return value | located(value["file"], value.get("sha256"), info)
        return value

    @model_validator(mode="after")
    def _tabulate(self) -> Self:
        if (self.histogram is None) == (self.file is None):
            raise ValueError("give either histogram or file")
        if self.file is None:
            for key in ("column", "sha256", "factor", "min", "max"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key} goes with file; a histogram says itself what it holds")
            bins = [(b.min, b.max, b.weight) for b in sorted(self.histogram or [], key=lambda b: (b.min, b.max))]
        else:
            parts = read_files(self.file)
            if len(parts) != 1:
                raise ValueError(f"{self.file} matches {len(parts)} files; expected one file of lengths")
            found = read_lengths(self.file, parts[0], self.column)
            scaled = sorted(max(1, round(n * (self.factor or 1))) for n in found)
            kept = [n for n in scaled if (self.min or 1) <= n <= (self.max or MOST_TOKENS)]
            if not kept:
                raise ValueError(
                    f"none of the {len(found)} lengths of {self.file} is in [{self.min or 1}, {self.max or 'any'}]: "
                    f"they go from {scaled[0]} to {scaled[-1]} after factor {self.factor or 1:g}"
                )
            bins = [(n, n, 1.0) for n in kept]
        self._bins = tuple((low, high) for low, high, _ in bins)
        self._below = tuple(accumulate(w for *_, w in bins))
        return self

    def at(self, p: float) -> int:
        """The length below which the share ``p`` of all lies, 0 <= p < 1."""
        weight = p * self._below[-1]
        i = min(bisect_right(self._below, weight), len(self._bins) - 1)
        low, high = self._bins[i]
        before = self._below[i - 1] if i else 0.0
        inside = (weight - before) / (self._below[i] - before)
        return low + min(int(inside * (high - low + 1)), high - low)


Lengths = Annotated[Fixed | Uniform | Lognormal | Empirical, Field(discriminator="kind")]


def length_at(lengths: Lengths, p: float) -> int:
    """The inverse of the cumulative distribution at 0 <= p < 1, in tokens."""
    match lengths:
        case Fixed():
            return lengths.tokens
        case Uniform():
            return lengths.min + int(p * (lengths.max - lengths.min + 1))
        case Lognormal():
            log_n = _normal_at(math.log(lengths.median), lengths.sigma, math.log(lengths.min), math.log(lengths.max), p)
            return min(max(round(math.exp(log_n)), lengths.min), lengths.max)
        case Empirical():
            return lengths.at(p)


def draw_length(lengths: Lengths, rng: random.Random) -> int:
    """One length in tokens; takes one number from ``rng``, none where the length is fixed."""
    return lengths.tokens if isinstance(lengths, Fixed) else length_at(lengths, rng.random())


class FixedTime(Strict):
    """Always the same time."""

    kind: Literal["fixed"]
    s: float = Field(ge=0, allow_inf_nan=False)


class UniformTime(Strict):
    kind: Literal["uniform"]
    min_s: float = Field(ge=0)
    max_s: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_s > self.max_s:
            raise ValueError(f"min_s is {self.min_s:g}, above max_s {self.max_s:g}")
        return self


class ExponentialTime(Strict):
    """Exponential with this mean before it is cut off at ``max_s``, if that is given."""

    kind: Literal["exponential"]
    mean_s: float = Field(gt=0, allow_inf_nan=False)
    max_s: float | None = Field(None, gt=0, allow_inf_nan=False)


class LognormalTime(Strict):
    """Log-normal with this median and sigma (of the logarithm), cut off at ``max_s`` if that is given."""

    kind: Literal["lognormal"]
    median_s: float = Field(gt=0, allow_inf_nan=False)
    sigma: float = Field(gt=0)
    max_s: float | None = Field(None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_s is not None and self.max_s < self.median_s:
            raise ValueError(f"expected median_s <= max_s, found {self.median_s:g}, {self.max_s:g}")
        return self


Times = Annotated[FixedTime | UniformTime | ExponentialTime | LognormalTime, Field(discriminator="kind")]


def seconds_at(times: Times, p: float) -> float:
    """The inverse of the cumulative distribution at 0 <= p < 1, in seconds."""
    match times:
        case FixedTime():
            return times.s
        case UniformTime():
            return times.min_s + p * (times.max_s - times.min_s)
        case ExponentialTime():
            most = 1.0 if times.max_s is None else -math.expm1(-times.max_s / times.mean_s)
            return -times.mean_s * math.log1p(-p * most)
        case LognormalTime():
            high = math.inf if times.max_s is None else math.log(times.max_s)
            return math.exp(_normal_at(math.log(times.median_s), times.sigma, -math.inf, high, p))


def _normal_at(mean: float, sigma: float, low: float, high: float, p: float) -> float:
    """Inverse of a normal distribution that is truncated to [low, high]."""
    normal = NormalDist(mean, sigma)
    below, above = normal.cdf(low), normal.cdf(high)
    return normal.inv_cdf(min(max(below + p * (above - below), 1e-12), 1 - 1e-12))


def located(file: str, sha256: object, info: ValidationInfo) -> dict[str, str]:
    """``file`` as an absolute path, so that it is found from a copy of the profile too, and its ``sha256``.

    The path is relative to the profile's folder, which whoever reads a profile gives as ``context={"folder": ...}``.

    Raises:
        ValueError: there is none, it cannot be read, or it is not the one that ``sha256`` stands for.
    """
    path = str((Path((info.context or {}).get("folder", ".")) / file).absolute())
    return {"file": path, "sha256": checked_sha256(read_files(path), sha256, file)}


def read_files(file: str) -> list[bytes]:
    """The bytes of a file, or of all that match a pattern in its name, in order of their names.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    path = Path(file)
    paths = sorted(path.parent.glob(path.name)) if any(c in path.name for c in "*?[") else [path]
    if not paths:
        raise ValueError(f"no file matches {path}; the path is relative to the profile's folder")
    try:
        return [p.read_bytes() for p in paths]
    except OSError as e:
        raise ValueError(
            f"{e.filename} cannot be read: {e.strerror}; paths are relative to the profile's folder"
        ) from e


def checked_sha256(parts: list[bytes], expected: object, file: str) -> str:
    """The digest of a file; of several, that of their digests.

    Raises:
        ValueError: another one was expected.
    """
    each = [hashlib.sha256(p).hexdigest() for p in parts]
    found = each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()
    if expected is not None and expected != found:
        raise ValueError(f"{file} has sha256 {found}, the profile says {expected}: another file, or a changed one")
    return found


def read_lengths(file: str, data: bytes, column: str | None) -> list[int]:
    """Lengths from the text of a file: one a line, or a CSV column.

    Raises:
        ValueError: not text, no such column, no length at all, or something that is not a length, with its line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ValueError(f"{file} is not UTF-8 text: {e}; expected one length a line, or a CSV file") from e
    cells: list[tuple[int, str]]
    if column is None:
        cells = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    else:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        names = [n.strip() for n in reader.fieldnames or []]
        reader.fieldnames = names
        if column not in names:
            raise ValueError(f"{file} has the columns {', '.join(names)[:200] or '(none)'}; expected {column}")
        cells = [(reader.line_num, row[column] or "") for row in reader]
    if not cells:
        raise ValueError(f"{file} holds no lengths; expected one a line, or a CSV file and column: NAME")
    return [_length(file, line, cell) for line, cell in cells]


def _length(file: str, line: int, cell: str) -> int:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not 1 <= number <= MOST_TOKENS or number != int(number):
        raise ValueError(
            f"{file}, line {line}: found {cell.strip()[:40]!r}, expected a whole number of tokens, 1 or more"
            + ("; for a CSV file give column: NAME" if "," in cell else "")
        )
    return int(number)
