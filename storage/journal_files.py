"""Whole journal files: naming a new one, cutting or copying the last one, compaction, removal.

A file gets its `.log` name by a rename, after its first sync: until then it counts for nothing, so a failure up to there has a
known outcome. A rename or a directory sync that fails has not: the name may be there after a restart.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from storage.errors import UnknownOutcomeError
from storage.filesystem import File, Filesystem, disk_error
from storage.journal_format import (
    HEADER_BYTES,
    JOURNAL_DIRECTORY,
    JournalHeader,
    JournalRecord,
    encode_end_frame,
    encode_frame,
    encode_header,
    frame_seed,
    journal_path,
    unfinished_path,
)
from storage.types import MIB

_COPY_STEP_BYTES: Final = MIB
_COMPACTED_FRAME_BYTES: Final = MIB
"""About so much stands in one frame of a compacted file."""


def publish(
    filesystem: Filesystem,
    segment_id: int,
    chunks: Callable[[], Iterator[bytes]],
    *,
    is_replacing: bool = False,
) -> File:
    """Write a whole file, sync it, give it its name and make that durable; give it back open.

    The chunks are asked for once the file is there to take them. `is_replacing` says whether the name exists: it must, or
    must not.

    Raises:
        DiskFullError, DiskFailedError: Nothing has changed, but for an unfinished file where unlinking failed too.
        UnknownOutcomeError: The name may or may not be given after a restart.
    """
    path, unfinished = journal_path(segment_id), unfinished_path(segment_id)
    try:
        names = {f"{JOURNAL_DIRECTORY}/{name}" for name in filesystem.list_directory(JOURNAL_DIRECTORY)}
        # The rename below would replace a file without a word.
        assert is_replacing == (path in names), f"{path} {'is missing' if is_replacing else 'exists'}"
        if unfinished in names:
            filesystem.unlink(unfinished)
        file = filesystem.create(unfinished)
    except OSError as error:
        raise disk_error(error, f"begin {path}") from error
    try:
        _fill(filesystem, file, unfinished, chunks())
        filesystem.rename(unfinished, path)
        filesystem.sync_directory(JOURNAL_DIRECTORY)
    except OSError as error:
        file.close()
        raise UnknownOutcomeError(f"naming {path}: {error.strerror}") from error
    except BaseException:
        file.close()
        raise
    return file


def cut_torn_tail(filesystem: Filesystem, path: str, offset: int) -> None:
    """Cut a file to `offset` bytes, durably, before a new file starts (`JournalScan.torn` names both).

    Raises:
        UnknownOutcomeError: It may be cut or not; scan again.
    """
    try:
        file = filesystem.open(path)
        try:
            assert HEADER_BYTES <= offset <= file.size(), f"cut of {path} to {offset}"
            file.truncate(offset)
            file.fdatasync()
        finally:
            file.close()
    except OSError as error:
        raise UnknownOutcomeError(f"cutting the tail of {path}: {error.strerror}") from error


def rewrite_accepted(filesystem: Filesystem, segment_id: int, end_offset: int) -> None:
    """Replace a file by a synced copy of its first `end_offset` bytes, under the same id, so that locations into it stay true.

    For the last file of a journal at a start: what reads back of it need not be on the disk, and after a failed sync no later
    sync of that file can be believed. Durable on return, with all names of the directory; who has the old file open keeps it.
    To be scanned again: what was never on the disk may have been dropped between the scan and the copy.

    Raises:
        DiskFullError, DiskFailedError: The file is as before.
        UnknownOutcomeError: It is the old one or the copy; scan again.
    """
    path = journal_path(segment_id)
    try:
        source = filesystem.open_reader(path)
    except OSError as error:
        raise disk_error(error, f"open {path}") from error
    try:
        copied = publish(filesystem, segment_id, lambda: _steps(source, end_offset), is_replacing=True)
        copied.close()
    finally:
        source.close()


def write_compacted(
    filesystem: Filesystem,
    segment_id: int,
    instance_id: bytes,
    checkpoint_sequence: int,
    records: Iterable[JournalRecord],
) -> int:
    """Write one file that replaces all sequences up to `checkpoint_sequence`; give its size in bytes. Durable on return.

    The records are all that is live of those sequences, strictly ascending, and name no place in the files that they replace. The
    present plain file begins at `checkpoint_sequence` + 1: a start refuses a journal where one lies on both sides.

    Raises:
        DiskFullError, DiskFailedError: There is no such file.
        UnknownOutcomeError: It may be there after a restart; what it names must stay until recovery has looked.
    """
    header = JournalHeader(segment_id, instance_id, first_sequence=0, checkpoint_sequence=checkpoint_sequence)
    file = publish(filesystem, segment_id, lambda: compacted_chunks(header, records))
    try:
        return file.size()
    finally:
        file.close()


def remove_files(filesystem: Filesystem, paths: Sequence[str]) -> None:
    """Unlink journal files that are no longer needed, durably; one that is gone already is fine.

    Raises:
        DiskFullError, DiskFailedError: Some may be left, or come back after a power cut; do it again.
    """
    try:
        for path in paths:
            with suppress(FileNotFoundError):
                filesystem.unlink(path)
        filesystem.sync_directory(JOURNAL_DIRECTORY)
    except OSError as error:
        raise disk_error(error, "removing journal files") from error


def compacted_chunks(header: JournalHeader, records: Iterable[JournalRecord]) -> Iterator[bytes]:
    """Give the bytes of a whole compacted file; see `write_compacted` for the records."""
    encoded = encode_header(header)
    seed = frame_seed(encoded)
    yield encoded
    offset = len(encoded)
    for batch in _batches(records, header.checkpoint_sequence):
        frame = encode_frame(seed, offset, batch)
        yield frame
        offset += len(frame)
    yield encode_end_frame(seed, offset, header.checkpoint_sequence)


def _batches(records: Iterable[JournalRecord], sequence_max: int) -> Iterator[list[JournalRecord]]:
    batch: list[JournalRecord] = []
    batch_bytes = last_sequence = 0
    for record in records:
        assert last_sequence < record.sequence <= sequence_max, f"{record.sequence} after {last_sequence}"
        last_sequence = record.sequence
        batch.append(record)
        batch_bytes += len(record.mutation)
        if batch_bytes >= _COMPACTED_FRAME_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _steps(source: File, end_offset: int) -> Iterator[bytes]:
    for offset in range(0, end_offset, _COPY_STEP_BYTES):
        length = min(_COPY_STEP_BYTES, end_offset - offset)
        data = source.pread(offset, length)
        assert len(data) == length, f"the file ends before {end_offset}"
        yield data


def _fill(filesystem: Filesystem, file: File, path: str, chunks: Iterator[bytes]) -> None:
    """Write and sync the bytes of an unfinished file, or remove it."""
    is_synced = False
    offset = 0
    try:
        for chunk in chunks:
            file.pwrite(offset, chunk)
            offset += len(chunk)
        file.fdatasync()
        is_synced = True
    except OSError as error:
        raise disk_error(error, f"write {path}") from error
    finally:
        if not is_synced:
            with suppress(OSError):
                filesystem.unlink(path)
