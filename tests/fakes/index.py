"""An index in memory that can lose what was not checkpointed and fail on command.

Fault model, that of RocksDB with one unsynced log: a killed process loses nothing; a power cut leaves all batches up to the last
checkpoint and any number of the following ones, in order, each whole. A failed write leaves nothing. A failed checkpoint promises
nothing: later clones may show any number of batches since the last one that succeeded. After either no write and no checkpoint of
the same object succeeds, what caused it gone or not; a clone, which is what opening anew gives, takes them again.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Sequence

from storage.errors import DiskFailedError, UnknownOutcomeError
from storage.family import Family, IndexWrite


class _Table:
    """One family: a dict, and its keys in order."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self.rows = dict(rows or {})
        self.keys = sorted(self.rows)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.rows:
            insort(self.keys, key)
        self.rows[key] = value

    def delete(self, key: bytes) -> None:
        if self.rows.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.delete(key)
        else:
            self.put(key, value)


class FakeIndex:
    """Rows in memory, with the promises of `storage.index.Index`.

    Attributes:
        writes_total, checkpoints_total: Calls that succeeded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables = {family: _Table() for family in Family}
        self._durable: dict[Family, dict[bytes, bytes]] = {family: {} for family in Family}
        self._unsynced: list[tuple[IndexWrite, ...]] = []
        self._write_fault = _Countdown()
        self._checkpoint_fault = _Countdown()
        self._is_closed = False
        self._is_broken = False
        self.writes_total = 0
        self.checkpoints_total = 0

    # --- Index -------------------------------------------------------------------------------------------------------

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Give a row's bytes, None where there is none."""
        self._check_open()
        # A batch over several families is one: who reads meanwhile sees all of it or nothing.
        with self._lock:
            return self._tables[family].rows.get(key)

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Give up to `limit` rows with `start <= key < stop` in key order, from the end where `reverse`."""
        self._check_open()
        with self._lock:
            table = self._tables[family]
            first = bisect_left(table.keys, start)
            last = len(table.keys) if stop is None else bisect_left(table.keys, stop)
            found = table.keys[first:last]
            found = found[::-1][:limit] if reverse else found[:limit]
            return [(key, table.rows[key]) for key in found]

    def write(self, batch: Sequence[IndexWrite]) -> None:
        """Write a batch, whole or not at all."""
        self._check_open()
        for _, key, value in batch:
            assert isinstance(key, bytes), f"not bytes: {key!r}"
            assert value is None or isinstance(value, bytes), f"not bytes: {value!r}"
        with self._lock:
            if self._breaks(self._write_fault):
                raise DiskFailedError("index write failed: on command")
            for family, key, value in batch:
                self._tables[family].apply(key, value)
            self._unsynced.append(tuple(batch))
            self.writes_total += 1

    def checkpoint(self) -> None:
        """Remember what is written as durable."""
        self._check_open()
        with self._lock:
            if self._breaks(self._checkpoint_fault):
                raise UnknownOutcomeError("index sync failed: on command")
            for batch in self._unsynced:
                _apply(self._durable, batch)
            self._unsynced.clear()
            self.checkpoints_total += 1

    def close(self) -> None:
        """End the use of this object; its clones can still be made."""
        self._is_closed = True

    def _breaks(self, fault: "_Countdown") -> bool:
        self._is_broken |= fault.strikes()
        return self._is_broken

    def _check_open(self) -> None:
        assert not self._is_closed, "the index is closed"

    # --- what a crash leaves -----------------------------------------------------------------------------------------

    @property
    def batches_after_checkpoint(self) -> int:
        """Batches that a power cut now may take away."""
        return len(self._unsynced)

    def checkpoint_clone(self) -> "FakeIndex":
        """Give what a power cut leaves at the least: the rows as of the last checkpoint."""
        return self.clone_at(0)

    def kill_clone(self) -> "FakeIndex":
        """Give what a killed process leaves: every batch written."""
        return self.clone_at(self.batches_after_checkpoint)

    def clone_at(self, batches_after_checkpoint: int) -> "FakeIndex":
        """Give the rows as of the last checkpoint and that many batches after it, all of them durable."""
        assert 0 <= batches_after_checkpoint <= len(self._unsynced), f"no state {batches_after_checkpoint}"
        clone = FakeIndex()
        with self._lock:
            clone._durable = {family: dict(rows) for family, rows in self._durable.items()}
            for batch in self._unsynced[:batches_after_checkpoint]:
                _apply(clone._durable, batch)
        clone._tables = {family: _Table(rows) for family, rows in clone._durable.items()}
        return clone

    # --- faults ------------------------------------------------------------------------------------------------------

    def fail_write(self, nth: int = 1, *, is_persistent: bool = False) -> None:
        """Let the n-th write from now fail, once or with all that follow it."""
        self._write_fault = _Countdown(nth, is_persistent=is_persistent)

    def fail_checkpoint(self, nth: int = 1, *, is_persistent: bool = False) -> None:
        """Let the n-th checkpoint from now fail, once or with all that follow it."""
        self._checkpoint_fault = _Countdown(nth, is_persistent=is_persistent)

    def take_faults(self, other: "FakeIndex") -> None:
        """Count on where another index has begun to, as for an index that is opened again."""
        self._write_fault, self._checkpoint_fault = other._write_fault, other._checkpoint_fault

    def heal(self) -> bool:
        """Forget what was to fail; True where anything has failed. What is broken stays so until it is opened anew."""
        has_struck = self._write_fault.has_struck or self._checkpoint_fault.has_struck
        self._write_fault, self._checkpoint_fault = _Countdown(), _Countdown()
        return has_struck


class _Countdown:
    """A fault that strikes at the n-th call, and at all later ones where it is persistent; never where n is 0."""

    def __init__(self, nth: int = 0, *, is_persistent: bool = False) -> None:
        self._nth = nth
        self._is_persistent = is_persistent
        self._calls = 0
        self.has_struck = False

    def strikes(self) -> bool:
        """Count a call; say whether it fails."""
        self._calls += 1
        is_hit = self._calls == self._nth or (self._is_persistent and self._calls > self._nth > 0)
        self.has_struck |= is_hit
        return is_hit


def _apply(rows: dict[Family, dict[bytes, bytes]], batch: Sequence[IndexWrite]) -> None:
    for family, key, value in batch:
        if value is None:
            rows[family].pop(key, None)
        else:
            rows[family][key] = value
