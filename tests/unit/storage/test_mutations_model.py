"""Any mutations in any order, changes to clean rows between them: rows stay consistent, and a replay gives the dirty state again.

The machine keeps what each dirty object and part is made of, as one token for each place that bytes were put at. A
move carries the token to the new place. So whatever the rows say where bytes are, they must be the right ones.
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage import keys
from storage.applier import Sequenced, write_change, write_group
from storage.cached import (
    AddExtents,
    CleanMove,
    DropExtents,
    DropSegment,
    ForgetClean,
    ForgetVersion,
    MarkValidated,
    MoveClean,
    StoreVersion,
)
from storage.family import Family
from storage.mutations import stamp
from storage.records import (
    FORMAT,
    Attempted,
    Discarded,
    Forgotten,
    Moved,
    Mutation,
    ObjectState,
    OriginIdentity,
    OriginUploadEnded,
    OriginUploadOpened,
    Quarantined,
    Released,
    ResidentRow,
    UploadAborted,
    Validated,
)
from storage.rows import decode_object, decode_part, decode_resident, read_extents
from storage.types import Extent, Location
from tests.fakes.index import FakeIndex
from tests.fakes.records import (
    BUCKET,
    flushed,
    part_uploaded,
    put,
    record,
    tombstone,
    upload_completed,
    upload_created,
)
from tests.fakes.row_invariants import all_rows, check_rows, objects_of, rows_of

KEYS = st.sampled_from(["a", "b", "c", "d"])
UPLOADS = st.sampled_from(["u1", "u2", "u3"])
SEGMENTS = st.integers(1, 6)
COUNTS = st.sampled_from([0, 1, 1, 2, 3, 18])
INDEX = st.integers(0, 1_000)
EXTENT_BYTES = 10

Tokens = tuple[int, ...]


@dataclass
class Dirty:
    """What a key's newest change is, until it is confirmed."""

    sequence: int
    tokens: Tokens | None  # None is a delete


class MutationMachine(RuleBasedStateMachine):
    """Applies mutations to a fake index and to a model of what is dirty."""

    def __init__(self) -> None:
        super().__init__()
        self.index = FakeIndex()
        self.journal: list[Sequenced] = []
        self.older = [(0, FakeIndex())]
        self.next_id = 1
        self.places: dict[tuple[int, int], int] = {}
        self.dirty: dict[str, Dirty] = {}
        self.uploads: dict[str, dict[int, Tokens]] = {}
        self.sequences: list[int] = []
        self.moves: list[Moved] = []

    # --- places and tokens ---

    def new_id(self) -> int:
        """Give a number never given before: a version id, a token, an offset."""
        self.next_id += 1
        return self.next_id

    def new_place(self, segment_id: int) -> Location:
        """Put bytes somewhere new."""
        token = self.new_id()
        place = Location(segment_id, token * EXTENT_BYTES, EXTENT_BYTES, token.to_bytes(8))
        self.places[place.segment_id, place.offset] = token
        return place

    def new_extents(self, segment_id: int, count: int) -> tuple[Extent, ...]:
        """Put a body of `count` extents somewhere, in two segments."""
        return tuple(
            Extent(n * EXTENT_BYTES, (n + 1) * EXTENT_BYTES, self.new_place(segment_id + n % 2))
            for n in range(count)
        )

    def tokens(self, extents: tuple[Extent, ...]) -> Tokens:
        """Say what extents are made of."""
        return tuple(self.places[e.location.segment_id, e.location.offset] for e in extents)

    def apply(self, *mutations: Mutation) -> int:
        """Journal mutations as one group and apply them; give the last sequence."""
        first = len(self.journal) + 1
        group = [(first + n, stamp(mutation, first + n, None)) for n, mutation in enumerate(mutations)]
        self.journal += group
        write_group(self.index, group)
        return group[-1][0]

    # --- objects ---

    @rule(key=KEYS, segment_id=SEGMENTS, count=COUNTS)
    def put(self, key: str, segment_id: int, count: int) -> None:
        """Acknowledge a put."""
        extents = self.new_extents(segment_id, count)
        sequence = self.apply(put(key, record(self.new_id(), extents)))
        self.dirty[key] = Dirty(sequence, self.tokens(extents))
        self.sequences.append(sequence)

    @rule(key=KEYS, segment_id=SEGMENTS)
    def put_twice_and_delete_in_one_group(self, key: str, segment_id: int) -> None:
        """Acknowledge changes of one key that were collected together."""
        versions = [record(self.new_id(), self.new_extents(segment_id, count)) for count in (2, 17)]
        sequence = self.apply(*[put(key, version) for version in versions], tombstone(key))
        self.dirty[key] = Dirty(sequence, None)
        self.sequences.append(sequence)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        """Acknowledge a delete."""
        self.dirty[key] = Dirty(self.apply(tombstone(key)), None)
        self.sequences.append(self.dirty[key].sequence)

    def settle(self, sequence: int) -> Dirty | None:
        """Take a change out of the model, if it is the newest of its key."""
        for key, change in self.dirty.items():
            if change.sequence == sequence:
                return self.dirty.pop(key)
        return None

    @precondition(lambda self: self.sequences)
    @rule(choice=INDEX, releases=st.booleans())
    def flush(self, choice: int, *, releases: bool) -> None:
        """Confirm some change, which may be settled or superseded long since; its bytes may go with that."""
        sequence = self.sequences[choice % len(self.sequences)]
        change = self.settle(sequence)
        is_tombstone = change is not None and change.tokens is None
        self.apply(flushed(sequence, is_tombstone=is_tombstone, releases=releases))

    @precondition(lambda self: self.sequences)
    @rule(choice=INDEX)
    def discard(self, choice: int) -> None:
        """Give some change up."""
        sequence = self.sequences[choice % len(self.sequences)]
        self.settle(sequence)
        self.apply(Discarded(FORMAT, sequence))

    @precondition(lambda self: self.sequences)
    @rule(choice=INDEX, kind=st.sampled_from(["attempted", "opened", "ended", "quarantined", "released"]))
    def attempt(self, choice: int, kind: str) -> None:
        """Note something about some change that goes on."""
        sequence = self.sequences[choice % len(self.sequences)]
        match kind:
            case "attempted":
                self.apply(Attempted(FORMAT, sequence, "theirs", (1,)))
            case "opened":
                self.apply(OriginUploadOpened(FORMAT, "theirs", BUCKET, "a", "", sequence))
            case "ended":
                self.apply(OriginUploadEnded(FORMAT, "theirs"))
            case "quarantined":
                self.apply(Quarantined(FORMAT, sequence, "no"))
            case _:
                self.apply(Released(FORMAT, sequence))

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        """Forget what is clean of a key."""
        self.apply(Forgotten(FORMAT, BUCKET, key))

        present = objects_of(self.index).get(keys.split_object_key(keys.object_key(BUCKET, key)))
        assert present is None or present.state is not ObjectState.CLEAN

    # --- uploads ---

    @rule(upload_id=UPLOADS, key=KEYS)
    def create_upload(self, upload_id: str, key: str) -> None:
        """Open an upload, if its id is free: an id never comes back while it is known."""
        if self.index.get(Family.UPLOADS, keys.upload_key(upload_id)) is None:
            self.apply(upload_created(upload_id, key))
            self.uploads[upload_id] = {}

    @rule(upload_id=UPLOADS, number=st.integers(1, 3), segment_id=SEGMENTS, count=COUNTS)
    def upload_part(self, upload_id: str, number: int, segment_id: int, count: int) -> None:
        """Acknowledge a part, perhaps of an upload that is gone."""
        extents = self.new_extents(segment_id, count)
        self.apply(part_uploaded(upload_id, number, extents))
        if upload_id in self.uploads:
            self.uploads[upload_id][number] = self.tokens(extents)

    @rule(upload_id=UPLOADS, key=KEYS, choice=INDEX)
    def complete(self, upload_id: str, key: str, choice: int) -> None:
        """Complete an upload with some of its parts; again, it changes nothing."""
        parts = self.uploads.pop(upload_id, None)
        chosen = {n: t for n, t in sorted((parts or {}).items()) if choice >> n & 1 or n == 1}
        sizes = tuple((number, len(tokens) * EXTENT_BYTES) for number, tokens in chosen.items())
        sequence = self.apply(upload_completed(upload_id, key, self.new_id(), sizes))
        if parts is not None:
            whole = tuple(token for tokens in chosen.values() for token in tokens)
            self.dirty[key] = Dirty(sequence, whole)
            self.sequences.append(sequence)

    @rule(key=KEYS, segment_id=SEGMENTS, counts=st.lists(COUNTS, min_size=2, max_size=4))
    def upload_whole(self, key: str, segment_id: int, counts: list[int]) -> None:
        """Take an upload from its opening to its Complete, with one part sent twice and one left out."""
        upload_id = f"whole-{self.new_id()}"
        bodies = [self.new_extents(segment_id, count) for count in counts]
        parts = [part_uploaded(upload_id, number, body) for number, body in enumerate(bodies, 1)]
        again = self.new_extents(segment_id, 2)
        self.apply(upload_created(upload_id, key), *parts, part_uploaded(upload_id, 1, again))
        bodies[0] = again
        sizes = [(number, len(body) * EXTENT_BYTES) for number, body in enumerate(bodies[:-1], 1)]

        sequence = self.apply(upload_completed(upload_id, key, self.new_id(), tuple(sizes)))

        self.dirty[key] = Dirty(sequence, tuple(t for body in bodies[:-1] for t in self.tokens(body)))
        self.sequences.append(sequence)

    @rule(upload_id=UPLOADS)
    def abort(self, upload_id: str) -> None:
        """Abort an upload, or forget a completed one."""
        self.uploads.pop(upload_id, None)
        self.apply(UploadAborted(FORMAT, upload_id))

    # --- places ---

    def some_resident(self, choice: int) -> tuple[ResidentRow, Location] | None:
        """Choose an extent by the way back from its segment."""
        residents = rows_of(self.index, Family.RESIDENTS)
        if not residents:
            return None
        key, value = residents[choice % len(residents)]
        segment_id, offset = keys.split_resident_key(key)
        resident = decode_resident(value)
        return resident, Location(segment_id, offset, resident.length)

    @rule(choice=INDEX, segment_id=SEGMENTS, is_journaled=st.booleans())
    def move(self, choice: int, segment_id: int, *, is_journaled: bool) -> None:
        """Move an extent, dirty by a mutation, clean by either; a second time finds nothing to move."""
        found = self.some_resident(choice)
        if found is None:
            return
        resident, old = found
        new = self.new_place(segment_id)
        self.places[new.segment_id, new.offset] = self.places[old.segment_id, old.offset]
        is_dirty = resident.upload_id or any(
            change.tokens and self.places[old.segment_id, old.offset] in change.tokens
            for change in self.dirty.values()
        )
        self.moves.append(Moved(FORMAT, resident, old, new))
        if is_journaled or is_dirty:
            self.apply(self.moves[-1], self.moves[-1])
        else:
            moved, _ = write_change(self.index, MoveClean([CleanMove(resident, old, (new,))] * 2))
            assert moved == [True, False]

    @precondition(lambda self: self.moves)
    @rule(choice=INDEX)
    def move_once_more(self, choice: int) -> None:
        """Repeat a move that was overtaken: whoever has the bytes now, they are not at the old place any more."""
        before = all_rows(self.index)

        self.apply(self.moves[choice % len(self.moves)])

        after = all_rows(self.index)
        before.pop(Family.META), after.pop(Family.META)
        assert after == before

    # --- clean rows ---

    @rule(key=KEYS, segment_id=SEGMENTS, count=COUNTS, knows=st.booleans())
    def fill(self, key: str, segment_id: int, count: int, *, knows: bool) -> None:
        """Keep a version of the origin's with some bytes: only if it replaces what is there, and nothing is dirty."""
        present = objects_of(self.index).get(keys.split_object_key(keys.object_key(BUCKET, key)))
        replaces = present.version_id if present and knows else 0
        origin = OriginIdentity("", 0, count * EXTENT_BYTES, "etag")
        version = record(self.new_id(), size=count * EXTENT_BYTES, state=ObjectState.CLEAN, origin=origin)
        is_kept, _ = write_change(self.index, StoreVersion(BUCKET, key, version, replaces))

        may_be_kept = key not in self.dirty and (present is None or knows)
        assert is_kept == may_be_kept
        extents = self.new_extents(segment_id, count)
        half = extents[: count // 2]
        for some in (half, extents):
            add = AddExtents(BUCKET, key, version.version_id, some)
            assert write_change(self.index, add)[0] == may_be_kept

    @rule(key=KEYS, kind=st.sampled_from(["validate", "forget_version", "forget_clean", "drop_extents"]))
    def touch_clean(self, key: str, kind: str) -> None:
        """Do something to a clean version; a dirty one takes no notice."""
        present = objects_of(self.index).get(keys.split_object_key(keys.object_key(BUCKET, key)))
        version_id = present.version_id if present else 1
        before = all_rows(self.index)
        match kind:
            case "validate":
                origin = OriginIdentity("", 0, 0, "etag")
                write_change(self.index, MarkValidated(BUCKET, key, version_id, Validated(5.0, 2), origin))
            case "forget_version":
                write_change(self.index, ForgetVersion(BUCKET, key, version_id))
            case "forget_clean":
                write_change(self.index, ForgetClean(BUCKET, key))
            case _:
                extents = read_extents(self.index, present) if present else ()
                places = tuple(e.location for e in extents[:2])
                write_change(self.index, DropExtents(BUCKET, key, version_id, places))

        assert key not in self.dirty or all_rows(self.index) == before

    @rule(segment_id=SEGMENTS)
    def drop_segment(self, segment_id: int) -> None:
        """Reclaim a segment: refused, and nothing changes, exactly while dirty bytes lie in it."""
        dirty_tokens = {t for change in self.dirty.values() for t in change.tokens or ()}
        dirty_tokens |= {t for parts in self.uploads.values() for tokens in parts.values() for t in tokens}
        residents = [
            keys.split_resident_key(key)
            for key, _ in rows_of(self.index, Family.RESIDENTS)
            if keys.split_resident_key(key)[0] == segment_id
        ]
        is_dirty = any(self.places[place] in dirty_tokens for place in residents)
        before = all_rows(self.index)

        is_dropped, _ = write_change(self.index, DropSegment(segment_id))

        assert is_dropped == (not is_dirty)
        if is_dropped:
            assert self.index.get(Family.SEGMENTS, keys.segment_key(segment_id)) is None
            left = [keys.split_resident_key(key)[0] for key, _ in rows_of(self.index, Family.RESIDENTS)]
            assert segment_id not in left
        else:
            assert all_rows(self.index) == before

    # --- replay ---

    @rule()
    def remember(self) -> None:
        """Keep the index as a power cut may leave it."""
        if len(self.older) < 4:
            self.older.append((len(self.journal), self.index.kill_clone()))

    @rule(choice=INDEX, steps=st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def replay(self, choice: int, steps: list[int]) -> None:
        """Apply what an older index lacks: at once, or in steps with a crash between, gives the same rows."""
        applied, older = self.older[choice % len(self.older)]
        at_once, stepwise = older.kill_clone(), older.kill_clone()
        missing = self.journal[applied:]
        if missing:
            write_group(at_once, missing)
        for number in range(len(missing)):
            step, missing = missing[: steps[number % len(steps)]], missing[steps[number % len(steps)] :]
            if step:
                write_group(stepwise, step)
                stepwise = stepwise.kill_clone()

        assert all_rows(stepwise) == all_rows(at_once)
        check_rows(at_once)
        self.check_dirty(at_once)

    # --- what must hold ---

    @invariant()
    def rows_are_consistent(self) -> None:
        """Check the head of storage/mutations.py."""
        check_rows(self.index)

    @invariant()
    def dirty_state_is_known(self) -> None:
        """Compare with the model."""
        self.check_dirty(self.index)

    def check_dirty(self, index: FakeIndex) -> None:
        """Compare an index's dirty state with the model: which changes, and made of which bytes."""
        entries = {keys.split_dirty_key(key) for key, _ in rows_of(index, Family.DIRTY)}
        assert entries == {change.sequence for change in self.dirty.values()}
        found: dict[str, Tokens | None] = {
            keys.split_object_key(key).key: None for key, _ in rows_of(index, Family.OVERLAY)
        }
        for key, value in rows_of(index, Family.OBJECTS):
            version = decode_object(value)
            if version.state is not ObjectState.CLEAN:
                found[keys.split_object_key(key).key] = self.tokens(read_extents(index, version))
        assert found == {key: change.tokens for key, change in self.dirty.items()}
        parts: dict[str, dict[int, Tokens]] = {upload_id: {} for upload_id in self.uploads}
        for key, value in rows_of(index, Family.PARTS):
            upload_id, number = keys.split_part_key(key)
            parts[upload_id][number] = self.tokens(decode_part(value).extents)
        assert parts == self.uploads


TestMutationMachine = MutationMachine.TestCase
TestMutationMachine = pytest.mark.slow(TestMutationMachine)
TestMutationMachine.settings = settings(max_examples=40, stateful_step_count=40)
