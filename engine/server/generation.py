"""One HTTP request's generation: prompts out to the core, pieces of text back, whatever ends it."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

from engine.branches import Group, grouped
from engine.grammar.sources import GrammarError
from engine.protocol import AddRequest, Output, Refusal
from engine.request import FinishReason, SamplingParams, TokenLogprob
from engine.server.client import Ticket
from engine.server.errors import ApiError, too_long
from engine.server.records import ChoiceRecord, RequestRecord, current_record
from engine.server.state import SHUTTING_DOWN, ServerState
from engine.text import TextRules, TextStream

_STATUS: dict[Refusal | None, int] = {"no_space": 507}  # of a refusal; others: 400


@dataclass(frozen=True)
class Prompt:
    """Token ids, the text they stand for, and for each token the number of characters before it. Log-probabilities are
    asked for from token number ``first`` on."""

    ids: list[int]
    text: str
    offsets: list[int]
    first: int = 0

    @property
    def scored_from(self) -> int:
        """The first token with a log-probability: nothing predicts token 0."""
        return max(1, self.first)


@dataclass(frozen=True)
class Piece:
    """One output token of one choice: ``token`` is None where a choice ends without one."""

    choice: int
    token: int | None
    text: str
    text_offset: int  # characters of the output before this token
    logprob: TokenLogprob | None = None
    prompt_logprobs: list[TokenLogprob] | None = None  # in the first piece, if asked for
    finish_reason: FinishReason | None = None
    reason: str | None = None  # words to an end that was not the model's
    score: dict[str, Any] | None = None  # in the last piece, if the prompt was stored or compared

    def check_whole(self) -> None:
        """For answers that are given as a whole: cut off by a shutdown, they would look like a success, which nobody
        asks for again. Only a stream that has begun says so in its last event.

        Raises:
            ApiError: 503.
        """
        if self.finish_reason == "abort":
            raise ApiError(503, f"{self.reason or 'aborted'}; the answer is not complete", reason="shutting_down")


@dataclass
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def body(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass
class _Choice:
    index: int
    prompt: int
    stream: TextStream
    record: ChoiceRecord
    done: bool = False


@dataclass
class Generation:
    """All choices of one HTTP request: ``n`` samples of each prompt; choice ``i`` belongs to prompt ``i // n``."""

    state: ServerState
    prompts: list[Prompt]
    params: SamplingParams
    n: int
    text: TextRules
    received_s: float
    priority: int = 0
    grammar_param: str | None = None  # the parameter that brought the grammar
    asked: list[dict[str, Any]] = field(default_factory=list)  # for the prompt log, where it takes this request
    usage: Usage = field(default_factory=Usage)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """News in the order they come. Closing the iterator, for instance because the client has gone, ends the
        requests in the core and frees their blocks.

        Raises:
            ApiError: before the first piece when the request is refused; later only if the core fails.
        """
        records = {
            f"{self.id}-{i}": ChoiceRecord(i, len(self.prompts[i // self.n].ids))
            for i in range(len(self.prompts) * self.n)
        }
        choices = {
            id: _Choice(r.index, r.index // self.n, self.state.codec.stream(self.text), r) for id, r in records.items()
        }
        ids = list(choices)
        self.usage.prompt_tokens = sum(len(p.ids) for p in self.prompts)
        requests = self._requests(ids)
        if self.params.grammar is not None:
            try:
                await self.state.grammars.check(self.params.grammar, int(self.state.client.about["vocab_size"]))
            except GrammarError as e:
                raise ApiError(400, str(e), param=self.grammar_param) from e
        record = current_record()
        record.begin(self.id, records, self.n, requests[0].priority)
        record.asked = self.asked
        self._check_length()
        ticket = self.state.client.submit(requests, lambda output: self._last_word(record, output))
        record.owed = set(ids)
        cached: dict[int, int] = {}
        refused = False
        try:
            while not all(c.done for c in choices.values()):
                output = await ticket.news.get()
                if output is None:
                    for choice in choices.values():
                        self._end(choice, "error")
                    raise ApiError(503, self.state.client.failure or "the engine core is gone", reason="unhealthy")
                if output.refusal and not output.finish_reason:
                    refused = True
                    raise self._refused(output)
                choice = choices[output.id]
                choice.record.cached_tokens = output.cached_tokens
                if choice.done:
                    continue
                if choice.index % self.n == 0:  # the first sample computed the prompt, the others share it
                    cached[choice.prompt] = output.cached_tokens
                    self.usage.cached_tokens = sum(cached.values())
                yield self._piece(ticket, output, choice)
        finally:
            self.state.client.close(ticket)
            for choice in choices.values():
                if not refused:
                    self._end(choice, "abort")

    def _requests(self, ids: list[str]) -> list[AddRequest]:
        """For the core, with the prompts in their order and their choices' ``ids``."""
        prompts = self.prompts
        paged = self.state.config.kv_reservation == "paged"  # others share no blocks
        if paged and self.n == 1 and self.params.only_scores and not (self.params.store or self.params.reference):
            groups = list(grouped([p.ids for p in prompts], [p.scored_from for p in prompts]))
        else:
            groups = [Group(range(k, k + 1), len(p.ids)) for k, p in enumerate(prompts)]
        requests = []
        for group in groups:
            first, common = prompts[group.members.start], group.common
            params = replace(self.params, scored_from=first.scored_from) if first.first else self.params
            mine = ids[group.members.start * self.n : group.members.stop * self.n]
            branches = [prompts[k].ids[common:] for k in group.members] if len(group.members) > 1 else None
            requests.append(AddRequest(mine, first.ids[:common], params.to_wire(), self.priority, branches))
        return requests

    def _check_length(self) -> None:
        """The core checks it again; here it saves the way there, and comes before the place in the queue.

        Raises:
            ApiError: 400 for what this model can never serve.
        """
        longest, limit = max(len(p.ids) for p in self.prompts), self.state.client.about["max_model_len"]
        if longest + self.params.max_tokens > limit:
            raise too_long(longest, self.params.max_tokens, limit)

    def _last_word(self, record: RequestRecord, output: Output) -> None:
        self.state.metrics.phases(output.timings or {})
        record.last_word(output.id, output.timings)

    def _end(self, choice: _Choice, reason: FinishReason) -> None:
        """The one end of a choice, as far as its client is concerned."""
        if choice.record.finish_reason:
            return
        choice.done = True
        choice.record.finish_reason, choice.record.ended_s = reason, time.monotonic()
        latency_s = choice.record.ended_s - self.received_s
        if reason != "abort":
            self.state.client.note_latency(latency_s)
        self.state.metrics.ended(reason, latency_s, choice.record.prompt_tokens, choice.record.output_tokens)

    def _refused(self, output: Output) -> ApiError:
        message = output.error or "refused"
        if output.refusal == "queue_full":
            return self.state.client.queue_full(message)
        return ApiError(_STATUS.get(output.refusal, 400), message, reason=output.refusal or "invalid")

    def _piece(self, ticket: Ticket, output: Output, choice: _Choice) -> Piece:
        if output.finish_reason == "error":
            self._end(choice, "error")
            if output.refusal:  # its own fault, though it came out late: a grammar that cannot be followed
                raise ApiError(400, output.error or "the request failed", param=self.grammar_param)
            raise ApiError(500, output.error or "the request failed", reason="error")
        before, text = choice.stream.num_decoded_chars, ""
        finish = output.finish_reason
        if output.token is not None:
            self.usage.completion_tokens += 1
            self._observe(choice)
            ends = finish == "stop" and output.token in self.params.stop_token_ids
            if not ends or self.text.include_stop:
                text = choice.stream.push(output.token)
        if finish and not choice.stream.stopped:
            text += choice.stream.finish()
        if choice.stream.stopped:
            finish = "stop"
        if finish:
            self.state.client.close(ticket, [output.id])
            self._end(choice, finish)
        return Piece(
            choice.index,
            output.token,
            text,
            before,
            output.logprob,
            output.prompt_logprobs,
            finish,
            SHUTTING_DOWN if finish == "abort" else None,
            output.score,
        )

    def _observe(self, choice: _Choice) -> None:
        now = time.monotonic()
        gap_s = choice.record.token(now)
        if gap_s is None:
            self.state.metrics.time_to_first_token.observe(now - self.received_s)
        else:
            self.state.metrics.inter_token_latency.observe(gap_s)
