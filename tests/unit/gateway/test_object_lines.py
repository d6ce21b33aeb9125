"""`gateway.object_lines`: an object explained for people."""

from msgspec.structs import replace

from gateway.object_lines import object_lines
from storage.explained import ObjectReport
from storage.reasons import Answer
from storage.types import MIB, CacheResult

REPORT = ObjectReport(
    "s3://b/k",
    1000.0,
    state="clean",
    size=3 * MIB,
    etag="abc",
    origin_etag="abc",
    version_id=7,
    origin_version_id="v1",
    last_modified_s=100,
    cached_bytes=3 * MIB,
    ranges=((0, 3 * MIB),),
    range_count=1,
    confirmed_at_s=990.0,
    is_fresh=True,
    why_fresh="it was confirmed within its time to live",
    fresh_until_s=1050.0,
    covers_until_s=4650.0,
)


def lines_of(report: ObjectReport) -> dict[str, str]:
    """Read the lines by their names."""
    return {line[:20].strip(): line[21:] for line in object_lines(report)[1:]}


def test_an_object_that_is_here_says_how_long_it_is_served() -> None:
    """Until when unasked, until when for a failing origin."""
    assert object_lines(REPORT)[0] == "s3://b/k"
    assert lines_of(REPORT) == {
        "state": "clean: the origin has it too",
        "version": "etag abc, version v1, 1970-01-01 00:01:40 UTC",
        "cached": "all of it, 3.0 MiB",
        "confirmed": "1970-01-01 00:16:30 UTC, 10 s ago",
        "fresh": "yes, until 1970-01-01 00:17:30 UTC: it was confirmed within its time to live",
        "while origin fails": "served as STALE until 1970-01-01 01:17:30 UTC",
    }


def test_what_is_pinned_of_an_object_is_told_and_why_not_more() -> None:
    """Nothing where no policy pins it."""
    assert "pinned" not in lines_of(REPORT)
    assert lines_of(replace(REPORT, pinned_bytes=3 * MIB))["pinned"] == "3.0 MiB of what is cached"
    refused = replace(REPORT, why_not_pinned="pins are full")
    assert lines_of(refused)["pinned"] == "0 B of what is cached: pins are full"


def test_an_object_of_which_some_is_here_says_what_and_why_not_more() -> None:
    """The first ranges, as a Range header would name them."""
    report = replace(
        REPORT,
        cached_bytes=6,
        ranges=tuple((n * 10, n * 10 + 1) for n in range(6)),
        range_count=30,
        is_being_fetched=True,
        why_missing="these bytes were not read, or were reclaimed",
        last_answer=Answer(CacheResult.PARTIAL, "not cached", 995.0),
    )

    told = lines_of(report)

    assert (
        told["cached"]
        == "6 B of 3.0 MiB: bytes 0-0, 10-10, 20-20, 30-30, 40-40 and 25 more ranges, being fetched"
    )
    assert told["why not cached"] == "these bytes were not read, or were reclaimed"
    assert told["last not a hit"] == "PARTIAL, not cached, 1970-01-01 00:16:35 UTC, 5 s ago"


def test_an_object_that_is_not_known_says_only_that() -> None:
    """There is no version to tell of."""
    report = ObjectReport("s3://b/live/k", 1.0, read_as="s3://b/v1/k", why_missing="nobody has read it")

    assert lines_of(report) == {
        "read as": "s3://b/v1/k",
        "state": "nothing is known of it here: a read asks the origin",
        "why not cached": "nobody has read it",
    }


def test_a_dirty_object_says_how_its_flush_stands() -> None:
    """It is served whatever the origin does."""
    report = replace(
        REPORT,
        state="quarantined",
        acknowledged_at_s=900.0,
        pending="quarantined: 403",
        covers_until_s=-1.0,
        fresh_until_s=0.0,
        confirmed_at_s=0.0,
        why_fresh="own",
    )

    told = lines_of(report)

    assert told["acknowledged"] == "1970-01-01 00:15:00 UTC, 100 s ago, its flush is quarantined: 403"
    assert told["fresh"] == "yes: own"
    assert told["while origin fails"] == "served"


def test_an_object_that_is_known_not_to_exist_says_until_when() -> None:
    """By the origin's word, which is believed for a while."""
    report = ObjectReport(
        "s3://b/k",
        1000.0,
        state="absent",
        confirmed_at_s=990.0,
        is_fresh=True,
        why_fresh="the origin said so within negative_ttl",
        fresh_until_s=1050.0,
    )

    assert lines_of(report) == {
        "state": "absent: the origin has said that there is none",
        "confirmed": "1970-01-01 00:16:30 UTC, 10 s ago",
        "fresh": "yes, until 1970-01-01 00:17:30 UTC: the origin said so within negative_ttl",
    }
