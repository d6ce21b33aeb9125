"""Bases of writes: what the origin held, as far as it was shown, and what of ours may have come over it."""

from typing import Any

import msgspec
import pytest

from storage import conflicts
from storage.applier import write_group
from storage.cached import StoreVersion
from storage.conflict_rules import NO_BASE, Base
from storage.conflicts import Conflicts, ConflictsParts
from storage.dirty_rows import DirtyRows
from storage.errors import NoSuchKeyError, OriginRefusedError, OriginUnavailableError
from storage.mutations import stamp
from storage.policy import Freshness, FreshnessMode, OnConflict, Policy, PolicyTable
from storage.records import Mutation, ObjectState, OriginIdentity, Put, Validated
from storage.rows import Rows
from storage.state import State
from storage.types import ObjectName
from tests.fakes.index import FakeIndex
from tests.fakes.records import BUCKET, flushed, put, record, tombstone

NAME = ObjectName(BUCKET, "key")
GUARDED = Policy(on_conflict=OnConflict.QUARANTINE)


class Origin:
    """Says one ETag to each HEAD, or that there is nothing."""

    def __init__(self) -> None:
        self.etag = ""
        self.asked = 0

    async def head_object(self, _name: ObjectName) -> Any:
        """Describe the object."""
        self.asked += 1
        if not self.etag:
            raise NoSuchKeyError("nothing")
        return msgspec.defstruct("Found", [("etag", str)])(self.etag)


class Clock:
    """Stands at one moment."""

    def __init__(self) -> None:
        self.now_s = 210.0

    def wall_s(self) -> float:
        """Give it."""
        return self.now_s


class World:
    """Rows that a test writes, and the bases that come of them."""

    def __init__(self, *, epoch: int = 1, trusted_epoch: int = 1) -> None:
        self.index = FakeIndex()
        self.origin = Origin()
        self.clock = Clock()
        self.policy = GUARDED
        self.sequence = 0
        self.doubted_at_s = 0.0
        parts = ConflictsParts(
            rows=DirtyRows(self.index, State()),
            origin=self.origin,  # type: ignore[arg-type]  # of the origin only HEAD is asked
            policies=lambda: PolicyTable(default=self.policy),
            clock=self.clock,  # type: ignore[arg-type]  # of the clock only the wall is asked
            epoch=epoch,
            trusted_epoch=trusted_epoch,
            doubted_at_s=lambda _bucket: self.doubted_at_s,
        )
        self.rows = parts.rows
        self.conflicts = Conflicts(parts)

    def apply(self, mutation: Mutation) -> int:
        """Commit a mutation."""
        self.sequence += 1
        write_group(self.index, [(self.sequence, stamp(mutation, self.sequence, None))])
        return self.sequence

    def accept(self, version_id: int, etag: str, base: Base, *, epoch: int = 1) -> int:
        """Acknowledge a put on a base."""
        mutation = put("key", msgspec.structs.replace(record(version_id), etag=etag))
        entry = msgspec.structs.replace(
            mutation.entry, base_etag=base.etag, own_etags=base.own_etags, epoch=epoch
        )
        return self.apply(Put(1, mutation.record, entry))


@pytest.fixture
def world() -> World:
    """Give an empty world."""
    return World()


async def test_base_is_asked_for_when_nothing_is_known(world: World) -> None:
    """Of an object that is there its ETag, of none that it is absent; without the policy nobody asks."""
    world.origin.etag = "theirs"
    there = await world.conflicts.base(NAME)
    world.origin.etag = ""
    absent = await world.conflicts.base(NAME)
    world.policy = Policy()
    plain = await world.conflicts.base(NAME)

    assert (there, absent) == (Base("theirs"), Base(""))
    assert plain is NO_BASE
    assert world.origin.asked == 2


async def test_base_is_that_of_a_row_only_while_the_row_may_be_believed(world: World) -> None:
    """A row past its time, or from before an unclean stop, is no word of the origin's, even where it is served (`immutable`)."""
    world.accept(7, "ours", Base(""))
    world.apply(flushed(1, etag="theirs"))
    world.origin.etag = "asked"
    fresh = await world.conflicts.base(NAME)
    world.doubted_at_s = 1e9
    doubted = await world.conflicts.base(NAME)
    world.doubted_at_s = 0.0
    world.clock.now_s = 300.0
    late = await world.conflicts.base(NAME)
    untrusted = World(epoch=3, trusted_epoch=2)
    untrusted.policy = Policy(on_conflict=OnConflict.QUARANTINE, freshness=Freshness(FreshnessMode.IMMUTABLE))
    untrusted.origin.etag = "asked"
    clean = msgspec.structs.replace(
        record(8),
        state=ObjectState.CLEAN,
        origin=OriginIdentity("", 0, 0, "old"),
        validated=Validated(1.0, 1),
    )
    rows = Rows(untrusted.index)
    assert StoreVersion(BUCKET, "key", clean, 0)(rows)
    untrusted.index.write(rows.batch())

    assert (fresh, doubted, late) == (Base("theirs"), Base("asked"), Base("asked"))
    assert await untrusted.conflicts.base(NAME) == Base("asked")


async def test_base_is_inherited_with_what_was_sent_and_is_not_settled(world: World) -> None:
    """An attempt under way or without an answer is remembered; one that was refused took no effect, and is not."""
    world.accept(7, "first", Base("before"))
    with (
        pytest.raises(OriginUnavailableError),
        world.conflicts.sending(NAME, "first"),
    ):
        raise OriginUnavailableError("cut", status=0, code="Connection", outcome_unknown=True)
    with pytest.raises(OriginRefusedError), world.conflicts.sending(NAME, "refused"):
        raise OriginRefusedError("no", status=412, code="PreconditionFailed")
    second = await world.conflicts.base(NAME)
    world.accept(8, "second", second)
    with world.conflicts.sending(NAME, "second"):
        third = await world.conflicts.base(NAME)

    assert second == Base("before", ("first",))
    assert third == Base("before", ("first", "second"))
    assert world.origin.asked == 0


async def test_base_is_what_took_effect_last_of_ours(world: World) -> None:
    """A success that was overtaken moves the base; once the key is clean the row counts again, and nothing is remembered."""
    world.accept(7, "first", Base("before"))
    with world.conflicts.sending(NAME, "first"):
        world.conflicts.took_effect(NAME, "first", "first at the origin")
    moved = await world.conflicts.base(NAME)
    sequence = world.accept(8, "second", moved)
    entry = world.rows.newest(NAME)
    assert entry is not None
    sent_over = world.conflicts.base_of(entry)
    world.apply(flushed(sequence, etag="second at the origin"))
    world.conflicts.settle(NAME)

    assert moved == sent_over == Base("first at the origin")
    assert await world.conflicts.base(NAME) == Base("second at the origin")
    assert len(world.conflicts) == 0


async def test_base_counts_what_an_earlier_process_may_have_sent(world: World) -> None:
    """Nobody knows whether a change from before this start was sent; so it may be what the origin shows. Deletes too."""
    world.accept(7, "before the crash", Base("base", ("older",)), epoch=0)
    over_put = await world.conflicts.base(NAME)
    deleted = tombstone("key")
    world.apply(
        msgspec.structs.replace(
            deleted, entry=msgspec.structs.replace(deleted.entry, base_etag="base", epoch=0)
        )
    )
    over_delete = await world.conflicts.base(NAME)

    assert over_put == Base("base", ("older", "before the crash"))
    assert over_delete == Base("base", ("",))


async def test_base_of_a_queued_change_counts_only_while_the_policy_says_so(world: World) -> None:
    """`overwrite` lets a quarantined change win; a change that was accepted without a base never gets one."""
    world.accept(7, "ours", Base("before"))
    guarded = world.rows.newest(NAME)
    assert guarded is not None
    plain = msgspec.structs.replace(guarded, base_etag=None)
    under_policy = (world.conflicts.base_of(guarded), world.conflicts.base_of(plain))
    world.policy = Policy()

    assert under_policy == (Base("before"), None)
    assert world.conflicts.base_of(guarded) is None


async def test_memory_is_bounded_when_keys_are_never_settled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the keys that are remembered the oldest go."""
    monkeypatch.setattr(conflicts, "KEYS_MAX", 3)

    for n in range(10):
        with world.conflicts.sending(ObjectName(BUCKET, f"k{n}"), "etag"):
            pass

    assert len(world.conflicts) == 3
