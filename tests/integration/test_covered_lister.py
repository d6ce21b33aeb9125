"""Listings while the origin fails: what was listed before, marked, and never less than there was."""

import pytest

from storage.errors import NoSuchBucketError, OriginUnavailableError
from storage.listing import ListQuery
from storage.policy import Freshness, FreshnessMode, Policy
from storage.types import ObjectName
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine

TTL = Policy(freshness=Freshness(FreshnessMode.TTL, ttl_s=60.0, stale_s=3600.0))
QUERY = ListQuery(BUCKET, "data/")


def filled(running: RunningEngine) -> None:
    """Put two objects at the origin."""
    for key in ("data/one", "data/two"):
        running.origin.store.put(BUCKET, key, b"x")


def fail(running: RunningEngine) -> None:
    """Have the origin answer nothing but errors."""
    running.origin.faults.add(Fault(status=502, times=-1))


async def keys(running: RunningEngine, query: ListQuery = QUERY) -> tuple[list[str], str]:
    """List; give the keys, and why they are those of before."""
    page = await running.engine.list_objects(query)
    return [entry.key for entry in page.entries], page.stale_reason


async def test_page_that_was_listed_covers_for_a_while_and_says_so() -> None:
    """The same page as before, stale, for as long as the policy lets cached objects cover; then the error; then the origin again."""
    async with running_engine(policy=TTL) as running:
        filled(running)
        before = await keys(running)
        fail(running)
        running.clock.ahead_s = 3000.0
        covered = await keys(running)
        running.clock.ahead_s = 3700.0
        with pytest.raises(OriginUnavailableError):
            await keys(running)
        running.origin.faults.clear()
        running.origin.store.put(BUCKET, "data/three", b"x")
        after = await keys(running)

        assert before == (["data/one", "data/two"], "")
        assert (covered[0], covered[1].startswith("origin: ")) == (before[0], True)
        assert after == (["data/one", "data/three", "data/two"], "")


async def test_nothing_is_made_up_of_what_the_cache_holds() -> None:
    """A prefix that was not listed is not listed now, though objects of it are cached."""
    async with running_engine(policy=TTL) as running:
        filled(running)
        await running.get("data/one")
        await keys(running, ListQuery(BUCKET, "data/", max_keys=1))
        fail(running)

        with pytest.raises(OriginUnavailableError):
            await keys(running)


@pytest.mark.parametrize("what", ["put", "delete"])
async def test_own_write_ends_the_page(what: str) -> None:
    """What was written here since shows in every listing, or there is none."""
    async with running_engine(policy=TTL) as running:
        filled(running)
        await running.put("known", b"the bucket's facts are known from here on")
        await keys(running)
        fail(running)
        if what == "put":
            await running.put("data/new", b"x")
        else:
            await running.engine.delete_object(ObjectName(BUCKET, "data/one"))

        with pytest.raises(OriginUnavailableError):
            await keys(running)


async def test_always_is_never_covered() -> None:
    """Where each read asks the origin, so does each listing."""
    async with running_engine(policy=Policy(freshness=Freshness(FreshnessMode.ALWAYS))) as running:
        filled(running)
        await keys(running)
        fail(running)

        with pytest.raises(OriginUnavailableError):
            await keys(running)


async def test_refusal_is_an_answer() -> None:
    """A bucket that is gone is not covered, and forgotten."""
    async with running_engine(policy=TTL) as running:
        filled(running)
        await keys(running)
        del running.origin.store.buckets[BUCKET]
        with pytest.raises(NoSuchBucketError):
            await keys(running)
        fail(running)

        with pytest.raises(OriginUnavailableError):
            await keys(running)


async def test_pages_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest pages go when their lines are too many, and their watches with them."""
    monkeypatch.setattr("storage.covered_lister.LINES_KEPT_MAX", 5)
    async with running_engine(policy=TTL) as running:
        filled(running)
        other = ListQuery(BUCKET, "", max_keys=2)
        await keys(running)
        await keys(running, other)
        fail(running)

        assert (await keys(running, other))[1]
        with pytest.raises(OriginUnavailableError):
            await keys(running)
