from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from engine.blocks import BlockPool, BlockPoolError, BlockTable

SIZE = 4


class PoolMachine(RuleBasedStateMachine):
    """Any sequence of legal calls keeps the books balanced, and a shared block never has another's content."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, SIZE, b"salt")
        self.tokens: dict[BlockTable, list[int]] = {}
        self.content: dict[int, tuple[int, ...]] = {}  # block -> the whole history up to its end, as "computed" into it

    @rule(target=tables, seed=st.integers(0, 3), length=st.integers(1, 30))
    def start(self, seed: int, length: int) -> BlockTable:
        tokens = random.Random(seed).choices(range(3), k=length)
        table = BlockTable()
        hits = self.pool.match(table, tokens, length - 1)
        for i, block in enumerate(hits):
            assert self.content[block] == tuple(tokens[: (i + 1) * SIZE])
        if self.pool.start(table, hits, length, 0):
            self.tokens[table] = tokens
            for i in range(len(hits), length // SIZE):
                self.content[table.blocks[i]] = tuple(tokens[: (i + 1) * SIZE])
            self.pool.commit(table, tokens, length)
        return table

    @rule(target=tables, seed=st.integers(0, 3), length=st.integers(1, 30))
    def reserve(self, seed: int, length: int) -> BlockTable:
        """The first run that is long enough, found the slow way; a failure has the right cause and changes nothing."""
        idle, wanted = [not refs for refs in self.pool._refs], -(-length // SIZE)
        runs = [b for b in range(12 - wanted + 1) if all(idle[b : b + wanted])]
        table, before = BlockTable(), dict(self.pool.failures)
        if self.pool.reserve(table, length):
            assert table.blocks == list(range(runs[0], runs[0] + wanted))
            assert self.pool.failures == before
            self.tokens[table] = tokens = random.Random(seed).choices(range(3), k=length)
            for i in range(length // SIZE):
                self.content[table.blocks[i]] = tuple(tokens[: (i + 1) * SIZE])
            self.pool.commit(table, tokens, length)
        else:
            assert not runs
            before["fragmented" if sum(idle) >= wanted else "exhausted"] += 1
            assert self.pool.failures == before
            assert not table.blocks
        return table

    @rule(table=tables, token=st.integers(0, 2))
    def append(self, table: BlockTable, token: int) -> None:
        if not table.blocks:
            return
        tokens = self.tokens[table]
        before = list(table.blocks)
        fragmented = self.pool.failures["fragmented"]
        if not self.pool.grow(table, len(tokens) + 1):
            assert table.blocks == before
            assert self.pool.num_available == 0
            assert self.pool.failures["fragmented"] == fragmented
            return
        worked, copy = self.pool.make_writable(table, len(tokens))
        if not worked:
            return
        if copy:
            assert copy[1] == table.blocks[len(tokens) // SIZE] != copy[0]
        tokens.append(token)
        if len(tokens) % SIZE == 0:
            self.content[table.blocks[len(tokens) // SIZE - 1]] = tuple(tokens)
        self.pool.commit(table, tokens, len(tokens))

    @rule(target=tables, table=tables, back=st.integers(0, SIZE - 1))
    def fork(self, table: BlockTable, back: int) -> BlockTable:
        """Of all tokens, or without the last ones as far as they fill no block."""
        if not table.blocks:
            return self.pool.fork(table, 0)
        tokens = self.tokens[table]
        shared = tokens[: max(len(tokens) - back, len(tokens) // SIZE * SIZE)]
        copy = self.pool.fork(table, len(shared))
        if copy.blocks:
            self.tokens[copy] = shared
        return copy

    @rule(table=tables)
    def release_twice(self, table: BlockTable) -> None:
        exclusive, before = self.pool.num_exclusive(table), self.pool.num_available
        self.pool.release(table)
        assert self.pool.num_available == before + exclusive
        self.pool.release(table)
        assert self.pool.num_available == before + exclusive

    @invariant()
    def books_balance(self) -> None:
        self.pool.check()
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_used == 12

    def teardown(self) -> None:
        for table in self.tokens:
            self.pool.release(table)
        self.pool.check_idle()


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def filled(pool: BlockPool, tokens: list[int]) -> BlockTable:
    table = BlockTable()
    assert pool.grow(table, len(tokens))
    pool.commit(table, tokens, len(tokens))
    return table


def test_least_recently_used_content_goes_first_and_the_end_of_a_chain_before_its_front() -> None:
    pool = BlockPool(4, 2)
    old, new = filled(pool, [1, 2, 3, 4]), filled(pool, [5, 6, 7, 8])
    pool.release(old)
    pool.release(new)
    table = BlockTable()
    assert pool.grow(table, 2)
    assert len(pool.match(BlockTable(), [1, 2, 3, 4], 4)) == 1
    assert len(pool.match(BlockTable(), [5, 6, 7, 8], 4)) == 2


def test_the_salt_keeps_models_apart() -> None:
    digests = []
    for salt in (b"model a/float32", b"model b/float32", b"model a/bfloat16"):
        digests.append(filled(BlockPool(2, 2, salt), [1, 2]).digests[0])
    assert len(set(digests)) == 3


def test_a_digest_alone_is_not_believed() -> None:
    pool = BlockPool(4, 2)
    table = filled(pool, [1, 2])
    pool._content[table.blocks[0]] = (table.digests[0], (9, 9))
    assert pool.match(BlockTable(), [1, 2, 3], 2) == []


def test_without_caching_nothing_is_kept() -> None:
    pool = BlockPool(4, 2, caching=False)
    pool.release(filled(pool, [1, 2, 3]))
    assert (pool.num_free, pool.num_cached) == (4, 0)
    assert pool.match(BlockTable(), [1, 2], 2) == []


def test_failures_are_counted_by_cause() -> None:
    pool = BlockPool(4, 4)
    tables = [BlockTable() for _ in range(4)]
    for table in tables:
        assert pool.reserve(table, 3)
    pool.release(tables[0])
    pool.release(tables[2])
    assert not pool.reserve(BlockTable(), 5)  # two blocks are free, not side by side
    assert pool.failures == {"exhausted": 0, "fragmented": 1}
    assert not pool.reserve(BlockTable(), 9)
    assert pool.failures == {"exhausted": 1, "fragmented": 1}
    paged = BlockTable()
    assert pool.start(paged, [], 5, 0)
    assert not pool.grow(paged, 9)
    assert not pool.start(BlockTable(), [], 1, 0)
    assert pool.failures == {"exhausted": 3, "fragmented": 1}


def test_a_run_is_the_first_that_is_long_enough() -> None:
    pool = BlockPool(10, 2)
    tables = [BlockTable() for _ in range(5)]
    for table, length in zip(tables, (2, 4, 2, 6, 2), strict=True):
        assert pool.reserve(table, length)
    assert [t.blocks for t in tables] == [[0], [1, 2], [3], [4, 5, 6], [7]]
    for i in (0, 3):
        pool.release(tables[i])
    run, rest = BlockTable(), BlockTable()
    assert pool.reserve(run, 4)
    assert run.blocks == [4, 5]
    assert pool.reserve(rest, 2)
    assert rest.blocks == [0]
    assert not pool.reserve(BlockTable(), 8)  # 6, 8 and 9 are free
    assert pool.failures == {"exhausted": 1, "fragmented": 0}
    assert not pool.reserve(BlockTable(), 6)
    assert pool.failures == {"exhausted": 1, "fragmented": 1}
    with pytest.raises(BlockPoolError, match="2 blocks cannot be given a run"):
        pool.reserve(run, 2)
    pool.check()


def test_leaks_and_double_releases_are_found() -> None:
    pool = BlockPool(3, 2)
    table = filled(pool, [1, 2, 3])
    with pytest.raises(BlockPoolError, match=r"free 1 \+ cached 0 of 3 blocks, 2 references in 1 tables"):
        pool.check_idle()
    copy = BlockTable(list(table.blocks))
    pool.release(table)
    with pytest.raises(BlockPoolError, match="reference count 0"):
        pool.release(copy)
    pool._free.popitem()
    with pytest.raises(BlockPoolError, match="differ from 3 blocks without reference"):
        pool.check()


def test_sharing_needs_an_empty_table_and_a_known_block() -> None:
    pool = BlockPool(3, 2)
    table = filled(pool, [1, 2])
    with pytest.raises(BlockPoolError, match="cannot start with a shared prefix"):
        pool.start(table, [0], 2, 0)
    with pytest.raises(BlockPoolError, match="neither held nor cached"):
        pool.start(BlockTable(), [2], 2, 0)
