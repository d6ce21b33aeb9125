"""The door: what shares a sync, in which order things happen, what each failure means, what a cancellation does.

All over the file system in memory. Where it matters that syncs take time, they run on threads of their own.
"""

import asyncio
import statistics
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import TypeVar

import pytest

from storage import commit as commit_module
from storage.commit import GROUP_MUTATIONS_MAX, WAITING_MAX, Receipt
from storage.errors import (
    DiskFailedError,
    DiskFullError,
    EngineClosedError,
    OverloadedError,
    StorageError,
    UnknownOutcomeError,
)
from storage.ids import Ids
from storage.records import FORMAT, Put, Released
from storage.recovery import recover
from storage.rows import Rows
from storage.types import KIB, MIB
from storage.workers import ThreadWorkers
from tests.fakes.filesystem import Call, FakeFilesystem, Operation
from tests.fakes.open_directory import (
    DirectoryWorkers,
    IndexHome,
    OpenDirectory,
    open_directory,
    recovery_parts,
)
from tests.fakes.records import BUCKET, entry, extent, put, record, tiny_extents, tombstone
from tests.fakes.tasks import lag_s, pause, sleep_blocking, start, turns

T = TypeVar("T")
TINY = b"tiny"
SMALL = bytes(range(256)) * 160  # 40 KiB: too long to ride in the journal


@pytest.fixture
def disk() -> FakeFilesystem:
    """Give a file system in memory."""
    return FakeFilesystem()


@pytest.fixture
async def directory(disk: FakeFilesystem) -> AsyncIterator[OpenDirectory]:
    """Give an open directory on it, everything inline."""
    async with open_directory(disk) as opened:
        yield opened


async def all_of(*work: Coroutine[object, object, T]) -> list[T]:
    """Run work side by side and give the results in order."""
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(one) for one in work]
    return [task.result() for task in started]


async def outcomes(*work: Coroutine[object, object, T]) -> list[T | StorageError]:
    """Run work side by side; a failure stands for its result."""

    async def one(coroutine: Coroutine[object, object, T]) -> T | StorageError:
        try:
            return await coroutine
        except StorageError as error:
            return error

    return await all_of(*[one(coroutine) for coroutine in work])


def syncs(disk: FakeFilesystem, since: int = 0) -> list[str]:
    """Name what was synced, and written to the journal, in order."""
    shown = []
    for call in disk.calls[since:]:
        if call.operation in {Operation.FDATASYNC, Operation.SYNC_DIRECTORY}:
            shown.append(f"sync {_named(call.path)}")
        elif call.operation is Operation.PWRITE and call.path.startswith("journal/"):
            shown.append(f"write {_named(call.path)}")
    return shown


def _named(path: str) -> str:
    """A journal file keeps the path under which it was begun."""
    return path.replace(".tmp", ".log")


def overlay_sequence(directory: OpenDirectory, key: str) -> int | None:
    """Say which change of a key is visible."""
    overlay = Rows(directory.index).overlay(BUCKET, key)
    return None if overlay is None else overlay.sequence


def use_up(ids: Ids) -> None:
    """Take segment ids until none is left."""
    with suppress(OverloadedError):
        while True:
            ids.take_segment_id()


class Gate:
    """Holds an `fdatasync` of a path until opened; says when it is there."""

    def __init__(self, disk: FakeFilesystem, part_of_path: str) -> None:
        self.arrived = threading.Event()
        self.open = threading.Event()
        self._part = part_of_path
        disk.on_sync = self._wait

    def _wait(self, path: str) -> None:
        if self._part in path:
            self.arrived.set()
            assert self.open.wait(10), "nobody opened the gate"

    async def reached(self) -> None:
        """Wait until a sync is held."""
        await asyncio.get_running_loop().run_in_executor(None, self.arrived.wait, 10)


@pytest.fixture
async def threaded(disk: FakeFilesystem) -> AsyncIterator[OpenDirectory]:
    """Give an open directory whose door and index have their threads."""
    workers = DirectoryWorkers(ThreadWorkers("commit", 1), ThreadWorkers("index", 1))
    try:
        async with open_directory(disk, workers=workers) as opened:
            yield opened
    finally:
        workers.commit.close()
        workers.index.close()


# --- what is written -------------------------------------------------------------------------------------------------


async def test_commit_when_body_is_tiny(directory: OpenDirectory, disk: FakeFilesystem) -> None:
    """A tiny body costs one write and one sync of one file, and lies where its row says."""
    begun = len(disk.calls)

    sequence = await directory.put("key", TINY)

    journal = f"journal/{directory.journal.segment_id:016x}.log"
    stored = Rows(directory.index).object(BUCKET, "key")
    assert syncs(disk, begun) == [f"write {journal}", f"sync {journal}"]
    assert stored is not None
    place = stored.extents[0].location
    assert place.segment_id == directory.journal.segment_id
    assert disk.contents(journal)[place.offset : place.offset + place.length] == TINY
    assert sequence == directory.commit.last_sequence


async def test_commit_when_body_is_in_a_segment(directory: OpenDirectory, disk: FakeFilesystem) -> None:
    """The body, and the name of its new segment, are synced before the journal is even written."""
    begun = len(disk.calls)

    await directory.put("key", SMALL)

    journal = f"journal/{directory.journal.segment_id:016x}.log"
    stored = Rows(directory.index).object(BUCKET, "key")
    assert stored is not None
    segment = f"segments/{stored.extents[0].location.segment_id:016x}.seg"
    assert syncs(disk, begun) == [
        f"sync {segment}",
        "sync segments",
        f"write {journal}",
        f"sync {journal}",
    ]


async def test_commit_when_object_is_empty(directory: OpenDirectory) -> None:
    """An object without a byte is an object."""
    await directory.put("key", b"")

    stored = Rows(directory.index).object(BUCKET, "key")
    assert stored is not None
    assert (stored.size, stored.extents) == (0, ())


async def test_commit_when_many_wait(directory: OpenDirectory, disk: FakeFilesystem) -> None:
    """Commits that wait together share one sync of each file, and keep the order in which they came."""
    await directory.put("first", SMALL)
    begun, groups = len(disk.calls), directory.commit.groups_total

    receipts = await all_of(
        *[
            directory.commit.commit(put(f"k{n}", record(100 + n, tiny_extents(4))), body=b"%04d" % n)
            for n in range(200)
        ]
    )

    first = receipts[0].sequence
    assert [receipt.sequence for receipt in receipts] == list(range(first, first + 200))
    assert directory.commit.groups_total == groups + 1
    assert len(syncs(disk, begun)) == 2
    for n in (0, 1, 199):
        stored = Rows(directory.index).object(BUCKET, f"k{n}")
        assert stored is not None
        place = stored.extents[0].location
        data = disk.contents(f"journal/{place.segment_id:016x}.log")
        assert data[place.offset : place.offset + 4] == b"%04d" % n


async def test_commit_when_it_may_wait(
    directory: OpenDirectory, disk: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody waits for shares the syncs of what somebody does, and has its sequence before it."""
    monkeypatch.setattr(commit_module, "COMPANY_WAIT_S", 3600.0)
    begun, groups = len(disk.calls), directory.commit.groups_total

    patient = start(directory.commit.commit(tombstone("patient"), may_wait=True))
    await turns()
    before = syncs(disk, begun)
    receipt = await directory.commit.commit(tombstone("in a hurry"))

    assert not before
    assert (await patient).sequence == receipt.sequence - 1
    assert directory.commit.groups_total == groups + 1


async def test_commit_when_it_may_wait_and_nobody_comes(directory: OpenDirectory) -> None:
    """It is committed by itself, and so is the next one."""
    groups = directory.commit.groups_total

    for key in ("a", "b"):
        await directory.commit.commit(tombstone(key), may_wait=True)

    assert directory.commit.groups_total == groups + 2


async def test_commit_when_group_is_full(directory: OpenDirectory) -> None:
    """A group takes a bounded number of mutations; the others are in the next."""
    groups = directory.commit.groups_total

    await all_of(*[directory.commit.commit(tombstone(f"k{n}")) for n in range(GROUP_MUTATIONS_MAX + 1)])

    assert directory.commit.groups_total == groups + 2
    assert directory.commit.mutations_total >= GROUP_MUTATIONS_MAX + 1


async def test_commit_when_group_is_heavy(directory: OpenDirectory) -> None:
    """A group takes a bounded number of bytes, so that it fits one frame of the journal."""
    groups, body = directory.commit.groups_total, bytes(32 * KIB)

    await all_of(
        *[
            directory.commit.commit(put(f"k{n}", record(100 + n, tiny_extents(32 * KIB))), body=body)
            for n in range(600)
        ]
    )

    assert directory.commit.groups_total == groups + 2


async def test_commit_when_one_key_changes_twice_in_a_group(directory: OpenDirectory) -> None:
    """The later of two changes of one key that were collected together is the newest."""
    await all_of(
        directory.commit.commit(put("key", record(100, tiny_extents(3))), body=b"old"),
        directory.commit.commit(put("key", record(101, tiny_extents(3))), body=b"new"),
        directory.commit.commit(tombstone("gone")),
    )

    stored = Rows(directory.index).object(BUCKET, "key")
    assert stored is not None
    assert stored.version_id == 101


async def test_commit_when_journal_file_is_long_enough(disk: FakeFilesystem) -> None:
    """The next group begins a new file, and what lies in the old one is found there."""
    async with open_directory(disk, journal_file_bytes=100) as directory:
        first_file = directory.journal.segment_id
        await directory.put("one", TINY)
        await directory.put("two", TINY)

        places = [Rows(directory.index).object(BUCKET, key) for key in ("one", "two")]
        ids = [stored.extents[0].location.segment_id for stored in places if stored]
        assert ids == [file.segment_id for file in directory.journal.sealed[1:]] + [
            directory.journal.segment_id
        ]
        assert first_file == directory.journal.sealed[0].segment_id
        for stored in places:
            assert stored is not None
            assert directory.segments.verify_block(stored.extents[0].location, 0)


# --- what is visible, and when ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["segments/", "journal/"])
async def test_commit_when_sync_is_under_way(
    threaded: OpenDirectory, disk: FakeFilesystem, held: str
) -> None:
    """Nothing is visible and nobody is told before the syncs have returned."""
    gate = Gate(disk, held)

    putting = start(threaded.put("key", SMALL))
    await gate.reached()
    seen_before = overlay_sequence(threaded, "key"), putting.done(), threaded.state.dirty_bytes
    gate.open.set()
    sequence = await putting

    assert seen_before == (None, False, 0)
    assert overlay_sequence(threaded, "key") == sequence
    assert threaded.state.dirty_bytes == len(SMALL)


async def test_commit_when_index_write_is_under_way(disk: FakeFilesystem) -> None:
    """A receipt comes only after the rows are written, and the loop knows their effects by then."""
    index_workers, release = ThreadWorkers("index", 1), threading.Event()
    workers = DirectoryWorkers(index=index_workers)
    try:
        async with open_directory(disk, workers=workers) as directory:
            blocked = start(index_workers.run(release.wait, 10))
            putting = start(directory.put("key", TINY))
            await turns()
            is_synced, is_told = directory.commit.last_sequence, putting.done()
            release.set()
            sequence = await putting
            await blocked

            assert (is_synced, is_told) == (sequence, False)
            assert directory.applier.applied_sequence == sequence
            assert directory.state.dirty_bytes == len(TINY)
    finally:
        release.set()
        index_workers.close()


async def test_commit_when_group_is_being_synced(threaded: OpenDirectory, disk: FakeFilesystem) -> None:
    """What comes while a group is synced collects into the next one, however much it is."""
    groups, gate = threaded.commit.groups_total, Gate(disk, "journal/")
    first = start(threaded.commit.commit(tombstone("first")))
    await gate.reached()

    others = [start(threaded.commit.commit(tombstone(f"k{n}"))) for n in range(100)]
    await turns(1)
    gate.open.set()
    receipts = [await task for task in (first, *others)]

    assert threaded.commit.groups_total == groups + 2
    assert [receipt.sequence for receipt in receipts] == sorted(receipt.sequence for receipt in receipts)


async def test_drain_when_commits_are_under_way(threaded: OpenDirectory, disk: FakeFilesystem) -> None:
    """Draining waits for what waits and for what is under way."""
    gate = Gate(disk, "journal/")
    putting = start(threaded.put("key", TINY))
    await gate.reached()
    draining = start(threaded.commit.drain())
    await turns(1)
    was_done = draining.done()

    gate.open.set()
    await draining

    assert not was_done
    assert putting.done() or overlay_sequence(threaded, "key") is not None
    await putting


# --- failures with a known outcome -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("error_number", "kind"), [(28, DiskFullError), (5, DiskFailedError)])
@pytest.mark.parametrize("written_share", [0.0, 0.5, 1.0])
async def test_commit_when_journal_write_fails(
    directory: OpenDirectory,
    disk: FakeFilesystem,
    error_number: int,
    kind: type[StorageError],
    written_share: float,
) -> None:
    """Every caller of the group gets the error, nothing is written, and the sequences are used by the next group."""
    before = await directory.put("before", TINY)
    disk.fail(Operation.PWRITE, error_number=error_number, written_share=written_share)

    failed = await outcomes(*[directory.commit.commit(tombstone(f"k{n}")) for n in range(3)])
    after = await directory.put("after", TINY)

    assert [type(error) for error in failed] == [kind] * 3
    assert overlay_sequence(directory, "k0") is None
    assert after == before + 1
    assert directory.commit.failure == ""
    assert not directory.failures
    await directory.kill()
    recovered = recover(recovery_parts(disk.kill_clone(), IndexHome()))
    assert [queued.key for queued in recovered.dirty] == ["before", "after"]


async def test_commit_when_new_journal_file_cannot_be_begun(disk: FakeFilesystem) -> None:
    """A full disk that has no room for a new file lets the old one go on; the wish stays, and no id is spent on it."""
    async with open_directory(disk, journal_file_bytes=100) as directory:
        await directory.put("zero", TINY)
        files = len(directory.journal.sealed)
        disk.fail(Operation.CREATE, error_number=28, is_persistent=True)

        for key in ("one", "two"):
            await directory.put(key, TINY)
        while_full, next_id = len(directory.journal.sealed), directory.recovered.ids.take_segment_id()
        disk.heal()
        await directory.put("three", TINY)

        assert while_full == files
        assert len(directory.journal.sealed) == files + 1
        assert directory.journal.segment_id == next_id - 1
        for key in ("zero", "one", "two", "three"):
            stored = Rows(directory.index).object(BUCKET, key)
            assert stored is not None
            assert directory.segments.verify_block(stored.extents[0].location, 0)


async def test_rotate_when_new_journal_file_cannot_be_begun(
    directory: OpenDirectory, disk: FakeFilesystem
) -> None:
    """A rotation that somebody asked for is not forgotten because the disk refused it once."""
    first_file = directory.journal.segment_id
    disk.fail(Operation.CREATE, error_number=28)

    directory.journal.rotate()
    await directory.put("one", TINY)
    while_full = directory.journal.segment_id
    await directory.put("two", TINY)
    after = directory.journal.segment_id
    await directory.put("three", TINY)

    assert while_full == first_file
    assert [file.segment_id for file in directory.journal.sealed] == [first_file]
    assert directory.journal.segment_id == after


async def test_commit_when_no_segment_id_is_left(disk: FakeFilesystem) -> None:
    """The reservation that brings new ids needs none itself, though the journal's file is long enough."""
    async with open_directory(disk, journal_file_bytes=100) as directory:
        ids = directory.recovered.ids
        await directory.put("zero", TINY)
        use_up(ids)

        reservation = ids.reservation()
        await directory.commit.commit(reservation)
        ids.adopt(reservation)
        file_before = directory.journal.segment_id
        await directory.put("one", TINY)

        assert directory.journal.segment_id != file_before


@pytest.mark.slow
async def test_commit_when_too_many_wait(directory: OpenDirectory) -> None:
    """The queue is bounded: what is over it is refused at once, and nothing of it is written."""
    results = await outcomes(*[directory.commit.commit(Released(FORMAT, n)) for n in range(WAITING_MAX + 3)])

    refused = [result for result in results if isinstance(result, OverloadedError)]
    assert len(refused) == 3
    assert all(error.retry_after_s for error in refused)
    assert sum(isinstance(result, Receipt) for result in results) == WAITING_MAX


# --- failures with an unknown outcome --------------------------------------------------------------------------------


def on(path: str) -> Callable[[Call], bool]:
    """Choose the calls on paths that begin so."""
    return lambda call: call.path.startswith(path)


FAILED_SYNCS = [
    pytest.param(lambda disk: disk.fail(Operation.FDATASYNC, when=on("segments/")), id="segment"),
    pytest.param(lambda disk: disk.fail(Operation.SYNC_DIRECTORY, when=on("segments")), id="names"),
    pytest.param(lambda disk: disk.fail(Operation.FDATASYNC, when=on("journal/")), id="journal"),
]


@pytest.mark.parametrize("break_disk", FAILED_SYNCS)
async def test_commit_when_a_sync_fails(
    directory: OpenDirectory, disk: FakeFilesystem, break_disk: Callable[[FakeFilesystem], None]
) -> None:
    """The whole group and every later commit have an unknown outcome; no file of the failure is touched again."""
    await directory.put("before", TINY)
    break_disk(disk)

    failed = await outcomes(
        directory.put("one", SMALL), directory.put("two", SMALL), directory.put("three", TINY)
    )
    begun = len(disk.calls)
    later = await outcomes(directory.put("four", TINY), directory.delete("before"))

    assert [type(error) for error in failed if isinstance(error, StorageError)] == [UnknownOutcomeError] * 3
    assert [type(error) for error in later] == [UnknownOutcomeError] * 2
    assert overlay_sequence(directory, "one") is None
    assert len(directory.failures) == 1
    assert syncs(disk, begun) == []


async def test_commit_when_append_cannot_be_cut_back(directory: OpenDirectory, disk: FakeFilesystem) -> None:
    """A short write that stays in the file is an unknown outcome: what follows it might be read as its rest."""
    disk.fail(Operation.PWRITE, written_share=0.5)
    disk.fail(Operation.TRUNCATE)

    failed = await outcomes(directory.put("one", TINY))
    later = await outcomes(directory.put("two", TINY))

    assert [type(error) for error in (*failed, *later)] == [UnknownOutcomeError] * 2


async def test_commit_when_index_write_fails(disk: FakeFilesystem) -> None:
    """The journal holds what the index refused; nobody is told of it, and a start applies it."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        await directory.put("before", TINY)
        home.index.fail_write()

        failed = await outcomes(directory.put("one", TINY), directory.put("two", TINY))
        later = await outcomes(directory.put("three", TINY))
        with pytest.raises(UnknownOutcomeError):
            await directory.applier.checkpoint()

        assert [type(error) for error in (*failed, *later)] == [UnknownOutcomeError] * 3
        assert len(directory.failures) >= 1
        assert overlay_sequence(directory, "one") is None
    recovered = recover(recovery_parts(disk.kill_clone(), IndexHome(home.index.kill_clone())))
    assert [queued.key for queued in recovered.dirty] == ["before", "one", "two"]


async def test_commit_when_group_before_is_not_applied(disk: FakeFilesystem) -> None:
    """A group that was synced behind one whose rows cannot be written is not applied over the gap."""
    index_workers, release = ThreadWorkers("index", 1), threading.Event()
    home = IndexHome()
    try:
        async with open_directory(disk, home, workers=DirectoryWorkers(index=index_workers)) as directory:
            blocked = start(index_workers.run(release.wait, 10))
            one = start(outcomes(directory.put("one", TINY)))
            await pause()
            two = start(outcomes(directory.put("two", TINY)))
            await pause()
            home.index.fail_write()
            release.set()

            failed = [*await one, *await two]
            await blocked

            assert [type(error) for error in failed] == [UnknownOutcomeError] * 2
            assert overlay_sequence(directory, "two") is None
    finally:
        release.set()
        index_workers.close()


async def test_commit_when_index_failed_with_groups_behind(disk: FakeFilesystem) -> None:
    """Once the index has failed, what still waits is refused before it reaches the journal."""
    index_workers, release = ThreadWorkers("index", 1), threading.Event()
    home = IndexHome()
    try:
        async with open_directory(disk, home, workers=DirectoryWorkers(index=index_workers)) as directory:
            blocked = start(index_workers.run(release.wait, 10))
            clients = []
            for number in range(5):
                clients.append(start(outcomes(directory.put(f"k{number}", TINY))))
                await pause()
            synced = directory.commit.last_sequence
            home.index.fail_write()
            release.set()

            failed = [result for client in clients for result in await client]
            await blocked

            assert [type(error) for error in failed] == [UnknownOutcomeError] * 5
            # One group is applied, one lies ready, one waits to lie ready; the others had not begun.
            assert directory.commit.last_sequence == synced == 2 + 3
    finally:
        release.set()
        index_workers.close()


async def test_commit_when_a_clean_row_could_not_be_written(disk: FakeFilesystem) -> None:
    """An index that refuses a change to clean rows takes no group either, so nothing more is journaled for it."""
    home = IndexHome()
    async with open_directory(disk, home) as directory:
        home.index.fail_write()
        with pytest.raises(UnknownOutcomeError):
            await directory.fill("clean", TINY)
        begun = len(disk.calls)

        failed = await outcomes(directory.put("one", TINY))

        assert [type(error) for error in failed] == [UnknownOutcomeError]
        assert syncs(disk, begun) == []
        assert len(directory.failures) == 1


# --- cancellation and the end ----------------------------------------------------------------------------------------


async def test_commit_when_cancelled_while_it_waits(threaded: OpenDirectory, disk: FakeFilesystem) -> None:
    """A mutation that no group has taken is withdrawn."""
    gate = Gate(disk, "journal/")
    first = start(threaded.put("first", TINY))
    await gate.reached()
    waiting = start(threaded.commit.commit(tombstone("withdrawn")))
    await turns(1)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open.set()
    sequence = await first
    await threaded.commit.drain()

    assert overlay_sequence(threaded, "withdrawn") is None
    assert await threaded.delete("next") == sequence + 1


async def test_commit_when_cancelled_after_it_was_taken(
    threaded: OpenDirectory, disk: FakeFilesystem
) -> None:
    """A mutation on its way commits, and its caller keeps the space that it names until then, however often cancelled."""
    gate = Gate(disk, "journal/")
    putting = start(threaded.put("key", SMALL))
    await gate.reached()

    for _ in range(3):
        putting.cancel()
        await pause()
    was_done = putting.done()
    held = [not state.is_settled for state in threaded.segments.states()]
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await putting

    stored = Rows(threaded.index).object(BUCKET, "key")
    assert not was_done
    assert held == [True]
    assert stored is not None
    assert threaded.segments.verify_block(stored.extents[0].location, 0)
    assert [state.is_settled for state in threaded.segments.states()] == [True]


async def test_commit_when_its_reader_of_the_error_is_cancelled(
    threaded: OpenDirectory, disk: FakeFilesystem
) -> None:
    """A cancelled caller is cancelled, whatever became of its mutation."""
    gate = Gate(disk, "journal/")
    disk.fail(Operation.FDATASYNC, when=on("journal/"))
    putting = start(threaded.put("key", TINY))
    await gate.reached()

    putting.cancel()
    gate.open.set()

    with pytest.raises(asyncio.CancelledError):
        await putting
    assert threaded.failures


async def test_run_when_cancelled_with_commits_under_way(
    threaded: OpenDirectory, disk: FakeFilesystem
) -> None:
    """Nobody waits for ever: what is under way has an unknown outcome, what waits is refused, what comes later too."""
    gate = Gate(disk, "journal/")
    under_way = start(outcomes(threaded.put("one", TINY)))
    await gate.reached()
    waiting = start(outcomes(threaded.put("two", TINY)))
    await pause()

    killing = start(threaded.kill())
    await pause()
    gate.open.set()
    await killing

    assert [type(error) for error in await under_way] == [UnknownOutcomeError]
    assert [type(error) for error in await waiting] == [EngineClosedError]
    assert [type(error) for error in await outcomes(threaded.put("three", TINY))] == [UnknownOutcomeError]
    await threaded.commit.drain()


async def test_run_when_a_mutation_is_a_bug(disk: FakeFilesystem) -> None:
    """A mutation that must not be journaled ends the door before it is, and with it every waiting commit."""
    without_bytes = Put(FORMAT, record(9, size=5), entry("key", 9, size=5))
    seen: list[object] = []

    async def commit_it() -> None:
        async with open_directory(disk) as directory:
            begun = len(disk.calls)
            door = directory.commit
            seen.extend(await outcomes(door.commit(without_bytes), door.commit(tombstone("k"))))
            seen.append(syncs(disk, begun))

    with pytest.raises(ExceptionGroup) as caught:
        await commit_it()

    assert caught.group_contains(AssertionError, match="0 bytes of 5")
    assert [type(one) for one in seen] == [UnknownOutcomeError, UnknownOutcomeError, list]
    assert seen[-1] == []


async def test_commit_when_body_is_too_long() -> None:
    """Only tiny bodies ride in the journal."""
    async with open_directory(FakeFilesystem()) as directory:
        with pytest.raises(AssertionError, match="not a tiny body"):
            await directory.commit.commit(put("key", record(9, tiny_extents(MIB))), body=bytes(MIB))


async def test_commit_when_segment_is_gone(directory: OpenDirectory) -> None:
    """A mutation that names a segment that is not there is refused with a known outcome."""
    with pytest.raises(StorageError) as caught:
        await directory.commit.commit(put("key", record(9, (extent(0, 5, 0x7777),))))

    assert not isinstance(caught.value, UnknownOutcomeError)
    assert await directory.put("next", TINY) == directory.commit.last_sequence


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.timing
@pytest.mark.parametrize("sync_s", [0.010])
async def test_loop_lag_when_syncs_are_slow(sync_s: float) -> None:
    """With 10 ms a sync and 32 clients that put, the event loop's median lag stays under 5 ms: no sync runs in it."""
    disk = FakeFilesystem()
    workers = DirectoryWorkers(
        ThreadWorkers("commit", 1), ThreadWorkers("index", 1), ThreadWorkers("pool", 2)
    )
    lags_s: list[float] = []
    puts = 0

    async def client(directory: OpenDirectory, number: int) -> None:
        nonlocal puts
        while len(lags_s) < 120:
            body = TINY if number % 2 else SMALL
            await directory.put(f"k{number}", body)
            puts += 1

    async def measure() -> None:
        while len(lags_s) < 120:
            lags_s.append(await lag_s(0.005))

    try:
        async with open_directory(disk, workers=workers, capacity_bytes=1024 * MIB) as directory:
            disk.on_sync = lambda _path: sleep_blocking(sync_s)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(measure())
                for number in range(32):
                    tasks.create_task(client(directory, number))
            groups = directory.commit.groups_total
    finally:
        for one in (workers.commit, workers.index, workers.pool):
            one.close()

    assert statistics.median(lags_s) < 0.005
    assert puts > 4 * groups, "concurrent puts share their syncs"
