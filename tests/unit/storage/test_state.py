"""The loop's mirror of the index: sums that follow the rows, facts, and listeners that hear of each batch."""

from dataclasses import fields

import pytest

from storage.records import FORMAT, BucketFacts, DirtyEntry, SegmentRow
from storage.rows import Effects
from storage.state import State


def row(segment_id: int, live: int, dirty: int) -> SegmentRow:
    """Make a segment's row."""
    return SegmentRow(FORMAT, segment_id, 1, "", live, dirty)


def facts(bucket: str, *, exists: bool = True, region: str = "") -> BucketFacts:
    """Make a bucket's facts."""
    return BucketFacts(FORMAT, bucket, exists, 1.0, region)


def change(bucket: str, sequence: int, *, is_tombstone: bool = False) -> DirtyEntry:
    """Make a change of a key of its own."""
    version_id = 0 if is_tombstone else sequence
    return DirtyEntry(FORMAT, sequence, bucket, f"key-{sequence}", 1, version_id, 0, "credential", 1.0)


def test_load_when_recovery_found_rows() -> None:
    """Sums, facts and open uploads are those of the rows that recovery found."""
    state = State()

    state.load([row(1, 100, 30), row(2, 50, 0)], [facts("a"), facts("b")], 3, [])

    assert (state.live_bytes, state.dirty_bytes, state.open_uploads) == (150, 30, 3)
    assert set(state.facts) == {"a", "b"}
    assert set(state.segments) == {1, 2}


def test_absorb_when_segments_change() -> None:
    """A row replaces the one before in the sums; a dropped segment leaves them."""
    state = State()
    state.load([row(1, 100, 30), row(2, 50, 0)], [], 0, [])

    state.absorb(Effects(segments={1: row(1, 80, 20), 3: row(3, 7, 7)}))
    changed = (state.live_bytes, state.dirty_bytes)
    state.absorb(Effects(segments={1: row(1, -1, 0), 9: row(9, -1, 0)}))

    assert changed == (137, 27)
    assert (state.live_bytes, state.dirty_bytes) == (57, 7)
    assert set(state.segments) == {2, 3}


def test_absorb_when_facts_change() -> None:
    """The last word on a bucket counts; one that does not exist is forgotten."""
    state = State()
    state.load([], [facts("a")], 0, [])

    state.absorb(Effects(facts=[facts("a", region="eu"), facts("b"), facts("b", exists=False)]))

    assert {bucket: known.region for bucket, known in state.facts.items()} == {"a": "eu"}


def test_absorb_when_uploads_open_and_close() -> None:
    """Open uploads are counted up and down."""
    state = State()
    state.load([], [], 2, [])

    state.absorb(Effects(uploads_opened=3, uploads_closed=1))

    assert state.open_uploads == 4


def test_dirty_keys_when_changes_come_and_go() -> None:
    """Each bucket's dirty keys, and those of them that are puts, are counted from the start on, replaced ones once."""
    state = State()
    state.load([], [], 0, [change("a", 1), change("a", 2, is_tombstone=True), change("b", 3)])
    loaded = (dict(state.dirty_keys), dict(state.dirty_puts))

    # A put takes the place of the delete, and of itself within one batch; b's only change is flushed.
    state.absorb(
        Effects(
            dirty_added=[change("a", 4), change("a", 5)],
            dirty_removed=[change("a", 2, is_tombstone=True), change("a", 4), change("b", 3)],
        )
    )

    assert loaded == ({"a": 2, "b": 1}, {"a": 1, "b": 1})
    assert (dict(state.dirty_keys), dict(state.dirty_puts)) == ({"a": 2}, {"a": 2})


def test_absorb_when_somebody_listens() -> None:
    """Listeners hear of each batch, in their order, when the mirror knows it already."""
    state = State()
    heard: list[tuple[str, int]] = []
    state.listeners += [
        lambda _effects: heard.append(("first", state.live_bytes)),
        lambda _effects: heard.append(("second", state.live_bytes)),
    ]

    state.absorb(Effects(segments={1: row(1, 10, 0)}))

    assert heard == [("first", 10), ("second", 10)]


def test_absorb_when_a_batch_changed_nothing_of_it() -> None:
    """Nobody is told."""
    state, told = State(), list[Effects]()
    state.listeners.append(told.append)

    state.absorb(Effects())
    state.absorb(Effects(uploads_closed=1))

    assert told == [Effects(uploads_closed=1)]


@pytest.mark.parametrize("name", [field.name for field in fields(Effects)])
def test_effects_are_not_empty_when_any_of_them_is_there(name: str) -> None:
    """None is forgotten: whatever a batch changed is told."""
    some = {dict: {1: row(1, 1, 0)}, list: [None], int: 1}
    effects = Effects()

    setattr(effects, name, some[type(getattr(effects, name))])

    assert Effects().is_empty
    assert not effects.is_empty
