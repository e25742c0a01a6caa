"""The engine: requests in, tokens out, one step at a time. Token ids only; text and HTTP are the server's."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol, cast

from engine.ahead import following
from engine.batch import BatchEntry
from engine.blocks import BlockPool, BlockPoolError
from engine.branches import prompts_of
from engine.config import EngineConfig
from engine.grammar.compiler import GrammarCompiler, Matcher, MatchError
from engine.logits import DrawnRow, Rows
from engine.plan import Plan, Scheduled
from engine.protocol import AddRequest, Output, Refusal, StepRow
from engine.request import DrawError, FinishReason, Request, RequestError, SamplingParams, TokenLogprob, TooLongError
from engine.sampling import checked, is_plain, sample, token_logprobs
from engine.scheduler import QueueFullError, Scheduler
from engine.scoring.collect import collect_prompt_logprobs
from engine.scoring.prompt_score import PromptScore, ScoringError, open_score
from engine.scoring.references import ReferenceStore, StorageError

log = logging.getLogger(__name__)
STEP_LOG_ROWS = 20_000  # kept for whoever takes them
_REFUSALS: dict[Refusal, type[Exception]] = {  # others: invalid
    "queue_full": QueueFullError,
    "too_long": TooLongError,
    "no_space": StorageError,
}
_COMPILE_WAIT_S = 0.005


class Runner(Protocol):
    """What the core needs of a model; see ``engine.runner``."""

    num_blocks: int
    vocab_size: int
    max_model_len: int

    def execute(self, batch: list[BatchEntry]) -> list[Rows | None]: ...
    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None: ...


class LookingAhead(Runner, Protocol):
    """One whose device draws; ``looks_ahead`` is true. Others need not have either."""

    looks_ahead: bool

    def ahead(self, batch: list[BatchEntry]) -> None: ...


class EngineCore:
    """Not thread-safe: one thread calls ``submit``, ``abort`` and ``step``."""

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        salt: bytes = b"",
        references: ReferenceStore | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.runner, self.config, self.references, self.grammars = runner, config, references, grammars
        self.pool = BlockPool(runner.num_blocks, config.block_size, salt, config.prefix_caching)
        self.scheduler = Scheduler(config, self.pool, runner.max_model_len)
        self.requests: dict[str, Request] = {}
        self.scores: dict[str, PromptScore] = {}  # of those requests whose prompt's rows are stored or compared
        self.step_log: deque[StepRow] = deque(maxlen=STEP_LOG_ROWS)
        self.counts: Counter[str] = Counter()
        self.integrity_errors = 0
        self._arrivals: deque[AddRequest] = deque()
        self._aborts: deque[str] = deque()
        self._compiling: list[tuple[Request, Future[Matcher]]] = []  # not yet in the scheduler's queue
        self._looking = cast(LookingAhead, runner) if getattr(runner, "looks_ahead", False) else None
        self.began_s = time.monotonic()  # from here the step log counts
        self._num_submitted = 0

    @property
    def has_work(self) -> bool:
        return bool(self._arrivals or self._aborts or self._compiling or self.scheduler.has_work)

    def submit(self, arrival: AddRequest) -> None:
        """Hands over a request; it is looked at in the next step, and refused there if it has to be."""
        self._arrivals.append(arrival)

    def abort(self, ids: Iterable[str]) -> None:
        """Ends requests by their exact ids in the next step. Unknown and finished ones are ignored; samples of the same
        prompt that have not begun go with the first of them."""
        self._aborts.extend(ids)

    def step(self) -> list[Output]:
        """Drain arrivals and aborts, schedule, run, sample, update. Returns the news, at most one token a request."""
        start_s = time.monotonic()
        outputs = [*self._drain_arrivals(), *self._drain_aborts(), *self._drain_compiled()]
        plan = self.scheduler.schedule()
        if plan.entries:
            if plan.copies:
                self.runner.copy_blocks(plan.copies)
            logits = self.runner.execute([self._entry(e) for e in plan.entries])
            if self._looking is not None and not (self._arrivals or self._aborts or self._compiling):
                self._looking.ahead(following(self.scheduler, plan))
            outputs += self._update(plan, logits)
        if plan.entries or outputs:
            self._log_step(start_s, plan, outputs)
        if not self.scheduler.has_work:
            self._check_idle()
        return outputs

    # Arrivals and ends

    def _drain_arrivals(self) -> Iterable[Output]:
        while self._arrivals:
            arrival = self._arrivals.popleft()
            try:
                self._start(arrival, SamplingParams.from_wire(arrival.params))
            except (QueueFullError, RequestError) as e:
                yield from _refusals(arrival.ids, e)

    def _start(self, arrival: AddRequest, params: SamplingParams) -> None:
        ids, prompt, branches = arrival.ids, arrival.prompt, arrival.branches or []
        named = (*prompt, *(t for rest in branches for t in rest), *params.logit_bias, *params.stop_token_ids)
        ids_outside = [t for t in named if not 0 <= t < self.runner.vocab_size]
        if ids_outside:
            raise RequestError(f"token id {ids_outside[0]} is outside the vocabulary of {self.runner.vocab_size}")
        if len(ids) > 1 and (params.store is not None or params.reference is not None):
            raise RequestError(f"store and reference are for one sample of a prompt, found {len(ids)}")
        taken = [i for i in ids if i in self.requests]
        if taken or len(set(ids)) != len(ids):
            raise RequestError(f"request id {(taken or ids)[0]} is in use")
        seed = params.seed if params.seed is not None else _derive(f"{self.config.seed}/{self._num_submitted}")
        self._num_submitted += 1
        prompts = prompts_of(arrival, params)
        members = [
            Request(i, prompts[k], params, seed if k == 0 else _derive(f"{seed}#{k}"), priority=arrival.priority)
            for k, i in enumerate(ids)
        ]
        if branches:
            members[0].branch_at = len(prompt)
        members[0].forks = members[1:]
        for fork in members[1:]:
            fork.parent = members[0]
        if params.grammar is None:
            self._queue(members[0])
        elif self.grammars is None:
            raise RequestError("this engine was started without a compiler of grammars")
        else:
            self._compiling.append((members[0], self.grammars.compile_in_thread(params.grammar)))
        self.requests.update((m.id, m) for m in members)

    def _queue(self, request: Request) -> None:
        self.scheduler.add(request)
        try:
            score = open_score(self.references, request.prompt, request.params.store, request.params.reference)
        except RequestError:
            self.scheduler.remove(request)
            raise
        if score is not None:
            self.scores[request.id] = score

    def _drain_compiled(self) -> Iterable[Output]:
        """Queues the requests whose grammars are compiled. With nothing else to do, waits a moment for one."""
        if self._compiling and not self.scheduler.has_work:
            wait([future for _, future in self._compiling], _COMPILE_WAIT_S, FIRST_COMPLETED)
        done = [pair for pair in self._compiling if pair[1].done()]
        self._compiling = [pair for pair in self._compiling if not pair[1].done()]
        for request, future in done:
            if request.id not in self.requests:
                continue  # aborted in the meantime
            members = [request, *request.forks]
            try:
                matcher = future.result()
                for member in members:
                    member.matcher = matcher.fork()
                self._queue(request)
            except (QueueFullError, RequestError) as e:
                for member in members:
                    del self.requests[member.id]
                yield from _refusals([m.id for m in members], e)

    def _drain_aborts(self) -> Iterable[Output]:
        while self._aborts:
            request = self.requests.get(self._aborts.popleft())
            if request is not None:
                for fork in list(request.forks):  # each end takes itself out of the list
                    yield self._finish(fork, "abort")
                yield self._finish(request, "abort")

    def _finish(self, request: Request, reason: FinishReason, **news: Any) -> Output:
        """The one end of a request: out of the books, blocks released, last output."""
        request.finish_reason = reason
        self.scheduler.remove(request)
        del self.requests[request.id]
        if (score := self.scores.pop(request.id, None)) is not None:
            score.close()
        self.counts[reason] += 1
        return Output(
            request.id,
            finish_reason=reason,
            cached_tokens=request.num_cached_tokens,
            timings=_timings(request, time.monotonic()),
            **news,
        )

    # After the model has run

    def _entry(self, entry: Scheduled) -> BatchEntry:
        request = entry.request
        draws = entry.reaches_end and request.params.max_tokens > 0
        scored = request.wants_prompt_logprobs and request.owed_row < entry.end
        return BatchEntry(
            request.id,
            request.tokens[entry.start : entry.end],
            entry.start,
            request.table.blocks,
            "all" if scored else "last" if draws else "none",
            request.params if request.matcher is None else None,
            request.seed,
            request.owed_row if scored else 0,
        )

    def _update(self, plan: Plan, logits: list[Rows | None]) -> list[Output]:
        self.scheduler.advance(plan)
        self.counts["step_tokens"] += plan.num_tokens
        outputs: list[Output] = []
        drawing: list[tuple[Request, Rows]] = []
        for entry, rows in zip(plan.entries, logits, strict=True):
            request = entry.request
            branches = list(request.forks) if entry.end == request.branch_at else []
            if rows is None and not entry.reaches_end:
                continue
            score = None
            try:
                if request.wants_prompt_logprobs and rows is not None:
                    collect_prompt_logprobs(request, rows, entry.end, self.scores.get(request.id))
                if entry.reaches_end and request.id in self.scores:
                    score = self.scores[request.id].finish()
            except ScoringError as e:
                outputs += [self._finish(m, "error", error=str(e)) for m in (*request.forks, request)]
                continue
            if rows is not None:
                outputs += [o for b in branches for o in self._branch_off(request, b, rows, entry.end)]
            if not entry.reaches_end:
                continue
            if request.num_output_tokens == 0 and request.first_token_s is None:
                self.counts["prompt_tokens"] += request.num_prompt_tokens
            final = None
            if rows is not None and request.params.max_tokens:
                final = rows if isinstance(rows, DrawnRow) else rows[-1:]  # once for all that look at it
            for member in (*request.forks, request):  # forks first: they need the blocks of a request that may end now
                if member is not request:
                    member.prompt_logprobs = request.prompt_logprobs
                if final is not None:
                    drawing.append((member, final))
                else:
                    outputs.append(self._finish(member, "length", prompt_logprobs=_owed(member), score=score))
        tokens = self._draw(drawing)
        now = time.monotonic()
        for (request, rows), token in zip(drawing, tokens, strict=True):
            outputs.append(self._accept(request, rows, token, now))
        return outputs

    @staticmethod
    def _draw(drawing: list[tuple[Request, Rows]]) -> list[int | DrawError]:
        """The next token of each request, from the last of its rows."""
        drawn: list[int | DrawError] = [0] * len(drawing)
        others = []
        for i, (request, rows) in enumerate(drawing):
            token: int | DrawError | None = None
            if isinstance(rows, DrawnRow):
                token = checked(*rows.best, request) if is_plain(request) else rows.drawn_for(request.seed)
            if token is None:
                others.append(i)
            else:
                drawn[i] = token
        if others:
            found = sample([drawing[i][1][-1:][0] for i in others], [drawing[i][0] for i in others])
            for i, token in zip(others, found, strict=True):
                drawn[i] = token
        return drawn

    def _branch_off(self, request: Request, branch: Request, rows: Rows, end: int) -> Iterable[Output]:
        """Lets a prompt that begins as ``request``'s does go on behind ``end``, where they part, unless the row there,
        the last of ``rows``, was all that was missing. Not an output if it goes on."""
        branch.prompt_logprobs = request.prompt_logprobs[: end - branch.params.scored_from]
        try:
            collect_prompt_logprobs(branch, rows, end, None)
        except ScoringError as e:
            yield self._finish(branch, "error", error=str(e))
            return
        branch.admitted_s = request.admitted_s
        if branch.num_due_tokens > end:
            self.scheduler.start_fork(branch)
            return
        self.counts["prompt_tokens"] += branch.num_prompt_tokens
        branch.num_cached_tokens = end
        yield self._finish(branch, "length", prompt_logprobs=branch.prompt_logprobs)

    def _accept(self, request: Request, rows: Rows, token: int | DrawError, now: float) -> Output:
        """Appends a drawn token and ends the request if it is done; a fork that is not done starts to run."""
        first = request.num_output_tokens == 0
        if isinstance(token, DrawError):
            return self._failed(request, token)
        params = request.params
        logprob = token_logprobs(rows[-1:], [token], params.logprobs)[0] if params.logprobs is not None else None
        request.tokens.append(token)
        self.counts["generation_tokens"] += 1
        if first:
            request.first_token_s = now
        prompt_logprobs = _owed(request) if first else None
        try:
            reason = self._reason(request, token)
        except MatchError as e:
            return self._failed(request, e)
        if reason is not None:
            return self._finish(request, reason, token=token, logprob=logprob, prompt_logprobs=prompt_logprobs)
        if request.parent is not None:
            self.scheduler.start_fork(request)
        return Output(
            request.id, token, logprob, cached_tokens=request.num_cached_tokens, prompt_logprobs=prompt_logprobs
        )

    def _failed(self, request: Request, error: DrawError) -> Output:
        """A grammar that cannot be followed is the request's own fault, damaged logits are the engine's."""
        refusal: Refusal | None = "invalid" if isinstance(error, MatchError) else None
        return self._finish(request, "error", error=str(error), refusal=refusal)

    def _reason(self, request: Request, token: int) -> FinishReason | None:
        params = request.params
        if request.matcher is not None and request.matcher.accept(token):
            return "stop"
        if token in params.stop_token_ids and not params.ignore_eos and request.num_output_tokens >= params.min_tokens:
            return "stop"
        full = request.num_output_tokens >= params.max_tokens
        return "length" if full else None

    # Books

    def _log_step(self, start_s: float, plan: Plan, outputs: list[Output]) -> None:
        num_decodes = sum(e.is_decode for e in plan.entries)
        self.counts["steps"] += 1
        self.step_log.append(
            StepRow(
                step=self.counts["steps"],
                start_s=start_s - self.began_s,
                duration_s=time.monotonic() - start_s,
                prefill_requests=len(plan.entries) - num_decodes,
                prefill_tokens=plan.num_prefill_tokens,
                decode_requests=num_decodes,
                running=len(self.scheduler.running),
                waiting=self.scheduler.num_waiting,
                blocks_used=self.pool.num_used,
                blocks_cached=self.pool.num_cached,
                preempted=len(plan.preempted),
                finished=sum(1 for o in outputs if o.finish_reason),
                kv_tokens_used=self.scheduler.num_kv_tokens,
                blocks_stranded=self.scheduler.num_blocks_stranded,
            )
        )

    def _check_idle(self) -> None:
        try:
            self.pool.check_idle()
        except BlockPoolError as e:
            self.integrity_errors += 1
            log.error("KV pool: %s", e)

    def stats(self) -> dict[str, int]:
        """Gauges and cumulative counts, for ``/metrics``."""
        scheduler, pool = self.scheduler, self.pool
        return {
            "running": len(scheduler.running),
            "waiting": scheduler.num_waiting + sum(request.width for request, _ in self._compiling),
            "blocks_total": pool.num_blocks,
            "blocks_used": pool.num_used,
            "blocks_cached": pool.num_cached,
            "blocks_stranded": scheduler.num_blocks_stranded,
            "kv_tokens_used": scheduler.num_kv_tokens,
            "prefix_queries_tokens": scheduler.num_prefix_queries_tokens,
            "prefix_hits_tokens": scheduler.num_prefix_hits_tokens,
            "preemptions": scheduler.num_preemptions,
            "recomputed_tokens": scheduler.num_recomputed_tokens,
            "allocation_failures_exhausted": pool.failures["exhausted"],
            "allocation_failures_fragmented": pool.failures["fragmented"],
            "integrity_errors": self.integrity_errors,
            **{k: self.counts[k] for k in ("steps", "step_tokens", "prompt_tokens", "generation_tokens")},
            **{f"finished_{k}": self.counts[k] for k in ("stop", "length", "abort", "error")},
        }

    def take_steps(self) -> list[StepRow]:
        """The rows that nobody has taken yet, the last ``STEP_LOG_ROWS`` of them; they are not kept any longer."""
        rows = list(self.step_log)
        self.step_log.clear()
        return rows


def _refusals(ids: Sequence[str], error: QueueFullError | RequestError) -> Iterable[Output]:
    kind: Refusal = next((k for k, v in _REFUSALS.items() if isinstance(error, v)), "invalid")
    return [Output(i, error=str(error), refusal=kind) for i in ids]


def _derive(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _owed(request: Request) -> list[TokenLogprob] | None:
    return request.prompt_logprobs if request.params.prompt_logprobs is not None else None


def _timings(request: Request, now: float) -> dict[str, float | None]:
    """Seconds in each phase, None for one that was not reached, and the number of preemptions."""
    admitted, first = request.admitted_s, request.first_token_s
    waiting_again = now - request.preempted_since_s if request.preempted_since_s is not None else 0.0
    return {
        "queued_s": (now if admitted is None else admitted) - request.arrived_s,
        "prefill_s": None if admitted is None else (now if first is None else first) - admitted,
        "decode_s": None if first is None else now - first,
        "preempted_s": request.preempted_s + waiting_again,
        "num_preemptions": request.num_preemptions,
    }
