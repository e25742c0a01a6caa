"""Steps that are launched before the tokens of the one before are known: what the device draws in step n is the input
of step n + 1, and needs no way over the host.

    host     plan n+1 | launch n+2 | read n+1, end, answer | plan n+2 | launch n+3 | read n+2 ...
    device   ---- step n+1 ------->|---- step n+2 ---------------------------->|---- step n+3 ...

Whether the guess was right is seen afterwards. A plan is made as ever, from tokens that are known; the runner takes
from the step that it has launched already the rows that are just what is asked for - the same request, position, token,
blocks and draw - and computes the others. A row's bits depend on that row alone, so that nobody can tell. A row that
nobody asks for (its request has ended, or lost its blocks) has cost its part of a step, no more: it has written to a
position that no table covers, or that whoever is given the block writes before reading it; no block is known to others
before a plan that was asked for has filled it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.batch import BatchEntry
from engine.kernels.draws import can_draw
from engine.logits import DrawnRow, OnHost, Rows
from engine.plan import Plan
from engine.request import Request
from engine.sampling import is_plain
from engine.scheduler import Scheduler

UNKNOWN = -1  # in the place of a token


@dataclass(frozen=True)
class Launched:
    """A step of which every row is drawn from on the device. ``rows``: of each request; ``looked_at``: whether the host
    may want logits, for log-probabilities or for a draw that is left to it."""

    logits: OnHost
    best: Sequence[tuple[int, float]]
    drawn: Sequence[int]
    rows: dict[str, int]
    looked_at: bool

    @classmethod
    def of(
        cls, batch: list[BatchEntry], logits: OnHost, best: Sequence[tuple[int, float]], drawn: Sequence[int]
    ) -> Launched:
        """``batch``: one entry for each row of ``logits``."""
        params = [entry.params for entry in batch]
        looked_at = any(p is None or p.temperature > 0 or p.logprobs is not None for p in params)
        return cls(logits, best, drawn, {entry.request_id: i for i, entry in enumerate(batch)}, looked_at)

    def row(self, entry: BatchEntry) -> DrawnRow:
        return DrawnRow(self.logits, self.rows[entry.request_id], self.best, self.drawn, entry.seed)

    def token(self, request_id: str) -> int:
        """What the device takes for the request's next token. Waits for it."""
        row = self.rows[request_id]
        drawn = self.drawn[row]
        return self.best[row][0] if drawn < 0 else drawn


@dataclass(frozen=True)
class Ahead:
    """A step that nobody has asked for yet, on the tokens of the one before. Its tables are copies: a pool lets those
    of requests grow."""

    entries: dict[str, BatchEntry]
    before: Launched
    step: Launched

    def has(self, asked: BatchEntry) -> bool:
        """Whether ``asked`` is one of its rows."""
        mine = self.entries.get(asked.request_id)
        return (
            mine is not None
            and asked.start == mine.start
            and asked.logits == "last"
            and asked.token_ids == [self.before.token(asked.request_id)]
            and asked.block_table == mine.block_table
            and asked.params is mine.params
            and asked.seed == mine.seed
        )


Launch = Callable[[list[BatchEntry]], tuple[list[Rows | None], Launched | None]]


class Lookahead:
    """The runner's side. ``launch`` begins a step; where all its rows are drawn from on the device it also says so, and
    takes a token -1 - r for what was drawn from row r of the step before."""

    def __init__(self, launch: Launch, most: int) -> None:
        """``most``: requests of a step that another can follow."""
        self._launch, self._most = launch, most
        self._last: Launched | None = None  # the last step, where another can follow it
        self._ahead: Ahead | None = None

    def execute(self, batch: list[BatchEntry]) -> list[Rows | None]:
        """Takes what is there already, and launches the rest."""
        ahead, self._ahead, self._last = self._ahead, None, None
        if ahead is None or not any(known := [ahead.has(entry) for entry in batch]):
            rows, self._last = self._launch(batch)
            return rows
        taken: list[Rows | None] = [ahead.step.row(e) if k else None for e, k in zip(batch, known, strict=True)]
        if all(known):
            self._last = ahead.step
            return taken
        if ahead.step.looked_at:
            ahead.step.logits.keep()
        rest = [i for i, k in enumerate(known) if not k]
        for i, row in zip(rest, self._launch([batch[i] for i in rest])[0], strict=True):
            taken[i] = row
        return taken

    def ahead(self, batch: list[BatchEntry]) -> None:
        """Launches a step of requests of the last one, each with the token that the device draws for it there and that
        is ``UNKNOWN`` in its entry. The next ``execute`` takes from it what it asks for; what it does not is lost. Does
        nothing where none can follow the last step.
        """
        before = self._last
        if before is None or not batch or len(before.rows) > self._most:
            return
        if before.looked_at:
            before.logits.keep()  # this step writes its own there
        followed = [replace(entry, token_ids=[-1 - before.rows[entry.request_id]]) for entry in batch]
        _, step = self._launch(followed)
        if step is not None:
            tables = {e.request_id: replace(e, block_table=list(e.block_table)) for e in batch}
            self._ahead = Ahead(tables, before, step)


def following(scheduler: Scheduler, plan: Plan) -> list[BatchEntry]:
    """The entries of the step after ``plan`` but for their tokens, if all it will be is decodes of requests that the
    device draws for, as far as can be known now; with a block for each. None where something else may be in it: a step
    in two parts reads the weights twice.
    """
    pool, size = scheduler.pool, scheduler.pool.block_size
    found, ending, missing = list[BatchEntry](), False, 0
    if len(plan.entries) != len(scheduler.running):
        return []
    for entry in plan.entries:
        request = entry.request
        if not entry.reaches_end or not _followable(request):
            return []
        if request.num_output_tokens + 1 >= request.params.max_tokens:
            ending = True
            continue
        if entry.end // size >= len(request.table.blocks):
            missing += 1
        elif not pool.is_exclusive(request.table, entry.end):
            return []
        found.append(
            BatchEntry(request.id, [UNKNOWN], entry.end, request.table.blocks, "last", request.params, request.seed)
        )
    if scheduler.waiting and (ending or len(scheduler.running) < scheduler.config.max_num_seqs):
        return []
    if missing + len(scheduler.running) > pool.num_available:  # others may need what is left
        return []
    for entry in plan.entries:
        if entry.request.num_output_tokens + 1 < entry.request.params.max_tokens:
            pool.grow(entry.request.table, entry.end + 1)
    return found


def _followable(request: Request) -> bool:
    """Whether a device knows the request's next token as soon as its row is computed."""
    params = request.params
    return (
        params.max_tokens > 0
        and not request.forks
        and not request.wants_prompt_logprobs
        and request.matcher is None
        and (is_plain(request) or can_draw(params))
    )
