"""What a client's conditional write asks of the object that is there, and whether that holds. Pure.

Source: AWS User Guide "Conditional writes" and "Conditional deletes", RFC 9110 section 13. If-Match asks for an object, of one
ETag or of any; If-None-Match for none, or for another one. x-amz-if-match-size and x-amz-if-match-last-modified-time (AWS
API_DeleteObject) hold also where there is no object. Dates of the past (If-Modified-Since ...) mean nothing to a write and are left
to the origin.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from storage.origin.wire import condition_headers, http_date_s, number

IF_MATCH: Final = "if-match"
IF_NONE_MATCH: Final = "if-none-match"
IF_SIZE: Final = "x-amz-if-match-size"
IF_LAST_MODIFIED: Final = "x-amz-if-match-last-modified-time"

DECIDED: Final = frozenset({IF_MATCH, IF_NONE_MATCH, IF_SIZE, IF_LAST_MODIFIED})
"""The headers that are decided here. All others of a conditional write are the origin's alone."""

Headers = tuple[tuple[str, str], ...]


class Verdict(Enum):
    """What becomes of a conditional write."""

    HOLDS = "holds"
    MISSING = "missing"
    """There is nothing that If-Match could name: 404 NoSuchKey."""
    FAILED = "failed"
    """412 PreconditionFailed."""


class Seen(msgspec.Struct, frozen=True, gc=False):
    """The object that is there, as clients see it. `origin_etag` is what the origin calls it."""

    etag: str
    origin_etag: str
    size: int
    last_modified_s: int


class WriteConditions(msgspec.Struct, frozen=True, gc=False):
    """The conditions of one write; a field is None where the header is absent."""

    if_match: str | None = None
    if_none_match: str | None = None
    size: str | None = None
    last_modified: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be decided."""
        return (self.if_match, self.if_none_match, self.size, self.last_modified) == (None,) * 4

    def judge(self, seen: Seen | None) -> Verdict:
        """Decide over what is there, None where nothing is."""
        if seen is None:
            return Verdict.HOLDS if self.if_match is None else Verdict.MISSING
        has_failed = (
            (self.if_match is not None and not _names(self.if_match, seen, weakly=False))
            or (self.if_none_match is not None and _names(self.if_none_match, seen, weakly=True))
            or (self.size is not None and number(self.size.strip()) != seen.size)
            or (self.last_modified is not None and http_date_s(self.last_modified) != seen.last_modified_s)
        )
        return Verdict.FAILED if has_failed else Verdict.HOLDS

    def handed_on(self, seen: Seen | None) -> Headers:
        """Give the conditions with which the origin decides once more, over the very object that was judged here.

        It is asked for the ETag that it gave itself: not every origin understands `*`, a list, or a size, and its date is not
        the one that clients see.
        """
        none_match = () if self.if_none_match is None else ((IF_NONE_MATCH, self.if_none_match),)
        names_object = (self.if_match, self.size, self.last_modified) != (None,) * 3
        if seen is None or not names_object:
            return none_match
        return condition_headers(seen.origin_etag, "") + none_match


def read_write_conditions(headers: Iterable[tuple[str, str]]) -> WriteConditions:
    """Read the conditions of a write from its headers (lower-case names)."""
    told = dict(headers)
    return WriteConditions(
        told.get(IF_MATCH), told.get(IF_NONE_MATCH), told.get(IF_SIZE), told.get(IF_LAST_MODIFIED)
    )


def _names(field: str, seen: Seen, *, weakly: bool) -> bool:
    """Say whether a list of entity tags names an object: `*`, quoted, weak, and S3's own unquoted form."""
    if field.strip() == "*":
        return True
    for listed in field.split(","):
        tag = listed.strip()
        if tag.startswith("W/"):
            if not weakly:
                continue
            tag = tag[2:]
        if tag.strip('"') in {seen.etag, seen.origin_etag}:
            return True
    return False
