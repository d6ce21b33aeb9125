"""Warm-up jobs in a whole engine, for tests."""

from storage.warm_jobs import WarmEntry, WarmKind, WarmReport, WarmRequest
from tests.fakes.running_engine import BUCKET, RunningEngine


def fill_origin(running: RunningEngine, count: int, size: int = 1000) -> None:
    """Put objects of one size under data/ at the origin."""
    for number in range(count):
        running.origin.store.put(BUCKET, f"data/k{number:04}", bytes([number % 256]) * size)


async def warm(running: RunningEngine, request: WarmRequest) -> WarmReport:
    """Run a job to its end."""
    started = running.engine.warmer.start(request)
    return await ended(running, started.job_id)


async def ended(running: RunningEngine, job_id: int) -> WarmReport:
    """Wait for the end of a job."""
    report = await running.engine.warmer.wait(job_id, 20.0)
    assert report.is_over, report
    return report


def under(prefix: str = "data/", **more: object) -> WarmRequest:
    """Ask for a prefix."""
    return WarmRequest(WarmKind.PREFIX, BUCKET, prefix, **more)  # type: ignore[arg-type]  # named in each test


def names(*keys: str) -> list[WarmEntry]:
    """List keys."""
    return [WarmEntry(BUCKET, key) for key in keys]
