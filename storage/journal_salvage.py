"""What of a journal still reads back, past damage that refuses a start.

`storage/journal_scan.py` stops at the first thing that is wrong; this goes on behind it. A frame is told by magic, its own offset and a
seeded checksum, so a search finds the next one for certain. A header that does not read back costs little: the seed of the frames is its
checksum, which is stored and can be computed, and at most one of the two was hit.

The newest compacted file that is whole stands for all sequences up to S, as at a start. Behind it each sequence that no readable group
holds is in a *hole*. A compacted file that is not whole lends its records to the holes. A torn tail is no hole: it was never acknowledged.
A file that says nothing at all may have held any changes, also ones behind the last that is known: a hole without an end.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from storage.errors import DamagedError, DiskFailedError
from storage.filesystem import Filesystem
from storage.journal_format import (
    FIRST_SEQUENCE,
    HEADER_BYTES,
    JOURNAL_DIRECTORY,
    JournalHeader,
    JournalRecord,
    decode_header,
    frame_seed,
    with_computed_checksum,
)
from storage.journal_reader import BadFrame, JournalReader
from storage.layout import ROOT

_NO_INSTANCE: Final = b""


@dataclass(frozen=True, slots=True)
class Hole:
    """Sequences that no file holds any more, both ends included; `last` None where nobody knows how many there were."""

    first: int
    last: int | None

    def __str__(self) -> str:
        if self.last is None:
            return f"changes from {self.first} on"
        return f"change {self.first}" if self.first == self.last else f"changes {self.first} to {self.last}"


@dataclass(slots=True)
class SalvagedFile:
    """One file as far as it reads back.

    Attributes:
        header: What it says, or what can be told of a header that does not read back (instance "" then).
        spans: First and last sequences of runs of readable groups.
        bad: Where it does not read back.
        header_damage: Why the header does not read back; "" where it does.
        end_sequence: That of the frame that ends a compacted file; 0 where there is none.
        has_gaps: Groups leave sequences out, as only those of a compacted file do.
        is_torn: What does not read back is at its end, and as a crash leaves it.
    """

    path: str
    size_bytes: int
    header: JournalHeader | None
    seed: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)
    bad: list[BadFrame] = field(default_factory=list)
    header_damage: str = ""
    end_sequence: int = 0
    has_gaps: bool = False
    is_torn: bool = False
    has_bad_tail: bool = False

    @property
    def is_compacted(self) -> bool:
        """Whether it stands for all sequences up to its checkpoint."""
        return self.header is not None and self.header.is_compacted

    @property
    def is_whole(self) -> bool:
        """Whether all of it reads back, as a start asks of a compacted file."""
        return self.header is not None and not self.bad and bool(self.end_sequence or not self.is_compacted)


@dataclass(frozen=True, slots=True)
class Salvage:
    """What reads back.

    Attributes:
        files: All files of the instance.
        foreign: Paths of files of another instance.
        unreadable: Paths of files that say nothing at all.
        checkpoint_sequence: S of the compacted file that stands for all up to it; 0 without one.
        last_sequence: The highest sequence that is known to have been given.
        read_sequence: The highest that reads back.
        instance_id: What the files carry; "" where none says.
    """

    files: tuple[SalvagedFile, ...]
    foreign: tuple[str, ...]
    unreadable: tuple[str, ...]
    holes: tuple[Hole, ...]
    checkpoint_sequence: int
    last_sequence: int
    read_sequence: int
    instance_id: bytes


def salvage(filesystem: Filesystem, instance_id: bytes) -> Salvage:
    """Look at the whole journal; `instance_id` "" takes that of the first file that names one. Changes nothing.

    Raises:
        FormatError: A newer program wrote a file.
        DiskFailedError: A file could not be read.
    """
    looked = [_look(filesystem, path) for path in _paths(filesystem)]
    told = [file.header.instance_id for file in looked if file.header and file.header.instance_id]
    instance_id = instance_id or next(iter(told), _NO_INSTANCE)
    files = [
        file for file in looked if file.header and file.header.instance_id in {instance_id, _NO_INSTANCE}
    ]
    start = _start(files)
    checkpoint = start.header.checkpoint_sequence if start and start.header else 0
    covered = _joined([span for file in files if not file.is_compacted for span in file.spans], checkpoint)
    last = max([checkpoint, *(span[1] for span in covered), *map(_named_sequence, files)])
    strange = [file for file in looked if file not in files]
    has_open_end = _has_open_end(files) or any(_may_go_on(file, files) for file in strange)
    return Salvage(
        files=tuple(files),
        foreign=tuple(file.path for file in strange if file.header),
        unreadable=tuple(file.path for file in strange if not file.header),
        holes=_holes(covered, checkpoint, last, has_open_end=has_open_end),
        checkpoint_sequence=checkpoint,
        last_sequence=last,
        read_sequence=max([checkpoint, *(span[1] for span in covered)]),
        instance_id=instance_id,
    )


def salvaged_records(
    filesystem: Filesystem, found: Salvage, *, after_sequence: int = 0
) -> Iterator[JournalRecord]:
    """Read what reads back behind `after_sequence`, ascending, one group of each file in memory at a time.

    Raises:
        DiskFailedError: What `salvage` read does not read back any more.
    """
    start = _start(found.files)
    partial = [file for file in found.files if file.is_compacted and file is not start]
    streams = [
        _plain_records(filesystem, file, found.checkpoint_sequence)
        for file in found.files
        if not file.is_compacted
    ]
    streams += [
        _records_in_holes(filesystem, file, found.holes)
        for file in partial
        if file.header and file.header.checkpoint_sequence > found.checkpoint_sequence
    ]
    if start is not None:
        streams.append(_records(filesystem, start))
    last = after_sequence
    for record in heapq.merge(*streams, key=lambda record: record.sequence):
        if record.sequence > last:
            last = record.sequence
            yield record


# --- files -------------------------------------------------------------------------------------------------------------


def _paths(filesystem: Filesystem) -> list[str]:
    if JOURNAL_DIRECTORY not in filesystem.list_directory(ROOT):
        return []
    names = filesystem.list_directory(JOURNAL_DIRECTORY)
    return [f"{JOURNAL_DIRECTORY}/{name}" for name in names if name.endswith(".log")]


def _look(filesystem: Filesystem, path: str) -> SalvagedFile:
    try:
        with JournalReader(filesystem, path) as reader:
            return _looked(reader, frame_seed_of(filesystem, path))
    except DamagedError as error:
        return _look_without_header(filesystem, path, str(error))


def frame_seed_of(filesystem: Filesystem, path: str) -> int:
    """Read the seed of a file's frames from its header, whatever else the header says."""
    return frame_seed(_header_bytes(filesystem, path))


def _header_bytes(filesystem: Filesystem, path: str) -> bytes:
    file = filesystem.open_reader(path)
    try:
        return file.pread(0, HEADER_BYTES).ljust(HEADER_BYTES, b"\0")
    finally:
        file.close()


def _looked(reader: JournalReader, seed: int) -> SalvagedFile:
    file = SalvagedFile(reader.path, reader.size_bytes, reader.header, seed)
    for group in reader.groups_past_damage():
        file.has_bad_tail = isinstance(group, BadFrame)
        if isinstance(group, BadFrame):
            file.bad.append(group)
            continue
        file.has_gaps |= len(group.records) not in {0, group.last_sequence - group.first_sequence + 1}
        if not group.records:
            file.end_sequence = group.last_sequence
        elif file.spans and file.spans[-1][1] + 1 == group.first_sequence:
            file.spans[-1] = (file.spans[-1][0], group.last_sequence)
        else:
            file.spans.append((group.first_sequence, group.last_sequence))
    file.is_torn = len(file.bad) == 1 and file.has_bad_tail and reader.is_torn(file.bad[0])
    return file


def _look_without_header(filesystem: Filesystem, path: str, why: str) -> SalvagedFile:
    """Read the frames by either seed; what the header said of sequences is told by the first and the last frame."""
    data = _header_bytes(filesystem, path)
    size_bytes = len(data)
    guess = JournalHeader(_segment_id(path), _NO_INSTANCE, FIRST_SEQUENCE)
    for header in (data, with_computed_checksum(data)):
        with JournalReader(filesystem, path, (guess, frame_seed(header))) as reader:
            file, size_bytes = _looked(reader, frame_seed(header)), reader.size_bytes
        if file.spans or file.end_sequence:
            # Frames that fit the computed seed show that it was the checksum which was hit, and nothing else.
            decoded = decode_header(header)
            file.header_damage = why
            file.header = _guessed(guess, file) if decoded is None else decoded[1]
            return file
    return SalvagedFile(path, size_bytes, None, header_damage=why)


def _guessed(guess: JournalHeader, file: SalvagedFile) -> JournalHeader:
    """Only a compacted file ends with a frame of no records, and only in one do sequences have gaps."""
    if file.end_sequence or file.has_gaps:
        checkpoint = file.end_sequence or max(last for _, last in file.spans)
        return JournalHeader(guess.segment_id, _NO_INSTANCE, 0, checkpoint)
    return JournalHeader(guess.segment_id, _NO_INSTANCE, file.spans[0][0])


def _segment_id(path: str) -> int:
    stem = path.rpartition("/")[2].removesuffix(".log")
    try:
        return int(stem, 16)
    except ValueError:
        return 0


def _start(files: Sequence[SalvagedFile]) -> SalvagedFile | None:
    """Find the compacted file that stands for what is before it: the newest that is whole."""
    whole = [file for file in files if file.is_compacted and file.is_whole]
    return max(whole, key=lambda file: file.header.checkpoint_sequence if file.header else 0, default=None)


def _named_sequence(file: SalvagedFile) -> int:
    """Say up to which sequence a file shows that sequences were given."""
    assert file.header is not None, f"{file.path} says nothing"
    return max(file.header.checkpoint_sequence, file.header.first_sequence - 1)


def _has_open_end(files: Sequence[SalvagedFile]) -> bool:
    """Whether the last file ends in what was more than a torn tail."""
    plain = [file for file in files if not file.is_compacted and file.header]
    last = max(plain, key=lambda file: file.header.first_sequence if file.header else 0, default=None)
    return last is not None and last.has_bad_tail and not last.is_torn


def _may_go_on(strange: SalvagedFile, files: Sequence[SalvagedFile]) -> bool:
    """Whether a file that says nothing may have held changes behind all that are known.

    Ids ascend, so one before the last plain file holds none: what it held is among the sequences that are missing before that file.
    """
    if strange.header is None and strange.size_bytes == HEADER_BYTES:
        return False
    last = max((file.header.segment_id for file in files if file.header and not file.is_compacted), default=0)
    return strange.header is not None or not 0 < _segment_id(strange.path) < last


# --- sequences ---------------------------------------------------------------------------------------------------------


def _joined(spans: list[tuple[int, int]], after: int) -> list[tuple[int, int]]:
    """Join runs of sequences behind `after`."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        start = max(first, after + 1)
        if start > last:
            continue
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((start, last))
    return joined


def _holes(
    covered: list[tuple[int, int]], checkpoint: int, last: int, *, has_open_end: bool
) -> tuple[Hole, ...]:
    holes: list[Hole] = []
    expected = checkpoint + 1
    for first, stop in covered:
        if first > expected:
            holes.append(Hole(expected, first - 1))
        expected = stop + 1
    if expected <= last:
        holes.append(Hole(expected, last))
    if has_open_end:
        holes.append(Hole(last + 1, None))
    return tuple(holes)


# --- records -----------------------------------------------------------------------------------------------------------


def _records(filesystem: Filesystem, file: SalvagedFile) -> Iterator[JournalRecord]:
    assert file.header is not None, f"{file.path} says nothing"
    with JournalReader(filesystem, file.path, (file.header, file.seed)) as reader:
        known = {bad.offset for bad in file.bad}
        for group in reader.groups_past_damage():
            if not isinstance(group, BadFrame):
                yield from group.records
            elif group.offset not in known:
                what = f"{group.reason} at offset {group.offset}: it read back before and does not now"
                raise DiskFailedError(f"read {file.path}: {what}")


def _plain_records(filesystem: Filesystem, file: SalvagedFile, after: int) -> Iterator[JournalRecord]:
    return (record for record in _records(filesystem, file) if record.sequence > after)


def _records_in_holes(
    filesystem: Filesystem, file: SalvagedFile, holes: Sequence[Hole]
) -> Iterator[JournalRecord]:
    firsts = [hole.first for hole in holes]
    for record in _records(filesystem, file):
        at = bisect_right(firsts, record.sequence) - 1
        if at >= 0 and record.sequence <= (holes[at].last or record.sequence):
            yield record
