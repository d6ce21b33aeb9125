"""Compaction: replace sealed journal files by one that holds what of them is still live.

    1  the sealed files cover all sequences up to S; go on once all of them are applied
    2  tiny bodies that lie in the files move to segments (`storage/move_out.py`), then the files' own rows go
    3  checkpoint: the index is durable at S or later, and knows the bodies at their new places
    4  read the files twice, write what is live to one new file (`storage/live_records.py`), synced and named
    5  the new file takes the old ones' place; they are unlinked once no reader has them pinned

A crash up to 4 leaves the old files, and after it the new one, which makes a start ignore and remove the old ones. Nothing has to be
undone or finished in either case. An index that is kept is at S or later and needs nothing of the files; one that is lost is rebuilt
from the new file and the journal after S.

Due is a compaction when the sealed files together pass COMPACT_BYTES, and either they are twice as long as what the last one left, or half
of them is dead by estimate. The first keeps the journal at about twice what is live, and what is written again below what is journaled. The
second sees what died since: live are the rows of the flush queue, of uploads and their parts and of buckets, each taken as RECORD_BYTES, or
as long as the last compaction found them on average, so that an estimate that was wrong is not followed twice.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from storage import keys
from storage.applier import Applier
from storage.commit import Commit
from storage.errors import DamagedError, DirtyBytesLostError, StorageError, UnknownOutcomeError
from storage.family import Family
from storage.filesystem import Filesystem
from storage.journal_files import write_compacted
from storage.journal_format import JournalRecord, damage, journal_path
from storage.journal_log import JournalLog, SealedFile
from storage.journal_reader import BadFrame, JournalReader
from storage.live_records import LiveRecords
from storage.move_out import MoveOut
from storage.records import FORMAT, SegmentRow
from storage.rows import Rows, RowSource
from storage.segments import SegmentStore
from storage.types import MIB
from storage.workers import Workers

log = logging.getLogger(__name__)

COMPACT_BYTES: Final = 64 * MIB
RECORD_BYTES: Final = 1024
"""What one live row takes in a compacted file, before one was written: keys, headers and checksums of an ordinary object."""

RECORD_BYTES_MIN: Final = 128
"""No live row takes less, frames included."""

COUNT_STEP_ROWS: Final = 1000
REST_RUNS: Final = 60
"""So many runs are skipped after damage was found: ten minutes, as it does not heal by itself and each run says it again."""

_COUNTED: Final = (Family.DIRTY, Family.UPLOADS, Family.PARTS, Family.BUCKETS)
_PAST_ALL_KEYS: Final = b"\xff" * 9
"""Above every key of the counted families: numbers of 8 bytes and UTF-8, which holds no 0xff."""


@dataclass(frozen=True, slots=True)
class DropFileRows:
    """Journal files without live bodies leave the index."""

    segment_ids: tuple[int, ...]

    def __call__(self, rows: Rows) -> bool:
        """Drop the files' rows; False where a row still names a place in one, and nothing changed."""
        for segment_id in self.segment_ids:
            if rows.scan(Family.RESIDENTS, *keys.residents_range(segment_id), 1):
                return False
        for segment_id in self.segment_ids:
            if rows.segment(segment_id) is not None:
                rows.delete(Family.SEGMENTS, keys.segment_key(segment_id))
                # A negative count is the mark of a dropped segment, as in cached.DropSegment.
                rows.effects.segments[segment_id] = SegmentRow(FORMAT, segment_id, 0, live_bytes=-1)
        return True


class Compaction:
    """Compacts the journal of one engine; one compaction at a time."""

    def __init__(  # noqa: PLR0913 - the parts it works with, wired once
        self,
        *,
        filesystem: Filesystem,
        index: RowSource,
        journal: JournalLog,
        segments: SegmentStore,
        commit: Commit,
        applier: Applier,
        workers: Workers,
        take_segment_id: Callable[[], int],
        instance_id: bytes,
        compact_bytes: int = COMPACT_BYTES,
    ) -> None:
        self._filesystem = filesystem
        self._index = index
        self._journal = journal
        self._segments = segments
        self._applier = applier
        self._workers = workers
        self._take_segment_id = take_segment_id
        self._instance_id = instance_id
        self._compact_bytes = compact_bytes
        self._move_out = MoveOut(
            index=index, segments=segments, commit=commit, applier=applier, workers=workers
        )
        self._is_running = False
        self._is_stopped = False
        self._rest_runs = 0
        self._record_bytes = RECORD_BYTES
        self._last_bytes: int | None = None

    async def run_if_due(self) -> bool:
        """Compact if it is worth it; see the head of this module. True where a compaction was done."""
        if self._is_stopped or self._rest_runs:
            self._rest_runs = max(0, self._rest_runs - 1)
            return False
        sealed_bytes = sum(file.size_bytes for file in tuple(self._journal.sealed))
        if sealed_bytes < self._compact_bytes:
            if sealed_bytes + self._journal.size_bytes >= self._compact_bytes:
                # The file in use makes it up: the next group seals it, and a later run takes it in.
                self._journal.rotate()
            return False
        return await self._is_half_dead(sealed_bytes) and await self.compact()

    async def _is_half_dead(self, sealed_bytes: int) -> bool:
        if self._last_bytes is None:
            self._last_bytes = await self._workers.run(self._found_bytes)
        if sealed_bytes >= 2 * self._last_bytes:
            return True
        rows_max = sealed_bytes // 2 // self._record_bytes
        return await self._workers.run(self._count_live_rows, rows_max) <= rows_max

    def _found_bytes(self) -> int:
        """Say how long the file is that an earlier process compacted, 0 where there is none."""
        first = self._journal.sealed[0]
        with JournalReader(self._filesystem, first.path) as reader:
            return first.size_bytes if reader.header.is_compacted else 0

    def _count_live_rows(self, rows_max: int) -> int:
        """Count what may be live, but not far over `rows_max`."""
        count = 0
        for family in _COUNTED:
            start = b""
            while count <= rows_max:
                rows = self._index.scan(family, start, _PAST_ALL_KEYS, COUNT_STEP_ROWS)
                count += len(rows)
                if len(rows) < COUNT_STEP_ROWS:
                    break
                start = rows[-1][0] + b"\x00"
        return count

    async def compact(self) -> bool:
        """Compact the files that are sealed now; False where that is postponed or there is nothing to do.

        Raises:
            UnknownOutcomeError: A sync or an index write failed. Nothing was removed, and none is tried again in this process.
        """
        if self._is_running or self._is_stopped:
            return False
        self._is_running = True
        try:
            return await self._compact(tuple(self._journal.sealed))
        except UnknownOutcomeError:
            self._is_stopped = True
            raise
        except (DamagedError, DirtyBytesLostError) as error:
            self._rest_runs = REST_RUNS
            log.critical("the journal is not compacted: %s", error)
        except StorageError as error:
            log.warning("the journal is compacted later: %s", error)
        finally:
            self._is_running = False
        return False

    async def _compact(self, sealed: tuple[SealedFile, ...]) -> bool:
        if not sealed:
            return False
        sequence = await self._workers.run(self._covered_sequence, sealed)
        if not 0 < sequence <= self._applier.applied_sequence:
            return False
        old_ids = tuple(file.segment_id for file in sealed)
        if not await self._move_out.empty(old_ids):
            return False
        if not await self._applier.change(DropFileRows(old_ids)):
            return False
        durable_sequence = await self._applier.checkpoint()
        assert durable_sequence >= sequence, f"checkpoint at {durable_sequence} before {sequence}"
        segment_id = self._take_segment_id()
        size_bytes = await self._workers.run(self._write, sealed, segment_id, sequence)
        self._take_over(sealed, SealedFile(segment_id, journal_path(segment_id), size_bytes, sequence))
        await self._learn(size_bytes)
        return True

    async def _learn(self, size_bytes: int) -> None:
        """Keep what the next estimate goes by."""
        rows = await self._workers.run(self._count_live_rows, size_bytes // RECORD_BYTES_MIN)
        self._record_bytes = max(RECORD_BYTES_MIN, size_bytes // max(1, rows))
        self._last_bytes = size_bytes

    def _covered_sequence(self, sealed: Sequence[SealedFile]) -> int:
        """Say up to which sequence the files go: S. Files without a record say little; a compacted one, the first, says it itself."""
        with JournalReader(self._filesystem, sealed[0].path) as reader:
            covered = reader.header.checkpoint_sequence
        return max(covered, *(file.last_sequence for file in sealed))

    def _write(self, sealed: Sequence[SealedFile], segment_id: int, sequence: int) -> int:
        """Write the compacted file; give its size. Runs in a worker thread."""
        return write_compacted(
            self._filesystem, segment_id, self._instance_id, sequence, self._live_records(sealed)
        )

    def _live_records(self, sealed: Sequence[SealedFile]) -> Iterator[JournalRecord]:
        live = LiveRecords(self._index, (file.segment_id for file in sealed))
        for record in self._records(sealed):
            live.note(record)
        for record in self._records(sealed):
            mutation = live.live(record)
            if mutation is not None:
                yield JournalRecord(record.sequence, mutation)

    def _records(self, sealed: Sequence[SealedFile]) -> Iterator[JournalRecord]:
        """Read the files, one group in memory at a time."""
        for file in sealed:
            with JournalReader(self._filesystem, file.path) as reader:
                for group in reader.groups(file.size_bytes):
                    if isinstance(group, BadFrame):
                        raise damage(file.path, group.offset, group.reason)
                    yield from group.records

    def _take_over(self, sealed: Sequence[SealedFile], compacted: SealedFile) -> None:
        """Put the new file in the old ones' place. Nothing is awaited here."""
        self._segments.register_journal(compacted.segment_id, compacted.path, is_own=True)
        # In place: the commit's thread may append a file at this very moment.
        self._journal.sealed[: len(sealed)] = [compacted]
        for file in sealed:
            is_removed = self._segments.remove(file.segment_id)
            assert is_removed, f"{file.path} has space that is not settled"
        log.info(
            "journal compacted: %d files of %d bytes to %d bytes",
            len(sealed),
            sum(file.size_bytes for file in sealed),
            compacted.size_bytes,
        )
