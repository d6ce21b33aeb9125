"""What the origin's description of an object makes of its row: the same version, described as before or anew, or another. Pure."""

from typing import Final

from storage.cached import Shown
from storage.hashers import whole_check
from storage.origin.wire import OriginObject
from storage.records import FORMAT, ObjectRecord, ObjectState, OriginIdentity, Validated

_LOCK_PREFIX: Final = "x-amz-object-lock-"


def record_of(found: OriginObject, version_id: int, validated: Validated) -> ObjectRecord:
    """Make the row of what the origin showed.

    Raises:
        OriginUnavailableError: Code BadAnswer, it says that the object is empty and gives the checksum of another. Nothing
            is ever filled of an empty object, so it is found out here.
    """
    check = None if found.size else whole_check(found.checksums)
    if check is not None:
        check.verify()
    return ObjectRecord(
        FORMAT,
        version_id,
        found.size,
        found.etag,
        found.last_modified_s,
        ObjectState.CLEAN,
        OriginIdentity("", 0, found.size, found.etag, found.version_id, found.last_modified_s),
        validated,
        headers=found.headers,
        user_metadata=found.user_metadata,
        checksums=found.checksums,
    )


def is_same(record: ObjectRecord, found: OriginObject) -> bool:
    """Whether the origin still shows the version we know, metadata included."""
    origin = record.origin
    if origin is None or origin.etag != found.etag or record.size != found.size:
        return False
    if _locks(record.headers) != _locks(found.headers):
        return False
    # A version of our own, just flushed, does not know the origin's date and id yet; it learns them now.
    if not origin.last_modified_s:
        # Flushed from here, and no answer to a write carries a date: another writer's may have the same bytes.
        return has_description(found, record)
    return origin.last_modified_s == found.last_modified_s


def shown(record: ObjectRecord, found: OriginObject) -> Shown | None:
    """Give how the origin describes a version that still stands, where that differs from what is known; the bytes are the same.

    Dates have whole seconds, so what was written twice within one shows the same date (RFC 9110 section 8.8.2.2); and some of a
    description changes without a new date: storage class, restore, replication, tags (AWS API_HeadObject). What a HEAD says takes
    the place of what was known (RFC 9111 section 4.3.5).
    """
    is_known = sorted(found.headers) == sorted(record.headers) and sorted(found.user_metadata) == sorted(
        record.user_metadata
    )
    return None if is_known else Shown(found.headers, found.user_metadata)


def has_description(found: OriginObject, record: ObjectRecord) -> bool:
    """Whether an object at the origin has the size, headers and metadata of a record; tags do not show, ETags may differ."""
    told = dict(found.headers)
    return (
        found.size == record.size
        and sorted(found.user_metadata) == sorted(record.user_metadata)
        # An origin leaves the default class out of its answers.
        and all(told.get(name, "STANDARD") == value for name, value in record.headers)
    )


def _locks(headers: tuple[tuple[str, str], ...]) -> frozenset[tuple[str, str]]:
    """Pick the headers of a version that change without a new one (AWS API_PutObjectRetention, API_PutObjectLegalHold)."""
    return frozenset(pair for pair in headers if pair[0].startswith(_LOCK_PREFIX))
