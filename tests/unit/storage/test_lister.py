"""The listing driver over an index in memory and an origin that changes between any two steps."""

import asyncio
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import pytest
from hypothesis import given, settings, strategies as st

from storage import keys
from storage.errors import NoSuchBucketError, OriginUnavailableError
from storage.family import Family, IndexWrite
from storage.lister import Lister
from storage.listing import ListQuery, ListResult, Position
from storage.origin.documents import ListedObject, ListPage, PageRequest
from storage.records import FORMAT, OverlayRecord, encode
from storage.state import State
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType
from tests.fakes.index import FakeIndex
from tests.fakes.workers import InlineWorkers

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")
BUCKET = "bucket"


class Origin:
    """A bucket's keys at the origin. `before_page` and `after_page` run around the making of each page."""

    def __init__(self, *names: str) -> None:
        self.names = sorted(names)
        self.before_page: Callable[[], None] = lambda: None
        self.after_page: Callable[[], None] = lambda: None
        self.failure: Exception | None = None
        self.asked: list[tuple[str, str, str]] = []
        self.asked_owner = False

    async def list_objects_v2(self, page: PageRequest) -> ListPage:
        """Make one page as S3 does."""
        assert page.bucket == BUCKET
        after = page.token or page.start_after
        self.asked.append((page.prefix, page.delimiter, after))
        self.asked_owner = page.with_owner
        if self.failure is not None:
            raise self.failure
        self.before_page()
        made = self._page(page.prefix, page.delimiter, after, page.max_keys)
        self.after_page()
        return made

    def _page(self, prefix: str, delimiter: str, after: str, max_keys: int) -> ListPage:
        objects: list[ListedObject] = []
        groups: list[str] = []
        last = after
        for name in self.names[bisect_right(self.names, after) :]:
            if not name.startswith(prefix) or (groups and name.startswith(groups[-1])):
                continue
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            group = name[: cut + 1] if cut >= 0 else ""
            if group and after.startswith(group):
                continue
            if len(objects) + len(groups) == max_keys:
                return ListPage(tuple(objects), tuple(groups), is_truncated=True, next_token=last)
            if group:
                groups.append(group)
                last = group + "\U0010ffff"
            else:
                objects.append(ListedObject(name, 1, "of-origin", 1))
                last = name
        return ListPage(tuple(objects), tuple(groups), is_truncated=False)


class CountingWorkers(InlineWorkers):
    """Counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def run(self, call: "Callable[P, T]", /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call."""
        self.calls += 1
        return await super().run(call, *args, **kwargs)


class World:
    """A bucket as the gateway's clients see it: what is acknowledged, wherever it lies."""

    def __init__(self, *names: str) -> None:
        self.index = FakeIndex()
        self.origin = Origin(*names)
        self.state = State()
        self.workers = CountingWorkers()
        self.lister = Lister(self.index, self.origin, self.state, self.workers)

    def put(self, name: str) -> None:
        """Acknowledge a put."""
        self._write(name, OverlayRecord(FORMAT, 1, is_tombstone=False, size=2, etag="of-overlay"))

    def delete(self, name: str) -> None:
        """Acknowledge a delete."""
        self._write(name, OverlayRecord(FORMAT, 1, is_tombstone=True))

    def flush(self, name: str) -> None:
        """Bring a change to the origin and confirm it: first the one, then the other."""
        value = self.index.get(Family.OVERLAY, keys.object_key(BUCKET, name))
        if value is None:
            return
        is_there = name in self.origin.names
        if b"of-overlay" in value and not is_there:
            insort(self.origin.names, name)
        if b"of-overlay" not in value and is_there:
            self.origin.names.remove(name)
        self._write(name, None)

    def _write(self, name: str, record: OverlayRecord | None) -> None:
        value = None if record is None else encode(record)
        row_key = keys.object_key(BUCKET, name)
        was_dirty = self.index.get(Family.OVERLAY, row_key) is not None
        self.index.write([IndexWrite(Family.OVERLAY, row_key, value)])
        self.state.dirty_keys[BUCKET] += (value is not None) - was_dirty

    def page(self, query: ListQuery) -> ListResult:
        """Give one page."""
        return asyncio.run(self.lister.list(query))

    def all_names(self, query: ListQuery) -> list[str]:
        """Give all keys and groups over all pages, in the order given."""
        names: list[str] = []
        after = query.after
        while True:
            page = self.page(ListQuery(query.bucket, query.prefix, query.delimiter, after, query.max_keys))
            names += sorted([*(entry.key for entry in page.entries), *page.prefixes])
            if page.next_position is None:
                return names
            after = page.next_position


def test_a_listing_shows_what_is_acknowledged_and_hides_what_is_deleted() -> None:
    """The overlay's puts show and shadow, its tombstones hide."""
    world = World("a", "b", "c")
    world.put("b")
    world.put("d")
    world.delete("c")

    page = world.page(ListQuery(BUCKET))

    assert [(entry.key, entry.etag) for entry in page.entries] == [
        ("a", "of-origin"),
        ("b", "of-overlay"),
        ("d", "of-overlay"),
    ]


def test_a_flush_between_the_overlay_and_the_page_loses_and_doubles_no_key() -> None:
    """The entry is in the overlay that was read and in the page: it is listed once."""
    world = World("a")
    world.put("b")
    world.origin.before_page = lambda: world.flush("b")

    page = world.page(ListQuery(BUCKET))

    assert [entry.key for entry in page.entries] == ["a", "b"]


def test_a_flush_after_the_page_was_made_loses_no_key() -> None:
    """The page does not show the entry, and the overlay has lost it when the page arrives: it was read before."""
    world = World("a")
    world.put("b")
    world.origin.after_page = lambda: world.flush("b")

    page = world.page(ListQuery(BUCKET))

    assert [entry.key for entry in page.entries] == ["a", "b"]


def test_a_tombstone_that_is_flushed_meanwhile_shows_no_key() -> None:
    """A page made before the delete reached the origin still shows the key; the overlay that was read hides it."""
    world = World("a", "b")
    world.delete("b")
    world.origin.after_page = lambda: world.flush("b")

    page = world.page(ListQuery(BUCKET))

    assert [entry.key for entry in page.entries] == ["a"]


def test_an_overlay_longer_than_a_chunk_is_listed_whole_while_it_is_flushed() -> None:
    """Many dirty keys, each flushed as pages are made, are all there once."""
    world = World(*(f"k{number:05}" for number in range(0, 5000, 2)))
    for number in range(1, 5000, 2):
        world.put(f"k{number:05}")
    flushed = iter(range(1, 5000, 2))

    def flush_some() -> None:
        for number in [n for n, _ in zip(flushed, range(400), strict=False)]:
            world.flush(f"k{number:05}")

    world.origin.after_page = flush_some

    assert world.all_names(ListQuery(BUCKET)) == [f"k{number:05}" for number in range(5000)]


@pytest.mark.parametrize(
    "failure",
    [
        OriginUnavailableError("down", status=500, code="InternalError"),
        NoSuchBucketError("none"),
    ],
)
def test_an_origin_that_fails_fails_the_listing(failure: Exception) -> None:
    """A listing is never made up of the overlay alone."""
    world = World()
    world.put("a")
    world.origin.failure = failure

    with pytest.raises(type(failure)):
        world.page(ListQuery(BUCKET))


def test_a_prefix_bounds_the_overlay_and_the_origin() -> None:
    """Keys outside of the prefix are neither read nor shown, and a start inside it is kept to."""
    world = World("a/1", "b/1", "b/3", "c")
    for name in ("a/2", "b/2", "b/4", "b0"):
        world.put(name)

    page = world.page(ListQuery(BUCKET, "b/", after=Position("b/1")))

    assert [entry.key for entry in page.entries] == ["b/2", "b/3", "b/4"]
    assert world.origin.asked == [("b/", "", "b/1")]


def test_the_longest_keys_can_be_listed() -> None:
    """A key of 1024 bytes, and the place behind a group of such, go through."""
    long = "g" * 1023 + "/"
    world = World(long, "z")
    world.put("g" * 1022 + "/x")

    assert world.all_names(ListQuery(BUCKET, delimiter="/", max_keys=1)) == ["g" * 1022 + "/", long, "z"]


@pytest.mark.parametrize("is_dirty", [True, False])
def test_an_empty_page_that_is_not_the_last_is_read_on(is_dirty: bool) -> None:
    """An origin may give no keys and a token; the client gets keys, not a page without a place to go on from."""
    world = World("a", "b")
    if is_dirty:
        world.put("c")
    make, empty = world.origin.list_objects_v2, [ListPage((), (), is_truncated=True, next_token="a")] * 3

    async def page(page: PageRequest) -> ListPage:
        return empty.pop() if empty else await make(page)

    world.origin.list_objects_v2 = page  # type: ignore[method-assign]  # an origin of its own

    listed = world.page(ListQuery(BUCKET))

    assert [entry.key for entry in listed.entries] == (["b", "c"] if is_dirty else ["b"])


def test_checksums_of_the_origin_that_are_not_known_are_left_out() -> None:
    """An algorithm or type that S3 does not have here does not fail the listing."""
    world = World()

    async def page(_: object) -> ListPage:
        listed = ListedObject("a", 1, "e", 1, checksum_algorithms=("CRC32", "MD6"), checksum_type="NEW")
        return ListPage((listed,), (), is_truncated=False)

    world.origin.list_objects_v2 = page  # type: ignore[assignment,method-assign]  # an origin of its own

    entry = world.page(ListQuery(BUCKET)).entries[0]

    assert (entry.checksum_algorithms, entry.checksum_type) == ((ChecksumAlgorithm.CRC32,), None)


def test_checksums_of_dirty_keys_are_shown() -> None:
    """The overlay's entry says which checksum the object has."""
    world = World()
    checksum = Checksum(ChecksumAlgorithm.CRC32, "AAAAAA==")
    world._write("a", OverlayRecord(FORMAT, 1, is_tombstone=False, checksums=(checksum,)))

    entry = world.page(ListQuery(BUCKET)).entries[0]

    assert entry.checksum_algorithms == (ChecksumAlgorithm.CRC32,)
    assert entry.checksum_type is ChecksumType.FULL_OBJECT


def test_a_listing_does_not_read_the_overlay_where_nothing_is_dirty() -> None:
    """Rows that were flushed leave marks that a read has to step over; the count of dirty keys says that none is left."""
    world = World("a", "b")
    world.put("c")
    world.flush("c")

    def scan(*_: object) -> list[tuple[bytes, bytes]]:
        raise AssertionError("the overlay was read")

    world.index.scan = scan  # type: ignore[method-assign,assignment]  # nobody may call it

    listed = world.page(ListQuery(BUCKET))

    assert [entry.key for entry in listed.entries] == ["a", "b", "c"]


def test_a_listing_reads_the_overlay_off_the_event_loop() -> None:
    """Both the first look and the chunks that are merged are a worker's."""
    world = World("a")
    world.put("b")
    scan, calls = world.index.scan, list[int]()

    def counted(family: Family, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        calls.append(limit)
        return scan(family, start, stop, limit)

    world.index.scan = counted  # type: ignore[method-assign,assignment]  # a wiretap

    listed = world.page(ListQuery(BUCKET))

    assert [entry.key for entry in listed.entries] == ["a", "b"]
    assert world.workers.calls == len(calls) == 2


NAMES = st.sampled_from(["a", "a/1", "a/2", "a/b/1", "b", "b/1", "b/2", "c/1", "d"])
CHANGES = st.lists(st.tuples(st.sampled_from(["put", "delete", "flush"]), NAMES), max_size=6)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    at_origin=st.sets(NAMES),
    before=CHANGES,
    during=st.lists(CHANGES, max_size=6),
    delimiter=st.sampled_from(["", "/"]),
    max_keys=st.integers(1, 4),
)
def test_whatever_is_flushed_during_a_listing_keys_that_nobody_writes_are_listed_right(
    at_origin: set[str],
    before: list[tuple[str, str]],
    during: list[list[tuple[str, str]]],
    delimiter: str,
    max_keys: int,
) -> None:
    """Against a set: keys that were there all the time are listed once, those that were not, never; groups alike."""
    world = World(*at_origin)
    present = set(at_origin)
    touched: set[str] = set()

    def change(changes: list[tuple[str, str]], *, is_before: bool) -> None:
        for kind, name in changes:
            getattr(world, kind)(name)
            if kind != "flush":
                (present.add if kind == "put" else present.discard)(name)
                touched.update(() if is_before else (name,))

    change(before, is_before=True)
    at_start = set(present)
    steps = list(during)
    world.origin.before_page = lambda: change(steps.pop(0), is_before=False) if steps else None
    world.origin.after_page = lambda: change(steps.pop(0), is_before=False) if steps else None

    names = world.all_names(ListQuery(BUCKET, delimiter=delimiter, max_keys=max_keys))

    def rolled_up(key: str) -> str:
        return key if not delimiter or "/" not in key else key[: key.index("/") + 1]

    must = {rolled_up(key) for key in at_start - touched}
    may = must | {rolled_up(key) for key in at_start | touched}
    assert names == sorted(set(names))
    assert must <= set(names) <= may


@pytest.mark.slow
@pytest.mark.parametrize(("delimiter", "pages_max"), [("", 102), ("/", 40)])
def test_a_hundred_thousand_keys_are_paged_when_most_of_them_are_dirty(
    delimiter: str, pages_max: int
) -> None:
    """20,000 tombstones and 40,000 puts in between: each line once and in order, and little is held or asked for at a time."""
    names = [f"d{number // 500:03}/{number:06}" for number in range(100_000)]
    world = World(*names)
    put = encode(OverlayRecord(FORMAT, 1, is_tombstone=False, size=2, etag="of-overlay"))
    tombstone = encode(OverlayRecord(FORMAT, 1, is_tombstone=True))
    rows = dict.fromkeys(names[::5], tombstone)
    rows |= {f"{name}+": put for name in names[1::5]} | dict.fromkeys(names[2::5], put)
    world.index.write(
        [IndexWrite(Family.OVERLAY, keys.object_key(BUCKET, name), value) for name, value in rows.items()]
    )
    world.state.dirty_keys[BUCKET] = len(rows)
    scan, asked = world.index.scan, list[int]()

    def counted(family: Family, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        asked.append(limit)
        return scan(family, start, stop, limit)

    world.index.scan = counted  # type: ignore[method-assign,assignment]  # a wiretap
    left = sorted({*names, *rows} - {name for name, value in rows.items() if value is tombstone})
    expected = sorted({name[:5] for name in left}) if delimiter else left

    listed = world.all_names(ListQuery(BUCKET, delimiter=delimiter))

    assert listed == expected
    assert len(world.origin.asked) <= pages_max
    assert max(asked) <= 2000
    assert len(asked) <= 3 * pages_max
