"""What the index says of changes that are not at the origin: the reads that the flush and its callers share."""

from typing import Final

from storage import keys
from storage.errors import OverloadedError
from storage.family import Family
from storage.records import DirtyEntry, ObjectRecord
from storage.rows import RowSource, decode_dirty, decode_object, decode_overlay, row_at
from storage.state import State
from storage.types import ObjectName

READS_MAX: Final = 100
"""So often a key's newest change is looked for; each further time it was written between two reads."""


class DirtyRows:
    """Reads of the flush queue, each in one step of the event loop."""

    def __init__(self, index: RowSource, state: State) -> None:
        self._index = index
        self._state = state

    def entry(self, sequence: int) -> DirtyEntry | None:
        """Give a change; None where it was flushed, replaced or given up."""
        return row_at(self._index, Family.DIRTY, keys.dirty_key(sequence), decode_dirty)

    def newest(self, name: ObjectName) -> DirtyEntry | None:
        """Give a key's newest change; None where the key is clean.

        Raises:
            OverloadedError: The key is written so fast that its overlay and its change were never of one moment.
        """
        for _ in range(READS_MAX):
            value = self._index.get(Family.OVERLAY, keys.object_key(name.bucket, name.key))
            if value is None:
                return None
            entry = self.entry(decode_overlay(value).sequence)
            if entry is not None:
                return entry
            # The two rows go together, so one was written between the reads: the key is clean now, or has a newer change.
        raise OverloadedError(f"{name} is written faster than its rows are read")

    def record(self, entry: DirtyEntry) -> ObjectRecord | None:
        """Give the version that a put's change is about; None where the key has another by now."""
        record = row_at(self._index, Family.OBJECTS, keys.object_key(entry.bucket, entry.key), decode_object)
        return record if record is not None and record.version_id == entry.version_id else None

    def version(self, name: ObjectName) -> ObjectRecord | None:
        """Give the newest version that is known of an object, dirty or clean; None where none is."""
        return row_at(self._index, Family.OBJECTS, keys.object_key(name.bucket, name.key), decode_object)

    def has_put(self, bucket: str) -> bool:
        """Whether an object of the bucket is acknowledged and not at the origin."""
        return self._state.dirty_puts[bucket] > 0
