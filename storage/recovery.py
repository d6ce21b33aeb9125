"""From a directory to a consistent engine, in numbered steps.

    1  lock the directory, read or make FORMAT
    2  scan the journal, cut a torn tail, make durable what is accepted: a killed process leaves it in the page cache
    3  open the index; one that is damaged, of another instance or behind the journal's checkpoint counts as missing
    4  replay what the journal has and the index has not, with the same `apply` as at run time
    5  load what the loop keeps in memory: the flush queue, segments, facts, pointers
    6  begin a new journal file, whose first group reserves ids and starts the epoch; nothing is appended to an old one
    7  checkpoint the index, then remove the files that an interrupted compaction has left

Steps 3 and 4 are in `storage/index_recovery.py`. No data is scanned, so a start takes a second or two at any size:
what a row names is checked when it is first read. A missing, short or wrong clean block is a miss then; a dirty one an
error and an alarm. Segments that no row names are found by `SegmentStore.adopt`.

The epoch is on disk before anything of the process can be: from here until it ends in order, a stop is unclean, and
clean records that were validated before it are validated again before their first use.
"""

import logging
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from storage import keys
from storage.applier import Sequenced, write_group
from storage.errors import DamagedError, StorageError
from storage.family import Family, IndexWrite
from storage.filesystem import Filesystem, Lock, disk_error
from storage.ids import Ids
from storage.index import Index
from storage.index_recovery import (
    IndexBrokenError,
    IndexHome,
    finish_rebuild,
    fresh_index,
    index_rows,
    open_index,
    refuse_index_ahead,
    replay_journal,
)
from storage.journal import Group, JournalWriter
from storage.journal_files import remove_files
from storage.journal_format import JOURNAL_DIRECTORY, journal_path
from storage.journal_log import JournalLog, SealedFile
from storage.journal_scan import JournalScan, scan, settle
from storage.layout import PROBE_PATH, ROOT, SEGMENTS_DIRECTORY, Layout, mark_begun, open_layout, take_lock
from storage.mutations import POINTER_PREFIX
from storage.records import (
    FORMAT,
    BucketFacts,
    DirtyEntry,
    EpochEnded,
    EpochStarted,
    IdsReserved,
    OriginUploadOpened,
    PointerSet,
    SegmentRow,
    UploadRecord,
    encode,
)
from storage.rows import (
    APPLIED_SEQUENCE,
    EPOCH,
    RESERVED_IDS,
    all_rows,
    decode_dirty,
    decode_facts,
    decode_head,
    decode_overlay,
    decode_segment,
    decode_upload,
    read_origin_uploads,
)
from storage.standing_losses import StandingLosses, standing_losses

__all__ = ["IndexHome", "Recovered", "RecoveryParts", "nothing_is_pinned", "probe_disk", "recover"]

log = logging.getLogger(__name__)

PROBE_BYTES: Final = bytes(4096)

_SEGMENT_ID: Final = re.compile("[0-9a-f]{16}")

_epoch_decoder: Final[msgspec.msgpack.Decoder[EpochStarted | EpochEnded]] = msgspec.msgpack.Decoder(
    EpochStarted | EpochEnded
)
_reserved_decoder: Final = msgspec.msgpack.Decoder(IdsReserved)
_pointer_decoder: Final = msgspec.msgpack.Decoder(PointerSet)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A consistent directory, and what the loop keeps in memory of it.

    Attributes:
        journal_files: Every journal file that a location may point into: segment id and path.
        next_sequence: That of the next mutation; all before it are applied.
        epoch: This process', started in the journal already.
        trusted_epoch: Clean records validated in an earlier epoch are validated before their first use.
        is_unclean: The last process did not stop in order, or the index was rebuilt.
        uploads: The open ones.
        origin_uploads: Uploads of ours that may be at the origin, whether something names them or not.
        losses: What repairs found lost, and no operator has dealt with.
    """

    layout: Layout
    lock: Lock
    index: Index
    journal: JournalLog
    journal_files: tuple[tuple[int, str], ...]
    next_sequence: int
    applied_sequence: int
    ids: Ids
    epoch: int
    trusted_epoch: int
    is_unclean: bool
    dirty: tuple[DirtyEntry, ...]
    segments: tuple[SegmentRow, ...]
    facts: tuple[BucketFacts, ...]
    uploads: tuple[UploadRecord, ...]
    origin_uploads: tuple[OriginUploadOpened, ...]
    pointers: tuple[PointerSet, ...]
    losses: tuple[StandingLosses, ...] = ()

    @property
    def open_uploads(self) -> int:
        """How many uploads are open."""
        return len(self.uploads)

    @property
    def named_origin_uploads(self) -> frozenset[str]:
        """Uploads of ours at the origin that a change or an open upload goes on with."""
        carrying = [entry.origin_upload_id for entry in self.dirty]
        return frozenset(carrying + [upload.origin_upload_id for upload in self.uploads])

    def release(self) -> None:
        """Close what recovery opened, for a start that fails afterwards."""
        self.journal.close()
        self.index.close()
        self.lock.close()


def nothing_is_pinned(_segment_id: int) -> bool:
    """Say so at a start, when nobody reads yet."""
    return False


@dataclass(frozen=True, slots=True)
class RecoveryParts:
    """What recovery works with.

    `lock` is None at a start; an engine that re-opens holds it, and goes on to hold it where that fails. It also knows what was
    acknowledged: a journal that ends before `acknowledged_sequence` is damaged, though its end may look torn. And its readers go on:
    a file that `is_pinned` names by its segment id is not unlinked, since who pinned it may not have opened it yet.
    """

    filesystem: Filesystem
    index_home: IndexHome
    origin: str
    fresh_instance_id: bytes
    lock: Lock | None = None
    acknowledged_sequence: int = 0
    is_pinned: Callable[[int], bool] = nothing_is_pinned


def recover(parts: RecoveryParts) -> Recovered:
    """Bring a directory to a consistent engine. Blocks.

    Raises:
        LockedError: Another process has the directory.
        FormatError: It is of another origin or a newer format.
        DamagedError: It contradicts itself in a way that must not be repaired silently.
        DiskFullError, DiskFailedError, UnknownOutcomeError: The disk refused; try again.
    """
    lock = parts.lock or take_lock(parts.filesystem)
    try:
        layout = open_layout(parts.filesystem, origin=parts.origin, fresh_instance_id=parts.fresh_instance_id)
        scanned = _accept_journal(parts, layout)
        opened = _open(parts, layout, scanned)
        try:
            return _begin(parts, lock, layout, scanned, opened)
        except BaseException:
            opened.index.close()
            raise
    except OSError as error:
        _let_go(parts, lock)
        raise disk_error(error, "recovery") from error
    except BaseException:
        _let_go(parts, lock)
        raise


def _let_go(parts: RecoveryParts, lock: Lock) -> None:
    if parts.lock is None:
        lock.close()


def probe_disk(filesystem: Filesystem) -> None:
    """Look whether the disk takes a file, its bytes, their sync and its name again. Blocks.

    Raises:
        DiskFullError, DiskFailedError: It does not.
    """
    try:
        with suppress(FileNotFoundError):
            filesystem.unlink(PROBE_PATH)
        file = filesystem.create(PROBE_PATH)
        try:
            file.pwrite(0, PROBE_BYTES)
            file.fdatasync()
        finally:
            file.close()
        filesystem.unlink(PROBE_PATH)
        filesystem.sync_directory(ROOT)
    except OSError as error:
        raise disk_error(error, "a write to see whether the disk is good again") from error


# --- step 2 ----------------------------------------------------------------------------------------------------------


def _accept_journal(parts: RecoveryParts, layout: Layout) -> JournalScan:
    """Make sure that what is accepted is on the disk before anything is answered from it.

    `settle` copies the last file rather than sync it: after a sync that failed in this boot, in this process or the one
    before, what reads back may not be on the disk though a later sync says so.
    """
    filesystem = parts.filesystem
    found = scan(filesystem)
    if found.instance_id not in {None, layout.instance_id}:
        raise DamagedError("the journal is of another instance than FORMAT; see `forebay fsck`")
    if not found.files and (layout.has_begun or filesystem.list_directory(SEGMENTS_DIRECTORY)):
        # The journal begins before the first body: without it nobody knows what was dirty.
        raise DamagedError("the journal is missing; see `forebay fsck`")
    if found.torn is not None:
        # Looked at before anything is cut: an index that has applied what is torn shows that it was acknowledged.
        refuse_index_ahead(parts.index_home, layout, found)
        log.warning("%s: cut at %d: %s", found.torn.path, found.torn.offset, found.torn.reason)
    _refuse_lack(parts, found)
    settled = settle(filesystem)
    # Once more: what was only in the page cache may have been dropped before it was copied.
    _refuse_lack(parts, settled)
    return settled


def _refuse_lack(parts: RecoveryParts, scanned: JournalScan) -> None:
    if scanned.last_sequence < parts.acknowledged_sequence:
        raise DamagedError(
            f"the journal ends at {scanned.last_sequence}, and sequence {parts.acknowledged_sequence} was acknowledged: "
            "a part of it is missing; see `forebay fsck`"
        )


# --- steps 3 to 5 ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Opened:
    """An index that holds all that the journal says, and what was read of it."""

    index: Index
    reserved: IdsReserved
    last_epoch: EpochStarted | EpochEnded
    is_rebuilt: bool
    dirty: tuple[DirtyEntry, ...]
    segments: tuple[SegmentRow, ...]
    facts: tuple[BucketFacts, ...]
    uploads: tuple[UploadRecord, ...]
    origin_uploads: tuple[OriginUploadOpened, ...]
    pointers: tuple[PointerSet, ...]


def _open(parts: RecoveryParts, layout: Layout, scanned: JournalScan) -> _Opened:
    """Open the index and bring it up to the journal; one that turns out to be broken on the way is rebuilt, once."""
    index, is_fresh = open_index(parts.index_home, layout, scanned)
    try:
        return _fill(parts.filesystem, layout, scanned, index, is_fresh=is_fresh)
    except IndexBrokenError as error:
        index.close()
        if is_fresh:
            raise DamagedError(f"the index cannot be read though it is new: {error}") from error
        log.warning("the index is rebuilt from the journal: %s", error)
    except BaseException:
        index.close()
        raise
    index = fresh_index(parts.index_home)
    try:
        return _fill(parts.filesystem, layout, scanned, index, is_fresh=True)
    except BaseException:
        index.close()
        raise


def _fill(
    filesystem: Filesystem, layout: Layout, scanned: JournalScan, index: Index, *, is_fresh: bool
) -> _Opened:
    replay_journal(filesystem, scanned, index)
    if is_fresh:
        finish_rebuild(index, layout)
    with index_rows():
        reserved = index.get(Family.META, RESERVED_IDS)
        epoch = index.get(Family.META, EPOCH)
        uploads = (decode_upload(value) for _, value in all_rows(index, Family.UPLOADS))
        dirty = tuple(decode_dirty(value) for _, value in all_rows(index, Family.DIRTY))
        if not is_fresh:
            _check_dirty_rows(index, dirty)
        return _Opened(
            index,
            IdsReserved(FORMAT, 1, 1) if reserved is None else _reserved_decoder.decode(reserved),
            EpochEnded(FORMAT, 0, 1) if epoch is None else _epoch_decoder.decode(epoch),
            is_rebuilt=is_fresh and bool(scanned.files),
            dirty=dirty,
            segments=tuple(decode_segment(value) for _, value in all_rows(index, Family.SEGMENTS)),
            facts=tuple(decode_facts(value) for _, value in all_rows(index, Family.BUCKETS)),
            uploads=tuple(upload for upload in uploads if not upload.completed_at_s),
            origin_uploads=read_origin_uploads(index),
            pointers=tuple(
                _pointer_decoder.decode(value)
                for key, value in all_rows(index, Family.META)
                if key.startswith(POINTER_PREFIX)
            ),
        )


def _check_dirty_rows(index: Index, dirty: Iterable[DirtyEntry]) -> None:
    """Hold the rows of each change against each other.

    RocksDB takes the damaged end of its manifest for a torn one; families then differ in age.

    Raises:
        IndexBrokenError: They contradict each other; the journal has all of them.
    """
    for entry in dirty:
        place = keys.object_key(entry.bucket, entry.key)
        overlay, value = index.get(Family.OVERLAY, place), index.get(Family.OBJECTS, place)
        is_overlaid = overlay is not None and decode_overlay(overlay).sequence == entry.sequence
        version_id = 0 if value is None else decode_head(value).version_id
        if not is_overlaid or (not entry.is_tombstone and version_id != entry.version_id):
            raise IndexBrokenError(f"the rows of change {entry.sequence} contradict each other")


# --- steps 6 and 7 ---------------------------------------------------------------------------------------------------


def _begin(
    parts: RecoveryParts, lock: Lock, layout: Layout, scanned: JournalScan, opened: _Opened
) -> Recovered:
    filesystem = parts.filesystem
    is_unclean = opened.is_rebuilt or isinstance(opened.last_epoch, EpochStarted)
    epoch = opened.last_epoch.epoch + 1
    started = EpochStarted(FORMAT, epoch, epoch if is_unclean else opened.last_epoch.trusted_epoch)
    # The first journal file of a start is named before the reservation that covers its id is durable.
    counter = max(opened.reserved.segment_counter_limit, _counter_on_disk(filesystem) + 1)
    ids = Ids(layout.node, next_version_id=opened.reserved.version_id_limit, next_segment_counter=counter + 1)
    reserved = ids.reservation()
    first = scanned.last_sequence + 1
    group: list[Sequenced] = [(first, reserved), (first + 1, started)]
    # An index that takes no write or sync shows it now: else each attempt to re-open would leave a journal file behind.
    opened.index.write([IndexWrite(Family.META, APPLIED_SEQUENCE, scanned.last_sequence.to_bytes(8))])
    opened.index.checkpoint()
    losses = standing_losses(filesystem)
    journal = _begin_journal(filesystem, layout, scanned, keys.segment_id(layout.node, counter), group)
    try:
        layout = mark_begun(filesystem, layout)
        write_group(opened.index, group)
        opened.index.checkpoint()
        kept = _remove_left_files(parts, scanned, opened)
    except BaseException:
        journal.close()
        raise
    ids.adopt(reserved)
    files = [*kept, *((file.segment_id, file.path) for file in journal.sealed)]
    return Recovered(
        layout=layout,
        lock=lock,
        index=opened.index,
        journal=journal,
        journal_files=(*files, (journal.segment_id, journal_path(journal.segment_id))),
        next_sequence=journal.next_sequence,
        applied_sequence=journal.next_sequence - 1,
        ids=ids,
        epoch=epoch,
        trusted_epoch=started.trusted_epoch,
        is_unclean=is_unclean,
        dirty=opened.dirty,
        segments=opened.segments,
        facts=opened.facts,
        uploads=opened.uploads,
        origin_uploads=opened.origin_uploads,
        pointers=opened.pointers,
        losses=losses,
    )


def _counter_on_disk(filesystem: Filesystem) -> int:
    """Give the highest segment counter that a file's name carries, 0 where there is no file."""
    names = [*filesystem.list_directory(JOURNAL_DIRECTORY), *filesystem.list_directory(SEGMENTS_DIRECTORY)]
    ids = [segment_id for name in names if (segment_id := _segment_id_of(name))]
    return max(map(keys.segment_counter, ids), default=0)


def _segment_id_of(path: str) -> int:
    """Give the id that a file's name carries, 0 where it is no segment's."""
    stem = path.rpartition("/")[2].partition(".")[0]
    return int(stem, 16) if _SEGMENT_ID.fullmatch(stem) else 0


def _begin_journal(
    filesystem: Filesystem, layout: Layout, scanned: JournalScan, segment_id: int, group: list[Sequenced]
) -> JournalLog:
    """Begin this process' file with its first group; durable on return."""
    first_sequence = group[0][0]
    writer = JournalWriter.open(filesystem, segment_id, layout.instance_id, next_sequence=first_sequence)
    try:
        writer.append(Group(first_sequence, tuple(encode(mutation) for _, mutation in group)))
        writer.sync()
    except BaseException:
        writer.close()
        raise
    journal = JournalLog(filesystem, layout.instance_id, writer)
    journal.sealed = [
        SealedFile(file.header.segment_id, file.path, file.end_offset, file.last_sequence)
        for file in scanned.files
    ]
    return journal


def _remove_left_files(parts: RecoveryParts, scanned: JournalScan, opened: _Opened) -> list[tuple[int, str]]:
    """Unlink what does not count any more; should a file stay, the next start finds it again.

    A compaction moves all bodies out of the files that it replaces before it replaces them, so no row can name one. Were a
    dirty one counted there all the same, the file would be the only place where its bytes are: such files are given back.
    """
    dirty = [(row.segment_id, journal_path(row.segment_id)) for row in opened.segments if row.dirty_bytes]
    kept = [(segment_id, path) for segment_id, path in dirty if path in scanned.superseded]
    for _, path in kept:
        log.critical("%s was compacted, but acknowledged bytes are counted in it; it stays", path)
    paths = {*scanned.superseded, *scanned.unfinished} - {path for _, path in kept}
    # Nothing new can come to such a file, so the next recovery finds it as it is, and unlinks it.
    paths = {path for path in paths if not parts.is_pinned(_segment_id_of(path))}
    if paths:
        try:
            remove_files(parts.filesystem, sorted(paths))
        except StorageError as error:
            log.warning("journal files that do not count any more are left: %s", error)
    return kept
