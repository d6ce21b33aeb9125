"""The journal's end: appending groups and syncing them.

The bytes are described in `storage/journal_format.py`, files are made and replaced by `storage/journal_files.py`, read by
`storage/journal_reader.py` and `storage/journal_scan.py`. All calls block and come from one thread at a time.

A writer takes one group at a time: append, sync, append, sync. That is what lets a start tell a torn tail from damage, so
`append` insists on it. A writer is in one of three states: synced; appended (one group waits for its sync); poisoned. It is
poisoned from the moment a risky call begins until its outcome is known, so that whatever interrupts the call, an unforeseen
exception too, leaves a writer that can do no harm. There is no way back: the file is not synced or appended again (after a
failed fdatasync the kernel may have dropped the pages, and a later success says nothing about them). The engine re-opens
through recovery, which settles the journal in a copy (`journal_scan.settle`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from storage.errors import OverloadedError, UnknownOutcomeError
from storage.filesystem import File, Filesystem, disk_error
from storage.journal_files import publish
from storage.journal_format import (
    FIRST_SEQUENCE,
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    JournalHeader,
    JournalRecord,
    encode_frame,
    encode_header,
    frame_bytes,
    frame_seed,
    journal_path,
)
from storage.types import BLOCK_BYTES, Location


@dataclass(frozen=True, slots=True)
class Group:
    """What becomes durable together: encoded mutations with the sequences from `first_sequence` on, and their tiny bodies."""

    first_sequence: int
    mutations: tuple[bytes, ...]
    bodies: tuple[bytes, ...] = ()

    def records(self) -> list[JournalRecord]:
        """Give each mutation its sequence."""
        return [JournalRecord(self.first_sequence + n, data) for n, data in enumerate(self.mutations)]


class JournalWriter:
    """The end of the journal: one plain file that grows group by group."""

    def __init__(self, file: File, header: JournalHeader) -> None:
        """Take over a file that `open` has made, synced and named."""
        self._file = file
        self._header = header
        self._seed = frame_seed(encode_header(header))
        self._size_bytes = HEADER_BYTES
        self._next_sequence = header.first_sequence
        self._is_synced = True
        self._is_poisoned = False

    @classmethod
    def open(
        cls, filesystem: Filesystem, segment_id: int, instance_id: bytes, *, next_sequence: int
    ) -> "JournalWriter":
        """Begin a file, durable with its name on return, whose first group will start at `next_sequence`.

        Raises:
            DiskFullError, DiskFailedError: There is no such file; try again, with this id or another.
            UnknownOutcomeError: It may be there after a restart, empty.
        """
        assert next_sequence >= FIRST_SEQUENCE, f"sequence {next_sequence}"
        header = JournalHeader(segment_id, instance_id, next_sequence)
        file = publish(filesystem, segment_id, lambda: iter((encode_header(header),)))
        return cls(file, header)

    @property
    def segment_id(self) -> int:
        """The id under which locations point into this file."""
        return self._header.segment_id

    @property
    def size_bytes(self) -> int:
        """The file's size, the group that waits for its sync included."""
        return self._size_bytes

    @property
    def next_sequence(self) -> int:
        """The sequence that the next group must start at."""
        return self._next_sequence

    @property
    def is_poisoned(self) -> bool:
        """Whether an outcome is unknown; nothing is written any more."""
        return self._is_poisoned

    def body_offset(self) -> int:
        """Say where the first body of the next group will lie; the others follow without a gap."""
        return self._size_bytes + FRAME_HEADER_BYTES

    def locate(self, bodies: Sequence[bytes]) -> tuple[Location, ...]:
        """Say where the bodies of the next group will lie; each is tiny and not empty."""
        locations = []
        offset = self.body_offset()
        for body in bodies:
            assert 0 < len(body) <= BLOCK_BYTES, f"a body of {len(body)} bytes does not ride in the journal"
            checksum = xxhash.xxh3_64_digest(body)
            locations.append(Location(self.segment_id, offset, len(body), checksum))
            offset += len(body)
        return tuple(locations)

    def append(self, group: Group) -> None:
        """Write a group behind the others; durable only after `sync`. The group before it is synced.

        After an error with a known outcome the file is as before, and the next group has the same first sequence.

        Raises:
            OverloadedError: The group is over FRAME_BYTES_MAX. Nothing was written.
            DiskFullError, DiskFailedError: The write failed and was cut back, durably.
            UnknownOutcomeError: It could not be cut back, or the writer is poisoned.
        """
        self._refuse_if_poisoned()
        assert self._is_synced, "the group before has not been synced"
        assert group.mutations, "an empty group"
        assert group.first_sequence == self._next_sequence, f"{group.first_sequence} != {self._next_sequence}"
        if frame_bytes(group.mutations, group.bodies) > FRAME_BYTES_MAX:
            raise OverloadedError("too much to commit at once", retry_after_s=1.0)
        frame = encode_frame(self._seed, self._size_bytes, group.records(), group.bodies)
        self._is_poisoned = True
        try:
            self._file.pwrite(self._size_bytes, frame)
        except OSError as error:
            self._cut_back()
            raise disk_error(error, f"append to {self._path}") from error
        self._size_bytes += len(frame)
        self._next_sequence += len(group.mutations)
        self._is_synced = False
        self._is_poisoned = False

    def sync(self) -> None:
        """Make what was appended durable.

        Raises:
            UnknownOutcomeError: The group may or may not be durable; the writer is poisoned.
        """
        self._refuse_if_poisoned()
        if self._is_synced:
            return
        self._is_poisoned = True
        try:
            self._file.fdatasync()
        except OSError as error:
            raise UnknownOutcomeError(f"sync of {self._path}: {error.strerror}") from error
        self._is_synced = True
        self._is_poisoned = False

    def close(self) -> None:
        """Release the file. It stays as it is: nothing is synced that was not."""
        self._file.close()

    @property
    def _path(self) -> str:
        return journal_path(self._header.segment_id)

    def _cut_back(self) -> None:
        """Undo a write that failed; clears the poison only where the cut is durable."""
        try:
            self._file.truncate(self._size_bytes)
            self._file.fdatasync()
        except OSError as error:
            raise UnknownOutcomeError(f"cutting back {self._path}: {error.strerror}") from error
        self._is_poisoned = False

    def _refuse_if_poisoned(self) -> None:
        if self._is_poisoned:
            raise UnknownOutcomeError(
                f"{self._path} is not written any more: the outcome of a write is unknown"
            )
