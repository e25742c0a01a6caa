"""A model's step on a device: decode steps as recorded graphs, others one operation after the other; then draws.

A step may begin before the tokens of the one before are known here: a token -1 - r in its input stands for what was
drawn from row r then, which lies on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from engine.kernels.cuda.graphs import CaptureError, Graphs
from engine.kernels.cuda.layout import Layout, fill, is_decode, pad
from engine.kernels.cuda.transfers import Fetched, Pending, Transfers
from engine.kernels.draws import NOT_DRAWN
from engine.kernels.interface import Kernels, KvCache, Model, StepInput, StepOutput, StepSizes
from engine.ledger import SLICE_ROWS

log = logging.getLogger(__name__)
NARROWEST_TOKENS, WIDENING = 1024, 4  # of the contexts that a class of graphs reaches
FEWEST_ROWS = 16  # fewer take the same tiles
UNREAD = 2  # steps whose results may be on their way at once


class Results(NamedTuple):
    """What a step leaves on the device."""

    hidden: Tensor  # [W, hidden]
    logits: Tensor  # float32 [W, vocab]
    best: Tensor  # int32 [W, 3]: the token of the largest logit, the bits of that, the token drawn or NOT_DRAWN

    def first(self, rows: int) -> Results:
        return Results(self.hidden[:rows], self.logits[:rows], self.best[:rows])


@dataclass(frozen=True)
class DecodeGraph:
    """One class: up to ``layout.requests`` requests with tables of up to ``layout.blocks`` blocks."""

    layout: Layout
    inputs: Tensor  # uint8, on the device
    run: Callable[[], None]  # leaves the results where all graphs do


def batch_classes(most: int) -> list[int]:
    """1, 2, 4, then multiples of 8 up to 64 and of 32 beyond, up to the first that holds ``most``: a padding row costs
    what it reads, which is little, and each class costs a recording."""
    found = [1, 2, 4, *range(8, 65, 8)]
    while found[-1] < most:
        found.append(found[-1] + 32)
    return [n for i, n in enumerate(found) if i == 0 or found[i - 1] < most]


def width_classes(most_tokens: int, block_size: int) -> list[int]:
    """Blocks of a table: for contexts of NARROWEST_TOKENS, WIDENING times as many, ... up to ``most_tokens``. The
    kernels launch for as long a context as a table reaches."""
    tokens = [NARROWEST_TOKENS]
    while tokens[-1] < most_tokens:
        tokens.append(tokens[-1] * WIDENING)
    return sorted({-(-min(t, most_tokens) // block_size) for t in tokens})


def rehearsed_rows(most: int) -> list[int]:
    """Rows of the steps that are tried before any is served, the most last: some in each class of tiles that kernels
    may have for them, so that none is compiled while requests wait."""
    found = [FEWEST_ROWS]
    while found[-1] < most:
        found.append(found[-1] * WIDENING)
    return [*found[:-1], most]


class DeviceReplay:
    """Implements engine.kernels.interface.Replay for steps whose tensors lie on the host. Owns the graphs' buffers.

    ``caches`` have one block more than their pool: the last one is scratch, for rows of padding.
    """

    def __init__(
        self,
        kernels: Kernels,
        model: Model,
        caches: Sequence[KvCache],
        transfers: Transfers,
        graphs: Graphs | None,
        sizes: StepSizes,
    ) -> None:
        """``graphs`` None: every step runs eagerly."""
        self._kernels, self._model, self._caches = kernels, model, caches
        self._transfers, self._device = transfers, transfers.device
        self._block_size = caches[0].block_size
        self._scratch = int(caches[0].k.shape[0]) - 1
        self._hosts = [transfers.buffer(0) for _ in range(UNREAD)]
        self.draws = True
        self.graphs: dict[tuple[int, int], DecodeGraph] = {}
        self._requests = batch_classes(sizes.requests)
        self._blocks = width_classes(sizes.context, self._block_size)
        self.graphs_reason = "switched off" if graphs is None else "available"
        rows = self._requests[-1]
        # Of the last step with logits, for the one that follows it.
        self._last = torch.zeros(rows, 3, dtype=torch.int32, device=self._device)
        for count in rehearsed_rows(sizes.rows):
            found = self.rehearse(count, sizes)
        if graphs is not None:
            hidden, logits = (t.new_empty(rows, t.shape[1]) for t in (found.hidden, found.logits))
            self._kept = Results(hidden, logits, self._last)  # of all graphs; one runs at a time
            del found  # the graphs may have its memory
            self._capture_all(graphs)

    def __call__(self, step: StepInput, with_logits: bool) -> StepOutput:
        with_logits = with_logits and len(step.wanted) > 0
        if with_logits and is_decode(step) and (graph := self._graph_of(step)) is not None:
            return self._replayed(graph, step)
        return self._eager(step, with_logits)

    def _eager(self, step: StepInput, with_logits: bool) -> StepOutput:
        layout = Layout.of(step)
        inputs = torch.empty(layout.nbytes, dtype=torch.uint8, device=self._device)
        self._transfers.send(layout.nbytes, lambda host: fill(layout.views(host), step), inputs)
        there = layout.views(inputs)
        if not with_logits:
            return StepOutput(self._model.run(self._kernels, there, self._caches), None)
        if bool((step.tokens < 0).any()):
            there = self._followed(there)
        results = self._compute(there)
        if step.draws is not None:
            self._draw(results, there)
        self._last[: len(results.best)] = results.best
        return self._told(results)

    def profile(self, on: bool) -> list[tuple[str, int | None, float]]:
        """Nothing: the operations of a device have no clock of their own here."""
        return []

    def rehearse(self, count: int, sizes: StepSizes) -> Results:
        """One eager step of so many rows in the scratch block: compiles the kernels, and takes the memory that such a
        step takes, with logits for as many rows as may be drawn from or scored at once, and tables for any context."""
        longest = min(sizes.context, count)
        requests, wanted = -(-count // longest), min(count, max(sizes.requests, SLICE_ROWS))
        layout = Layout(count, requests, wanted, self._blocks[-1])
        step = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
        rows = torch.arange(count)
        starts = torch.arange(requests + 1).mul(longest).clamp(max=count)
        step.positions.copy_(rows % longest)
        step.slots.copy_(self._scratch * self._block_size + rows % self._block_size)
        step.wanted.copy_(rows[-wanted:])
        step.meta.query_starts.copy_(starts)
        step.meta.context_lens.copy_(starts.diff())
        step.meta.block_tables.fill_(self._scratch)
        inputs = torch.empty(layout.nbytes, dtype=torch.uint8, device=self._device)
        self._transfers.send(layout.nbytes, lambda host: fill(layout.views(host), step), inputs)
        there = layout.views(inputs)
        results = self._compute(self._followed(there))
        self._draw(results, there)
        return results

    def _compute(self, there: StepInput) -> Results:
        hidden = self._model.run(self._kernels, there, self._caches)
        logits = self._kernels.logits(hidden, self._model.head)
        tokens, values = self._kernels.best(logits)
        first = tokens.to(torch.int32)
        best = torch.stack([first, values.view(torch.int32), torch.full_like(first, NOT_DRAWN)], dim=1)
        return Results(hidden, logits, best)

    def _followed(self, there: StepInput) -> StepInput:
        return replace(there, tokens=self._kernels.follow(there.tokens, self._last))

    def _draw(self, results: Results, there: StepInput) -> None:
        """Not in a graph: most steps draw nothing, and while a graph runs there is time to launch this."""
        assert there.draws is not None  # every layout has them
        largest = results.best[:, 1].contiguous().view(torch.float32)
        results.best[:, 2] = self._kernels.draw(results.logits, largest, there.draws[: len(largest)])

    def _told(self, results: Results) -> StepOutput:
        """Tokens and logits of the best set out for the host."""
        rows = len(results.best)
        self._hosts = [*self._hosts[1:], self._hosts[0]]
        if len(self._hosts[0]) < 12 * rows:
            self._hosts[0] = self._transfers.buffer(12 * rows)
        host = self._hosts[0][: 12 * rows].view(torch.int32).view(rows, 3)
        fetched = Fetched(host, self._transfers.fetch(results.best, host))
        best, drawn = Pending(fetched, lambda f: f.found()[0]), Pending(fetched, lambda f: f.found()[1])
        return StepOutput(results.hidden, results.logits, best, drawn)

    # Graphs

    def _capture_all(self, graphs: Graphs) -> None:
        """Largest first, see CudaGraphs. A model that cannot be recorded runs eagerly, with the same results."""
        try:
            for requests in reversed(self._requests):
                for blocks in reversed(self._blocks):
                    self.graphs[requests, blocks] = self._capture(graphs, Layout(requests, requests, requests, blocks))
        except CaptureError as e:
            self.graphs_reason = str(e)
            self.graphs.clear()
            log.warning("decode steps run without graphs: %s", e)

    def _capture(self, graphs: Graphs, layout: Layout) -> DecodeGraph:
        inputs = torch.empty(layout.nbytes, dtype=torch.uint8, device=self._device)
        self._transfers.send(layout.nbytes, lambda host: self._padded(layout.views(host), 0), inputs)
        there, kept = layout.views(inputs), self._kept.first(layout.requests)

        def work() -> None:
            for keep, new in zip(kept, self._compute(self._followed(there)), strict=True):
                keep.copy_(new)

        return DecodeGraph(layout, inputs, graphs.capture(work))

    def _graph_of(self, step: StepInput) -> DecodeGraph | None:
        requests, blocks = step.meta.block_tables.shape
        of = next((n for n in self._requests if n >= requests), 0), next((n for n in self._blocks if n >= blocks), 0)
        return self.graphs.get(of)

    def _replayed(self, graph: DecodeGraph, step: StepInput) -> StepOutput:
        requests = len(step.tokens)

        def write(host: Tensor) -> None:
            views = graph.layout.views(host)
            fill(views, step)
            self._padded(views, requests)

        self._transfers.send(graph.layout.nbytes, write, graph.inputs)
        graph.run()
        results = self._kept.first(requests)
        if step.draws is not None:
            self._draw(results, graph.layout.views(graph.inputs))
        return self._told(results)

    def _padded(self, step: StepInput, first: int) -> None:
        pad(step, first, self._scratch, self._block_size)
