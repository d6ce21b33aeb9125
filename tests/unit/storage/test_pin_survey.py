"""What rows and policies say is pinned, told to the eviction policy: after a start, a reload, and before a segment goes."""

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import pytest

from storage.eviction import EvictionPolicy
from storage.pin_survey import PinSurvey
from storage.policy import Policy, PolicyTable, RetentionPriority
from storage.rows import Rows
from storage.types import KIB, MIB
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.open_directory import DirectoryWorkers, IndexHome, OpenDirectory, open_directory
from tests.fakes.records import BUCKET
from tests.fakes.workers import InlineWorkers

P = ParamSpec("P")
T = TypeVar("T")

SIZE = 256 * KIB
NOTHING = PolicyTable()
PINS = PolicyTable((Policy(BUCKET, "pinned/", priority=RetentionPriority.PINNED),))


class Tables:
    """The table in force."""

    def __init__(self, table: PolicyTable = NOTHING) -> None:
        self.table = table

    def __call__(self) -> PolicyTable:
        """Give it."""
        return self.table


def eviction_of(directory: OpenDirectory) -> EvictionPolicy:
    """Give the policy that is told."""
    return directory.reclaim._parts.policy


def survey_of(directory: OpenDirectory) -> PinSurvey:
    """Give the survey."""
    return directory.reclaim._parts.pins


def pinned(directory: OpenDirectory) -> int:
    """Count what is pinned."""
    return sum(eviction_of(directory).pinned_in(one) for one in directory.state.segments)


async def fill_four(directory: OpenDirectory) -> None:
    """Cache two objects of either prefix."""
    for number in range(2):
        await directory.fill(f"pinned/{number}", bytes(SIZE))
        await directory.fill(f"other/{number}", bytes(SIZE))


def place(directory: OpenDirectory, key: str) -> int:
    """Say in which segment an object begins."""
    record = Rows(directory.index).object(BUCKET, key)
    assert record is not None
    return Rows(directory.index).extents_of(record)[0].location.segment_id


async def test_what_is_placed_is_pinned_without_being_looked_up() -> None:
    """Fills, writes and what is completed of parts are known as they come; what is overwritten or deleted is counted no more."""
    async with open_directory(FakeFilesystem(), policies=Tables(PINS)) as directory:
        await fill_four(directory)
        assert pinned(directory) == 2 * SIZE

        await directory.put("pinned/0", bytes(2 * SIZE))
        assert pinned(directory) == 3 * SIZE
        await directory.delete("pinned/1")
        assert pinned(directory) == 2 * SIZE
        upload = await directory.create_upload("pinned/big")
        await directory.put_part(upload, 1, bytes(5 * SIZE))
        assert pinned(directory) == 2 * SIZE
        await directory.complete(upload, "pinned/big", [1])
        assert pinned(directory) == 7 * SIZE
        await directory.forget("other/0")
        assert pinned(directory) == 7 * SIZE


async def test_what_is_cached_is_pinned_and_unpinned_by_an_exchange_of_policies() -> None:
    """The turn after it looks all segments up; a turn without an exchange looks up none, and where nothing pins none is ever."""
    tables = Tables()
    async with open_directory(FakeFilesystem(), policies=tables) as directory:
        await fill_four(directory)
        await survey_of(directory).turn()
        assert (pinned(directory), survey_of(directory).due_count) == (0, 0)

        tables.table = PINS
        await survey_of(directory).turn()
        assert pinned(directory) == 2 * SIZE

        everything = PolicyTable(default=Policy(priority=RetentionPriority.PINNED))
        tables.table = everything
        await survey_of(directory).turn()
        assert pinned(directory) == 4 * SIZE

        tables.table = NOTHING
        await survey_of(directory).turn()
        assert pinned(directory) == 0


async def test_what_was_pinned_is_so_again_after_a_start() -> None:
    """The rows say what is here, and the policies what of it stays."""
    disk, home = FakeFilesystem(), IndexHome()
    async with open_directory(disk, home, policies=Tables(PINS)) as directory:
        await fill_four(directory)
        await directory.stop()

    async with open_directory(disk, home, policies=Tables(PINS)) as directory:
        assert pinned(directory) == 0
        await survey_of(directory).turn()
        assert pinned(directory) == 2 * SIZE


async def test_a_segment_is_looked_up_before_it_goes() -> None:
    """A start or an exchange just before costs no pin; told is whether that changed anything, so that another may be chosen."""
    tables = Tables()
    async with open_directory(FakeFilesystem(), policies=tables) as directory:
        await fill_four(directory)
        segment_id = place(directory, "pinned/0")
        assert not await survey_of(directory).before_it_goes(segment_id)

        tables.table = PINS
        assert await survey_of(directory).before_it_goes(segment_id)
        assert not await survey_of(directory).before_it_goes(segment_id)
        assert eviction_of(directory).pinned_in(segment_id) > 0

        tables.table = NOTHING
        assert await survey_of(directory).before_it_goes(segment_id)
        assert pinned(directory) == 0


async def test_an_exchange_of_one_pin_for_another_is_news() -> None:
    """As many bytes of the segment are pinned as before, but a victim that was chosen before would keep the wrong ones."""
    tables = Tables(PINS)
    async with open_directory(FakeFilesystem(), policies=tables) as directory:
        for number in range(2):
            await directory.put(f"pinned/{number}", bytes(SIZE))
            await directory.put(f"other/{number}", bytes(SIZE))
        segment_id = place(directory, "pinned/0")
        assert place(directory, "other/1") == segment_id
        assert not await survey_of(directory).before_it_goes(segment_id)

        tables.table = PolicyTable((Policy(BUCKET, "other/", priority=RetentionPriority.PINNED),))

        assert await survey_of(directory).before_it_goes(segment_id)
        assert not await survey_of(directory).before_it_goes(segment_id)
        assert pinned(directory) == 2 * SIZE


async def test_many_extents_are_told_of_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extents longer than a grain, and more of them than one batch has, are all told of and none is unpinned by the next batch."""
    monkeypatch.setattr("storage.pin_survey.BATCH_ROWS", 3)
    tables = Tables()
    async with open_directory(FakeFilesystem(), segment_bytes=8 * MIB, policies=tables) as directory:
        for number in range(10):
            await directory.fill(f"pinned/{number}", bytes(MIB + 512 * KIB))
        tables.table = PINS

        for _ in range(2):
            survey_of(directory)._due = set(directory.state.segments)
            await survey_of(directory).turn()
            assert pinned(directory) == 10 * (MIB + 512 * KIB)


class Interrupted(InlineWorkers):
    """Lets something happen once, between the reading of rows and what is made of it."""

    def __init__(self) -> None:
        self.happens: Callable[[], Awaitable[object]] | None = None
        self.has_happened = 0

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the work, then what is to happen."""
        result = await super().run(call, *args, **kwargs)
        happens, self.happens = self.happens, None
        if happens is not None:
            self.has_happened += 1
            await happens()
        return result


async def test_a_segment_that_changes_while_it_is_read_is_read_again() -> None:
    """What was deleted between the reading of a row and its telling is not pinned by it."""
    tables, pool = Tables(), Interrupted()
    workers = DirectoryWorkers(pool=pool)
    async with open_directory(FakeFilesystem(), policies=tables, workers=workers) as directory:
        await fill_four(directory)
        tables.table = PINS
        pool.happens = lambda: directory.delete("pinned/0")

        await survey_of(directory).turn()

        assert pinned(directory) == SIZE


async def test_a_segment_that_never_holds_still_is_left_for_a_later_turn() -> None:
    """Nothing wrong is told of it, and no turn goes on for ever."""
    tables, pool = Tables(), Interrupted()
    workers = DirectoryWorkers(pool=pool)
    async with open_directory(
        FakeFilesystem(), segment_bytes=8 * MIB, policies=tables, workers=workers
    ) as directory:
        await fill_four(directory)
        tables.table = PINS

        async def change() -> None:
            await directory.fill(f"other/new-{pool.has_happened}", bytes(KIB))
            pool.happens = change

        pool.happens = change
        survey = survey_of(directory)
        await survey.turn()

        assert (pinned(directory), survey.due_count) == (0, 1)
        pool.happens = None
        await survey.turn()
        assert (pinned(directory), survey.due_count) == (2 * SIZE, 0)
