import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from storage.commit import Receipt
from storage.errors import DiskFullError, NoSuchBucketError, OriginUnavailableError, UnknownOutcomeError
from storage.facts_table import REFRESH_RETRY_S, REFRESH_S, FactsTable
from storage.records import FORMAT, BucketFacts, FactsLearnt, Mutation
from storage.rows import Effects
from storage.state import State
from tests.fakes.set_clock import SetClock
from tests.fakes.writing import pause, until


class Source:
    """Answers `facts`, after `gate` is open; counts the questions."""

    def __init__(self, clock: SetClock) -> None:
        self.clock = clock
        self.asked = 0
        self.facts: dict[str, object] = {"exists": True}
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, bucket: str) -> BucketFacts:
        self.asked += 1
        answer = BucketFacts(FORMAT, bucket, asked_at_s=self.clock.wall_s(), **self.facts)  # type: ignore[arg-type]
        error = self.error
        await self.gate.wait()
        if error is not None:
            raise error
        return answer


class Door:
    """Commits into the state in the order of the calls, once `gate` is open."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.committed: list[BucketFacts] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def commit(self, mutation: Mutation, *, body: bytes = b"") -> Receipt:
        assert isinstance(mutation, FactsLearnt)
        assert not body
        if self.error is not None:
            raise self.error
        self.committed.append(mutation.facts)
        await pause()
        await self.gate.wait()
        self.state.absorb(Effects(facts=[mutation.facts]))
        return Receipt(len(self.committed))


class Bench:
    def __init__(self) -> None:
        self.state, self.clock = State(), SetClock()
        self.source, self.door = Source(self.clock), Door(self.state)
        self.table = FactsTable(self.state, self.source, self.door, self.clock)  # type: ignore[arg-type]  # doubles of the ports


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    """Run a table over doubles."""
    made = Bench()
    yield made
    await made.table.close()


async def test_facts_are_asked_once_when_many_writes_want_them() -> None:
    """A hundred writes into a bucket that nobody knows cost one question and one commit."""
    async with bench() as b:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(b.table.facts("b")) for _ in range(100)]

        assert {task.result().exists for task in tasks} == {True}
        assert (b.source.asked, len(b.door.committed)) == (1, 1)


async def test_missing_bucket_is_told_each_time_and_not_kept() -> None:
    """A bucket that the origin does not have may be made by somebody else in the next moment."""
    async with bench() as b:
        b.source.facts = {"exists": False}
        with pytest.raises(NoSuchBucketError):
            await b.table.facts("b")

        b.source.facts = {"exists": True}
        assert (await b.table.facts("b")).exists
        assert b.source.asked == 2


async def test_facts_are_refreshed_in_the_background_when_they_are_old() -> None:
    """Old facts decide while one refresh is under way, however many writes use them; then the new ones do."""
    async with bench() as b:
        await b.table.facts("b")
        b.clock.now_s += REFRESH_S + 1
        b.source.facts = {"exists": True, "is_versioned": True}
        b.source.gate.clear()

        used = [await b.table.facts("b") for _ in range(50)]
        await pause()
        b.source.gate.set()
        await until(lambda: b.state.facts["b"].is_versioned)

        assert {facts.is_versioned for facts in used} == {False}
        assert b.source.asked == 2
        assert (await b.table.facts("b")).is_versioned


async def test_failed_refresh_keeps_the_old_facts_and_is_not_repeated_at_once() -> None:
    """A failing origin is asked again after a while, not by every write."""
    async with bench() as b:
        await b.table.facts("b")
        b.clock.now_s += REFRESH_S + 1
        b.source.error = OriginUnavailableError("", status=0, code="Timeout")

        for _ in range(10):
            assert (await b.table.facts("b")).exists
            await pause(0.001)
        assert b.source.asked == 2

        b.clock.now_s += REFRESH_RETRY_S + 1
        await b.table.facts("b")
        await until(lambda: b.source.asked == 3)


async def test_dropped_facts_are_asked_anew_and_old_answers_are_not_kept() -> None:
    """What was asked before a drop answers whoever asked then; whoever comes after the drop waits for a newer answer."""
    async with bench() as b:
        b.source.gate.clear()
        early = asyncio.get_running_loop().create_task(b.table.facts("b"))
        await until(lambda: b.source.asked == 1)

        b.table.drop("b")
        b.source.facts = {"exists": True, "is_versioned": True}
        late = asyncio.get_running_loop().create_task(b.table.facts("b"))
        await until(lambda: b.source.asked == 2)
        b.source.gate.set()

        assert not (await early).is_versioned
        assert (await late).is_versioned
        assert [facts.is_versioned for facts in b.door.committed] == [True]
        assert b.state.facts["b"].is_versioned


async def test_bucket_that_is_gone_is_forgotten_when_its_facts_are_dropped() -> None:
    """After a drop, a bucket that does not exist any more refuses writes at once."""
    async with bench() as b:
        await b.table.facts("b")
        b.source.facts = {"exists": False}
        b.table.drop("b")

        with pytest.raises(NoSuchBucketError):
            await b.table.facts("b")
        assert "b" not in b.state.facts


async def test_mark_of_other_etags_survives_a_refresh() -> None:
    """Once the origin's ETags turned out not to be MD5, a refresh does not forget it."""
    async with bench() as b:
        await b.table.facts("b")
        await b.table.mark_etags_not_md5("b")
        b.clock.now_s += REFRESH_S + 1

        await b.table.facts("b")
        await until(lambda: b.source.asked == 2 and len(b.door.committed) == 3)

        assert not b.state.facts["b"].etag_is_md5


async def test_writes_wait_while_a_bucket_is_closed_and_ask_anew_behind_it() -> None:
    """Whoever wants a bucket that is being deleted learns of it when that has ended."""
    async with bench() as b:
        drops, known = b.table.drops("b"), await b.table.facts("b")
        assert b.table.since("b", drops, known) == known
        async with b.table.closed("b") as closing:
            waiting = asyncio.get_running_loop().create_task(b.table.facts("b"))
            await pause(0.001)
            assert b.table.since("b", drops, known) is None
            assert not waiting.done()
            closing.is_asked = True
            b.source.facts = {"exists": False}

        with pytest.raises(NoSuchBucketError):
            await waiting
        assert b.table.since("b", drops, known) is None


async def test_facts_hold_again_when_a_deletion_did_not_come_to_it() -> None:
    """A DeleteBucket that is refused before the origin was asked costs no question, so that writes go on without the origin."""
    async with bench() as b:
        known = await b.table.facts("b")

        with pytest.raises(ValueError, match="not empty"):
            async with b.table.closed("b"):
                raise ValueError("not empty")

        assert await b.table.facts("b") == known
        assert b.source.asked == 1


async def test_cancelled_asker_hands_the_question_on() -> None:
    """The first asker's client going away does not cost the others their answer."""
    async with bench() as b:
        b.source.gate.clear()
        loop = asyncio.get_running_loop()
        first, second = loop.create_task(b.table.facts("b")), loop.create_task(b.table.facts("b"))
        await until(lambda: b.source.asked == 1)

        first.cancel()
        await asyncio.wait([first])
        b.source.gate.set()

        assert (await second).exists
        assert b.source.asked == 1


async def test_a_doubt_outlives_all_that_is_learnt_of_the_bucket() -> None:
    """Questions, closings and other doubts keep the latest time; what was not known before it is asked for."""
    async with bench() as b:
        await b.table.doubt("b", 500.0)
        await b.table.doubt("b", 400.0)
        assert b.table.doubted_at_s("b") == 500.0
        assert b.table.doubted_at_s("other") == 0.0

        assert (await b.table.facts("b")).exists
        assert b.source.asked == 1
        async with b.table.closed("b") as closing:
            during = b.table.doubted_at_s("b")
            closing.is_asked = True
        await b.table.facts("b")

        assert (during, b.table.doubted_at_s("b"), b.source.asked) == (500.0, 500.0, 2)


async def test_a_doubted_bucket_is_asked_for_after_a_restart() -> None:
    """What a kill in the middle of a relayed write leaves are facts that nobody takes for known."""
    async with bench() as b:
        await b.table.facts("b")
        async with b.table.closed("b"):
            await b.table.doubt("b", 500.0)
            left = b.door.committed[-1]

        assert (left.asked_at_s, left.doubted_at_s) == (0.0, 500.0)


async def test_a_doubt_outlives_an_answer_that_is_committed_beside_it() -> None:
    """A question that was under way when the doubt was raised is answered before that is committed."""
    async with bench() as b:
        await b.table.facts("b")
        b.clock.now_s += REFRESH_S + 1
        b.source.gate.clear()
        await b.table.facts("b")
        await until(lambda: b.source.asked == 2)

        b.door.gate.clear()
        doubt = asyncio.get_running_loop().create_task(b.table.doubt("b", 500.0))
        await until(lambda: len(b.door.committed) == 2)
        b.source.gate.set()
        await until(lambda: len(b.door.committed) == 3)
        before = b.table.doubted_at_s("b")
        b.door.gate.set()
        await doubt
        await until(lambda: b.state.facts["b"].asked_at_s > 0.0)

        assert (before, b.state.facts["b"].doubted_at_s) == (500.0, 500.0)


async def test_a_doubt_outlives_a_mark_that_is_committed_beside_it() -> None:
    """That the bucket's ETags are no MD5 is learnt while the doubt is on its way."""
    async with bench() as b:
        await b.table.facts("b")
        b.door.gate.clear()
        loop = asyncio.get_running_loop()
        doubt = loop.create_task(b.table.doubt("b", 500.0))
        mark = loop.create_task(b.table.mark_etags_not_md5("b"))
        await until(lambda: len(b.door.committed) == 3)
        b.door.gate.set()
        await asyncio.wait((doubt, mark))

        assert b.state.facts["b"].doubted_at_s == 500.0


async def test_a_doubt_outlives_a_deletion_that_came_to_nothing() -> None:
    """What was known before it holds again, with the doubt."""
    async with bench() as b:
        await b.table.facts("b")
        async with b.table.closed("b"):
            await b.table.doubt("b", 500.0)

        assert b.state.facts["b"].doubted_at_s == 500.0


async def test_a_doubt_outlives_a_bucket_that_was_away() -> None:
    """An endpoint that does not know the bucket for a moment gives it back with what is cached of it."""
    async with bench() as b:
        await b.table.doubt("b", 500.0)
        b.source.facts = {"exists": False}
        with pytest.raises(NoSuchBucketError):
            await b.table.facts("b")
        with pytest.raises(NoSuchBucketError):
            await b.table.facts("b")

        b.source.facts = {"exists": True}
        await b.table.facts("b")

        assert (b.source.asked, b.state.facts["b"].doubted_at_s) == (3, 500.0)


async def test_a_doubt_that_the_disk_refuses_holds_until_a_restart() -> None:
    """What it is about has happened at the origin."""
    async with bench() as b:
        b.door.error = DiskFullError("")
        with pytest.raises(DiskFullError):
            await b.table.doubt("b", 500.0)

        assert b.table.doubted_at_s("b") == 500.0


async def test_facts_that_were_dropped_during_a_deletion_are_asked_for_when_it_came_to_nothing() -> None:
    """Another operation may have changed the bucket meanwhile."""
    async with bench() as b:
        await b.table.facts("b")

        async with b.table.closed("b"):
            b.table.drop("b")
        await b.table.facts("b")

        assert b.source.asked == 2


async def test_what_is_doubted_or_dropped_goes_over_to_the_next_life() -> None:
    """A disk that fails under the doubt's commit ends the life, and what the doubt is about has happened."""
    async with bench() as b, bench() as after:
        await after.table.facts("b")
        await after.table.facts("c")
        b.door.error = UnknownOutcomeError("")
        b.table.drop("c")
        with pytest.raises(UnknownOutcomeError):
            await b.table.doubt("b", 500.0)

        after.table.take_over(b.table)
        for bucket in ("b", "c"):
            await after.table.facts(bucket)

        assert (after.source.asked, after.table.doubted_at_s("b")) == (4, 500.0)
        assert after.state.facts["b"].doubted_at_s == 500.0
