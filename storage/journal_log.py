"""The journal as the door sees it: one group after the other, in files that are changed when they are long enough.

Rotation happens at the start of a group. The file before is synced by then, is sealed, and is never touched again. A
next file that cannot be begun, with a known outcome, is no reason to refuse the group: it goes into the old file, and
the next group tries again. On a full disk that may be the flush confirmation that brings space back.

Blocks; called from the commit's worker thread only, but for `rotate`, `sealed` and the questions.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from storage.errors import DiskFailedError, DiskFullError
from storage.filesystem import Filesystem
from storage.journal import Group, JournalWriter
from storage.journal_format import journal_path
from storage.types import MIB, Location

log = logging.getLogger(__name__)

JOURNAL_FILE_BYTES: Final = 16 * MIB
"""A file is sealed once it is this long; compaction works on sealed files."""


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A journal file that is not written any more."""

    segment_id: int
    path: str
    size_bytes: int
    last_sequence: int


class JournalLog:
    """`commit.GroupLog` over journal files.

    Args:
        filesystem: Where the files are.
        instance_id: Goes into each file's header.
        writer: The file in use, empty or not.

    Attributes:
        on_file: Told of each new file before a location points into it: its segment id and path. Called from the
            commit's worker thread.
        sealed: The files that are not written any more, oldest first.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        instance_id: bytes,
        writer: JournalWriter,
        *,
        file_bytes: int = JOURNAL_FILE_BYTES,
    ) -> None:
        self._filesystem = filesystem
        self._instance_id = instance_id
        self._writer = writer
        self.on_file: Callable[[int, str], None] = lambda _segment_id, _path: None
        self._file_bytes = file_bytes
        self._wants_rotation = False
        self.sealed: list[SealedFile] = []

    @property
    def is_full(self) -> bool:
        """Whether the next group begins a new file, for which `begin_group` needs an id."""
        return self._wants_rotation or self._writer.size_bytes >= self._file_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the file in use."""
        return self._writer.size_bytes

    @property
    def segment_id(self) -> int:
        """The id of the file in use."""
        return self._writer.segment_id

    @property
    def next_sequence(self) -> int:
        """The sequence that the next group must start at."""
        return self._writer.next_sequence

    def rotate(self) -> None:
        """Seal the file in use at the next group, so that compaction can take it in."""
        self._wants_rotation = True

    def begin_group(self, spare_id: int) -> Location:
        """Begin a new file where `spare_id` is not 0 and the disk lets it; say where the next group's bodies will lie.

        Raises:
            UnknownOutcomeError: A file with the name may be there after a restart.
        """
        if spare_id:
            self._begin_file(spare_id)
        return Location(self._writer.segment_id, self._writer.body_offset(), 0)

    def _begin_file(self, segment_id: int) -> None:
        sealed = self._writer
        # First, so that a wish for rotation that comes meanwhile stands.
        was_wanted, self._wants_rotation = self._wants_rotation, False
        try:
            self._writer = JournalWriter.open(
                self._filesystem, segment_id, self._instance_id, next_sequence=sealed.next_sequence
            )
        except (DiskFullError, DiskFailedError) as error:
            self._wants_rotation |= was_wanted
            log.warning("the journal goes on in %s: %s", journal_path(sealed.segment_id), error)
            return
        self.on_file(segment_id, journal_path(segment_id))
        self.sealed.append(_sealed(sealed))
        sealed.close()

    def append(self, first_sequence: int, mutations: Sequence[bytes], bodies: Sequence[bytes]) -> None:
        """Append one group and sync it; errors as `JournalWriter.append` and `sync`."""
        self._writer.append(Group(first_sequence, tuple(mutations), tuple(bodies)))
        self._writer.sync()

    def close(self) -> None:
        """Release the file in use."""
        self._writer.close()


def _sealed(writer: JournalWriter) -> SealedFile:
    return SealedFile(
        writer.segment_id, journal_path(writer.segment_id), writer.size_bytes, writer.next_sequence - 1
    )
