"""`storage.warm_order`: how far a warm-up goes ahead of readers that announced their order."""

from hypothesis import given, strategies as st

from storage.types import ObjectName
from storage.warm_order import LOADED_AHEAD, OrderWindow


def name(number: int) -> ObjectName:
    """Name an object."""
    return ObjectName("bucket", f"k{number}")


def window(
    numbers: list[int], *, ahead_objects: int = 3, ahead_bytes: int = 1000, idle_s: float = 10.0
) -> OrderWindow[int]:
    """Make a window that knows some names."""
    made: OrderWindow[int] = OrderWindow(
        ahead_objects=ahead_objects, ahead_bytes=ahead_bytes, idle_s=idle_s, now_s=0.0
    )
    for number in numbers:
        made.load(name(number), number)
    return made


def issue(order: OrderWindow[int], size: int = 0) -> list[int]:
    """Take what may be warmed now."""
    issued = []
    while (taken := order.next()) is not None:
        issued.append(taken[1])
        order.sized(taken[0], size)
    return issued


def test_no_more_than_the_window_is_issued_before_a_read() -> None:
    """So many objects lie ahead of the position, whatever is loaded."""
    order = window([0, 1, 2, 3, 4, 5])

    assert issue(order) == [0, 1, 2]


def test_each_read_lets_one_more_through() -> None:
    """The window moves with the position."""
    order = window([0, 1, 2, 3, 4, 5])
    issue(order)

    assert order.read(name(0), 1.0)

    assert issue(order) == [3]
    assert order.position == 1


def test_bytes_bound_the_window_when_objects_are_large() -> None:
    """An object more is begun while what lies ahead is under the bound."""
    order = window([0, 1, 2, 3], ahead_bytes=150)

    assert issue(order, 100) == [0, 1]

    order.read(name(0), 1.0)
    assert issue(order, 100) == [2]


def test_one_object_is_always_let_through_when_it_is_larger_than_the_window() -> None:
    """A reader that waits for it is not left alone."""
    order = window([0, 1], ahead_bytes=10)

    assert issue(order, 100) == [0]
    order.read(name(0), 1.0)
    assert issue(order, 100) == [1]


def test_a_read_out_of_turn_moves_to_behind_it_and_passes_what_lies_before() -> None:
    """What the readers have passed is not warmed any more."""
    order = window([0, 1, 2, 3, 4, 5, 6, 7])
    issue(order)

    order.read(name(4), 1.0)

    assert order.is_behind(3)
    assert issue(order) == [5, 6, 7]
    assert order.passed == 2


def test_a_read_behind_the_position_moves_nothing_when_workers_overtake_each_other() -> None:
    """The furthest read is the position."""
    order = window([0, 1, 2, 3])
    order.read(name(2), 1.0)

    assert not order.read(name(1), 2.0)
    assert order.position == 3


def test_ranges_of_one_object_move_the_window_once_when_it_is_listed_again_far_behind() -> None:
    """A second read is of the occurrence that was just passed, not of the one in the next epoch."""
    order = window([0, 1, 2, 3, 4, 0, 1], ahead_objects=5)
    order.read(name(0), 1.0)

    assert not order.read(name(0), 1.0)
    assert order.position == 1


def test_the_next_epoch_is_followed_when_a_whole_one_lies_within_the_window() -> None:
    """A read of the first name after the last is of the next epoch."""
    order = window([0, 1, 2, 0, 1, 2], ahead_objects=5)
    for number in (0, 1, 2, 0):
        assert order.read(name(number), 1.0)

    assert order.position == 4


def test_a_read_of_another_name_moves_nothing_and_shows_no_reader() -> None:
    """Readers of something else do not keep a job alive."""
    order = window([0, 1], idle_s=10.0)

    assert not order.read(name(9), 9.0)

    assert order.idle_left_s(4.0) == 6.0
    assert order.idle_left_s(10.0) == 0.0


def test_a_read_of_a_known_name_keeps_the_job_alive() -> None:
    """The time without reads begins anew."""
    order = window([0, 1], idle_s=10.0)

    order.read(name(0), 9.0)

    assert order.idle_left_s(10.0) == 9.0


@given(
    st.lists(st.integers(0, 30), max_size=120),
    st.lists(st.integers(0, 30), max_size=120),
    st.integers(1, 8),
    st.integers(0, 60),
)
def test_bounds_hold_whatever_is_read(
    numbers: list[int], reads: list[int], ahead_objects: int, size: int
) -> None:
    """Never more ahead than the window, bytes add up, names are known for a few windows only, none is issued twice."""
    order = window([], ahead_objects=ahead_objects, ahead_bytes=100)
    pending = iter(numbers)
    issued: list[int] = []

    for read in [None, *reads]:
        if read is not None:
            order.read(name(read), 1.0)
        while order.wants_names and (number := next(pending, None)) is not None:
            order.load(name(number), number)
        while (taken := order.next()) is not None:
            issued.append(taken[0])
            order.sized(taken[0], size)
        ahead = order.issued - order.position
        assert 0 <= ahead <= ahead_objects
        assert order.ahead_bytes == ahead * size
        assert order.ahead_bytes < 100 + size or ahead == 1
        assert len(order._names) <= (LOADED_AHEAD + 1) * ahead_objects + 1
        assert sum(map(len, order._indices.values())) == len(order._names)
    assert issued == sorted(set(issued))
    assert len(issued) + order.passed == order.issued
