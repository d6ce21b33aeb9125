"""An index that stays in reach while the engine re-opens."""

import pytest

from storage import keys
from storage.errors import DamagedError, DiskFailedError, OverloadedError
from storage.family import Family, IndexWrite
from storage.index_keeper import IndexKeeper
from storage.types import ObjectName
from tests.fakes.index import FakeIndex

KEY = keys.object_key("bucket", "key")
CLEAN = keys.object_key("bucket", "clean")


class Home:
    """An index home that counts."""

    def __init__(self) -> None:
        self.index = FakeIndex()
        self.index.write([IndexWrite(Family.OBJECTS, KEY, b"row")])
        self.opened = 0
        self.destroyed = 0
        self.is_refused = False

    def open(self) -> FakeIndex:
        """Give the rows anew."""
        if self.is_refused:
            raise DiskFailedError("refused")
        self.opened += 1
        self.index = self.index.kill_clone()
        return self.index

    def destroy(self) -> None:
        """Begin anew."""
        self.destroyed += 1
        self.index = FakeIndex()


def make_keeper(home: Home) -> IndexKeeper:
    """Give an open keeper that knows one dirty key."""
    keeper = IndexKeeper(home)
    keeper.open()
    keeper.show()
    keeper.know_dirty(lambda name: name == ObjectName("bucket", "key"))
    return keeper


def test_rows_are_read_on_when_a_recovery_failed() -> None:
    """Closing by recovery closes nothing, and opening again gives the same index."""
    home = Home()
    keeper = make_keeper(home)
    keeper.close()

    again = keeper.open()

    assert home.opened == 1
    assert again.get(Family.OBJECTS, KEY) == b"row"


def test_an_index_that_failed_is_opened_anew() -> None:
    """It can be read until then."""
    home = Home()
    keeper = make_keeper(home)
    keeper.distrust()
    read_before = keeper.get(Family.OBJECTS, KEY)
    keeper.hide()

    keeper.open()
    keeper.open()

    keeper.show()

    assert (read_before, home.opened) == (b"row", 2)
    assert keeper.scan(Family.OBJECTS, b"", None, 10) == [(KEY, b"row")]


def test_clean_keys_are_unknown_and_dirty_ones_refused_while_nothing_is_open() -> None:
    """The origin may be asked for what is clean; it has an older state of what is dirty."""
    home = Home()
    keeper = make_keeper(home)
    keeper.distrust()
    keeper.hide()
    home.is_refused = True
    with pytest.raises(DiskFailedError):
        keeper.open()
    keeper.end_attempt()

    for family in (Family.OBJECTS, Family.OVERLAY):
        assert keeper.get(family, CLEAN) is None
        with pytest.raises(OverloadedError):
            keeper.get(family, KEY)
    with pytest.raises(OverloadedError):
        keeper.get(Family.DIRTY, b"x")
    with pytest.raises(OverloadedError):
        keeper.scan(Family.OVERLAY, b"", None, 1)


def test_a_damaged_index_is_begun_anew() -> None:
    """Opening it again would not heal the row that cannot be read. Recovery hears of it as of damage, and may look at the journal first."""
    home = Home()
    keeper = make_keeper(home)
    keeper.condemn()
    keeper.hide()
    for _ in range(2):
        with pytest.raises(DamagedError):
            keeper.open()
    destroyed_before = home.destroyed

    keeper.destroy()
    keeper.open()
    keeper.open()
    keeper.show()

    assert (destroyed_before, home.destroyed, home.opened) == (0, 1, 2)
    assert keeper.get(Family.OBJECTS, KEY) is None


def test_an_index_is_shown_once_recovery_has_filled_it() -> None:
    """Until then it lacks rows: what is dirty is refused, though an index is open."""
    keeper = make_keeper(Home())
    keeper.condemn()
    keeper.hide()
    keeper.destroy()
    work = keeper.open()
    keeper.end_attempt()
    with pytest.raises(OverloadedError):
        keeper.get(Family.OBJECTS, KEY)
    with pytest.raises(OverloadedError):
        keeper.check_readable()

    work.write([IndexWrite(Family.OBJECTS, KEY, b"new")])
    keeper.show()

    assert keeper.get(Family.OBJECTS, KEY) == b"new"
    keeper.check_readable()


def test_an_index_that_failed_under_recovery_is_opened_anew_by_the_next_attempt() -> None:
    """It takes no write any more; it is read until then, and one that did not fail is worked on further."""
    home = Home()
    keeper = make_keeper(home)
    keeper.end_attempt()
    keeper.open()
    opened_before = home.opened
    home.index.fail_write()
    with pytest.raises(DiskFailedError):
        keeper.open().write([])

    keeper.end_attempt()
    read_between = keeper.get(Family.OBJECTS, KEY)
    keeper.hide()
    keeper.open().write([])

    assert (opened_before, read_between, home.opened) == (1, b"row", 2)


def test_what_is_shown_is_not_removed() -> None:
    """Somebody may read it; the next attempt finds it hidden, and removes it."""
    home = Home()
    keeper = make_keeper(home)
    keeper.open()

    with pytest.raises(DiskFailedError):
        keeper.destroy()
    keeper.end_attempt()
    read_between = keeper.get(Family.OBJECTS, KEY)
    keeper.hide()
    with pytest.raises(DamagedError):
        keeper.open()
    keeper.destroy()

    assert (read_between, home.destroyed) == (b"row", 1)


def test_a_hidden_index_is_shown_again_when_it_was_not_closed() -> None:
    """Recovery gave up before it came to the index."""
    home = Home()
    keeper = make_keeper(home)
    keeper.distrust()
    keeper.hide()
    with pytest.raises(OverloadedError):
        keeper.get(Family.OBJECTS, KEY)

    keeper.end_attempt()

    assert keeper.get(Family.OBJECTS, KEY) == b"row"


def test_an_index_in_good_order_is_not_hidden() -> None:
    """Only one that failed is about to be closed."""
    keeper = make_keeper(Home())

    keeper.hide()

    assert keeper.get(Family.OBJECTS, KEY) == b"row"


def test_destroying_closes_first() -> None:
    """RocksDB keeps a lock on what is open."""
    home = Home()
    keeper = make_keeper(home)
    before = home.index
    keeper.condemn()
    keeper.hide()

    keeper.destroy()
    keeper.open()
    keeper.show()

    assert (home.destroyed, before._is_closed) == (1, True)
    assert keeper.get(Family.OBJECTS, KEY) is None
