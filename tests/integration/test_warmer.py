"""`storage.warmer` and `storage.warm_source` in a whole engine: what is warm afterwards, and what the origin was asked for."""

from functools import partial

import pytest

from storage.errors import NoSuchKeyError, WarmConflictError
from storage.policy import Freshness, FreshnessMode, Policy
from storage.types import MIB, CacheResult, ObjectName, RangeSpec
from storage.warm_jobs import WarmEntry, WarmKind, WarmPhase, WarmRequest
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, running_engine, until
from tests.fakes.warming import ended, fill_origin, names, under, warm

ALWAYS = Policy(freshness=Freshness(FreshnessMode.ALWAYS))


async def test_all_under_a_prefix_is_a_hit_when_it_was_warmed() -> None:
    """Bytes and metadata, of small, large and empty objects, and of nothing else."""
    async with running_engine() as running:
        fill_origin(running, 5)
        large = bytes(range(256)) * (12 * 1024)
        running.origin.store.put(BUCKET, "data/large", large)
        running.origin.store.put(BUCKET, "data/empty", b"")
        running.origin.store.put(BUCKET, "other", b"x")

        report = await warm(running, under())

        assert (report.phase, report.results) == (WarmPhase.DONE, {"brought": 7})
        assert (report.known_objects, report.percent_warm) == (7, 100.0)
        assert report.brought_bytes == report.warm_bytes == report.known_bytes == 5000 + len(large)
        asked = len(running.origin.log)
        for key in ("data/k0003", "data/large", "data/empty"):
            got = await running.get(key)
            assert got.result is CacheResult.HIT
        assert (await running.get("data/large")).data == large
        assert len(running.origin.log) == asked
        assert (await running.get("other")).result is CacheResult.MISS


async def test_nothing_is_fetched_again_when_it_is_there() -> None:
    """A second run lists and asks for nothing more, even where the policy would ask before a read."""
    async with running_engine(policy=ALWAYS) as running:
        fill_origin(running, 4)
        await warm(running, under())
        gets = running.origin.requests_of("GetObject")

        report = await warm(running, under())

        assert report.results == {"skipped": 4}
        assert report.brought_bytes == 0
        assert running.origin.requests_of("GetObject") == gets
        assert running.origin.requests_of("HeadObject") == 0


async def test_what_changed_at_the_origin_is_brought_again() -> None:
    """The listing shows another version."""
    async with running_engine() as running:
        fill_origin(running, 3)
        await warm(running, under())
        running.clock.ahead_s += 120
        running.origin.store.put(BUCKET, "data/k0001", b"new")

        report = await warm(running, under())

        assert report.results == {"skipped": 2, "brought": 1}
        assert (await running.get("data/k0001")).data == b"new"


async def test_only_what_is_missing_is_fetched_when_part_of_an_object_is_here() -> None:
    """The rest of an object that was read by a range."""
    data = bytes(range(256)) * 16 * 1024
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "data/big", data)
        await running.get("data/big", RangeSpec(start=2 * MIB, stop=2 * MIB + 10))
        await running.fills_ended()

        report = await warm(running, under())

        assert report.results == {"brought": 1}
        assert report.brought_bytes == len(data) - MIB
        assert (await running.get("data/big")).data == data
        assert (await running.get("data/big")).result is CacheResult.HIT


async def test_a_metadata_job_brings_no_bytes() -> None:
    """HEAD is answered here, and the bytes are still a miss; once more, nothing is asked for but the listing."""
    async with running_engine() as running:
        fill_origin(running, 3)

        report = await warm(running, under(metadata_only=True))

        assert report.results == {"brought": 3}
        assert running.origin.requests_of("GetObject") == 0
        heads = running.origin.requests_of("HeadObject")
        opened = await running.engine.open_object(ObjectName(BUCKET, "data/k0001"), metadata_only=True)
        await opened.close()
        assert (opened.result, running.origin.requests_of("HeadObject")) == (CacheResult.HIT, heads)
        again = await warm(running, under(metadata_only=True))
        assert again.results == {"skipped": 3}
        assert running.origin.requests_of("HeadObject") == heads


async def test_what_is_dirty_counts_as_here() -> None:
    """An acknowledged object is in the cache, whether or not it is at the origin."""
    async with running_engine(policy=Policy(flush_delay_s=3600.0)) as running:
        await running.put("data/own", b"mine")

        report = await warm(running, under())

        assert report.results == {"skipped": 1}


async def test_a_job_tells_how_much_there_is_before_it_is_done() -> None:
    """The pages are counted ahead of the objects that are fetched."""
    async with running_engine() as running:
        fill_origin(running, 1003, size=1)
        gate = running.origin.hold("GET", f"{BUCKET}/data/k0000")
        job = running.engine.warmer.start(under(concurrency=1))
        await gate.reached.wait()

        await until(lambda: running.engine.warmer.reports()[0].is_counted)

        report = running.engine.warmer.reports()[0]
        assert (report.known_objects, report.known_bytes, report.seen_objects) == (1003, 1003, 0)
        await running.engine.warmer.cancel(job.job_id)


async def test_what_does_not_fit_is_left_out_and_not_fatal() -> None:
    """The job never pushes its own bytes out."""
    async with running_engine(cache_bytes=32 * MIB) as running:
        fill_origin(running, 20, size=2 * MIB)
        running.origin.store.put(BUCKET, "data/huge", bytes(20 * MIB))

        report = await warm(running, under(concurrency=2))

        assert report.phase is WarmPhase.DONE
        assert report.room_bytes < report.known_bytes
        assert report.results["unfit"] == 21 - report.results["brought"]
        assert report.warm_bytes <= report.room_bytes
        assert running.engine.stats.evicted_bytes["space"] == 0
        assert (await running.get("data/k0000")).result is CacheResult.HIT


async def test_failures_are_counted_and_the_others_brought() -> None:
    """One object never holds up another."""
    async with running_engine() as running:
        fill_origin(running, 4)
        running.origin.faults.add(Fault(key="bucket/data/k0001", status=403, code="AccessDenied", times=-1))
        job = running.engine.warmer.start(WarmRequest(WarmKind.LIST))
        running.engine.warmer.feed(
            job.job_id, 0, names("data/k0000", "data/k0001", "data/none", "data/k0002"), is_last=True
        )

        report = await ended(running, job.job_id)

        assert report.results == {"brought": 2, "failed": 2}
        assert report.failures == {"refused": 1, "not found": 1}
        assert any("data/none" in example for example in report.examples)
        assert report.percent_warm == 50.0
        assert running.engine.stats.warm_objects["failed"] == 2


async def test_an_object_is_tried_again_when_the_origin_fails_once() -> None:
    """What passes is no failure."""
    async with running_engine() as running:
        fill_origin(running, 1)
        running.origin.faults.add(Fault(key="bucket/data/k0000", status=503, code="SlowDown", times=4))

        report = await warm(running, under())

        assert report.results == {"brought": 1}


async def test_a_job_fails_with_the_reason_when_its_prefix_cannot_be_listed() -> None:
    """There is nothing that it could do without."""
    async with running_engine() as running:
        report = await warm(running, WarmRequest(WarmKind.PREFIX, "nowhere", "x/"))

        assert report.phase is WarmPhase.FAILED
        assert "NoSuchBucket" in report.error


async def test_a_range_is_brought_and_no_more() -> None:
    """Of a list's line that names one."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "data/big", bytes(4 * MIB))
        job = running.engine.warmer.start(WarmRequest(WarmKind.LIST))
        entry = WarmEntry(BUCKET, "data/big", RangeSpec(start=MIB, stop=MIB + 100))
        running.engine.warmer.feed(job.job_id, 0, [entry], is_last=True)

        report = await ended(running, job.job_id)

        assert report.results == {"brought": 1}
        assert report.brought_bytes == MIB
        assert (await running.get("data/big", RangeSpec(start=MIB, stop=MIB + 100))).result is CacheResult.HIT


async def test_a_list_goes_on_when_its_client_has_left_and_a_piece_may_come_twice() -> None:
    """The job holds what it was given; a piece that does not follow is refused."""
    async with running_engine() as running:
        fill_origin(running, 3)
        warmer = running.engine.warmer
        job = warmer.start(WarmRequest(WarmKind.LIST))
        warmer.feed(job.job_id, 0, names("data/k0000", "data/k0001"), is_last=False)

        assert warmer.feed(job.job_id, 0, names("data/k0000", "data/k0001"), is_last=False).next_at == 2
        with pytest.raises(WarmConflictError, match="has 2 names"):
            warmer.feed(job.job_id, 3, names("data/k0002"), is_last=True)
        warmer.feed(job.job_id, 2, names("data/k0002"), is_last=True)

        report = await ended(running, job.job_id)
        assert report.results == {"brought": 3}
        with pytest.raises(WarmConflictError, match="takes no more"):
            warmer.feed(job.job_id, 3, names("data/k0000"), is_last=False)


async def test_a_job_fails_when_its_list_is_not_given_to_its_end() -> None:
    """What it was given is brought all the same."""
    async with running_engine() as running:
        fill_origin(running, 1)
        job = running.engine.warmer.start(WarmRequest(WarmKind.LIST, idle_s=0.05))
        running.engine.warmer.feed(job.job_id, 0, names("data/k0000"), is_last=False)

        report = await ended(running, job.job_id)

        assert (report.phase, report.error) == (WarmPhase.FAILED, "the list was not given to its end")
        assert report.results == {"brought": 1}


@pytest.mark.parametrize("kind", [WarmKind.LIST, WarmKind.ORDER])
async def test_a_job_fails_soon_when_whoever_gives_its_list_has_gone(kind: WarmKind) -> None:
    """What it was given is brought first; how long it would wait for others does not count."""
    async with running_engine() as running:
        fill_origin(running, 2)
        warmer = running.engine.warmer
        job = warmer.start(WarmRequest(kind, hold_s=0.01))
        hold = warmer.hold(job.job_id)
        warmer.feed(job.job_id, 0, names("data/k0000", "data/k0001"), is_last=False)
        hold.release()
        hold.release()

        report = await ended(running, job.job_id)

        assert (report.phase, report.error) == (WarmPhase.FAILED, "the list was not given to its end")
        assert report.results == {"brought": 2}


async def test_a_job_fails_soon_when_nobody_ever_came_to_hold_it() -> None:
    """As where its client was killed between two requests."""
    async with running_engine() as running:
        job = running.engine.warmer.start(WarmRequest(WarmKind.LIST, hold_s=0.01))

        assert (await ended(running, job.job_id)).phase is WarmPhase.FAILED


@pytest.mark.parametrize("kind", [WarmKind.LIST, WarmKind.ORDER])
async def test_a_list_may_come_slowly_when_its_job_is_held(kind: WarmKind) -> None:
    """No silence ends it, nor that nobody reads where nothing is left to read."""
    async with running_engine() as running:
        fill_origin(running, 2)
        warmer = running.engine.warmer
        job = warmer.start(WarmRequest(kind, hold_s=0.01, idle_s=0.05))
        first, second = warmer.hold(job.job_id), warmer.hold(job.job_id)
        first.release()

        silent = await warmer.wait(job.job_id, 0.2)
        warmer.feed(job.job_id, 0, names("data/k0000", "data/k0001"), is_last=True)
        await second.ended()
        second.release()

        report = await ended(running, job.job_id)

        assert (silent.phase, report.phase) == (WarmPhase.RUNNING, WarmPhase.DONE)
        assert report.results == {"brought": 2}


async def test_holds_end_when_the_gateway_stops() -> None:
    """Or a stop would wait for a client's next line."""
    async with running_engine() as running:
        warmer = running.engine.warmer
        hold = warmer.hold(warmer.start(WarmRequest(WarmKind.LIST, hold_s=60.0)).job_id)

        warmer.release_holds()

        await hold.ended()


async def test_a_job_ends_when_it_is_cancelled() -> None:
    """Nothing of it runs on, and it stays known."""
    async with running_engine() as running:
        fill_origin(running, 3)
        gate = running.origin.hold("GET", f"{BUCKET}/data/k0000")
        job = running.engine.warmer.start(under())
        await gate.reached.wait()

        report = await running.engine.warmer.cancel(job.job_id)

        assert report.phase is WarmPhase.CANCELLED
        assert running.engine.stats.warm_jobs == 0
        assert (await running.engine.warmer.wait(job.job_id, 0.0)).phase is WarmPhase.CANCELLED
        with pytest.raises(NoSuchKeyError):
            await running.engine.warmer.cancel(99)


async def test_a_running_job_is_in_the_status() -> None:
    """And is cut when the engine closes."""
    async with running_engine() as running:
        fill_origin(running, 1)
        gate = running.origin.hold("GET", f"{BUCKET}/data/k0000")
        running.engine.warmer.start(under())
        await gate.reached.wait()

        jobs = running.engine.status().warm_jobs

        assert [(job.place, job.phase) for job in jobs] == [(f"s3://{BUCKET}/data/", WarmPhase.RUNNING)]
    assert running.engine.warmer.reports()[0].phase is WarmPhase.CANCELLED


# --- in the order of the reads ---------------------------------------------------------------------------------------


def ordered(**more: object) -> WarmRequest:
    """Ask for an order."""
    return WarmRequest(WarmKind.ORDER, **more)  # type: ignore[arg-type]  # named in each test


async def test_a_sampler_s_order_is_warmed_a_window_ahead_of_the_reads() -> None:
    """No further than the window, and on with each read."""
    async with running_engine() as running:
        fill_origin(running, 12)
        keys = [f"data/k{(7 * n) % 12:04}" for n in range(12)]
        warmer = running.engine.warmer
        job = warmer.start(ordered(ahead_objects=3))
        warmer.feed(job.job_id, 0, names(*keys), is_last=True)
        await until(lambda: warmer.reports()[0].warm_objects == 3)

        def has_warmed(count: int) -> bool:
            return warmer.reports()[0].warm_objects == count

        results = []
        for number, key in enumerate(keys):
            results.append((await running.get(key)).result)
            await until(partial(has_warmed, min(12, number + 4)))
            assert warmer.reports()[0].ahead_bytes <= 3000

        assert results == [CacheResult.HIT] * 12
        report = await ended(running, job.job_id)
        assert (report.phase, report.results) == (WarmPhase.DONE, {"brought": 12})
        # All is warm when the ninth is read; the job may hear of the reads behind it before it ends.
        assert 9 <= report.position <= 12
        assert not warmer.follows_reads


async def test_the_window_is_bounded_in_bytes() -> None:
    """What lies ahead is about so many bytes."""
    async with running_engine() as running:
        fill_origin(running, 8)
        warmer = running.engine.warmer
        job = warmer.start(ordered(ahead_bytes=2500, concurrency=1))
        warmer.feed(job.job_id, 0, names(*(f"data/k{n:04}" for n in range(8))), is_last=True)
        await until(lambda: warmer.reports()[0].ahead_bytes >= 2500)

        # One is issued to the worker before the size of the last is known.
        assert warmer.reports()[0].warm_objects <= 4

        await running.get("data/k0001")
        await until(lambda: warmer.reports()[0].position == 2 and warmer.reports()[0].warm_objects >= 5)
        await warmer.cancel(job.job_id)


async def test_an_order_is_given_up_when_nobody_reads_it() -> None:
    """Reads of other objects are no reads of it."""
    async with running_engine() as running:
        fill_origin(running, 6)
        warmer = running.engine.warmer
        job = warmer.start(ordered(ahead_objects=2, idle_s=0.1))
        warmer.feed(job.job_id, 0, names(*(f"data/k{n:04}" for n in range(5))), is_last=True)

        await running.get("data/k0005")
        report = await ended(running, job.job_id)

        assert (report.phase, report.results, report.error) == (WarmPhase.IDLE, {"brought": 2}, "")


async def test_what_the_readers_have_passed_is_left_out() -> None:
    """A jump forward is followed."""
    async with running_engine() as running:
        fill_origin(running, 8)
        warmer = running.engine.warmer
        job = warmer.start(ordered(ahead_objects=3))
        warmer.feed(job.job_id, 0, names(*(f"data/k{n:04}" for n in range(8))), is_last=True)
        await until(lambda: warmer.reports()[0].warm_objects == 3)

        await running.get("data/k0005")
        report = await ended(running, job.job_id)

        assert report.results == {"brought": 5, "passed": 3}
        assert running.engine.stats.warm_objects["passed"] == 3
