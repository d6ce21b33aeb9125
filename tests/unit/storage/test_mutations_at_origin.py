"""What mutations do to the uploads of ours at the origin: known until they have ended there, told where they are left over."""

import msgspec
import pytest

from storage.records import FORMAT, OriginUploadEnded, OriginUploadOpened, UploadAborted, UploadPassed
from storage.rows import read_origin_uploads
from tests.fakes.records import (
    BUCKET,
    extent,
    flushed,
    part_uploaded,
    put,
    record,
    upload_completed,
    upload_created,
)
from tests.unit.storage.test_mutations import Applied


@pytest.fixture
def applied() -> Applied:
    """Give an empty index."""
    return Applied()


def opened(origin_upload_id: str, upload_id: str = "", sequence: int = 0) -> OriginUploadOpened:
    """Make an upload of ours at the origin."""
    return OriginUploadOpened(FORMAT, origin_upload_id, BUCKET, "key", upload_id, sequence)


def at_origin(applied: Applied) -> set[str]:
    """Name those that are known."""
    return {one.origin_upload_id for one in read_origin_uploads(applied.index)}


def test_origin_upload_opened_when_the_upload_or_change_goes_on(applied: Applied) -> None:
    """What it is for names it, and it is known by itself."""
    applied(upload_created("u", "key"), put("changed", record(7)))

    effects = applied(opened("a", upload_id="u"), opened("b", sequence=2))

    upload, change = applied.rows.upload("u"), applied.rows.dirty(2)
    assert upload is not None
    assert change is not None
    assert (upload.origin_upload_id, change.origin_upload_id) == ("a", "b")
    assert at_origin(applied) == {"a", "b"}
    assert not effects.origin_uploads_left


def test_origin_upload_opened_when_what_it_is_for_has_ended(applied: Applied) -> None:
    """Opened too late it is left over at once, and known until it has ended."""
    effects = applied(opened("a", upload_id="u"), opened("b", sequence=9))

    assert [left.origin_upload_id for left in effects.origin_uploads_left] == ["a", "b"]
    assert at_origin(applied) == {"a", "b"}


def test_origin_upload_opened_when_it_replaces_another(applied: Applied) -> None:
    """The other one is left over, unless it has ended."""
    applied(upload_created("u", "key"), opened("a", upload_id="u"), opened("b", upload_id="u"))

    effects = applied(OriginUploadEnded(FORMAT, "b"), opened("c", upload_id="u"))

    upload = applied.rows.upload("u")
    assert upload is not None
    assert upload.origin_upload_id == "c"
    assert not effects.origin_uploads_left
    assert at_origin(applied) == {"a", "c"}


def test_origin_upload_ended_when_something_names_it(applied: Applied) -> None:
    """It is unknown, and nothing goes on with it; another that took its place stays."""
    applied(upload_created("u", "key"), put("changed", record(7)))
    applied(opened("a", upload_id="u"), opened("b", sequence=2), opened("c", sequence=2))

    applied(OriginUploadEnded(FORMAT, "a"), OriginUploadEnded(FORMAT, "b"))

    upload, change = applied.rows.upload("u"), applied.rows.dirty(2)
    assert upload is not None
    assert change is not None
    assert (upload.origin_upload_id, change.origin_upload_id) == ("", "c")
    assert at_origin(applied) == {"c"}


@pytest.mark.parametrize("is_carried_on", [True, False])
def test_upload_completed_when_parts_are_at_the_origin(applied: Applied, *, is_carried_on: bool) -> None:
    """The change takes the upload at the origin over; where it does not, that is left over."""
    applied(
        upload_created("u", "key"), part_uploaded("u", 1, (extent(0, 10, 3),)), opened("a", upload_id="u")
    )
    completed = upload_completed("u", "key", 7, ((1, 10),))
    if is_carried_on:
        change = msgspec.structs.replace(completed.entry, origin_upload_id="a")
        completed = msgspec.structs.replace(completed, entry=change)

    effects = applied(completed)

    upload = applied.rows.upload("u")
    assert upload is not None
    assert upload.origin_upload_id == ""
    assert [left.origin_upload_id for left in effects.origin_uploads_left] == ([] if is_carried_on else ["a"])
    assert at_origin(applied) == {"a"}


def test_upload_aborted_when_parts_are_at_the_origin(applied: Applied) -> None:
    """The upload at the origin is left over, and known until it has ended."""
    applied(upload_created("u", "key"), opened("a", upload_id="u"))

    effects = applied(UploadAborted(FORMAT, "u"))

    assert [left.origin_upload_id for left in effects.origin_uploads_left] == ["a"]
    assert effects.uploads_ended == ["u"]
    assert at_origin(applied) == {"a"}


def test_upload_passed_when_the_origin_has_completed_it(applied: Applied) -> None:
    """Its parts and what carried them are gone, the repeated Complete is answered, and nothing is queued; twice is once."""
    applied(upload_created("u", "key"), part_uploaded("u", 1, (extent(0, 5, 9),)), opened("a", upload_id="u"))
    passed = UploadPassed(FORMAT, "u", 5.0, "etag-1")

    effects = applied(passed)

    upload = applied.rows.upload("u")
    assert upload is not None
    assert (upload.completed_at_s, upload.completed_etag, upload.origin_upload_id) == (5.0, "etag-1", "")
    assert (effects.uploads_ended, effects.origin_uploads_left, effects.dirty_added) == (["u"], [], [])
    assert (applied.rows.parts("u"), at_origin(applied)) == ((), set())
    assert not applied(passed).uploads_ended


def test_flushed_when_its_upload_at_the_origin_was_completed(applied: Applied) -> None:
    """What carried a confirmed change is known no more."""
    applied(put("key", record(7)), opened("a", sequence=1))

    applied(flushed(1))

    assert at_origin(applied) == set()


def test_put_when_the_older_one_was_carried_by_an_upload_at_the_origin(applied: Applied) -> None:
    """The upload of a superseded change stays known until it has ended at the origin."""
    applied(put("key", record(7)), opened("a", sequence=1))

    effects = applied(put("key", record(8)))

    assert [abandoned.origin_upload_id for abandoned in effects.abandoned_uploads] == ["a"]
    assert at_origin(applied) == {"a"}
