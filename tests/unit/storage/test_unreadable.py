"""The alarm for acknowledged bytes that cannot be read."""

import logging

import msgspec
import pytest

from storage.rows import Effects
from storage.stats import Stats
from storage.types import ObjectName
from storage.unreadable import NAMES_MAX, REASON, Unreadable
from tests.fakes.records import BUCKET, entry

NAME = ObjectName(BUCKET, "key")


def test_an_alarm_is_raised_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A client that tries again does not fill the log."""
    stats = Stats()
    table = Unreadable(stats)

    with caplog.at_level(logging.CRITICAL):
        table.note(NAME, "segment 2 is gone")
        table.note(NAME, "segment 2 is gone")

    assert caplog.messages == [f"acknowledged bytes of s3://{BUCKET}/key cannot be read: segment 2 is gone"]
    assert stats.unreadable_dirty_objects == 1
    assert table.lines(10) == ((f"s3://{BUCKET}/key", "segment 2 is gone"),)


def test_an_alarm_ends_when_its_change_leaves_the_queue() -> None:
    """It was replaced, discarded, or sent after all; other keys keep theirs."""
    stats = Stats()
    table = Unreadable(stats)
    table.note(NAME, "gone")
    table.note(ObjectName(BUCKET, "other"), "gone")

    table.absorb(Effects(dirty_removed=[entry("key", sequence=1)]))

    assert stats.unreadable_dirty_objects == 1
    assert [name for name, _ in table.lines(10)] == [f"s3://{BUCKET}/other"]


def test_a_start_knows_the_changes_that_were_quarantined_for_it() -> None:
    """The journal's reason says so; other reasons are the origin's."""
    table = Unreadable(Stats())
    lost = msgspec.structs.replace(entry("key", sequence=1), quarantine_reason=f"{REASON}segment 2 is gone")
    refused = msgspec.structs.replace(entry("other", sequence=2), quarantine_reason="InvalidRequest")

    table.load((lost, refused, entry("third", sequence=3)))

    assert table.lines(10) == ((f"s3://{BUCKET}/key", "segment 2 is gone"),)


@pytest.mark.slow
def test_the_table_stays_bounded_when_a_whole_disk_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """That there are more objects than it remembers is told once, however often they are read."""
    stats = Stats()
    table = Unreadable(stats)
    for number in range(NAMES_MAX):
        table.note(ObjectName(BUCKET, f"{number}"), "gone")
    caplog.clear()

    for _ in range(3):
        for number in range(NAMES_MAX, NAMES_MAX + 5):
            table.note(ObjectName(BUCKET, f"{number}"), "gone")

    assert caplog.messages == [
        f"acknowledged bytes of more than 10000 objects cannot be read; s3://{BUCKET}/10000 too"
    ]
    assert (len(table), stats.unreadable_dirty_objects) == (NAMES_MAX, NAMES_MAX)
