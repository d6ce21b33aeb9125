"""Conditional reads: may the object be sent, has the client got it already, or is it not the one it wants?

RFC 9110 section 13.2.2 gives the order, AWS "GetObject" and "CopyObject" ("Additional considerations about request headers")
the two results that differ from it. Dates are whole seconds on both sides, as HTTP dates are. Conditional writes are
decided by the origin alone and are not read here.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

import msgspec

from gateway.s3.dates import parse_http_date


class Outcome(Enum):
    """What the conditions say of the object that is there."""

    PASS = auto()
    NOT_MODIFIED = auto()
    PRECONDITION_FAILED = auto()


class Conditions(msgspec.Struct, frozen=True, gc=False):
    """The conditions of one request; a field is None where the header is absent, or a date that is none.

    Attributes:
        for_copy: They concern the source of a copy, where "not modified" is a failure too, since a copy has no 304.
    """

    if_match: str | None = None
    if_none_match: str | None = None
    if_modified_since_s: int | None = None
    if_unmodified_since_s: int | None = None
    for_copy: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to evaluate."""
        return (
            self.if_match is None
            and self.if_none_match is None
            and self.if_modified_since_s is None
            and self.if_unmodified_since_s is None
        )


UNCONDITIONAL: Final = Conditions()


def read_conditions(headers: Mapping[str, str]) -> Conditions:
    """Read the conditions of a GET or HEAD from its headers (lower-case names)."""
    return _conditions(headers, "", for_copy=False)


def copy_source_conditions(headers: Mapping[str, str]) -> Conditions:
    """Read the x-amz-copy-source-if-* conditions of a CopyObject or UploadPartCopy."""
    return _conditions(headers, "x-amz-copy-source-", for_copy=True)


def evaluate(conditions: Conditions, etag: str, last_modified_s: int) -> Outcome:
    """Decide for an object that exists, given its unquoted ETag and the date that clients see.

    If-Match, where given, overrules If-Unmodified-Since; If-None-Match overrules If-Modified-Since. A condition is looked
    at before a range is.
    """
    if _is_refused(conditions, etag, last_modified_s):
        return Outcome.PRECONDITION_FAILED
    if _is_known(conditions, etag, last_modified_s):
        return Outcome.PRECONDITION_FAILED if conditions.for_copy else Outcome.NOT_MODIFIED
    return Outcome.PASS


def if_range_holds(header: str | None, etag: str, last_modified_s: int) -> bool:
    """Say whether a Range may be honoured (RFC 9110 section 13.1.5): no If-Range, or one that names this version.

    An entity tag is compared strongly, a date exactly. Sending a part of another version would let the client glue two
    versions together.
    """
    if header is None:
        return True
    header = header.strip()
    if header.startswith(('"', "W/")):
        return etag_matches(header, etag, weakly=False)
    date_s = parse_http_date(header)
    return header == etag if date_s is None else date_s == last_modified_s


def etag_matches(field: str, etag: str, *, weakly: bool) -> bool:
    """Say whether a list of entity tags names `etag`: `*`, quoted, weak, and S3's own unquoted form.

    Args:
        field: The value of If-Match or If-None-Match.
        etag: Unquoted; S3's are strong and hold neither quote nor comma.
        weakly: Ignore the mark `W/` (RFC 9110 section 8.8.3.2), as If-None-Match does and If-Match does not.
    """
    if field.strip() == "*":
        return True
    return any(_tag_matches(tag.strip(), etag, weakly=weakly) for tag in field.split(","))


def _tag_matches(tag: str, etag: str, *, weakly: bool) -> bool:
    if tag.startswith("W/"):
        if not weakly:
            return False
        tag = tag[2:]
    if len(tag) >= 2 and tag[0] == tag[-1] == '"':
        tag = tag[1:-1]
    return tag == etag


def _is_refused(conditions: Conditions, etag: str, last_modified_s: int) -> bool:
    if conditions.if_match is not None:
        return not etag_matches(conditions.if_match, etag, weakly=False)
    limit_s = conditions.if_unmodified_since_s
    return limit_s is not None and last_modified_s > limit_s


def _is_known(conditions: Conditions, etag: str, last_modified_s: int) -> bool:
    if conditions.if_none_match is not None:
        return etag_matches(conditions.if_none_match, etag, weakly=True)
    limit_s = conditions.if_modified_since_s
    return limit_s is not None and last_modified_s <= limit_s


def _conditions(headers: Mapping[str, str], prefix: str, *, for_copy: bool) -> Conditions:
    conditions = Conditions(
        if_match=headers.get(prefix + "if-match"),
        if_none_match=headers.get(prefix + "if-none-match"),
        if_modified_since_s=_date(headers.get(prefix + "if-modified-since")),
        if_unmodified_since_s=_date(headers.get(prefix + "if-unmodified-since")),
        for_copy=for_copy,
    )
    return UNCONDITIONAL if conditions.is_empty else conditions


def _date(header: str | None) -> int | None:
    return None if header is None else parse_http_date(header)
