"""What the operator is shown of an engine."""

import pytest

from storage.flush_events import FlushSettings
from storage.policy import Policy
from storage.requests import PendingLine
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, running_engine
from tests.fakes.writing import delete, flushed, open_upload, put_part, settled, until

QUICK = FlushSettings(
    origin_timeout_s=0.6, retry_s_min=0.02, retry_s_max=0.1, probe_s_min=0.05, probe_s_max=0.1
)
HELD = Policy(flush_delay_s=60.0)


def keys(lines: tuple[PendingLine, ...]) -> list[str]:
    """Name the keys of some lines."""
    return [line.key for line in lines]


async def test_pending_lists_what_is_not_at_the_origin_oldest_first() -> None:
    """Each key has one line, of its newest change, with its kind, size and state."""
    async with running_engine(policy=HELD) as running:
        await running.put("b", b"12345")
        await running.put("a", b"x")
        await delete(running, "gone")
        await running.put("b", b"123")

        lines = running.engine.pending("", "", 10).lines

        assert [(line.key, line.size, line.is_tombstone, line.state) for line in lines] == [
            ("a", 1, False, "held"),
            ("gone", 0, True, "held"),
            ("b", 3, False, "held"),
        ]
        assert all(line.acknowledged_at_s > 0 for line in lines)


@pytest.mark.parametrize(
    ("bucket", "prefix", "limit", "shown"),
    [
        ("", "", 100, ["a/1", "a/2", "b", "a/1"]),
        (BUCKET, "", 100, ["a/1", "a/2", "b"]),
        (BUCKET, "a/", 100, ["a/1", "a/2"]),
        (BUCKET, "a/", 1, ["a/1"]),
        ("", "", 0, []),
        ("none", "", 100, []),
    ],
)
async def test_pending_keeps_to_its_scope_and_limit(
    bucket: str, prefix: str, limit: int, shown: list[str]
) -> None:
    """Bucket, prefix and limit hold; nothing is shown where nothing is wanted."""
    async with running_engine(policy=HELD) as running:
        running.origin.store.create_bucket("other")
        for key in ("a/1", "a/2", "b"):
            await running.put(key, b"x")
        await running.put("a/1", b"x", bucket="other")

        assert keys(running.engine.pending(bucket, prefix, limit).lines) == shown


async def test_pending_says_why_a_change_does_not_arrive() -> None:
    """A change that is tried again shows its attempts and the last reason."""
    async with running_engine(flush=FlushSettings(retry_s_min=0.02, retry_s_max=0.05)) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=503, code="SlowDown"))
        await running.put("k", b"x")
        await until(lambda: running.engine.pending("", "", 1).lines[0].attempts >= 2)

        (line,) = running.engine.pending("", "", 1).lines

        assert "SlowDown" in line.reason
        assert line.state in {"waiting for a retry", "queued", "in flight"}


async def test_status_adds_up() -> None:
    """Pending, dirty, used, open uploads and age are those of what was written."""
    async with running_engine(policy=HELD) as running:
        await running.put("a", b"x" * 100_000)
        await running.put("b", b"x")
        upload_id = await open_upload(running, "c")
        await put_part(running, "c", upload_id, 1, b"x" * 50_000)
        running.clock.ahead_s = 30.0

        status = running.engine.status()

        assert (status.pending_objects, status.pending_bytes) == (2, 100_001)
        assert status.cache_dirty_bytes == 150_001
        assert status.cache_used_bytes >= 150_000
        assert status.open_uploads == 1
        assert 29.0 <= status.oldest_pending_s <= 40.0
        assert (status.is_writable, status.failure, status.is_draining) == (True, "", False)
        assert status.instance_id == running.engine.instance_id


async def test_status_of_a_clean_engine_has_nothing_pending() -> None:
    """After a flush nothing is old, dirty or pending."""
    async with running_engine() as running:
        await running.put("k", b"x" * 100_000)
        await flushed(running)

        status = running.engine.status()

        assert (status.pending_objects, status.pending_bytes, status.oldest_pending_s) == (0, 0, 0.0)
        assert (status.cache_dirty_bytes, status.quarantined, status.suspended_buckets) == (0, (), ())
        assert status.origin_requests > 0


async def test_status_names_quarantined_changes_and_suspended_buckets() -> None:
    """What needs a person is shown with its reason; it does not count as pending."""
    async with running_engine(flush=QUICK) as running:
        running.origin.store.create_bucket("denied")
        running.origin.faults.add(
            Fault(operation="PutObject", key=f"{BUCKET}/bad", status=400, code="InvalidStorageClass"),
            Fault(operation="PutObject", key="denied/*", times=-1, status=403, code="AccessDenied"),
        )
        await running.put("bad", b"x")
        await running.put("k", b"x", bucket="denied")
        await settled(running)

        status = running.engine.status()

        assert [(line.bucket, line.key) for line in status.quarantined] == [(BUCKET, "bad")]
        assert "InvalidStorageClass" in status.quarantined[0].reason
        assert [bucket for bucket, _ in status.suspended_buckets] == ["denied"]
        assert status.pending_objects == 1
        (line,) = list(running.engine.pending("denied", "", 10).lines)
        assert "AccessDenied" in line.reason


async def test_levels_that_telemetry_shows_follow_the_engine() -> None:
    """Gauges of dirty, clean and pending come from the same books as the status."""
    async with running_engine(policy=HELD) as running:
        await running.put("k", b"x" * 100_000)
        stats = running.engine.stats
        await until(lambda: stats.pending_objects == 1)
        assert (stats.pending_bytes, stats.cache_dirty_bytes, stats.cache_clean_bytes) == (
            100_000,
            100_000,
            0,
        )
        assert stats.oldest_pending_at_s > 0

        await flushed(running)
        await until(lambda: stats.pending_objects == 0)
        assert (stats.cache_dirty_bytes, stats.cache_clean_bytes) == (0, 100_000)
        assert (stats.oldest_pending_at_s, stats.quarantined_objects) == (0.0, 0)
