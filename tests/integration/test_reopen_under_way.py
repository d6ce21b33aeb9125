"""What becomes of reads, writes and waits that are under way while a directory is re-opened."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from storage.errors import (
    UnknownOutcomeError,
)
from storage.policy import Freshness, FreshnessMode, Policy
from storage.requests import Body, PutRequest
from storage.types import MIB, ByteRange, Checksum, ObjectName, RangeSpec, WriteMode
from tests.fakes.failing_disk import (
    LARGE,
    NAME,
    SMALL,
    TINY,
    QuickClock,
    at_origin,
    drained,
    engine_over,
    fail_journal_sync,
    reopened,
)
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import (
    BUCKET,
    FakeIndexHome,
    RunningEngine,
    bytes_of,
    read_all,
)


async def test_a_body_that_was_begun_goes_on_over_a_reopening() -> None:
    """Readers of dirty and clean bytes, warm and half filled, get their bytes to the end, from pins and from the origin."""
    disk, home = FakeFilesystem(seed=11), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        # Nothing else than the body has the segments open.
        running.use(Policy(flush_delay_s=3600.0))
        running.origin.store.put(BUCKET, "warm", LARGE)
        running.origin.store.put(BUCKET, "cold", LARGE)
        await running.put("dirty", LARGE)
        await running.get("warm")
        await running.fills_ended()
        filling = running.origin.hold("GET", "bucket/cold", after_bytes=MIB + 100)
        bodies = [await begun(running, key) for key in ("dirty", "warm", "cold")]
        await asyncio.wait_for(filling.reached.wait(), 5)
        fail_journal_sync(disk, home)
        with pytest.raises(UnknownOutcomeError):
            await running.put("key", TINY)
        await reopened(running)
        # Overwritten and reclaimed meanwhile, as far as the new life knows.
        await running.put("dirty", b"new")
        for _ in range(20):
            await running.engine._components.reclaim.round()
            await running.clock.sleep(0.01)
        filling.open()

        got = [first + await read_all(body) for first, body in bodies]

        assert got == [LARGE, LARGE, LARGE]
        assert (await running.get("dirty")).data == b"new"


async def begun(running: RunningEngine, key: str) -> tuple[bytes, Body]:
    """Open an object and read its first bytes."""
    opened = await running.engine.open_object(ObjectName(BUCKET, key), RangeSpec(start=0))
    body = opened.read(ByteRange(0, opened.record.size))
    await opened.close()
    return bytes_of(await body.next_piece()), body


async def test_an_opening_that_waits_for_the_origin_is_begun_anew() -> None:
    """A cold GET that was asked before a re-opening is answered by the next life."""
    disk, home = FakeFilesystem(seed=12), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        running.origin.store.put(BUCKET, "cold", SMALL)
        await running.put("key", TINY)
        held = running.origin.hold("GET", "bucket/cold")
        reading = asyncio.get_running_loop().create_task(running.get("cold"))
        await asyncio.wait_for(held.reached.wait(), 5)
        fail_journal_sync(disk, home)
        with pytest.raises(UnknownOutcomeError):
            await running.put("key", TINY)
        await reopened(running)

        got = await asyncio.wait_for(reading, 5)

        assert got.data == SMALL


class EndlessContent:
    """A body whose last bytes do not come."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data) + 1
        self.data = data
        self.has_begun = asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield all but the last byte."""
        yield self.data
        self.has_begun.set()
        await asyncio.Event().wait()

    def checksums(self) -> tuple[Checksum, ...]:
        """Give none."""
        return ()


@pytest.mark.parametrize("mode", [WriteMode.BACK, WriteMode.THROUGH])
async def test_a_write_whose_body_still_comes_is_cut(mode: WriteMode) -> None:
    """It is answered 503 at once, holds up no re-opening, and leaves nothing of itself."""
    disk, home = FakeFilesystem(seed=13), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        await running.put("key", b"old")
        await drained(running)
        content = EndlessContent(b"x" * (9 * MIB))
        request = PutRequest(NAME, mode=mode)
        writing = asyncio.get_running_loop().create_task(running.engine.put_object(request, content))
        await asyncio.wait_for(content.has_begun.wait(), 5)
        fail_journal_sync(disk, home)
        with pytest.raises(UnknownOutcomeError):
            await running.put("other", TINY)
        with pytest.raises(UnknownOutcomeError):
            await asyncio.wait_for(writing, 5)
        await reopened(running)

        await running.put("key", b"new")
        await drained(running)

        assert at_origin(running, "key") == b"new"
        assert running.engine._components.backlog.admitted_bytes == 0


async def test_a_barrier_goes_on_under_its_number() -> None:
    """A token given before a re-opening is answered after it, once what it waits for is at the origin."""
    disk, home = FakeFilesystem(seed=14), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=500))
        await running.put("key", SMALL)
        token = running.engine.start_barrier(BUCKET, "").barrier_id
        waiting = asyncio.get_running_loop().create_task(running.engine.wait_barrier(token, 20))
        fail_journal_sync(disk, home)
        with pytest.raises(UnknownOutcomeError):
            await running.put("other", TINY)
        await reopened(running)
        halfway = await running.engine.wait_barrier(token, 0)
        running.origin.faults.clear()

        report = await waiting

        assert (halfway.is_reached, halfway.remaining >= 1) == (False, True)
        assert (report.barrier_id, report.is_reached) == (token, True)
        assert at_origin(running, "key") == SMALL


async def test_the_state_after_a_reopening_counts_as_after_an_unclean_stop() -> None:
    """Attempts of the life before may land: flushes are checked by HEAD; clean rows are validated before their first use."""
    disk, home = FakeFilesystem(seed=15), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        running.origin.store.put(BUCKET, "clean", b"old")
        await running.get("clean")
        epoch = running.engine.status().epoch
        fail_journal_sync(disk, home)
        with pytest.raises(UnknownOutcomeError):
            await running.put("other", TINY)
        await reopened(running)
        running.origin.store.put(BUCKET, "clean", b"new")

        got = await running.get("clean")

        recovered = running.engine._recovered
        assert got.data == b"new"
        assert (recovered.epoch, recovered.trusted_epoch) == (epoch + 1, epoch + 1)
        assert recovered.is_unclean


async def test_nothing_clean_is_trusted_while_the_disk_is_bad() -> None:
    """What the origin has by now is served, though the row says that the old version is fresh; immutable ones are served."""
    disk, home, clock = FakeFilesystem(seed=16), FakeIndexHome(), QuickClock()
    async with engine_over(filesystem=disk, index_home=home, clock=clock) as running:
        for key in ("clean", "fixed"):
            running.origin.store.put(BUCKET, key, b"old")
            await running.get(key)
        disk.fail(Operation.FDATASYNC, is_persistent=True)
        trusted = (await running.get("clean")).data
        with pytest.raises(UnknownOutcomeError):
            await running.put("other", TINY)
        for key in ("clean", "fixed"):
            running.origin.store.put(BUCKET, key, b"new")

        asked = (await running.get("clean")).data
        running.use(Policy(freshness=Freshness(FreshnessMode.IMMUTABLE)))
        unasked = (await running.get("fixed")).data
        disk.heal()

        assert (trusted, asked, unasked) == (b"old", b"new", b"old")


async def test_the_counters_do_not_jump_back() -> None:
    """What was counted before a re-opening is counted after it."""
    disk, home = FakeFilesystem(seed=17), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        await running.put("key", SMALL)
        await drained(running)
        before = running.engine.stats.flushed["done"]
        fail_journal_sync(disk, home)
        with pytest.raises(UnknownOutcomeError):
            await running.put("other", TINY)
        await reopened(running)

        assert before == 1
        assert running.engine.stats.flushed["done"] >= before
        assert dict(running.engine.stats.reopenings) == {"done": 1, "failed": 0}
