"""The fake model on a device with a queue: what is launched is computed, all of it, when somebody waits for some."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, overload

import torch

from engine.ahead import Launched, Lookahead
from engine.batch import BatchEntry
from engine.draw import draw
from engine.kernels.draws import NOT_DRAWN, can_draw
from engine.logits import DrawnRow, OnHost, Rows
from tests.engine.fake_runner import FakeRunner

T = TypeVar("T")


class Later(Sequence[T]):
    """A list that is there when it is looked at."""

    def __init__(self, get: Callable[[], list[T]], size: int) -> None:
        self._get, self._size = get, size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        return self._get()[at]


class LaterLogits(OnHost):
    """The device has room for the logits of one step: the next one writes over them, unless they are kept."""

    def __init__(self, runner: QueuedRunner, step: Step) -> None:
        self._runner, self._step = runner, step

    def keep(self) -> None:
        self._step.kept = True

    def __getitem__(self, at: slice) -> torch.Tensor:
        self._runner.wait(self._step)
        assert self._step.kept or self._runner.done[-1] is self._step, "logits that the next step has written over"
        return torch.cat(self._step.logits)[at]


class Step:
    def __init__(self, batch: list[BatchEntry], before: Step | None) -> None:
        self.batch, self.before, self.kept = batch, before, False
        self.logits: list[torch.Tensor] = []
        self.best: list[tuple[int, float]] = []
        self.drawn: list[int] = []


class QueuedRunner(FakeRunner):
    """Looks ahead. Every ``unsure``-th draw with a temperature is left to the host."""

    looks_ahead = True

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int = 10_000, unsure: int = 5) -> None:
        super().__init__(num_blocks, block_size, max_model_len=max_model_len)
        self.queue: deque[Step] = deque()
        self.done: list[Step] = []
        self.unsure, self.num_draws, self.in_flight = unsure, 0, 0
        self.launches = self.rows_launched = 0
        self._lookahead = Lookahead(self._launch, 64)
        self._last: Step | None = None

    def execute(self, batch: list[BatchEntry]) -> list[Rows | None]:  # type: ignore[override]
        return self._lookahead.execute(batch)

    def ahead(self, batch: list[BatchEntry]) -> None:
        self._lookahead.ahead(batch)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        if pairs and self._last is not None:
            self.wait(self._last)  # the device copies in its turn
            super().copy_blocks(pairs)

    def wait(self, step: Step) -> None:
        """By then the device is through with whatever was launched."""
        if step in self.queue:
            while self.queue:
                self._compute(self.queue.popleft())

    def _launch(self, batch: list[BatchEntry]) -> tuple[list[Rows | None], Launched | None]:
        step = Step([replace(e, block_table=list(e.block_table)) for e in batch], self._last)
        self.queue.append(step)
        self._last = step
        self.launches += 1
        self.rows_launched += len(batch)
        self.in_flight = max(self.in_flight, len(self.queue))
        if any(e.logits == "all" for e in batch):
            self.wait(step)
            return [part if part.numel() else None for part in step.logits], None
        wanted = [i for i, e in enumerate(batch) if e.logits == "last"]

        def later(name: str) -> Callable[[], list[T]]:
            def get() -> list[T]:
                self.wait(step)
                return getattr(step, name)  # type: ignore[no-any-return]

            return get

        logits = LaterLogits(self, step)
        best: Later[tuple[int, float]] = Later(later("best"), len(wanted))
        drawn: Later[int] = Later(later("drawn"), len(wanted))
        rows: list[Rows | None] = [None] * len(batch)
        for row, i in enumerate(wanted):
            rows[i] = DrawnRow(logits, row, best, drawn, batch[i].seed)
        if len(wanted) < len(batch):
            return rows, None
        return rows, Launched.of(batch, logits, best, drawn)

    def _compute(self, step: Step) -> None:
        self.done.append(step)
        batch = []
        for e in step.batch:
            ids = list(e.token_ids)
            if ids[0] < 0:
                assert step.before is not None
                drawn = step.before.drawn[-1 - ids[0]]
                ids = [step.before.best[-1 - ids[0]][0] if drawn < 0 else drawn]
            batch.append(replace(e, token_ids=ids))
        for e, rows in zip(step.batch, FakeRunner.execute(self, batch), strict=True):
            if rows is None:
                if any(other.logits == "all" for other in step.batch):
                    step.logits.append(torch.empty(0, self.vocab_size))
                continue
            step.logits.append(rows)
            step.best.append((int(rows[-1].argmax()), float(rows[-1].max())))
            token = NOT_DRAWN
            if e.params is not None and can_draw(e.params):
                self.num_draws += 1
                if self.num_draws % self.unsure:
                    token = draw(rows[-1].numpy(), e.params, e.seed, e.start + len(e.token_ids))
            step.drawn.append(token)
