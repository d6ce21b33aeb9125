"""What is remembered of extents that are not here: when each was read last, and how often lately.

A few open-addressed tables of 64-bit words, newest first: 32 bits of an extent's hash, 24 of the time, 8 of its code
(`storage/reuse.py`). A table is closed when it is full or has taken in a cache's worth of bytes, and forgotten when what came
after it is worth enough. So memory is bounded, some 13 bytes an extent, and nothing is ever moved: no single step takes longer
than filling a new table with zeros.

Two extents with the same 32 bits in one table are taken for one: a wrong class for one read, nothing more. Pure.
"""

from array import array
from typing import Final

STAMP_BITS: Final = 24
STAMP_MASK: Final = (1 << STAMP_BITS) - 1
_CODE_BITS: Final = 8
_SLOTS_MIN: Final = 1 << 10
_SLOTS_MAX: Final = 1 << 24
_PROBES_MAX: Final = 16
"""An extent that finds no place within so many is forgotten; at the load allowed that is one in thousands."""


class _Table:
    __slots__ = ("bytes_held", "count", "count_max", "mask", "slots")

    def __init__(self, size: int) -> None:
        self.slots = array("Q", bytes(8 * size))
        self.mask = size - 1
        self.count = 0
        self.count_max = size * 6 // 10
        self.bytes_held = 0


class Ghost:
    """Remembers about `keep_bytes` worth of extents. Stamps are whole units of traffic."""

    __slots__ = ("_keep_bytes", "_table_bytes", "_tables")

    def __init__(self, *, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._table_bytes = max(1, keep_bytes // 2)
        self._tables = [_Table(_SLOTS_MIN)]

    @property
    def memory_bytes(self) -> int:
        """What the tables take."""
        return sum(8 * len(table.slots) for table in self._tables)

    def find(self, mark: int, now: int) -> tuple[int, int] | None:
        """Give age in units and code of the extent with these 32 bits, which are not 0; None where it is not known."""
        for table in self._tables:
            slots, mask = table.slots, table.mask
            place = mark & mask
            for _ in range(_PROBES_MAX):
                word = slots[place]
                if word >> 32 == mark:
                    return (now - (word >> _CODE_BITS)) & STAMP_MASK, word & 0xFF
                if not word:
                    break
                place = (place + 1) & mask
        return None

    def put(self, mark: int, length: int, now: int, code: int) -> None:
        """Remember an extent of `length` bytes, read at `now`, or what is new of it."""
        table = self._tables[0]
        if table.count >= table.count_max or table.bytes_held >= self._table_bytes:
            table = self._next_table(table)
        word = mark << 32 | (now & STAMP_MASK) << _CODE_BITS | code
        slots, mask = table.slots, table.mask
        place = mark & mask
        for _ in range(_PROBES_MAX):
            present = slots[place]
            if not present:
                table.count += 1
                table.bytes_held += length
                slots[place] = word
                return
            if present >> 32 == mark:
                slots[place] = word
                return
            place = (place + 1) & mask

    def _next_table(self, full: _Table) -> _Table:
        """Begin a new table, as large as the last one turned out to need, and drop what has become too old."""
        needed = full.count if full.bytes_held >= self._table_bytes else 2 * full.count
        size = _SLOTS_MIN
        while size * 6 // 10 <= needed and size < _SLOTS_MAX:
            size *= 2
        table = _Table(size)
        self._tables.insert(0, table)
        held = 0
        for place, older in enumerate(self._tables):
            if held >= self._keep_bytes and place:
                del self._tables[place:]
                break
            held += older.bytes_held
        return table
