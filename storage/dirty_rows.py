"""What the index says of changes that are not at the origin: the reads that the flush and its callers share."""

from typing import Final

from storage import keys
from storage.family import Family
from storage.records import DirtyEntry, ObjectRecord
from storage.rows import RowSource, decode_dirty, decode_object, decode_overlay
from storage.types import ObjectName

OVERLAY_ROWS: Final = 1000


class DirtyRows:
    """Reads of the flush queue, each in one step of the event loop."""

    def __init__(self, index: RowSource) -> None:
        self._index = index

    def entry(self, sequence: int) -> DirtyEntry | None:
        """Give a change; None where it was flushed, replaced or given up."""
        value = self._index.get(Family.DIRTY, keys.dirty_key(sequence))
        return None if value is None else decode_dirty(value)

    def newest(self, name: ObjectName) -> DirtyEntry | None:
        """Give a key's newest change; None where the key is clean."""
        value = self._index.get(Family.OVERLAY, keys.object_key(name.bucket, name.key))
        return None if value is None else self.entry(decode_overlay(value).sequence)

    def record(self, entry: DirtyEntry) -> ObjectRecord | None:
        """Give the version that a put's change is about; None where the key has another by now."""
        value = self._index.get(Family.OBJECTS, keys.object_key(entry.bucket, entry.key))
        record = None if value is None else decode_object(value)
        return record if record is not None and record.version_id == entry.version_id else None

    def has_put(self, bucket: str) -> bool:
        """Whether an object of the bucket is acknowledged and not at the origin."""
        start, stop = keys.prefix_range(bucket)
        while rows := self._index.scan(Family.OVERLAY, start, stop, OVERLAY_ROWS):
            if any(not decode_overlay(value).is_tombstone for _, value in rows):
                return True
            start = rows[-1][0] + b"\x00"
        return False
