"""What of a version is here: its row, and the extents that it names, pinned so that nothing is unlinked under a reader."""

from typing import Final, NamedTuple

from storage import keys
from storage.blocks import MissingSpan, plan
from storage.errors import EngineClosedError, ObjectChangedError, OverloadedError
from storage.family import Family
from storage.records import ObjectRecord, ObjectState
from storage.rows import RowSource, decode_object, read_extents_in, row_at
from storage.segments import Pin, SegmentStore
from storage.types import BLOCK_BYTES, ByteRange, Extent, ObjectName

READS_MAX: Final = 100
"""So often in a row a version's rows are read again because they were changed between two reads."""


class Held(NamedTuple):
    """What is known and present of a version, and the pin that keeps it so; whoever takes it releases the pin.

    `extents` are those with bytes in the blocks of `span`; others may be there and are not named.
    """

    record: ObjectRecord
    extents: tuple[Extent, ...]
    pin: Pin
    span: ByteRange


class Holdings:
    """Objects as the index has them now, over the segments that hold their bytes.

    Attributes:
        is_retired: The directory has another engine's life by now: nothing is told of it any more.
    """

    def __init__(self, index: RowSource, segments: SegmentStore) -> None:
        self._index = index
        self._segments = segments
        self.is_retired = False

    def record(self, name: ObjectName) -> ObjectRecord | None:
        """Read the object's row."""
        return row_at(self._index, Family.OBJECTS, keys.object_key(name.shelf, name.key), decode_object)

    def hold(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Held:
        """Read what is known and present of `span` of a version now, and pin it; see `body_source.Holder`."""
        present = None if self.is_retired else self.record(name)
        if present is not None and present.version_id == record.version_id:
            held = self.held(name, present, span)
            if held is not None:
                return held
        if record.state is not ObjectState.CLEAN:
            raise ObjectChangedError(f"{name} was written since it was opened")
        return self._pinned(record, record.extents, ByteRange(0, record.size))

    def held(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Held | None:
        """Pin what a row that was read in this step names of `span`; None where the key has moved on meanwhile.

        Extents that are not in the row itself are read after it, and the writer thread goes on: so they count only
        if the row, read once more, is still of the version.

        Raises:
            EngineClosedError: The holdings are retired.
            OverloadedError: The rows were changed all the time.
        """
        if self.is_retired:
            raise EngineClosedError("the cache directory was re-opened; ask again", retry_after_s=1.0)
        for _ in range(READS_MAX):
            if not record.extents_spilled:
                return self._pinned(record, record.extents, ByteRange(0, record.size))
            extents = read_extents_in(self._index, record, _in_blocks(span)) if span.length else ()
            present = self.record(name)
            if present is None or present.version_id != record.version_id:
                return None
            if present.extents_spilled:
                return self._pinned(present, extents, span)
            record = present
        raise OverloadedError(f"{name} is changed faster than its rows are read")

    def _pinned(self, record: ObjectRecord, extents: tuple[Extent, ...], span: ByteRange) -> Held:
        segment_ids = {extent.location.segment_id for extent in extents}
        return Held(record, extents, self._segments.pin(segment_ids), span)

    def missing(
        self, name: ObjectName, record: ObjectRecord, span: ByteRange
    ) -> tuple[ByteRange, ...] | None:
        """Say what of `span` of a version has to be asked of the origin, in whole blocks, in order.

        What is on its way counts as missing. None where the version is not the newest, or not in the index: nothing would be kept.
        """
        present = None if self.is_retired else self.record(name)
        if present is None or present.version_id != record.version_id:
            return None
        extents = (
            read_extents_in(self._index, present, _in_blocks(span))
            if present.extents_spilled
            else present.extents
        )
        spans = plan(span, record.size, extents)
        return tuple(
            ByteRange(one.fetch_start, one.fetch_stop) for one in spans if isinstance(one, MissingSpan)
        )


def _in_blocks(span: ByteRange) -> ByteRange:
    """Widen a span to whole blocks: so far outwards a plan looks for what is here."""
    return ByteRange(span.start - span.start % BLOCK_BYTES, -(-span.stop // BLOCK_BYTES) * BLOCK_BYTES)
