"""Pins as the eviction policy keeps them: they stay while they fit, go last, are bounded, and their books are right."""

import random
from math import inf

import msgspec
import pytest
from hypothesis import given, strategies as st

from bench.replay import CacheReplay
from storage.eviction import ExtentUse, Kept
from storage.gittins_policy import GittinsPolicy
from storage.policy import RetentionPriority
from storage.segment_ranking import PINNED_SHARE_MAX
from storage.types import KIB, MIB, ObjectName, Stream

SIZE = 128 * KIB
A_SEGMENT = MIB // SIZE
CAPACITY = 32 * MIB


def use(number: int, priority: RetentionPriority = RetentionPriority.PINNED, size: int = SIZE) -> ExtentUse:
    """An object of the pinned prefix, or of another."""
    prefix = "pinned" if priority is RetentionPriority.PINNED else "other"
    return ExtentUse(ObjectName("b", f"{prefix}/{number}"), number, 0, size, priority)


def policy_of(pinned_bytes_max: int = CAPACITY // 2) -> GittinsPolicy:
    """Make a policy that knows nothing yet."""
    return GittinsPolicy(capacity_bytes=CAPACITY, segment_bytes=MIB, pinned_bytes_max=pinned_bytes_max)


def fill_segment(policy: GittinsPolicy, segment_id: int, pinned: int, others: int = 0) -> None:
    """Put so many pinned objects into a segment, others behind them."""
    for place in range(pinned + others):
        priority = RetentionPriority.PINNED if place < pinned else RetentionPriority.NORMAL
        policy.admitted(use(100 * segment_id + place, priority), segment_id, place * SIZE)
    policy.found(segment_id, (pinned + others) * SIZE)


# --- what stays ------------------------------------------------------------------------------------------------------


def churned(pinned: int, limit_bytes: int) -> tuple[GittinsPolicy, list[int]]:
    """Read so many pinned objects once, then twenty caches' worth of others; say which of the pinned ones then hit."""
    objects = [use(1 + n) for n in range(pinned)]
    objects += [use(100_000 + n, RetentionPriority.HIGH) for n in range(400)]
    policy = policy_of(limit_bytes)
    replay = CacheReplay(policy, objects, capacity_bytes=CAPACITY, segment_bytes=MIB)
    draws = random.Random(4)
    for number in range(pinned):
        replay.read(number)
    for _ in range(20 * CAPACITY // SIZE):
        replay.read(pinned + draws.randrange(400))
    return policy, [number for number in range(pinned) if replay.read(number)]


def test_pins_that_fit_stay_whatever_is_read_and_however_often() -> None:
    """Each object of a pinned prefix that is never read again is there after twenty caches' worth of popular ones."""
    policy, hits = churned(100, CAPACITY // 2)

    assert hits == list(range(100))
    assert policy.pins.held_bytes == 100 * SIZE
    assert policy.pins.refused_bytes == 0


def test_pins_over_the_bound_are_first_come_and_the_rest_competes() -> None:
    """Of twice as many as may be pinned the first half stays, the others go among the popular ones, and what was refused is counted."""
    policy, hits = churned(100, 50 * SIZE)

    assert hits[:50] == list(range(50))
    assert len(hits) < 75
    assert policy.pins.held_bytes == 50 * SIZE
    assert policy.pins.refused_bytes >= 50 * SIZE


# --- who goes --------------------------------------------------------------------------------------------------------


def test_a_segment_of_pins_goes_last_and_says_so() -> None:
    """Segments without pins go first, however hot; then the victim says how much that is pinned it costs."""
    policy = policy_of()
    fill_segment(policy, 1, A_SEGMENT)
    for segment_id in (2, 3):
        fill_segment(policy, segment_id, 0, A_SEGMENT)
        for place in range(A_SEGMENT):
            for _ in range(40):
                policy.touched(segment_id, place * SIZE, SIZE)

    order = []
    for _ in range(3):
        victim = policy.choose(lambda _: True)
        assert victim is not None
        order.append((victim.segment_id, victim.pinned_bytes, victim.keep))
        policy.removed(victim.segment_id)

    assert {one for one, _, _ in order[:2]} == {2, 3}
    assert [costs for _, costs, _ in order[:2]] == [0, 0]
    assert order[2] == (1, MIB, ())
    assert policy.pins.held_bytes == 0


def test_of_a_mixed_segment_pins_are_written_again_among_their_like() -> None:
    """Whatever a segment holds beside its pins can go, down to a tenth of it; all of its pins are kept, in their stream."""
    policy = policy_of()
    fill_segment(policy, 1, A_SEGMENT - 1, 1)

    victim = policy.choose(lambda _: True)

    assert victim is not None
    assert victim.pinned_bytes == 0
    assert victim.keep == (Kept(0, (A_SEGMENT - 1) * SIZE, Stream.PINNED),)
    assert (A_SEGMENT - 1) / A_SEGMENT <= PINNED_SHARE_MAX


def test_dead_bytes_among_pins_come_back() -> None:
    """A segment of pins of which some are overwritten can go without costing one: those that are left are kept."""
    policy = policy_of()
    fill_segment(policy, 1, A_SEGMENT)
    policy.freed(1, 0, SIZE)
    policy.found(1, MIB - SIZE)

    victim = policy.choose(lambda _: True)

    assert victim is not None
    assert (victim.pinned_bytes, victim.keep) == (0, (Kept(SIZE, MIB, Stream.PINNED),))
    assert policy.pins.held_bytes == MIB - SIZE


def test_where_only_pins_could_go_nothing_is_admitted_without_room() -> None:
    """Not even of a prefix that nothing is known of, nor of a pinned one; with room for it all is."""
    policy = policy_of()
    for segment_id in range(1, 4):
        fill_segment(policy, segment_id, A_SEGMENT)
    policy.choose(lambda _: True)

    priorities = (RetentionPriority.NORMAL, RetentionPriority.PINNED)
    assert [policy.admit(use(7, one), has_room=False) for one in priorities] == [None, None]
    assert [policy.admit(use(7, one), has_room=True) for one in priorities] == [Stream.CLEAN, Stream.PINNED]

    fill_segment(policy, 9, 0, A_SEGMENT)
    policy.choose(lambda _: True)
    assert policy.admit(use(7), has_room=False) is Stream.PINNED


def test_what_is_next_needs_no_worth_and_takes_no_room_of_pins() -> None:
    """What a warm-up brings in the order that was announced is kept at any price, but for that of pins."""
    policy = policy_of()
    fill_segment(policy, 1, A_SEGMENT)
    other = use(7, RetentionPriority.NORMAL)
    for number in range(800):
        policy.accessed(use(1000 + number % 400, RetentionPriority.NORMAL), None)
    policy._ranking.price = inf
    assert policy.admit(other, has_room=False) is None
    assert policy.admit(other, has_room=False, is_next=True) is Stream.CLEAN

    policy.choose(lambda _: True)

    assert policy.admit(other, has_room=False, is_next=True) is None
    assert policy.admit(other, has_room=True, is_next=True) is Stream.CLEAN


@pytest.mark.parametrize("how", ["overwritten", "removed", "unpinned", "in use"])
def test_that_only_pins_are_left_holds_until_one_goes(how: str) -> None:
    """Or until nothing at all can go: what is missing is judged by its worth again, without a segment being chosen first."""
    policy = policy_of()
    fill_segment(policy, 1, A_SEGMENT)
    policy.choose(lambda _: True)
    other = use(7, RetentionPriority.NORMAL)
    assert policy.admit(other, has_room=False) is None

    if how == "overwritten":
        policy.freed(1, 0, SIZE)
    elif how == "removed":
        policy.removed(1)
    elif how == "unpinned":
        policy.looked_up(1, 0, MIB, [(use(100 + n, RetentionPriority.NORMAL), n * SIZE) for n in range(8)])
    else:
        policy.choose(lambda _: False)

    assert policy.admit(other, has_room=False) is Stream.CLEAN


def test_pins_do_not_raise_the_price_for_others() -> None:
    """A victim that costs pins leaves the price where it was: it says nothing of what the others are worth."""
    policy = policy_of()
    fill_segment(policy, 1, A_SEGMENT)
    fill_segment(policy, 2, 0, A_SEGMENT)
    policy.choose(lambda _: True)
    price = policy.price

    for _ in range(10):
        policy.choose(lambda one: one == 1)

    assert policy.price == price
    assert price < 1


# --- looked up -------------------------------------------------------------------------------------------------------


def test_what_was_cached_before_is_pinned_once_it_is_looked_up() -> None:
    """Extents that nobody has told of are known and pinned then, others of the segment stay unknown."""
    policy = policy_of()
    policy.found(1, MIB)

    policy.looked_up(1, 0, MIB, [(use(1), 0), (use(2, RetentionPriority.NORMAL), SIZE), (use(3), 2 * SIZE)])

    assert policy.pinned_in(1) == 2 * SIZE == policy.pins.held_bytes
    assert policy.pinned_in(1, SIZE, 2 * SIZE) == 0
    assert not policy.touched(1, SIZE, SIZE)


def test_what_was_read_in_ranges_before_it_is_looked_up_is_counted_once() -> None:
    """After a start small reads make small grains; whole ones take their place, however often the segment is looked up."""
    policy = policy_of()
    whole = use(1, size=4 * MIB)
    policy.found(1, 4 * MIB)
    for start in range(0, 4 * MIB, 2 * SIZE):
        policy.accessed(ExtentUse(whole.name, 1, start, SIZE, whole.priority), 1, start)
    assert policy.pins.held_bytes == 2 * MIB

    for _ in range(2):
        policy.looked_up(1, 0, 4 * MIB, [(whole, 0)])

        assert policy.pinned_in(1) == policy.pins.held_bytes == 4 * MIB
        assert len(policy._segments[1]) == 4


def test_a_look_up_says_whether_it_changed_a_pin() -> None:
    """Also where as much is pinned as before, but other extents are; not where all was known so."""
    policy = policy_of()
    fill_segment(policy, 1, 1, 1)
    exchanged = [(use(100, RetentionPriority.NORMAL), 0), (use(101), SIZE)]

    assert policy.looked_up(1, 0, MIB, exchanged)
    assert not policy.looked_up(1, 0, MIB, exchanged)

    assert (policy.pinned_in(1, 0, SIZE), policy.pinned_in(1)) == (0, SIZE)
    assert not policy.looked_up(2, 0, MIB, exchanged)


def test_to_look_a_segment_up_is_not_to_read_it() -> None:
    """Extents of many buckets that nobody reads any more make no group, and none of those at work goes for them, pinned or not."""
    policy = policy_of()
    sleeping = [ExtentUse(ObjectName(f"old{n}", "x"), 1 + n, 0, SIZE // 4) for n in range(20)]
    told = [(one, place * SIZE // 4) for place, one in enumerate(sleeping)]
    for one, offset in told:
        policy.admitted(one, 1, offset)
    policy.found(1, MIB)
    policy.found(2, MIB)
    for number in range(10):
        policy.accessed(ExtentUse(ObjectName(f"job{number}", "x"), 100 + number, 0, SIZE), None)
    before = [(group, group.read_at, len(group.monitor)) for group in policy._groups.live()]

    policy.looked_up(1, 0, MIB, told)
    pinned = [(msgspec.structs.replace(one, priority=RetentionPriority.PINNED), at) for one, at in told]
    for segment_id in (1, 2):
        policy.looked_up(segment_id, 0, MIB, pinned)

    assert [(group, group.read_at, len(group.monitor)) for group in policy._groups.live()] == before
    assert policy.pins.held_bytes == 2 * len(told) * (SIZE // 4)


def test_what_is_found_pinned_is_of_its_group_where_that_lives() -> None:
    """So the bound C/N counts what is pinned against what is read of the same prefix; without one it is of the rest."""
    policy = policy_of()
    policy.accessed(use(1), None)
    group = policy._groups.of(use(1).name, 0)
    policy.found(1, MIB)

    unread = ExtentUse(ObjectName("b", "unread/1"), 3, 0, SIZE, RetentionPriority.PINNED)
    policy.looked_up(1, 0, MIB, [(use(2), 0), (unread, SIZE)])

    assert dict(policy.pins.by_group) == {group.number: SIZE, policy._groups.rest.number: SIZE}


def test_what_is_pinned_no_more_is_known_under_its_priority() -> None:
    """An exchange of policies takes the pin, and with it the bytes from the count; what rows name no more has none either."""
    policy = policy_of()
    fill_segment(policy, 1, 4)

    policy.looked_up(1, 0, 3 * SIZE, [(use(100), 0), (use(101, RetentionPriority.NORMAL), SIZE)])

    assert policy.pinned_in(1, 0, SIZE) == SIZE
    assert policy.pinned_in(1, SIZE, 3 * SIZE) == 0
    assert policy.pinned_in(1, 3 * SIZE) == SIZE
    assert policy.pins.held_bytes == 2 * SIZE


def test_what_was_over_the_bound_is_pinned_when_looked_up_with_room() -> None:
    """The victim of later, once other pins have gone, is pinned before it goes."""
    policy = policy_of(4 * SIZE)
    fill_segment(policy, 1, 4)
    fill_segment(policy, 2, 4)
    assert policy.pinned_in(2) == 0
    for place in range(4):
        policy.freed(1, place * SIZE, SIZE)

    policy.looked_up(2, 0, MIB, [(use(200 + place), place * SIZE) for place in range(4)])

    assert policy.pinned_in(2) == 4 * SIZE
    assert policy.pins.refused_bytes == 4 * SIZE


def test_what_is_refused_is_counted_as_it_comes_and_not_as_it_is_moved() -> None:
    """Each rewrite of what was over the bound is no further refusal; the same bytes brought again, or more of them, are."""
    policy = policy_of(SIZE)
    policy.admitted(use(1), 1, 0)
    policy.admitted(use(2), 1, SIZE)
    assert policy.pins.refused_bytes == SIZE

    for segment_id in range(1, 5):
        policy.freed(segment_id, SIZE, SIZE)
        policy.admitted(use(2), segment_id + 1, SIZE)
        policy.moved(segment_id, Kept(SIZE, 2 * SIZE), segment_id + 1, SIZE)
    assert policy.pins.refused_bytes == SIZE

    policy.freed(5, SIZE, SIZE)
    policy.admitted(use(2, size=3 * SIZE), 5, SIZE)
    assert policy.pins.refused_bytes == 3 * SIZE
    policy.freed(5, SIZE, 3 * SIZE)
    policy.admit(use(2), has_room=True)
    policy.admitted(use(2), 6, 0)
    assert policy.pins.refused_bytes == 4 * SIZE


def test_an_extent_is_pinned_whole_or_not_at_all() -> None:
    """One that fits only in part is not pinned, as it would have to be moved whole; one that grows stays pinned while it fits."""
    policy = policy_of(3 * MIB)

    policy.admitted(use(1, size=4 * MIB), 1, 0)
    assert policy.pinned_in(1) == 0
    for size in (MIB, 2 * MIB, 3 * MIB):
        policy.admitted(use(2, size=size), 2, 0)
        assert policy.pinned_in(2) == size
    assert policy.pins.held_bytes == 3 * MIB


def test_a_pin_that_is_moved_stays_one() -> None:
    """Told of in the order of reclaim: no row names the old place, one names the new one, and its age comes along."""
    policy = policy_of()
    policy.admitted(use(1), 1, 0)
    policy.freed(1, 0, SIZE)
    policy.admitted(use(1), 2, 0)

    policy.moved(1, Kept(0, SIZE, Stream.PINNED), 2, 0)

    assert (policy.pinned_in(1), policy.pinned_in(2), policy.pins.held_bytes) == (0, SIZE, SIZE)


def test_a_move_that_a_segment_ends_cuts_counts_no_byte_twice() -> None:
    """An extent that goes over two segments is cut where the first ends, within a grain: it is pinned for its size, at both places."""
    policy = policy_of()
    one, start, half = use(1), 512 * KIB, MIB
    policy.admitted(ExtentUse(one.name, 1, start, 3 * half, one.priority), 1, 0)
    policy.freed(1, 0, 3 * half)
    policy.admitted(ExtentUse(one.name, 1, start, half, one.priority), 2, 7 * MIB)
    policy.admitted(ExtentUse(one.name, 1, start + half, 2 * half, one.priority), 3, 0)

    policy.moved(1, Kept(0, half), 2, 7 * MIB)
    policy.moved(1, Kept(half, 3 * half), 3, 0)

    assert (policy.pinned_in(1), policy.pinned_in(2), policy.pinned_in(3)) == (0, half, 2 * half)
    assert policy.pins.held_bytes == 3 * half
    assert policy._segments[2].known_bytes == half


def test_small_grains_that_are_moved_leave_the_whole_ones_as_they_are() -> None:
    """What is known of the new place was told of as it was placed; of the old one's smaller grains it takes the age alone."""
    policy = policy_of()
    one = use(1, size=MIB)
    policy.found(1, MIB)
    policy.accessed(ExtentUse(one.name, 1, SIZE, SIZE, one.priority), 1, SIZE)
    policy.freed(1, 0, MIB)
    policy.admitted(one, 2, 0)

    policy.moved(1, Kept(0, MIB), 2, 0)

    assert (policy.pinned_in(2), policy.pins.held_bytes, len(policy._segments[2])) == (MIB, MIB, 1)


# --- the books -------------------------------------------------------------------------------------------------------

SLOTS = 6
BOOK_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admitted", "freed", "looked_up", "moved", "removed"]),
        st.integers(1, 5),
        st.integers(0, SLOTS - 1),
        st.sampled_from(RetentionPriority),
    ),
    max_size=80,
)


@given(steps=BOOK_STEPS, limit=st.integers(0, 12))
def test_the_books_of_pins_whatever_comes_and_goes(
    steps: list[tuple[str, int, int, RetentionPriority]], limit: int
) -> None:
    """What is counted is the sum over the segments and over the groups, is of live extents of pinned prefixes, and keeps the bound."""
    policy = policy_of(limit * SIZE)
    live: dict[int, dict[int, ExtentUse]] = {}
    number = 0
    for step, segment_id, slot, priority in steps:
        here = live.setdefault(segment_id, {})
        if step == "admitted":
            number += 1
            here[slot] = use(number, priority)
            policy.freed(segment_id, slot * SIZE, SIZE)
            policy.admitted(here[slot], segment_id, slot * SIZE)
        elif step == "freed":
            here.pop(slot, None)
            policy.freed(segment_id, slot * SIZE, SIZE)
        elif step == "looked_up":
            here.update({place: use(one.version_id, priority) for place, one in here.items()})
            uses = [(one, place * SIZE) for place, one in sorted(here.items())]
            policy.looked_up(segment_id, 0, SLOTS * SIZE, uses)
        elif step == "moved" and slot in here:
            target = segment_id % 5 + 1
            one = here.pop(slot)
            policy.freed(segment_id, slot * SIZE, SIZE)
            live.setdefault(target, {})[slot] = one
            policy.freed(target, slot * SIZE, SIZE)
            policy.admitted(one, target, slot * SIZE)
            policy.moved(segment_id, Kept(slot * SIZE, (slot + 1) * SIZE), target, slot * SIZE)
        elif step == "removed":
            here.clear()
            policy.removed(segment_id)

        held = policy.pins.held_bytes
        assert 0 <= held <= limit * SIZE
        assert held == sum(policy.pinned_in(one) for one in live) == sum(policy.pins.by_group.values())
        for known, slots in live.items():
            for place in range(SLOTS):
                is_meant = place in slots and slots[place].priority is RetentionPriority.PINNED
                allowed = {0, SIZE} if is_meant else {0}
                assert policy.pinned_in(known, place * SIZE, place * SIZE + 1) in allowed


# --- what could be hit -----------------------------------------------------------------------------------------------


def test_hit_bound_counts_of_pins_only_what_is_read() -> None:
    """A quarter of the cache pinned and not read leaves three quarters for the others; read, it counts like all else."""
    policy = policy_of()
    for number in range(64):
        policy.admitted(use(1 + number), 1 + number // A_SEGMENT, number % A_SEGMENT * SIZE)
    for number in range(512):
        policy.accessed(use(10_000 + number, RetentionPriority.NORMAL), None)
    assert policy.pins.held_bytes == CAPACITY // 4
    assert policy.hit_bound() == pytest.approx(24 / 64)

    for number in range(64):
        policy.touched(1 + number // A_SEGMENT, number % A_SEGMENT * SIZE, SIZE)
    policy._digest()

    assert policy.hit_bound() == pytest.approx(32 / 72)


def test_hit_bound_counts_what_can_be_read_again() -> None:
    """Each object overwritten ten times, and some deleted: there are as many bytes to read as the newest versions have."""
    policy = policy_of()
    version_id = 0
    newest: dict[int, int] = {}
    for _ in range(10):
        for number in range(1000):
            version_id += 1
            written = ExtentUse(ObjectName("b", f"replay/{number}"), version_id, 0, SIZE)
            policy.accessed(written, None)
            if number in newest:
                policy.forgotten(newest[number], SIZE)
            newest[number] = version_id
    policy.accessed(use(5_000_000, RetentionPriority.NORMAL, 512 * MIB), None)
    assert policy.hit_bound() == pytest.approx(CAPACITY / (1000 * SIZE + 64 * MIB), rel=0.25)

    policy.forgotten(5_000_000, 512 * MIB)
    for number in range(500):
        policy.forgotten(newest[number], SIZE)

    assert policy.hit_bound() == pytest.approx(CAPACITY / (500 * SIZE), rel=0.25)


def test_a_read_that_was_not_learnt_from_yet_does_not_bring_back_what_is_deleted() -> None:
    """Reads are learnt from later, in batches; a version that is gone by then counts no more all the same."""
    policy = policy_of()
    policy.admitted(use(1, RetentionPriority.NORMAL), 1, 0)
    policy.accessed(use(2, RetentionPriority.NORMAL), None)
    policy.touched(1, 0, SIZE)

    policy.forgotten(1, SIZE)

    policy._digest()
    assert sum(group.monitor.distinct_bytes() for group in policy._groups.live()) == SIZE
