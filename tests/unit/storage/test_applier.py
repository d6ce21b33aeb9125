"""The one writer of the index: order, effects, failures, and what a cancelled caller leaves."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from storage.applier import Applier
from storage.cached import ForgetClean, StoreVersion
from storage.errors import DamagedError, EngineClosedError, UnknownOutcomeError
from storage.family import Family
from storage.records import ObjectState
from storage.rows import APPLIED_SEQUENCE, Effects, Rows
from storage.workers import ThreadWorkers
from tests.fakes.index import FakeIndex
from tests.fakes.records import BUCKET, put, record, tombstone
from tests.fakes.tasks import start, turns
from tests.fakes.workers import InlineWorkers


class Told:
    """Remembers effects and failures."""

    def __init__(self) -> None:
        self.effects: list[Effects] = []
        self.failures: list[str] = []


@pytest.fixture
def index() -> FakeIndex:
    """Give an empty index."""
    return FakeIndex()


@pytest.fixture
def told() -> Told:
    """Give an ear."""
    return Told()


@pytest.fixture
def applier(index: FakeIndex, told: Told) -> Applier:
    """Give an applier that works inline."""
    return Applier(index, InlineWorkers(), told.effects.append, on_failure=told.failures.append)


@pytest.fixture
def thread() -> Iterator[ThreadWorkers]:
    """Give an index thread."""
    workers = ThreadWorkers("index", 1)
    yield workers
    workers.close()


CLEAN = StoreVersion(BUCKET, "clean", record(7, state=ObjectState.CLEAN), 0)


async def test_apply_group_when_written(applier: Applier, index: FakeIndex, told: Told) -> None:
    """A group is visible, told and counted on return, and the index knows how far it is."""
    await applier.apply_group([(1, tombstone("a", sequence=1)), (2, put("b", record(7), sequence=2))])

    assert Rows(index).object(BUCKET, "b") == record(7)
    assert index.get(Family.META, APPLIED_SEQUENCE) == (2).to_bytes(8)
    assert applier.applied_sequence == 2
    assert [entry.sequence for entry in told.effects[0].dirty_added] == [1, 2]


async def test_apply_group_when_out_of_order(applier: Applier) -> None:
    """A group that was applied already is not applied again."""
    await applier.apply_group([(2, tombstone("a", sequence=2))])

    with pytest.raises(AssertionError, match="group 2 after 2"):
        await applier.apply_group([(2, tombstone("a", sequence=2))])


async def test_change_when_written(applier: Applier, index: FakeIndex, told: Told) -> None:
    """A change to clean rows is visible and told, and does not move the sequence."""
    assert await applier.change(CLEAN)

    assert Rows(index).object(BUCKET, "clean") is not None
    assert index.get(Family.META, APPLIED_SEQUENCE) is None
    assert applier.applied_sequence == 0
    assert len(told.effects) == 1


async def test_change_when_nothing_is_to_be_written(applier: Applier, index: FakeIndex) -> None:
    """A change that finds nothing to do costs no write."""
    await applier.change(ForgetClean(BUCKET, "unknown"))

    assert index.writes_total == 0


async def test_change_when_caller_goes_away(index: FakeIndex, told: Told, thread: ThreadWorkers) -> None:
    """A change whose caller is cancelled is carried out, and the loop hears of it."""
    applier, release = Applier(index, thread, told.effects.append), threading.Event()
    holding = start(thread.run(release.wait, 10))
    changing = start(applier.change(CLEAN))
    await turns(3)

    changing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await changing
    release.set()
    await applier.end_changes()
    told_at_end = len(told.effects)
    await holding

    assert Rows(index).object(BUCKET, "clean") is not None
    assert told_at_end == 1


async def test_change_when_groups_are_between(index: FakeIndex, told: Told, thread: ThreadWorkers) -> None:
    """What is asked for first is done first, and told in that order."""
    applier = Applier(index, thread, told.effects.append)

    changing = start(applier.change(CLEAN))
    await turns(2)
    await applier.apply_group([(1, put("clean", record(9), sequence=1))])
    is_kept = await changing

    assert is_kept
    assert [len(effects.dirty_added) for effects in told.effects] == [0, 1]
    assert Rows(index).object(BUCKET, "clean") == record(9)


@pytest.mark.parametrize("what", ["group", "change", "checkpoint"])
async def test_applier_when_index_fails(applier: Applier, index: FakeIndex, told: Told, what: str) -> None:
    """Whatever write fails, its outcome is unknown, it is told once, and nothing more is written."""
    index.fail_write()
    index.fail_checkpoint()
    calls = {
        "group": lambda: applier.apply_group([(1, tombstone("a", sequence=1))]),
        "change": lambda: applier.change(CLEAN),
        "checkpoint": applier.checkpoint,
    }

    with pytest.raises(UnknownOutcomeError) as failed:
        await calls[what]()

    step = "sync" if what == "checkpoint" else "write"
    assert str(failed.value) == f"index {step} failed: on command"
    for call in calls.values():
        with pytest.raises(UnknownOutcomeError):
            await call()
    assert told.failures == [applier.failure]
    assert index.writes_total == index.checkpoints_total == 0
    assert applier.applied_sequence == applier.durable_sequence == 0


class DamagedIndex(FakeIndex):
    """An index with a row that cannot be read."""

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Read a row."""
        if family is Family.OBJECTS:
            raise DamagedError("index row cannot be read")
        return super().get(family, key)


async def test_applier_when_row_cannot_be_read(told: Told) -> None:
    """A change that cannot read its row wrote nothing; a journaled group that cannot is an unknown outcome."""
    applier = Applier(DamagedIndex(), InlineWorkers(), told.effects.append, on_failure=told.failures.append)

    with pytest.raises(DamagedError):
        await applier.change(ForgetClean(BUCKET, "key"))
    failure_before = applier.failure
    with pytest.raises(UnknownOutcomeError):
        await applier.apply_group([(1, tombstone("a", sequence=1))])

    assert failure_before == ""
    assert len(told.failures) == 1


async def test_checkpoint_when_groups_were_applied(applier: Applier, index: FakeIndex) -> None:
    """A checkpoint says up to which sequence the index needs the journal no more."""
    await applier.apply_group([(1, tombstone("a", sequence=1)), (2, tombstone("b", sequence=2))])

    assert await applier.checkpoint() == 2

    assert applier.durable_sequence == 2
    assert Rows(index.checkpoint_clone()).overlay(BUCKET, "b") is not None


async def test_end_changes_when_called(applier: Applier) -> None:
    """Afterwards clean rows stay as they are; groups and checkpoints go on until the end."""
    await applier.end_changes()

    with pytest.raises(EngineClosedError):
        await applier.change(CLEAN)
    with pytest.raises(EngineClosedError):
        applier.check_open()
    await applier.apply_group([(1, tombstone("a", sequence=1))])
    assert await applier.checkpoint() == 1
