"""Compaction keeps what is live and nothing else, whenever it is cut short."""

import asyncio
import errno
import logging
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import pytest

from storage import keys
from storage.cached import DropSegment
from storage.compaction import REST_RUNS, Compaction, DropFileRows
from storage.errors import UnknownOutcomeError
from storage.family import Family
from storage.journal_reader import JournalGroup, JournalReader
from storage.live_records import tag_of
from storage.records import (
    FORMAT,
    Attempted,
    BucketFacts,
    FactsLearnt,
    Flushed,
    Forgotten,
    OriginUploadEnded,
    OriginUploadOpened,
    PointerSet,
    Quarantined,
    UploadPassed,
    Validated,
    decode_mutation,
    encode,
)
from storage.rows import Rows, RowSource, decode_object, read_origin_uploads
from storage.types import MIB
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.index import FakeIndex
from tests.fakes.ledger_harness import (
    BUCKET,
    HookedIndex,
    Ledger,
    ObservedFilesystem,
    all_rows,
    check_accounts,
    dirty_state,
    read_body,
    recover_directory,
    segment_rows,
)
from tests.fakes.ledger_load import RandomLoad


@asynccontextmanager
async def opened(
    filesystem: FakeFilesystem | None = None,
    index: FakeIndex | None = None,
    *,
    file_bytes: int = 16 * MIB,
    capacity_bytes: int = 64 * MIB,
) -> AsyncIterator[Ledger]:
    """Open a directory for a while."""
    ledger = await Ledger.start(
        filesystem or FakeFilesystem(), index, file_bytes=file_bytes, capacity_bytes=capacity_bytes
    )
    try:
        yield ledger
    finally:
        await ledger.stop()


def compacted_tags(ledger: Ledger) -> list[str]:
    """Name the records of the newest compacted file."""
    with JournalReader(ledger.filesystem, ledger.recovered.journal.sealed[0].path) as reader:
        assert reader.header.is_compacted
        groups = [group for group in reader.groups() if isinstance(group, JournalGroup)]
    return [tag_of(record.mutation) for group in groups for record in group.records]


def at_origin(index: RowSource) -> set[str]:
    """Name the uploads of ours that have to be ended at the origin some time."""
    return {opened.origin_upload_id for opened in read_origin_uploads(index)}


def state_without_index(ledger: Ledger) -> dict[str, object]:
    """Say what a power cut and the loss of the index leave."""
    disk = ledger.filesystem.crash_clone(random.Random(0), 0)
    recovered = recover_directory(disk, None)
    check_accounts(recovered.index)
    return dirty_state(disk, recovered.index)


# --- crashes -----------------------------------------------------------------------------------------------------------


class CrashWatch:
    """Recovers, after changing calls of the ledger's file system, what crashes there would leave, and compares."""

    def __init__(self, ledger: Ledger, disk: ObservedFilesystem, draws: random.Random, share: float) -> None:
        self._ledger = ledger
        self._disk = disk
        self._draws = draws
        self._share = share
        self.count = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at crashes in this block."""
        self._disk.after_change = self._crash
        try:
            yield
        finally:
            self._disk.after_change = None

    def step_unwatched(self, load: RandomLoad) -> None:
        """Take one step of a load, whose own crashes are not of interest."""
        watch, self._disk.after_change = self._disk.after_change, None
        load.step()
        self._disk.after_change = watch

    def _crash(self) -> None:
        if self._draws.random() >= self._share:
            return
        ledger, draws = self._ledger, self._draws
        disk = self._disk.crash_clone(draws, draws.choice([0, 0.5, 1]))
        batches = ledger.index.batches_after_checkpoint
        index = draws.choice([None, ledger.index.clone_at(draws.randint(0, batches))])

        recovered = recover_directory(disk, index)

        assert dirty_state(disk, recovered.index) == dirty_state(self._disk, ledger.index)
        assert at_origin(ledger.index) <= at_origin(recovered.index)
        check_accounts(recovered.index)
        self.count += 1


@dataclass
class Lives:
    """A directory that is loaded, compacted twice and crashed, some times over."""

    draws: random.Random
    steps: int
    share: float
    is_interleaved: bool
    disk: ObservedFilesystem = field(default_factory=ObservedFilesystem)
    index: FakeIndex | None = None
    crashes: int = 0

    async def live(self) -> None:
        """Live once, and recover what is left of it."""
        file_bytes = self.draws.choice([1500, 4000, 8000])
        async with opened(self.disk, self.index, file_bytes=file_bytes) as ledger:
            load = RandomLoad(ledger, self.draws)
            load.run(self.steps)
            await ledger.fill("clean", b"c" * 50)
            before = dirty_state(self.disk, ledger.index)
            await self._compact(ledger, load)
            assert self.is_interleaved or dirty_state(self.disk, ledger.index) == before
            load.run(self.steps // 3)
            check_accounts(ledger.index)
            after = dirty_state(self.disk, ledger.index)
        self._crash(ledger.index)
        again = self.disk.kill_clone()
        recovered = recover_directory(again, None if self.index is None else self.index.kill_clone())
        assert dirty_state(again, recovered.index) == after

    async def _compact(self, ledger: Ledger, load: RandomLoad) -> None:
        watch = CrashWatch(ledger, self.disk, self.draws, self.share)

        def between_reads() -> None:
            if self.is_interleaved and self.draws.random() < 0.05:
                watch.step_unwatched(load)

        compaction = ledger.compaction(HookedIndex(ledger.index, between_reads))
        with watch.watching():
            for _ in range(2):
                assert await compaction.compact()
                ledger.unlink_removed()
        self.crashes += watch.count

    def _crash(self, index: FakeIndex) -> None:
        survived = self.disk.crash_clone(self.draws, self.draws.choice([0, 0.5, 1]))
        self.index = self.draws.choice([None, index.checkpoint_clone(), index.kill_clone()])
        self.disk = ObservedFilesystem(seed=self.draws.getrandbits(32))
        self.disk._tree = survived._tree


async def live_through(seed: int, *, lives: int, steps: int, share: float, is_interleaved: bool) -> int:
    """Live some times; give how many crashes were looked at."""
    lived = Lives(random.Random(seed), steps, share, is_interleaved)
    for _ in range(lives):
        await lived.live()
    return lived.crashes


@pytest.mark.parametrize("seed", range(4))
async def test_dirty_state_when_a_compaction_crashes_at_any_call(seed: int) -> None:
    """Wherever the power goes, with the index or without, all that was acknowledged is there again."""
    crashes = await live_through(seed, lives=2, steps=40, share=0.5, is_interleaved=False)

    assert crashes > 10


@pytest.mark.parametrize("seed", range(10, 14))
async def test_dirty_state_when_mutations_come_between_the_reads(seed: int) -> None:
    """What is committed while the rows are being read is neither lost nor undone."""
    await live_through(seed, lives=2, steps=40, share=0.3, is_interleaved=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_interleaved", [False, True])
async def test_dirty_state_over_many_lives(*, is_interleaved: bool) -> None:
    """The same over many directories and longer lives."""
    for seed in range(100, 120 if os.environ.get("FOREBAY_TEST_LONG") else 108):
        await live_through(seed, lives=3, steps=80, share=0.3, is_interleaved=is_interleaved)


# --- what is live ------------------------------------------------------------------------------------------------------


async def test_compact_when_changes_were_flushed() -> None:
    """Only what is dirty stays, beside ids and epoch; the old files go."""
    async with opened() as ledger:
        ledger.flush_now(ledger.put_now("clean", b"c", is_tiny=False))
        ledger.put_now("dirty", b"d", is_tiny=False)
        ledger.delete_now("deleted")
        ledger.rotate_now()
        old = [file.path for file in ledger.recovered.journal.sealed]

        assert await ledger.compaction().compact()
        ledger.unlink_removed()

        assert compacted_tags(ledger) == ["ids_reserved", "epoch_started", "put", "tombstone"]
        names = [f"journal/{name}" for name in ledger.filesystem.list_directory("journal")]
        assert len(names) == 2
        assert not set(old) & set(names)


async def test_compact_when_a_change_was_tried_and_refused() -> None:
    """Its row as it is now stands in the file: the origin's upload id and the refusal are not lost with their records."""
    async with opened() as ledger:
        sequence = ledger.put_now("key", b"body", is_tiny=True)
        ledger.commit_now(Attempted(FORMAT, sequence, "origin-upload", (1, 2)))
        ledger.commit_now(Quarantined(FORMAT, sequence, "too large"))
        ledger.rotate_now()

        assert await ledger.compaction().compact()

        entry = state_without_index(ledger)[f"dirty {sequence}"]
        assert compacted_tags(ledger) == ["ids_reserved", "epoch_started", "put"]
        assert (entry.origin_upload_id, entry.origin_parts_done) == ("origin-upload", (1, 2))  # type: ignore[attr-defined]
        assert entry.quarantine_reason == "too large"  # type: ignore[attr-defined]


async def test_compact_when_an_upload_of_the_files_is_completed_afterwards() -> None:
    """The Complete, replayed, finds the upload open and its parts with their bytes."""
    async with opened() as ledger:
        upload_id = ledger.create_upload_now("key")
        ledger.part_now(upload_id, 1, b"first", is_tiny=True)
        ledger.part_now(upload_id, 2, b"second", is_tiny=False)
        ledger.part_now(upload_id, 3, b"not named", is_tiny=False)
        ledger.rotate_now()
        ledger.complete_now(upload_id, "key", [1, 2])
        before = dirty_state(ledger.filesystem, ledger.index)

        assert await ledger.compaction().compact()
        ledger.unlink_removed()

        assert state_without_index(ledger) == before
        assert before[f"object s3://{BUCKET}/key"][1] == b"firstsecond"  # type: ignore[index]


async def test_compact_when_an_upload_is_created_before_and_has_its_parts_afterwards() -> None:
    """Its completed row must not stand for its creation: the Complete would find it done and make no object."""
    async with opened() as ledger:
        upload_id = ledger.create_upload_now("key")
        ledger.rotate_now()
        ledger.part_now(upload_id, 1, b"first", is_tiny=True)
        ledger.complete_now(upload_id, "key", [1])
        before = dirty_state(ledger.filesystem, ledger.index)

        assert await ledger.compaction().compact()

        assert state_without_index(ledger) == before
        assert f"object s3://{BUCKET}/key" in before


@pytest.mark.parametrize("ending", ["overwritten", "flushed", "deleted", "forgotten"])
async def test_compact_when_a_completed_upload_is_history_already(ending: str) -> None:
    """The journal after S replays although nothing knows the parts' bytes any more."""
    async with opened() as ledger:
        upload_id = ledger.create_upload_now("key")
        ledger.part_now(upload_id, 1, b"first", is_tiny=True)
        ledger.part_now(upload_id, 1, b"again, longer", is_tiny=False)
        ledger.rotate_now()
        sequence = ledger.complete_now(upload_id, "key", [1])
        match ending:
            case "overwritten":
                ledger.put_now("key", b"new", is_tiny=True)
            case "flushed":
                ledger.flush_now(sequence)
            case "deleted":
                ledger.delete_now("key")
            case _:
                ledger.flush_now(sequence)
                ledger.abort_now(upload_id)
                ledger.commit_now(Forgotten(FORMAT, BUCKET, "key"))
        before = dirty_state(ledger.filesystem, ledger.index)

        assert await ledger.compaction().compact()

        assert state_without_index(ledger) == before


async def test_compact_when_an_upload_was_completed_at_the_origin() -> None:
    """Its answer to a repeated Complete stays; what was written of its parts goes, and their bytes with it."""
    async with opened() as ledger:
        upload_id = ledger.create_upload_now("key")
        ledger.part_now(upload_id, 1, b"first", is_tiny=True)
        ledger.commit_now(OriginUploadOpened(FORMAT, "ours", BUCKET, "key", upload_id=upload_id))
        ledger.commit_now(UploadPassed(FORMAT, upload_id, 5.0, "etag-1"))
        ledger.rotate_now()
        before = dirty_state(ledger.filesystem, ledger.index)

        assert await ledger.compaction().compact()

        assert compacted_tags(ledger) == ["ids_reserved", "epoch_started", "upload_created"]
        assert state_without_index(ledger) == before
        assert before[f"upload {upload_id}"].completed_etag == "etag-1"  # type: ignore[attr-defined]


async def test_compact_when_an_upload_was_completed() -> None:
    """The upload's answer to a repeated Complete stays, its parts' records go, its object is written as a put."""
    async with opened() as ledger:
        upload_id = ledger.create_upload_now("key")
        ledger.part_now(upload_id, 1, b"first", is_tiny=True)
        ledger.complete_now(upload_id, "key", [1])
        aborted_id = ledger.create_upload_now("other")
        ledger.part_now(aborted_id, 1, b"aborted", is_tiny=True)
        ledger.abort_now(aborted_id)
        ledger.rotate_now()
        before = dirty_state(ledger.filesystem, ledger.index)

        assert await ledger.compaction().compact()

        assert compacted_tags(ledger) == ["ids_reserved", "epoch_started", "upload_created", "put"]
        assert state_without_index(ledger) == before
        assert before[f"upload {upload_id}"].completed_at_s == 5.0  # type: ignore[attr-defined]


async def test_compact_when_uploads_are_open_at_the_origin() -> None:
    """Each stays known until it has ended there: one of an open upload, one of a change, one that is left over."""
    async with opened() as ledger:
        upload_id = ledger.create_upload_now("key")
        sequence = ledger.put_now("changed", b"old", is_tiny=True)
        for origin_id, owner in {"a": (upload_id, 0), "b": ("", sequence), "c": ("", sequence)}.items():
            ledger.commit_now(OriginUploadOpened(FORMAT, origin_id, BUCKET, "key", *owner))
        ledger.commit_now(OriginUploadEnded(FORMAT, "b"))
        ledger.put_now("changed", b"new", is_tiny=True)
        ledger.rotate_now()

        assert await ledger.compaction().compact()
        ledger.unlink_removed()

        recovered = recover_directory(ledger.filesystem.crash_clone(random.Random(0), 0), None)
        (upload,) = recovered.uploads
        assert at_origin(recovered.index) == {"a", "c"}
        assert upload.origin_upload_id == "a"
        assert recovered.named_origin_uploads == {"", "a"}


@pytest.mark.parametrize("has_ended", [False, True])
async def test_compact_when_an_upload_at_the_origin_is_left_over_afterwards(*, has_ended: bool) -> None:
    """What ends the client's upload after S finds the upload at the origin known, and what ends that one too takes it away."""
    async with opened() as ledger:
        upload_id = ledger.create_upload_now("key")
        ledger.commit_now(OriginUploadOpened(FORMAT, "theirs", BUCKET, "key", upload_id))
        ledger.rotate_now()
        ledger.abort_now(upload_id)
        if has_ended:
            ledger.commit_now(OriginUploadEnded(FORMAT, "theirs"))

        assert await ledger.compaction().compact()
        ledger.unlink_removed()

        recovered = recover_directory(ledger.filesystem.crash_clone(random.Random(0), 0), None)
        assert at_origin(recovered.index) == (set() if has_ended else {"theirs"})
        assert recovered.named_origin_uploads == frozenset()


async def test_compact_when_a_bucket_was_learnt_often() -> None:
    """The last word on each bucket stays; a bucket that is gone and a pointer that was moved leave nothing behind."""
    async with opened() as ledger:
        for asked_at_s in (1.0, 2.0):
            ledger.commit_now(FactsLearnt(FORMAT, BucketFacts(FORMAT, "here", True, asked_at_s)))
        ledger.commit_now(FactsLearnt(FORMAT, BucketFacts(FORMAT, "gone", True, 1.0)))
        ledger.commit_now(FactsLearnt(FORMAT, BucketFacts(FORMAT, "gone", False, 2.0)))
        ledger.commit_now(PointerSet(FORMAT, "here", "latest", "run-1", 1))
        ledger.commit_now(PointerSet(FORMAT, "here", "latest", "run-2", 2))
        ledger.rotate_now()

        assert await ledger.compaction().compact()

        assert compacted_tags(ledger) == ["ids_reserved", "epoch_started", "facts_learnt", "pointer_set"]
        facts = state_without_index(ledger)["facts here"]
        assert facts.asked_at_s == 2.0  # type: ignore[attr-defined]
        assert "facts gone" not in state_without_index(ledger)


async def test_compact_when_the_index_is_lost_afterwards() -> None:
    """No id returns and the epoch goes on."""
    async with opened() as ledger:
        version_id = ledger.recovered.ids.take_version_id()
        ledger.rotate_now()
        assert await ledger.compaction().compact()

        again = recover_directory(ledger.filesystem.crash_clone(random.Random(0), 0), None)

        assert again.epoch == ledger.recovered.epoch + 1
        assert again.ids.take_version_id() > version_id


async def test_compact_when_a_spilled_object_is_dirty() -> None:
    """More extents than stand in a record are written whole."""
    async with opened() as ledger:
        upload_id = ledger.create_upload_now("key")
        for number in range(1, 31):
            ledger.part_now(upload_id, number, b"%d" % number, is_tiny=number % 2 == 0)
        ledger.complete_now(upload_id, "key", list(range(1, 31)))
        ledger.rotate_now()
        before = dirty_state(ledger.filesystem, ledger.index)

        assert await ledger.compaction().compact()
        ledger.unlink_removed()

        assert dirty_state(ledger.filesystem, ledger.index) == before
        assert state_without_index(ledger) == before


async def test_compact_when_the_file_was_compacted_before() -> None:
    """A compacted file is compacted again like any other, alone or with later ones."""
    async with opened() as ledger:
        compaction = ledger.compaction()
        first = ledger.put_now("first", b"1", is_tiny=True)
        ledger.put_now("second", b"2", is_tiny=True)
        ledger.rotate_now()
        assert await compaction.compact()
        ledger.flush_now(first)

        assert await compaction.compact()

        assert compacted_tags(ledger) == ["ids_reserved", "epoch_started", "put"]
        assert len(ledger.recovered.journal.sealed) == 1
        assert state_without_index(ledger) == dirty_state(ledger.filesystem, ledger.index)


@pytest.mark.parametrize("mutation", [Flushed(FORMAT, 7, None, Validated()), Forgotten(FORMAT, "b", "k")])
def test_tag_of_reads_what_the_decoder_reads(mutation: Flushed | Forgotten) -> None:
    """The tag is read without decoding the rest."""
    encoded = encode(mutation)

    tag = tag_of(encoded)

    assert tag == type(decode_mutation(encoded)).__struct_config__.tag


# --- tiny bodies -------------------------------------------------------------------------------------------------------


async def test_compact_when_clean_bodies_lie_in_the_files() -> None:
    """They move, and the index that knows so is durable before the files go: the cache outlives a power cut."""
    async with opened() as ledger:
        ledger.flush_now(ledger.put_now("clean", b"cached", is_tiny=True))
        ledger.rotate_now()

        assert await ledger.compaction().compact()
        ledger.unlink_removed()
        disk = ledger.filesystem.crash_clone(random.Random(0), 1)
        recovered = recover_directory(disk, ledger.index.checkpoint_clone())

        value = recovered.index.get(Family.OBJECTS, keys.object_key(BUCKET, "clean"))
        assert value is not None
        assert read_body(disk, decode_object(value).extents) == b"cached"


async def test_compact_when_bodies_were_moved() -> None:
    """Rows of the old files are gone, of residents and of segments, in the index and in memory."""
    async with opened() as ledger:
        ledger.put_now("dirty", b"d", is_tiny=True)
        ledger.flush_now(ledger.put_now("clean", b"c", is_tiny=True))
        ledger.part_now(ledger.create_upload_now("key"), 1, b"part", is_tiny=True)
        old_id = ledger.recovered.journal.segment_id
        ledger.rotate_now()
        assert old_id in segment_rows(ledger.index)

        assert await ledger.compaction().compact()

        assert old_id not in segment_rows(ledger.index)
        assert old_id not in ledger.state.segments
        assert ledger.state.segments == segment_rows(ledger.index)
        check_accounts(ledger.index)


async def test_compact_when_a_reader_has_a_file_pinned() -> None:
    """The file goes when the reader has gone."""
    async with opened() as ledger:
        ledger.put_now("dirty", b"d", is_tiny=True)
        old_id, path = ledger.recovered.journal.segment_id, f"{ledger.recovered.journal.segment_id:016x}.log"
        ledger.rotate_now()
        pin = ledger.segments.pin([old_id])

        assert await ledger.compaction().compact()
        ledger.unlink_removed()
        while_pinned = ledger.filesystem.list_directory("journal")
        pin.release()
        ledger.unlink_removed()

        assert path in while_pinned
        assert path not in ledger.filesystem.list_directory("journal")


def damage_file(ledger: Ledger, segment_id: int, body: bytes) -> None:
    """Turn a body round where it lies."""
    path = f"journal/{segment_id:016x}.log"
    data = ledger.filesystem.contents(path)
    assert data.count(body) == 1
    ledger.filesystem.replace_contents(path, data.replace(body, body[::-1]))


async def test_compact_when_a_dirty_body_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is removed, since the file is the only copy; an alarm is given, and not again at each run."""
    async with opened() as ledger:
        ledger.put_now("key", b"precious", is_tiny=True)
        old = ledger.recovered.journal.segment_id
        ledger.rotate_now()
        damage_file(ledger, old, b"precious")
        compaction = ledger.compaction()

        results = [await compaction.run_if_due() for _ in range(REST_RUNS + 1)]

        assert not any(results)
        assert f"{old:016x}.log" in ledger.filesystem.list_directory("journal")
        critical = [line for line in caplog.records if line.levelno == logging.CRITICAL]
        assert len(critical) == 2
        assert not ledger.failures


async def test_compact_when_a_clean_body_cannot_be_read() -> None:
    """It is forgotten, and the rest is compacted."""
    async with opened() as ledger:
        ledger.flush_now(ledger.put_now("clean", b"replaceable", is_tiny=True))
        ledger.put_now("dirty", b"precious", is_tiny=True)
        ledger.rotate_now()
        ledger.filesystem.fail(Operation.PREAD, when=lambda call: call.length == len(b"replaceable"))

        assert await ledger.compaction().compact()

        value = ledger.index.get(Family.OBJECTS, keys.object_key(BUCKET, "clean"))
        assert value is not None
        assert decode_object(value).extents == ()
        check_accounts(ledger.index)
        assert state_without_index(ledger) == dirty_state(ledger.filesystem, ledger.index)


# --- failures ----------------------------------------------------------------------------------------------------------


async def loaded(ledger: Ledger) -> Compaction:
    """Put something into files that are sealed; give the compaction to come."""
    ledger.put_now("one", b"1", is_tiny=True)
    ledger.put_now("two", b"2", is_tiny=False)
    ledger.rotate_now()
    return ledger.compaction()


async def test_compact_when_there_is_no_room_for_the_bodies() -> None:
    """It is postponed, and goes through once reclaim has made room."""
    async with opened(capacity_bytes=MIB) as ledger:
        await ledger.fill("clean", b"c" * MIB)
        ledger.put_now("dirty", b"d", is_tiny=True)
        ledger.rotate_now()
        compaction = ledger.compaction()

        was_done = await compaction.compact()

        assert not was_done
        (full,) = ledger.segments.states()
        assert await ledger.applier.change(DropSegment(full.segment_id))
        assert ledger.segments.remove(full.segment_id)
        ledger.unlink_removed()
        assert await compaction.compact()
        assert state_without_index(ledger) == dirty_state(ledger.filesystem, ledger.index)


async def test_compact_when_the_disk_is_full_for_the_new_file() -> None:
    """It is postponed: the old files stay, and a later one does it."""
    async with opened() as ledger:
        compaction = await loaded(ledger)
        ledger.filesystem.fail(
            Operation.PWRITE, error_number=errno.ENOSPC, when=lambda call: call.path.endswith(".tmp")
        )

        was_done = await compaction.compact()
        state = state_without_index(ledger)

        assert not was_done
        assert state == dirty_state(ledger.filesystem, ledger.index)
        assert await compaction.compact()


@pytest.mark.parametrize("operation", [Operation.RENAME, Operation.SYNC_DIRECTORY])
async def test_compact_when_the_new_file_may_have_its_name_or_not(operation: Operation) -> None:
    """Nothing is removed, and no other compaction is begun in this process; either outcome recovers."""
    async with opened() as ledger:
        compaction = await loaded(ledger)
        sealed = list(ledger.recovered.journal.sealed)
        ledger.filesystem.fail(
            operation, when=lambda call: call.path.endswith(".tmp") or call.path == "journal"
        )

        with pytest.raises(UnknownOutcomeError):
            await compaction.compact()

        assert not await compaction.compact()
        assert ledger.recovered.journal.sealed == sealed
        ledger.put_now("three", b"3", is_tiny=True)
        for keep in (0.0, 0.5, 1.0):
            disk = ledger.filesystem.crash_clone(random.Random(1), keep)
            recovered = recover_directory(disk, None)
            assert dirty_state(disk, recovered.index) == dirty_state(ledger.filesystem, ledger.index)


async def test_compact_when_the_last_group_is_not_applied() -> None:
    """It waits: the rows would not know yet what the files say."""
    async with opened() as ledger:
        compaction = await loaded(ledger)
        applied, ledger.applier.applied_sequence = ledger.applier.applied_sequence, 1

        was_done = await compaction.compact()
        ledger.applier.applied_sequence = applied

        assert not was_done
        assert await compaction.compact()


async def test_compact_when_a_frame_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    """The files stay as they are, and the damage is told with its place."""
    async with opened() as ledger:
        compaction = await loaded(ledger)
        path = ledger.recovered.journal.sealed[0].path
        data = bytearray(ledger.filesystem.contents(path))
        data[-1] ^= 1
        ledger.filesystem.replace_contents(path, data)

        was_done = await compaction.compact()

        assert not was_done
        assert f"{path}: a frame with a wrong checksum at offset" in caplog.text


async def test_compact_when_the_index_has_lost_an_object() -> None:
    """A dirty change that the index does not hold whole is never compacted away."""
    async with opened() as ledger:
        compaction = await loaded(ledger)
        sealed = list(ledger.recovered.journal.sealed)
        ledger.index._tables[Family.OBJECTS].delete(keys.object_key(BUCKET, "two"))

        was_done = await compaction.compact()

        assert not was_done
        assert ledger.recovered.journal.sealed == sealed
        assert len(all_rows(ledger.index, Family.DIRTY)) == 2


async def test_compact_when_there_is_nothing_sealed() -> None:
    """Nothing is done."""
    async with opened() as ledger:
        assert not await ledger.compaction().compact()


async def test_compact_when_a_file_is_sealed_meanwhile() -> None:
    """The file stays in the journal's list behind the new one."""
    async with opened() as ledger:
        await loaded(ledger)
        commits = iter([lambda: ledger.put_now("late", b"3", is_tiny=True), ledger.rotate_now])
        in_use = ledger.recovered.journal.segment_id

        def seal() -> None:
            for commit in commits:
                commit()

        assert await ledger.compaction(HookedIndex(ledger.index, seal)).compact()

        compacted, later = ledger.recovered.journal.sealed
        assert later.segment_id == in_use
        assert compacted.last_sequence < later.last_sequence
        assert state_without_index(ledger) == dirty_state(ledger.filesystem, ledger.index)


async def test_compact_while_one_runs() -> None:
    """There is one at a time."""
    async with opened() as ledger:
        compaction = await loaded(ledger)

        async with asyncio.TaskGroup() as tasks:
            first, second = (tasks.create_task(compaction.compact()) for _ in range(2))

        assert (first.result(), second.result()) == (True, False)


def test_drop_file_rows_when_a_body_is_there() -> None:
    """A file that a row names keeps its rows."""
    index = FakeIndex()
    rows = Rows(index)
    rows.put(Family.RESIDENTS, keys.resident_key(7, 100), b"")

    assert not DropFileRows((7,))(rows)


# --- when it is due ----------------------------------------------------------------------------------------------------


async def test_run_if_due_when_the_files_are_short() -> None:
    """Short files are left alone."""
    async with opened() as ledger:
        await loaded(ledger)

        assert not await ledger.compaction(compact_bytes=1 << 20).run_if_due()
        assert not ledger.recovered.journal.is_full


async def test_run_if_due_when_the_file_in_use_makes_it_up() -> None:
    """The file in use is sealed by the next group, then compacted."""
    async with opened() as ledger:
        await loaded(ledger)
        for n in range(10):
            ledger.flush_now(ledger.put_now("key", b"%d" % n, is_tiny=True))
        sealed_bytes = sum(file.size_bytes for file in ledger.recovered.journal.sealed)
        compaction = ledger.compaction(compact_bytes=sealed_bytes + 1)

        results = [await compaction.run_if_due()]
        ledger.put_now("next", b"n", is_tiny=True)
        results.append(await compaction.run_if_due())

        assert results == [False, True]
        assert compacted_tags(ledger) == ["epoch_started", "put", "put", "ids_reserved"]


async def test_run_if_due_when_most_is_live() -> None:
    """Files that a compaction has just left, all live, are not written again; nor with a little more behind them."""
    async with opened() as ledger:
        for n in range(50):
            ledger.put_now(f"key-{n}", b"body", is_tiny=True)
        ledger.rotate_now()
        compaction = ledger.compaction(compact_bytes=1000)
        assert await compaction.run_if_due()
        ledger.put_now("one more", b"body", is_tiny=True)
        ledger.rotate_now()

        assert not await compaction.run_if_due()


async def test_run_if_due_when_what_was_live_has_died() -> None:
    """Once most of what a compaction left is flushed, another is due."""
    async with opened() as ledger:
        sequences = [ledger.put_now(f"key-{n}", b"body", is_tiny=True) for n in range(50)]
        ledger.rotate_now()
        compaction = ledger.compaction(compact_bytes=1000)
        assert await compaction.run_if_due()
        for sequence in sequences[:45]:
            ledger.flush_now(sequence)

        assert await compaction.run_if_due()
        assert compacted_tags(ledger).count("put") == 5


async def test_run_if_due_when_an_earlier_process_compacted() -> None:
    """A start does not write again what an earlier process left."""
    async with opened() as ledger:
        for n in range(50):
            ledger.put_now(f"key-{n}", b"body", is_tiny=True)
        ledger.rotate_now()
        assert await ledger.compaction().compact()
    disk = ledger.filesystem.kill_clone()

    async with opened(disk, ledger.index.kill_clone()) as again:
        assert not await again.compaction(compact_bytes=1000).run_if_due()
