"""What this gateway has acknowledged, key by key in the order of keys, for who compares it with the origin.

Two kinds of rows say it: the overlay, of what is dirty, and the clean rows of versions that were written here, flushed or written
through, which are marked so. Versions that were only read from the origin are left out: nobody was promised anything about them.

A confirmed delete leaves no row, a copy, a conditional write and a write around the cache are the origin's own, and a version that a
read found gone or replaced at the origin is forgotten. An index that was rebuilt from the journal knows only what is dirty.
"""

from typing import Final

import msgspec

from storage import keys
from storage.acknowledgements import AcknowledgedLine, AcknowledgedPage
from storage.dirty_rows import DirtyRows
from storage.family import Family
from storage.flush import FlushPlanner
from storage.flush_events import FlushState
from storage.records import (
    ObjectRecord,
    ObjectState,
    OverlayRecord,
    PartSize,
    WrittenHead,
    was_written_here,
)
from storage.rows import (
    RowSource,
    decode_object,
    decode_overlay,
    decode_written,
    decoded,
    row_at,
)
from storage.types import KIB, ObjectName

ROWS_MAX: Final = 500
"""Rows in one step of the event loop: some milliseconds."""

PARTS_MAX: Final = 1000
"""Parts that one page describes, but for the last object's, which has up to 10,000."""

BYTES_MAX: Final = 256 * KIB
"""Bytes of rows that are read for one page, about: a row of many parts is as long as hundreds of others."""

FIRST_ROWS: Final = 8


def acknowledged_page(
    index: RowSource, rows: DirtyRows, planner: FlushPlanner, scope: tuple[str, str, str], *, is_deep: bool
) -> AcknowledgedPage:
    """Give the next lines of a prefix, and the key to go on after.

    Args:
        index: Read in one step.
        rows: Of the flush queue.
        planner: Knows the newest state and reason of what is dirty.
        scope: Bucket, prefix, and the key after which to begin ("" for the first).
        is_deep: Say also headers, metadata, checksums and the sizes of parts.
    """
    bucket, prefix, after = scope
    start, stop = keys.prefix_range(bucket, prefix)
    if after:
        start = max(start, keys.object_key(bucket, after) + b"\x00")
    objects, is_more = _objects(index, start, stop)
    overlay = index.scan(Family.OVERLAY, start, stop, ROWS_MAX)
    # Where one scan is full, the other may reach past it: the page ends where both are known.
    ends = [objects[-1][0]] if is_more else []
    ends += [overlay[-1][0]] if len(overlay) == ROWS_MAX else []
    last = min(ends, default=None)
    dirty = {
        key: decoded(index, Family.OVERLAY, key, value, decode_overlay)
        for key, value in overlay
        if last is None or key <= last
    }
    known = {key: value for key, value in objects if last is None or key <= last}
    lines: list[AcknowledgedLine] = []
    parts = 0
    for row_key in sorted({*dirty, *known}):
        name = keys.split_object_key(row_key)
        head = _head(index, row_key, known.get(row_key), is_deep=is_deep)
        line = _line(name, head, dirty.get(row_key), (rows, planner))
        if line is not None:
            lines.append(line)
            parts += sum(count for _, count in line.part_runs)
        if parts >= PARTS_MAX:
            return AcknowledgedPage(tuple(lines), name.key)
    return AcknowledgedPage(tuple(lines), "" if last is None else keys.split_object_key(last).key)


def _objects(index: RowSource, start: bytes, stop: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Read the rows of one page, by steps that grow while the rows are short; and say whether more may follow."""
    found: list[tuple[bytes, bytes]] = []
    size, step = 0, FIRST_ROWS
    while size < BYTES_MAX and len(found) < ROWS_MAX:
        step = min(step, ROWS_MAX - len(found))
        rows = index.scan(Family.OBJECTS, start, stop, step)
        found += rows
        if len(rows) < step:
            return found, False
        size += sum(len(value) for _, value in rows)
        start, step = rows[-1][0] + b"\x00", 2 * step
    return found, True


def acknowledged_line(
    index: RowSource, rows: DirtyRows, planner: FlushPlanner, name: ObjectName
) -> AcknowledgedLine | None:
    """Say what was acknowledged of one key; None where nothing is known of it."""
    row_key = keys.object_key(name.bucket, name.key)
    dirty = row_at(index, Family.OVERLAY, row_key, decode_overlay)
    head = _head(index, row_key, index.get(Family.OBJECTS, row_key), is_deep=True)
    return _line(name, head, dirty, (rows, planner))


def _head(
    index: RowSource, row_key: bytes, row: bytes | None, *, is_deep: bool
) -> WrittenHead | ObjectRecord | None:
    if row is None:
        return None
    if is_deep:
        return decoded(index, Family.OBJECTS, row_key, row, decode_object)
    return decoded(index, Family.OBJECTS, row_key, row, decode_written)


def _line(
    name: ObjectName,
    head: WrittenHead | ObjectRecord | None,
    dirty: OverlayRecord | None,
    flush: tuple[DirtyRows, FlushPlanner],
) -> AcknowledgedLine | None:
    if dirty is not None and dirty.is_tombstone:
        head = None
    if dirty is None and (head is None or not _was_promised(head)):
        return None
    line = AcknowledgedLine(name.key) if head is None else _of_version(name.key, head)
    return line if dirty is None else _of_change(line, name, dirty, *flush)


def _was_promised(head: WrittenHead | ObjectRecord) -> bool:
    return head.state is ObjectState.CLEAN and was_written_here(head)


def _of_version(key: str, head: WrittenHead | ObjectRecord) -> AcknowledgedLine:
    line = AcknowledgedLine(
        key,
        size=head.size,
        etag=head.etag,
        origin_etag="" if head.origin is None else head.origin.etag,
    )
    if not isinstance(head, ObjectRecord):
        return line
    return msgspec.structs.replace(
        line,
        headers=head.headers,
        user_metadata=head.user_metadata,
        tags=head.tags,
        checksums=head.checksums,
        part_runs=_runs(head.parts),
    )


def _of_change(
    line: AcknowledgedLine, name: ObjectName, dirty: OverlayRecord, rows: DirtyRows, planner: FlushPlanner
) -> AcknowledgedLine:
    entry = rows.entry(dirty.sequence)
    state = planner.state_of(name)
    return msgspec.structs.replace(
        line,
        state=FlushState.QUEUED.value if state is None else state.value,
        is_tombstone=dirty.is_tombstone,
        acknowledged_at_s=0.0 if entry is None else entry.acknowledged_at_s,
        reason=planner.reason_of(name) or planner.suspension_of(name.bucket),
    )


def _runs(parts: tuple[PartSize, ...]) -> tuple[tuple[int, int], ...]:
    """Write sizes of parts as runs of (size, how many)."""
    runs: list[tuple[int, int]] = []
    for part in parts:
        if runs and runs[-1][0] == part.size:
            runs[-1] = (part.size, runs[-1][1] + 1)
        else:
            runs.append((part.size, 1))
    return tuple(runs)
