"""Listings of open uploads: pages of one list, and one list out of ours and the origin's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings, strategies as st

from storage import uploads_lister
from storage.origin.documents import ListedUpload, UploadsPage as OriginPage
from storage.records import FORMAT, UploadRecord
from storage.requests import UploadsPage
from storage.uploads_lister import UploadsLister, UploadsQuery, page_of_uploads

if TYPE_CHECKING:
    from storage.origin.client import OriginClient


def record(key: str, upload_id: str, initiated_s: float = 0.0) -> UploadRecord:
    """Make an open upload."""
    return UploadRecord(FORMAT, upload_id, "b", key, initiated_s, "")


def page_of(
    uploads: Sequence[UploadRecord],
    *,
    prefix: str = "",
    delimiter: str = "",
    after: tuple[str, str] = ("", ""),
    most: int = 1000,
) -> UploadsPage:
    """Cut a page."""
    return page_of_uploads(uploads, UploadsQuery("b", prefix, delimiter, after, most))


UPLOADS = (
    record("b", "u3", 3.0),
    record("a", "u9", 1.0),
    record("a", "u1", 2.0),
    record("d/x", "u5"),
    record("d/y", "u6"),
    record("e", "u7"),
)


def test_page_of_uploads_orders_by_key_then_by_time() -> None:
    """Uploads of one key stand in the order in which they were opened, whatever their ids."""
    page = page_of(UPLOADS)

    assert [one.upload_id for one in page.uploads] == ["u9", "u1", "u3", "u5", "u6", "u7"]
    assert not page.is_truncated


@pytest.mark.parametrize("delimiter", ["", "/"])
@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_pages_of_uploads_add_up_to_the_whole(delimiter: str, most: int) -> None:
    """Followed by its markers, a listing in pages shows each upload and each group once."""
    shown: list[str] = []
    after = ("", "")
    for _ in range(10):
        page = page_of(UPLOADS, delimiter=delimiter, after=after, most=most)
        shown += [*(one.upload_id for one in page.uploads), *page.prefixes]
        assert len(page.uploads) + len(page.prefixes) <= most
        if not page.is_truncated:
            break
        after = (page.next_key_marker, page.next_upload_id_marker)

    groups = ["d/"] if delimiter else ["u5", "u6"]
    assert sorted(shown) == sorted(["u9", "u1", "u3", "u7", *groups])


def test_page_of_uploads_goes_on_when_the_upload_of_its_marker_has_ended() -> None:
    """An upload that was aborted between two pages does not cost the others of its key their line."""
    rest = tuple(one for one in UPLOADS if one.upload_id != "u9")

    page = page_of(rest, after=("a", "u0"))

    assert [one.upload_id for one in page.uploads] == ["u1", "u3", "u5", "u6", "u7"]


def test_page_of_uploads_is_behind_all_uploads_of_a_key_without_an_id_marker() -> None:
    """A key marker alone is behind every upload of that key."""
    assert [one.upload_id for one in page_of(UPLOADS, after=("a", "")).uploads] == ["u3", "u5", "u6", "u7"]


def test_page_of_uploads_keeps_to_the_prefix_and_groups_behind_it() -> None:
    """A prefix is looked for at the start, the delimiter behind it."""
    page = page_of(UPLOADS, prefix="d", delimiter="/")

    assert (page.uploads, page.prefixes) == ((), ("d/",))
    assert [one.key for one in page_of(UPLOADS, prefix="d/", delimiter="/").uploads] == ["d/x", "d/y"]


def test_page_of_no_uploads_does_not_claim_that_more_follows() -> None:
    """max-uploads=0 is answered with nothing, not with an endless loop."""
    assert page_of(UPLOADS, most=0) == UploadsPage((), (), is_truncated=False)


# --- ours and the origin's ------------------------------------------------------------------------------------------------


class PagedUploads:
    """An origin that lists its uploads `per_page` at a time, those of one key in the order in which they were opened."""

    def __init__(self, uploads: Sequence[UploadRecord], per_page: int) -> None:
        self.uploads = sorted(uploads, key=lambda one: (one.key, one.initiated_s, one.upload_id))
        self.per_page = per_page
        self.asked = 0

    async def list_multipart_uploads(
        self, _bucket: str, prefix: str = "", *, key_marker: str = "", upload_id_marker: str = ""
    ) -> OriginPage:
        """Give a page."""
        self.asked += 1
        behind = [one for one in self.uploads if one.key.startswith(prefix)]
        same = [one for one in behind if one.key == key_marker]
        place = next((i for i, one in enumerate(same) if one.upload_id == upload_id_marker), len(same))
        behind = [*same[place + 1 :], *(one for one in behind if one.key > key_marker)]
        shown = [ListedUpload(u.key, u.upload_id, int(u.initiated_s)) for u in behind[: self.per_page]]
        is_truncated = len(behind) > len(shown)
        last = shown[-1] if is_truncated else ListedUpload("", "", 0)
        return OriginPage(tuple(shown), (), is_truncated, last.key, last.upload_id)

    def lister(self, own: frozenset[str] = frozenset()) -> UploadsLister:
        """Make a lister over it."""
        return UploadsLister(cast("OriginClient", self), lambda: own)


KEYS = st.text("ab/\u00fc", min_size=1, max_size=4)
SETS = st.lists(st.tuples(KEYS, st.integers(0, 3), st.booleans()), max_size=14)


@pytest.mark.slow
@given(
    found=SETS,
    prefix=st.sampled_from(["", "a", "a/", "b"]),
    delimiter=st.sampled_from(["", "/", "b"]),
    most=st.integers(1, 5),
    per_page=st.integers(1, 4),
)
@settings(max_examples=150)
async def test_pages_of_both_are_those_of_one_list(
    found: list[tuple[str, int, bool]], prefix: str, delimiter: str, most: int, per_page: int
) -> None:
    """Whatever lies where, and however the origin cuts its pages: each upload and group once, in order, and truncated exactly."""
    uploads = [
        record(key, f"{'o' if is_ours else 't'}{n}", float(s)) for n, (key, s, is_ours) in enumerate(found)
    ]
    ours = [one for one in uploads if one.upload_id.startswith("o")]
    hidden = record("a", "hidden")
    origin = PagedUploads([*(one for one in uploads if one not in ours), hidden], per_page)
    lister = origin.lister(frozenset({"hidden"}))

    after = ("", "")
    for _ in range(40):
        query = UploadsQuery("b", prefix, delimiter, after, most)
        page = await lister.page(query, ours)

        assert page == page_of_uploads(uploads, query)
        if not page.is_truncated:
            return
        after = (page.next_key_marker, page.next_upload_id_marker)
    raise AssertionError("a listing comes to its end")


async def test_a_page_reads_no_more_of_the_origin_than_it_needs() -> None:
    """The first page of many uploads costs one request; the next begins where it ended, also behind a group."""
    origin = PagedUploads([record(f"k{n:03}/x", f"t{n}") for n in range(100)], per_page=10)
    lister = origin.lister()

    first = await lister.page(UploadsQuery("b", max_uploads=5), ())
    asked_first = origin.asked
    second = await lister.page(UploadsQuery("b", delimiter="/", after=("k050/", ""), max_uploads=5), ())

    assert [one.key for one in first.uploads] == [f"k{n:03}/x" for n in range(5)]
    assert second.prefixes == tuple(f"k{n:03}/" for n in range(51, 56))
    assert (asked_first, origin.asked) == (1, 2)


async def test_a_page_that_is_cut_short_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group with more uploads than are read for one page is shown once, and the listing goes on behind it."""
    monkeypatch.setattr(uploads_lister, "UPLOAD_PAGES_MAX", 3)
    origin = PagedUploads(
        [*(record(f"g/{n:03}", f"t{n}") for n in range(90)), record("z", "last")], per_page=10
    )
    lister = origin.lister()

    first = await lister.page(UploadsQuery("b", delimiter="/", max_uploads=5), ())
    assert (first.prefixes, first.is_truncated, first.next_key_marker) == (("g/",), True, "g/")
    second = await lister.page(UploadsQuery("b", delimiter="/", after=("g/", ""), max_uploads=5), ())

    assert ([one.upload_id for one in second.uploads], second.prefixes) == (["last"], ())
    assert not second.is_truncated
