"""What an engine says it has acknowledged, key by key."""

import pytest

from storage.acknowledgements import AcknowledgedLine
from storage.flush_events import FlushSettings
from storage.policy import Freshness, FreshnessMode, Policy
from storage.types import ObjectName, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, running_engine
from tests.fakes.writing import delete, flushed, md5, request, until, upload

HELD = Policy(flush_delay_s=60.0)
ALWAYS = Policy(freshness=Freshness(FreshnessMode.ALWAYS))
QUICK = FlushSettings(retry_s_min=0.02, retry_s_max=0.05)


def lines(running: RunningEngine, prefix: str = "", *, is_deep: bool = False) -> list[AcknowledgedLine]:
    """All lines, page by page."""
    found: list[AcknowledgedLine] = []
    after = ""
    while True:
        page = running.engine.acknowledged(BUCKET, prefix, after, is_deep=is_deep)
        found += page.lines
        if not page.next_after:
            return found
        after = page.next_after


async def test_what_was_written_here_is_listed_and_what_was_only_read_is_not() -> None:
    """Flushed and written through; a version that a read brought in was promised by nobody."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "read", b"theirs")
        await running.put("back", b"12345")
        await running.engine.put_object(request("through", mode=WriteMode.THROUGH), BytesContent(b"123"))
        await running.get("read")
        await running.fills_ended()
        await flushed(running)

        found = lines(running)

        assert [(line.key, line.size, line.etag, line.state) for line in found] == [
            ("back", 5, md5(b"12345"), ""),
            ("through", 3, md5(b"123"), ""),
        ]
        assert all(line.origin_etag == line.etag for line in found)


@pytest.mark.parametrize("mode", [None, WriteMode.THROUGH])
async def test_what_was_written_here_stays_listed_when_the_origin_was_asked_about_it(
    mode: WriteMode | None,
) -> None:
    """A revalidation learns the origin's date and changes nothing of what was promised; an upload's neither."""
    async with running_engine(policy=ALWAYS) as running:
        await running.engine.put_object(request("k", mode=mode), BytesContent(b"12345"))
        await upload(running, "made", [b"abc"])
        running.origin.store.put(BUCKET, "read", b"theirs")
        await flushed(running)
        for key in ("k", "made", "read"):
            await running.get(key)
            await running.fills_ended()
            await running.get(key)
        running.origin.store._delete(BUCKET, "k")

        found = lines(running)

        assert [(line.key, line.state) for line in found] == [("k", ""), ("made", "")]
        asked = running.engine._components.holdings.record(ObjectName(BUCKET, "k"))
        assert asked is not None
        assert asked.origin is not None
        assert asked.origin.last_modified_s > 0


async def test_dirty_changes_are_listed_with_their_state() -> None:
    """Puts and deletes that the origin has not confirmed, over what it has."""
    async with running_engine() as running:
        for key in ("kept", "overwritten", "deleted"):
            await running.put(key, b"old")
        await flushed(running)
        running.use(HELD)
        await running.put("overwritten", b"newer")
        await delete(running, "deleted")
        await running.put("new", b"x")

        found = {line.key: (line.size, line.state, line.is_tombstone) for line in lines(running)}

        assert found == {
            "deleted": (0, "held", True),
            "kept": (3, "", False),
            "new": (1, "held", False),
            "overwritten": (5, "held", False),
        }
        assert all(line.acknowledged_at_s > 0 for line in lines(running) if line.state)


async def test_a_refused_change_says_why() -> None:
    """Quarantine shows with the origin's words."""
    async with running_engine(flush=QUICK) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=400, code="InvalidRequest"))
        await running.put("k", b"x")
        await until(lambda: running.engine.acknowledged(BUCKET, "").lines[0].state == "quarantined")

        (line,) = lines(running)

        assert "InvalidRequest" in line.reason


async def test_a_confirmed_delete_leaves_nothing() -> None:
    """Nothing is promised of a key that is gone at the origin too."""
    async with running_engine() as running:
        await running.put("k", b"x")
        await flushed(running)
        await delete(running, "k")
        await flushed(running)

        assert lines(running) == []
        assert running.engine.acknowledged_of(ObjectName(BUCKET, "k")) is None


async def test_pages_together_hold_each_key_once_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean and dirty rows are merged over the ends of pages, within the prefix."""
    monkeypatch.setattr("storage.acknowledged.ROWS_MAX", 3)
    async with running_engine() as running:
        for number in range(10):
            await running.put(f"p/{number:02}", b"x")
        await flushed(running)
        running.use(HELD)
        for number in (0, 3, 4, 5, 6, 7, 12, 13):
            await running.put(f"p/{number:02}", b"yy")
        await running.put("q", b"x")

        found = lines(running, "p/")

        assert [line.key for line in found] == [f"p/{number:02}" for number in (*range(10), 12, 13)]
        assert [line.size for line in found if line.state] == [2] * 8


async def test_a_deep_page_says_all_that_can_be_compared() -> None:
    """Headers, metadata and the sizes of parts, as runs; a shallow one leaves them out."""
    async with running_engine() as running:
        described = request("put", headers=(("content-type", "text/plain"),), user_metadata=(("a", "1"),))
        await running.engine.put_object(described, BytesContent(b"x"))
        parts = [b"a" * 5_242_880, b"b" * 5_242_880, b"c"]
        await upload(running, "upload", parts)

        put, made = lines(running, is_deep=True)
        shallow = lines(running)

        assert put.headers == (("content-type", "text/plain"),)
        assert put.user_metadata == (("a", "1"),)
        assert put.part_runs == ()
        assert made.part_runs == ((5_242_880, 2), (1, 1))
        assert all(line.headers == () and line.part_runs == () for line in shallow)
        assert running.engine.acknowledged_of(ObjectName(BUCKET, "upload")) == made


async def test_quarantined_changes_are_paged_by_their_sequence() -> None:
    """Each refused change once, oldest first, and no others."""
    async with running_engine(flush=QUICK) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.faults.add(
            Fault(operation="PutObject", key="*/bad*", times=-1, status=400, code="InvalidRequest")
        )
        for key in ("bad1", "good", "bad2", "bad3"):
            await running.put(key, b"x")
        await until(lambda: len(running.engine.status().quarantined) == 3)

        first = running.engine.pending("", "", 2, is_quarantined=True).lines
        rest = running.engine.pending("", "", 2, first[-1].sequence, is_quarantined=True).lines

        assert [line.key for line in (*first, *rest)] == ["bad1", "bad2", "bad3"]
        assert running.engine.pending(BUCKET, "bad3", 9, is_quarantined=True).lines == rest


async def test_pending_changes_are_paged_by_their_sequence() -> None:
    """A page begins behind the sequence that it is told."""
    async with running_engine(policy=HELD) as running:
        for key in ("a", "b", "c"):
            await running.put(key, b"x")

        first = running.engine.pending(BUCKET, "", 2).lines
        rest = running.engine.pending(BUCKET, "", 2, first[-1].sequence).lines

        assert [line.key for line in (*first, *rest)] == ["a", "b", "c"]
