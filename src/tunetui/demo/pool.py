"""The KV cache's blocks: which are free, which are shared, and which still hold a prefix that may be asked for.

It knows no request and no time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol


class Pool(Protocol):
    """What an engine asks of its blocks."""

    num_blocks: int
    least_free: int  # ever

    @property
    def free(self) -> int:
        """Blocks that can be taken, those that hold a prefix nobody uses now included."""

    def take(self, count: int) -> list[int]:
        """`count` blocks for one user; there must be that many free."""

    def known(self, hashes: Iterable[int]) -> list[int]:
        """The blocks that hold the longest known beginning of `hashes`; they are not taken."""

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` nobody uses: sharing them makes as many fewer free."""

    def share(self, blocks: Iterable[int]) -> None:
        """Use `blocks`, which `known` found, together with whoever uses them."""

    def learn(self, blocks: Sequence[int], hashes: Sequence[int]) -> None:
        """`blocks` hold what `hashes` name, one for one, and can be found by them from now on."""

    def give_back(self, blocks: Sequence[int]) -> None:
        """A user gives its blocks back."""


class BlockPool:
    """Blocks 1 to `num_blocks` - 1; vLLM keeps block 0 for padding.

    A block that is given back keeps the hash of what it holds until it is taken for something else, and the one that
    was given back first is taken first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.least_free = num_blocks - 1
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._users = [0] * num_blocks
        self._hash_of: dict[int, int] = {}
        self._holder_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        self.least_free = min(self.least_free, len(self._free))
        for block in taken:
            self._users[block] = 1
            if (held := self._hash_of.pop(block, None)) is not None:
                del self._holder_of[held]
        return taken

    def known(self, hashes: Iterable[int]) -> list[int]:
        found = []
        for wanted in hashes:
            block = self._holder_of.get(wanted)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Iterable[int]) -> int:
        return sum(not self._users[block] for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._users[block] += 1
            self._free.pop(block, None)

    def learn(self, blocks: Sequence[int], hashes: Sequence[int]) -> None:
        for block, held in zip(blocks, hashes, strict=True):
            if held not in self._holder_of and block not in self._hash_of:
                self._holder_of[held] = block
                self._hash_of[block] = held

    def give_back(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # the end of a prefix goes first, for its beginning is asked for more often
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None


class CountedPool:
    """Blocks that are only counted: the same as a BlockPool while nobody brings hashes, and faster."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free = self.least_free = num_blocks - 1

    def take(self, count: int) -> list[int]:
        self.free -= count
        self.least_free = min(self.least_free, self.free)
        return [0] * count

    def known(self, hashes: Iterable[int]) -> list[int]:
        return []

    def idle(self, blocks: Iterable[int]) -> int:
        return 0

    def share(self, blocks: Iterable[int]) -> None:
        pass

    def learn(self, blocks: Sequence[int], hashes: Sequence[int]) -> None:
        raise ValueError("blocks that are only counted hold no prefix")

    def give_back(self, blocks: Sequence[int]) -> None:
        self.free += len(blocks)
