"""KeyQueue: the table of who waits for whom, bounds, cancellation, and a model."""

import asyncio
import itertools

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from storage.errors import OverloadedError
from storage.keyqueue import KeyQueue, Place, Turn
from storage.types import ObjectName

K, OTHER = ObjectName("b", "k"), ObjectName("b", "other")


async def settle() -> None:
    """Let all that can run do so."""
    loop = asyncio.get_running_loop()
    for _ in range(10):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


class Worker:
    """A task that takes a turn and keeps it until told to leave."""

    def __init__(self, queue: KeyQueue, kind: Turn, name: ObjectName = K) -> None:
        self.leave = asyncio.Event()
        self.place: Place | None = None
        self.task = asyncio.get_running_loop().create_task(self._work(queue, kind, name))

    async def _work(self, queue: KeyQueue, kind: Turn, name: ObjectName) -> None:
        async with queue.turn(name, kind) as place:
            self.place = place
            await self.leave.wait()

    def has_turn(self) -> bool:
        return self.place is not None

    async def end(self) -> None:
        self.leave.set()
        await settle()


async def work(queue: KeyQueue, kind: Turn, name: ObjectName = K) -> Worker:
    """Start a worker and let it get as far as it can."""
    worker = Worker(queue, kind, name)
    await settle()
    return worker


@pytest.mark.parametrize(
    ("behind", "ahead", "waits"),
    [
        (Turn.WRITE_BACK, Turn.WRITE_BACK, True),
        (Turn.WRITE_BACK, Turn.FLUSH, False),
        (Turn.WRITE_BACK, Turn.THROUGH, True),
        (Turn.FLUSH, Turn.WRITE_BACK, True),
        (Turn.FLUSH, Turn.FLUSH, True),
        (Turn.FLUSH, Turn.THROUGH, True),
        (Turn.THROUGH, Turn.WRITE_BACK, True),
        (Turn.THROUGH, Turn.FLUSH, True),
        (Turn.THROUGH, Turn.THROUGH, True),
    ],
)
async def test_turn_waits_by_the_table_when_another_runs(behind: Turn, ahead: Turn, waits: bool) -> None:
    """Each pair of kinds: the one behind waits or passes, and has its turn when the one ahead has left."""
    queue = KeyQueue()
    first = await work(queue, ahead)

    second = await work(queue, behind)

    assert (first.has_turn(), second.has_turn()) == (True, not waits)
    await first.end()
    assert second.has_turn()
    await second.end()
    assert len(queue) == 0


async def test_write_back_passes_a_waiting_flush_when_only_flushes_are_ahead() -> None:
    """A write-back waits for the passed-through write ahead of it, not for the flush between them."""
    queue = KeyQueue()
    through = await work(queue, Turn.THROUGH)
    flush = await work(queue, Turn.FLUSH)
    write = await work(queue, Turn.WRITE_BACK)
    assert (flush.has_turn(), write.has_turn()) == (False, False)

    await through.end()

    assert (flush.has_turn(), write.has_turn()) == (True, True)
    await flush.end()
    await write.end()


async def test_turns_come_in_order_when_all_are_of_one_kind() -> None:
    """First come, first served."""
    queue = KeyQueue()
    workers = [await work(queue, Turn.WRITE_BACK) for _ in range(4)]
    turns = []

    for worker in workers:
        turns.append([w.has_turn() for w in workers])
        await worker.end()

    assert [sum(turn) for turn in turns] == [1, 2, 3, 4]


async def test_keys_do_not_wait_for_each_other_when_they_differ() -> None:
    """Each key has its own queue."""
    queue = KeyQueue()
    one, other = await work(queue, Turn.THROUGH), await work(queue, Turn.THROUGH, OTHER)

    assert (one.has_turn(), other.has_turn()) == (True, True)
    assert repr(queue) == "<KeyQueue: 2 keys, 2 running, 0 waiting>"
    assert not queue.is_idle(K)
    await one.end()
    await other.end()
    assert queue.is_idle(K)


async def test_turn_is_refused_when_too_many_wait() -> None:
    """The bound is of one key; a flush is never refused, and a place that was refused is not kept."""
    queue = KeyQueue(waiting_max=2)
    workers = [await work(queue, Turn.WRITE_BACK) for _ in range(3)]

    refused = await work(queue, Turn.THROUGH)

    with pytest.raises(OverloadedError):
        await refused.task
    flush = await work(queue, Turn.FLUSH)
    assert not flush.task.done()
    for worker in (*workers, flush):
        await worker.end()
    assert len(queue) == 0


async def test_others_go_on_when_one_who_waits_is_cancelled() -> None:
    """Its place is given up, and those behind move up."""
    queue = KeyQueue()
    flush = await work(queue, Turn.FLUSH)
    through = await work(queue, Turn.THROUGH)
    write = await work(queue, Turn.WRITE_BACK)
    assert not write.has_turn()

    through.task.cancel()
    await settle()

    assert write.has_turn()
    await write.end()
    await flush.end()
    assert len(queue) == 0


async def test_turn_is_given_back_when_the_waiter_is_cancelled_as_it_comes() -> None:
    """A turn granted in the step in which its owner is cancelled is not lost."""
    queue = KeyQueue()
    first = Place(queue, K, Turn.WRITE_BACK)
    queue.take(first)
    second, third = await work(queue, Turn.WRITE_BACK), await work(queue, Turn.WRITE_BACK)

    queue.leave(first)
    second.task.cancel()
    await settle()

    assert (second.has_turn(), third.has_turn()) == (False, True)
    await third.end()
    assert len(queue) == 0


async def test_turn_is_given_back_when_the_work_fails() -> None:
    """An exception in the turn ends it."""
    queue = KeyQueue()

    with pytest.raises(RuntimeError):
        async with queue.turn(K, Turn.THROUGH):
            raise RuntimeError

    assert queue.is_idle(K)


async def test_writes_have_left_when_those_before_have_and_not_those_that_came_later() -> None:
    """Whoever works under a prefix or waits there is waited for; flushes, other keys and whoever comes later are not."""
    queue = KeyQueue()
    writes = [Worker(queue, Turn.THROUGH), Worker(queue, Turn.WRITE_BACK)]
    others = [Worker(queue, Turn.FLUSH, ObjectName("b", "k2")), Worker(queue, Turn.THROUGH, OTHER)]
    await settle()
    waiting = asyncio.get_running_loop().create_task(queue.writes_left("b", "k"))
    await settle()
    later = Worker(queue, Turn.WRITE_BACK)

    writes[0].leave.set()
    await settle()
    is_early = waiting.done()
    writes[1].leave.set()
    await settle()

    assert not is_early
    assert waiting.done()
    assert later.has_turn()
    for worker in (*others, later):
        worker.leave.set()
        await worker.task


async def test_flush_passes_when_a_passed_through_operation_lets_it() -> None:
    """Flushes go ahead, past all who wait; writes do not; and at the end of the block the operation is alone again."""
    queue = KeyQueue()
    through = await work(queue, Turn.THROUGH)
    assert through.place is not None
    another, write, flush = [await work(queue, kind) for kind in (Turn.THROUGH, Turn.WRITE_BACK, Turn.FLUSH)]
    is_alone = asyncio.Event()

    async def lend() -> None:
        assert through.place is not None
        async with through.place.let_flush_pass():
            pass
        is_alone.set()

    lending = asyncio.get_running_loop().create_task(lend())
    await settle()
    assert (flush.has_turn(), another.has_turn(), write.has_turn(), is_alone.is_set()) == (
        True,
        False,
        False,
        False,
    )
    second_flush = await work(queue, Turn.FLUSH)

    await flush.end()

    assert is_alone.is_set()
    assert not second_flush.has_turn()
    await lending
    for worker in (through, another, write, second_flush):
        assert worker.has_turn()
        await worker.end()
    assert len(queue) == 0


async def test_flush_comes_later_when_it_is_let_pass() -> None:
    """A flush that asks while the operation waits for it has its turn at once."""
    queue = KeyQueue()

    async with queue.turn(K, Turn.THROUGH) as place:
        async with place.let_flush_pass():
            flush = await work(queue, Turn.FLUSH)
            assert flush.has_turn()
            await flush.end()
        late = await work(queue, Turn.FLUSH)
        assert not late.has_turn()

    await settle()
    assert late.has_turn()
    await late.end()


async def test_those_behind_wait_for_the_flush_when_the_one_that_lent_is_cancelled() -> None:
    """A flush that was let pass is not run beside the next passed-through operation."""
    queue = KeyQueue()
    lender = asyncio.get_running_loop().create_task(_lend_for_ever(queue))
    await settle()
    another, flush = await work(queue, Turn.THROUGH), await work(queue, Turn.FLUSH)
    assert flush.has_turn()

    for _ in range(2):  # once in the block, once while its end waits for the flush
        lender.cancel()
        await settle()
    assert lender.done()
    assert not another.has_turn()
    await flush.end()

    assert another.has_turn()
    await another.end()
    assert len(queue) == 0


async def _lend_for_ever(queue: KeyQueue) -> None:
    async with queue.turn(K, Turn.THROUGH) as place, place.let_flush_pass():
        await asyncio.Event().wait()


class QueueModel(RuleBasedStateMachine):
    """Places come and go in any order; after each step exactly those run that the table lets run."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = KeyQueue(waiting_max=1000)
        self.places: list[Place] = []

    @rule(kind=st.sampled_from(list(Turn)))
    def come(self, kind: Turn) -> None:
        place = Place(self.queue, K, kind)
        self.queue.take(place)
        self.places.append(place)

    @rule(index=st.integers(0, 20))
    def go(self, index: int) -> None:
        if self.places:
            place = self.places.pop(index % len(self.places))
            self.queue.leave(place)

    @invariant()
    def nobody_runs_beside_what_excludes_it(self) -> None:
        running = [place.kind for place in self.places if place.is_running]
        for one, other in itertools.combinations(running, 2):
            assert {one, other} == {Turn.WRITE_BACK, Turn.FLUSH}

    @invariant()
    def nobody_waits_without_reason(self) -> None:
        for number, place in enumerate(self.places):
            ahead = {other.kind for other in self.places[:number]}
            blocked = ahead - {Turn.FLUSH} if place.kind is Turn.WRITE_BACK else ahead
            assert place.is_running is not bool(blocked)

    @invariant()
    def nothing_is_kept_of_idle_keys(self) -> None:
        assert self.queue.is_idle(K) is not bool(self.places)


QueueModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestQueueModel = QueueModel.TestCase
TestQueueModel = pytest.mark.slow(TestQueueModel)
