"""Reading one journal file, one group in memory at a time, and telling a torn tail from damage.

Torn or damaged. Before a group is appended, the one before it was synced or cut back (`JournalWriter.append` insists), so a
crash can leave at most one frame that is not whole: the last frame of the last plain file. A bad frame in any other file is
damage. In that file it counts as torn exactly if nothing shows that more than this one frame had been written:

- its own header is whole (it has a checksum of its own) and the frame would end at or behind the end of the file; or
- its header is not whole, at most FRAME_BYTES_MAX bytes are left from its offset on (a frame is never longer), and no place among
  them holds a whole frame header of this file (magic, that very offset, and the seeded checksum). The search reads those
  bytes once, in steps of 1 MiB, and hashes 40 bytes where the magic and the offset fit; it never hashes contents.

What no reader can tell: a last frame that was synced and rotted later looks torn, and a file cut at a frame's end looks
shorter. Both show where an index remembers a later sequence.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import msgspec

from storage.errors import DamagedError, FormatError
from storage.filesystem import File, Filesystem, disk_error
from storage.journal_format import (
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    HEADER_BYTES,
    JOURNAL_FORMAT,
    FrameHeader,
    JournalHeader,
    JournalRecord,
    damage,
    decode_frame_header,
    decode_header,
    decode_records,
    frame_seed,
    is_frame_whole,
    journal_path,
)
from storage.types import MIB

_SEARCH_STEP_BYTES: Final = MIB


@dataclass(frozen=True, slots=True)
class JournalGroup:
    """One whole group as read: `[offset, end_offset)` of its file, its bodies from `bodies_offset` on."""

    offset: int
    end_offset: int
    bodies_offset: int
    bodies_bytes: int
    first_sequence: int
    last_sequence: int
    records: tuple[JournalRecord, ...]


@dataclass(frozen=True, slots=True)
class BadFrame:
    """Where a file stops making sense. `end_offset` is None where the frame's header is not whole."""

    offset: int
    reason: str
    end_offset: int | None = None


class JournalReader:
    """One journal file, open for reading. The header is read and checked at once.

    `known` stands for a header that does not read back: what it said, and the seed of the frames' checksums.

    Raises:
        DamagedError: The file has no whole header, or another file's.
        FormatError: A newer program wrote it.
        DiskFailedError: It could not be read.
    """

    def __init__(
        self, filesystem: Filesystem, path: str, known: tuple[JournalHeader, int] | None = None
    ) -> None:
        self.path = path
        self._file: File
        try:
            self._file = filesystem.open_reader(path)
        except OSError as error:
            raise disk_error(error, f"open {path}") from error
        try:
            self.size_bytes = self._file.size()
            self.header, self._seed = known or self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def groups(self, stop_offset: int | None = None) -> Iterator[JournalGroup | BadFrame]:
        """Read the groups in order, up to `stop_offset` or the end of the file; a bad frame is the last thing given."""
        stop_offset = self.size_bytes if stop_offset is None else stop_offset
        offset = HEADER_BYTES
        while offset < stop_offset:
            found = self._read_group(offset)
            yield found
            if isinstance(found, BadFrame):
                return
            offset = found.end_offset

    def groups_past_damage(self) -> Iterator[JournalGroup | BadFrame]:
        """Read all groups that read back, and the bad frames between them, to the end of the file."""
        offset: int | None = HEADER_BYTES
        while offset is not None and offset < self.size_bytes:
            found = self._read_group_or_bad(offset)
            yield found
            offset = found.end_offset if isinstance(found, JournalGroup) else self._frame_after(offset)

    def _read_group_or_bad(self, offset: int) -> "JournalGroup | BadFrame":
        try:
            return self._read_group(offset)
        except DamagedError as error:
            return BadFrame(offset, str(error))

    def is_torn(self, bad: BadFrame) -> bool:
        """Say whether a crash can have left this bad frame; see the head of this module."""
        if bad.end_offset is not None:
            return bad.end_offset >= self.size_bytes
        if self.size_bytes - bad.offset > FRAME_BYTES_MAX:
            return False
        return self._frame_after(bad.offset) is None

    def _read_header(self) -> tuple[JournalHeader, int]:
        data = self._pread(0, HEADER_BYTES)
        decoded = decode_header(data)
        if decoded is None:
            raise damage(self.path, 0, "no whole journal header")
        number, header = decoded
        if number > JOURNAL_FORMAT:
            raise FormatError(f"{self.path} has format {number}; this program reads up to {JOURNAL_FORMAT}")
        if journal_path(header.segment_id) != self.path:
            raise damage(self.path, 0, f"the header of {journal_path(header.segment_id)}")
        return header, frame_seed(data)

    def _read_group(self, offset: int) -> JournalGroup | BadFrame:
        head = self._pread(offset, FRAME_HEADER_BYTES)
        frame = decode_frame_header(self._seed, offset, head)
        if frame is None:
            return BadFrame(offset, "no frame header")
        if frame.end_offset > self.size_bytes:
            return BadFrame(offset, "a frame that ends behind the file", frame.end_offset)
        content = self._pread(frame.bodies_offset, frame.end_offset - frame.bodies_offset)
        if not is_frame_whole(self._seed, head, frame, content):
            return BadFrame(offset, "a frame with a wrong checksum", frame.end_offset)
        return JournalGroup(
            offset,
            frame.end_offset,
            frame.bodies_offset,
            frame.bodies_bytes,
            frame.first_sequence,
            frame.last_sequence,
            self._decode(frame, memoryview(content)[frame.bodies_bytes :]),
        )

    def _decode(self, frame: FrameHeader, payload: memoryview) -> tuple[JournalRecord, ...]:
        try:
            records = decode_records(payload)
        except msgspec.DecodeError as error:
            raise damage(self.path, frame.offset, f"a whole frame that does not decode ({error})") from error
        if len(records) != frame.count:
            raise damage(self.path, frame.offset, f"{len(records)} records instead of {frame.count}")
        if records and (records[0].sequence, records[-1].sequence) != (
            frame.first_sequence,
            frame.last_sequence,
        ):
            raise damage(self.path, frame.offset, "sequences other than in the frame's header")
        return records

    def _pread(self, offset: int, length: int) -> bytes:
        try:
            return self._file.pread(offset, length)
        except OSError as error:
            raise disk_error(error, f"read {self.path}") from error

    def _frame_after(self, offset: int) -> int | None:
        """Search `(offset, size)` for the head of another frame; None where there is none."""
        start = offset + 1
        while start < self.size_bytes:
            # The overlap finds a header that begins at the end of one step.
            step = self._pread(start, _SEARCH_STEP_BYTES + FRAME_HEADER_BYTES - 1)
            at = step.find(FRAME_MAGIC)
            while 0 <= at < _SEARCH_STEP_BYTES:
                if (
                    decode_frame_header(self._seed, start + at, step[at : at + FRAME_HEADER_BYTES])
                    is not None
                ):
                    return start + at
                at = step.find(FRAME_MAGIC, at + 1)
            start += _SEARCH_STEP_BYTES
        return None
