"""Compiles a grammar for one tokenizer, and follows it token by token."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.grammar.sources import KINDS, WORDS, Grammar, GrammarError, prepare
from engine.request import DrawError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

log = logging.getLogger(__name__)

_KEPT = 32  # compiled grammars: most requests repeat one
_LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 10_000,  # about 2 kB each
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}


class MatchError(DrawError):
    """No token can follow, or finding out takes more work than one step may have."""


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
        try:
            translated = KINDS[kind](source)
        except ValueError as e:  # the library's own, of a number beyond its range
            raise GrammarError(f"the {WORDS[kind]} cannot be used: {_in_one_line(str(e))}") from e
        matcher = LLMatcher(tokenizer, translated, log_level=0, limits=LLParserLimits(**_LIMITS))
        problem = matcher.get_error() or " ".join(matcher.get_grammar_warnings())
        if problem:
            raise GrammarError(f"the {WORDS[kind]} cannot be used: {_in_one_line(problem)}")
        found = Matcher(matcher, self.vocab_size)
        try:
            found.allowed()
        except MatchError as e:
            raise GrammarError(f"the {WORDS[kind]} cannot be used: {e}") from e
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
