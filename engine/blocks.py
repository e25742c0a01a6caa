"""The pool of KV blocks: who holds which, what can be shared, what can be reused.

    +--------- used ----------+------ cached -------+------ free ------+
    | ref_count > 0           | ref_count 0, known  | ref_count 0,     |
    | held by block tables    | content, LRU order  | content unknown  |
    +-------------------------+---------------------+------------------+
       release ------------------------->  or ------------->
       <------- prefix hit ------+   <--- grow takes free blocks first, then the oldest cached one

The pool owns the bookkeeping; the runner owns the tensors and knows nothing but block numbers. A table owns its
references: the only ways to gain one are ``start``, ``reserve``, ``grow`` and ``fork``, the only way to lose them is
``release`` (or the swap of one block in ``make_writable``).

Paged use (``start``, ``grow``) takes any blocks, so that it fails only where too few are there in all: `exhausted`.
``reserve`` wants adjacent ones, as servers did before paging, and can fail with enough in all: `fragmented`.

A full block is known by a chain: sha256 of the parent's digest and the block's tokens, rooted in a salt that names
model and KV dtype. On a hit the tokens are compared as well.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


class BlockPoolError(RuntimeError):
    """The books do not balance: a defect, never a user's mistake."""


@dataclass(eq=False)
class BlockTable:
    """Blocks of one request in order of position, and the chain of digests of those that are full and computed."""

    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # depends on the tokens alone, so it survives a release
    num_published: int = 0  # full blocks whose content the pool knows or need not know


class BlockPool:
    def __init__(self, num_blocks: int, block_size: int, salt: bytes = b"", caching: bool = True) -> None:
        self.num_blocks, self.block_size, self.caching = num_blocks, block_size, caching
        self._root = hashlib.sha256(salt).digest()
        self._refs = [0] * num_blocks
        self._content: dict[int, tuple[bytes, tuple[int, ...]]] = {}  # block -> its digest and tokens
        self._known: dict[bytes, int] = {}  # digest -> block
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # the longest free first
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._tables: set[BlockTable] = set()
        self.failures = {"exhausted": 0, "fragmented": 0}
        self.releases = 0  # while it stands still, what found no room finds none, unless more of its prefix is known

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free) + len(self._cached)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # Prefix sharing

    def _chain(self, table: BlockTable, tokens: Sequence[int], num_full: int) -> None:
        """Extends ``table.digests`` to the first ``num_full`` full blocks of ``tokens``."""
        size = self.block_size
        for i in range(len(table.digests), num_full):
            parent = table.digests[i - 1] if i else self._root
            table.digests.append(hashlib.sha256(parent + array("q", tokens[i * size : (i + 1) * size])).digest())

    def match(self, table: BlockTable, tokens: Sequence[int], max_tokens: int) -> list[int]:
        """Blocks that hold the longest known prefix of ``tokens`` within ``max_tokens``. Takes no reference."""
        if not self.caching:
            return []
        hits = list[int]()
        for i in range(min(max_tokens, len(tokens)) // self.block_size):
            block = self._find(table, tokens, i)
            if block is None:
                break
            hits.append(block)
        return hits

    def _find(self, table: BlockTable, tokens: Sequence[int], index: int) -> int | None:
        """The known block that holds full block ``index`` of ``tokens``, and whose chain is theirs."""
        size = self.block_size
        self._chain(table, tokens, index + 1)
        block = self._known.get(table.digests[index])
        held = block is not None and self._content[block][1] == tuple(tokens[index * size : (index + 1) * size])
        return block if held else None

    def adopt(self, table: BlockTable, tokens: Sequence[int], num_computed: int, max_tokens: int) -> int:
        """Gives up blocks of ``table`` that are still to be computed, from position ``num_computed`` on and within
        ``max_tokens``, for such as have become known since it started.

        Returns:
            How many.
        """
        if not self.caching or num_computed % self.block_size:
            return 0
        first = index = num_computed // self.block_size
        last = min(max_tokens // self.block_size, len(table.blocks))
        while index < last and (block := self._find(table, tokens, index)) is not None:
            self._take(block)
            self._drop(table.blocks[index])
            table.blocks[index] = block
            index += 1
        if index > first:
            table.num_published = index
            self.releases += 1
        return index - first

    def num_alike(
        self, one: tuple[BlockTable, Sequence[int]], other: tuple[BlockTable, Sequence[int]], first: int
    ) -> int:
        """Full blocks from number ``first`` on that two tables, each with its tokens, will hold the same in, and in all
        before."""
        most = min(len(tokens) for _, tokens in (one, other)) // self.block_size
        for i in range(first, most):
            for table, tokens in (one, other):
                self._chain(table, tokens, i + 1)
            if one[0].digests[i] != other[0].digests[i]:
                return i - first
        return max(0, most - first)

    def start(self, table: BlockTable, hits: Sequence[int], num_tokens: int, spare: int) -> bool:
        """Gives an empty table the blocks that ``match`` found and new ones up to ``num_tokens`` positions, if
        ``spare`` blocks are still available after that; nothing otherwise."""
        if table.blocks:
            raise BlockPoolError(f"a table with {len(table.blocks)} blocks cannot start with a shared prefix")
        idle_hits = sum(1 for block in hits if not self._refs[block])
        missing = self.blocks_for(num_tokens) - len(hits)
        if missing + idle_hits + spare > self.num_available:
            self.failures["exhausted"] += 1
            return False
        for block in hits:
            self._take(block)
        table.blocks = [*hits, *(self._new() for _ in range(missing))]
        table.num_published = len(hits)
        self._tables.add(table)
        return True

    def commit(self, table: BlockTable, tokens: Sequence[int], num_computed: int) -> None:
        """Makes the blocks whose keys and values are all computed known to later requests."""
        if not self.caching:
            return
        size, num_full = self.block_size, num_computed // self.block_size
        if num_full <= table.num_published:
            return
        self._chain(table, tokens, num_full)
        for i in range(table.num_published, num_full):
            self._publish(table.blocks[i], table.digests[i], tuple(tokens[i * size : (i + 1) * size]))
        table.num_published = num_full

    def _publish(self, block: int, digest: bytes, tokens: tuple[int, ...]) -> None:
        if digest not in self._known and block not in self._content:
            self._known[digest] = block
            self._content[block] = (digest, tokens)

    # References

    def reserve(self, table: BlockTable, num_tokens: int) -> bool:
        """Gives an empty table the first run of adjacent blocks that covers ``num_tokens`` positions, if there is one.

        A failure is `exhausted` where fewer blocks than that are available in all, else `fragmented`.
        """
        if table.blocks:
            raise BlockPoolError(f"a table with {len(table.blocks)} blocks cannot be given a run of its own")
        wanted, length = self.blocks_for(num_tokens), 0
        if wanted > self.num_available:
            self.failures["exhausted"] += 1
            return False
        for block, refs in enumerate(self._refs):
            length = 0 if refs else length + 1
            if length == wanted:
                table.blocks = list(range(block - wanted + 1, block + 1))
                break
        else:
            self.failures["fragmented"] += 1
            return False
        for block in table.blocks:
            self._claim(block)
        self._tables.add(table)
        return True

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Lets ``table`` cover ``num_tokens`` positions: all of the missing blocks or none."""
        missing = self.blocks_for(num_tokens) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > self.num_available:
            self.failures["exhausted"] += 1
            return False
        table.blocks.extend(self._new() for _ in range(missing))
        self._tables.add(table)
        return True

    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable:
        """A second table over the blocks of the first ``num_tokens`` positions. Whoever writes to a shared block first
        must ``make_writable`` it; a known block, whose content has to stay, is not shared in part."""
        num_full = num_tokens // self.block_size
        blocks = table.blocks[: self.blocks_for(num_tokens)]
        if any(block in self._content for block in blocks[num_full:]):
            raise BlockPoolError(
                f"block {blocks[num_full]} is full and known, and {num_tokens} positions end within it"
            )
        for block in blocks:
            self._take(block)
        copy = BlockTable(blocks, table.digests[:num_full], min(table.num_published, num_full))
        if copy.blocks:
            self._tables.add(copy)
        return copy

    def make_writable(self, table: BlockTable, position: int) -> tuple[bool, tuple[int, int] | None]:
        """Before ``position`` is written: a block that others hold too is replaced by one of the table's own.

        Returns:
            Whether it worked, and the copy (from, to) that must be made before the write, if any.
        """
        index = position // self.block_size
        shared = table.blocks[index]
        if self._refs[shared] == 1:
            return True, None
        if not self.num_available:
            self.failures["exhausted"] += 1
            return False, None
        table.blocks[index] = self._new()
        self._drop(shared)
        return True, (shared, table.blocks[index])

    def is_exclusive(self, table: BlockTable, position: int) -> bool:
        """Whether nobody else holds the block of ``position``, which the table covers."""
        return self._refs[table.blocks[position // self.block_size]] == 1

    def num_exclusive(self, table: BlockTable) -> int:
        """Blocks that become available if ``table`` is released."""
        return sum(1 for block in table.blocks if self._refs[block] == 1)

    def num_filled(self, tables: Iterable[tuple[BlockTable, int]]) -> int:
        """Positions of held blocks with computed keys and values, shared ones counted once; given every table with
        blocks and how many of its positions are computed. The rest of ``num_used`` blocks is reserved for later."""
        size, empty, shared = self.block_size, 0, set[int]()
        for table, num_computed in tables:
            index, offset = divmod(num_computed, size)
            empty += len(table.blocks) * size - num_computed
            if offset and self._refs[table.blocks[index]] > 1:
                if table.blocks[index] in shared:
                    empty -= size - offset
                shared.add(table.blocks[index])
        return self.num_used * size - empty

    def release(self, table: BlockTable) -> None:
        """Gives up all references of ``table``. The one way out for finished, aborted, failed and preempted requests;
        a second call does nothing. The end of the chain goes first, so that the front, which more can share, is kept
        longest."""
        if not table.blocks:
            return
        for block in reversed(table.blocks):
            self._drop(block)
        table.blocks = []
        table.num_published = 0
        self._tables.discard(table)
        self.releases += 1

    def _take(self, block: int) -> None:
        if not self._refs[block]:
            if block not in self._cached:
                raise BlockPoolError(f"block {block} is neither held nor cached and cannot be shared")
            del self._cached[block]
        self._refs[block] += 1

    def _new(self) -> int:
        block = next(iter(self._free or self._cached))
        self._claim(block)
        return block

    def _claim(self, block: int) -> None:
        """Makes an idle block the caller's; content that was kept in it is forgotten."""
        if block in self._free:
            del self._free[block]
        else:
            del self._cached[block]
            digest, _ = self._content.pop(block)
            del self._known[digest]
        self._refs[block] = 1

    def _drop(self, block: int) -> None:
        if self._refs[block] < 1:
            raise BlockPoolError(f"block {block} is released with reference count {self._refs[block]}")
        self._refs[block] -= 1
        if not self._refs[block]:
            if block in self._content:
                self._cached[block] = None
            else:
                self._free[block] = None

    # Checks

    def check(self) -> None:
        """Counts everything again. Cheap enough for tests and for moments without work, not for every step.

        Raises:
            BlockPoolError: with the numbers that do not agree.
        """
        held = [0] * self.num_blocks
        for table in self._tables:
            for block in table.blocks:
                held[block] += 1
        if held != self._refs:
            wrong = [(b, h, r) for b, (h, r) in enumerate(zip(held, self._refs, strict=True)) if h != r]
            raise BlockPoolError(f"references differ from the tables (block, held, counted): {wrong[:5]}")
        idle = [b for b, r in enumerate(self._refs) if not r]
        if sorted([*self._free, *self._cached]) != idle:
            raise BlockPoolError(
                f"free {len(self._free)} + cached {len(self._cached)} differ from {len(idle)} blocks without reference"
            )
        if {d: b for b, (d, _) in self._content.items()} != self._known or any(
            b not in self._content for b in self._cached
        ):
            raise BlockPoolError(
                f"{len(self._known)} known digests, {len(self._content)} blocks with content, "
                f"{len(self._cached)} cached"
            )

    def check_idle(self) -> None:
        """With no request alive every block is free or cached.

        Raises:
            BlockPoolError: a leak, with the numbers.
        """
        if self._tables or self.num_free + self.num_cached != self.num_blocks or any(self._refs):
            raise BlockPoolError(
                f"idle, but free {self.num_free} + cached {self.num_cached} of {self.num_blocks} blocks, "
                f"{sum(self._refs)} references in {len(self._tables)} tables"
            )
