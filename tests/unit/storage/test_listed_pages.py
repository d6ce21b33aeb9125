"""`storage.listed_pages`: which pages of the origin's listing are believed, and until when."""

from typing import TYPE_CHECKING

import pytest

from storage import listed_pages
from storage.generations import Generations
from storage.listed_pages import ListedPages
from storage.origin.documents import ListedObject, ListPage, PageRequest
from storage.policy import Policy, PolicyTable
from storage.types import ObjectName
from tests.fakes.set_clock import SetClock

if TYPE_CHECKING:
    from collections.abc import Callable


class CountedOrigin:
    """Gives pages of one object, and does in the middle what the test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, str]] = []
        self.between: Callable[[], None] = lambda: None
        self.size = 1

    async def list_objects_v2(self, page: PageRequest) -> ListPage:
        """Give a page that says how often was asked."""
        self.asked.append((page.bucket, page.prefix, page.delimiter, page.start_after or page.token))
        self.between()
        objects = tuple(
            ListedObject(f"{page.prefix}{n}", len(self.asked), "etag", 1) for n in range(self.size)
        )
        return ListPage(objects, (), is_truncated=False, next_token="")


class Bench:
    """Pages over such an origin."""

    def __init__(self, *policies: Policy, default: Policy | None = None) -> None:
        self.origin = CountedOrigin()
        self.clock = SetClock()
        self.generations = Generations()
        self.doubted_at_s = 0.0
        self.drops = 0
        table = PolicyTable(policies, default or Policy(listing_ttl_s=60.0))
        self.pages = ListedPages(
            self.origin,
            lambda: table,
            self.generations,
            self.clock,
            lambda _: self.doubted_at_s,
            lambda _: self.drops,
        )

    async def asked(self, prefix: str = "p/", **more: str) -> int:
        """List, and say how often the origin has been asked."""
        await self.pages.list_objects_v2(PageRequest("b", prefix, **more))  # type: ignore[arg-type]  # of text only
        return len(self.origin.asked)


async def test_a_page_is_believed_for_as_long_as_its_policy_says() -> None:
    """Not a moment longer, and only for the very same question."""
    bench = Bench()

    assert [await bench.asked(), await bench.asked()] == [1, 1]
    assert await bench.asked(delimiter="/") == 2
    assert await bench.asked(start_after="p/5") == 3
    bench.clock.now_s += 59.9
    assert await bench.asked() == 3
    bench.clock.now_s += 0.1
    assert await bench.asked() == 4


async def test_nothing_is_kept_when_no_policy_says_so() -> None:
    """A page hides what other writers add."""
    bench = Bench(default=Policy())

    assert [await bench.asked(), await bench.asked()] == [1, 2]
    assert len(bench.pages) == 0
    assert len(bench.generations) == 0


async def test_the_strictest_policy_under_the_prefix_holds() -> None:
    """A listing of the whole shows keys of every policy."""
    bench = Bench(Policy("b", "p/live/", listing_ttl_s=5.0), Policy("b", "p/never/"))

    assert [await bench.asked("p/x/"), await bench.asked("p/x/")] == [1, 1]
    assert [await bench.asked("p/live/a"), await bench.asked("p/live/a")] == [2, 2]
    assert [await bench.asked("p/"), await bench.asked("p/")] == [3, 4]
    bench.clock.now_s += 5.0
    assert await bench.asked("p/live/a") == 5


@pytest.mark.parametrize("key", ["p/new", "p/0", "p/"])
async def test_a_write_under_the_prefix_ends_a_page(key: str) -> None:
    """Whether it is of a key that the page has or not."""
    bench = Bench()
    await bench.asked()

    bench.generations.bump(ObjectName("b", key))

    assert await bench.asked() == 2


@pytest.mark.parametrize("name", [ObjectName("b", "q/new"), ObjectName("c", "p/new"), ObjectName("b", "p")])
async def test_a_write_elsewhere_leaves_a_page(name: ObjectName) -> None:
    """Checkpoints that are written do not cost the dataset its listing."""
    bench = Bench()
    await bench.asked()

    bench.generations.bump(name)

    assert await bench.asked() == 1


async def test_a_page_is_not_kept_when_a_write_began_or_ended_while_it_was_asked_for() -> None:
    """It may show the state before."""
    bench = Bench()
    bench.origin.between = lambda: bench.generations.bump(ObjectName("b", "p/new"))

    assert [await bench.asked(), await bench.asked()] == [1, 2]
    assert len(bench.generations) == 0


async def test_a_page_is_not_trusted_when_something_may_have_landed_since() -> None:
    """Nor one that is asked for before the last moment at which it may."""
    bench = Bench()
    await bench.asked()

    bench.doubted_at_s = 1030.0
    assert [await bench.asked(), await bench.asked()] == [2, 3]

    bench.clock.now_s = 1030.1
    assert [await bench.asked(), await bench.asked()] == [4, 4]
    bench.doubted_at_s = float("inf")
    assert [await bench.asked(), await bench.asked()] == [5, 6]


async def test_a_page_is_dropped_with_what_is_known_of_its_bucket() -> None:
    """The bucket was deleted, or made again."""
    bench = Bench()
    await bench.asked()

    bench.drops += 1

    assert await bench.asked() == 2


async def test_the_oldest_pages_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are counted over all pages; their watches go with them."""
    monkeypatch.setattr(listed_pages, "ENTRIES_MAX", 33)
    bench = Bench()
    bench.origin.size = 10
    for prefix in ("a", "b", "c"):
        await bench.asked(prefix)
    await bench.asked("a")

    await bench.asked("d")

    assert len(bench.pages) == len(bench.generations) == 3
    assert await bench.asked("a") == 4
    assert await bench.asked("b") == 5
