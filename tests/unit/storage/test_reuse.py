"""What is learnt of reuse ages: indexes rise, stay or fall with age as the reads tell, and the ghost forgets in order."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from storage.ghost import Ghost
from storage.pins import Pins
from storage.prefix_groups import GROUPS_MAX, PrefixGroups
from storage.residents import SegmentResidents, grains
from storage.reuse import (
    AGE_BIN,
    AGE_MAX,
    BINS,
    CLASSES,
    EDGES,
    ENTRIES_MAX,
    ReuseMonitor,
    bin_of,
    bumped,
    gittins,
    prior_rates,
)
from storage.types import MIB, ObjectName


def taught(draw: Callable[[random.Random], float]) -> list[float]:
    """Teach a monitor with extents that are read again at ages drawn one by one; give the index of the first class."""
    rng = random.Random(11)
    monitor = ReuseMonitor()
    due = sorted((draw(rng), number) for number in range(400))
    now = 0.0
    for _ in range(12_000):
        now, number = due.pop(0)
        monitor.observe(number, 100, 0, now)
        due.append((now + draw(rng), number))
        due.sort()
    monitor.learn(prior_rates([monitor]), now)
    return monitor.index[:BINS]


def test_index_rises_with_age_when_reads_are_spread_over_an_epoch() -> None:
    """Ages uniform up to two epochs: what was just read waits longest."""
    index = taught(lambda rng: rng.uniform(1, 20_000))

    assert index[bin_of(15_000)] > 1.5 * index[bin_of(5000)] > 1.5 * index[bin_of(10)]


def test_index_is_flat_when_reads_have_no_memory() -> None:
    """Exponential ages: how long an extent has waited says nothing."""
    index = taught(lambda rng: rng.expovariate(1 / 5000))

    assert 0.6 < index[bin_of(5000)] / index[bin_of(500)] < 1.6


def test_index_falls_with_age_when_reads_cluster() -> None:
    """Pareto ages: what has waited long waits longer."""
    index = taught(lambda rng: 10 * rng.paretovariate(0.8))

    assert index[bin_of(20)] > 5 * index[bin_of(500)] > 5 * index[bin_of(20_000)]


@pytest.mark.slow
@given(st.lists(st.floats(0, 0.999), min_size=BINS, max_size=BINS))
def test_gittins_is_the_best_ratio_of_all_stopping_times(hazards: list[float]) -> None:
    """The hull gives what trying every stopping time gives."""
    index = gittins(hazards)

    for b in range(0, BINS, 9):
        survival, chance, wait, best = 1.0, 0.0, 0.0, 0.0
        for j in range(b, BINS):
            chance += survival * hazards[j]
            wait += survival * (EDGES[j + 1] - EDGES[j]) * (1 - hazards[j] / 2)
            survival *= 1 - hazards[j]
            best = max(best, chance / wait)
        assert abs(index[b] - best) <= 1e-9 * best


def test_age_table_is_bin_of() -> None:
    """The table for whole ages says what the formula says."""
    assert len(AGE_BIN) == AGE_MAX + 1
    assert all(AGE_BIN[age] == bin_of(age) for age in range(0, AGE_MAX + 1, 7))


def test_code_counts_reads_and_halves_with_time() -> None:
    """Reads close together raise the code, a long wait lowers it to that of a second read."""
    code = 0
    for _ in range(20):
        code = bumped(code, 0)

    assert bumped(code, 0) > code - 1 > bumped(code, 4096 * 8)
    assert bumped(code, AGE_MAX) < bumped(0, 0)


def test_monitor_narrows_its_sample() -> None:
    """However many extents are read, the monitor follows a bounded number, and knows of what share."""
    monitor, rng, count = ReuseMonitor(), random.Random(5), 60_000
    for number in range(count):
        identity = rng.getrandbits(64)
        if identity <= monitor.limit:
            monitor.observe(identity, 100, 0, float(number) / 100)

    assert len(monitor) <= ENTRIES_MAX
    assert 0.8 < monitor.distinct_bytes() / (100 * count) < 1.2


def test_ghost_forgets_the_oldest() -> None:
    """It remembers age and code of about as many bytes as it is asked to, the newest."""
    ghost = Ghost(keep_bytes=10_000)
    for mark in range(1, 5001):
        ghost.put(mark, 10, mark, 3)

    assert ghost.find(5000, 5005) == (5, 3)
    assert all(ghost.find(mark, 5000) for mark in range(4100, 5001))
    assert ghost.find(1, 5000) is None
    assert ghost.memory_bytes < 100_000


def test_grains_are_cut_at_multiples_of_the_version() -> None:
    """Any span is cut where the version's offsets are whole grains."""
    assert list(grains(MIB - 3, MIB + 5)) == [(0, 0, 3), (1, 3, MIB), (2, MIB + 3, 2)]


@given(st.permutations(range(12)))
def test_residents_are_found_in_whatever_order_they_came(order: list[int]) -> None:
    """An extent is found by any offset in it; a gap gives the next."""
    residents = SegmentResidents(0, Pins(0))
    for position in order:
        residents.add(100 * position, 60, position + 1, 5, 0, 0)
    residents.add(300, 60, 9, 7, 3, 1)

    assert (residents.stamps[3], residents.identities[3]) == (5, 4)
    assert residents.known_bytes == 12 * 60
    for position in range(12):
        assert residents.first_at(100 * position + 59) == position
        assert residents.first_at(100 * position + 60) == position + 1


def test_groups_are_bounded_and_merge() -> None:
    """Many subdirectories are one group; many prefixes live at most sixteen at a time, and old numbers say where they went."""
    groups = PrefixGroups()
    first = groups.of(ObjectName("b", "data/c0/x"), 0)
    for number in range(40):
        groups.of(ObjectName("b", f"data/c{number}/x"), number)
    merged = groups.of(ObjectName("b", "data/c0/y"), 50)
    for number in range(40):
        groups.of(ObjectName(f"bucket{number}", "x"), 60 + number)

    assert merged.prefix == ("b", "data")
    assert groups.by_number[first.number] is not first
    assert len(groups.live()) <= GROUPS_MAX


def test_waiting_is_counted_once() -> None:
    """Each extent's waiting, before each of its reads and since the last, stands in its class and in the bins that it went through."""
    rng, monitor, now = random.Random(9), ReuseMonitor(), 0.0
    spans: list[tuple[int, float]] = []
    last: dict[int, tuple[int, float]] = {}
    for count in range(700):
        now += rng.choice((0, 1, 40, 1200))
        identity, class_no = rng.randrange(30), rng.randrange(CLASSES)
        monitor.observe(identity, 100, class_no, now)
        if identity in last:
            class_before, read_at = last[identity]
            spans.append((class_before, now - read_at))
        last[identity] = class_no, now
        if count % 17 == 0:
            monitor._age(now)
    monitor._age(now)
    spans += [(class_no, now - read_at) for class_no, read_at in last.values()]

    exposure = monitor.exposure

    for class_no in range(CLASSES):
        for b in range(BINS):
            ages = [age for of, age in spans if of == class_no and age > EDGES[b]]
            waited = sum(min(age, EDGES[b + 1]) - EDGES[b] for age in ages)
            assert exposure[class_no][b] == pytest.approx(waited, abs=1e-6)


def test_monitor_has_news_until_they_are_learnt() -> None:
    """What was read since the last lesson, or came from another monitor, is news, whether its waiting was counted then or not."""
    monitor, prior = ReuseMonitor(), prior_rates(())
    has_news = [monitor.has_news]

    for now in range(1, 9):
        monitor.observe(now % 5, 100, 0, float(now))
        has_news.append(monitor.has_news)
        monitor.learn(prior, float(now))
        has_news.append(monitor.has_news)
    monitor.merge(ReuseMonitor())
    has_news.append(monitor.has_news)

    assert has_news == [False] + 8 * [True, False] + [True]
