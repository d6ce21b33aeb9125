import asyncio

import pytest

from storage.backlog import Backlog
from storage.records import FORMAT, SegmentRow
from storage.rows import Effects
from storage.state import State
from tests.fakes.writing import pause


def make(limit: int = 100, wait_s: float = 5.0) -> tuple[State, Backlog]:
    """Make a backlog and what it looks at."""
    state = State()
    return state, Backlog(state, dirty_bytes_limit=limit, wait_s_max=wait_s)


def set_dirty(state: State, dirty_bytes: int) -> None:
    """Let a batch leave so many dirty bytes."""
    row = SegmentRow(FORMAT, 1, 1, live_bytes=dirty_bytes, dirty_bytes=dirty_bytes)
    state.absorb(Effects(segments={1: row}))


async def test_admit_lets_a_write_in_when_it_stays_below_the_mark() -> None:
    """A write that fits is admitted at once, and counts until it is settled."""
    state, backlog = make()
    set_dirty(state, 60)

    assert await backlog.admit(40)
    assert backlog.admitted_bytes == 40

    backlog.settle(40)
    assert backlog.admitted_bytes == 0


async def test_admit_waits_until_dirty_bytes_have_gone() -> None:
    """A write over the mark is admitted in the very step in which a flush has made room."""
    state, backlog = make()
    set_dirty(state, 90)
    waiting = asyncio.get_running_loop().create_task(backlog.admit(20))
    await pause()
    assert not waiting.done()

    set_dirty(state, 80)

    assert backlog.admitted_bytes == 20
    assert await waiting


async def test_admit_gives_up_when_the_time_is_over() -> None:
    """The wait is bounded; what was not admitted leaves no trace."""
    state, backlog = make(wait_s=0.01)
    set_dirty(state, 100)

    assert not await backlog.admit(1)

    assert backlog.admitted_bytes == 0
    assert "0 waiting" in repr(backlog)


async def test_admit_refuses_at_once_when_a_body_is_larger_than_the_mark() -> None:
    """What could never fit does not wait for it."""
    _, backlog = make(wait_s=60.0)

    async with asyncio.timeout(1):
        assert not await backlog.admit(101)


async def test_waiting_writes_are_admitted_in_order_as_far_as_bytes_allow() -> None:
    """Room goes to whoever came first and fits; a large one that does not fit yet holds up no small one."""
    state, backlog = make()
    set_dirty(state, 100)
    loop = asyncio.get_running_loop()
    large, small, later = (loop.create_task(backlog.admit(size)) for size in (60, 20, 50))
    await pause()

    set_dirty(state, 70)
    await pause()
    assert (large.done(), small.done(), later.done()) == (False, True, False)

    set_dirty(state, 20)
    await pause()
    assert (large.done(), later.done()) == (True, False)

    backlog.settle(60)
    assert await later
    assert backlog.admitted_bytes == 70


async def test_cancelled_wait_admits_nothing_when_it_was_let_in_in_the_same_step() -> None:
    """Cancelled before it could learn that it was admitted, a write has not taken any room."""
    state, backlog = make()
    set_dirty(state, 100)
    waiting = asyncio.get_running_loop().create_task(backlog.admit(50))
    await pause()

    set_dirty(state, 0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert backlog.admitted_bytes == 0


async def test_cancelled_wait_leaves_the_queue() -> None:
    """A write whose client went away does not get room that another could have."""
    state, backlog = make()
    set_dirty(state, 100)
    loop = asyncio.get_running_loop()
    gone, stays = loop.create_task(backlog.admit(80)), loop.create_task(backlog.admit(80))
    await pause()

    gone.cancel()
    await asyncio.wait([gone])
    set_dirty(state, 0)

    assert await stays
    assert backlog.admitted_bytes == 80
