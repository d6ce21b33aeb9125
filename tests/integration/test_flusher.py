"""The flush of a whole engine to a real HTTP origin that fails in every way it can."""

import asyncio
from typing import Any

import pytest

from storage.errors import (
    EngineClosedError,
    OriginUnavailableError,
    OverloadedError,
    QuarantinedError,
)
from storage.flush_events import FlushSettings
from storage.flush_waits import OPEN_MAX
from storage.listing import ListEntry
from storage.origin.credentials import Credentials
from storage.policy import Policy
from storage.records import ObjectRecord
from storage.requests import BarrierReport
from storage.types import ObjectName, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, running_engine
from tests.fakes.writing import (
    PART,
    complete,
    delete,
    etag_of,
    flushed,
    head,
    listed,
    md5,
    open_upload,
    pause,
    put_part,
    request,
    settled,
    until,
    upload,
)

QUICK = FlushSettings(
    origin_timeout_s=0.6, retry_s_min=0.02, retry_s_max=0.1, probe_s_min=0.05, probe_s_max=0.1
)
NAME = ObjectName(BUCKET, "k")


def at_origin(running: RunningEngine, key: str = "k", *, bucket: str = BUCKET) -> bytes | None:
    """Read at the origin."""
    return running.origin.store.body(bucket, key)


async def put_through(running: RunningEngine, key: str, data: bytes, **fields: Any) -> None:
    """Write an object through to the origin."""
    wanted = request(key, mode=WriteMode.THROUGH, **fields)
    await running.engine.put_object(wanted, BytesContent(data))


# --- faults -------------------------------------------------------------------------------------------------------------


async def test_throttled_flush_asks_little_and_arrives_when_the_origin_recovers() -> None:
    """While the origin says SlowDown to all, each object costs few requests; all of them arrive when that ends (B56)."""
    slow = FlushSettings(retry_s_min=0.1, retry_s_max=0.8)
    async with running_engine(flush=slow) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.faults.add(Fault(times=-1, status=503, code="SlowDown"))
        before = sum(running.origin.requests.values())

        for n in range(10):
            await running.put(f"k{n}", b"%d" % n)
        await pause(2.0)
        asked = sum(running.origin.requests.values()) - before
        running.origin.faults.clear()
        await flushed(running, timeout_s=30.0)

        assert asked < 12 * 10
        assert [at_origin(running, f"k{n}") for n in range(10)] == [b"%d" % n for n in range(10)]
        assert running.engine.status().origin_throttled > 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault(operation="PutObject", times=4, status=500),
        Fault(operation="PutObject", times=3, status=500, is_processed=True),
        Fault(operation="PutObject", times=3, drop="before"),
        Fault(operation="PutObject", times=2, drop="after"),
        Fault(operation="PutObject", times=2, status=503, code="SlowDown", retry_after_s=0),
        Fault(operation="PutObject", times=1, status=400, code="BadDigest"),
        Fault(operation="PutObject", times=1, status=400, code="RequestTimeout"),
        Fault(operation="PutObject", times=2, cut_body_at=0, content_length=100),
    ],
)
async def test_put_arrives_when_attempts_fail(fault: Fault) -> None:
    """Whatever a few attempts meet, the object is at the origin in the end, whole, and counted once as done."""
    async with running_engine(flush=QUICK, answer_s=0.5) as running:
        running.origin.faults.add(fault)

        await running.put("k", b"body")
        report = await flushed(running)

        assert report.is_reached
        assert at_origin(running) == b"body"
        assert running.engine.status().pending_objects == 0
        assert running.engine.stats.flushed["done"] == 1
        assert (await running.get("k")).data == b"body"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(operation="DeleteObject", times=2, status=500),
        Fault(operation="DeleteObject", times=1, drop="after"),
        Fault(operation="DeleteObject", times=2, status=503, code="SlowDown"),
    ],
)
async def test_delete_arrives_when_attempts_fail(fault: Fault) -> None:
    """A tombstone is sent until the origin has confirmed it."""
    async with running_engine(flush=QUICK, answer_s=0.5) as running:
        running.origin.store.put(BUCKET, "k", b"old")
        running.origin.faults.add(fault)

        await delete(running, "k")
        await flushed(running)

        assert at_origin(running) is None
        assert await listed(running) == []


async def test_attempt_that_lands_late_does_not_stay_over_a_newer_state() -> None:
    """An attempt that timed out here and is carried out there after a newer one has succeeded is sent over once more."""
    async with running_engine(flush=QUICK, answer_s=0.2) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.faults.add(Fault(operation="PutObject", delay_s=0.5))

        await running.put("k", b"first, slow")
        await until(lambda: running.origin.requests_of("PutObject") == 1)
        await running.put("k", b"second")
        await flushed(running)

        landed = running.origin.store.etags(BUCKET, "k")
        assert landed.count(md5(b"first, slow")) == 1
        assert landed[-1] == md5(b"second")
        await pause(0.3)
        assert at_origin(running) == b"second"


async def test_late_delete_does_not_take_a_newer_object() -> None:
    """A delete without an answer that is carried out after a newer put has been accepted does not lose the object."""
    async with running_engine(flush=QUICK, answer_s=0.2) as running:
        await running.put("k", b"old")
        await flushed(running)
        running.origin.faults.add(Fault(operation="DeleteObject", delay_s=0.7))

        await delete(running, "k")
        await until(lambda: running.origin.requests_of("DeleteObject") == 1)
        await running.put("k", b"new")
        await flushed(running)

        await pause(0.5)
        assert at_origin(running) == b"new"


async def test_another_writers_object_stays_when_it_came_after_ours() -> None:
    """A check that finds neither ours nor an attempt of ours leaves it alone, and what is cached is forgotten."""
    async with running_engine(flush=QUICK, answer_s=0.2) as running:
        running.origin.faults.add(Fault(operation="PutObject", drop="after"))
        await running.put("k", b"ours")
        await until(lambda: len(running.origin.store.etags(BUCKET, "k")) >= 2)

        running.origin.store.put(BUCKET, "k", b"theirs")
        await flushed(running)

        assert at_origin(running) == b"theirs"
        assert (await running.get("k")).data == b"theirs"


async def test_check_that_fails_is_one_request_however_often_it_is_made() -> None:
    """The planner asks again later and later; a read that was retried as well would ask four times each time."""
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(
            Fault(operation="PutObject", status=500, is_processed=True),
            Fault(operation="HeadObject", times=5, status=500),
        )

        await running.put("k", b"body")
        await flushed(running)

        story = running.engine._components.planner.story(NAME)
        assert len([line for line in story if "HEAD: failed" in line]) == 5
        assert at_origin(running) == b"body"


async def test_error_inside_a_200_of_a_complete_is_a_failure() -> None:
    """A Complete that answers 200 with an error document, after blanks, is tried again; nothing is lost (B58)."""
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(
            Fault(operation="CompleteMultipartUpload", times=1, error_in_200="InternalError", status=500)
        )

        made = await upload(running, "k", [b"a" * PART, b"b"])
        await flushed(running)

        assert running.origin.store.buckets[BUCKET].objects["k"].etag == made.etag
        assert running.origin.requests_of("UploadPart") == 2
        assert running.origin.store.uploads == {}


async def test_complete_without_an_answer_is_settled_by_looking_and_not_sent_again() -> None:
    """A Complete that landed without an answer costs no second upload."""
    async with running_engine(flush=QUICK, answer_s=0.5) as running:
        running.origin.faults.add(Fault(operation="CompleteMultipartUpload", drop="after"))

        made = await upload(running, "k", [b"a" * PART, b"b"])
        await flushed(running)

        assert running.origin.store.etags(BUCKET, "k") == [made.etag]
        assert running.origin.requests_of("CreateMultipartUpload") == 1
        assert (await head(running, "k")).etag == made.etag


async def test_origin_with_other_etags_is_a_success_and_the_bucket_is_marked() -> None:
    """A confirmed put under another ETag keeps both: ours for clients, the origin's for asking; further writes go through."""
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(Fault(operation="PutObject", etag="another", times=3))

        for key in ("k", "l", "m"):
            await running.put(key, b"body")
            await flushed(running)
        record = await head(running, "k")
        await running.put("next", b"through")

        assert record.etag == md5(b"body")
        assert record.origin is not None
        assert record.origin.etag == "another"
        assert at_origin(running, "next") == b"through"


async def test_bucket_is_not_marked_when_one_put_is_answered_with_another_etag() -> None:
    """One odd answer among good ones does not turn the bucket's write-back off."""
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(Fault(operation="PutObject", etag="another", times=1))
        await running.put("k", b"body")
        await flushed(running)
        hold = running.origin.hold("PUT", "bucket/next")

        await running.put("next", b"acknowledged before the origin has it")

        hold.open()
        await flushed(running)
        assert at_origin(running, "next") == b"acknowledged before the origin has it"


class Rotating:
    """Credentials that are replaced when the origin refuses them, once there are others."""

    def __init__(self) -> None:
        self.current = Credentials("old", "secret")

    async def credentials(self) -> Credentials:
        """Give the current ones."""
        return self.current

    def refused(self, credentials: Credentials) -> bool:
        """Whether there are others."""
        return credentials != self.current


async def test_flush_goes_on_alone_when_expired_credentials_are_replaced() -> None:
    """ExpiredToken suspends the bucket, visibly; with new keys everything arrives (B59)."""
    rotating = Rotating()
    async with running_engine(flush=QUICK, credentials=rotating) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.keys = {"old": "secret", "new": "secret"}
        running.origin.expired.add("old")

        for n in range(5):
            await running.put(f"k{n}", b"%d" % n)
        await until(lambda: bool(running.engine.status().suspended_buckets))
        reason = dict(running.engine.status().suspended_buckets)[BUCKET]
        rotating.current = Credentials("new", "secret")
        await until(lambda: running.engine.status().pending_objects == 0)

        assert "ExpiredToken" in reason
        assert [at_origin(running, f"k{n}") for n in range(5)] == [b"%d" % n for n in range(5)]


async def test_clock_that_is_off_is_learnt_and_costs_nothing() -> None:
    """RequestTimeTooSkewed teaches the offset; the flush arrives."""
    async with running_engine(flush=QUICK) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.keys = {"key": "secret"}
        running.origin.clock_offset_s = 3600.0

        await running.put("k", b"body")
        await flushed(running)

        assert at_origin(running) == b"body"


@pytest.mark.parametrize("code", ["NoSuchBucket", "AccessDenied"])
async def test_bucket_that_refuses_all_is_suspended_and_others_go_on(code: str) -> None:
    """A refusal of the whole bucket holds back its changes, not those of others; it is probed seldom, and kept (B15)."""
    async with running_engine(flush=QUICK) as running:
        running.origin.store.create_bucket("other")
        await running.engine.bucket_facts(BUCKET)
        await running.engine.bucket_facts("other")
        status = {"NoSuchBucket": 404, "AccessDenied": 403}[code]
        running.origin.faults.add(
            Fault(operation="PutObject", key=f"{BUCKET}/*", times=-1, status=status, code=code)
        )

        for n in range(5):
            await running.put(f"k{n}", b"%d" % n)
        await running.put("k", b"other", bucket="other")
        await flushed(running, "other")
        asked = running.origin.requests_of("PutObject")
        await pause(0.3)

        assert at_origin(running, bucket="other") == b"other"
        assert code in dict(running.engine.status().suspended_buckets)[BUCKET]
        assert running.engine.status().pending_objects == 5
        assert running.origin.requests_of("PutObject") - asked <= 10
        report = await settled(running, BUCKET)
        assert (report.is_reached, report.remaining) == (False, 5)
        assert {code in line.reason for line in report.blocked} == {True}

        running.origin.faults.clear()
        await until(lambda: running.engine.status().pending_objects == 0)
        assert running.engine.status().suspended_buckets == ()


# --- quarantine ---------------------------------------------------------------------------------------------------------


async def quarantine(running: RunningEngine, key: str = "k", data: bytes = b"refused") -> None:
    """Write an object that the origin refuses for good."""
    running.origin.faults.add(
        Fault(operation="PutObject", key=f"{BUCKET}/{key}", status=400, code="InvalidStorageClass")
    )
    await running.put(key, data)
    report = await settled(running)
    assert not report.is_reached


async def test_refused_object_is_quarantined_visible_and_readable() -> None:
    """What the origin refuses for good blocks nothing, is shown with its reason, and is answered from the cache."""
    async with running_engine(flush=QUICK) as running:
        await quarantine(running)
        await running.put("next", b"next")
        await until(lambda: running.engine.status().pending_objects == 0)

        (line,) = running.engine.status().quarantined
        assert at_origin(running, "next") == b"next"
        assert (line.key, line.state) == ("k", "quarantined")
        assert "InvalidStorageClass" in line.reason
        assert (await running.get("k")).data == b"refused"
        assert [entry.key for entry in await listed(running)] == ["k", "next"]


async def test_quarantined_change_is_sent_again_on_command() -> None:
    """The operator has it tried once more."""
    async with running_engine(flush=QUICK) as running:
        await quarantine(running)

        assert await running.engine.retry_quarantined(BUCKET, "") == 1
        await flushed(running)

        assert at_origin(running) == b"refused"
        assert running.engine.status().quarantined == ()


async def test_quarantined_change_is_given_up_on_command() -> None:
    """The operator has it dropped: the origin's state shows again. A key that is not quarantined is left alone."""
    async with running_engine(flush=QUICK, policy=Policy()) as running:
        running.origin.store.put(BUCKET, "k", b"old")
        await quarantine(running)

        (refused,) = running.engine.status().quarantined
        assert await running.engine.discard_quarantined(BUCKET, "k", refused.sequence) == 1
        assert await running.engine.discard_quarantined(BUCKET, "k", refused.sequence) == 0

        assert (await running.get("k")).data == b"old"
        assert running.engine.status().quarantined == ()
        assert running.engine.status().cache_dirty_bytes == 0


async def test_a_newer_change_stays_when_the_one_that_was_listed_is_given_up() -> None:
    """A write that came after the list was made, refused too by now, is not what the operator has given up."""
    async with running_engine(flush=QUICK, policy=Policy()) as running:
        await quarantine(running)
        (listed,) = running.engine.status().quarantined
        await quarantine(running, data=b"newer")

        assert await running.engine.discard_quarantined(BUCKET, "k", listed.sequence) == 0

        (newer,) = running.engine.status().quarantined
        assert (await running.get("k")).data == b"newer"
        assert await running.engine.discard_quarantined(BUCKET, "k", newer.sequence) == 1


@pytest.mark.parametrize(
    "how", ["put", "delete", "complete", "put through", "delete through", "complete through"]
)
async def test_unconditional_write_replaces_what_is_quarantined(how: str) -> None:
    """A put, delete or Complete, from the disk or through, takes the place of the refused change for good."""
    async with running_engine(flush=QUICK) as running:
        running.origin.store.put(BUCKET, "k", b"old")
        await quarantine(running)
        if how.endswith("through"):
            running.use(Policy(write=WriteMode.THROUGH))

        if how.startswith("put"):
            await running.put("k", b"new")
        elif how.startswith("delete"):
            await delete(running, "k")
        else:
            upload_id = await open_upload(running, "k")
            await put_part(running, "k", upload_id, 1, b"new")
            await complete(running, "k", upload_id, {1: b"new"})
        await flushed(running)

        assert at_origin(running) == (None if how.startswith("delete") else b"new")
        assert running.engine.status().quarantined == ()
        assert running.engine.status().cache_dirty_bytes == 0
        await running.engine.retry_quarantined("", "")
        await pause(0.05)
        assert at_origin(running) == (None if how.startswith("delete") else b"new")


async def test_other_operations_on_a_quarantined_key_are_refused_with_the_reason() -> None:
    """A conditional put, and a copy to or from the key, need the origin to hold what it refused."""
    async with running_engine(flush=QUICK) as running:
        await quarantine(running)
        copies = [(NAME, ObjectName(BUCKET, "copy")), (ObjectName(BUCKET, "source"), NAME)]
        running.origin.store.put(BUCKET, "source", b"source")

        with pytest.raises(QuarantinedError, match="InvalidStorageClass"):
            await put_through(
                running, "k", b"x", origin_reason="conditional", origin_headers=(("if-none-match", "*"),)
            )
        for source, target in copies:
            with pytest.raises(QuarantinedError, match="InvalidStorageClass"):
                await running.engine.copy_object(source, target, ())

        assert at_origin(running, "copy") is None
        assert (await running.get("k")).data == b"refused"


async def test_quarantine_survives_a_kill() -> None:
    """A killed gateway comes back with the refused change where it was, not tried again."""
    async with running_engine(flush=QUICK) as running:
        await quarantine(running)
        await until(lambda: bool(running.engine.pending(BUCKET, "", 1).lines[0].reason))
        await pause(0.05)
        disk, index_home = running.stop_uncleanly()

    async with running_engine(filesystem=disk, index_home=index_home, flush=QUICK) as running:
        await pause(0.1)

        (line,) = running.engine.status().quarantined
        assert (line.key, "InvalidStorageClass" in line.reason) == ("k", True)
        assert running.origin.requests_of("PutObject") == 0
        assert (await running.get("k")).data == b"refused"


# --- barriers -----------------------------------------------------------------------------------------------------------


async def test_barrier_tells_progress_and_then_that_it_is_reached() -> None:
    """Total stays, remaining falls; what is written after its start is not waited for; the end can be asked for twice."""
    async with running_engine(flush=FlushSettings(concurrency=1)) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.latency_s = 0.03
        for n in range(8):
            await running.put(f"k{n}", b"x")

        started = running.engine.start_barrier(BUCKET, "")
        await running.put("later", b"x")
        seen = [started]
        while not seen[-1].is_reached:
            seen.append(await running.engine.wait_barrier(started.barrier_id, 0.02))
        again = await running.engine.wait_barrier(started.barrier_id, 1.0)

        assert {report.total for report in seen} == {started.total}
        assert started.total >= 7
        remaining = [report.remaining for report in seen]
        assert remaining == sorted(remaining, reverse=True)
        assert remaining[-1] == 0
        assert again == seen[-1]
        assert all(at_origin(running, f"k{n}") == b"x" for n in range(8))


async def test_barrier_of_nothing_is_reached_at_once() -> None:
    """Where nothing is dirty there is nothing to wait for."""
    async with running_engine() as running:
        started = running.engine.start_barrier("", "")

        assert started == BarrierReport(started.barrier_id, is_reached=True, total=0, remaining=0)


async def test_barrier_keeps_to_its_prefix() -> None:
    """What lies outside of the prefix is neither hurried nor waited for."""
    async with running_engine(policy=Policy(flush_delay_s=60.0)) as running:
        await running.put("in/k", b"x")
        await running.put("out/k", b"x")

        started = running.engine.start_barrier(BUCKET, "in/")
        report = await running.engine.wait_barrier(started.barrier_id, 5.0)

        assert (report.is_reached, report.total) == (True, 1)
        assert at_origin(running, "in/k") == b"x"
        assert at_origin(running, "out/k") is None


async def test_blocked_barrier_names_what_is_left_and_why() -> None:
    """What cannot reach the origin without help ends the wait, with a line for each key; the rest has arrived."""
    async with running_engine(flush=QUICK) as running:
        await quarantine(running, "bad")
        await running.put("good", b"x")

        report = await settled(running)

        assert at_origin(running, "good") == b"x"
        assert (report.is_reached, report.remaining) == (False, 1)
        assert report.total >= report.remaining
        (line,) = report.blocked
        assert (line.bucket, line.key, line.state) == (BUCKET, "bad", "quarantined")
        assert "InvalidStorageClass" in line.reason


async def test_barriers_are_bounded() -> None:
    """Operators that never come back for their barriers cost a bounded number of them."""
    async with running_engine(policy=Policy(flush_delay_s=60.0)) as running:
        await running.engine.bucket_facts(BUCKET)
        for _ in range(200):
            running.engine.start_barrier("", "")
        running.origin.faults.add(Fault(times=-1, status=503, code="SlowDown"))
        await running.put("k", b"x")

        for _ in range(OPEN_MAX):
            running.engine.start_barrier("", "")
        with pytest.raises(OverloadedError):
            running.engine.start_barrier("", "")

        assert len(running.engine._components.flusher.waits) <= 200


async def test_drain_sends_what_is_held_back() -> None:
    """A drain waits for no delay, and says what is left."""
    async with running_engine(policy=Policy(flush_delay_s=60.0)) as running:
        await running.put("k", b"x")
        await delete(running, "gone")

        report = await running.engine.drain(5.0)

        assert (report.is_reached, report.remaining) == (True, 0)
        assert at_origin(running) == b"x"
        with pytest.raises(EngineClosedError):
            await running.put("more", b"x")


async def test_drain_says_what_is_left_when_the_origin_does_not_take_it() -> None:
    """The time given to a drain is a bound."""
    async with running_engine(flush=QUICK) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.faults.add(Fault(times=-1, status=503, code="SlowDown"))
        await running.put("k", b"x")

        report = await running.engine.drain(0.1)

        assert (report.is_reached, report.remaining) == (False, 1)


async def test_stop_frees_whoever_waits_for_a_flush() -> None:
    """A passed-through operation that waits for its key is told that the gateway stops, and not that its key is refused."""
    async with running_engine(flush=QUICK) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.faults.add(Fault(times=-1, status=503, code="SlowDown"))
        await running.put("k", b"x")
        waiting = asyncio.get_running_loop().create_task(put_through(running, "k", b"y"))
        await pause(0.05)

        await running.engine.close()

        with pytest.raises((EngineClosedError, OverloadedError)):
            await waiting


async def test_operation_behind_a_suspended_bucket_is_told_to_come_back() -> None:
    """A key that cannot be flushed because its bucket is refused is no quarantined key: 503, not 409."""
    async with running_engine(flush=QUICK) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=403, code="AccessDenied"))
        await running.put("k", b"x")

        with pytest.raises(OriginUnavailableError, match="AccessDenied"):
            await put_through(running, "k", b"y")


# --- delays -------------------------------------------------------------------------------------------------------------


async def test_delay_holds_back_what_is_overwritten_and_sends_the_last_state_once() -> None:
    """States that were replaced within the delay never reach the origin."""
    async with running_engine(policy=Policy(flush_delay_s=0.4)) as running:
        for n in range(10):
            await running.put("k", b"%d" % n)
            await pause(0.01)
        assert running.origin.requests_of("PutObject") == 0

        await until(lambda: at_origin(running) is not None)

        assert running.origin.store.etags(BUCKET, "k") == [md5(b"9")]
        assert running.origin.requests_of("PutObject") == 1


async def test_key_that_is_overwritten_without_a_pause_is_sent_all_the_same() -> None:
    """However many writers keep a key busy, what they write reaches the origin meanwhile."""
    async with running_engine(flush=QUICK, policy=Policy(flush_delay_s=0.05)) as running:
        is_over = False

        async def write() -> None:
            while not is_over:
                await running.put("k", b"x")

        async with asyncio.TaskGroup() as writers:
            for _ in range(4):
                writers.create_task(write())
            await until(lambda: running.origin.requests_of("PutObject") >= 3)
            is_over = True


async def test_change_near_its_deadline_goes_before_the_others() -> None:
    """A policy's deadline raises a change over older ones without one."""
    async with running_engine(flush=FlushSettings(concurrency=1, deadline_lead_s=5.0)) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.latency_s = 0.5  # of the first: all others are there before it is answered
        for n in range(10):
            await running.put(f"old{n}", b"x")
        running.use(Policy(flush_deadline_s=1.0))
        await running.put("due", b"x")
        running.origin.latency_s = 0.0
        await until(lambda: running.engine.status().pending_objects == 0)

        order = [entry.key for entry in running.origin.log if entry.operation == "PutObject"]
        assert order.index("due") <= 3


# --- what the flush keeps (B12, B13) ------------------------------------------------------------------------------------


async def test_single_object_is_the_same_before_and_after_its_flush() -> None:
    """B12, B13: ETag, date, headers, metadata, tags and checksums: at the gateway as before, at the origin as at the gateway."""
    headers = (
        ("content-type", "text/x"),
        ("cache-control", "max-age=5"),
        ("content-disposition", "inline"),
        ("content-encoding", "zstd"),
        ("content-language", "eo"),
        ("expires", "Thu, 01 Dec 2033 16:00:00 GMT"),
        ("x-amz-storage-class", "STANDARD_IA"),
        ("x-amz-website-redirect-location", "/other"),
    )
    meta = (("author", "me"), ("empty", ""), ("word", "=?UTF-8?B?w6k=?="))
    async with running_engine(flush=QUICK, policy=Policy(flush_delay_s=0.3)) as running:
        # The origin would give another date to what reaches it a second later.
        running.clock.ahead_s = -3.0
        await running.engine.put_object(
            request("k", headers=headers, user_metadata=meta, tags="a=1&b=%20x"), BytesContent(b"body")
        )
        before, entries_before = await head(running, "k"), await listed(running)
        await flushed(running)
        after, entries_after = await head(running, "k"), await listed(running)

        stored = running.origin.store.buckets[BUCKET].objects["k"]
        assert (stored.etag, stored.tags) == (md5(b"body"), "a=1&b=%20x")
        assert {**dict(headers), **{f"x-amz-meta-{name}": value for name, value in meta}} == stored.headers
        assert described(after) == described(before)
        assert [shown(entry) for entry in entries_after] == [shown(entry) for entry in entries_before]


def described(record: ObjectRecord) -> tuple[object, ...]:
    """Give what a client sees of a record."""
    metadata = (record.headers, record.user_metadata, record.tags, record.checksums, record.parts)
    return (record.size, record.etag, record.last_modified_s, *metadata)


def shown(entry: ListEntry) -> tuple[object, ...]:
    """Give what a listing shows of a key; the origin may have added a checksum of its own."""
    return (entry.key, entry.size, entry.etag, entry.last_modified_s, entry.storage_class)


async def test_multipart_object_is_flushed_with_the_clients_part_boundaries() -> None:
    """B13: parts of 5 and 6 MiB and a rest give the same ETag everywhere, and the same date before and after."""
    parts = [b"a" * PART, b"b" * (6 * 1024 * 1024), b"c"]
    async with running_engine(flush=QUICK, policy=Policy(flush_delay_s=0.3)) as running:
        running.clock.ahead_s = -3.0
        made = await upload(running, "k", parts)
        before, entries_before = await head(running, "k"), await listed(running)
        await flushed(running)
        after, entries_after = await head(running, "k"), await listed(running)

        stored = running.origin.store.buckets[BUCKET].objects["k"]
        assert made.etag == stored.etag == etag_of(parts)
        assert stored.part_sizes == tuple(len(part) for part in parts)
        assert described(after) == described(before)
        assert [shown(entry) for entry in entries_after] == [shown(entry) for entry in entries_before]


async def test_overwrite_without_tags_clears_the_tags_at_the_origin() -> None:
    """Each state is sent whole: what the new one does not have is gone."""
    async with running_engine(flush=QUICK) as running:
        await running.engine.put_object(request("k", tags="a=1"), BytesContent(b"one"))
        await flushed(running)
        await running.put("k", b"two")
        await flushed(running)

        assert running.origin.store.buckets[BUCKET].objects["k"].tags == ""


# --- restart ------------------------------------------------------------------------------------------------------------


async def test_everything_dirty_arrives_after_a_kill() -> None:
    """A new engine over a killed one's directory sends all that was acknowledged: puts, deletes and uploads."""
    async with running_engine(policy=Policy(flush_delay_s=60.0)) as running:
        running.origin.store.put(BUCKET, "gone", b"old")
        for n in range(20):
            await running.put(f"k{n}", b"%d" % n * (n * 3000 + 1))
        await delete(running, "gone")
        await upload(running, "big", [b"a" * PART, b"b"])
        disk, index_home = running.stop_uncleanly()
        origin_store = running.origin.store

    async with running_engine(filesystem=disk, index_home=index_home, flush=QUICK) as running:
        running.origin.store = origin_store
        await flushed(running)

        assert [at_origin(running, f"k{n}") for n in range(20)] == [
            b"%d" % n * (n * 3000 + 1) for n in range(20)
        ]
        assert at_origin(running, "gone") is None
        assert at_origin(running, "big") == b"a" * PART + b"b"
        assert running.engine.status().cache_dirty_bytes == 0


async def test_upload_at_the_origin_goes_on_after_a_kill() -> None:
    """Parts that the origin has are not sent again by the next process, and nothing is left open there."""
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(
            Fault(operation="UploadPart", skip=2, times=-1, status=503, code="SlowDown")
        )
        made = await upload(running, "k", [b"a" * PART, b"b" * PART, b"c"])
        await until(lambda: running.origin.requests_of("UploadPart") >= 3)
        disk, index_home = running.stop_uncleanly()
        origin_store = running.origin.store

    async with running_engine(filesystem=disk, index_home=index_home, flush=QUICK) as running:
        running.origin.store = origin_store
        await flushed(running)

        assert running.origin.requests_of("UploadPart") == 1
        assert running.origin.requests_of("CreateMultipartUpload") == 0
        assert origin_store.buckets[BUCKET].objects["k"].etag == made.etag
        assert origin_store.uploads == {}


async def test_attempt_of_a_killed_process_does_not_stay_over_a_newer_state() -> None:
    """What the process before had under way may land late: a state that was written since is sent again over it."""
    async with running_engine(policy=Policy(flush_delay_s=60.0)) as running:
        await running.put("k", b"of the old process")
        disk, index_home = running.stop_uncleanly()

    async with running_engine(filesystem=disk, index_home=index_home, flush=QUICK) as running:
        await running.put("k", b"new")
        await until(lambda: at_origin(running) == b"new")
        running.origin.store.put(BUCKET, "k", b"of the old process")
        await flushed(running)

        assert at_origin(running) == b"new"
