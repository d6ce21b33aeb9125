"""Listings while the origin fails: what was listed before, marked, and never less than there was."""

import pytest

from storage.errors import NoSuchBucketError, OriginUnavailableError
from storage.listing import ListQuery, Position
from storage.policy import Freshness, FreshnessMode, Policy
from storage.requests import PutRequest
from storage.types import ObjectName, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, running_engine

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
        await keys(running, ListQuery(BUCKET, "data/o"))
        await keys(running, ListQuery(BUCKET, "data/", delimiter="/"))
        fail(running)

        with pytest.raises(OriginUnavailableError):
            await keys(running)


async def test_own_writes_show_in_pages_of_before() -> None:
    """What is acknowledged while the origin is away is laid over what it had: puts, overwrites, deletes, Completes."""
    async with running_engine(policy=TTL) as running:
        filled(running)
        await running.put("known", b"the bucket's facts are known from here on")
        await running.engine._components.flusher.flush_key(ObjectName(BUCKET, "known"))
        await keys(running)
        await keys(running, ListQuery(BUCKET, "", delimiter="/"))
        fail(running)
        await running.put("data/new", b"x")
        await running.engine.delete_object(ObjectName(BUCKET, "data/one"))
        await running.put("data/two", b"of another size")
        await running.put("other/new", b"x")

        page = await running.engine.list_objects(QUERY)
        grouped = await running.engine.list_objects(ListQuery(BUCKET, "", delimiter="/"))

        assert [(entry.key, entry.size) for entry in page.entries] == [("data/new", 1), ("data/two", 15)]
        assert page.stale_reason.startswith("origin: ")
        assert grouped.prefixes == ("data/", "other/")
        assert [entry.key for entry in grouped.entries] == ["known"]


async def test_pages_of_before_follow_each_other_when_writes_move_their_ends() -> None:
    """A listing of several pages goes on to its end, each key once, though what was written moved each page's last key."""
    async with running_engine(policy=TTL) as running:
        names = [f"data/{number:02}" for number in range(30)]
        for name in names:
            running.origin.store.put(BUCKET, name, b"x")
        await running.put("known", b"the bucket's facts are known from here on")
        await running.engine._components.flusher.flush_key(ObjectName(BUCKET, "known"))
        await walked(running)
        fail(running)
        for name in ("data/", "data/03a", "data/19a", "data/zz"):
            await running.put(name, b"x")
        for name in ("data/04", "data/09", "data/10"):
            await running.engine.delete_object(ObjectName(BUCKET, name))
        gone = {"data/04", "data/09", "data/10"}

        got = await walked(running)

        assert got == sorted({*names, "data/", "data/03a", "data/19a", "data/zz"} - gone)


async def walked(running: RunningEngine) -> list[str]:
    """List in pages of ten keys, to the end."""
    found: list[str] = []
    after = Position()
    while True:
        page = await running.engine.list_objects(ListQuery(BUCKET, "data/", after=after, max_keys=10))
        found += [entry.key for entry in page.entries]
        if page.next_position is None:
            return found
        after = page.next_position


async def test_group_under_which_all_that_is_known_was_deleted_is_not_guessed() -> None:
    """Whether its common prefix is still there only the origin knows."""
    async with running_engine(policy=TTL) as running:
        filled(running)
        await running.put("known", b"the bucket's facts are known from here on")
        await keys(running, ListQuery(BUCKET, "", delimiter="/"))
        fail(running)
        await running.engine.delete_object(ObjectName(BUCKET, "data/one"))

        with pytest.raises(OriginUnavailableError):
            await keys(running, ListQuery(BUCKET, "", delimiter="/"))


@pytest.mark.parametrize("what", ["flush", "through", "bucket"])
async def test_page_ends_when_what_the_origin_has_may_have_changed(what: str) -> None:
    """A change that left the overlay, or went past it, is not in the page: there is none then."""
    async with running_engine(policy=TTL) as running:
        filled(running)
        await running.put("data/new", b"x")
        await keys(running)
        if what == "flush":
            await running.engine._components.flusher.flush_key(ObjectName(BUCKET, "data/new"))
        elif what == "through":
            request = PutRequest(ObjectName(BUCKET, "elsewhere"), mode=WriteMode.THROUGH)
            await running.engine.put_object(request, BytesContent(b"x"))
        else:
            running.engine._components.generations.bump_bucket(BUCKET)
        fail(running)

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
