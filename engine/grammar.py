"""Outputs that must match a JSON schema, a regular expression or one of some texts: which tokens may come next.

llguidance compiles the grammar and walks the vocabulary. What may come next is a function of the output tokens alone:
each request has a matcher of its own, begun from the same compiled state, so neighbours, chunks, forks and preemption
change nothing. It is loaded with the first request that needs it.

Nothing that a request brings may stop the others. Sources are limited in bytes and depth, the library in the size of
its tables and the work of one step (limits that count work, not time, so that an output does not depend on the
machine's mood). Compiling has no such limit that always holds, so the server compiles first, in a process that is ended
when it takes too long (``engine.grammar_check``), and the core compiles what has passed in a thread beside its steps.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.request import DrawError, RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

log = logging.getLogger(__name__)
Grammar = tuple[str, str]  # kind, source

MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 1000
_KEPT = 32  # compiled grammars: most requests repeat one
_MAX_BYTES = {"json_schema": 32_768, "regex": 4096, "choice": 32_768}
# One space, or a new line with its indentation: what people and models write, but not blanks without end.
_WHITESPACE = r" |\n {0,32}"
_LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 10_000,  # about 2 kB each
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}


class GrammarError(RequestError):
    """A grammar that cannot be used: says why."""


class MatchError(DrawError):
    """No token can follow, or finding out takes more work than one step may have."""


# Sources


def prepare(kind: str, source: str) -> Grammar:
    """Checks what can be checked without the library; ``source`` is JSON for ``json_schema`` and ``choice``.

    Raises:
        GrammarError: too large, too deep, or not of its kind.
    """
    size = len(source.encode())
    if size > _MAX_BYTES[kind]:
        raise GrammarError(f"the {_WORDS[kind]} has {size} bytes, this server takes {_MAX_BYTES[kind]}")
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


_KINDS: dict[str, Callable[[str], str]] = {"json_schema": _of_schema, "regex": _of_regex, "choice": _of_choice}
_WORDS = {"json_schema": "JSON schema", "regex": "regular expression", "choice": "list of choices"}


# Matching


class Matcher:
    """The grammar's state after a request's output tokens."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size

    def fork(self) -> Matcher:
        """One of its own in the same state."""
        return Matcher(self._matcher.deep_copy(), self._vocab_size)

    def allowed(self) -> NDArray[np.int64]:
        """Ids of the tokens that may come next, rising; those that end a sequence where the text may end.

        Raises:
            MatchError: there is none, or it takes too much work.
        """
        bits = self._matcher.compute_bitmask()
        self._check()
        ids = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[: self._vocab_size])
        if not len(ids):
            raise MatchError("the grammar allows no token of this model's vocabulary here")
        return ids

    def accept(self, token: int) -> bool:
        """Moves on by a token that was allowed. Whether the text is complete: nothing can follow.

        Raises:
            MatchError: it was not allowed, or it takes too much work.
        """
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise MatchError(f"the grammar cannot be followed: {_in_one_line(self._matcher.get_error())}")


_REWORDED = {
    "<non-verbose/>": "",
    "Enable 'coerce_one_of' option to approximate oneOf with anyOf": "Use anyOf if the branches exclude each other",
}


def _in_one_line(message: str) -> str:
    for theirs, ours in _REWORDED.items():
        message = message.replace(theirs, ours)
    lines = [line.strip() for line in message.splitlines()]
    return " ".join(line for line in lines if line and set(line) != {"^"})[:400]


@dataclass
class GrammarCompiler:
    """Compiles grammars for the tokenizer of one artifact; its tables are made once, with the first grammar."""

    artifact: Path
    vocab_size: int

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._compiled: OrderedDict[Grammar, Matcher] = OrderedDict()  # the thread's own

    def compile(self, grammar: Grammar) -> Matcher:
        """The matcher of an empty output, from which others are forked. Takes milliseconds, or seconds for what the
        server should have refused.

        Raises:
            GrammarError: the grammar is not valid or too large, or cannot be used with this tokenizer.
        """
        from llguidance import LLMatcher, LLParserLimits

        kind, source = prepare(*grammar)
        tokenizer = self.load()
        matcher = LLMatcher(tokenizer, _KINDS[kind](source), log_level=0, limits=LLParserLimits(**_LIMITS))
        problem = matcher.get_error() or " ".join(matcher.get_grammar_warnings())
        if problem:
            raise GrammarError(f"the {_WORDS[kind]} cannot be used: {_in_one_line(problem)}")
        found = Matcher(matcher, self.vocab_size)
        try:
            found.allowed()
        except MatchError as e:
            raise GrammarError(f"the {_WORDS[kind]} cannot be used: {e}") from e
        return found

    def compile_in_thread(self, grammar: Grammar) -> Future[Matcher]:
        """``compile`` beside the caller's work, one after the other; whatever goes wrong is a ``GrammarError``. It may
        give out a matcher more than once: fork it."""
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="grammar")
        return self._thread.submit(self._compile_or_say_why, grammar)

    def _compile_or_say_why(self, grammar: Grammar) -> Matcher:
        try:
            if grammar not in self._compiled:
                self._compiled[grammar] = self.compile(grammar)
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return self._compiled[grammar]
        except GrammarError:
            raise
        except Exception as e:  # a library that does not load, or a fault of ours: the others' requests go on
            log.exception("a grammar could not be compiled")
            raise GrammarError(f"the grammar could not be compiled: {e!r}") from e

    def load(self) -> LLTokenizer:
        """Makes the tokenizer's tables, unless they are there: some tenths of a second for a large vocabulary, in which
        the process's other threads stand still. Once, and only where a grammar comes.

        Raises:
            GrammarError: the library cannot read this tokenizer.
        """
        from llguidance import LLTokenizer

        from engine.text import TextCodec

        with self._lock:
            if self._tokenizer is None:
                codec = TextCodec(self.artifact)
                size = max(self.vocab_size, codec.tokenizer.get_vocab_size(with_added_tokens=True))
                try:
                    self._tokenizer = LLTokenizer(
                        codec.tokenizer.to_str(), n_vocab=size, eos_token=list(codec.eos_ids) or None
                    )
                except Exception as e:  # the library raises whatever its parts raise
                    raise GrammarError(f"this model's tokenizer cannot be used with grammars: {e}") from e
            return self._tokenizer
