"""Publishing over a whole engine when things go wrong: lost answers, crashes, an origin that fails, two gateways."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from storage.errors import (
    GenerationGoneError,
    OriginUnavailableError,
)
from storage.listing import ListQuery
from storage.origin.endpoint import OriginSettings
from storage.publish import View
from storage.types import ObjectName
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.origin_faults import Fault
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.publishing import (
    ALWAYS,
    FLUSH,
    MANIFEST,
    TARGET,
    listed,
    manifest_generation,
    publish,
    store,
    target,
    view,
)
from tests.fakes.running_engine import (
    BUCKET,
    FakeIndexHome,
    running_engine,
    until,
)

# --- lost answers and crashes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault(drop="after"),
        Fault(drop="before"),
        Fault(status=500, is_processed=True),
        Fault(status=503, code="SlowDown"),
        Fault(drop="after", times=2),
    ],
    ids=["landed", "lost", "landed with a 500", "throttled", "landed, and lost again"],
)
async def test_the_switch_is_made_once_when_its_write_has_no_answer(fault: Fault) -> None:
    """However the answer to the manifest's PUT is lost, the publish ends with one new generation, at the origin and here."""
    async with running_engine(flush=FLUSH) as running:
        target(running)
        await store(running, "v1")
        await store(running, "v2")
        await publish(running, "v1")
        fault.operation, fault.key = "PutObject", f"bucket/{MANIFEST}"
        running.origin.faults.add(fault)

        report = await publish(running, "v2")
        shown = await view(running)
        at_origin = manifest_generation(running.origin)

    assert (report.phase, report.generation, report.error) == ("done", 2, "")
    assert (at_origin, shown.generation) == (2, 2)


async def test_the_origin_is_right_when_a_crash_comes_before_the_journal() -> None:
    """A process that dies between the manifest's write and its record: the next one shows what was switched."""
    async with PausedOrigin() as origin:
        async with running_engine(origin=origin) as running:
            target(running)
            await store(running, "v1")
            await store(running, "v2")
            await publish(running, "v1")
            gate = origin.hold("PUT", f"bucket/{MANIFEST}")
            await running.engine.start_publish(BUCKET, "staging/v2/", TARGET)
            await gate.reached.wait()
            filesystem, index_home = running.stop_uncleanly()
            before_crash = await view(running)
            gate.open()
        async with running_engine(origin=origin, filesystem=filesystem, index_home=index_home) as after:
            target(after)
            journaled = [one.generation for one in after.engine.status().pointers]
            shown = await view(after)

    assert before_crash.generation == 1
    assert journaled == [1]
    assert shown == View(ObjectName(BUCKET, "staging/v2/k0"), 2)


@pytest.mark.parametrize("is_index_lost", [False, True])
async def test_pointers_are_there_after_a_start(is_index_lost: bool) -> None:
    """The journal brings pointers back, with the index or without; with them a start serves while the origin is away."""
    async with PausedOrigin() as origin:
        settings = OriginSettings(endpoint_url=origin.url, connect_s=1.0, answer_s=2.0, read_attempts=1)
        async with running_engine(origin=origin) as running:
            target(running)
            await store(running, "v1")
            await publish(running, "v1")
            filesystem, index_home = running.filesystem, running.index_home
        if is_index_lost:
            index_home = FakeIndexHome()
        async with running_engine(
            origin=origin, filesystem=filesystem, index_home=index_home, origin_settings=settings
        ) as after:
            target(after)
            origin.faults.add(Fault(times=-1, status=500))
            shown = await view(after)
            after.clock.ahead_s = 700.0
            with pytest.raises(OriginUnavailableError):
                await view(after)

    assert shown == View(ObjectName(BUCKET, "staging/v1/k0"), 1)


async def test_a_stop_ends_a_publish_that_is_under_way() -> None:
    """A stop does not wait for an origin that does not answer; the next start asks it."""
    async with running_engine() as running:
        target(running)
        await store(running, "v1")
        gate = running.origin.hold("PUT", f"bucket/{MANIFEST}")
        begun = await running.engine.start_publish(BUCKET, "staging/v1/", TARGET)
        await gate.reached.wait()

        await running.engine.close()

        report = await running.engine.wait_publish(begun.publish_id, 0.0)
    assert report.phase == "failed"
    assert "cut off by a stop" in report.error


# --- what the origin says ------------------------------------------------------------------------------------------------


async def test_the_origin_is_asked_once_within_the_time() -> None:
    """Within the target's freshness the pointer is served without asking; after it the manifest is asked for once."""
    async with running_engine() as running:
        target(running)
        await store(running, "v1")
        await publish(running, "v1")
        asked_before = running.origin.requests_of("GetObject")

        for _ in range(10):
            await view(running)
        asked_within = running.origin.requests_of("GetObject") - asked_before
        running.clock.ahead_s = 61.0
        for _ in range(10):
            await view(running)
        asked_after = running.origin.requests_of("GetObject") - asked_before

    assert (asked_within, asked_after) == (0, 1)


async def test_always_asks_for_each_read() -> None:
    """With `always` no read is answered by a pointer that was asked for before it."""
    async with running_engine() as running:
        target(running, ALWAYS)
        await store(running, "v1")
        await publish(running, "v1")
        asked_before = running.origin.requests_of("GetObject")

        for _ in range(3):
            await view(running)

        assert running.origin.requests_of("GetObject") - asked_before == 3


async def test_a_failing_origin_is_covered_for_a_while() -> None:
    """While the origin fails the pointer known is shown, for `stale_s` past its time and not longer."""
    async with PausedOrigin() as origin:
        settings = OriginSettings(endpoint_url=origin.url, connect_s=1.0, answer_s=2.0, read_attempts=1)
        async with running_engine(origin=origin, origin_settings=settings) as running:
            target(running)
            await store(running, "v1")
            await publish(running, "v1")
            origin.faults.add(Fault(times=-1, status=500))

            running.clock.ahead_s = 61.0
            covered = await view(running)
            running.clock.ahead_s = 661.0
            with pytest.raises(OriginUnavailableError):
                await view(running)

    assert covered.generation == 1


async def test_an_answer_that_a_publish_overtook_is_not_shown() -> None:
    """A manifest that was asked for before the switch does not come back after it."""
    async with running_engine() as running:
        target(running, ALWAYS)
        await store(running, "v1")
        await store(running, "v2")
        await publish(running, "v1")
        gate = running.origin.hold("GET", f"bucket/{MANIFEST}")
        late = asyncio.get_running_loop().create_task(view(running))
        await gate.reached.wait()

        report = await publish(running, "v2")
        gate.open()
        answered = await late

    assert report.generation == 2
    assert answered.generation == 2


async def test_a_target_is_unpublished_when_its_manifest_is_removed_at_the_origin() -> None:
    """Without a manifest the target is a prefix like any other again; the next generation is a new one all the same."""
    async with running_engine() as running:
        target(running, ALWAYS)
        await store(running, "v1")
        await publish(running, "v1")
        await running.client.delete_object(ObjectName(BUCKET, MANIFEST))

        shown = await view(running)
        keys = await listed(running)
        again = await publish(running, "v1")

    assert shown == View(ObjectName(BUCKET, f"{TARGET}k0"), 0)
    assert keys == (0, [])
    assert again.generation == 2


async def test_reads_fail_when_the_manifest_is_no_manifest() -> None:
    """What cannot be read as a manifest is a fault of the origin, not an unpublished target."""
    async with running_engine() as running:
        target(running)
        running.origin.store.put(BUCKET, MANIFEST, b"not a manifest")

        with pytest.raises(OriginUnavailableError, match="is no manifest"):
            await view(running)
        running.origin.store.put(BUCKET, MANIFEST, b" " * 300_000)
        with pytest.raises(OriginUnavailableError, match="is no manifest"):
            await view(running)


async def test_a_switch_is_shown_when_the_disk_takes_no_writes() -> None:
    """A pointer that cannot be journaled is shown all the same: reads do not depend on the disk."""
    filesystem = FakeFilesystem()
    async with PausedOrigin() as origin, running_engine(origin=origin, filesystem=filesystem) as running:
        target(running)
        async with running_engine(origin=origin) as other:
            await store(target(other), "v1")
            await publish(other, "v1")
        filesystem.fail(Operation.FDATASYNC, when=lambda call: call.path.startswith("journal"))

        shown = await view(running)

        assert shown == View(ObjectName(BUCKET, "staging/v1/k0"), 1)
        assert not running.engine.status().is_writable


# --- two gateways --------------------------------------------------------------------------------------------------------


async def test_another_gateway_sees_the_switch_within_its_freshness() -> None:
    """A second gateway over the same origin shows the old generation for at most its time, then the new one whole."""
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(PausedOrigin())
        one = target(await stack.enter_async_context(running_engine(origin=origin)))
        other = target(await stack.enter_async_context(running_engine(origin=origin)))
        await store(one, "v1")
        await store(one, "v2", 2)
        await publish(one, "v1")
        first = await view(other), await listed(other)

        await publish(one, "v2")
        within = (await view(other)).generation
        other.clock.ahead_s = 61.0
        after = await view(other), await listed(other)

    assert first[0] == View(ObjectName(BUCKET, "staging/v1/k0"), 1)
    assert within == 1
    assert after[0] == View(ObjectName(BUCKET, "staging/v2/k0"), 2)
    assert after[1] == (2, [f"{TARGET}k0", f"{TARGET}k1"])


async def test_a_listing_goes_on_at_another_gateway_that_has_not_seen_its_generation() -> None:
    """A token of a newer generation makes the gateway ask, one of an older one is known by the manifest."""
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(PausedOrigin())
        one = target(await stack.enter_async_context(running_engine(origin=origin)))
        other = target(await stack.enter_async_context(running_engine(origin=origin)))
        await store(one, "v1")
        await store(one, "v2", 2)
        await publish(one, "v1")
        await view(other)
        await publish(one, "v2")
        query = ListQuery(BUCKET, TARGET, max_keys=1)
        page = await one.engine.list_objects(query)
        assert page.next_position is not None
        going_on = ListQuery(BUCKET, TARGET, after=page.next_position)

        newer = await other.engine.list_objects(replace(going_on, generation=2))
        older = await other.engine.list_objects(replace(going_on, generation=1))
        with pytest.raises(GenerationGoneError):
            await other.engine.list_objects(replace(going_on, generation=3))
        with pytest.raises(GenerationGoneError):
            await other.engine.list_objects(replace(going_on, generation=0))

    assert (newer.generation, [entry.key for entry in newer.entries]) == (2, [f"{TARGET}k1"])
    assert (older.generation, [entry.key for entry in older.entries]) == (1, [f"{TARGET}k1", f"{TARGET}k2"])


async def test_one_publish_is_refused_when_two_gateways_publish_at_once() -> None:
    """Of two publishes that began with the same manifest one switches, the other changes nothing and says so."""
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(PausedOrigin())
        one = target(await stack.enter_async_context(running_engine(origin=origin)))
        other = target(await stack.enter_async_context(running_engine(origin=origin)), ALWAYS)
        await store(one, "v1")
        await store(other, "v2")
        origin.faults.add(Fault(operation="PutObject", key=f"bucket/{MANIFEST}", delay_s=0.7))
        slow = await other.engine.start_publish(BUCKET, "staging/v2/", TARGET)
        await until(lambda: origin.faults.hits == 1)

        fast = await publish(one, "v1")
        refused = await other.engine.wait_publish(slow.publish_id, 20.0)
        shown = await view(other)
        again = await publish(other, "v2")

    assert (fast.phase, fast.generation) == ("done", 1)
    assert refused.phase == "failed"
    assert "another publish of s3://bucket/data/live/ came between" in refused.error
    assert shown.generation == 1
    assert again.generation == 2


async def test_a_newer_switch_stays_when_the_answer_to_an_older_one_is_late() -> None:
    """What another gateway switched meanwhile is not taken back by this one's own publish when that hears its answer."""
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(PausedOrigin())
        one = target(await stack.enter_async_context(running_engine(origin=origin)))
        other = target(await stack.enter_async_context(running_engine(origin=origin)))
        await store(one, "v1")
        await store(one, "v2")
        await publish(one, "v1")
        gate = origin.hold("PUT", f"bucket/{MANIFEST}")
        begun = await one.engine.start_publish(BUCKET, "staging/v2/", TARGET)
        await gate.reached.wait()
        await publish(other, "v1")
        one.clock.ahead_s = 61.0
        seen = await view(one)

        gate.open()
        late = await one.engine.wait_publish(begun.publish_id, 20.0)
        after = await view(one)
        journaled = one.engine.status().pointers

    assert (seen.generation, late.phase, late.generation) == (3, "done", 2)
    assert after == View(ObjectName(BUCKET, "staging/v1/k0"), 3)
    assert [line.generation for line in journaled] == [3]
