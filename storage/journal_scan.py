"""Reading the whole journal as a start needs it.

`scan` checks everything before anything is applied: that the files belong together, that no sequence is missing, that every
frame is whole. `settle` makes durable what the scan accepts. `replay` then reads it again, one group in memory at a time.

A start settles before it applies or acknowledges anything. What reads back need not be on the disk: the process may have been
killed between an append and its sync, or a sync may have failed. Acted upon and then lost in a power cut, it would leave a
gap before the next file.

Which files count. The newest compacted file (the highest checkpoint sequence S) stands for all sequences up to S; it is
followed by the plain files that begin after S, in the order of their first sequences. Older compacted files and plain files
that begin at or before S are superseded: they are left from a compaction that was interrupted before it unlinked them.

Only the last file may be torn, and a compacted one never is: it got its name when it was whole and synced. What counts as torn is
in `storage/journal_reader.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from storage.errors import DamagedError, UnknownOutcomeError
from storage.filesystem import Filesystem, disk_error
from storage.journal_files import cut_torn_tail, rewrite_accepted
from storage.journal_format import (
    FIRST_SEQUENCE,
    HEADER_BYTES,
    JOURNAL_DIRECTORY,
    REPAIR_SUFFIX,
    JournalHeader,
    JournalRecord,
    damage,
    journal_path,
)
from storage.journal_reader import BadFrame, JournalReader


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One file that counts: `[0, end_offset)` of it is accepted. `last_sequence` is 0 where it has no record."""

    path: str
    header: JournalHeader
    end_offset: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class TornTail:
    """What a crash left behind the last whole group; `[offset, size_bytes)` of the file is to be cut off."""

    path: str
    offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class JournalScan:
    """The journal as a start finds it.

    Attributes:
        files: What counts, in the order of replay; `torn` concerns the last one.
        superseded: Paths of files that a compacted one has replaced; to be unlinked once no row points into them.
        unfinished: Paths of files that never came to count; to be unlinked.
        checkpoint_sequence: S of the compacted file, 0 without one. An index that has applied less counts as missing.
        last_sequence: The newest accepted sequence, 0 where there is none. An index that has applied more is ahead.
        instance_id: What all files carry; None where there is no file.
    """

    files: tuple[JournalFile, ...]
    superseded: tuple[str, ...]
    unfinished: tuple[str, ...]
    torn: TornTail | None
    checkpoint_sequence: int
    last_sequence: int
    instance_id: bytes | None


def scan(filesystem: Filesystem) -> JournalScan:
    """Check the whole journal; say what counts, what may go and whether the tail is torn. Changes nothing.

    Raises:
        DamagedError: A file, a sequence or a frame before the tail is missing or broken.
        FormatError: A newer program wrote a file.
        DiskFailedError: A file could not be read.
    """
    try:
        names = filesystem.list_directory(JOURNAL_DIRECTORY)
    except OSError as error:
        raise disk_error(error, f"list {JOURNAL_DIRECTORY}") from error
    unfinished_repair = next((name for name in names if name.endswith(REPAIR_SUFFIX)), "")
    if unfinished_repair:
        raise DamagedError(
            f"{JOURNAL_DIRECTORY}/{unfinished_repair}: a repair was cut short; run `forebay fsck --repair` again"
        )
    headers = [
        _read_header(filesystem, f"{JOURNAL_DIRECTORY}/{name}") for name in names if name.endswith(".log")
    ]
    instance_ids = {header.instance_id for header in headers}
    if len(instance_ids) > 1:
        raise damage(JOURNAL_DIRECTORY, 0, "files of several instances")
    live, superseded = _choose(headers)
    for header in superseded:
        _check_superseded(filesystem, header, live[0])
    files, torn = _check_files(filesystem, live)
    checkpoint_sequence = live[0].checkpoint_sequence if live else 0
    return JournalScan(
        files=files,
        superseded=tuple(journal_path(header.segment_id) for header in superseded),
        unfinished=tuple(f"{JOURNAL_DIRECTORY}/{name}" for name in names if name.endswith(".tmp")),
        torn=torn,
        checkpoint_sequence=checkpoint_sequence,
        last_sequence=max([checkpoint_sequence, *(file.last_sequence for file in files)]),
        instance_id=next(iter(instance_ids), None),
    )


def settle(filesystem: Filesystem) -> JournalScan:
    """Cut a torn tail, make durable all that is accepted, names included, and give the scan of that.

    Copies the last plain file, since after a failed sync no later one can be believed. Safe to repeat, and after a crash in it.

    Raises:
        DamagedError, FormatError: As `scan`.
        DiskFullError, DiskFailedError, UnknownOutcomeError: Not settled; nothing is lost by it.
    """
    scanned = scan(filesystem)
    if not scanned.files:
        return scanned
    last = scanned.files[-1]
    if last.header.is_compacted:
        # It was synced before it got its name; the name itself may not be.
        _sync_names(filesystem)
        return scanned
    rewrite_accepted(filesystem, last.header.segment_id, last.end_offset)
    copied = scan(filesystem)
    if copied.torn:
        # A page of the old file, never on the disk, was dropped between the first scan and the copy. The copy is sound to cut.
        cut_torn_tail(filesystem, copied.torn.path, copied.torn.offset)
        copied = scan(filesystem)
    assert not copied.torn, f"{copied.torn} was cut"
    return copied


def _sync_names(filesystem: Filesystem) -> None:
    try:
        filesystem.sync_directory(JOURNAL_DIRECTORY)
    except OSError as error:
        raise UnknownOutcomeError(f"sync of {JOURNAL_DIRECTORY}: {error.strerror}") from error


def replay(
    filesystem: Filesystem, scanned: JournalScan, *, after_sequence: int = 0
) -> Iterator[tuple[JournalRecord, ...]]:
    """Read the accepted records behind `after_sequence` in order, those of one group at a time.

    Raises:
        DamagedError: A frame no longer reads as the scan found it.
        DiskFailedError: A file could not be read.
    """
    for file in scanned.files:
        if file.last_sequence <= after_sequence:
            continue
        with JournalReader(filesystem, file.path) as reader:
            for group in reader.groups(file.end_offset):
                if isinstance(group, BadFrame):
                    raise damage(file.path, group.offset, group.reason)
                records = tuple(record for record in group.records if record.sequence > after_sequence)
                if records:
                    yield records


def _read_header(filesystem: Filesystem, path: str) -> JournalHeader:
    with JournalReader(filesystem, path) as reader:
        return reader.header


def _choose(headers: list[JournalHeader]) -> tuple[list[JournalHeader], list[JournalHeader]]:
    """Part the files into those that count, in the order of replay, and those that a compacted one has replaced."""
    compacted = max(
        (header for header in headers if header.is_compacted),
        key=lambda header: (header.checkpoint_sequence, header.segment_id),
        default=None,
    )
    plain = [header for header in headers if not header.is_compacted]
    plain.sort(key=lambda header: (header.first_sequence, header.segment_id))
    if compacted is None:
        return plain, []
    live = [compacted, *(header for header in plain if header.first_sequence > compacted.checkpoint_sequence)]
    return live, [header for header in headers if header not in live]


def _check_superseded(filesystem: Filesystem, header: JournalHeader, compacted: JournalHeader) -> None:
    """Refuse to give up a file that holds a later sequence than the compacted one covers."""
    with JournalReader(filesystem, journal_path(header.segment_id)) as reader:
        for group in reader.groups():
            if isinstance(group, BadFrame):
                return
            if group.last_sequence > compacted.checkpoint_sequence:
                reason = f"sequence {group.last_sequence} after {compacted.checkpoint_sequence}, where it was compacted,"
                raise damage(reader.path, group.offset, reason)


def _check_files(
    filesystem: Filesystem, headers: list[JournalHeader]
) -> tuple[tuple[JournalFile, ...], TornTail | None]:
    files: list[JournalFile] = []
    torn: TornTail | None = None
    next_sequence = FIRST_SEQUENCE
    for header in headers:
        with JournalReader(filesystem, journal_path(header.segment_id)) as reader:
            if header.is_compacted:
                files.append(_check_compacted(reader))
                next_sequence = header.checkpoint_sequence + 1
                continue
            file, bad = _check_plain(reader, next_sequence)
            files.append(file)
            if bad is not None:
                if header is not headers[-1] or not reader.is_torn(bad):
                    raise damage(file.path, bad.offset, bad.reason)
                torn = TornTail(file.path, bad.offset, reader.size_bytes, bad.reason)
            next_sequence = max(next_sequence, file.last_sequence + 1)
    return tuple(files), torn


def _check_plain(reader: JournalReader, next_sequence: int) -> tuple[JournalFile, BadFrame | None]:
    header = reader.header
    if header.first_sequence != next_sequence:
        reason = f"sequence {header.first_sequence} where {next_sequence} should follow"
        raise damage(reader.path, 0, reason)
    end_offset, bad = HEADER_BYTES, None
    for group in reader.groups():
        if isinstance(group, BadFrame):
            bad = group
            break
        expected = range(next_sequence, next_sequence + len(group.records))
        if not group.records or [record.sequence for record in group.records] != list(expected):
            raise damage(reader.path, group.offset, f"sequences other than {next_sequence} and on")
        end_offset, next_sequence = group.end_offset, expected.stop
    last_sequence = next_sequence - 1 if end_offset > HEADER_BYTES else 0
    return JournalFile(reader.path, header, end_offset, last_sequence), bad


def _check_compacted(reader: JournalReader) -> JournalFile:
    last_sequence, is_ended = 0, False
    for group in reader.groups():
        if isinstance(group, BadFrame):
            raise damage(reader.path, group.offset, group.reason)
        if is_ended:
            raise damage(reader.path, group.offset, "a frame behind the last one of a compacted file")
        for record in group.records:
            if not last_sequence < record.sequence <= reader.header.checkpoint_sequence:
                raise damage(reader.path, group.offset, f"sequence {record.sequence} out of order")
            last_sequence = record.sequence
        is_ended = not group.records
    if not is_ended:
        raise damage(reader.path, reader.size_bytes, "no last frame of a compacted file")
    return JournalFile(reader.path, reader.header, reader.size_bytes, last_sequence)
