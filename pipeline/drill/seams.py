"""Faults of a running engine, for ``--seam pipeline.drill.seams:CLASS`` (engine.seam says what is called when).

They know the engine by the names that hang on its core, and import nothing of it.
"""

from __future__ import annotations

import re
import time
from typing import Any

PERIOD_S, STALL_S = 2.0, 0.4
BUSY_REQUESTS = 2  # beside one that arrives: from then on its answer is cut short


class _SlowerSteps:
    """Every step takes longer, in proportion to the share of its tokens that are prefill, or that are decodes."""

    factor, of_prefill = 0.10, True

    def core(self, core: Any) -> None:
        execute = core.runner.execute

        def slower(batch: list[Any]) -> Any:
            began = time.monotonic()
            rows = execute(batch)
            tokens = [len(e.token_ids) for e in batch]
            prefill = sum(n for n in tokens if n > 1) / max(1, sum(tokens))
            share = prefill if self.of_prefill else 1 - prefill
            time.sleep(self.factor * share * (time.monotonic() - began))
            return rows

        core.runner.execute = slower


class PrefillThrice(_SlowerSteps):
    factor = 2.0


class DecodeThrice(_SlowerSteps):
    factor, of_prefill = 2.0, False


def __getattr__(name: str) -> type[_SlowerSteps]:
    """``PrefillSlower10``, ``DecodeSlower3``: by so many percent."""
    found = re.fullmatch(r"(Prefill|Decode)Slower([1-9]\d*)", name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return type(name, (_SlowerSteps,), {"factor": int(found[2]) / 100, "of_prefill": found[1] == "Prefill"})


class Stalls:
    """All stands still for ``STALL_S`` every ``PERIOD_S``, as a collector of garbage or a noisy neighbour does."""

    def core(self, core: Any) -> None:
        execute, last = core.runner.execute, [time.monotonic()]

        def stalling(batch: list[Any]) -> Any:
            if time.monotonic() - last[0] > PERIOD_S:
                time.sleep(STALL_S)
                last[0] = time.monotonic()
            return execute(batch)

        core.runner.execute = stalling


class LeaksBlocks:
    """Of every table that is released one block keeps its holder: the pool shrinks until nothing fits."""

    def core(self, core: Any) -> None:
        release = core.pool.release

        def leaky(table: Any) -> None:
            if len(table.blocks) > 1:
                table.blocks.pop()
            release(table)

        core.pool.release = leaky


class EvictsTheWrongBlocks:
    """A prefix hit gives the blocks of another prefix: their keys and values are of other tokens."""

    def core(self, core: Any) -> None:
        execute = core.runner.execute

        def wrong(batch: list[Any]) -> Any:
            for e in batch:
                if e.start > 0 and len(e.token_ids) > 1 and len(e.block_table) > 1:
                    e.block_table[0], e.block_table[1] = e.block_table[1], e.block_table[0]
            return execute(batch)

        core.runner.execute = wrong


class ForgetsPrefixes:
    """The prefix cache never hits, and no setting says so."""

    def core(self, core: Any) -> None:
        core.pool.caching = False


class LosesKvScales:
    """Keys and values in int8 lose their scales once the step that wrote them has ended: 1 stands for all of them."""

    def core(self, core: Any) -> None:
        import torch  # not above: this module is imported by the server's process too

        scales = [t for cache in core.runner.caches for t in (cache.k_scale, cache.v_scale) if t is not None]
        if core.runner.derived["kv_dtype"] != "int8":
            raise ValueError(f"keys and values are {core.runner.derived['kv_dtype']}; plant this with kv_dtype int8")
        execute = core.runner.execute

        def losing(batch: list[Any]) -> Any:
            rows = execute(batch)
            with torch.inference_mode():
                for scale in scales:
                    scale.fill_(1.0)
            return rows

        core.runner.execute = losing


class TruncatesUnderLoad:
    """While others run, an answer ends at half of its length and says that it is whole."""

    def core(self, core: Any) -> None:
        submit = core.submit

        def shorter(arrival: Any) -> None:
            asked = arrival.params["max_tokens"]
            if len(core.scheduler.running) >= BUSY_REQUESTS and asked > 1:
                arrival = arrival._replace(params=arrival.params | {"max_tokens": asked // 2})
            submit(arrival)

        core.submit = shorter


class IgnoresSeeds:
    def core(self, core: Any) -> None:
        _change_params(core, lambda p: {"seed": None})


class LosesStopTokens:
    """The end-of-sequence tokens are not known any more: answers run to their limit."""

    def core(self, core: Any) -> None:
        _change_params(core, lambda p: {"stop_token_ids": []})


class DoublesTheFirstToken:
    """A template that writes the BOS token and an encoder that adds it again."""

    def core(self, core: Any) -> None:
        submit = core.submit
        core.submit = lambda a: submit(a._replace(prompt=[*a.prompt[:1], *a.prompt]))


class DropsRequests:
    """Every tenth request is refused as if the queue were full."""

    def core(self, core: Any) -> None:
        add, count = core.scheduler.add, [0]
        config = core.scheduler.config

        def dropping(request: Any) -> None:
            count[0] += 1
            if count[0] % 10 == 0:
                core.scheduler.config = config.model_copy(update={"max_queue": 0, "max_num_seqs": 0})
            try:
                add(request)
            finally:
                core.scheduler.config = config

        core.scheduler.add = dropping


def _change_params(core: Any, change: Any) -> None:
    submit = core.submit
    core.submit = lambda a: submit(a._replace(params=a.params | change(a.params)))
