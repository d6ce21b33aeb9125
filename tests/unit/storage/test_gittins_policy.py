"""GittinsPolicy: the contract of all policies, what it keeps of a victim, and hit ratios of small replays."""

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from bench.replay import CacheReplay
from storage.eviction import EvictionPolicy, ExtentUse, Kept, Victim
from storage.gittins_policy import ANNOUNCED_MAX, GittinsPolicy
from storage.identities import identity_of
from storage.policy import RetentionPriority
from storage.reuse import MARK, MARKED_MAX, UNREAD, ReuseMonitor
from storage.reuse_lessons import DIGEST_READS, GROUPS_LEARNT_ALL, LEARN_READS_A_STEP
from storage.segment_ranking import FOUND_SINGLY, FREED_SHARE_MIN
from storage.types import KIB, MIB, ObjectName, Stream
from tests.contracts.eviction_policy import EvictionPolicyContract, use

SIZE = 128 * KIB


class TestGittinsPolicyContract(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return GittinsPolicy(capacity_bytes=64 * KIB, segment_bytes=4 * KIB)


def uses(count: int, prefix: str = "p") -> list[ExtentUse]:
    """Make so many objects of one prefix, each of SIZE."""
    return [ExtentUse(ObjectName("b", f"{prefix}/{i}"), i + 1, 0, SIZE) for i in range(count)]


def replayed(objects: Sequence[ExtentUse], epochs: int, capacity: int, seed: int) -> CacheReplay:
    """Read everything once an epoch, each epoch in another order; count from the third epoch on."""
    rng = random.Random(seed)
    policy = GittinsPolicy(capacity_bytes=capacity, segment_bytes=MIB)
    replay = CacheReplay(policy, objects, capacity_bytes=capacity, segment_bytes=MIB)
    order = list(range(len(objects)))
    for epoch in range(epochs):
        if epoch == 2:
            replay.count_hits_anew()
        rng.shuffle(order)
        for number in order:
            replay.read(number)
    return replay


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_shuffled_epochs_hit_what_is_possible(share: float) -> None:
    """With every item read once an epoch the hit ratio comes to C/N but for the segments kept free; LRU gets a fraction."""
    objects = uses(4000)
    capacity = int(share * 4000 * SIZE)

    outcome = replayed(objects, 4, capacity, seed=7).outcome

    assert outcome.byte_ratio >= 0.94 * share
    assert outcome.admitted_bytes < 2 * capacity


@pytest.mark.slow
def test_popular_objects_stay_among_a_scan() -> None:
    """What is read again and again stays, though ten times as much is read once beside it."""
    rng = random.Random(3)
    objects = uses(300, "hot") + uses(12_000, "scan")[300:]
    capacity = 600 * SIZE
    policy = GittinsPolicy(capacity_bytes=capacity, segment_bytes=MIB)
    replay = CacheReplay(policy, objects, capacity_bytes=capacity, segment_bytes=MIB)
    for number in range(300, 6000):
        replay.read(number)
        replay.read(rng.randrange(300))
    replay.count_hits_anew()

    hits = 0
    for number in range(6000, 8000):
        replay.read(number)
        hits += replay.read(rng.randrange(300))

    assert hits > 0.97 * 2000


def warmed() -> GittinsPolicy:
    """Make a policy that has learnt that what is read twice at once is read again soon, and other things never."""
    policy = GittinsPolicy(capacity_bytes=64 * MIB, segment_bytes=MIB)
    for number in range(1, 3000):
        one = ExtentUse(ObjectName("b", f"p/{number}"), number, 0, SIZE)
        policy.accessed(one, None)
        if number % 4 == 0:
            for _ in range(3):
                policy.accessed(one, None)
    return policy


def let_time_pass(policy: GittinsPolicy) -> None:
    """Read other things of the prefix once, so that what was not read again soon will not be, as far as the policy knows."""
    for number in range(20_000, 20_050):
        policy.accessed(ExtentUse(ObjectName("b", f"p/{number}"), number, 0, SIZE), None)


def test_victim_keeps_what_is_read_often_and_frees_enough() -> None:
    """The extents that are read are written again, the others dropped, and at least 40 % of the segment is freed."""
    policy = warmed()
    for position in range(8):
        policy.admitted(
            ExtentUse(ObjectName("b", f"p/{9000 + position}"), 9000 + position, 0, SIZE), 1, position * SIZE
        )
    policy.found(1, MIB)
    let_time_pass(policy)
    for _ in range(3):
        for position in (2, 3):
            one = ExtentUse(ObjectName("b", f"p/{9000 + position}"), 9000 + position, 0, SIZE)
            policy.accessed(one, 1, position * SIZE)

    victim = policy.choose(lambda _: True)

    assert victim is not None
    kept = {(k.offset, k.stop) for k in victim.keep}
    assert kept == {(2 * SIZE, 4 * SIZE)}
    assert sum(stop - start for start, stop in kept) <= (1 - FREED_SHARE_MIN) * MIB


def test_moved_extents_keep_their_class() -> None:
    """What survives goes on being worth what it was: it is kept again at its new place."""
    policy = warmed()
    hot = ExtentUse(ObjectName("b", "p/9000"), 9000, 0, SIZE)
    for position in range(1, 8):
        policy.admitted(
            ExtentUse(ObjectName("b", f"p/{9000 + position}"), 9000 + position, 0, SIZE), 2, position * SIZE
        )
    let_time_pass(policy)
    policy.admitted(hot, 1, 0)
    for _ in range(3):
        policy.accessed(hot, 1, 0)
    policy.admitted(hot, 2, 0)
    policy.moved(1, Kept(0, SIZE, Stream.HOT), 2, 0)
    policy.removed(1)

    victim = policy.choose(lambda _: True)

    assert victim is not None
    assert victim.keep == (Kept(0, SIZE, Stream.WARM),)


class Recording(GittinsPolicy):
    """Remembers to which streams it wrote again what it kept."""

    def __init__(self, segments: int) -> None:
        super().__init__(capacity_bytes=segments * MIB, segment_bytes=MIB)
        self.streams: set[Stream] = set()

    def choose(self, is_reclaimable: Callable[[int], bool]) -> Victim | None:
        victim = super().choose(is_reclaimable)
        self.streams |= {kept.stream for kept in victim.keep} if victim else set()
        return victim


@pytest.mark.parametrize(
    ("segments", "streams"),
    [(24, {Stream.CLEAN}), (40, {Stream.KEPT}), (80, {Stream.KEPT, Stream.WARM, Stream.HOT})],
)
def test_survivors_have_as_many_streams_as_the_cache_has_room_for(
    segments: int, streams: set[Stream]
) -> None:
    """Open segments take room: a small cache keeps survivors together, and only a tiny one mixes them with what is new."""
    rng = random.Random(5)
    objects = uses(40 * segments)
    policy = Recording(segments)
    replay = CacheReplay(policy, objects, capacity_bytes=segments * MIB, segment_bytes=MIB)

    for _ in range(100 * segments):
        replay.read(int(len(objects) ** rng.random()) - 1)

    assert policy.streams == streams


def of_warmed(priority: RetentionPriority = RetentionPriority.NORMAL) -> ExtentUse:
    """An extent of the prefix that a warmed policy has learnt of."""
    return ExtentUse(ObjectName("b", "p/x"), 1, 0, SIZE, priority)


def test_everything_is_admitted_while_there_is_room() -> None:
    """While nothing has to go for it, any fill is kept."""
    policy = warmed()
    policy._ranking.price = 1e9

    assert policy.admit(of_warmed(), has_room=True) is Stream.CLEAN
    assert policy.admit(of_warmed(), has_room=False) is None
    assert policy.admit(use(1), has_room=False) is Stream.CLEAN  # of a prefix that nothing is known of


def test_priority_weighs_what_is_worth_keeping() -> None:
    """At one price a high object is admitted where a normal one is not, and a normal one where a low one is not."""
    policy = warmed()
    worth = policy._tables.of(policy._groups.of(of_warmed().name, 0).number << 2)[0]

    def admitted_at(price: float) -> list[RetentionPriority]:
        policy._ranking.price = price
        return [p for p in RetentionPriority if policy.admit(of_warmed(p), has_room=False) is not None]

    high = [RetentionPriority.HIGH, RetentionPriority.PINNED]  # the policy has no room for pins
    assert admitted_at(worth * 2) == high
    assert admitted_at(worth / 2) == [RetentionPriority.NORMAL, *high]
    assert len(admitted_at(worth / 8)) == 4


def half_announced() -> GittinsPolicy:
    """Fill a segment of a warmed policy with eight extents, the last four of which were brought for reads to come."""
    policy = warmed()
    for position in range(8):
        one = ExtentUse(ObjectName("b", f"p/{9000 + position}"), 9000 + position, 0, SIZE)
        if position >= 4:
            policy.announced(one)
        else:
            policy.accessed(one, None)
        policy.admitted(one, 1, position * SIZE)
    policy.found(1, MIB)
    let_time_pass(policy)
    return policy


def test_what_was_brought_for_a_read_to_come_stays_until_that_read() -> None:
    """It is kept of a victim, and once it was read it is worth what any first read is."""
    policy = half_announced()

    before = policy.choose(lambda _: True)
    for position in range(4, 8):
        assert policy.touched(1, position * SIZE, SIZE)
    let_time_pass(policy)
    after = policy.choose(lambda _: True)

    assert before is not None
    assert [(one.offset, one.stop) for one in before.keep] == [(4 * SIZE, 8 * SIZE)]
    assert after is not None
    assert after.keep == ()


def test_what_is_read_on_its_way_is_read_like_any_other() -> None:
    """A reader that joins a warm-up's request has come: nothing is kept for it any more."""
    policy = warmed()
    one = ExtentUse(ObjectName("b", "p/9000"), 9000, 0, SIZE)
    policy.announced(one)
    policy.accessed(one, None)
    policy.admitted(one, 1, 0)

    assert policy._segments[1].codes[0] & ~MARK == 0


def test_memory_of_what_is_on_its_way_is_bounded() -> None:
    """The oldest are forgotten."""
    policy = GittinsPolicy(capacity_bytes=64 * MIB, segment_bytes=MIB)
    for number in range(ANNOUNCED_MAX + 10):
        policy.announced(use(number + 1))
    policy.admitted(use(1), 1, 0)
    policy.admitted(use(ANNOUNCED_MAX), 2, 0)

    assert len(policy._announced) == ANNOUNCED_MAX - 1
    assert policy._segments[1].codes[0] & ~MARK == 0
    assert policy._segments[2].codes[0] & ~MARK == UNREAD


def test_lessons_are_taken_in_steps_however_short_the_reads() -> None:
    """No read waits for more than a few steps of a lesson, though thousands of reads came before it was due."""
    policy = GittinsPolicy(capacity_bytes=64 * MIB, segment_bytes=MIB)
    policy.admitted(use(1), 1, 0)
    steps: list[int] = []
    lessons = policy._lessons
    learn = lessons.step

    def count() -> None:
        steps[-1] += 1
        learn()

    lessons.step = count  # type: ignore[method-assign]
    for length in [16] * 4000 + [MIB] * 400:
        steps.append(0)
        assert policy.touched(1, 0, length)

    assert 0 < max(steps) <= 2 + DIGEST_READS // LEARN_READS_A_STEP
    assert policy._groups.by_number[1].monitor.index


@pytest.mark.slow
def test_hit_bound_is_the_share_of_what_is_read_that_fits() -> None:
    """Of 4000 items read, a cache of 1000 can hold a quarter."""
    replay = replayed(uses(4000), 3, 1000 * SIZE, seed=1)
    policy = replay._policy
    assert isinstance(policy, GittinsPolicy)

    assert policy.hit_bound() == pytest.approx(0.25, rel=0.1)


def test_released_groups_count_again_once_they_are_read() -> None:
    """A group that is not read while others miss counts next to nothing; hits of several groups in one go count for each of them."""
    policy = warmed()
    groups = [policy._groups.of(ObjectName("b", f"{prefix}/x"), 0) for prefix in "pq"]
    for number, prefix in enumerate("pq"):
        policy.admitted(ExtentUse(ObjectName("b", f"{prefix}/x"), 5000 + number, 0, SIZE), 1, number * SIZE)
        assert policy.touched(1, number * SIZE, SIZE)
    for number in range(10_000, 16_000):
        policy.accessed(ExtentUse(ObjectName("b", f"r/{number}"), number, 0, SIZE), None)
    were_released = [group.is_released for group in groups]

    for number in range(2):
        policy.touched(1, number * SIZE, SIZE)
    policy._digest()

    assert were_released == [True, True]
    assert [group.is_released for group in groups] == [False, False]
    assert [group.read_at for group in groups] == [policy._clock.now] * 2


@pytest.mark.parametrize(("prefixes", "learnt"), [(GROUPS_LEARNT_ALL, 1), (GROUPS_LEARNT_ALL + 1, 0)])
def test_of_many_groups_those_are_learnt_about_that_were_read(
    monkeypatch: pytest.MonkeyPatch, prefixes: int, learnt: int
) -> None:
    """A lesson takes no time for groups that nobody reads, once there are more than a few."""
    policy = GittinsPolicy(capacity_bytes=64 * MIB, segment_bytes=MIB)
    reads = [uses(600, f"p{prefix}")[prefix::prefixes] for prefix in range(prefixes)]
    for one in [one for objects in reads for one in objects] * 2:
        policy.accessed(one, None)
    idle = policy._groups.of(reads[0][0].name, 0).monitor
    for _ in range(2000):
        policy._lessons.step()
    lessons: list[ReuseMonitor] = []
    lesson = ReuseMonitor.lesson

    def noted(monitor: ReuseMonitor, prior: Sequence[float], now: float) -> Iterator[None]:
        lessons.append(monitor)
        return lesson(monitor, prior, now)

    monkeypatch.setattr(ReuseMonitor, "lesson", noted)

    assert not idle.has_news
    policy.accessed(reads[1][0], None)
    for _ in range(2000):
        policy._lessons.step()

    assert any(monitor is not idle for monitor in lessons)
    assert (idle in lessons) == bool(learnt)


@pytest.mark.parametrize("limit", [1 << 63, MARKED_MAX, MARKED_MAX // 3])
def test_hits_of_the_sample_are_followed_whatever_its_size(limit: int) -> None:
    """The monitor hears of each hit of an extent whose identity is of the sample, at its place and after it moved, and of no other."""
    policy = GittinsPolicy(capacity_bytes=64 * MIB, segment_bytes=MIB)
    objects = uses(200)
    for number, one in enumerate(objects):
        policy.admitted(one, 1 + number // 8, number % 8 * SIZE)
    policy.moved(1, Kept(0, MIB), 99, 0)
    monitor = policy._groups.of(objects[0].name, 0).monitor
    monitor.limit = limit

    for number in range(200):
        assert policy.touched(1 + number // 8 if number >= 8 else 99, number % 8 * SIZE, SIZE)
    policy._digest()

    identities = [identity_of(one.version_id, 0) for one in objects]
    assert len(monitor) == sum(identity <= limit for identity in identities)
    assert 0 < len(monitor) < 150


def test_segments_are_ranked_by_their_scores() -> None:
    """Each comes once, the lowest score first, those of equal scores in the ring's order, however many there are."""
    rng = random.Random(4)
    for count in (0, 1, FOUND_SINGLY, 3 * FOUND_SINGLY):
        policy = GittinsPolicy(capacity_bytes=64 * MIB, segment_bytes=MIB)
        for segment_id in range(count):
            policy.found(segment_id, MIB)
            policy._segments[segment_id].score = float(rng.randrange(9))

        assert list(policy._ranking._ranked()) == sorted(
            range(count), key=lambda one: policy._segments[one].score
        )


def test_time_goes_on_beyond_a_million_caches_of_traffic() -> None:
    """Stamps are of all traffic, and a small cache that is read all the time sees much."""
    policy = GittinsPolicy(capacity_bytes=64 * MIB, segment_bytes=MIB)
    policy._clock.bytes = (1 << 33) * policy._clock.unit_bytes
    policy._clock.now = 1 << 33
    one = use(1)
    policy.accessed(one, None)
    policy.admitted(one, 1, 0)
    for _ in range(2 * DIGEST_READS):
        assert policy.touched(1, 0, one.length)
    policy.removed(1)

    assert policy.admit(one, has_room=False) is not None
