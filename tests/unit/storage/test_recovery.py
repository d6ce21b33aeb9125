"""From whatever a process left to a consistent directory: what comes back, what is refused, and what is never repaired silently."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from storage import ids, index_recovery, keys
from storage.errors import (
    DamagedError,
    DiskFailedError,
    DiskFullError,
    FormatError,
    LockedError,
    OverloadedError,
    StorageError,
    UnknownOutcomeError,
)
from storage.family import Family, IndexWrite
from storage.ids import SEGMENT_IDS_BLOCK, VERSION_IDS_BLOCK
from storage.journal import Group
from storage.journal_files import write_compacted
from storage.journal_format import HEADER_BYTES, JournalRecord, journal_path
from storage.layout import read_layout
from storage.records import (
    FORMAT,
    EpochStarted,
    IdsReserved,
    ObjectState,
    ResidentRow,
    SegmentRow,
    Validated,
    encode,
)
from storage.recovery import Recovered, recover
from storage.rows import INSTANCE_ID as INSTANCE_ROW, Rows
from storage.types import BLOCK_BYTES, KIB, ObjectName, Stream
from tests.fakes.filesystem import FakeFilesystem, Halted, Operation
from tests.fakes.index import FakeIndex
from tests.fakes.open_directory import (
    INSTANCE_ID,
    ORIGIN,
    IndexHome,
    OpenDirectory,
    open_directory,
    recovery_parts,
)
from tests.fakes.records import BUCKET, put, record, tiny_extents
from tests.fakes.row_invariants import all_rows, check_rows, objects_of

TINY = b"tiny"
SMALL = bytes(40 * KIB)


@pytest.fixture
def disk() -> FakeFilesystem:
    """Give a file system in memory."""
    return FakeFilesystem()


def start(disk: FakeFilesystem, index: FakeIndex | IndexHome | None = None) -> Recovered:
    """Recover a directory; without an index it was lost."""
    home = index if isinstance(index, IndexHome) else IndexHome(index)
    recovered = recover(recovery_parts(disk, home))
    check_rows(recovered.index)
    return recovered


def dirty_keys(recovered: Recovered) -> list[str]:
    """Name the keys of the flush queue, oldest first."""
    return [queued.key for queued in recovered.dirty]


def rows(recovered: Recovered) -> Rows:
    """Read the recovered rows."""
    return Rows(recovered.index)


async def killed(disk: FakeFilesystem, work: Callable[[OpenDirectory], object] | None = None) -> FakeIndex:
    """Put three objects, delete one, flush one, fill one; then kill the process. Give the index that it leaves."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        await directory.put("tiny", TINY)
        await directory.put("small", SMALL)
        await directory.put("flushed", SMALL)
        await directory.flush("flushed")
        await directory.delete("deleted")
        await directory.fill("clean", SMALL)
        if work is not None:
            work(directory)
    disk._held.clear()
    return home.index


async def stopped(disk: FakeFilesystem) -> FakeIndex:
    """The same, stopped in order."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        await directory.put("tiny", TINY)
        await directory.fill("clean", SMALL)
        await directory.stop()
    return home.index


def journal_names(disk: FakeFilesystem) -> list[str]:
    """Name the journal's files."""
    return disk.list_directory("journal")


# --- what a start finds ----------------------------------------------------------------------------------------------


def test_recover_when_directory_is_new(disk: FakeFilesystem) -> None:
    """A new directory is the first epoch, has a journal whose first group reserves ids, and nothing dirty."""
    recovered = start(disk)

    assert (recovered.epoch, recovered.trusted_epoch, recovered.is_unclean) == (1, 1, False)
    assert (recovered.next_sequence, recovered.applied_sequence) == (3, 2)
    assert not recovered.dirty + recovered.facts
    assert not recovered.segments
    assert recovered.journal_files == ((1, journal_path(1)),)
    assert journal_names(disk) == ["0000000000000001.log"]
    assert recovered.layout == read_layout(disk)
    assert recovered.ids.take_version_id() == 1
    assert recovered.ids.take_segment_id() == 2


async def test_recover_when_stopped_in_order(disk: FakeFilesystem) -> None:
    """After a clean stop all is as it was, and what was validated before stays trusted."""
    index = await stopped(disk)

    recovered = start(disk, index)

    assert (recovered.epoch, recovered.trusted_epoch, recovered.is_unclean) == (2, 1, False)
    assert dirty_keys(recovered) == ["tiny"]
    assert set(objects_of(recovered.index)) == {
        keys.split_object_key(b"bucket\0" + k) for k in (b"tiny", b"clean")
    }


async def test_recover_when_killed(disk: FakeFilesystem) -> None:
    """After a kill all that was acknowledged is there, and clean records count only once they are validated."""
    index = await killed(disk)

    recovered = start(disk, index)

    assert (recovered.epoch, recovered.trusted_epoch, recovered.is_unclean) == (2, 2, True)
    assert dirty_keys(recovered) == ["tiny", "small", "deleted"]
    states = {name.key: record.state for name, record in objects_of(recovered.index).items()}
    assert states == {
        "tiny": ObjectState.DIRTY,
        "small": ObjectState.DIRTY,
        "flushed": ObjectState.CLEAN,
        "clean": ObjectState.CLEAN,
    }
    assert all(
        record.validated.epoch < recovered.trusted_epoch for record in objects_of(recovered.index).values()
    )


async def test_recover_when_power_was_cut(disk: FakeFilesystem) -> None:
    """A power cut takes what the index had not made durable; the journal gives the dirty part of it back."""
    index = await killed(disk)

    recovered = start(disk.crash_clone(random.Random(1), 0.0), index.checkpoint_clone())

    assert dirty_keys(recovered) == ["tiny", "small", "deleted"]
    assert recovered.is_unclean


async def test_recover_when_nothing_happened_since_the_last_start(disk: FakeFilesystem) -> None:
    """Starts that follow each other do not disturb each other: each has its own file, ids and epoch."""
    index = await killed(disk)
    seen: list[tuple[int, int]] = []

    for _ in range(3):
        recovered = start(disk, index)
        seen.append((recovered.epoch, recovered.journal.segment_id))
        recovered.release()
        index = index.kill_clone()

    assert [epoch for epoch, _ in seen] == [2, 3, 4]
    assert len({segment_id for _, segment_id in seen}) == 3
    assert dirty_keys(start(disk, index)) == ["tiny", "small", "deleted"]


# --- the index -------------------------------------------------------------------------------------------------------


async def test_recover_when_index_is_missing(disk: FakeFilesystem) -> None:
    """A lost index is rebuilt: all dirty state returns with its bytes, clean rows are dropped, the stop was unclean."""
    index = await killed(disk)
    before = start(disk.kill_clone(), index)

    recovered = start(disk, None)

    assert recovered.is_unclean
    assert recovered.trusted_epoch == recovered.epoch == 2
    assert recovered.dirty == before.dirty
    kept = objects_of(recovered.index)
    assert {name.key for name in kept} == {"tiny", "small"}
    assert all(objects_of(before.index)[name] == record for name, record in kept.items())


@pytest.mark.parametrize("family", [Family.OBJECTS, Family.OVERLAY])
async def test_recover_when_rows_of_a_change_are_of_different_ages(
    disk: FakeFilesystem, family: Family
) -> None:
    """A family that lost its newest rows makes the index a broken one: all dirty state returns from the journal."""
    index = await killed(disk)
    before = start(disk.kill_clone(), index.kill_clone())
    (entry, *_) = before.dirty
    index.write([IndexWrite(family, keys.object_key(entry.bucket, entry.key), None)])

    recovered = start(disk, index)

    assert recovered.is_unclean
    assert recovered.dirty == before.dirty
    assert ObjectName(entry.bucket, entry.key) in objects_of(recovered.index)


async def test_recover_when_index_is_damaged(disk: FakeFilesystem) -> None:
    """An index that does not open is thrown away and rebuilt."""
    await killed(disk)
    home = IndexHome()
    home.refusal = DamagedError("index is damaged")

    recovered = start(disk, home)

    assert home.destroyed_total == 1
    assert dirty_keys(recovered) == ["tiny", "small", "deleted"]
    assert recovered.is_unclean


@pytest.mark.parametrize("refusal", [LockedError("open already"), DiskFailedError("no")])
async def test_recover_when_index_cannot_be_opened(disk: FakeFilesystem, refusal: StorageError) -> None:
    """A lock or a failing disk says nothing against the index: it stays, and the start is refused."""
    index = await killed(disk)
    home = IndexHome(index)
    home.refusal = refusal

    with pytest.raises(type(refusal)):
        start(disk, home)

    assert home.destroyed_total == 0
    assert len(objects_of(start(disk, home).index)) == 4


class BrokenIndex(FakeIndex):
    """An index of which some rows cannot be read."""

    def __init__(self, family: Family, error: Exception) -> None:
        super().__init__()
        self._family = family
        self._error = error

    @classmethod
    def of(cls, index: FakeIndex, family: Family, error: Exception) -> "BrokenIndex":
        """Break an index."""
        broken = cls(family, error)
        broken._tables = index._tables
        return broken

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Read a row."""
        if family is self._family:
            raise self._error
        return super().get(family, key)

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Read rows."""
        if family is self._family:
            raise self._error
        return super().scan(family, start, stop, limit, reverse=reverse)


@pytest.mark.parametrize(
    "family", [Family.META, Family.OBJECTS, Family.DIRTY, Family.SEGMENTS, Family.BUCKETS]
)
async def test_recover_when_a_row_cannot_be_read(disk: FakeFilesystem, family: Family) -> None:
    """Damage of the index that shows on the way costs the index, at whichever row; and no dirty byte."""
    index = await killed(disk)
    behind = index.checkpoint_clone() if family is Family.OBJECTS else index
    home = IndexHome(BrokenIndex.of(behind, family, DamagedError("row cannot be read")))

    recovered = start(disk, home)

    assert home.destroyed_total == 1
    assert dirty_keys(recovered) == ["tiny", "small", "deleted"]
    assert recovered.is_unclean


async def test_recover_when_a_row_makes_no_sense(disk: FakeFilesystem) -> None:
    """A row that reads and does not decode is damage too."""
    index = await killed(disk)
    index.write([IndexWrite(Family.SEGMENTS, keys.segment_key(9), b"\xc1")])
    home = IndexHome(index)

    recovered = start(disk, home)
    recovered.release()
    again = start(disk, home)

    assert home.destroyed_total == 1, "the rebuilt index is whole"
    assert dirty_keys(recovered) == dirty_keys(again) == ["tiny", "small", "deleted"]
    assert {name.key for name in objects_of(again.index)} == {"tiny", "small"}


async def test_recover_when_disk_refuses_a_row(disk: FakeFilesystem) -> None:
    """An index whose disk refuses a read is not thrown away for it."""
    index = await killed(disk)
    home = IndexHome(BrokenIndex.of(index, Family.META, DiskFailedError("input/output error")))

    with pytest.raises(DiskFailedError):
        start(disk, home)

    assert home.destroyed_total == 0


async def test_recover_when_index_is_of_another_instance(disk: FakeFilesystem) -> None:
    """An index that came from another directory is not believed."""
    index = await killed(disk)
    index.write([IndexWrite(Family.META, INSTANCE_ROW, bytes(16))])
    home = IndexHome(index)

    recovered = start(disk, home)

    assert home.destroyed_total == 1
    assert dirty_keys(recovered) == ["tiny", "small", "deleted"]


async def test_recover_when_index_is_ahead(disk: FakeFilesystem) -> None:
    """An index that knows more than the journal means a lost piece of journal: refused, named, nothing thrown away."""
    await killed(disk)
    older = disk.kill_clone()
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        await directory.put("later", TINY)
    ahead = IndexHome(home.index.kill_clone())

    with pytest.raises(DamagedError, match=r"index has applied sequence.*forebay fsck"):
        start(older, ahead)

    assert ahead.destroyed_total == 0


async def test_recover_changes_nothing_when_the_index_knows_a_torn_group(disk: FakeFilesystem) -> None:
    """A cut of the last group is not made where the index shows that the group was whole once."""
    index = await killed(disk)
    (*_, last) = [name for name in journal_names(disk) if name.endswith(".log")]
    path = f"journal/{last}"
    cut = disk.contents(path)[:-1]
    disk.replace_contents(path, cut)

    with pytest.raises(DamagedError, match=r"index has applied sequence.*forebay fsck"):
        start(disk, IndexHome(index.kill_clone()))

    assert disk.contents(path) == cut


async def test_recover_when_the_whole_journal_is_gone(disk: FakeFilesystem) -> None:
    """A directory that has begun a journal and has none is refused, also where nothing else is left to show it."""
    await killed(disk)
    for name in journal_names(disk):
        disk.unlink(f"journal/{name}")
    for name in disk.list_directory("segments"):
        disk.unlink(f"segments/{name}")

    with pytest.raises(DamagedError, match=r"journal is missing.*forebay fsck"):
        start(disk, IndexHome())


def compact(disk: FakeFilesystem, recovered: Recovered, segment_id: int, *, last_sequence: int = 0) -> int:
    """Replace a journal of which only one put is live; give its checkpoint sequence."""
    sequence = last_sequence or recovered.next_sequence - 1
    live = put("live", record(77), sequence=sequence - 1)
    records = [
        JournalRecord(1, encode(IdsReserved(FORMAT, 5_000_000, 500))),
        JournalRecord(2, encode(EpochStarted(FORMAT, 1, 1))),
        JournalRecord(sequence - 1, encode(live)),
    ]
    write_compacted(disk, segment_id, INSTANCE_ID, sequence, records)
    return sequence


async def test_recover_when_index_is_behind_the_checkpoint(disk: FakeFilesystem) -> None:
    """An index that lacks what a compacted journal left out counts as missing."""
    index = await killed(disk)
    compact(disk, start(disk.kill_clone(), index.kill_clone()), 90)
    home = IndexHome(index.checkpoint_clone())

    recovered = start(disk, home)

    assert home.destroyed_total == 1
    assert dirty_keys(recovered) == ["live"]
    assert recovered.is_unclean


async def test_recover_when_journal_was_compacted(disk: FakeFilesystem) -> None:
    """An index that is up to the checkpoint goes on from it, and the replaced files are removed once it is durable."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        await directory.put("dirty", SMALL)
        await directory.put("flushed", SMALL)
        await directory.flush("flushed")
    disk._held.clear()
    sequence = compact(disk, directory.recovered, 90, last_sequence=directory.commit.last_sequence)

    recovered = start(disk, home)

    assert recovered.next_sequence == sequence + 3
    assert dirty_keys(recovered) == ["dirty"]  # as the index knows it, not the test's compacted file
    assert journal_names(disk) == [f"{90:016x}.log", f"{recovered.journal.segment_id:016x}.log"]
    index_after_cut = home.index.checkpoint_clone()
    assert dirty_keys(start(disk.crash_clone(random.Random(1), 0.0), index_after_cut)) == ["dirty"]


async def test_recover_when_a_replaced_file_is_pinned(disk: FakeFilesystem) -> None:
    """A reader of the life before may not have opened it yet: it stays, and goes at the next recovery without its pin."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        await directory.put("flushed", TINY)
        await directory.flush("flushed")
    disk._held.clear()
    replaced = directory.recovered.journal.segment_id
    compact(disk, directory.recovered, 90, last_sequence=directory.commit.last_sequence)
    parts = recovery_parts(disk, home)

    recover(replace(parts, is_pinned=lambda segment_id: segment_id == replaced)).lock.close()
    names_while_pinned = journal_names(disk)
    recover(parts).lock.close()

    assert f"{replaced:016x}.log" in names_while_pinned
    assert f"{replaced:016x}.log" not in journal_names(disk)


async def test_recover_when_replaced_file_holds_dirty_bytes(disk: FakeFilesystem) -> None:
    """A file in which dirty bytes are counted is not removed, whatever a compacted journal says, and can be read."""
    index = await killed(disk)
    first = start(disk, index)
    stored = rows(first).object(BUCKET, "tiny")
    assert stored is not None
    compact(disk, first, 90)
    disk._held.clear()

    recovered = start(disk, index.kill_clone())

    segment_id = stored.extents[0].location.segment_id
    assert f"{segment_id:016x}.log" in journal_names(disk)
    assert (segment_id, journal_path(segment_id)) in recovered.journal_files


async def test_recover_when_left_files_cannot_be_removed(disk: FakeFilesystem) -> None:
    """Files that do not count any more do not keep a directory from starting."""
    index = await killed(disk)
    disk.create("journal/00000000000000aa.tmp")
    disk.fail(Operation.UNLINK)

    recovered = start(disk, index)

    assert "00000000000000aa.tmp" in journal_names(disk)
    recovered.release()
    start(disk, index.kill_clone())
    assert "00000000000000aa.tmp" not in journal_names(disk)


async def test_recover_when_rebuild_is_cut_short(disk: FakeFilesystem) -> None:
    """A rebuild that did not end is begun anew, and what was clean is not trusted for having come back half."""
    await stopped(disk)
    for nth in range(1, 4):

        def make(nth: int = nth) -> FakeIndex:
            index = FakeIndex()
            index.fail_write(nth)
            return index

        failing = IndexHome.of(make)
        with pytest.raises(StorageError):
            start(disk.kill_clone(), failing)
        half = failing.index.kill_clone()

        recovered = start(disk.kill_clone(), half)

        assert recovered.is_unclean, f"cut at write {nth}"
        assert dirty_keys(recovered) == ["tiny"]
        assert {name.key for name in objects_of(recovered.index)} == {"tiny"}


async def test_recover_when_journal_says_more_of_clean_rows_than_is_true(disk: FakeFilesystem) -> None:
    """A version that was flushed, and forgotten because something passed through, does not come back with a rebuild."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        await directory.put("key", SMALL)
        await directory.flush("key")
        await directory.fill("key", b"what somebody else wrote")
        await directory.stop()

    recovered = start(disk, None)

    assert objects_of(recovered.index) == {}
    assert recovered.is_unclean


async def test_recover_when_families_are_larger_than_a_step(
    disk: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are loaded and dropped, however many steps that takes."""
    monkeypatch.setattr("storage.rows.LOAD_ROWS", 3)
    monkeypatch.setattr(index_recovery, "DROP_ROWS", 2)
    monkeypatch.setattr(index_recovery, "REPLAY_GROUP_MUTATIONS", 2)
    async with open_directory(disk, IndexHome()) as directory:
        for number in range(10):
            await directory.put(f"dirty{number}", TINY)
            await directory.put(f"clean{number}", SMALL)
            await directory.flush(f"clean{number}")

    recovered = start(disk.kill_clone(), None)

    assert dirty_keys(recovered) == [f"dirty{number}" for number in range(10)]
    assert len(objects_of(recovered.index)) == 10


# --- the journal -----------------------------------------------------------------------------------------------------


async def test_recover_when_tail_is_torn(disk: FakeFilesystem) -> None:
    """The last group, never acknowledged, is cut off; all before it is there."""
    index = await killed(disk)
    path = journal_path(1)
    whole = disk.contents(path)
    last = start(disk.kill_clone(), index).applied_sequence - 2
    disk.replace_contents(path, whole[:-3])
    behind = FakeIndex()

    recovered = start(disk, behind)

    assert recovered.applied_sequence == last - 1 + 2
    assert dirty_keys(recovered) == ["tiny", "small"]


async def test_recover_when_torn_group_was_applied(disk: FakeFilesystem) -> None:
    """A last group that is torn though the index has it was acknowledged: refused, not cut."""
    index = await killed(disk)
    disk.replace_contents(journal_path(1), disk.contents(journal_path(1))[:-3])

    with pytest.raises(DamagedError, match="forebay fsck"):
        start(disk, index)


async def test_recover_when_damage_is_before_the_tail(disk: FakeFilesystem) -> None:
    """A flipped byte in the middle refuses the start, names the file and the tool, and changes nothing."""
    index = await killed(disk)
    damaged = bytearray(disk.contents(journal_path(1)))
    damaged[HEADER_BYTES + 70] ^= 1
    disk.replace_contents(journal_path(1), damaged)
    home = IndexHome(index)
    before = journal_names(disk), all_rows(index)

    with pytest.raises(DamagedError, match=r"journal/0000000000000001\.log.*forebay fsck"):
        start(disk, home)

    assert (journal_names(disk), all_rows(home.index)) == before
    assert home.destroyed_total == 0


async def test_recover_when_a_file_is_missing(disk: FakeFilesystem) -> None:
    """A journal of which a file is gone is refused."""
    index = await killed(disk)
    start(disk, index).release()
    index = index.kill_clone()
    disk.unlink(journal_path(1))

    with pytest.raises(DamagedError, match="forebay fsck"):
        start(disk, index)


async def test_recover_when_the_journal_is_missing(disk: FakeFilesystem) -> None:
    """Segments without any journal are not taken for orphans: nobody knows which of them are dirty."""
    await killed(disk)
    disk.unlink(journal_path(1))

    for index in (None, FakeIndex()):
        with pytest.raises(DamagedError, match=r"journal is missing.*forebay fsck"):
            start(disk, index)

    assert len(disk.list_directory("segments")) == 2


async def test_recover_when_journal_is_of_another_instance(disk: FakeFilesystem) -> None:
    """A journal that was copied from elsewhere is not replayed."""
    index = await killed(disk)
    text = disk.contents("FORMAT").replace(INSTANCE_ID.hex().encode(), (b"\xee" * 16).hex().encode())
    disk.replace_contents("FORMAT", text)

    with pytest.raises(DamagedError, match="another instance"):
        start(disk, index)


async def test_recover_when_a_mutation_is_of_no_known_kind(disk: FakeFilesystem) -> None:
    """A record that only a newer program understands refuses the start, and costs not even the index."""
    index = await killed(disk)
    recovered = start(disk, index)
    journal = recovered.journal
    journal._writer.append(Group(journal.next_sequence, (b"\x92\xa9published\x01",)))
    journal._writer.sync()
    recovered.release()
    home = IndexHome(index.kill_clone())

    with pytest.raises(DamagedError, match=r"no known kind.*forebay fsck"):
        start(disk, home)

    assert home.destroyed_total == 0


async def test_recover_when_record_was_not_synced(disk: FakeFilesystem) -> None:
    """What is accepted is made durable before it counts: a record in the page cache survives a power cut after the start."""
    index = await killed(disk)
    recovered = start(disk, index)
    journal = recovered.journal
    late = put("late", record(99, tiny_extents(0)), sequence=journal.next_sequence)
    journal._writer.append(Group(journal.next_sequence, (encode(late),)))
    unsynced = disk.kill_clone()

    second = start(unsynced, index.kill_clone())
    after_power_cut = start(unsynced.crash_clone(random.Random(3), 0.0), index.checkpoint_clone())

    assert dirty_keys(second)[-1] == "late"
    assert dirty_keys(after_power_cut)[-1] == "late"


async def test_recover_when_a_sync_fails_on_the_way(disk: FakeFilesystem) -> None:
    """A failed sync refuses the start with an unknown outcome; the next one finds all that was acknowledged."""
    index = await killed(disk)
    for nth in range(1, 4):
        left = disk.kill_clone()
        left.fail(Operation.FDATASYNC, nth=nth)
        try:
            start(left, index.kill_clone()).release()
        except (UnknownOutcomeError, DiskFailedError):
            left._held.clear()

        recovered = start(left.crash_clone(random.Random(nth)), index.checkpoint_clone())

        assert dirty_keys(recovered) == ["tiny", "small", "deleted"]


# --- refusals --------------------------------------------------------------------------------------------------------


async def test_recover_when_origin_is_another(disk: FakeFilesystem) -> None:
    """A directory with another origin's dirty bytes is refused with the way out."""
    index = await killed(disk)

    with pytest.raises(FormatError, match=rf"{ORIGIN}.*--drain"):
        recover(recovery_parts(disk, IndexHome(index), origin="http://other.test"))

    assert dirty_keys(start(disk, index)) == ["tiny", "small", "deleted"]


async def test_recover_when_format_is_newer(disk: FakeFilesystem) -> None:
    """A directory of a newer program is refused."""
    index = await killed(disk)
    disk.replace_contents("FORMAT", disk.contents("FORMAT").replace(b"format = 1", b"format = 2"))

    with pytest.raises(FormatError, match="format 2"):
        start(disk, index)


def test_recover_when_another_process_has_the_directory(disk: FakeFilesystem) -> None:
    """Two processes never have one directory open."""
    first = start(disk)

    with pytest.raises(LockedError):
        start(disk)
    first.release()
    start(disk)


@pytest.mark.parametrize(("error_number", "kind"), [(28, DiskFullError), (5, DiskFailedError)])
def test_recover_when_disk_refuses(disk: FakeFilesystem, error_number: int, kind: type[StorageError]) -> None:
    """What the disk refuses is told as such, and the lock is let go."""
    disk.fail(Operation.CREATE, error_number=error_number)

    with pytest.raises(kind):
        start(disk)

    start(disk)


async def test_recover_when_any_call_fails(disk: FakeFilesystem) -> None:
    """Whichever call fails, the start is refused in words and the next one finds everything: no failure makes it worse."""
    index = await killed(disk)
    disk.kill_clone()
    nth, is_whole = 0, False
    while not is_whole:
        nth += 1
        left, home = disk.kill_clone(), IndexHome(index.kill_clone())
        left.fail(*Operation, nth=nth)
        try:
            start(left, home).release()
            is_whole = left._faults[0].calls_left > 0
        except StorageError:
            is_whole = False
        left.heal()
        assert nth < 200, "a start has fewer calls"

        recovered = start(left, home)

        assert dirty_keys(recovered) == ["tiny", "small", "deleted"], f"call {nth} failed"
    assert nth > 20


@pytest.mark.parametrize("has_index", [True, False])
async def test_recover_when_crashing_again_and_again(disk: FakeFilesystem, has_index: bool) -> None:
    """A power cut at any call of a start, and at any of the next, leaves a directory that starts with all that is dirty."""
    index = await killed(disk)
    counted = disk.kill_clone()
    start(counted, index.kill_clone() if has_index else None)
    draws = random.Random(7)

    for nth in range(1, counted.changing_calls + 1):
        left, home = disk.kill_clone(), IndexHome(index.kill_clone() if has_index else None)
        for again in (nth, 1 + nth // 2):
            left.halt_at(again)
            with suppress(Halted):
                start(left, home)
            at = draws.randrange(home.index.batches_after_checkpoint + 1)
            left, home = left.crash_clone(draws), IndexHome(home.index.clone_at(at))

        recovered = start(left, home)

        assert dirty_keys(recovered) == ["tiny", "small", "deleted"], f"cut at call {nth}"


# --- epochs ----------------------------------------------------------------------------------------------------------


async def test_epochs_when_stops_are_clean_and_unclean(disk: FakeFilesystem) -> None:
    """The trusted epoch stays over clean stops and rises to the present one with each unclean stop."""
    home, seen = IndexHome(), []

    for is_clean in (True, True, False, True, True, False, False):
        async with open_directory(disk, home) as directory:
            recovered = directory.recovered
            seen.append((recovered.epoch, recovered.trusted_epoch, recovered.is_unclean))
            if is_clean:
                await directory.stop()
        home, disk = IndexHome(home.index.kill_clone()), disk.kill_clone()

    assert seen == [
        (1, 1, False),
        (2, 1, False),
        (3, 1, False),
        (4, 4, True),
        (5, 4, False),
        (6, 4, False),
        (7, 7, True),
    ]


async def test_epoch_when_stop_is_cut_by_a_power_failure(disk: FakeFilesystem) -> None:
    """The mark of a clean stop comes after what it vouches for: with it, no change to clean rows is missing."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        await directory.fill("key", b"old")
        await directory.applier.checkpoint()
        await directory.fill("key", b"new")
        newest = rows(directory.recovered).object(BUCKET, "key")
        await directory.stop()

    recovered = start(disk.crash_clone(random.Random(1), 0.0), home.index.checkpoint_clone())

    assert not recovered.is_unclean
    assert rows(recovered).object(BUCKET, "key") == newest


def test_epoch_when_start_fails_afterwards(disk: FakeFilesystem) -> None:
    """A start that recovered and went no further counts as an unclean stop: its ids and epoch are spent."""
    index = FakeIndex()
    home = IndexHome(index)
    start(disk, home).release()

    second = start(disk, home)

    assert (second.epoch, second.trusted_epoch, second.is_unclean) == (2, 2, True)


async def test_epoch_when_record_was_validated_by_the_crashed_process(disk: FakeFilesystem) -> None:
    """Nothing that an unclean process validated is trusted by the next: the epoch is on disk before its first change."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        await directory.fill("key", b"data")
        stored = rows(directory.recovered).object(BUCKET, "key")
        assert stored is not None
        assert stored.validated == Validated(10.0, 1)

    recovered = start(disk.crash_clone(random.Random(1)), home.index.kill_clone())

    assert recovered.trusted_epoch > stored.validated.epoch


# --- ids -------------------------------------------------------------------------------------------------------------


async def test_ids_when_used_and_not_journaled(disk: FakeFilesystem) -> None:
    """Ids that were only handed out do not come back, whatever the crash takes."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        source = directory.recovered.ids
        versions = [source.take_version_id() for _ in range(1000)]
        segments = [source.take_segment_id() for _ in range(1000)]
    images = [
        start(disk.kill_clone(), home.index.kill_clone()),
        start(disk.crash_clone(random.Random(1), 0.0), home.index.checkpoint_clone()),
        start(disk.crash_clone(random.Random(2), 0.0), None),
    ]

    for recovered in images:
        assert recovered.journal.segment_id > max(segments)
        assert recovered.ids.take_version_id() > max(versions)
        assert recovered.ids.take_segment_id() > max(segments)


def test_ids_when_recovered() -> None:
    """A start may use its reservation at once: it is in the first group of its journal."""
    disk = FakeFilesystem()
    recovered = start(disk)

    again = start(disk.crash_clone(random.Random(1), 0.0), None)

    for _ in range(SEGMENT_IDS_BLOCK // 2):
        recovered.ids.take_segment_id()
    assert again.ids.take_version_id() == 1 + VERSION_IDS_BLOCK
    assert again.ids.take_segment_id() > recovered.ids.take_segment_id()


def test_ids_when_reservation_is_used_up(disk: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more ids are given than the journal holds reserved."""
    monkeypatch.setattr(ids, "VERSION_IDS_BLOCK", 3)
    monkeypatch.setattr(ids, "SEGMENT_IDS_BLOCK", 2)
    recovered = start(disk)

    versions = [recovered.ids.take_version_id() for _ in range(3)]
    segments = [recovered.ids.take_segment_id() for _ in range(2)]

    assert versions == [1, 2, 3]
    assert segments == [2, 3]
    with pytest.raises(OverloadedError):
        recovered.ids.take_version_id()
    with pytest.raises(OverloadedError):
        recovered.ids.take_segment_id()


def test_ids_when_files_have_higher_ones(disk: FakeFilesystem) -> None:
    """An id that a file carries is in use, reserved or not; names that are no ids mean nothing."""
    start(disk).release()
    disk.create(f"segments/{0xABCDE:016x}.seg")
    disk.create(f"journal/{0xABCDF:016x}.tmp")
    for name in ("segments/lost+found", "segments/ffff.seg", "segments/README"):
        disk.create(name)

    recovered = start(disk, None)

    assert recovered.journal.segment_id == 0xABCE0
    assert recovered.ids.take_segment_id() == 0xABCE1


# --- segments --------------------------------------------------------------------------------------------------------


async def test_segments_when_no_row_names_them(disk: FakeFilesystem) -> None:
    """What the last process wrote and did not commit is an orphan; what rows name is there."""

    def write_and_forget(directory: OpenDirectory) -> None:
        *_, lost = directory.segments.reserve(2 * BLOCK_BYTES, Stream.CLEAN)
        directory.segments.write(lost, 0, bytes(10))
        lost_ids.append(lost.segment_id)

    lost_ids: list[int] = []
    index = await killed(disk, write_and_forget)

    async with open_directory(disk, IndexHome(index)) as directory:
        assert directory.segments.take_removable() == lost_ids
        named = {row.segment_id for row in directory.recovered.segments}
        assert lost_ids[0] not in named
        for stored in objects_of(directory.index).values():
            for extent in stored.extents:
                assert directory.segments.verify_block(extent.location, 0)


@pytest.mark.slow
async def test_segments_when_counts_are_loaded(disk: FakeFilesystem) -> None:
    """The rows of segments come back as they were, so that what is dirty is not given up."""
    index = await killed(disk)

    recovered = start(disk, index)

    dirty_bytes = sum(row.dirty_bytes for row in recovered.segments)
    assert dirty_bytes == len(TINY) + len(SMALL)
    assert all(isinstance(row, SegmentRow) for row in recovered.segments)
    resident = ResidentRow(FORMAT, 0, len(TINY), bucket=BUCKET, key="tiny", version_id=1)
    assert encode(resident) in all_rows(recovered.index)[Family.RESIDENTS].values()


async def test_uploads_when_open_and_completed(disk: FakeFilesystem) -> None:
    """Open uploads come back with their parts, completed ones are not counted as open."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        one, two = await directory.create_upload("a"), await directory.create_upload("b")
        for upload_id in (one, two):
            await directory.put_part(upload_id, 1, SMALL)
        await directory.complete(two, "b", [1])

    for index in (home.index.kill_clone(), None):
        recovered = start(disk.kill_clone(), index)

        assert recovered.open_uploads == 1
        assert [part.number for part in rows(recovered).parts(one)] == [1]
        completed = rows(recovered).upload(two)
        assert completed is not None
        assert completed.completed_at_s > 0
