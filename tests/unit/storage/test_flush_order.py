"""LazyHeap and ReadyOrder against lists that are sorted anew each time."""

from hypothesis import given, strategies as st

from storage.flush_order import LazyHeap, ReadyOrder

ITEMS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), ITEMS, st.integers(0, 9)),
        st.tuples(st.just("discard"), ITEMS, st.just(0)),
        st.tuples(st.just("pop"), st.just(""), st.just(0)),
    ),
    max_size=200,
)


@given(steps=STEPS)
def test_items_come_out_in_order_when_they_are_moved_and_taken_out(
    steps: list[tuple[str, str, int]],
) -> None:
    """The first out has the lowest order; of equals the one put first."""
    heap: LazyHeap[str] = LazyHeap()
    model: dict[str, tuple[int, int]] = {}

    for number, (step, item, order) in enumerate(steps):
        if step == "put":
            heap.put(order, item)
            model[item] = (order, number)
        elif step == "discard":
            heap.discard(item)
            model.pop(item, None)
        else:
            expected = min(model, key=lambda i: model[i], default=None)
            assert heap.pop() == expected
            model.pop(expected or "", None)
        assert len(heap) == len(model)
        assert heap.first_order() == min((place[0] for place in model.values()), default=None)


def test_memory_is_bounded_when_one_item_is_moved_often() -> None:
    """Dead places are cleaned away, not kept until they come up."""
    heap: LazyHeap[str] = LazyHeap()
    heap.put(0, "first")

    for order in range(1, 10_000):
        heap.put(order, "moved")

    assert len(heap._heap) < 100


@given(
    puts=st.lists(
        st.tuples(
            st.sampled_from(["x", "y", "z"]),
            st.integers(0, 20),
            st.integers(0, 99),
            st.booleans(),
            st.booleans(),
        ),
        max_size=40,
    ),
    suspended=st.sets(st.sampled_from(["x", "y", "z"])),
)
def test_oldest_of_open_buckets_comes_first_when_some_are_suspended(
    puts: list[tuple[str, int, int, bool, bool]], suspended: set[str]
) -> None:
    """Within an urgency the oldest of all open buckets is taken; what is suspended comes after its resumption."""
    order: ReadyOrder[tuple[str, int]] = ReadyOrder()
    model: dict[tuple[str, int], tuple[int, bool]] = {}
    for bucket, item, age, is_urgent, is_tombstone in puts:
        order.put(bucket, (bucket, item), age, is_urgent=is_urgent, is_tombstone=is_tombstone)
        model[bucket, item] = (age, is_urgent)
    for bucket in suspended:
        order.suspend(bucket)

    for is_urgent in (True, False):
        expected = sorted(age for (b, _), (age, u) in model.items() if u is is_urgent and b not in suspended)
        assert _take_all(order, model, is_urgent=is_urgent) == expected
    for bucket in suspended:
        order.resume(bucket)
    for is_urgent in (True, False):
        expected = sorted(age for (b, _), (age, u) in model.items() if u is is_urgent and b in suspended)
        assert _take_all(order, model, is_urgent=is_urgent) == expected
    assert len(order) == 0


def _take_all(
    order: ReadyOrder[tuple[str, int]], model: dict[tuple[str, int], tuple[int, bool]], *, is_urgent: bool
) -> list[int]:
    ages = []
    while (item := order.take(is_urgent=is_urgent)) is not None:
        ages.append(model[item][0])
    return ages


def test_tombstones_are_taken_together_when_they_are_of_one_bucket() -> None:
    """Up to the limit, oldest first, and no put among them."""
    order: ReadyOrder[str] = ReadyOrder()
    for age, item in enumerate(["t1", "p1", "t2", "t3"]):
        order.put("b", item, age, is_urgent=False, is_tombstone=item.startswith("t"))
    order.put("other", "t9", 0, is_urgent=False, is_tombstone=True)

    taken = order.take_tombstones("b", 2, is_urgent=False)

    assert taken == ["t1", "t2"]
    assert order.take_in("b") == "p1"
    assert order.take_in("b") == "t3"
    assert order.count("b") == 0


def test_bucket_is_probed_with_its_oldest_urgent_item_when_suspended() -> None:
    """take_in does not look at the suspension."""
    order: ReadyOrder[str] = ReadyOrder()
    order.suspend("b")
    order.put("b", "old", 1, is_urgent=False, is_tombstone=False)
    order.put("b", "urgent", 2, is_urgent=True, is_tombstone=False)

    assert order.take(is_urgent=True) is None
    assert order.take_in("b") == "urgent"
    assert order.take_in("b") == "old"
    assert order.take_in("b") is None
