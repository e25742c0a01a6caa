"""Where a grammar comes from: a JSON schema, a regular expression or a list of texts, within limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engine.request import RequestError

Grammar = tuple[str, str]  # kind, source

MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 1000
_MAX_BYTES = {"json_schema": 32_768, "regex": 4096, "choice": 32_768}
# One space, or a new line with its indentation: what people and models write, but not blanks without end.
_WHITESPACE = r" |\n {0,32}"


class GrammarError(RequestError):
    """A grammar that cannot be used: says why."""


def prepare(kind: str, source: str) -> Grammar:
    """Checks what can be checked without the library; ``source`` is JSON for ``json_schema`` and ``choice``.

    Raises:
        GrammarError: too large, too deep, or not of its kind.
    """
    size = len(source.encode())
    if size > _MAX_BYTES[kind]:
        raise GrammarError(f"the {WORDS[kind]} has {size} bytes, this server takes {_MAX_BYTES[kind]}")
    if kind == "json_schema":
        schema = json.loads(source)
        if _depth(schema) > MAX_SCHEMA_DEPTH:
            raise GrammarError(f"the JSON schema is nested more than {MAX_SCHEMA_DEPTH} levels deep")
        if isinstance(schema, dict) and "x-guidance" in schema:
            raise GrammarError("the JSON schema has the keyword 'x-guidance', which this server does not take")
    if kind == "choice" and len(json.loads(source)) > MAX_CHOICES:
        raise GrammarError(f"there are {len(json.loads(source))} choices, this server takes {MAX_CHOICES}")
    return kind, source


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level:
        depth += 1
        level = [x for v in level for x in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else ())]
    return depth


def _of_schema(source: str) -> str:
    from llguidance import LLMatcher

    # Every option is named, so that a schema cannot set one.
    return str(
        LLMatcher.grammar_from_json_schema(
            source,
            overrides={
                "item_separator": ",",
                "key_separator": ":",
                "whitespace_flexible": True,
                "whitespace_pattern": _WHITESPACE,
                "coerce_one_of": False,
                "lenient": False,
            },
        )
    )


def _of_regex(source: str) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_regex(source))


def _of_choice(source: str) -> str:
    def literal(text: str) -> str:
        return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)

    return _of_regex("|".join(literal(text) for text in json.loads(source)))


KINDS: dict[str, Callable[[str], str]] = {"json_schema": _of_schema, "regex": _of_regex, "choice": _of_choice}
WORDS = {"json_schema": "JSON schema", "regex": "regular expression", "choice": "list of choices"}
