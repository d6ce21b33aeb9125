"""A body that gives the pieces it was told, waits where it is told, and fails where it is told."""

import asyncio
from dataclasses import dataclass, field

from storage.requests import FileSpan
from storage.types import CacheResult

Piece = bytes | FileSpan | Exception


@dataclass
class Gate:
    """Holds a call: `reached` once it is there, goes on when `opened` is set."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)


class FakeBody:
    def __init__(self, pieces: list[Piece], result: CacheResult, gate: Gate | None) -> None:
        self._pieces = pieces
        self._gate = gate
        self.result = result
        self.is_closed = False

    async def next_piece(self) -> bytes | FileSpan | None:
        assert not self.is_closed
        if self._gate is not None:
            self._gate.reached.set()
            await self._gate.opened.wait()
        await asyncio.sleep(0)
        if not self._pieces:
            return None
        piece = self._pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def close(self) -> None:
        self.is_closed = True
