"""Past damage of a journal, everything that reads back is found, and what does not is told as holes."""

import pytest

from storage.filesystem import Filesystem
from storage.journal import Group, JournalWriter
from storage.journal_files import write_compacted
from storage.journal_format import JournalRecord, journal_path
from storage.journal_salvage import Hole, salvage, salvaged_records
from tests.fakes.filesystem import FakeFilesystem

INSTANCE_ID = bytes(range(16))


def journal(filesystem: Filesystem, segment_id: int, first: int, groups: int = 4) -> str:
    """Write a file of groups of one record each."""
    writer = JournalWriter.open(filesystem, segment_id, INSTANCE_ID, next_sequence=first)
    for number in range(groups):
        writer.append(Group(first + number, (b"mutation %02d ......" % number,)))
        writer.sync()
    writer.close()
    return journal_path(segment_id)


def disk() -> FakeFilesystem:
    """Give a disk with a journal directory."""
    filesystem = FakeFilesystem()
    filesystem.make_directory("journal")
    return filesystem


def flip(filesystem: FakeFilesystem, path: str, at: int) -> None:
    """Flip a bit."""
    data = bytearray(filesystem.contents(path))
    data[at] ^= 1
    filesystem.replace_contents(path, data)


def sequences(filesystem: FakeFilesystem) -> list[int]:
    """Give the sequences that read back."""
    found = salvage(filesystem, INSTANCE_ID)
    return [record.sequence for record in salvaged_records(filesystem, found)]


def test_all_is_found_when_all_is_well() -> None:
    """There is no hole."""
    filesystem = disk()
    journal(filesystem, 1, 1)
    journal(filesystem, 2, 5)

    found = salvage(filesystem, b"")

    assert (found.holes, found.last_sequence, found.instance_id) == ((), 8, INSTANCE_ID)
    assert sequences(filesystem) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("offset", [0, 10, 45, 60])
def test_what_follows_a_damaged_frame_is_found(offset: int) -> None:
    """Whether its header or its content was hit, the next one is told by magic, offset and checksum."""
    filesystem = disk()
    path = journal(filesystem, 1, 1)
    second = filesystem.contents(path).index(b"FBG\0", 65)
    flip(filesystem, path, second + offset)

    found = salvage(filesystem, INSTANCE_ID)

    assert found.holes == (Hole(2, 2),)
    assert sequences(filesystem) == [1, 3, 4]


def test_a_missing_file_is_a_hole() -> None:
    """The next file says where it begins."""
    filesystem = disk()
    journal(filesystem, 1, 1)
    filesystem.unlink(journal(filesystem, 2, 5))
    journal(filesystem, 3, 9)

    found = salvage(filesystem, INSTANCE_ID)

    assert found.holes == (Hole(5, 8),)
    assert str(found.holes[0]) == "changes 5 to 8"


def test_a_torn_tail_is_no_hole() -> None:
    """It was never acknowledged."""
    filesystem = disk()
    path = journal(filesystem, 1, 1)
    filesystem.replace_contents(path, filesystem.contents(path)[:-3])

    assert salvage(filesystem, INSTANCE_ID).holes == ()
    assert sequences(filesystem) == [1, 2, 3]


def test_a_file_of_another_instance_is_not_ours() -> None:
    """Nothing of it is used."""
    filesystem = disk()
    journal(filesystem, 1, 1)

    found = salvage(filesystem, b"x" * 16)

    assert (found.files, found.foreign) == ((), (journal_path(1),))
    assert found.holes == (Hole(1, None),)


def zero(filesystem: FakeFilesystem, path: str, size_bytes: int) -> None:
    """Lose the first bytes, as with a bad sector."""
    data = filesystem.contents(path)
    filesystem.replace_contents(path, bytes(min(size_bytes, len(data))) + data[size_bytes:])


@pytest.mark.parametrize("size_bytes", [64, 512])
def test_a_last_file_that_says_nothing_is_a_hole_without_an_end(size_bytes: int) -> None:
    """Nobody knows how many changes were in it: it may hold any behind the last that is known."""
    filesystem = disk()
    journal(filesystem, 1, 1)
    zero(filesystem, journal(filesystem, 2, 5), size_bytes)

    found = salvage(filesystem, INSTANCE_ID)

    assert (found.unreadable, found.foreign) == ((journal_path(2),), ())
    assert found.holes == (Hole(5, None),)
    assert sequences(filesystem) == [1, 2, 3, 4]


def test_a_file_that_says_nothing_is_the_gap_before_the_next_one_when_it_is_not_the_last() -> None:
    """Ids ascend with sequences: what it held is missing before the file that follows."""
    filesystem = disk()
    zero(filesystem, journal(filesystem, 1, 1), 512)
    journal(filesystem, 2, 5)

    assert salvage(filesystem, INSTANCE_ID).holes == (Hole(1, 4),)


def test_a_file_that_holds_nothing_but_a_lost_header_is_no_hole() -> None:
    """There was no change in it."""
    filesystem = disk()
    journal(filesystem, 1, 1)
    zero(filesystem, journal(filesystem, 2, 5, groups=0), 64)

    found = salvage(filesystem, INSTANCE_ID)

    assert (found.unreadable, found.holes) == ((journal_path(2),), ())


def test_a_damaged_compacted_file_lends_its_records_to_the_hole() -> None:
    """What it stood for is not known whole, but what reads back of it counts."""
    filesystem = disk()
    records = [JournalRecord(sequence, b"x" * 600_000) for sequence in (2, 5, 7)]
    write_compacted(filesystem, 9, INSTANCE_ID, 8, records)
    journal(filesystem, 10, 9)
    flip(filesystem, journal_path(9), 700)

    found = salvage(filesystem, INSTANCE_ID)

    assert found.holes == (Hole(1, 8),)
    assert sequences(filesystem) == [7, 9, 10, 11, 12]


def test_a_whole_compacted_file_stands_for_what_is_before_it() -> None:
    """Files that it replaced do not count."""
    filesystem = disk()
    journal(filesystem, 1, 1)
    write_compacted(filesystem, 9, INSTANCE_ID, 4, [JournalRecord(3, b"live")])
    journal(filesystem, 10, 5)

    assert salvage(filesystem, INSTANCE_ID).holes == ()
    assert sequences(filesystem) == [3, 5, 6, 7, 8]
