"""Sources and a target for tests of publishing over a running engine."""

from storage.flush_events import FlushSettings
from storage.listing import ListQuery
from storage.policy import Freshness, FreshnessMode, Policy, PolicyTable
from storage.publish import Target as PublishedTarget, View, decode_manifest
from storage.requests import PublishReport
from storage.types import ObjectName
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import (
    BUCKET,
    RunningEngine,
)

TARGET = "data/live/"
MANIFEST = f"{TARGET}.forebay-published"
FLUSH = FlushSettings(origin_timeout_s=1.0)
TTL = Freshness(ttl_s=60.0, stale_s=600.0)
ALWAYS = Freshness(FreshnessMode.ALWAYS)


def target(running: RunningEngine, freshness: Freshness = TTL) -> RunningEngine:
    """Put the target's policy in force."""
    policy = Policy(bucket=BUCKET, prefix=TARGET, published=True, freshness=freshness)
    running.policy[:] = [PolicyTable((policy,))]
    return running


async def store(running: RunningEngine, version: str, count: int = 3) -> None:
    """Write a source; the bytes of each object say of which it is."""
    for number in range(count):
        await running.put(f"staging/{version}/k{number}", f"{version}:{number}".encode())


async def publish(
    running: RunningEngine, version: str, *, is_copy: bool = False, wait_s: float = 20.0
) -> PublishReport:
    """Publish a source and wait for the end."""
    report = await running.engine.start_publish(BUCKET, f"staging/{version}/", TARGET, is_copy=is_copy)
    return await running.engine.wait_publish(report.publish_id, wait_s)


async def view(running: RunningEngine, key: str = "k0") -> View:
    """Say how a name under the target is read."""
    found = await running.engine.view(ObjectName(BUCKET, TARGET + key))
    assert found is not None
    return found


async def listed(running: RunningEngine, prefix: str = TARGET) -> tuple[int | None, list[str]]:
    """List a prefix; of which generation its last page was, and all keys."""
    page = await running.engine.list_objects(ListQuery(BUCKET, prefix))
    keys = [entry.key for entry in page.entries]
    while page.next_position is not None:
        page = await running.engine.list_objects(
            ListQuery(BUCKET, prefix, after=page.next_position, generation=page.generation)
        )
        keys += [entry.key for entry in page.entries]
    return page.generation, keys


def manifest_generation(origin: PausedOrigin) -> int:
    """Read the generation at the origin, 0 where there is no manifest."""
    body = origin.store.body(BUCKET, MANIFEST)
    return 0 if body is None else decode_manifest(body, PublishedTarget(BUCKET, TARGET)).generation
