"""`storage.described`: when the origin still shows the version that is known."""

import pytest
from msgspec.structs import replace

from storage import described
from storage.described import record_of
from storage.origin.wire import OriginObject
from storage.records import Validated

FOUND = OriginObject(10, "etag", 1_700_000_000, (("content-type", "text/plain"),), (("a", "b"),))


@pytest.mark.parametrize(
    ("found", "is_same"),
    [
        (FOUND, True),
        (replace(FOUND, etag="other"), False),
        (replace(FOUND, size=11), False),
        (replace(FOUND, last_modified_s=1_700_000_001), False),
        (replace(FOUND, last_modified_s=1_699_999_999), False),
    ],
)
def test_a_version_is_the_same_while_etag_size_and_date_are(found: OriginObject, is_same: bool) -> None:
    """An older date is another version too: somebody put an old object back."""
    record = record_of(FOUND, 1, Validated())

    assert described.is_same(record, found) is is_same


def test_a_flushed_version_learns_its_date_from_the_origin() -> None:
    """What was written here does not know the origin's date until it is asked for the first time."""
    record = record_of(FOUND, 1, Validated())
    assert record.origin is not None
    flushed = replace(record, origin=replace(record.origin, last_modified_s=0))

    assert described.is_same(flushed, replace(FOUND, last_modified_s=1_800_000_000))
