"""Policy `on_conflict = quarantine`: another writer's object is never written over, and our own is never taken for one."""

import pytest

from storage.errors import BaseUnknownError, OriginRefusedError
from storage.flush_events import FlushSettings
from storage.policy import OnConflict, Policy
from storage.records import DirtyEntry
from storage.requests import PutRequest
from storage.types import MIB, ObjectName, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, running_engine
from tests.fakes.writing import PART, delete, flushed, md5, pause, request, settled, until, upload

QUICK = FlushSettings(
    origin_timeout_s=0.6, retry_s_min=0.02, retry_s_max=0.1, probe_s_min=0.05, probe_s_max=0.1
)
GUARDED = Policy(on_conflict=OnConflict.QUARANTINE)
HELD = Policy(on_conflict=OnConflict.QUARANTINE, flush_delay_s=600)
"""A barrier flushes it; until then another writer has all the time there is."""


def at_origin(running: RunningEngine, key: str = "k") -> bytes | None:
    """Read at the origin."""
    return running.origin.store.body(BUCKET, key)


def reasons(running: RunningEngine) -> dict[str, str]:
    """Give what is quarantined, and why."""
    return {line.key: line.reason for line in running.engine.status().quarantined}


def entry_of(running: RunningEngine, key: str = "k") -> DirtyEntry:
    """Give a key's queued change."""
    entry = running.engine._components.dirty_rows.newest(ObjectName(BUCKET, key))
    assert entry is not None, key
    return entry


def once(key: str) -> PutRequest:
    """Make a request that must not write over anything."""
    return request(key, origin_reason="conditional", origin_headers=(("if-none-match", "*"),))


# --- another writer ------------------------------------------------------------------------------------------------------


async def test_puts_are_quarantined_when_another_writer_changed_made_or_deleted_the_object() -> None:
    """The origin keeps what the other writer made of it, ours stays readable, and the reason says what happened."""
    async with running_engine(policy=HELD, flush=QUICK) as running:
        store = running.origin.store
        for key in ("changed", "deleted", "alone"):
            store.put(BUCKET, key, b"before")
        for key in ("changed", "made", "deleted", "alone", "new"):
            await running.put(key, b"ours")
        theirs = store.put(BUCKET, "changed", b"theirs").etag
        store.put(BUCKET, "made", b"theirs")
        del store.buckets[BUCKET].objects["deleted"]

        await settled(running)

        assert [at_origin(running, key) for key in ("changed", "made", "deleted")] == [
            b"theirs",
            b"theirs",
            None,
        ]
        assert [at_origin(running, key) for key in ("alone", "new")] == [b"ours", b"ours"]
        assert reasons(running) == {
            "changed": f"another writer changed the object: it has ETag {theirs} now, and the write was accepted over "
            f"ETag {md5(b'before')}",
            "made": f"another writer changed the object: it has ETag {theirs} now, and the write was accepted over no object",
            "deleted": "another writer changed the object: it is gone now, and the write was accepted over "
            f"ETag {md5(b'before')}",
        }
        assert (await running.get("changed")).data == b"ours"


async def test_an_upload_is_quarantined_when_another_writer_came_and_wins_once_the_policy_says_so() -> None:
    """The Complete carries the condition. `overwrite` and a retry are the way to have ours after all; no part is sent again."""
    parts = [b"a" * PART, b"b"]
    async with running_engine(policy=HELD, flush=QUICK) as running:
        await upload(running, "k", parts)
        running.origin.store.put(BUCKET, "k", b"theirs")
        await settled(running)
        is_quarantined = "another writer" in reasons(running)["k"]
        sent = running.origin.requests_of("UploadPart")
        await running.engine.retry_quarantined(BUCKET, "k")
        await settled(running)
        still = at_origin(running)

        running.use(Policy())
        await running.engine.retry_quarantined(BUCKET, "k")
        await flushed(running)

        assert (is_quarantined, still) == (True, b"theirs")
        assert at_origin(running) == b"".join(parts)
        assert running.origin.requests_of("UploadPart") == sent == 2
        assert reasons(running) == {}


async def test_deletes_are_sent_singly_and_quarantined_when_another_writer_came() -> None:
    """Each object is looked at before its delete; what is not what the delete was accepted over stays."""
    keys = [f"k{n}" for n in range(40)]
    async with running_engine(policy=HELD, flush=QUICK) as running:
        for key in (*keys, "changed"):
            running.origin.store.put(BUCKET, key, b"before")
        for key in (*keys, "changed", "made", "never was"):
            await delete(running, key)
        for key in ("changed", "made"):
            running.origin.store.put(BUCKET, key, b"theirs")

        await settled(running)

        assert sorted(running.origin.store.buckets[BUCKET].objects) == ["changed", "made"]
        assert sorted(reasons(running)) == ["changed", "made"]
        assert running.origin.requests_of("DeleteObjects") == 0
        assert running.origin.requests_of("DeleteObject") == 41


async def test_what_is_written_through_or_under_the_default_asks_nothing_of_other_writers() -> None:
    """Only write-backs of the policy are guarded; of others the last writer wins, and the origin is not asked before."""
    async with running_engine(policy=GUARDED, flush=QUICK) as running:
        running.origin.store.put(BUCKET, "through", b"theirs")
        running.origin.store.put(BUCKET, "plain", b"theirs")
        await running.engine.put_object(request("through", mode=WriteMode.THROUGH), BytesContent(b"ours"))
        running.use(Policy(flush_delay_s=600))
        await running.put("plain", b"ours")
        asked = running.origin.requests_of("HeadObject")
        running.origin.store.put(BUCKET, "plain", b"theirs, later")
        await flushed(running)

        assert asked == 0
        assert (at_origin(running, "through"), at_origin(running, "plain")) == (b"ours", b"ours")


async def test_only_the_time_from_the_acknowledgement_to_the_flush_is_guarded() -> None:
    """What was there before is written over; of two writes through here the later wins; one without room here goes through."""
    async with running_engine(policy=HELD, flush=QUICK, dirty_bytes_limit=MIB, dirty_wait_s=0.05) as running:
        running.origin.store.put(BUCKET, "there before", b"robot A, before")
        running.origin.store.put(BUCKET, "no room", b"robot A, before")
        await running.put("there before", b"robot B")
        await running.put("twice", b"robot A")
        await running.put("twice", b"robot B")
        await running.put("no room", b"b" * MIB)
        passed = at_origin(running, "no room")
        await flushed(running)

        assert passed == b"b" * MIB
        assert [at_origin(running, key) for key in ("there before", "twice")] == [b"robot B", b"robot B"]
        assert reasons(running) == {}


async def test_a_name_is_never_written_over_when_the_client_says_if_none_match() -> None:
    """The second gets the origin's 412, whether the first is at the origin or waits here."""
    async with running_engine(policy=HELD, flush=QUICK) as running:
        running.origin.store.put(BUCKET, "there before", b"robot A")
        await running.put("waits here", b"robot A")

        for key in ("there before", "waits here"):
            with pytest.raises(OriginRefusedError) as refused:
                await running.engine.put_object(once(key), BytesContent(b"robot B"))
            assert refused.value.status == 412

        assert [at_origin(running, key) for key in ("there before", "waits here")] == [b"robot A"] * 2


async def test_an_origin_that_ignores_conditions_is_found_out_and_looked_at_before_each_put() -> None:
    """It is asked with one write to a name of ours that is removed; then a HEAD does what the condition would, and says so."""
    async with running_engine(policy=HELD, flush=QUICK) as running:
        store = running.origin.store
        store.heeds_conditions = False
        store.put(BUCKET, "changed", b"before")
        for key in ("changed", "alone"):
            await running.put(key, b"ours")
        await upload(running, "parts", [b"a" * PART, b"b"])
        for key in ("changed", "parts"):
            store.put(BUCKET, key, b"theirs")

        await settled(running)

        assert [at_origin(running, key) for key in ("changed", "parts", "alone")] == [
            b"theirs",
            b"theirs",
            b"ours",
        ]
        assert sorted(reasons(running)) == ["changed", "parts"]
        assert sorted(store.buckets[BUCKET].objects) == ["alone", "changed", "parts"]
        assert running.engine.status().ignoring_conditions == (BUCKET,)


async def test_an_origin_that_heeds_conditions_is_asked_once_and_nothing_is_written() -> None:
    """One request a bucket, whatever comes after; its name is drawn and lies where the policy does."""
    under = Policy(bucket=BUCKET, prefix="rec/", on_conflict=OnConflict.QUARANTINE, flush_delay_s=600)
    async with running_engine(policy=under, flush=QUICK) as running:
        for n in range(5):
            await running.put(f"rec/{n}", b"ours")
        await flushed(running)

        assert running.origin.requests_of("PutObject") == 6
        assert sorted(running.origin.store.buckets[BUCKET].objects) == [f"rec/{n}" for n in range(5)]
        assert running.engine.status().ignoring_conditions == ()


async def test_changes_are_sent_when_it_is_not_known_whether_conditions_are_heeded() -> None:
    """An origin that does not answer the question, or refuses it, is sent the changes with their conditions all the same."""
    under = Policy(bucket=BUCKET, prefix="rec/", on_conflict=OnConflict.QUARANTINE, flush_delay_s=600)
    for status, code, asked in ((500, "InternalError", 3), (403, "AccessDenied", 1)):
        async with running_engine(policy=under, flush=QUICK) as running:
            probes = f"{BUCKET}/rec/.forebay-probe-*"
            running.origin.faults.add(
                Fault(operation="PutObject", key=probes, times=-1, status=status, code=code)
            )
            for key in ("a", "b", "c", "d", "e"):
                await running.put(key, b"ours")
            running.origin.store.put(BUCKET, "e", b"theirs")
            await settled(running)

            assert running.origin.requests_of("PutObject") == asked + 5
            assert [at_origin(running, key) for key in "abcde"] == [b"ours"] * 4 + [b"theirs"]
            assert list(reasons(running)) == ["e"]
            running.origin.faults.clear()


# --- our own -------------------------------------------------------------------------------------------------------------


async def test_the_base_is_what_the_origin_held_when_each_write_was_accepted() -> None:
    """Asked by HEAD, taken from a fresh row or from our own flush, or inherited of a dirty change; deletes too."""
    async with running_engine(policy=HELD, flush=QUICK) as running:
        await running.put("k", b"1")
        first = entry_of(running)
        await running.put("k", b"2")
        inherited = entry_of(running)
        await flushed(running)
        await running.put("k", b"3")
        over_our_flush = entry_of(running)
        await flushed(running)
        await delete(running, "k")
        deleted = entry_of(running)
        await flushed(running)
        running.origin.store.put(BUCKET, "read", b"theirs")
        await running.get("read")
        asked = running.origin.requests_of("HeadObject")
        await running.put("read", b"ours")
        over_a_read = entry_of(running, "read")

        assert (first.base_etag, inherited.base_etag) == ("", "")
        assert (over_our_flush.base_etag, deleted.base_etag) == (md5(b"2"), md5(b"3"))
        assert over_a_read.base_etag == md5(b"theirs")
        assert running.origin.requests_of("HeadObject") == asked
        assert reasons(running) == {}


async def test_our_own_attempts_count_as_no_other_writer() -> None:
    """An attempt without an answer that landed, one that was overtaken in flight, and one that lands late: all end with ours."""
    async with running_engine(policy=GUARDED, flush=QUICK, answer_s=0.3) as running:
        faults = running.origin.faults
        await running.engine.bucket_facts(BUCKET)
        # Landed without an answer, then sent again; and landed, then replaced.
        faults.add(Fault(operation="PutObject", key=f"{BUCKET}/landed", drop="after"))
        faults.add(Fault(operation="PutObject", key=f"{BUCKET}/replaced", drop="after"))
        # Carried out only after a newer state has succeeded.
        faults.add(Fault(operation="PutObject", key=f"{BUCKET}/late", delay_s=0.7))
        gate = running.origin.hold("PUT", f"{BUCKET}/overtaken")
        for key in ("landed", "replaced", "late", "overtaken"):
            await running.put(key, b"first")
        await gate.reached.wait()
        await until(lambda: running.origin.requests_of("PutObject") >= 5)
        for key in ("replaced", "late", "overtaken"):
            await running.put(key, b"second")
        gate.open()

        await flushed(running)
        await pause(0.8)

        assert reasons(running) == {}
        assert at_origin(running, "landed") == b"first"
        assert [at_origin(running, key) for key in ("replaced", "late", "overtaken")] == [b"second"] * 3
        assert len(running.engine._components.conflicts) == 0


async def test_our_own_attempts_count_as_no_other_writer_after_a_crash() -> None:
    """What a process before sent is known from the journal, or sent by it for all one knows: neither is another writer's."""
    async with running_engine(policy=GUARDED, flush=QUICK, answer_s=0.3) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.store.put(BUCKET, "theirs", b"before")
        keys = ("before the crash", "after the crash", "not again")
        for key in keys:
            running.origin.faults.add(Fault(operation="PutObject", key=f"{BUCKET}/{key}", drop="after"))
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=503, code="SlowDown"))
        for key in keys:
            await running.put(key, b"first")
        await until(lambda: [at_origin(running, key) for key in keys] == [b"first"] * 3)
        await running.put("before the crash", b"second")
        await running.put("theirs", b"ours")
        filesystem, index_home = running.stop_uncleanly()
        # The engine that is left behind brings nothing to the origin any more: it has been killed.
        await running.engine.close()
        assert [at_origin(running, key) for key in keys] == [b"first"] * 3
        running.origin.store.put(BUCKET, "theirs", b"theirs")

        async with running_engine(
            origin=running.origin, filesystem=filesystem, index_home=index_home, policy=GUARDED, flush=QUICK
        ) as again:
            await again.put("after the crash", b"second")
            running.origin.faults.clear()
            await settled(again)

            assert at_origin(again, "before the crash") == b"second"
            assert at_origin(again, "after the crash") == b"second"
            assert at_origin(again, "not again") == b"first"
            assert at_origin(again, "theirs") == b"theirs"
            assert list(reasons(again)) == ["theirs"]


async def test_a_conflict_of_the_moment_is_tried_again() -> None:
    """409 ConditionalRequestConflict is no other writer's object: a put is sent again, an upload begun anew as AWS asks."""
    conflict = {"status": 409, "code": "ConditionalRequestConflict"}
    async with running_engine(policy=GUARDED, flush=QUICK) as running:
        running.origin.faults.add(Fault(operation="PutObject", **conflict))  # type: ignore[arg-type]  # two fields
        running.origin.faults.add(Fault(operation="CompleteMultipartUpload", **conflict))  # type: ignore[arg-type]  # two fields

        await running.put("k", b"body")
        await upload(running, "parts", [b"a" * PART, b"b"])
        await flushed(running)

        assert at_origin(running) == b"body"
        assert at_origin(running, "parts") == b"a" * PART + b"b"
        assert running.origin.requests_of("CreateMultipartUpload") == 2
        assert running.origin.store.uploads == {}
        assert reasons(running) == {}


async def test_conflicts_of_the_moment_suspend_no_bucket_when_there_are_many_in_a_row() -> None:
    """An origin that answers 409 is there: others of its bucket are flushed however often one key meets it."""
    conflict = {"status": 409, "code": "ConditionalRequestConflict"}
    async with running_engine(policy=GUARDED, flush=QUICK) as running:
        running.origin.faults.add(Fault(operation="PutObject", key=f"{BUCKET}/k*", times=-1, **conflict))  # type: ignore[arg-type]  # two fields
        for n in range(4):
            await running.put(f"k{n}", b"body")
        await until(lambda: running.origin.requests_of("PutObject") > 2 * QUICK.away_after)

        assert running.engine.status().suspended_buckets == ()
        running.origin.faults.clear()


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "AccessDenied", "lacks s3:ListBucket"),
        (400, "ExpiredToken", "the origin answered 400"),
        (500, "InternalError", "the origin answered 500"),
    ],
)
async def test_a_write_is_not_acknowledged_when_its_base_cannot_be_asked_for(
    status: int, code: str, said: str
) -> None:
    """However the origin does not say what it holds, a new key is told to come again and why; a fresh one is as ever."""
    async with running_engine(policy=HELD, flush=QUICK) as running:
        running.origin.store.put(BUCKET, "known", b"theirs")
        await running.get("known")
        running.origin.faults.add(Fault(operation="HeadObject", times=-1, status=status, code=code))

        for write in (running.put("k", b"body"), delete(running, "k")):
            with pytest.raises(BaseUnknownError, match=said) as raised:
                await write
            assert raised.value.retryable
        await running.put("known", b"ours")

        assert entry_of(running, "known").base_etag == md5(b"theirs")
        assert running.engine.status().pending_objects == 1
        running.origin.faults.clear()
