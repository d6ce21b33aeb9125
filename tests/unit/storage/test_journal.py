"""The journal: what was synced reads back whatever happens, a torn tail is cut, any other damage is refused.

Covers storage/journal.py, journal_files.py, journal_format.py, journal_reader.py and journal_scan.py together: what one
writes the others read.
"""

import errno
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import xxhash
from hypothesis import example, given, settings, strategies as st

from storage import journal, journal_format
from storage.errors import (
    DamagedError,
    DiskFailedError,
    DiskFullError,
    FormatError,
    OverloadedError,
    StorageError,
    UnknownOutcomeError,
)
from storage.filesystem import Filesystem, PosixFilesystem
from storage.journal import Group, JournalWriter
from storage.journal_files import cut_torn_tail, remove_files, rewrite_accepted, write_compacted
from storage.journal_format import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    JournalHeader,
    JournalRecord,
    decode_header,
    encode_end_frame,
    encode_frame,
    encode_header,
    frame_seed,
    journal_path,
)
from storage.journal_reader import BadFrame, JournalReader
from storage.journal_scan import JournalScan, replay, scan, settle
from storage.types import Location
from tests.fakes.filesystem import Call, FakeFilesystem, Halted, Operation

INSTANCE = bytes(range(16))
GOLDEN = Path(__file__).parents[2] / "golden" / "journal"
DISK_ERRORS = (DiskFullError, DiskFailedError)


@pytest.fixture
def disk() -> FakeFilesystem:
    """A fake file system with an empty, durable journal directory."""
    return _fresh_disk()


def _fresh_disk(seed: int = 0) -> FakeFilesystem:
    disk = FakeFilesystem(seed=seed)
    disk.make_directory("journal")
    disk.sync_directory("")
    return disk


def _group(first_sequence: int, count: int = 1, body: bytes = b"") -> Group:
    """A group whose mutations name their sequences, so that one read in another's place shows."""
    mutations = tuple(b"mutation %d" % (first_sequence + n) for n in range(count))
    return Group(first_sequence, mutations, (body,) if body else ())


def _records(start: int, stop: int) -> list[JournalRecord]:
    """What groups of `_group` for sequences [start, stop) read back as."""
    return [JournalRecord(n, b"mutation %d" % n) for n in range(start, stop)]


def _write(disk: Filesystem, segment_id: int, groups: Sequence[Group]) -> None:
    writer = JournalWriter.open(disk, segment_id, INSTANCE, next_sequence=groups[0].first_sequence)
    for group in groups:
        writer.append(group)
        writer.sync()
    writer.close()


def _read(disk: Filesystem, scanned: JournalScan, after_sequence: int = 0) -> list[JournalRecord]:
    return [record for group in replay(disk, scanned, after_sequence=after_sequence) for record in group]


def _frame_offsets(disk: FakeFilesystem, path: str) -> list[int]:
    with JournalReader(disk, path) as reader:
        return [group.offset for group in reader.groups()]


# --- round trips -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["posix", "fake"])
def filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    """A real and a fake file system with an empty journal directory."""
    if request.param == "fake":
        return _fresh_disk()
    real = PosixFilesystem(str(tmp_path))
    real.make_directory("journal")
    return real


def test_replay_when_two_files_were_written(filesystem: Filesystem) -> None:
    """All groups of all files come back in order, and the scan names what it accepted."""
    _write(filesystem, 0x0001_0000_0000_000A, [_group(1, 2), _group(3)])
    _write(filesystem, 0x0001_0000_0000_000B, [_group(4, 3, body=b"tiny")])

    scanned = scan(filesystem)

    assert _read(filesystem, scanned) == _records(1, 7)
    assert [file.path for file in scanned.files] == [
        "journal/000100000000000a.log",
        "journal/000100000000000b.log",
    ]
    assert [file.last_sequence for file in scanned.files] == [3, 6]
    assert (scanned.last_sequence, scanned.checkpoint_sequence, scanned.instance_id) == (6, 0, INSTANCE)
    assert (scanned.torn, scanned.superseded, scanned.unfinished) == (None, (), ())


def test_replay_when_part_is_applied(disk: FakeFilesystem) -> None:
    """Only what is behind the applied sequence is given, also from the middle of a group."""
    _write(disk, 1, [_group(1, 2), _group(3)])
    _write(disk, 2, [_group(4, 3)])

    assert list(replay(disk, scan(disk), after_sequence=2)) == [
        tuple(_records(3, 4)),
        tuple(_records(4, 7)),
    ]
    assert list(replay(disk, scan(disk), after_sequence=5)) == [tuple(_records(6, 7))]
    assert list(replay(disk, scan(disk), after_sequence=6)) == []


def test_scan_when_there_is_no_file(disk: FakeFilesystem) -> None:
    """An empty directory is an empty journal."""
    assert scan(disk) == JournalScan((), (), (), None, 0, 0, None)


def test_scan_when_a_file_has_no_group(disk: FakeFilesystem) -> None:
    """A file that was begun and not used is fine wherever it stands."""
    JournalWriter.open(disk, 1, INSTANCE, next_sequence=1).close()
    _write(disk, 2, [_group(1)])
    JournalWriter.open(disk, 3, INSTANCE, next_sequence=2).close()
    _write(disk, 4, [_group(2)])

    scanned = scan(disk)

    assert _read(disk, scanned) == _records(1, 3)
    assert [file.last_sequence for file in scanned.files] == [0, 1, 0, 2]


def test_locate_when_bodies_are_appended(filesystem: Filesystem) -> None:
    """Locations told before the append hold the bodies after it, with their checksums."""
    writer = JournalWriter.open(filesystem, 7, INSTANCE, next_sequence=1)
    writer.append(_group(1, body=b"the first group moves the second"))
    writer.sync()
    bodies = (b"a", b"bc" * 100)

    locations = writer.locate(bodies)
    first_offset = writer.body_offset()
    writer.append(Group(2, (b"m", b"n"), bodies))
    writer.sync()

    file = filesystem.open_reader("journal/0000000000000007.log")
    assert [file.pread(location.offset, location.length) for location in locations] == [b"a", b"bc" * 100]
    assert locations[0] == Location(7, first_offset, 1, xxhash.xxh3_64_digest(b"a"))
    assert locations[1].checksum(0) == xxhash.xxh3_64_intdigest(b"bc" * 100)
    file.close()
    writer.close()


def test_reader_when_groups_have_bodies(disk: FakeFilesystem) -> None:
    """A group read says where it and its bodies lie."""
    writer = JournalWriter.open(disk, 7, INSTANCE, next_sequence=1)
    offset = writer.body_offset()
    writer.append(_group(1, 2, body=b"12345"))

    with JournalReader(disk, journal_path(7)) as reader:
        (group,) = reader.groups()

    assert not isinstance(group, BadFrame)
    assert (group.offset, group.end_offset) == (HEADER_BYTES, writer.size_bytes)
    assert (group.bodies_offset, group.bodies_bytes) == (offset, 5)
    assert (group.first_sequence, group.last_sequence) == (1, 2)


@given(
    groups=st.lists(
        st.tuples(
            st.lists(st.binary(max_size=300), min_size=1, max_size=5),
            st.lists(st.binary(min_size=1, max_size=300), max_size=3),
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=50)
def test_replay_when_any_groups_were_written(groups: list[tuple[list[bytes], list[bytes]]]) -> None:
    """Any mutations and bodies come back as they were."""
    disk = _fresh_disk()
    writer = JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)
    located: list[tuple[Location, bytes]] = []
    for mutations, bodies in groups:
        located += zip(writer.locate(bodies), bodies, strict=True)
        writer.append(Group(writer.next_sequence, tuple(mutations), tuple(bodies)))
        writer.sync()

    read = [record.mutation for record in _read(disk, scan(disk))]

    data = disk.contents(journal_path(1))
    assert read == [mutation for mutations, _ in groups for mutation in mutations]
    assert all(data[place.offset : place.offset + place.length] == body for place, body in located)


# --- the bytes ---------------------------------------------------------------------------------------------------------


def _golden(name: str) -> bytes:
    lines = (GOLDEN / name).read_text().splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


def test_file_bytes_when_plain(disk: FakeFilesystem) -> None:
    """The bytes of a plain file never change within a format."""
    _write(
        disk,
        0x0001_0000_0000_002A,
        [Group(1, (b"\x92\xa3put\x01", b"\x90"), (b"tiny", b"body")), Group(3, (b"\x91\x05",))],
    )

    assert disk.contents("journal/000100000000002a.log") == _golden("plain.hex")


def test_file_bytes_when_compacted(disk: FakeFilesystem) -> None:
    """The bytes of a compacted file never change within a format."""
    records = [JournalRecord(2, b"\x90"), JournalRecord(70000, b"\x91\x05")]

    write_compacted(disk, 0x0001_0000_0000_002B, INSTANCE, 0x1_0000_0001, records)

    assert disk.contents("journal/000100000000002b.log") == _golden("compacted.hex")


def test_reader_when_the_format_is_newer(disk: FakeFilesystem) -> None:
    """A file of a newer program is refused as such, not as damage."""
    _write(disk, 1, [_group(1)])
    head = bytearray(disk.contents(journal_path(1))[: HEADER_BYTES - 8])
    head[11] = 2
    disk.replace_contents(journal_path(1), head + xxhash.xxh3_64_digest(head))

    with pytest.raises(FormatError, match="format 2"):
        scan(disk)


def test_decode_header_when_magic_is_another() -> None:
    """A whole checksum over something else is no header."""
    head = b"another!" + encode_header(JournalHeader(1, INSTANCE, 1))[8:56]

    assert decode_header(head + xxhash.xxh3_64_digest(head)) is None


def test_journal_path_when_ids_grow() -> None:
    """Names sort as ids do, whatever the node."""
    ids = [1, 9, 10, 0xFFFF, 0x0001_0000_0000_0000, 0xFFFF_FFFF_FFFF_FFFF]

    paths = [journal_path(segment_id) for segment_id in ids]

    assert paths == sorted(paths)
    assert {len(path) for path in paths} == {len("journal/") + 16 + len(".log")}


# --- torn or damaged ---------------------------------------------------------------------------------------------------


def _three_groups(body: bytes = b"") -> FakeFilesystem:
    disk = _fresh_disk()
    _write(disk, 1, [_group(1, 2, body), _group(3, 1, body), _group(4, 2, body)])
    return disk


@given(bit=st.integers(min_value=0), body=st.sampled_from([b"", b"b" * 700]))
@settings(max_examples=200)
def test_scan_when_a_bit_of_the_last_frame_flips(bit: int, body: bytes) -> None:
    """Any flipped bit of the last frame reads as a torn tail, from the frame's start to the file's end."""
    disk = _three_groups(body)
    path = journal_path(1)
    data = bytearray(disk.contents(path))
    start = _frame_offsets(disk, path)[2]
    bit %= 8 * (len(data) - start)
    data[start + bit // 8] ^= 1 << bit % 8
    disk.replace_contents(path, data)

    scanned = scan(disk)

    assert scanned.torn is not None
    assert (scanned.torn.path, scanned.torn.offset, scanned.torn.size_bytes) == (path, start, len(data))
    assert scanned.last_sequence == 3
    assert _read(disk, scanned) == _records(1, 4)


@given(bit=st.integers(min_value=0), body=st.sampled_from([b"", b"b" * 700]))
@settings(max_examples=200)
def test_scan_when_a_bit_before_the_last_frame_flips(bit: int, body: bytes) -> None:
    """Any flipped bit before the last frame, header included, is refused, and the message names file and way out."""
    disk = _three_groups(body)
    path = journal_path(1)
    data = bytearray(disk.contents(path))
    bit %= 8 * _frame_offsets(disk, path)[2]
    data[bit // 8] ^= 1 << bit % 8
    disk.replace_contents(path, data)

    with pytest.raises(
        DamagedError, match=r"journal/0000000000000001\.log: .* at offset \d+; see `forebay fsck`"
    ):
        scan(disk)


def test_scan_when_the_last_frame_is_cut_anywhere() -> None:
    """A last frame cut at any byte is torn, and cut at its start is simply not there."""
    whole = _three_groups()
    path = journal_path(1)
    data, start = whole.contents(path), _frame_offsets(whole, path)[2]

    for size in range(start + 1, len(data)):
        disk = _three_groups()
        disk.replace_contents(path, data[:size])
        torn = scan(disk).torn
        assert torn is not None, size
        assert torn.offset == start, size
    whole.replace_contents(path, data[:start])
    assert scan(whole).torn is None


def test_scan_when_zeros_or_rubbish_follow() -> None:
    """What no frame begins with is torn, as where a size grew and the bytes were lost."""
    for rubbish in (b"\0", bytes(5000), b"FBG\0" * 50, random.Random(1).randbytes(3000)):
        disk = _three_groups()
        data = disk.contents(journal_path(1))
        disk.replace_contents(journal_path(1), data + rubbish)

        torn = scan(disk).torn

        assert torn is not None
        assert torn.offset == len(data)


def test_scan_when_a_torn_frame_holds_a_stored_journal() -> None:
    """A client's bytes are never taken for frames, not even those of a journal file of the same sequences and offsets."""
    other = _fresh_disk()
    _write(other, 1, [_group(n, 1, b"b" * 500) for n in range(1, 20)])
    stored = other.contents(journal_path(1))
    disk = _fresh_disk()
    # A body that stands in the file at the very offsets at which it stood as a journal.
    writer = JournalWriter.open(disk, 1, bytes(16), next_sequence=1)
    writer.append(_group(1, body=stored[writer.body_offset() :]))
    data = bytearray(disk.contents(journal_path(1)))
    data[HEADER_BYTES + 8] ^= 1
    disk.replace_contents(journal_path(1), data)

    scanned = scan(disk)

    assert scanned.torn is not None
    assert scanned.torn.offset == HEADER_BYTES


def test_scan_when_an_own_frame_stands_elsewhere() -> None:
    """A frame is one only where it was written: a copy of it behind the tail is rubbish, not damage."""
    disk = _three_groups()
    path = journal_path(1)
    data = disk.contents(path)
    first, second, _ = _frame_offsets(disk, path)
    disk.replace_contents(path, data + data[first:second])

    torn = scan(disk).torn

    assert torn is not None
    assert torn.offset == len(data)


def test_scan_when_the_head_of_a_long_frame_is_broken() -> None:
    """The frame behind a broken one is found wherever the steps of the search fall."""
    for body_bytes in (1024 * 1024 - 200 + n for n in range(0, 200, 7)):
        disk = _fresh_disk()
        _write(disk, 1, [Group(1, (b"m",), (b"b" * body_bytes,)), _group(2)])
        data = bytearray(disk.contents(journal_path(1)))
        data[HEADER_BYTES] ^= 1
        disk.replace_contents(journal_path(1), data)

        with pytest.raises(DamagedError):
            scan(disk)


def test_scan_when_more_is_left_than_one_frame(disk: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest longer than any frame cannot be one torn append."""
    monkeypatch.setattr("storage.journal_reader.FRAME_BYTES_MAX", 1000)
    _write(disk, 1, [_group(1)])
    data = disk.contents(journal_path(1))

    disk.replace_contents(journal_path(1), data + bytes(1000))
    torn = scan(disk).torn
    assert torn is not None

    disk.replace_contents(journal_path(1), data + bytes(1001))
    with pytest.raises(DamagedError):
        scan(disk)


def test_scan_when_a_torn_frame_follows_a_broken_one() -> None:
    """A frame with a whole head and broken contents is damage if the file goes on, though nothing whole follows."""
    disk = _three_groups()
    path = journal_path(1)
    data = bytearray(disk.contents(path))
    second, third = _frame_offsets(disk, path)[1:]
    data[third - 1] ^= 1
    data[third] ^= 1
    disk.replace_contents(path, data)

    with pytest.raises(DamagedError, match=f"wrong checksum at offset {second};"):
        scan(disk)


def test_scan_when_a_file_before_the_last_is_torn(disk: FakeFilesystem) -> None:
    """Only the last file may be torn: also an empty file shows that the one before was synced."""
    _write(disk, 1, [_group(1), _group(2)])
    JournalWriter.open(disk, 2, INSTANCE, next_sequence=3).close()
    path = journal_path(1)
    disk.replace_contents(path, disk.contents(path)[:-1])

    with pytest.raises(DamagedError, match=path):
        scan(disk)


def test_scan_when_sequences_are_missing() -> None:
    """A file that is gone, a tail that is gone and a journal that does not begin at the beginning are all seen."""
    lost_file, lost_tail, lost_start = _fresh_disk(), _fresh_disk(), _fresh_disk()
    for disk in (lost_file, lost_tail, lost_start):
        _write(disk, 1, [_group(1), _group(2)])
        _write(disk, 2, [_group(3)])
        _write(disk, 3, [_group(4)])
    lost_file.unlink(journal_path(2))
    path = journal_path(1)
    lost_tail.replace_contents(path, lost_tail.contents(path)[: _frame_offsets(lost_tail, path)[1]])
    lost_start.unlink(path)

    for disk, message in (
        (lost_file, "sequence 4 where 3"),
        (lost_tail, "sequence 3 where 2"),
        (lost_start, "sequence 3 where 1"),
    ):
        with pytest.raises(DamagedError, match=message):
            scan(disk)


def _append_raw(disk: FakeFilesystem, records: Sequence[JournalRecord]) -> None:
    """Put a whole frame with any content behind a file, as no writer would."""
    path = journal_path(1)
    data = disk.contents(path)
    disk.replace_contents(path, data + encode_frame(frame_seed(data[:HEADER_BYTES]), len(data), records))


@pytest.mark.parametrize("sequences", [[3], [1], [2, 4], [2, 3, 3]])
def test_scan_when_a_whole_frame_has_other_sequences(disk: FakeFilesystem, sequences: list[int]) -> None:
    """A frame that is whole and does not follow is damage, also as the last one."""
    _write(disk, 1, [_group(1)])
    _append_raw(disk, [JournalRecord(n, b"m") for n in sequences])

    with pytest.raises(DamagedError, match="sequences other than 2 and on"):
        scan(disk)


def test_scan_when_a_file_has_another_name(disk: FakeFilesystem) -> None:
    """A file under the name of another is not read: locations into it would be wrong."""
    _write(disk, 1, [_group(1)])
    disk.rename(journal_path(1), journal_path(2))

    with pytest.raises(DamagedError, match="the header of journal/0000000000000001"):
        scan(disk)


def test_scan_when_files_are_of_two_instances(disk: FakeFilesystem) -> None:
    """Files of two cache directories do not make one journal."""
    _write(disk, 1, [_group(1)])
    JournalWriter.open(disk, 2, bytes(16), next_sequence=2).close()

    with pytest.raises(DamagedError, match="several instances"):
        scan(disk)


def test_scan_when_the_disk_fails(disk: FakeFilesystem) -> None:
    """A read error is the disk's, not damage, at whichever call it comes."""
    _write(disk, 1, [_group(1)])
    for operation in (Operation.LIST_DIRECTORY, Operation.OPEN_READER, Operation.PREAD):
        for nth in range(1, 3):
            disk.fail(operation, nth=nth)
            if operation is Operation.LIST_DIRECTORY and nth > 1:
                break
            with pytest.raises(DiskFailedError):
                scan(disk)
            disk.heal()


# --- the torn tail is cut --------------------------------------------------------------------------------------------


def test_cut_torn_tail_when_torn(disk: FakeFilesystem) -> None:
    """After the cut the journal is whole, durably, and goes on in a new file."""
    _write(disk, 1, [_group(1), _group(2)])
    disk.replace_contents(journal_path(1), disk.contents(journal_path(1))[:-1])
    torn = scan(disk).torn
    assert torn is not None

    cut_torn_tail(disk, torn.path, torn.offset)
    _write(disk, 2, [_group(2)])

    clone = disk.crash_clone(random.Random(1), keep_probability=0)
    assert scan(clone).torn is None
    assert _read(clone, scan(clone)) == _records(1, 3)


@pytest.mark.parametrize("operation", [Operation.OPEN, Operation.TRUNCATE, Operation.FDATASYNC])
def test_cut_torn_tail_when_it_fails(disk: FakeFilesystem, operation: Operation) -> None:
    """A cut that fails has an unknown outcome: nobody goes on behind it."""
    _write(disk, 1, [_group(1)])
    disk.fail(operation)

    with pytest.raises(UnknownOutcomeError):
        cut_torn_tail(disk, journal_path(1), HEADER_BYTES)


def test_settle_when_a_sync_failed() -> None:
    """After a failed sync, in the same process, what is settled is durable and keeps its places."""
    accepted_sequences = set()
    for seed in range(40):
        disk = _fresh_disk(seed)
        writer = JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)
        writer.append(_group(1, body=b"one"))
        writer.sync()
        (place,) = writer.locate([b"two"])
        writer.append(_group(2, body=b"two"))
        disk.fail(Operation.FDATASYNC)
        with pytest.raises(UnknownOutcomeError):
            writer.sync()

        settled = settle(disk)

        clone = disk.crash_clone(random.Random(seed), keep_probability=0)
        assert settled.torn is None
        assert scan(clone) == settled
        if settled.last_sequence == 2:
            assert clone.contents(journal_path(1))[place.offset : place.offset + place.length] == b"two"
        accepted_sequences.add(settled.last_sequence)
    assert accepted_sequences == {1, 2}


def test_settle_when_killed_before_the_sync(disk: FakeFilesystem) -> None:
    """What a killed process had appended and not synced is durable before the journal goes on behind it."""
    writer = JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)
    writer.append(_group(1))
    disk = disk.kill_clone()

    settled = settle(disk)

    assert settled.last_sequence == 1
    assert scan(disk.crash_clone(random.Random(1), keep_probability=0)) == settled


def test_settle_when_killed_before_the_name_was_durable(disk: FakeFilesystem) -> None:
    """A compacted file that counts has a durable name before anything that it replaces goes."""
    _write(disk, 1, [_group(1)])
    disk.fail(Operation.SYNC_DIRECTORY)
    with pytest.raises(UnknownOutcomeError):
        write_compacted(disk, 2, INSTANCE, 1, _records(1, 2))

    settled = settle(disk)

    assert settled.checkpoint_sequence == 1
    assert scan(disk.crash_clone(random.Random(1), keep_probability=0)) == settled
    disk.fail(Operation.SYNC_DIRECTORY)
    with pytest.raises(UnknownOutcomeError):
        settle(disk)


def test_settle_when_there_is_no_file(disk: FakeFilesystem) -> None:
    """Nothing is settled at once."""
    assert settle(disk) == scan(disk)


def test_settle_when_a_page_is_dropped_meanwhile(disk: FakeFilesystem) -> None:
    """A tail that read back in the scan and not in the copy is cut; nothing before it is touched."""
    path = journal_path(1)
    _write(disk, 1, [_group(1), _group(2)])
    data = disk.contents(path)

    def drop(call: Call) -> bool:
        if call.operation is Operation.CREATE:
            disk.replace_contents(path, data[:-4] + bytes(4))
        return False

    disk.fail(Operation.CREATE, when=drop)

    settled = settle(disk)

    assert (settled.torn, settled.last_sequence) == (None, 1)
    assert _read(disk, settled) == _records(1, 2)
    assert scan(disk.crash_clone(random.Random(1), keep_probability=0)) == settled


def test_rewrite_accepted_when_any_call_fails_or_is_the_last() -> None:
    """The file is the old one or the copy, whole, whatever happens on the way."""
    for is_failure in (True, False):
        for nth in range(1, 6):
            disk = _fresh_disk()
            _write(disk, 1, [_group(1), _group(2)])
            if is_failure:
                disk.fail(nth=nth)
            else:
                disk.halt_at(nth)
            with pytest.raises((*DISK_ERRORS, UnknownOutcomeError, Halted)):
                rewrite_accepted(disk, 1, len(disk.contents(journal_path(1))))

            for seed in range(10):
                clone = disk.crash_clone(random.Random(seed))
                assert _read(clone, scan(clone)) == _records(1, 3)


def test_rewrite_accepted_when_the_file_is_missing(disk: FakeFilesystem) -> None:
    """There must be something to copy."""
    with pytest.raises(DiskFailedError):
        rewrite_accepted(disk, 1, HEADER_BYTES)


# --- failures of the writer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, DiskFailedError)],
)
@pytest.mark.parametrize("written_share", [0.0, 0.5, 1.0])
def test_append_when_the_write_fails(
    disk: FakeFilesystem, number: int, expected: type[StorageError], written_share: float
) -> None:
    """A failed or short append is cut back durably, and the same sequences go in by the next one."""
    writer = JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)
    writer.append(_group(1))
    writer.sync()
    before = disk.contents(journal_path(1))
    disk.fail(Operation.PWRITE, error_number=number, written_share=written_share)

    with pytest.raises(expected, match=os.strerror(number)):
        writer.append(_group(2, body=b"b" * 3000))

    assert disk.crash_clone(random.Random(1)).contents(journal_path(1)) == before
    assert (writer.size_bytes, writer.next_sequence) == (len(before), 2)
    writer.append(_group(2))
    writer.sync()
    assert _read(disk, scan(disk)) == _records(1, 3)


@pytest.mark.parametrize("operation", [Operation.TRUNCATE, Operation.FDATASYNC])
def test_append_when_the_cut_back_fails(disk: FakeFilesystem, operation: Operation) -> None:
    """A failed append that cannot be cut back poisons the writer."""
    writer = JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)
    disk.fail(Operation.PWRITE)
    disk.fail(operation)

    with pytest.raises(UnknownOutcomeError):
        writer.append(_group(1))

    assert writer.is_poisoned
    with pytest.raises(UnknownOutcomeError, match="not written any more"):
        writer.append(_group(1))


def test_sync_when_it_fails(disk: FakeFilesystem) -> None:
    """After a failed sync the file is never synced nor appended again."""
    writer = JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)
    writer.append(_group(1))
    disk.fail(Operation.FDATASYNC)

    with pytest.raises(UnknownOutcomeError):
        writer.sync()
    calls = disk.changing_calls
    for call in (writer.sync, lambda: writer.append(_group(2))):
        with pytest.raises(UnknownOutcomeError, match="not written any more"):
            call()

    assert disk.changing_calls == calls


def test_append_when_something_unforeseen_interrupts(disk: FakeFilesystem) -> None:
    """A writer that was interrupted in the middle, by whatever, does no more harm."""
    writer = JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)

    def interrupt(_: object) -> bool:
        raise MemoryError

    disk.fail(Operation.PWRITE, when=interrupt)

    with pytest.raises(MemoryError):
        writer.append(_group(1))

    assert writer.is_poisoned


def test_append_when_misused(disk: FakeFilesystem) -> None:
    """A gap in sequences, an empty group, a second group before the sync and an empty body are bugs."""
    writer = JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)
    with pytest.raises(AssertionError):
        writer.append(_group(2))
    with pytest.raises(AssertionError):
        writer.append(Group(1, ()))
    with pytest.raises(AssertionError):
        writer.locate([b""])
    writer.append(_group(1))
    with pytest.raises(AssertionError):
        writer.append(_group(2))

    writer.sync()
    assert _read(disk, scan(disk)) == _records(1, 2)


def test_append_when_the_group_is_too_long(disk: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group over the bound is refused with nothing written."""
    for module in (journal, journal_format):
        monkeypatch.setattr(module, "FRAME_BYTES_MAX", 200)
    writer = JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)

    with pytest.raises(OverloadedError):
        writer.append(_group(1, body=b"b" * 200))

    writer.append(_group(1, body=b"b" * 50))
    assert writer.next_sequence == 2


@given(
    mutations=st.lists(st.binary(max_size=70_000), min_size=1, max_size=4),
    bodies=st.lists(st.binary(max_size=100), max_size=4),
    sequence=st.integers(min_value=1, max_value=2**63),
)
@settings(max_examples=50)
def test_frame_bytes_when_compared_with_a_frame(
    mutations: list[bytes], bodies: list[bytes], sequence: int
) -> None:
    """The bound told before encoding is never below the frame's length, and hardly above it."""
    records = [JournalRecord(sequence + n, data) for n, data in enumerate(mutations)]

    bound = journal_format.frame_bytes(mutations, bodies)

    assert 0 <= bound - len(encode_frame(1, 0, records, bodies)) <= 13 * len(mutations) + 4


def test_open_when_any_call_fails() -> None:
    """A file that could not be begun leaves nothing in the way of the next try, with its id or another."""
    outcomes = []
    for nth in range(1, 6):
        disk = _fresh_disk()
        disk.fail(nth=nth)

        with pytest.raises((*DISK_ERRORS, UnknownOutcomeError)) as caught:
            JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)
        outcomes.append(caught.type is UnknownOutcomeError)

        scan(disk)
        _write(disk, 2, [_group(1)])
        assert _read(disk, scan(disk)) == _records(1, 2)
    # create, pwrite, fdatasync; rename, sync_directory
    assert outcomes == [False, False, False, True, True]


def test_open_when_an_unfinished_file_is_in_the_way(disk: FakeFilesystem) -> None:
    """The leavings of an earlier try are removed, and named by the scan until then."""
    disk.create("journal/0000000000000001.tmp").pwrite(0, b"half")

    assert scan(disk).unfinished == ("journal/0000000000000001.tmp",)
    JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)

    assert disk.list_directory("journal") == ["0000000000000001.log"]


def test_open_when_the_id_is_in_use(disk: FakeFilesystem) -> None:
    """An id that returns is a bug, and never replaces a file."""
    _write(disk, 1, [_group(1)])

    with pytest.raises(AssertionError):
        JournalWriter.open(disk, 1, INSTANCE, next_sequence=2)

    assert _read(disk, scan(disk)) == _records(1, 2)


# --- compaction --------------------------------------------------------------------------------------------------------


def _compacted_disk() -> FakeFilesystem:
    """Sequences 1 to 4 in two sealed files, live are 2 and 4; 5 in the file in use; compacted and not yet cleared."""
    disk = _fresh_disk()
    _write(disk, 1, [_group(1, 2)])
    _write(disk, 2, [_group(3, 2)])
    _write(disk, 3, [_group(5)])
    write_compacted(disk, 4, INSTANCE, 4, [_records(2, 3)[0], _records(4, 5)[0]])
    return disk


LIVE = [*_records(2, 3), *_records(4, 6)]


def test_scan_when_compaction_was_interrupted(disk: FakeFilesystem) -> None:
    """The compacted file stands for the old ones, whichever of them are left or broken; the later file follows it."""
    for left in ((1, 2), (1,), (2,), ()):
        disk = _compacted_disk()
        for segment_id in {1, 2} - set(left):
            disk.unlink(journal_path(segment_id))
        if 2 in left:
            disk.replace_contents(journal_path(2), disk.contents(journal_path(2))[:-1])

        scanned = scan(disk)

        assert _read(disk, scanned) == LIVE
        assert scanned.superseded == tuple(journal_path(segment_id) for segment_id in left)
        assert [file.path for file in scanned.files] == [journal_path(4), journal_path(3)]
        assert (scanned.checkpoint_sequence, scanned.last_sequence) == (4, 5)


def test_remove_files_when_superseded(disk: FakeFilesystem) -> None:
    """Removed files are gone for good; doing it again is fine."""
    disk = _compacted_disk()
    superseded = scan(disk).superseded

    remove_files(disk, superseded)
    remove_files(disk, superseded)

    clone = disk.crash_clone(random.Random(1), keep_probability=0)
    assert clone.list_directory("journal") == ["0000000000000003.log", "0000000000000004.log"]
    assert _read(clone, scan(clone)) == LIVE


def test_remove_files_when_it_fails(disk: FakeFilesystem) -> None:
    """A failed removal is told and harmless."""
    disk = _compacted_disk()
    disk.fail(Operation.UNLINK)

    with pytest.raises(DiskFailedError):
        remove_files(disk, [journal_path(1)])

    assert _read(disk, scan(disk)) == LIVE


def test_scan_when_compacted_twice(disk: FakeFilesystem) -> None:
    """The newest compacted file counts, and the one before is superseded."""
    disk = _compacted_disk()
    _write(disk, 5, [_group(6)])
    write_compacted(disk, 6, INSTANCE, 5, _records(5, 6))

    scanned = scan(disk)

    assert _read(disk, scanned) == _records(5, 7)
    assert set(scanned.superseded) == {journal_path(n) for n in (1, 2, 3, 4)}


def test_scan_when_nothing_is_live(disk: FakeFilesystem) -> None:
    """A compacted file without records still says how far sequences have come."""
    _write(disk, 1, [_group(1, 9)])
    write_compacted(disk, 2, INSTANCE, 9, [])

    scanned = scan(disk)

    assert (scanned.last_sequence, scanned.checkpoint_sequence) == (9, 9)
    assert _read(disk, scanned) == []


def test_write_compacted_when_long(disk: FakeFilesystem) -> None:
    """Many records stand in frames of about 1 MiB, so that a reader holds little at a time."""
    records = [JournalRecord(7 * n, bytes(100_000)) for n in range(1, 41)]

    size = write_compacted(disk, 1, INSTANCE, 1000, records)

    groups = list(replay(disk, scan(disk)))
    assert [record for group in groups for record in group] == records
    assert [len(group) for group in groups] == [11, 11, 11, 7]
    assert size == len(disk.contents(journal_path(1)))


def test_scan_when_a_compacted_file_is_damaged() -> None:
    """A compacted file is whole or damaged, never torn: any flipped bit and any cut is refused."""
    whole = _compacted_disk()
    path = journal_path(4)
    data = whole.contents(path)
    broken = [data[:size] for size in range(len(data))]
    broken += [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(len(data))]
    broken += [data + b"\0", data + data[-FRAME_HEADER_BYTES - 1 :]]

    for image in broken:
        whole.replace_contents(path, image)
        with pytest.raises(DamagedError, match=path):
            scan(whole)


def test_scan_when_a_superseded_file_holds_later_sequences(disk: FakeFilesystem) -> None:
    """A file that was compacted without being sealed is not given up."""
    _write(disk, 1, [_group(1), _group(2)])
    write_compacted(disk, 2, INSTANCE, 1, _records(1, 2))

    with pytest.raises(DamagedError, match="sequence 2 after 1"):
        scan(disk)


def test_scan_when_the_file_after_the_checkpoint_is_missing(disk: FakeFilesystem) -> None:
    """Later files follow the checkpoint without a gap."""
    disk = _compacted_disk()
    _write(disk, 5, [_group(6)])
    disk.unlink(journal_path(3))

    with pytest.raises(DamagedError, match="sequence 6 where 5"):
        scan(disk)


@pytest.mark.parametrize("sequences", [[2, 2], [3, 2], [5], [0]])
def test_write_compacted_when_misused(disk: FakeFilesystem, sequences: list[int]) -> None:
    """Records out of order or behind the checkpoint are a bug, and leave no file."""
    with pytest.raises(AssertionError):
        write_compacted(disk, 1, INSTANCE, 4, [JournalRecord(n, b"m") for n in sequences])

    assert disk.list_directory("journal") == []


def test_write_compacted_when_reading_the_records_fails(disk: FakeFilesystem) -> None:
    """An error of the source passes through and leaves no file."""

    def source() -> Iterator[JournalRecord]:
        yield JournalRecord(1, b"m")
        raise DamagedError("the source is broken")

    with pytest.raises(DamagedError, match="the source is broken"):
        write_compacted(disk, 1, INSTANCE, 4, source())

    assert disk.list_directory("journal") == []


# --- any call fails, or is the last ------------------------------------------------------------------------------------


@dataclass
class _Run:
    """A life of a journal: groups, a second file, a compaction, more groups. Sequences up to `acknowledged` were synced.

    A compaction drops every record but those divisible by 3, so what must read back depends on whether it counts.
    """

    disk: FakeFilesystem
    acknowledged: int = 0
    appended: int = 0
    failures: list[StorageError] = field(default_factory=list)

    def go(self) -> None:
        """Go through it, taking up a group or a file again after a known failure; ends at the first unknown one."""
        writer = self._open(1, 1)
        for count in (1, 3, 2):
            self._add(writer, count)
        writer = self._open(2, writer.next_sequence)
        self._add(writer, 2)
        sealed = writer.next_sequence - 1
        writer = self._open(3, writer.next_sequence)
        self._add(writer, 1)
        self._compact(sealed)
        self._add(writer, 2)

    def _open(self, segment_id: int, next_sequence: int) -> JournalWriter:
        for _ in range(2):
            try:
                return JournalWriter.open(self.disk, segment_id, INSTANCE, next_sequence=next_sequence)
            except DISK_ERRORS as error:
                self.failures.append(error)
        raise self.failures[-1]

    def _add(self, writer: JournalWriter, count: int) -> None:
        group = _group(writer.next_sequence, count, b"body" * 200)
        for _ in range(2):
            try:
                writer.append(group)
            except DISK_ERRORS as error:
                self.failures.append(error)
                continue
            except (UnknownOutcomeError, Halted):
                self.appended += count
                raise
            self.appended += count
            writer.sync()
            self.acknowledged += count
            return
        raise self.failures[-1]

    def _compact(self, sealed: int) -> None:
        scanned = scan(self.disk)
        live = (r for r in _read(self.disk, scanned) if r.sequence <= sealed and r.sequence % 3 == 0)
        try:
            write_compacted(self.disk, 4, INSTANCE, sealed, live)
            remove_files(self.disk, [file.path for file in scanned.files if file.last_sequence <= sealed])
        except DISK_ERRORS as error:
            self.failures.append(error)

    def check(self, disk: FakeFilesystem) -> JournalScan:
        """See that a disk left by this run holds all that was acknowledged and nothing but what was appended."""
        scanned = scan(disk)
        assert self.acknowledged <= scanned.last_sequence <= self.appended, (self, scanned)
        covered = scanned.checkpoint_sequence
        expected = [record for record in _records(1, covered + 1) if record.sequence % 3 == 0]
        assert _read(disk, scanned) == expected + _records(covered + 1, scanned.last_sequence + 1)
        return scanned

    def check_recovery(self, disk: FakeFilesystem) -> None:
        """See that the journal goes on behind what was found, and survives another power cut."""
        scanned = settle(disk)
        assert self.check(disk) == scanned
        assert self.check(disk.crash_clone(random.Random(1), keep_probability=0)).files == scanned.files
        remove_files(disk, (*scanned.superseded, *scanned.unfinished))
        _write(disk, 9, [_group(scanned.last_sequence + 1)])
        after = scan(disk.crash_clone(random.Random(1), keep_probability=0))
        assert after.last_sequence == scanned.last_sequence + 1
        assert (after.torn, after.superseded, after.unfinished) == (None, (), ())


def _calls_of_a_run() -> int:
    run = _Run(_fresh_disk())
    before = run.disk.changing_calls
    run.go()
    run.check_recovery(run.disk)
    assert (run.acknowledged, run.failures) == (11, [])
    return run.disk.changing_calls - before


@pytest.mark.slow
def test_scan_when_power_is_cut_at_every_call() -> None:
    """After a power cut at any call every group whose sync returned is read back, and else at most the one under way."""
    torn = 0
    for nth in range(1, _calls_of_a_run() + 1):
        run = _Run(_fresh_disk())
        run.disk.halt_at(nth)
        with suppress(Halted):
            run.go()
        for seed in range(12):
            draws = random.Random(100 * nth + seed)
            clone = run.disk.crash_clone(draws, keep_probability=(0.0, 0.5, 0.9, 1.0)[seed % 4])
            torn += scan(clone).torn is not None
            run.check_recovery(clone)
    assert torn > 0


def test_scan_when_killed_at_every_call() -> None:
    """After a SIGKILL at any call, and a power cut after that, every group whose sync returned is read back."""
    for nth in range(1, _calls_of_a_run() + 1):
        run = _Run(_fresh_disk())
        run.disk.halt_at(nth)
        with suppress(Halted):
            run.go()
        killed = run.disk.kill_clone()
        for seed in range(4):
            run.check(killed.crash_clone(random.Random(seed)))
        run.check_recovery(killed)


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("written_share", [0.0, 0.7])
@pytest.mark.parametrize("is_persistent", [False, True])
def test_scan_when_every_call_fails_in_turn(
    number: int, written_share: float, *, is_persistent: bool
) -> None:
    """Whichever call fails, once or for good, nothing acknowledged is lost: here, after a kill, after a power cut."""
    kinds: set[type[StorageError]] = set()
    for nth in range(1, _calls_of_a_run() + 1):
        run = _Run(_fresh_disk(seed=nth))
        run.disk.fail(nth=nth, error_number=number, written_share=written_share, is_persistent=is_persistent)
        try:
            run.go()
        except StorageError as error:
            run.failures.append(error)
        kinds.update(type(error) for error in run.failures)
        run.disk.heal()
        for seed in range(6):
            run.check_recovery(run.disk.crash_clone(random.Random(100 * nth + seed)))
        run.check_recovery(run.disk.kill_clone())
    assert kinds == {DiskFullError if number == errno.ENOSPC else DiskFailedError, UnknownOutcomeError}


@pytest.mark.slow
def test_scan_when_the_disk_is_full() -> None:
    """However little room there is, what was acknowledged is there and the writer stays usable."""
    for disk_bytes_max in range(0, 12_000, 97):
        disk = FakeFilesystem(disk_bytes_max=disk_bytes_max)
        disk.make_directory("journal")
        disk.sync_directory("")
        run = _Run(disk)
        with suppress(DiskFullError):
            run.go()
        run.check(disk.crash_clone(random.Random(1), keep_probability=0))
        disk.disk_bytes_max = 1 << 20
        run.check_recovery(disk)


@given(data=st.binary(max_size=600))
@example(data=b"FBG\0" * 30)
@settings(max_examples=100)
def test_scan_when_any_bytes_follow(data: bytes) -> None:
    """No bytes behind the last group hide it, make up a record or fail in a way that is not foreseen."""
    disk = _three_groups()
    disk.replace_contents(journal_path(1), disk.contents(journal_path(1)) + data)

    assert _read(disk, scan(disk)) == _records(1, 6)


# --- whole frames that only a bug can write --------------------------------------------------------------------------


def _resealed(seed: int, frame: bytearray) -> bytes:
    """Give a changed frame with checksums that fit."""
    frame[40:48] = xxhash.xxh3_64(bytes(frame[:40]), seed).digest()
    digest = xxhash.xxh3_64(bytes(frame[:48]), seed)
    digest.update(bytes(frame[FRAME_HEADER_BYTES:]))
    frame[48:56] = digest.digest()
    return bytes(frame)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (FRAME_HEADER_BYTES, b"\xc1", "does not decode"),
        (4, b"\0\0\0\2", "1 records instead of 2"),
        (8 + 8, (1).to_bytes(8), "sequences other than in the frame's header"),
        (8 + 16, (3).to_bytes(8), "sequences other than in the frame's header"),
    ],
)
def test_scan_when_a_whole_frame_contradicts_itself(
    disk: FakeFilesystem, place: int, value: bytes, message: str
) -> None:
    """A frame with right checksums and wrong contents is damage, not a torn tail."""
    _write(disk, 1, [_group(1)])
    data = disk.contents(journal_path(1))
    seed = frame_seed(data[:HEADER_BYTES])
    frame = bytearray(encode_frame(seed, len(data), [JournalRecord(2, b"m")]))
    frame[place : place + len(value)] = value
    disk.replace_contents(journal_path(1), data + _resealed(seed, frame))

    with pytest.raises(DamagedError, match=message):
        scan(disk)


def test_scan_when_a_compacted_file_contradicts_itself(disk: FakeFilesystem) -> None:
    """Records behind S, out of order, or behind the end frame of a compacted file are damage."""
    header = encode_header(JournalHeader(1, INSTANCE, first_sequence=0, checkpoint_sequence=4))
    seed = frame_seed(header)
    disk.create(journal_path(1))

    for sequences, message in (([5], "sequence 5 out of order"), ([3, 3], "sequence 3 out of order")):
        frame = encode_frame(seed, HEADER_BYTES, [JournalRecord(n, b"m") for n in sequences])
        disk.replace_contents(journal_path(1), header + frame)
        with pytest.raises(DamagedError, match=message):
            scan(disk)
    end = encode_end_frame(seed, HEADER_BYTES, 4)
    more = encode_frame(seed, HEADER_BYTES + len(end), [JournalRecord(1, b"m")])
    disk.replace_contents(journal_path(1), header + end + more)
    with pytest.raises(DamagedError, match="a frame behind the last one"):
        scan(disk)


def test_replay_when_a_frame_breaks_after_the_scan(disk: FakeFilesystem) -> None:
    """What no longer reads as scanned is not passed over."""
    _write(disk, 1, [_group(1)])
    scanned = scan(disk)
    disk.replace_contents(journal_path(1), disk.contents(journal_path(1))[:-1] + b"?")

    with pytest.raises(DamagedError, match="wrong checksum"):
        list(replay(disk, scanned))


def test_sync_when_nothing_waits(disk: FakeFilesystem) -> None:
    """There is nothing to sync twice."""
    writer = JournalWriter.open(disk, 1, INSTANCE, next_sequence=1)
    calls = disk.changing_calls

    writer.sync()

    assert disk.changing_calls == calls
