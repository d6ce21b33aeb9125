"""Segments: space, durability, pins and removal, over the file system in memory and, where it matters, a real one."""

import errno
import random
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from storage.errors import (
    DamagedError,
    DiskFailedError,
    DiskFullError,
    OverloadedError,
    SegmentGoneError,
    UnknownOutcomeError,
)
from storage.filesystem import Filesystem, PosixFilesystem
from storage.segments import Reservation, SegmentLimits, SegmentStore, checksums, segment_path
from storage.types import BLOCK_BYTES, MIB, Location, Stream
from tests.fakes.filesystem import FakeFilesystem, Operation

DIRTY, CLEAN = Stream.DIRTY, Stream.CLEAN


def make_store(
    filesystem: Filesystem,
    *,
    live: frozenset[int] = frozenset(),
    first_id: int = 1,
    capacity_bytes: int = 64 * MIB,
    segment_bytes: int = 4 * MIB,
    disk_reserve_bytes: int = 0,
    readers_max: int = 8,
) -> SegmentStore:
    """Make a store with small segments and ids from `first_id` on, started."""
    limits = SegmentLimits(segment_bytes, capacity_bytes, disk_reserve_bytes, readers_max)
    store = SegmentStore(filesystem, limits, count(first_id).__next__)
    store.adopt(live)
    return store


@pytest.fixture
def disk() -> FakeFilesystem:
    """Give a file system in memory."""
    return FakeFilesystem()


@pytest.fixture
def store(disk: FakeFilesystem) -> SegmentStore:
    """Give a started store on it."""
    return make_store(disk)


def put(store: SegmentStore, data: bytes, stream: Stream = DIRTY) -> Location:
    """Write a body of one piece, unsynced and settled."""
    (reservation,) = store.reserve(len(data), stream)
    store.write(reservation, 0, data)
    store.settle([reservation])
    return Location(reservation.segment_id, reservation.offset, reservation.length, checksums(data))


def ranges(reservations: tuple[Reservation, ...]) -> list[tuple[int, int, int]]:
    """Show reservations as id, offset and length."""
    return [(r.segment_id, r.offset, r.length) for r in reservations]


def synced_paths(disk: FakeFilesystem) -> list[str]:
    """Show what was synced since the start, in order."""
    syncs = {Operation.FDATASYNC, Operation.SYNC_DIRECTORY}
    return [call.path for call in disk.calls if call.operation in syncs and call.path]


# --- space --------------------------------------------------------------------------------------------------------------


def test_reserve_when_bodies_follow_each_other(store: SegmentStore) -> None:
    """Bodies of one stream lie one behind the other; another stream has its own segment."""
    assert ranges(store.reserve(100, DIRTY)) == [(1, 0, 100)]
    assert ranges(store.reserve(50, DIRTY)) == [(1, 100, 50)]
    assert ranges(store.reserve(7, CLEAN)) == [(2, 0, 7)]
    assert ranges(store.reserve(0, DIRTY)) == []


def test_reserve_when_segment_ends(store: SegmentStore) -> None:
    """A long body goes on in the next segment, and the full one is sealed."""
    store.reserve(3 * MIB - 1, DIRTY)

    assert ranges(store.reserve(6 * MIB, DIRTY)) == [(1, 3 * MIB - 1, 2 * MIB), (2, 0, 4 * MIB)]
    assert {state.segment_id: state.is_sealed for state in store.states()} == {1: True, 2: False}
    assert store.used_bytes == 9 * MIB - 1


def test_reserve_when_capacity_is_reached(disk: FakeFilesystem) -> None:
    """Open segments count whole; a body that would pass the capacity is refused and changes nothing."""
    store = make_store(disk, capacity_bytes=8 * MIB)
    store.reserve(100, DIRTY)
    store.reserve(100, CLEAN)
    assert store.room_bytes == 0

    with pytest.raises(DiskFullError):
        store.reserve(4 * MIB, DIRTY)

    assert store.used_bytes == 200
    assert ranges(store.reserve(2 * MIB, DIRTY)) == [(1, 100, 2 * MIB)]


def test_reserve_when_disk_reserve_would_be_touched() -> None:
    """The disk's reserve stays free though the capacity would allow more, until a sample finds room."""
    disk = FakeFilesystem(disk_bytes_max=3 * MIB)
    store = make_store(disk, disk_reserve_bytes=2 * MIB)
    location = put(store, bytes(MIB - 10))

    with pytest.raises(DiskFullError, match="above its reserve"):
        store.reserve(11, DIRTY)
    disk.disk_bytes_max += MIB
    store.sample_free_bytes()
    store.reserve(MIB + 10, DIRTY)
    store.sample_free_bytes()

    with pytest.raises(DiskFullError):
        store.reserve(1, DIRTY)
    assert location.segment_id == 1


def test_sample_free_bytes_when_volume_does_not_answer(
    disk: FakeFilesystem, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that does not answer is DiskFailedError; what was known before still counts."""

    def fail() -> int:
        raise OSError(errno.EIO, "no answer")

    monkeypatch.setattr(disk, "free_bytes", fail)

    with pytest.raises(DiskFailedError, match="free space is unknown"):
        store.sample_free_bytes()

    assert ranges(store.reserve(10, DIRTY)) == [(1, 0, 10)]


def test_reserve_when_ids_run_out(disk: FakeFilesystem) -> None:
    """What the id source raises passes through, and nothing was given out."""
    ids = iter([1])

    def take_id() -> int:
        for segment_id in ids:
            return segment_id
        raise OverloadedError("ids are being reserved")

    store = SegmentStore(disk, SegmentLimits(4 * MIB, 64 * MIB), take_id)
    store.adopt([])

    with pytest.raises(OverloadedError, match="ids are being"):
        store.reserve(5 * MIB, DIRTY)

    assert store.used_bytes == 0
    assert store.states() == []


@settings(max_examples=60)
@given(
    bodies=st.lists(
        st.tuples(st.sampled_from([DIRTY, CLEAN]), st.integers(0, 9 * MIB) | st.integers(0, 2000)),
        max_size=25,
    ),
    segment_bytes=st.integers(MIB, 5 * MIB),
)
def test_reserve_when_any_bodies_come(bodies: list[tuple[Stream, int]], segment_bytes: int) -> None:
    """Ranges never overlap nor pass their segments' ends by a block, add up to the bodies, keep to the capacity, and mix no streams."""
    store = make_store(FakeFilesystem(), capacity_bytes=40 * MIB, segment_bytes=segment_bytes)
    ends: dict[int, int] = {}
    streams: dict[int, Stream] = {}

    for stream, length in bodies:
        used_before = store.used_bytes
        try:
            reservations = store.reserve(length, stream)
        except DiskFullError:
            assert store.used_bytes == used_before
            continue
        assert sum(r.length for r in reservations) == length
        assert all(r.length % BLOCK_BYTES == 0 for r in reservations[:-1])
        for r in reservations:
            assert r.offset == ends.get(r.segment_id, 0)
            assert streams.setdefault(r.segment_id, stream) is stream
            ends[r.segment_id] = r.offset + r.length

    assert all(end < segment_bytes + BLOCK_BYTES for end in ends.values())
    assert store.used_bytes == sum(ends.values()) <= 40 * MIB
    unsealed = {state.segment_id for state in store.states() if not state.is_sealed}
    counted = sum(max(segment_bytes, end) if i in unsealed else end for i, end in ends.items())
    assert counted <= 40 * MIB
    assert store.room_bytes == 40 * MIB - counted


# --- writing ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["fake", "posix"])
def any_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    """Give each kind of file system in turn."""
    return FakeFilesystem() if request.param == "fake" else PosixFilesystem(str(tmp_path))


def test_write_when_body_spans_segments(any_disk: Filesystem) -> None:
    """A body written in pieces over several segments reads back, and is there for the next process once synced."""
    data = random.Random(1).randbytes(6 * MIB + 77)
    store = make_store(any_disk)
    store.reserve(2 * MIB, DIRTY)
    reservations = store.reserve(len(data), DIRTY)
    position = 0
    locations = []
    for r in reservations:
        piece = data[position : position + r.length]
        store.write(r, 0, piece[:50])
        store.write(r, 50, memoryview(piece)[50:])
        locations.append(Location(r.segment_id, r.offset, r.length, checksums(piece)))
        position += r.length
    store.sync([r.segment_id for r in reservations])
    store.settle(reservations)

    assert b"".join(store.read(location, 0, location.length) for location in locations) == data
    assert store.read(locations[0], 10, 20) == data[10:20]
    store.close()
    again = make_store(any_disk, live=frozenset({1, 2, 3}), first_id=10)
    assert b"".join(again.read(location, 0, location.length) for location in locations) == data
    assert all(again.verify_block(location, 0) for location in locations)
    again.close()


def test_write_when_two_threads_begin_a_segment(any_disk: Filesystem) -> None:
    """A segment's file is created once, whoever comes first."""
    store = make_store(any_disk)
    reservations = [store.reserve(10, DIRTY)[0] for _ in range(8)]
    failures: list[Exception] = []

    def write(reservation: Reservation) -> None:
        try:
            store.write(reservation, 0, b"0123456789")
        except DamagedError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(r,)) for r in reservations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert store.read(Location(1, 0, 80), 0, 80) == b"0123456789" * 8
    store.close()


def test_write_when_outside_of_its_range(store: SegmentStore) -> None:
    """A body cannot write into its neighbour."""
    (reservation,) = store.reserve(10, DIRTY)

    with pytest.raises(AssertionError, match="outside of"):
        store.write(reservation, 5, b"123456")


def test_write_when_disk_is_full(disk: FakeFilesystem, store: SegmentStore) -> None:
    """ENOSPC is DiskFullError, and bodies are refused at their head until a sample finds room."""
    (reservation,) = store.reserve(10, DIRTY)
    disk.fail(Operation.PWRITE, error_number=errno.ENOSPC)

    with pytest.raises(DiskFullError):
        store.write(reservation, 0, b"0123456789")

    with pytest.raises(DiskFullError):
        store.reserve(10, DIRTY)
    store.sample_free_bytes()
    assert ranges(store.reserve(10, DIRTY)) == [(1, 10, 10)]


@pytest.mark.parametrize("operation", [Operation.PWRITE, Operation.CREATE])
def test_write_when_disk_fails(disk: FakeFilesystem, store: SegmentStore, operation: Operation) -> None:
    """EIO is DiskFailedError: the body's range is dead, its neighbours and later bodies are not."""
    (reservation,) = store.reserve(10, DIRTY)
    disk.fail(operation, written_share=0.5)

    with pytest.raises(DiskFailedError):
        store.write(reservation, 0, b"0123456789")
    store.settle([reservation])

    location = put(store, b"neighbour")
    store.sync([1])
    assert (location.offset, store.read(location, 0, 9)) == (10, b"neighbour")


def test_write_when_settled(store: SegmentStore) -> None:
    """A late write to a range that its body has given up is refused, so that it cannot hit a removed file's successor."""
    (reservation,) = store.reserve(10, DIRTY)
    store.settle([reservation])
    store.settle([reservation])

    with pytest.raises(SegmentGoneError, match="is settled"):
        store.write(reservation, 0, b"x")


def test_write_when_id_came_back(disk: FakeFilesystem) -> None:
    """A file under a new id is damage, never overwritten."""
    store = make_store(disk)
    disk.create(segment_path(1)).pwrite(0, b"precious")
    (reservation,) = store.reserve(5, DIRTY)

    with pytest.raises(DamagedError, match="exists"):
        store.write(reservation, 0, b"12345")

    assert disk.contents(segment_path(1)) == b"precious"


# --- durability ---------------------------------------------------------------------------------------------------------


def test_sync_when_power_fails(disk: FakeFilesystem, store: SegmentStore) -> None:
    """After a sync the bytes and the file's name survive a power cut, whatever else is lost."""
    location = put(store, b"acknowledged")
    store.sync([location.segment_id])
    put(store, b"not acknowledged")

    left = disk.crash_clone(random.Random(0), keep_probability=0.0)

    assert left.contents(segment_path(1)) == b"acknowledged"


def test_sync_when_nothing_is_new(disk: FakeFilesystem, store: SegmentStore) -> None:
    """A segment is synced once for what is written, its directory once for what is created; journal files are not."""
    store.register_journal(99, "journal/0000000001.log", is_own=True)
    put(store, b"a")
    put(store, b"b", CLEAN)

    store.sync([1, 1, 2, 99])
    store.sync([1, 2, 99])
    put(store, b"c")
    store.sync([1])

    assert synced_paths(disk) == [segment_path(1), segment_path(2), "segments", segment_path(1)]


def test_sync_when_segment_was_closed(disk: FakeFilesystem, store: SegmentStore) -> None:
    """Bytes of a sealed and settled segment, whose descriptor is closed, are synced all the same."""
    location = put(store, b"early")
    store.reserve(4 * MIB, DIRTY)

    store.sync([location.segment_id])

    assert disk.crash_clone(random.Random(0), keep_probability=0.0).contents(segment_path(1)) == b"early"


def test_sync_when_written_meanwhile(disk: FakeFilesystem, store: SegmentStore) -> None:
    """A write that returns while a sync is under way is not taken for synced: the next sync covers it."""
    put(store, b"first")
    (late,) = store.reserve(6, DIRTY)
    disk.on_sync = lambda _path: store.write(late, 0, b"second")

    store.sync([1])
    disk.on_sync = lambda _path: None
    left_early = disk.crash_clone(random.Random(0), keep_probability=0.0).contents(segment_path(1))
    store.sync([1])
    left_late = disk.crash_clone(random.Random(0), keep_probability=0.0).contents(segment_path(1))

    assert (left_early, left_late) == (b"first", b"firstsecond")


def test_sync_when_it_fails(disk: FakeFilesystem, store: SegmentStore) -> None:
    """A failed sync has an unknown outcome for good: no later sync of the segment succeeds, nothing more is appended to it."""
    location = put(store, b"0123456789")
    (held,) = store.reserve(10, DIRTY)
    disk.fail(Operation.FDATASYNC)

    with pytest.raises(UnknownOutcomeError):
        store.sync([1])

    with pytest.raises(UnknownOutcomeError):
        store.sync([1])
    with pytest.raises(DiskFailedError):
        store.write(held, 0, b"x")
    assert synced_paths(disk) == [segment_path(1)]
    assert not store.is_verified(location, 0)
    assert ranges(store.reserve(5, DIRTY)) == [(2, 0, 5)]


def test_sync_when_another_thread_failed_first(disk: FakeFilesystem, store: SegmentStore) -> None:
    """Of two syncs at once, of which the first fails, the second does not succeed: the kernel reports an error once."""
    put(store, b"0123456789")
    disk.fail(Operation.FDATASYNC)
    is_syncing = threading.Event()
    may_fail = threading.Event()
    outcomes: list[str] = []

    def wait(_path: str) -> None:
        is_syncing.set()
        may_fail.wait(5)

    def sync() -> None:
        try:
            store.sync([1])
            outcomes.append("synced")
        except UnknownOutcomeError:
            outcomes.append("unknown")

    disk.on_sync = wait
    threads = [threading.Thread(target=sync) for _ in range(2)]
    threads[0].start()
    assert is_syncing.wait(5)
    threads[1].start()
    may_fail.set()
    for thread in threads:
        thread.join()

    assert outcomes == ["unknown", "unknown"]
    assert len(synced_paths(disk)) == 1


def test_sync_when_directory_sync_fails(disk: FakeFilesystem, store: SegmentStore) -> None:
    """A failed sync of the directory leaves the new names unknown for good; a segment whose name is durable goes on."""
    old = put(store, b"old", CLEAN)
    store.sync([old.segment_id])
    put(store, b"new")
    disk.fail(Operation.SYNC_DIRECTORY)

    with pytest.raises(UnknownOutcomeError):
        store.sync([2])

    with pytest.raises(UnknownOutcomeError):
        store.sync([2])
    put(store, b"more", CLEAN)
    store.sync([old.segment_id])
    newest = put(store, b"newest")
    with pytest.raises(UnknownOutcomeError):
        store.sync([newest.segment_id])


def test_sync_when_segment_is_gone(store: SegmentStore) -> None:
    """Bytes that are nowhere cannot be synced."""
    with pytest.raises(SegmentGoneError):
        store.sync([77])


@settings(max_examples=40)
@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.integers(1, 3000), st.sampled_from([DIRTY, CLEAN])), max_size=20
    ),
    seed=st.integers(0, 2**32),
    keep=st.sampled_from([0.0, 0.3, 0.9]),
)
def test_sync_when_power_fails_anywhere(
    steps: list[tuple[bool, int, Stream]], seed: int, keep: float
) -> None:
    """Whatever was covered by a sync reads back right after a power cut, by its checksum."""
    disk = FakeFilesystem(seed=seed)
    store = make_store(disk)
    written: dict[int, list[Location]] = {}
    durable: list[Location] = []
    for number, (is_sync, length, stream) in enumerate(steps):
        location = put(store, bytes([number + 1]) * length, stream)
        written.setdefault(location.segment_id, []).append(location)
        if is_sync:
            store.sync([location.segment_id])
            durable += written.pop(location.segment_id)

    left = make_store(disk.crash_clone(random.Random(seed), keep), live=frozenset({1, 2}), first_id=10)

    assert all(left.verify_block(location, 0) for location in durable)


# --- reading ------------------------------------------------------------------------------------------------------------


def test_read_when_segment_is_missing(store: SegmentStore) -> None:
    """Bytes of a segment that is not there are gone: a miss."""
    with pytest.raises(SegmentGoneError):
        store.read(Location(77, 0, 5), 0, 5)


def test_read_when_nothing_was_written(store: SegmentStore) -> None:
    """A reserved segment without a file has no bytes."""
    (reservation,) = store.reserve(10, DIRTY)

    with pytest.raises(SegmentGoneError, match="has no file"):
        store.read(Location(reservation.segment_id, 0, 10), 0, 10)


def test_read_when_file_is_short(disk: FakeFilesystem, store: SegmentStore) -> None:
    """A file that ends within the location is a miss, not a short answer."""
    location = put(store, b"0123456789")
    disk.replace_contents(segment_path(1), b"01234")

    assert store.read(location, 0, 5) == b"01234"
    with pytest.raises(SegmentGoneError, match="ends before byte"):
        store.read(location, 0, 6)


@pytest.mark.parametrize("operation", [Operation.PREAD, Operation.OPEN_READER])
def test_read_when_disk_fails(disk: FakeFilesystem, store: SegmentStore, operation: Operation) -> None:
    """EIO on reading is DiskFailedError, and nothing stays pinned."""
    location = put(store, b"0123456789")
    disk.fail(operation)

    with pytest.raises(DiskFailedError):
        store.read(location, 0, 5)

    state = store.state(1)
    assert state is not None
    assert state.pins == 0


def test_reader_when_not_pinned(store: SegmentStore) -> None:
    """A descriptor is handed out only to who keeps it from being closed."""
    put(store, b"x")

    with pytest.raises(AssertionError, match="is not pinned"):
        store.reader(1)


def test_reader_when_bound_is_reached(disk: FakeFilesystem) -> None:
    """Descriptors are kept up to the bound, those used least lately are closed first, those of pinned segments never."""
    store = make_store(disk, segment_bytes=MIB, readers_max=2)
    locations = [put(store, bytes([n]) * MIB) for n in range(4)]
    with store.pin([1]):
        pinned = store.reader(1)
        for location in locations[1:]:
            store.read(location, 0, 1)
        opened = sum(call.operation is Operation.OPEN_READER for call in disk.calls)

        assert store.reader(1) is pinned
        assert pinned.pread(0, 1) == b"\x00"
        store.read(locations[3], 0, 1)
        assert sum(call.operation is Operation.OPEN_READER for call in disk.calls) == opened
        store.read(locations[1], 0, 1)
        assert sum(call.operation is Operation.OPEN_READER for call in disk.calls) == opened + 1


def test_reader_when_segment_is_a_journal_file(disk: FakeFilesystem, store: SegmentStore) -> None:
    """A location may point into a registered journal file; it is read, pinned and removed like a segment."""
    disk.make_directory("journal")
    disk.create("journal/0000000001.log").pwrite(0, b"headbody")
    store.register_journal(5, "journal/0000000001.log", is_own=False)
    location = Location(5, 4, 4, checksums(b"body"))

    assert store.read(location, 0, 4) == b"body"
    assert not store.is_verified(location, 0)
    assert store.verify_block(location, 0)
    assert store.used_bytes == 0
    assert store.states() == []
    assert store.remove(5)
    for segment_id in store.take_removable():
        store.unlink(segment_id)
    assert disk.list_directory("journal") == []


# --- what was checked ---------------------------------------------------------------------------------------------------


def test_is_verified_when_this_process_wrote_it(store: SegmentStore) -> None:
    """Blocks written by this process need no check."""
    location = put(store, b"0123456789")

    assert store.is_verified(location, 0)


def test_is_verified_when_an_earlier_process_wrote_it(disk: FakeFilesystem, store: SegmentStore) -> None:
    """Blocks of an earlier process are checked once; a wrong one is never taken for right."""
    good, bad = put(store, b"0123456789"), put(store, b"abcdefghij")
    disk.replace_contents(segment_path(1), b"0123456789abcdefghiX")
    again = make_store(disk, live=frozenset({1}), first_id=10)

    assert not again.is_verified(good, 0)
    assert again.verify_block(good, 0)
    assert again.is_verified(good, 0)
    assert not again.verify_block(bad, 0)
    assert not again.is_verified(bad, 0)


def test_check_block_when_caller_read_the_bytes(disk: FakeFilesystem, store: SegmentStore) -> None:
    """Bytes already read can be checked without a second read."""
    location = put(store, b"0123456789")
    again = make_store(disk, live=frozenset({1}), first_id=10)

    assert not again.check_block(location, 0, b"0123456780")
    assert again.check_block(location, 0, b"0123456789")
    assert again.is_verified(location, 0)


# --- removal ------------------------------------------------------------------------------------------------------------


def unlink_all(store: SegmentStore) -> list[int]:
    """Do what the reclaim's driver does."""
    removable = store.take_removable()
    for segment_id in removable:
        store.unlink(segment_id)
    return removable


def test_remove_when_nobody_reads(any_disk: Filesystem) -> None:
    """A removed segment is unlinked, its space is free again, and its bytes are gone."""
    store = make_store(any_disk)
    location = put(store, bytes(1000))
    store.read(location, 0, 1)

    assert store.remove(1)
    assert store.state(1) is None
    assert unlink_all(store) == [1]

    assert any_disk.list_directory("segments") == []
    assert store.used_bytes == 0
    with pytest.raises(SegmentGoneError):
        store.read(location, 0, 1)
    assert unlink_all(store) == []
    store.close()


def test_remove_when_pinned(any_disk: Filesystem) -> None:
    """A reader that has pinned goes on to its last byte; the file goes after it."""
    store = make_store(any_disk)
    location = put(store, b"0123456789")
    pin = store.pin([1, 1])
    store.remove(1)

    assert unlink_all(store) == []
    assert store.reader(1).pread(location.offset, 10) == b"0123456789"
    pin.release()
    pin.release()
    assert unlink_all(store) == [1]
    store.close()


def test_remove_when_a_range_is_not_settled(store: SegmentStore) -> None:
    """A segment is not removed while a row that names it may yet be committed."""
    (reservation,) = store.reserve(10, DIRTY)
    store.write(reservation, 0, b"0123456789")
    state = store.state(1)

    assert state is not None
    assert not state.is_settled
    assert not store.remove(1)
    assert unlink_all(store) == []
    store.settle([reservation])
    assert store.remove(1)


def test_remove_when_unknown(store: SegmentStore) -> None:
    """There is nothing to do for a segment that is not there."""
    assert store.remove(77)
    assert store.take_removable() == []


def test_seal_when_nothing_of_it_is_held(store: SegmentStore) -> None:
    """An open segment ends where it is, and the next body begins another; one that is being written stays open."""
    (reservation,) = store.reserve(10, DIRTY)

    assert not store.seal(1)
    store.settle([reservation])
    assert store.seal(1)

    state = store.state(1)
    (following,) = store.reserve(10, DIRTY)
    assert state is not None
    assert (state.is_sealed, state.size_bytes) == (True, 10)
    assert (following.segment_id, following.offset) == (2, 0)
    assert not store.seal(77)


def test_pin_when_segment_leaves(store: SegmentStore) -> None:
    """Once a segment is handed out for unlinking it cannot be pinned: who comes now misses it."""
    put(store, b"0123456789")
    store.remove(1)
    store.take_removable()

    with store.pin([1]), pytest.raises(SegmentGoneError):
        store.reader(1)


def test_unlink_when_disk_fails(disk: FakeFilesystem, store: SegmentStore) -> None:
    """A segment that could not be unlinked is handed out again, and still counts."""
    put(store, bytes(1000))
    store.remove(1)
    disk.fail(Operation.UNLINK)

    (segment_id,) = store.take_removable()
    with pytest.raises(DiskFailedError):
        store.unlink(segment_id)

    assert store.used_bytes == 1000
    assert unlink_all(store) == [1]
    assert store.used_bytes == 0


def test_unlink_when_never_written(store: SegmentStore) -> None:
    """A segment that was reserved and never written has no file, which is no error."""
    store.settle(store.reserve(10, DIRTY))
    store.remove(1)

    assert unlink_all(store) == [1]
    assert store.used_bytes == 0


def test_remove_when_write_is_under_way(disk: FakeFilesystem, store: SegmentStore) -> None:
    """A file is not unlinked under a sync that is under way."""
    location = put(store, b"0123456789")
    seen: list[list[int]] = []

    def remove(_path: str) -> None:
        store.remove(location.segment_id)
        seen.append(store.take_removable())

    disk.on_sync = remove
    store.sync([1])

    assert seen == [[]]
    assert unlink_all(store) == [1]


# --- a start ------------------------------------------------------------------------------------------------------------


def test_adopt_when_directory_is_new(disk: FakeFilesystem) -> None:
    """A start makes the directory; there is nothing in it, and named segments are missing."""
    store = SegmentStore(disk, SegmentLimits(MIB, 8 * MIB), count(1).__next__)

    adoption = store.adopt([4, 3])

    assert (adoption.orphans, adoption.missing) == ((), (3, 4))
    assert disk.list_directory("segments") == []


def test_adopt_when_segments_are_there(disk: FakeFilesystem, store: SegmentStore) -> None:
    """A start seals what rows name, gives up what they do not, counts both, and leaves foreign files alone."""
    kept, orphan = put(store, bytes(1000)), put(store, bytes(500), CLEAN)
    disk.create("segments/README").pwrite(0, b"?")
    disk.create("segments/000000000000000G.seg")
    disk.create("segments/3.seg")
    again = SegmentStore(disk, SegmentLimits(4 * MIB, 64 * MIB), count(10).__next__)
    again.register_journal(99, "journal/0000000001.log", is_own=False)

    adoption = again.adopt([kept.segment_id, 99])

    assert (adoption.orphans, adoption.missing) == ((orphan.segment_id,), ())
    assert again.used_bytes == 1500
    assert [(s.segment_id, s.is_sealed, s.size_bytes, s.stream) for s in again.states()] == [
        (1, True, 1000, None)
    ]
    assert ranges(again.reserve(5, DIRTY)) == [(10, 0, 5)]
    assert unlink_all(again) == [orphan.segment_id]
    assert again.used_bytes == 1005
    assert disk.list_directory("segments") == [
        "0000000000000001.seg",
        "000000000000000G.seg",
        "3.seg",
        "README",
    ]


@pytest.mark.parametrize("operation", [Operation.LIST_DIRECTORY, Operation.MAKE_DIRECTORY])
def test_adopt_when_disk_fails(disk: FakeFilesystem, operation: Operation) -> None:
    """A directory that cannot be read stops the start with DiskFailedError."""
    disk.fail(operation)

    with pytest.raises(DiskFailedError):
        make_store(disk)


def test_limits_when_segments_do_not_fit() -> None:
    """A cache smaller than a segment, and a segment smaller than a block, are refused."""
    with pytest.raises(ValueError, match="do not fit"):
        SegmentLimits(segment_bytes=4 * MIB, capacity_bytes=MIB)
    with pytest.raises(ValueError, match="do not fit"):
        SegmentLimits(segment_bytes=MIB - 1, capacity_bytes=8 * MIB)


# --- descriptors --------------------------------------------------------------------------------------------------------


def open_descriptors() -> int:
    """Count this process's open descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def descriptors() -> Callable[[], int]:
    """Give a count of the descriptors opened since."""
    before = open_descriptors()
    return lambda: open_descriptors() - before


def test_descriptors_when_segments_fill_up(tmp_path: Path, descriptors: Callable[[], int]) -> None:
    """A segment that is sealed and settled keeps no descriptor for writing, whichever came first."""
    store = make_store(PosixFilesystem(str(tmp_path)), segment_bytes=MIB)
    for _ in range(5):
        put(store, bytes(MIB))
    held = store.reserve(MIB, DIRTY)
    store.write(held[0], 0, b"x")
    put(store, b"x")
    open_while_held = descriptors()
    store.settle(held)

    assert (open_while_held, descriptors()) == (2, 1)
    store.close()
    assert descriptors() == 0


# --- Re-opening ------------------------------------------------------------------------------------------------------


def test_a_retired_store_takes_nothing_more(store: SegmentStore) -> None:
    """No space, no byte, no sync: the directory is another store's."""
    (held,) = store.reserve(10, DIRTY)
    location = put(store, b"x" * 10)
    store.retire()

    with pytest.raises(DiskFailedError):
        store.reserve(10, DIRTY)
    with pytest.raises(DiskFailedError):
        store.write(held, 0, b"1")
    with pytest.raises(UnknownOutcomeError):
        store.sync([location.segment_id])


def test_a_retired_store_trusts_nothing_that_this_process_wrote(store: SegmentStore) -> None:
    """What it wrote before a sync failed may read back as something else, so each block is checked each time."""
    location = put(store, b"x" * 10)
    before = store.is_verified(location, 0)
    store.retire()

    is_right = store.verify_block(location, 0)

    assert (before, is_right, store.is_verified(location, 0)) == (True, True, False)


def test_nothing_is_unlinked_that_is_pinned_in_the_store_before(
    disk: FakeFilesystem, store: SegmentStore
) -> None:
    """A body begun before a re-opening reads on; what it had pinned goes when it ends."""
    location = put(store, b"x" * 10)
    pin = store.pin([location.segment_id])
    store.retire()
    limits = SegmentLimits(4 * MIB, 64 * MIB)
    after = SegmentStore(disk, limits, count(100).__next__, predecessor=store)
    after.adopt(frozenset())

    while_pinned = after.take_removable()
    data = store.read(location, 0, 10)
    pin.release()

    assert (while_pinned, data) == ([], b"x" * 10)
    assert after.take_removable() == [location.segment_id]


def test_a_retired_store_closes_its_files_when_nobody_reads_any_more(store: SegmentStore) -> None:
    """Descriptors of a store that was replaced do not pile up."""
    location = put(store, b"x" * 10)
    pin = store.pin([location.segment_id])
    file = store.reader(location.segment_id)
    store.retire()
    read = file.pread(0, 10)

    pin.release()

    assert read == b"x" * 10
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(0, 10)
