"""One answer as a sequence of writes: what to wait, what to send, how many tokens are in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from loadtests.simulator.scenario import Break, Finish, Omit, Scenario, Truncate

_WORDS = (" the", " boat", " lay", " in", " an", " old", " harbor", " and", " nobody", " knew", " why", ".")
_UNICODE = (" größer", "漢字", " 🙂", " né", "👩‍👩‍👧", " Ω", "ß")
# Of each text what stands between the quotes in JSON: an encoder for every token is most of what a token costs.
_QUOTED = {text: json.dumps(text, ensure_ascii=False)[1:-1] for text in ("", *_WORDS, *_UNICODE)}
_NEWLINE = {"lf": "\n", "crlf": "\r\n", "cr": "\r"}


class Write(NamedTuple):
    """``tokens`` of the delays between tokens lie before it: 0 for what goes out together with the last write."""

    data: bytes
    tokens: int
    silent: bool = False  # it holds no token and is not stamped in the truth log


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request will get, settled when it arrives."""

    id: str
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    cached_tokens: int | None
    running_usage: bool
    final_usage: bool
    omitted: frozenset[str]
    broken: Break | None
    text_seed: int


def prompt_tokens_of(body: dict[str, Any]) -> int:
    """Words of all messages: the simulator's idea of a tokenizer."""
    return max(sum(len(str(m.get("content") or "").split()) for m in body.get("messages") or ()), 1)


def prompt_digest(body: dict[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(body.get("messages"), sort_keys=True).encode()).digest()


def answer_to(
    scenario: Scenario, body: dict[str, Any], number: int, active: list[Any], cached_tokens: int | None
) -> Answer:
    """``active``: the scenario's faults that act on this request."""
    seed = int.from_bytes(prompt_digest(body)[:4], "big")
    tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
    reason = "length"
    if scenario.natural_tokens and not body.get("ignore_eos"):
        natural = scenario.natural_tokens + seed % scenario.natural_tokens
        if natural < tokens:
            tokens, reason = natural, "stop"
    for f in active:
        if isinstance(f, Truncate) and f.to_tokens < tokens:
            tokens, reason = f.to_tokens, f.finish_reason
        elif isinstance(f, Finish):
            reason = f.reason
    options = body.get("stream_options") or {}
    continuous = scenario.form.usage == "continuous" or (
        scenario.form.usage == "as_asked" and bool(options.get("continuous_usage_stats"))
    )
    omitted = frozenset(f.what for f in active if isinstance(f, Omit))
    return Answer(
        id=f"chatcmpl-{number}",
        prompt_tokens=prompt_tokens_of(body),
        output_tokens=tokens,
        finish_reason=reason,
        cached_tokens=cached_tokens,
        running_usage=continuous and "usage" not in omitted,
        final_usage="usage" not in omitted and (continuous or bool(options.get("include_usage"))),
        omitted=omitted,
        broken=next((f for f in active if isinstance(f, Break)), None),
        text_seed=seed,
    )


class Script:
    """Renders an :class:`Answer`. ``sum`` of the tokens of its writes is the answer's ``output_tokens``."""

    def __init__(self, scenario: Scenario, answer: Answer) -> None:
        self._form, self._answer = scenario.form, answer
        self._newline = _NEWLINE[scenario.form.newline]
        self._head = (
            f'"id":"{answer.id}","object":"chat.completion.chunk","created":0,"model":{json.dumps(scenario.model)}'
        )
        cached = answer.cached_tokens
        self._details = "" if cached is None else f',"prompt_tokens_details":{{"cached_tokens":{cached}}}'
        self._events = 0

    def text(self, token: int) -> str:
        """The text of one token; "" for one that shows none."""
        if self._form.silent_every and token % self._form.silent_every == self._form.silent_every - 1:
            return ""
        bank = _UNICODE if self._form.unicode else _WORDS
        return bank[(self._answer.text_seed + token * 7) % len(bank)]

    def role(self) -> bytes:
        """The chunk without a token that some servers send with the head; empty for the others."""
        return self._event(self._chunk('"role":"assistant","content":""', 0)) if self._form.role == "own_chunk" else b""

    def writes(self) -> Iterator[Write]:
        answer, form = self._answer, self._form
        stop_at = answer.broken.after_tokens if answer.broken else None
        last = answer.output_tokens - (1 if form.eos else 0)
        done = 0
        while done < last:
            if stop_at is not None and done >= stop_at:
                break
            n = min(form.tokens_per_chunk, last - done)
            text = "".join([_QUOTED[self.text(i)] for i in range(done, done + n)])
            role = '"role":"assistant",' if done == 0 and form.role == "with_first" else ""
            done += n
            yield Write(self._event(self._chunk(f'{role}"content":"{text}"', done)), n)
        if answer.broken:
            if answer.broken.how == "error_event":
                yield Write(self._event('{"error":{"message":"broken by the scenario","code":500}}'), 0, True)
            return
        if "finish" not in answer.omitted:
            finish = self._event(self._chunk("", answer.output_tokens, answer.finish_reason))
            yield Write(finish, 1 if form.eos else 0, not form.eos)
        if answer.final_usage:
            chunk = f'{{{self._head},"choices":[],"usage":{self._usage(answer.output_tokens)}}}'
            yield Write(self._event(chunk), 0, True)
        if "done" not in answer.omitted:
            yield Write(self._event("[DONE]"), 0, True)

    def _usage(self, done: int) -> str:
        n = self._answer.prompt_tokens
        return f'{{"prompt_tokens":{n},"completion_tokens":{done},"total_tokens":{n + done}{self._details}}}'

    def _chunk(self, delta: str, done: int, finish: str | None = None) -> str:
        reason = "null" if finish is None else json.dumps(finish)
        usage = f',"usage":{self._usage(done)}' if self._answer.running_usage else ""
        return f'{{{self._head},"choices":[{{"index":0,"delta":{{{delta}}},"finish_reason":{reason}}}]{usage}}}'

    def _event(self, data: str) -> bytes:
        end, form = self._newline, self._form
        lines = f"data: {data}{end}"
        if form.split_data and (comma := data.find(",")) > 0:  # between two members of the object: JSON allows it there
            lines = f"data: {data[: comma + 1]}{end}data:{data[comma + 1 :]}{end}"
        self._events += 1
        comment = f": keep-alive{end}{end}" if form.comment_every and self._events % form.comment_every == 0 else ""
        return f"{comment}{lines}{end}".encode()
