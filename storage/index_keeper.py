"""The one index of a process: it stays open for readers while the engine re-opens, for as long as it can be read.

Whoever reads holds the keeper, which is an `Index`; recovery gets it as its `IndexHome`. So the rows stay in reach while
recovery looks whether the disk is good again, and what it could not finish takes them from nobody:

    open     gives what is open, unless that has failed (`distrust`): then it closes it and opens anew; or shows damage (`condemn`):
             then it removes it, and recovery fills an empty one from the journal
    close    does nothing: recovery ends so what it could not finish, and readers go on. `release` closes.

An index that failed is hidden before it is closed, in the event loop, so that no read is under way then. While it is hidden, or
the disk refuses to open it, the rows of a clean key count as absent: the reader then asks the origin, keeps nothing, and is
right. A dirty key's rows are refused, since the origin has an older state of it; who is dirty the flush planner knows. All other
reads are refused too.
"""

from collections.abc import Callable, Sequence
from typing import Final

from storage import keys
from storage.errors import OverloadedError
from storage.family import Family, IndexWrite
from storage.index import Index
from storage.index_recovery import IndexHome
from storage.types import ObjectName

_BY_OBJECT: Final = frozenset({Family.OBJECTS, Family.OVERLAY})
_RETRY_S: Final = 2.0


class IndexKeeper:
    """An index that outlives the engine's lives; reading costs no more than the index itself."""

    def __init__(self, home: IndexHome) -> None:
        self._home = home
        self._index: Index | None = None
        self._hidden: Index | None = None
        self._is_distrusted = False
        self._is_condemned = False
        self._is_dirty: Callable[[ObjectName], bool] = lambda _name: True
        self.get: Callable[[Family, bytes], bytes | None] = self._get_blind

    # --- as an index -------------------------------------------------------------------------------------------------

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Give rows in key order; as Index.

        Raises:
            OverloadedError: The index is not open at the moment.
        """
        return self._opened().scan(family, start, stop, limit, reverse=reverse)

    def write(self, batch: Sequence[IndexWrite]) -> None:
        """Write a batch; as Index."""
        self._opened().write(batch)

    def checkpoint(self) -> None:
        """Make all written batches durable; as Index."""
        self._opened().checkpoint()

    def close(self) -> None:
        """Do nothing: see the head of this module."""

    # --- as its home -------------------------------------------------------------------------------------------------

    def open(self) -> "IndexKeeper":
        """Give the index, opened anew where it is not open or has failed; errors as `IndexHome.open`. Blocks."""
        if self._index is None or self._is_distrusted:
            self.release()
            if self._is_condemned:
                self._home.destroy()
                self._is_condemned = False
            self._show(self._home.open())
            self._is_distrusted = False
        return self

    def destroy(self) -> None:
        """Close the index and remove it."""
        self.release()
        self._home.destroy()

    # --- for the engine ----------------------------------------------------------------------------------------------

    def distrust(self) -> None:
        """Have the next `open` open it anew: a write or a checkpoint of it failed."""
        self._is_distrusted = True

    def condemn(self) -> None:
        """Have the next `open` begin an empty index: a row of this one cannot be read, and would not be found by opening it."""
        self._is_distrusted = self._is_condemned = True

    def know_dirty(self, is_dirty: Callable[[ObjectName], bool]) -> None:
        """Learn who knows which keys are dirty, for as long as the rows cannot be read."""
        self._is_dirty = is_dirty

    def hide(self) -> None:
        """Let nobody read an index that has failed, since it is about to be closed; called in the event loop."""
        if self._is_distrusted and self._index is not None:
            self._hidden, self._index = self._index, None
            self.get = self._get_blind

    def reveal(self) -> None:
        """Let an index be read again that was hidden and not closed after all; called in the event loop."""
        hidden, self._hidden = self._hidden, None
        if hidden is not None:
            self._show(hidden)

    def release(self) -> None:
        """Close the index really; from here on it counts as not open. Blocks."""
        indexes = (self._index, self._hidden)
        self._index = self._hidden = None
        self.get = self._get_blind
        for index in indexes:
            if index is not None:
                index.close()

    def _show(self, index: Index) -> None:
        self._index, self.get = index, index.get

    def _opened(self) -> Index:
        if self._index is None:
            raise _unreadable()
        return self._index

    def _get_blind(self, family: Family, key: bytes, /) -> bytes | None:
        if family in _BY_OBJECT and not self._is_dirty(keys.split_object_key(key)):
            return None
        raise _unreadable()


def _unreadable() -> OverloadedError:
    return OverloadedError("the index cannot be read until the disk is good again", retry_after_s=_RETRY_S)
