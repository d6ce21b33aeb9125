"""Segments: append-only files that hold the bodies.

    segments/<16 hex digits of the id>.seg     no header; rows of the index say what lies where, and its checksums

States of a segment. *Open*: the one of its stream that gives out space. *Sealed*: gives out no more, for good; a start seals all.
*Removed*: no row names it, it waits for its pins. *Leaving*: being unlinked. An id never comes back.

Space. `reserve` gives a body its ranges before the first byte arrives, and holds them until `settle`: after the commit of the rows
that name them, or after the body failed. A segment with a held range is not removed, since a row for it may yet come; so reclaim asks
`SegmentState.is_settled` before it drops rows. What was not written of a settled range is dead space. Open segments count whole
against the capacity, so that what has been promised is always there. The disk's free space is a sample less what was promised since
and what of it is not written yet: `reserve` itself never waits.

Writing, and what is durable: `storage/segment_writes.py`. Reading, pins and checked blocks: `storage/segment_reads.py`.

Re-opening. An engine that re-opens its directory adopts it with a new store; the old one is retired. It gives out, writes and syncs
nothing more, and goes on for who has pinned something in it, each block checked anew: what this process wrote before a sync failed may
read back as something else. The new store unlinks nothing that is pinned in the one before.

Threads. `reserve`, `settle`, `pin`, `remove`, `reader` and the questions are called in the event loop, and do not wait; the others
block and run in worker threads. One lock guards all that is kept in memory (`storage/segment_table.py`).
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from storage.checksums import BlockChecksums, checksums
from storage.errors import DiskFailedError
from storage.filesystem import Filesystem
from storage.reservations import Piece, Reservation, cut_body, growth_bytes
from storage.segment_files import (
    DIRECTORY,
    Adoption,
    Segment,
    SegmentLimits,
    SegmentState,
    segment_id_of,
    segment_path,
    state_of,
)
from storage.segment_reads import Pin, SegmentReads
from storage.segment_table import SegmentTable
from storage.segment_writes import SegmentWrites
from storage.types import Stream

__all__ = [
    "Adoption",
    "BlockChecksums",
    "Pin",
    "Reservation",
    "SegmentLimits",
    "SegmentState",
    "SegmentStore",
    "checksums",
    "segment_path",
]

_ROOT: Final = ""


class SegmentStore:
    """All segments of one cache directory. `adopt` comes first.

    `write` and `sync` are those of `SegmentWrites`; `pin`, `reader`, `read`, `is_verified`, `verify_block`, `check_block` and
    `distrust` those of `SegmentReads`.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        limits: SegmentLimits,
        take_id: Callable[[], int],
        predecessor: "SegmentStore | None" = None,
    ) -> None:
        """Make a store of a directory that is still to be adopted.

        Args:
            filesystem: Where the files are.
            limits: The bounds.
            take_id: Gives an id never given before, without waiting; what it raises passes through `reserve`.
            predecessor: The retired store of the same directory, whose pins count here too.
        """
        self._predecessor = predecessor
        self._filesystem = filesystem
        self._limits = limits
        self._take_id = take_id
        self._table = table = SegmentTable(limits)
        self._lock = table.lock
        self._segments = table.segments
        self._open = table.open
        self._space = table.space
        writes = SegmentWrites(table, filesystem)
        self._reads = reads = SegmentReads(table, filesystem, readers_max=limits.readers_max)
        self._removed: set[int] = set()
        # What each request calls: the parts' own calls, so that none is made through another.
        self.write: Final = writes.write
        self.sync: Final = writes.sync
        self.pin: Final = reads.pin
        self.reader: Final = reads.reader
        self.read: Final = reads.read
        self.is_verified: Final = reads.is_verified
        self.verify_block: Final = reads.verify_block
        self.check_block: Final = reads.check_block
        self.distrust: Final = reads.distrust

    # --- start and end -----------------------------------------------------------------------------------------------

    def adopt(self, live_segment_ids: Collection[int]) -> Adoption:
        """Take over the directory, creating it durably, and seal what is there. Blocks; called once, before all but journals.

        `live_segment_ids` are those that rows name, journal files that are registered already among them or not. Orphans are
        removed already: `take_removable` gives them.

        Raises:
            DiskFailedError: The directory could not be made or read.
        """
        assert not self._open, "adopt comes before the first reservation"
        live = frozenset(live_segment_ids)
        try:
            self._filesystem.make_directory(DIRECTORY)
            self._filesystem.sync_directory(_ROOT)
            found = {segment_id: self._size_on_disk(segment_id) for segment_id in self._ids_on_disk()}
        except OSError as error:
            raise DiskFailedError(f"segments cannot be listed: {error}") from error
        for segment_id, size_bytes in found.items():
            segment = Segment(segment_id, segment_path(segment_id), None, end=size_bytes, is_own=False)
            segment.is_removed = segment_id not in live
            self._segments[segment_id] = segment
            self._space.adopt(size_bytes)
        orphans = found.keys() - live
        self._removed |= orphans
        self.sample_free_bytes()
        return Adoption(tuple(sorted(orphans)), tuple(sorted(live - self._segments.keys())))

    def _ids_on_disk(self) -> list[int]:
        names = self._filesystem.list_directory(DIRECTORY)
        return [segment_id for name in names if (segment_id := segment_id_of(name)) is not None]

    def _size_on_disk(self, segment_id: int) -> int:
        file = self._filesystem.open_reader(segment_path(segment_id))
        try:
            return file.size()
        finally:
            file.close()

    def register_journal(self, segment_id: int, path: str, *, is_own: bool) -> None:
        """Let a journal file be read, pinned and removed by its segment id. `is_own` where this process writes it."""
        with self._lock:
            assert segment_id not in self._segments, f"segment {segment_id:x} is known already"
            segment = Segment(segment_id, path, Stream.JOURNAL, end=0, is_own=is_own)
            segment.is_sealed = True
            self._segments[segment_id] = segment

    def close(self) -> None:
        """Close all descriptors, syncing nothing; nothing is under way and nothing is called afterwards."""
        with self._lock:
            files = [
                *self._reads.take_all(),
                *(s.file for s in self._segments.values() if s.file is not None),
            ]
        for file in files:
            file.close()
        if self._predecessor is not None:
            self._predecessor.close()

    def retire(self) -> None:
        """Give out, write and sync nothing more, for good; see the head of this module. What is under way in a thread goes on."""
        with self._lock:
            self._table.is_retired = True
            for segment in tuple(self._segments.values()):
                self._table.distrust_held(segment)
                self._table.seal_held(segment)
            self._reads.close_if_unused()

    @property
    def has_pins(self) -> bool:
        """Whether somebody reads any segment, here or in the stores before."""
        with self._lock:
            if any(segment.pins or segment.calls for segment in self._segments.values()):
                return True
        return self._predecessor is not None and self._predecessor.has_pins

    def is_pinned(self, segment_id: int) -> bool:
        """Whether somebody reads a segment, here or in the stores before."""
        with self._lock:
            segment = self._segments.get(segment_id)
            if segment is not None and (segment.pins or segment.calls):
                return True
        return self._predecessor is not None and self._predecessor.is_pinned(segment_id)

    # --- space -------------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes given out in all segments, written or not, live or dead."""
        return self._space.used_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes left for new segments under the capacity and on the disk; less than nothing where a bound was passed."""
        with self._lock:
            return self._space.room_bytes(self._open_tails_bytes())

    @property
    def disk_room_bytes(self) -> int:
        """Bytes that the disk has above its reserve, as far as is known; what rides in the journal may take no more."""
        return self._space.disk_room_bytes

    @property
    def segment_bytes(self) -> int:
        """How large a segment gets."""
        return self._limits.segment_bytes

    def reserve(self, length: int, stream: Stream) -> tuple[Reservation, ...]:
        """Give a body of `length` bytes its ranges, in the order of the body, and hold them until `settle`.

        Cut as `reservations.cut_body` says. All or nothing. Does not wait.

        Raises:
            DiskFullError: It would pass the capacity, or touch the disk's reserve.
            DiskFailedError: The store is retired.
        """
        segment_bytes = self._limits.segment_bytes
        with self._lock:
            self._table.refuse_if_retired()
            current = self._open.get(stream)
            room_bytes = segment_bytes - current.end if current else 0
            pieces = tuple(cut_body(length, room_bytes=room_bytes, segment_bytes=segment_bytes))
            growth = growth_bytes(pieces, room_bytes=room_bytes, segment_bytes=segment_bytes)
            self._space.check(length, growth, self._open_tails_bytes())
            new_ids = [self._take_id() for piece in pieces if piece.opens_segment]
            return self._place(stream, pieces, iter(new_ids))

    def _open_tails_bytes(self) -> int:
        segment_bytes = self._limits.segment_bytes
        return sum([segment_bytes - one.end for one in self._open.values() if one.end < segment_bytes])

    def _place(
        self, stream: Stream, pieces: Iterable[Piece], new_ids: Iterable[int]
    ) -> tuple[Reservation, ...]:
        ids = iter(new_ids)
        placed: list[Reservation] = []
        for piece in pieces:
            if piece.opens_segment:
                self._open_segment(next(ids), stream)
            segment = self._open[stream]
            placed.append(Reservation(segment.segment_id, segment.end, piece.length))
            segment.held[segment.end] = piece.length
            segment.end += piece.length
            self._space.promise(piece.length)
        return tuple(placed)

    def _open_segment(self, segment_id: int, stream: Stream) -> None:
        assert segment_id not in self._segments, f"segment id {segment_id:x} came back"
        if stream in self._open:
            self._table.seal_held(self._open[stream])
        segment = Segment(segment_id, segment_path(segment_id), stream, end=0, is_own=True)
        self._segments[segment_id] = self._open[stream] = segment

    def seal(self, segment_id: int) -> bool:
        """End an open segment before it is full, since what it holds may go; False where a range of it is not settled."""
        with self._lock:
            segment = self._segments.get(segment_id)
            if segment is None or segment.held:
                return False
            self._table.seal_held(segment)
            return True

    def settle(self, reservations: Iterable[Reservation]) -> None:
        """Let go of ranges: the rows that name them are committed, or the body failed. Settling twice is allowed.

        No write to them is accepted afterwards. What of them must be durable has been synced.
        """
        with self._lock:
            for reservation in reservations:
                segment = self._segments.get(reservation.segment_id)
                if segment is not None:
                    self._space.settle(segment.held.pop(reservation.offset, 0))
                    self._table.close_if_idle(segment)

    def sample_free_bytes(self) -> None:
        """Look how much the disk has left. Blocks shortly; to be called every second or so.

        Raises:
            DiskFailedError: The volume does not answer.
        """
        with self._lock:
            begun = self._space.begin_sample()
        try:
            free_bytes = self._filesystem.free_bytes()
        except OSError as error:
            raise DiskFailedError(f"free space is unknown: {error}") from error
        with self._lock:
            self._space.end_sample(begun, free_bytes)

    # --- removal -----------------------------------------------------------------------------------------------------

    def state(self, segment_id: int) -> SegmentState | None:
        """Say how a segment stands; None where it is unknown or removed."""
        with self._lock:
            segment = self._segments.get(segment_id)
            return None if segment is None or segment.is_removed else state_of(segment)

    def states(self) -> list[SegmentState]:
        """Say how all segments stand, journal files and removed ones excepted, in no order."""
        with self._lock:
            return [
                state_of(segment)
                for segment in self._segments.values()
                if not segment.is_removed and segment.stream is not Stream.JOURNAL
            ]

    def remove(self, segment_id: int) -> bool:
        """Give up a segment, or journal file, that no row names any more; `take_removable` gives it once nobody reads it.

        Its open readers go on. False, and nothing is changed, where a range of it is not settled: a row may yet come.
        """
        with self._lock:
            segment = self._segments.get(segment_id)
            if segment is None:
                return True
            if segment.held:
                return False
            self._table.seal_held(segment)
            segment.is_removed = True
            self._removed.add(segment_id)
            return True

    def take_removable(self) -> list[int]:
        """Give the removed segments that nobody uses, each once, for `unlink`. They cannot be pinned from here on."""
        before = self._predecessor
        if before is not None and not before.has_pins:
            before = self._predecessor = None
        with self._lock:
            free = [
                segment_id
                for segment_id in self._removed
                if not self._segments[segment_id].pins
                and not self._segments[segment_id].calls
                and (before is None or not before.is_pinned(segment_id))
            ]
            self._removed.difference_update(free)
            for segment_id in free:
                self._segments[segment_id].is_leaving = True
        return sorted(free)

    def unlink(self, segment_id: int) -> None:
        """Unlink a segment that `take_removable` gave, and forget it. Blocks: a large file's blocks take a while to free.

        Raises:
            DiskFailedError: It could not be unlinked; `take_removable` gives it again.
        """
        with self._lock:
            segment = self._segments[segment_id]
            assert segment.is_leaving, f"segment {segment_id:x} is not to be unlinked"
            files = [file for file in (segment.file, self._reads.take_reader(segment_id)) if file is not None]
            segment.file = None
        for file in files:
            file.close()
        try:
            self._filesystem.unlink(segment.path)
        except FileNotFoundError:
            pass  # reserved and never written, or unlinked before a failure
        except OSError as error:
            with self._lock:
                self._removed.add(segment_id)
            raise DiskFailedError(f"segment {segment_id:x} cannot be unlinked: {error}") from error
        with self._lock:
            del self._segments[segment_id]
            self._table.verified.forget(segment_id)
            self._space.remove(segment.end)
        self.sample_free_bytes()
