"""``instruct.constraints``: does the answer obey every instruction that can be checked by a program?

The kind of constraint follows Zhou et al. 2023 (IFEval); an answer is right if it meets all of its constraints. An
empty answer meets none: otherwise silence would obey "do not mention X".

Words are runs of letters, digits, apostrophes and hyphens with a letter or digit among them. Matching of texts ignores
case unless ``ignore_case: false``. Each class below is one type; its docstring is its definition.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.evaluation.graders.base import (
    Answer,
    Grade,
    GraderParams,
    GraderSpec,
    need_generation,
    need_no_reference,
)
from pipeline.evaluation.items import Item

_WORD = re.compile(r"(?:[^\W_]|['’-](?=[^\W_]))+")
_BULLET = re.compile(r"^\s*[-*•+]\s+\S")
_NUMBERED = re.compile(r"^\s*(\d+)[.)]\s+\S")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]*]*(?=\s|$)")
_FENCED = re.compile(r"^```[\w-]*\n(.*?)\n?```$", re.DOTALL)


def words(text: str) -> list[str]:
    return _WORD.findall(text)


class _Constraint(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def broken(self, text: str) -> str | None:
        """Why the stripped, non-empty ``text`` does not obey; None when it does."""
        raise NotImplementedError


class _Text(_Constraint):
    text: str = Field(min_length=1)
    ignore_case: bool = True

    def fold(self, value: str) -> str:
        return value.casefold() if self.ignore_case else value


class Contains(_Text):
    """``text`` occurs, with ``whole_word`` not as part of a longer word."""

    type: Literal["contains"]
    whole_word: bool = False

    def occurs(self, value: str) -> bool:
        wanted = re.escape(self.fold(self.text))
        return bool(re.search(rf"(?<!\w){wanted}(?!\w)" if self.whole_word else wanted, self.fold(value)))

    def broken(self, text: str) -> str | None:
        return None if self.occurs(text) else f"does not contain {self.text!r}"


class NotContains(Contains):
    """``text`` does not occur, with ``whole_word`` not as a word of its own."""

    type: Literal["not_contains"]  # type: ignore[assignment]

    def broken(self, text: str) -> str | None:
        return f"contains {self.text!r}" if self.occurs(text) else None


class StartsWith(_Text):
    """The first characters that are not white space are ``text``."""

    type: Literal["starts_with"]

    def broken(self, text: str) -> str | None:
        return None if self.fold(text).startswith(self.fold(self.text)) else f"does not start with {self.text!r}"


class EndsWith(_Text):
    """The last characters that are not white space are ``text``."""

    type: Literal["ends_with"]

    def broken(self, text: str) -> str | None:
        return None if self.fold(text).endswith(self.fold(self.text)) else f"does not end with {self.text!r}"


class WordCountBetween(_Constraint):
    """Between ``min`` and ``max`` words, both included."""

    type: Literal["word_count_between"]
    min: int = Field(ge=0)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, above max {self.max}")
        return self

    def broken(self, text: str) -> str | None:
        n = len(words(text))
        return None if self.min <= n <= self.max else f"has {n} words, not {self.min} to {self.max}"


class _Count(_Constraint):
    unit: ClassVar[str]
    count: int = Field(ge=1)

    def count_of(self, text: str) -> int:
        raise NotImplementedError

    def broken(self, text: str) -> str | None:
        n = self.count_of(text)
        return None if n == self.count else f"has {n} {self.unit}, not {self.count}"


class LineCount(_Count):
    """Exactly ``count`` lines that are not blank."""

    type: Literal["line_count"]
    unit: ClassVar[str] = "lines"

    def count_of(self, text: str) -> int:
        return sum(bool(x.strip()) for x in text.splitlines())


class BulletCount(_Count):
    """Exactly ``count`` lines that begin with ``-``, ``*``, ``+`` or ``•`` and a space."""

    type: Literal["bullet_count"]
    unit: ClassVar[str] = "bullets"

    def count_of(self, text: str) -> int:
        return sum(bool(_BULLET.match(x)) for x in text.splitlines())


class SentenceCount(_Count):
    """Exactly ``count`` sentences: ends by ``.``, ``!``, ``?`` before white space, and a rest with a word in it."""

    type: Literal["sentence_count"]
    unit: ClassVar[str] = "sentences"

    def count_of(self, text: str) -> int:
        return sum(bool(words(x)) for x in _SENTENCE_END.split(text))


class NumberedList(_Constraint):
    """The lines that begin with a number and ``.`` or ``)`` are numbered 1 to ``count`` in order."""

    type: Literal["numbered_list"]
    count: int = Field(ge=1)

    def broken(self, text: str) -> str | None:
        found = [int(m[1]) for x in text.splitlines() if (m := _NUMBERED.match(x))]
        return None if found == list(range(1, self.count + 1)) else f"is numbered {found}, not 1 to {self.count}"


class AllLower(_Constraint):
    """Has letters, none of them upper case."""

    type: Literal["all_lower"]

    def broken(self, text: str) -> str | None:
        return None if text.islower() else "is not all in lower case"


class AllUpper(_Constraint):
    """Has letters, none of them lower case."""

    type: Literal["all_upper"]

    def broken(self, text: str) -> str | None:
        return None if text.isupper() else "is not all in upper case"


class NoCommas(_Constraint):
    """No comma anywhere."""

    type: Literal["no_commas"]

    def broken(self, text: str) -> str | None:
        n = text.count(",") + text.count("，") + text.count("、")
        return f"has {n} commas" if n else None


class RepeatWord(_Constraint):
    """``word`` occurs as a word at least ``count`` times; exactly that often with ``exact``."""

    type: Literal["repeat_word"]
    word: str = Field(min_length=1)
    count: int = Field(ge=1)
    exact: bool = False

    def broken(self, text: str) -> str | None:
        n = sum(w == self.word.casefold() for w in words(text.casefold()))
        if n == self.count or (n > self.count and not self.exact):
            return None
        return f"has the word {self.word!r} {n} times, not {'' if self.exact else 'at least '}{self.count}"


class Quoted(_Constraint):
    """The whole answer stands in double quotation marks, straight or curly."""

    type: Literal["quoted"]

    def broken(self, text: str) -> str | None:
        ends = text[0] + text[-1] if len(text) > 2 else ""
        return None if ends in {'""', "“”", "„“", "«»"} else "is not wrapped in double quotation marks"


def _json(text: str) -> tuple[Any, str | None]:
    """The answer as JSON: the whole of it, or the whole of one fenced block; and what is wrong."""
    fenced = _FENCED.match(text)

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(fenced[1] if fenced else text, parse_constant=refuse), None
    except (ValueError, RecursionError):
        return None, "is not JSON"


class JsonValid(_Constraint):
    """The whole answer, or the whole of one fenced block, is JSON."""

    type: Literal["json_valid"]

    def broken(self, text: str) -> str | None:
        return _json(text)[1]


class JsonKeys(_Constraint):
    """JSON whose top is an object that has all ``keys``; others are allowed unless ``only``."""

    type: Literal["json_keys"]
    keys: list[str] = Field(min_length=1)
    only: bool = False

    def broken(self, text: str) -> str | None:
        value, problem = _json(text)
        if problem:
            return problem
        if not isinstance(value, dict):
            return "is JSON, but not an object"
        if missing := [k for k in self.keys if k not in value]:
            return f"lacks the keys {', '.join(missing)}"
        extra = [k for k in value if k not in self.keys]
        return f"has the keys {', '.join(extra)} besides" if self.only and extra else None


Constraint = Annotated[
    Contains
    | NotContains
    | StartsWith
    | EndsWith
    | WordCountBetween
    | LineCount
    | BulletCount
    | SentenceCount
    | NumberedList
    | AllLower
    | AllUpper
    | NoCommas
    | RepeatWord
    | Quoted
    | JsonValid
    | JsonKeys,
    Field(discriminator="type"),
]


class Params(GraderParams):
    constraints: list[Constraint] = Field(min_length=1)


def check(item: Item, params: Params) -> None:
    need_generation(item)
    need_no_reference(item)


def grade(item: Item, params: Params, answer: Answer) -> Grade:
    text = answer.text.strip()
    if not text:
        return Grade(False, "the answer is empty", detail={"met": 0, "of": len(params.constraints)})
    broken = [x for c in params.constraints if (x := c.broken(text))]
    return Grade(
        not broken,
        "; ".join(broken) or None,
        detail={"met": len(params.constraints) - len(broken), "of": len(params.constraints)},
    )


SPEC = GraderSpec("instruct.constraints", "1", Params, grade, check)
