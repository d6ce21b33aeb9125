"""List open uploads: ours and those that clients have at the origin, as one listing in pages.

    ours: rows of the index ─────────────────────┐
    the origin's: pages from the marker on ──────┴> merged by key, as far as both are known ──> a page, once it is full

No more of the origin is read than the page needs, and at most UPLOAD_PAGES_MAX pages; a page that is cut short by that bound says
where to go on. An upload that is opened or ends while pages are read is listed or not. The uploads of the flush are nobody's and
are left out.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from storage.origin.client import OriginClient
from storage.records import FORMAT, UploadRecord
from storage.requests import UploadsPage

UPLOAD_PAGES_MAX: Final = 100
"""So many pages of the origin's uploads are read for one page of ours: 100,000 uploads, some 50 MB."""

_LAST: Final = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class UploadsQuery:
    """What is asked for. `after` is the key marker and the upload id marker, "" for none."""

    bucket: str
    prefix: str = ""
    delimiter: str = ""
    after: tuple[str, str] = ("", "")
    max_uploads: int = 1000


@dataclass(frozen=True, slots=True)
class UploadsLister:
    """Lists uploads. `own_ids` names those at the origin that no client opened."""

    origin: OriginClient
    own_ids: Callable[[], frozenset[str]]

    async def page(self, query: UploadsQuery, ours: Sequence[UploadRecord]) -> UploadsPage:
        """Give one page; `ours` are all open uploads of the bucket that are kept here, in any order."""
        if query.max_uploads <= 0:
            return UploadsPage((), (), is_truncated=False)
        found: list[UploadRecord] = []
        own = self.own_ids()
        pages = 0
        async for uploads, known_below in self._theirs(query):
            pages += 1
            found += uploads
            # One of ours may have come or gone while the pages were read.
            own |= self.own_ids()
            known = [
                u
                for u in (*ours, *found)
                if u.upload_id not in own and (not known_below or u.key < known_below)
            ]
            result = page_of_uploads(known, query)
            if not known_below or result.is_truncated:
                return result
            if pages >= UPLOAD_PAGES_MAX:
                return _cut_short(result, known_below)
        raise AssertionError("the last page of the origin says that it is the last")

    async def _theirs(self, query: UploadsQuery) -> AsyncIterator[tuple[list[UploadRecord], str]]:
        """Yield the origin's uploads from the marker on, and below which key all are known by then; "" at the end."""
        key_marker, upload_id_marker = query.after
        if upload_id_marker and key_marker.startswith(query.prefix):
            # A key marker alone stands behind all uploads of its key, so they are asked for by themselves.
            async for uploads, known_below in self._pages(query.bucket, key_marker, ""):
                is_past = not known_below or known_below > key_marker
                yield (
                    [u for u in uploads if u.key == key_marker],
                    key_marker + "\0" if is_past else key_marker,
                )
                if is_past:
                    break
        async for page in self._pages(query.bucket, query.prefix, _start(query)):
            yield page

    async def _pages(
        self, bucket: str, prefix: str, key_marker: str
    ) -> AsyncIterator[tuple[list[UploadRecord], str]]:
        upload_id_marker = ""
        while True:
            page = await self.origin.list_multipart_uploads(
                bucket, prefix, key_marker=key_marker, upload_id_marker=upload_id_marker
            )
            uploads = [
                UploadRecord(FORMAT, u.upload_id, bucket, u.key, float(u.initiated_s), "")
                for u in page.uploads
            ]
            following = page.next_key_marker, page.next_upload_id_marker
            # One that says where it began would go on for ever.
            is_last = not page.is_truncated or following in {("", ""), (key_marker, upload_id_marker)}
            yield uploads, "" if is_last else page.next_key_marker
            if is_last:
                return
            key_marker, upload_id_marker = following


def _start(query: UploadsQuery) -> str:
    """Say behind which key the origin is asked: a marker that is a group stands behind all of the group."""
    key_marker, _ = query.after
    group = _group(key_marker, query)
    return key_marker + _LAST if group and group == key_marker else key_marker


def _group(key: str, query: UploadsQuery) -> str:
    """Give the common prefix that a key is shown under; "" where it is shown by itself."""
    if not query.delimiter or not key.startswith(query.prefix):
        return ""
    at = key.find(query.delimiter, len(query.prefix))
    return key[: at + len(query.delimiter)] if at >= 0 else ""


def _cut_short(result: UploadsPage, known_below: str) -> UploadsPage:
    """Say of a page that is not full where to go on: behind its last line, or where nothing was to be shown."""
    last = max([upload.key for upload in result.uploads] + list(result.prefixes), default="")
    is_upload = bool(result.uploads) and result.uploads[-1].key == last
    return UploadsPage(
        result.uploads,
        result.prefixes,
        is_truncated=True,
        next_key_marker=last or known_below,
        next_upload_id_marker=result.uploads[-1].upload_id if is_upload else "",
    )


def page_of_uploads(uploads: Sequence[UploadRecord], query: UploadsQuery) -> UploadsPage:
    """Cut one page of ListMultipartUploads out of all open uploads, in no order; prefixes count as uploads do.

    A marker without upload id is behind all uploads of its key.
    """
    if query.max_uploads <= 0:
        return UploadsPage((), (), is_truncated=False)
    key_marker, _ = query.after
    shown: list[UploadRecord] = []
    prefixes: list[str] = []
    last = ("", "")
    for upload in _uploads_behind(uploads, query.after):
        if not upload.key.startswith(query.prefix):
            continue
        group = _group(upload.key, query)
        if group and (group in prefixes[-1:] or key_marker.startswith(group)):
            continue
        if len(shown) + len(prefixes) >= query.max_uploads:
            return UploadsPage(
                tuple(shown),
                tuple(prefixes),
                is_truncated=True,
                next_key_marker=last[0],
                next_upload_id_marker=last[1],
            )
        if group:
            prefixes.append(group)
            last = (group, "")
        else:
            shown.append(upload)
            last = (upload.key, upload.upload_id)
    return UploadsPage(tuple(shown), tuple(prefixes), is_truncated=False)


def _uploads_behind(uploads: Sequence[UploadRecord], after: tuple[str, str]) -> list[UploadRecord]:
    """Give the uploads behind a marker by key, then by when they were opened (AWS API_ListMultipartUploads)."""
    ordered = sorted(uploads, key=lambda upload: (upload.key, upload.initiated_s, upload.upload_id))
    key_marker, upload_id_marker = after
    if not key_marker:
        return ordered
    for place, upload in enumerate(ordered):
        if (upload.key, upload.upload_id) == after:
            return ordered[place + 1 :]
    # The marker's own upload has ended since, so only its id can say what comes behind it.
    return [
        upload
        for upload in ordered
        if upload.key > key_marker
        or (upload.key == key_marker and upload_id_marker and upload.upload_id > upload_id_marker)
    ]
