"""Fills whose bytes are not kept: one origin request for all readers of a moment, in bounded memory.

What the eviction policy turns away is asked of the origin once, however many read it at the same time. The bytes stay in memory for
WINDOW_BLOCKS blocks behind the furthest reader, and no more than a block is asked for ahead of it: so an object of that length is
shared whole by all who come while it is on its way, and of a longer one by all who keep up. Who falls behind by more asks for
itself from where it is.

Ends. The fill ends once its furthest reader has everything, or nobody is left, or nobody comes within JOIN_WAIT_S. What the others
still need of it is theirs until they leave.

Bounds. All such fills together hold no more than `UnkeptBudget` gives; where that is used up, a reader streams for itself.
"""

import asyncio
from typing import Final

from storage.fills import Fill, FillParts, Proof
from storage.requests import FileSpan
from storage.types import BLOCK_BYTES, MIB, ByteRange

WINDOW_BLOCKS: Final = 2
"""So many whole blocks are held, and one that is being gathered."""

BYTES_MAX: Final = 64 * MIB
"""For all fills that are not kept, of one engine."""

JOIN_WAIT_S: Final = 1.0
"""So long a first reader is waited for: whoever asked is told of the fill a few turns of the loop after its beginning."""


class UnkeptBudget:
    """How much memory fills that are not kept may hold, all together."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._free_bytes = bytes_max

    def __repr__(self) -> str:
        return f"<UnkeptBudget: {self._free_bytes} bytes free>"

    @property
    def free_bytes(self) -> int:
        """What is not held."""
        return self._free_bytes

    def take(self, span: ByteRange) -> int | None:
        """Give the bytes that a fill of `span` may hold at most; None where there are not so many. `give_back` is owed."""
        held_bytes = min(span.length, (WINDOW_BLOCKS + 1) * BLOCK_BYTES)
        if held_bytes > self._free_bytes:
            return None
        self._free_bytes -= held_bytes
        return held_bytes

    def give_back(self, held_bytes: int) -> None:
        """Take memory back."""
        self._free_bytes += held_bytes


async def _add_nothing(_extent: object) -> None:
    """Tell no index."""


class UnkeptFill(Fill):
    """`fills.Fill` as far as its readers see; `held_bytes` were taken from the budget and are given back by it."""

    is_kept = False

    def __init__(
        self, span: ByteRange, parts: FillParts, proof: Proof | None, budget: UnkeptBudget, held_bytes: int
    ) -> None:
        self._budget = budget
        self._held_bytes = held_bytes
        self._blocks: list[bytes] = []
        self._blocks_start = self._taken_stop = span.start
        self._moved = asyncio.Event()
        super().__init__(span, parts, _add_nothing, proof)

    def _reserve(self) -> None:
        """Reserve nothing."""

    def can_serve(self, position: int) -> bool:
        """Whether the byte at `position` is still here, or will come soon."""
        return position >= self._blocks_start and super().can_serve(position)

    async def wait_for(self, position: int) -> bool:
        """Wait until the byte at `position` can be taken; False where it is gone, or the fill ended before it."""
        return (
            position >= self._blocks_start
            and await super().wait_for(position)
            and position >= self._blocks_start
        )

    def take(self, position: int, stop: int) -> bytes | FileSpan:
        """Give bytes from `position` on, at most up to the end of their block."""
        assert self._blocks_start <= position < self.arrived, f"{position} is not here in {self!r}"
        stop = min(stop, self.arrived)
        if position < self._written:
            index, start = divmod(position - self._blocks_start, BLOCK_BYTES)
            piece: bytes | FileSpan = self._blocks[index][start : start + stop - position]
        else:
            piece = super().take(position, stop)
        assert isinstance(piece, bytes), "nothing of it is in a file"
        self._taken_stop = max(self._taken_stop, position + len(piece))
        self._moved.set()
        return piece

    def join(self) -> None:
        """Follow the fill; see `Fill.join`."""
        super().join()
        self._moved.set()

    def leave(self) -> None:
        """Stop following; see `Fill.leave`."""
        super().leave()
        self._moved.set()

    async def _write_block(self) -> None:
        """Put the next block into the window, compared, and wait for readers to come near it."""
        block = bytes(memoryview(self._gathered)[:BLOCK_BYTES])
        del self._gathered[: len(block)]
        self._writing = block
        if self._check is not None:
            await self._parts.workers.run(self._compare, self._check, self._written, block)
        self._blocks.append(block)
        self._written += len(block)
        self._writing = b""
        is_last = self._written == self.span.stop
        if is_last:
            self._given_stop = self.span.stop
        self._progress.set()
        await self._wait_for_readers(self._written if is_last else self._written - BLOCK_BYTES)
        if not is_last:
            self._forget_old()

    async def _wait_for_readers(self, position: int) -> None:
        """Wait until somebody has taken all below `position`, or nobody is there who would."""
        while self._taken_stop < position and (self.readers or not self._was_joined):
            self._moved.clear()
            if self.readers:
                await self._moved.wait()
                continue
            try:
                async with asyncio.timeout(JOIN_WAIT_S):
                    await self._moved.wait()
            except TimeoutError:
                return

    def _forget_old(self) -> None:
        while len(self._blocks) > WINDOW_BLOCKS:
            self._blocks_start += len(self._blocks.pop(0))

    def _is_wanted(self) -> bool:
        return self.readers > 0

    def _let_go_if_done(self) -> None:
        super()._let_go_if_done()
        if self.is_finished and not self.readers and self._held_bytes:
            self._budget.give_back(self._held_bytes)
            self._held_bytes = 0
