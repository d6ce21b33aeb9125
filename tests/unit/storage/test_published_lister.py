"""Listings across published targets, compared with the listing of what clients see, while targets are switched."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from storage.errors import GenerationGoneError
from storage.listing import ListEntry, ListQuery, ListResult, Position
from storage.policy import Freshness, Policy
from storage.publish import Pointer, Target, Targets
from storage.published_lister import PublishedLister

LIVE = Target("bucket", "m/live/")
OTHER = Target("bucket", "m/other/")
TARGETS = Targets(
    Policy(bucket=one.bucket, prefix=one.prefix, freshness=Freshness(), published=True)
    for one in (LIVE, OTHER)
)


@dataclass
class World:
    """Real keys, and the sources that each target has shown, the newest last; both sides of the lister under test."""

    keys: set[str]
    sources: dict[Target, list[str]] = field(default_factory=dict)
    queries: list[ListQuery] = field(default_factory=list)
    targets: Targets = TARGETS

    async def pointer(self, target: Target, generation: int | None = None) -> Pointer:
        """Give the newest pointer, or the one of a generation."""
        sources = self.sources.get(target, [])
        generation = len(sources) if generation is None else generation
        if generation > len(sources) or (generation == 0 and sources):
            raise GenerationGoneError(f"{generation} of {target}")
        return Pointer(target, sources[generation - 1], generation) if generation else Pointer(target)

    async def list(self, query: ListQuery) -> ListResult:
        """List real keys by brute force; manifests lie under published targets."""
        self.queries.append(query)
        return listed(self.keys | {target.manifest.key for target in self.sources}, query)

    def shown(self) -> set[str]:
        """Give the keys that clients see."""
        hidden = {
            key
            for key in self.keys
            for target in self.sources
            if key.startswith(target.prefix) or key.endswith(".forebay-published")
        }
        found = self.keys - hidden
        for target, sources in self.sources.items():
            found |= {
                target.prefix + key.removeprefix(sources[-1])
                for key in self.keys
                if key.startswith(sources[-1]) and key != f"{sources[-1]}.forebay-published"
            }
        return found


def listed(keys: set[str], query: ListQuery) -> ListResult:
    """List keys by brute force."""
    lines: list[tuple[str, bool]] = []
    for key in sorted(keys):
        group = query.group_of(key) if key.startswith(query.prefix) else None
        line = (key, False) if group is None else (group, True)
        if key.startswith(query.prefix) and not query.after.covers(line[0]) and line not in lines:
            lines.append(line)
    page = lines[: query.max_keys]
    is_truncated = bool(page) and len(lines) > len(page)
    return ListResult(
        tuple(ListEntry(name, 1, "etag", 0) for name, is_prefix in page if not is_prefix),
        tuple(name for name, is_prefix in page if is_prefix),
        is_truncated,
        Position(*page[-1]) if is_truncated else None,
    )


async def all_pages(world: World, query: ListQuery) -> list[ListResult]:
    """Follow a listing to its end, as a client of version 2 does."""
    lister = PublishedLister(world, world)
    pages = [await lister.page(query)]
    while pages[-1].is_truncated:
        at = pages[-1].next_position
        assert at is not None, "truncated, and no word where"
        pages.append(await lister.page(replace(query, after=at, generation=pages[-1].generation)))
    return pages


def lines_of(pages: list[ListResult]) -> list[str]:
    """Give all lines of some pages, in order."""
    return [name for page in pages for name in sorted([*(e.key for e in page.entries), *page.prefixes])]


KEYS = st.sets(
    st.builds(
        str.__add__,
        st.sampled_from(
            ["", "m/", "m/live", "m/live/", "m/live0", "m/m", "m/other/", "m/z", "s/1/", "s/2/", "s/3/"]
        ),
        st.text(alphabet="ab/", max_size=3),
    ),
    max_size=25,
)


@pytest.mark.slow
@given(
    keys=KEYS,
    live=st.lists(st.sampled_from(["s/1/", "s/2/"]), max_size=2),
    other=st.lists(st.sampled_from(["s/3/", "s/1/"]), max_size=2),
    prefix=st.sampled_from(["", "m", "m/", "m/l", "m/live/", "m/live/a", "m/other/", "s/"]),
    delimiter=st.sampled_from(["", "", "/", "b"]),
    max_keys=st.integers(1, 5),
)
def test_pages_together_are_what_clients_see_when_targets_are_crossed(
    keys: set[str], live: list[str], other: list[str], prefix: str, delimiter: str, max_keys: int
) -> None:
    """All pages together are the listing of what is shown, in byte order, none twice; no page is empty but the last."""
    world = World(
        keys,
        {target: sources for target, sources in ((LIVE, live), (OTHER, other)) if sources},
    )
    query = ListQuery("bucket", prefix, delimiter, max_keys=max_keys)

    pages = asyncio.run(all_pages(world, query))

    expected = lines_of([listed(world.shown(), replace(query, max_keys=1000))])
    # A manifest is an object below its target's common prefix, which shows though nothing may lie under the source.
    manifests = (
        {query.group_of(target.manifest.key) for target in world.sources} if delimiter == "/" else set()
    )
    assert [line for line in lines_of(pages) if line not in manifests] == [
        line for line in expected if line not in manifests
    ]
    assert all(page.key_count for page in pages[:-1])
    assert all(page.key_count <= max_keys for page in pages)


@pytest.mark.slow
@given(keys=KEYS, max_keys=st.integers(1, 3), turns=st.lists(st.integers(0, 8), max_size=4))
def test_a_listing_keeps_its_generation_when_the_target_is_switched(
    keys: set[str], max_keys: int, turns: list[int]
) -> None:
    """Whatever switches come between two pages, the lines of a target in one listing are of one source."""
    keys |= {"s/1/1", "s/1/x", "s/2/2", "s/2/x"}
    world = World(keys, {LIVE: ["s/1/"]})

    async def scenario() -> list[ListResult]:
        lister = PublishedLister(world, world)
        query = ListQuery("bucket", "m/", max_keys=max_keys)
        pages = [await lister.page(query)]
        for _ in range(200):
            if not pages[-1].is_truncated:
                break
            world.sources[LIVE] += [f"s/{1 + turn % 2}/" for turn in turns if turn == len(pages)]
            at = pages[-1].next_position
            assert at is not None
            pages.append(await lister.page(replace(query, after=at, generation=pages[-1].generation)))
        return pages

    pages = asyncio.run(scenario())

    under = [
        e.key.removeprefix(LIVE.prefix) for p in pages for e in p.entries if e.key.startswith(LIVE.prefix)
    ]
    whole = [
        sorted(key.removeprefix(source) for key in keys if key.startswith(source))
        for source in ("s/1/", "s/2/")
    ]
    assert under in whole
    for page in pages:
        is_of_target = [e.key.startswith(LIVE.prefix) for e in page.entries]
        assert all(is_of_target) if page.generation is not None else not any(is_of_target)


async def test_a_listing_ends_with_an_error_when_the_source_of_its_generation_is_gone() -> None:
    """What is left of an old listing is not an end of it, and not another generation: the client has to begin anew."""
    world = World({"s/1/a", "s/1/b", "s/2/a", "s/2/b", "s/2/c"}, {LIVE: ["s/1/", "s/2/"]})
    begun = ListQuery("bucket", LIVE.prefix, after=Position("m/live/a"), generation=1)
    lister = PublishedLister(world, world)

    goes_on = await lister.page(begun)
    world.keys -= {"s/1/a", "s/1/b"}
    with pytest.raises(GenerationGoneError):
        await lister.page(begun)
    current = await lister.page(replace(begun, generation=2))

    assert [entry.key for entry in goes_on.entries] == ["m/live/b"]
    assert [entry.key for entry in current.entries] == ["m/live/b", "m/live/c"]


async def test_the_last_page_is_empty_when_only_the_rest_of_an_old_source_was_removed() -> None:
    """An old source that still has objects, and none behind the position, ends its listing as usual."""
    world = World({"s/1/a", "s/2/a", "s/2/b"}, {LIVE: ["s/1/", "s/2/"]})
    begun = ListQuery("bucket", LIVE.prefix, after=Position("m/live/a"), generation=1)

    page = await PublishedLister(world, world).page(begun)

    assert page == ListResult((), (), is_truncated=False, generation=1)


async def test_a_listing_begins_anew_when_its_target_was_not_published_then() -> None:
    """A page of real objects is not followed by one of a source."""
    world = World({"m/live/a", "m/live/b", "s/1/c"}, {})
    lister = PublishedLister(world, world)
    query = ListQuery("bucket", LIVE.prefix, max_keys=1)

    first = await lister.page(query)
    world.sources[LIVE] = ["s/1/"]

    assert (first.generation, first.next_position) == (0, Position("m/live/a"))
    with pytest.raises(GenerationGoneError):
        await lister.page(replace(query, after=Position("m/live/a"), generation=first.generation))


@pytest.mark.parametrize("prefix", [LIVE.prefix, "m/", ""])
async def test_a_listing_ends_with_an_error_when_its_target_is_none_any_more(prefix: str) -> None:
    """A reload took `published` away between two pages: what follows is not the empty rest of a prefix like any other."""
    world = World({"s/1/a", "s/1/b", "z"}, {LIVE: ["s/1/"]})
    lister = PublishedLister(world, world)
    query = ListQuery("bucket", prefix, max_keys=1)

    first = await lister.page(query)
    world.targets = Targets()
    going_on = replace(query, after=Position("m/live/a"), generation=first.generation)

    assert (first.generation, [entry.key for entry in first.entries]) == (1, ["m/live/a"])
    with pytest.raises(GenerationGoneError, match="begin the listing anew"):
        await lister.page(going_on)
    unpublished = await lister.page(replace(going_on, generation=0))
    assert unpublished.generation is None


async def test_the_generation_is_said_before_the_page_is_listed() -> None:
    """Whoever answers for a listing knows its generation when it fails; of stretches that were empty nothing stays."""
    world = World({"m/a", "s/1/a", "m/z"}, {LIVE: ["s/1/"], OTHER: ["s/none/"]})
    lister = PublishedLister(world, world)
    heard: list[list[int | None]] = []
    queries = [
        ListQuery("bucket", LIVE.prefix),
        ListQuery("bucket", "m/"),
        ListQuery("bucket", "m/", after=Position("m/a")),
        ListQuery("bucket", "m/", after=Position("m/live/a"), generation=1),
    ]
    pages = []
    for query in queries:
        heard.append([])
        pages.append(await lister.page(query, heard[-1].append))
    failed: list[int | None] = []
    for after, generation in ((Position("m/live/a"), 9), (Position("m/gone/a"), 4)):
        with pytest.raises(GenerationGoneError):
            await lister.page(ListQuery("bucket", "m/", after=after, generation=generation), failed.append)

    assert [said[-1] for said in heard] == [page.generation for page in pages] == [1, None, 1, None]
    assert failed == [9, 4]


async def test_nothing_is_asked_twice_when_a_bucket_has_no_target() -> None:
    """Listings that touch no target go to the plain lister as they are."""
    world = World({"a"})
    queries = [ListQuery("free", "m/live/"), ListQuery("bucket", "a"), ListQuery("bucket", "", max_keys=0)]

    for query in queries:
        await PublishedLister(world, world).page(query)

    assert world.queries == queries


async def test_the_page_is_not_empty_when_only_a_hidden_name_was_found() -> None:
    """A source that was a target once has a manifest, which does not show, and does not end the listing."""
    world = World({"s/1/.forebay-published", "s/1/a"}, {LIVE: ["s/1/"]})

    page = await PublishedLister(world, world).page(ListQuery("bucket", LIVE.prefix, max_keys=1))

    assert [entry.key for entry in page.entries] == ["m/live/a"]
