"""What the scrub reads next, and how fast.

A round goes through all that rows name, what only this gateway has before what is also at the origin:

    DIRTY    the flush queue, by age
    PARTS    the parts of open uploads
    CLEAN    all else, segment by segment

Its pace is a number of bytes a second, a quarter of it while requests are served. What is not used is kept for a second at most, so that a
long pause is not followed by a burst. Pure.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from storage.family import Family
from storage.types import BLOCK_BYTES

BUSY_SHARE: Final = 0.25
"""So much of its pace the scrub keeps while clients are served."""


class Phase(IntEnum):
    """The parts of a round, in their order."""

    DIRTY = 0
    PARTS = 1
    CLEAN = 2


FAMILY_OF: Final = {Phase.DIRTY: Family.DIRTY, Phase.PARTS: Family.PARTS, Phase.CLEAN: Family.RESIDENTS}
"""Whose rows a phase goes through."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a round is: the row of its phase that comes next is the first at or behind `key`; of that row, what lies from `start` on."""

    phase: Phase = Phase.DIRTY
    key: bytes = b""
    start: int = 0

    def behind(self, key: bytes) -> "Position":
        """Go on behind a row."""
        return Position(self.phase, key + b"\x00")

    def next_phase(self) -> "Position | None":
        """Begin the next phase; None at the end of a round."""
        return None if self.phase is Phase.CLEAN else Position(Phase(self.phase + 1))


class Pace:
    """Says how many bytes may be read now."""

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._seen_s = now_s
        self._allowed_bytes = 0.0

    def allow(self, now_s: float, *, is_busy: bool) -> bool:
        """Take note of the time; whether a block may be read."""
        share = BUSY_SHARE if is_busy else 1.0
        gained = max(0.0, now_s - self._seen_s) * self._bytes_per_s * share
        self._seen_s = now_s
        # At least a block, so that a slow pace gets there too.
        most = max(float(BLOCK_BYTES), float(self._bytes_per_s))
        self._allowed_bytes = min(most, self._allowed_bytes + gained)
        return self._allowed_bytes > 0

    def spend(self, size_bytes: int) -> None:
        """Count what was read; more than was allowed is paid back later."""
        self._allowed_bytes -= size_bytes
