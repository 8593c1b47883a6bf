"""The KV cache as a pool of blocks, with vLLM's prefix cache: full prompt blocks are found again by their hash.

A block is in one of four states: *free* (content unknown), *private* (held by one request), *shared* (registered under
a hash and held by one or more requests) or *evictable* (registered, held by nobody, reusable until memory is needed,
least recently used first). ``free + private + shared + evictable`` is constant; a test holds on to that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Holding:
    """The blocks of one request: registered ones by hash, in order, and a count of private ones after them."""

    shared: list[int] = field(default_factory=list)
    private: int = 0

    @property
    def count(self) -> int:
        """All blocks held."""
        return len(self.shared) + self.private


def block_hashes(tokens: Sequence[int], block_size: int) -> list[int]:
    """One hash for every full block, chained so that equal hashes mean equal prefixes."""
    hashes: list[int] = []
    parent = 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, *tokens[start : start + block_size]))
        hashes.append(parent)
    return hashes


class BlockPool:
    """Blocks of one engine. ``total`` never changes."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._holders: dict[int, int] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that an allocation can take, evictable ones included."""
        return self._free + len(self._evictable)

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return self.total - self.available

    def find(self, hashes: Sequence[int]) -> int:
        """How many leading hashes are in the cache."""
        hits = 0
        for value in hashes:
            if value not in self._holders and value not in self._evictable:
                break
            hits += 1
        return hits

    def fits(self, hashes: Sequence[int], more: int) -> bool:
        """Whether cached blocks ``hashes`` can be taken together with ``more`` new ones."""
        reused = sum(value in self._evictable for value in hashes)
        return more <= self.available - reused

    def share(self, holding: Holding, hashes: Sequence[int]) -> None:
        """Hold cached blocks."""
        for value in hashes:
            self._evictable.pop(value, None)
            self._holders[value] = self._holders.get(value, 0) + 1
            holding.shared.append(value)

    def allocate(self, holding: Holding, count: int) -> bool:
        """Take ``count`` private blocks, evicting the least recently used cached ones; all or nothing."""
        if count > self.available:
            return False
        from_free = min(count, self._free)
        self._free -= from_free
        for _ in range(count - from_free):
            self._evictable.popitem(last=False)
        holding.private += count
        return True

    def register(self, holding: Holding, value: int) -> None:
        """Publish the request's first private block under its hash, unless that content is already cached."""
        if value in self._holders:
            self._holders[value] += 1
            self._free += 1  # the same content twice: the request goes on with the copy that is known
        elif value in self._evictable:
            del self._evictable[value]
            self._holders[value] = 1
            self._free += 1
        else:
            self._holders[value] = 1
        holding.private -= 1
        holding.shared.append(value)

    def release(self, holding: Holding) -> None:
        """Give everything back; registered blocks stay findable, the end of a prompt is evicted before its start."""
        self._free += holding.private
        for value in reversed(holding.shared):
            left = self._holders[value] - 1
            if left:
                self._holders[value] = left
            else:
                del self._holders[value]
                self._evictable[value] = None
        holding.private = 0
        holding.shared.clear()

    def forget(self) -> None:
        """Drop what nobody holds from the prefix cache."""
        self._free += len(self._evictable)
        self._evictable.clear()
