"""ListingMerger against a brute-force listing, with an origin that pages, groups and skips as differently as real ones do."""

import pytest
from hypothesis import example, given, settings, strategies as st

from storage.errors import OriginUnavailableError
from storage.listing import (
    ListEntry,
    ListingMerger,
    ListQuery,
    ListResult,
    NeedOverlay,
    OriginPage,
    OverlayChunk,
    OverlayEntry,
    Position,
    overlay_entry,
    position_of_marker,
)
from storage.origin.documents import PageRequest
from storage.records import OverlayRecord
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType

# U+FFFF comes before U+10000 in UTF-8, and behind it where an implementation sorts by UTF-16.
KEYS = st.text(alphabet="ab/-\u00e9\uffff\U00010000\U0010ffff", min_size=1, max_size=6)
HESITATED = "hesitated:"
DELIMITERS = st.sampled_from(["/", "a", "--", ""])


def entry(key: str, etag: str = "origin") -> ListEntry:
    """An entry whose ETag tells where it is from."""
    return ListEntry(key=key, size=len(key), etag=etag, last_modified_s=1)


def put(key: str) -> OverlayEntry:
    """A dirty put."""
    return OverlayEntry(key, entry(key, "dirty"))


def tombstone(key: str) -> OverlayEntry:
    """A dirty delete."""
    return OverlayEntry(key, None)


class FakeOrigin:
    """Lists keys as ListObjectsV2; `skips_groups` says what it does with a start inside a group.

    One that `hesitates` gives an empty page first, truncated, with a token for the one that was asked for.
    """

    def __init__(
        self, keys: set[str], *, page_max: int = 1000, skips_groups: bool = True, hesitates: bool = False
    ) -> None:
        self.hesitates = hesitates
        self.keys = keys
        self.page_max = page_max
        self.skips_groups = skips_groups
        self.asked: list[PageRequest] = []

    def page(self, need: PageRequest) -> OriginPage:
        self.asked.append(need)
        assert 1 <= need.max_keys <= 1000
        query = ListQuery(need.bucket, need.prefix, need.delimiter)
        if self.hesitates and not need.token:
            return OriginPage((), is_truncated=True, next_token=f"{HESITATED}{need.start_after}")
        token = "" if need.token.startswith(HESITATED) else need.token
        start_after = token or need.token.removeprefix(HESITATED) or need.start_after
        elements: dict[str, ListEntry | None] = {}
        for key in sorted(self.keys):
            group = query.group_of(key)
            name = key if group is None else group
            is_past = (name > start_after) if token or self.skips_groups else key > start_after
            if key.startswith(need.prefix) and is_past:
                elements[name] = entry(key) if group is None else None
        names = list(elements)[: min(self.page_max, need.max_keys)]
        is_truncated = len(names) < len(elements)
        return OriginPage(
            entries=tuple(e for name in names if (e := elements[name]) is not None),
            prefixes=tuple(name for name in names if elements[name] is None),
            is_truncated=is_truncated,
            next_token=names[-1] if is_truncated else "",
        )


def run(
    query: ListQuery, origin: FakeOrigin, overlay: list[OverlayEntry], *, chunk_max: int = 2000
) -> ListResult:
    """Drive a merger to its result, checking that the overlay is always read before the origin page it is laid over."""
    merger = ListingMerger(query)
    for _ in range(10_000):
        need = merger.step()
        if isinstance(need, ListResult):
            return need
        assert merger.step() == need
        if isinstance(need, NeedOverlay):
            left = [o for o in overlay if o.key.startswith(need.prefix) and o.key > need.after]
            count = min(chunk_max, need.limit)
            merger.feed_overlay(OverlayChunk(tuple(left[:count]), is_last=len(left) <= count))
        else:
            merger.feed_origin(origin.page(need))
    raise AssertionError(f"{merger!r} never ends")


def brute_force(query: ListQuery, origin: set[str], overlay: list[OverlayEntry]) -> list[tuple[str, str]]:
    """All elements of the whole listing behind the query's position: (name, etag), the etag "" for a common prefix."""
    merged = dict.fromkeys(origin, "origin")
    for overlaid in overlay:
        merged.pop(overlaid.key, None)
        if overlaid.entry is not None:
            merged[overlaid.key] = overlaid.entry.etag
    elements: dict[str, str] = {}
    for key in sorted(merged, key=lambda key: key.encode()):
        if key.startswith(query.prefix) and not query.after.covers(key):
            group = query.group_of(key)
            elements[key if group is None else group] = merged[key] if group is None else ""
    return list(elements.items())


def elements_of(result: ListResult) -> list[tuple[str, str]]:
    """Keys and common prefixes of one page in the one order they have."""
    names = [(e.key, e.etag) for e in result.entries] + [(prefix, "") for prefix in result.prefixes]
    return sorted(names, key=lambda element: element[0].encode())


@pytest.mark.slow
@settings(max_examples=300)
@given(
    origin_keys=st.sets(KEYS, max_size=25),
    overlaid=st.dictionaries(KEYS, st.booleans(), max_size=15),
    deleted=st.lists(st.integers(0, 24), max_size=20),
    prefix=st.sampled_from(["", "a", "a/", "b", "-"]),
    delimiter=DELIMITERS,
    max_keys=st.one_of(st.integers(1, 4), st.sampled_from([7, 1000])),
    page_max=st.one_of(st.integers(1, 3), st.just(1000)),
    chunk_max=st.one_of(st.integers(1, 3), st.just(2000)),
    skips_groups=st.booleans(),
    hesitates=st.booleans(),
    start=st.one_of(st.just(Position()), st.builds(Position, KEYS)),
)
@example(
    origin_keys={"a/\U0010ffff1", "a/\U0010ffff2", "b"},
    overlaid={},
    deleted=[],
    prefix="",
    delimiter="/",
    max_keys=1,
    page_max=1,
    chunk_max=1,
    skips_groups=False,
    hesitates=False,
    start=Position(),
)
@example(
    origin_keys={"/a", "-/", "/"},
    overlaid={},
    deleted=[0],
    prefix="",
    delimiter="/",
    max_keys=1,
    page_max=1,
    chunk_max=1,
    skips_groups=False,
    hesitates=False,
    start=Position(),
)
@example(
    origin_keys=set(),
    overlaid={"a/": True, "a/a": False},
    deleted=[],
    prefix="",
    delimiter="/",
    max_keys=1,
    page_max=1000,
    chunk_max=1,
    skips_groups=False,
    hesitates=True,
    start=Position(),
)
def test_pages_together_are_the_whole_listing_when_both_sides_have_keys(  # noqa: PLR0917  the drawn world
    origin_keys: set[str],
    overlaid: dict[str, bool],
    deleted: list[int],
    prefix: str,
    delimiter: str,
    max_keys: int,
    page_max: int,
    chunk_max: int,
    skips_groups: bool,
    hesitates: bool,
    start: Position,
) -> None:
    """Any page size gives each element once, in byte order, at most max_keys a page, and truncated exactly while more follow."""
    known = sorted(origin_keys)
    states = dict(overlaid)
    states |= {known[i % len(known)]: False for i in deleted if known}
    overlay = [put(key) if is_put else tombstone(key) for key, is_put in sorted(states.items())]
    origin = FakeOrigin(origin_keys, page_max=page_max, skips_groups=skips_groups, hesitates=hesitates)
    query = ListQuery("bucket", prefix, delimiter, start, max_keys)
    expected = brute_force(query, origin_keys, overlay)

    pages: list[list[tuple[str, str]]] = []
    while True:
        result = run(query, origin, overlay, chunk_max=chunk_max)
        pages.append(elements_of(result))
        assert result.key_count <= max_keys
        if not result.is_truncated:
            break
        assert result.key_count == max_keys
        assert result.next_position is not None
        query = ListQuery("bucket", prefix, delimiter, result.next_position, max_keys)

    assert [element for page in pages for element in page] == expected
    assert len(pages) == max(1, -(-len(expected) // max_keys))


def test_tombstone_hides_and_put_shadows_when_the_origin_has_the_key() -> None:
    """A tombstone hides the origin's key, a dirty put shows its own ETag, and a key on both sides comes once (B18)."""
    overlay = [put("b"), tombstone("c"), put("d")]

    result = run(ListQuery("bucket"), FakeOrigin({"a", "b", "c"}), overlay)

    assert [(e.key, e.etag) for e in result.entries] == [("a", "origin"), ("b", "dirty"), ("d", "dirty")]


def test_prefix_is_hidden_when_all_keys_below_are_deleted() -> None:
    """A common prefix whose keys are all under tombstones is not shown; one with a single survivor is."""
    overlay = [tombstone("x/1"), tombstone("x/2"), tombstone("y/1")]

    result = run(ListQuery("bucket", delimiter="/"), FakeOrigin({"x/1", "x/2", "y/1", "y/2"}), overlay)

    assert result.prefixes == ("y/",)


def test_origin_is_asked_once_with_delimiter_when_no_tombstone_lies_in_a_group() -> None:
    """A group of any size costs one line of one grouped page."""
    origin = FakeOrigin({f"big/{n}" for n in range(5000)} | {"z"})

    result = run(ListQuery("bucket", delimiter="/", max_keys=10), origin, [put("big/new")])

    assert elements_of(result) == [("big/", ""), ("z", "origin")]
    assert [(need.delimiter, need.max_keys) for need in origin.asked] == [("/", 11)]


def test_origin_is_asked_few_times_when_many_small_groups_are_deleted() -> None:
    """A tree of 300 deleted directories of 10 keys is walked by keys, not a request a directory."""
    keys = {f"d{n:03}/{m}" for n in range(300) for m in range(10)}
    origin = FakeOrigin(keys)

    result = run(ListQuery("bucket", delimiter="/"), origin, [tombstone(key) for key in sorted(keys)])

    assert result == ListResult((), (), is_truncated=False)
    assert len(origin.asked) == 4


def test_origin_is_not_asked_again_when_a_full_page_is_surely_truncated() -> None:
    """A full origin page that says truncated is believed where no tombstone can hide what follows."""
    origin = FakeOrigin({f"{n:05}" for n in range(3000)})

    result = run(ListQuery("bucket"), origin, [])

    assert result.is_truncated
    assert result.next_position == Position("00999")
    assert len(origin.asked) == 1


def test_truncated_is_exact_when_all_that_follows_is_deleted() -> None:
    """A page that is full just before deleted keys is not truncated."""
    keys = [f"{n:05}" for n in range(1003)]
    origin = FakeOrigin(set(keys))

    result = run(ListQuery("bucket"), origin, [tombstone(key) for key in keys[1000:]])

    assert result.key_count == 1000
    assert not result.is_truncated


def test_nothing_is_asked_when_max_keys_is_zero() -> None:
    """max-keys=0 gives an empty page that is not truncated, as AWS does."""
    origin = FakeOrigin({"a"})

    result = run(ListQuery("bucket", max_keys=0), origin, [])

    assert result == ListResult((), (), is_truncated=False)
    assert origin.asked == []


@pytest.mark.parametrize(
    ("marker", "position"),
    [
        ("a", Position("a")),
        ("a/", Position("a/", is_prefix=True)),
        ("a/b", Position("a/", is_prefix=True)),
        ("", Position("")),
    ],
)
def test_marker_is_behind_its_whole_group_when_it_lies_in_one(marker: str, position: Position) -> None:
    """A NextMarker that was a common prefix, or a marker below one, does not show that prefix again."""
    assert position_of_marker(marker, "", "/") == position


def test_marker_is_a_key_when_the_group_begins_in_the_prefix() -> None:
    """The delimiter counts only behind the prefix."""
    assert position_of_marker("a/b", "a/", "/") == Position("a/b")


def test_next_marker_exists_only_when_there_is_a_delimiter() -> None:
    """ListObjects gives NextMarker with a delimiter only; it may be a common prefix."""
    origin = FakeOrigin({"a/1", "b"})
    grouped, plain = ListQuery("bucket", delimiter="/", max_keys=1), ListQuery("bucket", max_keys=1)

    results = run(grouped, origin, []), run(plain, origin, [])

    assert [r.next_marker(q) for r, q in zip(results, (grouped, plain), strict=True)] == ["a/", None]


def test_empty_truncated_page_is_followed_by_its_token_when_the_origin_gives_one() -> None:
    """An origin may give an empty page that is truncated; its own token leads on."""
    merger = ListingMerger(ListQuery("bucket"))
    merger.step()
    merger.feed_overlay(OverlayChunk((), is_last=True))
    merger.step()

    merger.feed_origin(OriginPage((), is_truncated=True, next_token="go-on"))
    need = merger.step()

    assert isinstance(need, PageRequest)
    assert need.token == "go-on"


def test_listing_fails_when_the_origin_does_not_move_on() -> None:
    """A truncated page without news and without token would loop for ever: it is the origin's failure."""
    merger = ListingMerger(ListQuery("bucket", after=Position("m")))
    merger.step()
    merger.feed_overlay(OverlayChunk((), is_last=True))
    merger.step()

    with pytest.raises(OriginUnavailableError):
        merger.feed_origin(OriginPage((entry("a"),), is_truncated=True))


def test_origin_pages_are_asked_again_when_the_overlay_is_read_on() -> None:
    """A page asked for before a part of the overlay was read is not merged with that part."""
    origin = FakeOrigin({"a", "c"})

    result = run(ListQuery("bucket"), origin, [put("b"), tombstone("c")], chunk_max=1)

    assert [e.key for e in result.entries] == ["a", "b"]
    assert [need.start_after for need in origin.asked] == ["", "b"]


def test_overlay_row_becomes_an_entry_when_it_is_a_put() -> None:
    """Size, ETag, date, class and checksums of a dirty put are listed; a tombstone has none."""
    checksums = (Checksum(ChecksumAlgorithm.CRC32, "AAAAAA=="),)
    record = OverlayRecord(1, 7, False, 3, 12, "e", 99, "GLACIER", checksums)

    shown, hidden = overlay_entry("k", record), overlay_entry("k", OverlayRecord(1, 8, True))

    assert shown.entry == ListEntry(
        "k", 12, "e", 99, "GLACIER", (ChecksumAlgorithm.CRC32,), ChecksumType.FULL_OBJECT
    )
    assert hidden == OverlayEntry("k", None)
