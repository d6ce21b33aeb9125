"""The one index of a process: it stays open for readers while the engine re-opens, for as long as it can be read.

Whoever reads holds the keeper, which is an `Index`; recovery gets it as its `IndexHome`. What readers see and what recovery works on
are two things, which may be the same index:

    shown    what the keeper reads from. Recovery's index is shown (`show`) once recovery has ended well, never before: an index that was
             begun anew, or came back without its last batches, lacks acknowledged changes until then
    work     what `open` gives recovery: the shown index if that is in good order, else one that is opened anew. It is kept from one
             attempt to the next, unless a call of it has failed: then it is opened anew too, as RocksDB takes no write after a failed one

`distrust` has the next `open` open anew, `condemn` has it say that the index is damaged: recovery then removes it (`destroy`) once the
journal is settled, and fills an empty one. Until then it is a witness of what was acknowledged.

An index that is about to be closed is hidden before, in the event loop, so that no read there is under way then. While nothing is shown,
the rows of a clean key count as absent: the reader then asks the origin, keeps nothing, and is right. A dirty key's rows are refused,
since the origin has an older state of it; who is dirty the flush planner of the life before knows. All other reads are refused too.
"""

from collections.abc import Callable, Sequence
from typing import Final

from storage import keys
from storage.errors import DamagedError, DiskFailedError, OverloadedError
from storage.family import Family, IndexWrite
from storage.index import Index
from storage.index_recovery import IndexHome
from storage.types import ObjectName

_BY_OBJECT: Final = frozenset({Family.OBJECTS, Family.OVERLAY})
_RETRY_S: Final = 2.0


class _Work:
    """An index as recovery works on it: remembers whether a call of it failed. Closing is the keeper's."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.has_failed = False

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        try:
            return self.index.get(family, key)
        except Exception:
            self.has_failed = True
            raise

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        try:
            return self.index.scan(family, start, stop, limit, reverse=reverse)
        except Exception:
            self.has_failed = True
            raise

    def write(self, batch: Sequence[IndexWrite]) -> None:
        try:
            self.index.write(batch)
        except Exception:
            self.has_failed = True
            raise

    def checkpoint(self) -> None:
        try:
            self.index.checkpoint()
        except Exception:
            self.has_failed = True
            raise

    def close(self) -> None:
        pass


class IndexKeeper:
    """An index that outlives the engine's lives; reading costs a call more than the index itself.

    Attributes:
        on_damage: Told, in the thread of the read, of a row of an index that cannot be read.
    """

    def __init__(self, home: IndexHome) -> None:
        self._home = home
        self._index: Index | None = None
        self._hidden: Index | None = None
        self._work: _Work | None = None
        self._is_distrusted = False
        self._is_condemned = False
        self._is_dirty: Callable[[ObjectName], bool] = lambda _name: True
        self.on_damage: Callable[[Index, str], None] = lambda _index, _why: None
        self.get: Callable[[Family, bytes], bytes | None] = self._get_blind

    # --- as an index -------------------------------------------------------------------------------------------------

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Give rows in key order; as Index.

        Raises:
            OverloadedError: The index is not open at the moment.
        """
        index = self._opened()
        try:
            return index.scan(family, start, stop, limit, reverse=reverse)
        except DamagedError as error:
            self.on_damage(index, str(error))
            raise

    def note_damage(self, why: str) -> None:
        """Hear of a row that was read and means nothing: `rows.DamageListener`."""
        if self._index is not None:
            self.on_damage(self._index, why)

    def write(self, batch: Sequence[IndexWrite]) -> None:
        """Write a batch; as Index."""
        self._opened().write(batch)

    def checkpoint(self) -> None:
        """Make all written batches durable; as Index."""
        self._opened().checkpoint()

    def close(self) -> None:
        """Do nothing: see the head of this module."""

    # --- as its home -------------------------------------------------------------------------------------------------

    def open(self) -> Index:
        """Give recovery the index, opened anew where it is not open or has failed. Blocks.

        Raises:
            DamagedError: It is condemned, or as `IndexHome.open`.
            LockedError, DiskFailedError: As `IndexHome.open`.
        """
        if self._is_condemned:
            raise DamagedError("a row of the index cannot be read")
        if self._work is not None and not self._work.has_failed:
            return self._work
        if self._index is not None and not self._is_distrusted:
            self._work = _Work(self._index)
            return self._work
        self.release()
        self._work = _Work(self._home.open())
        self._is_distrusted = False
        return self._work

    def destroy(self) -> None:
        """Close the index and remove it. Blocks.

        Raises:
            DiskFailedError: It is shown, so that somebody may read it now; the next attempt hides it first and may then remove it.
        """
        if self._index is not None:
            self.condemn()
            raise DiskFailedError("the index is begun anew: a row of it cannot be read")
        self.release()
        self._home.destroy()
        self._is_distrusted = self._is_condemned = False

    # --- for the engine ----------------------------------------------------------------------------------------------

    def distrust(self) -> None:
        """Have the next `open` open it anew: a write or a checkpoint of it failed."""
        self._is_distrusted = True

    def condemn(self) -> None:
        """Have recovery begin an empty index: a row of this one cannot be read, and would not be found by opening it."""
        self._is_distrusted = self._is_condemned = True

    def know_dirty(self, is_dirty: Callable[[ObjectName], bool]) -> None:
        """Learn who knows which keys are dirty, for as long as the rows cannot be read."""
        self._is_dirty = is_dirty

    def hide(self) -> None:
        """Let nobody read an index that has failed, since it is about to be closed; called in the event loop."""
        if self._is_distrusted and self._index is not None:
            self._hidden, self._index = self._index, None
            self.get = self._get_blind

    def show(self) -> None:
        """Let the index be read that recovery has brought up to the journal; called in the event loop."""
        assert self._work is not None, "recovery has opened no index"
        index, self._work = self._work.index, None
        self._show(index)

    def end_attempt(self) -> None:
        """Let an index be read again that was hidden and not closed after all, since recovery failed; called in the event loop."""
        hidden, self._hidden = self._hidden, None
        if hidden is not None:
            self._show(hidden)
        if self._work is not None and self._work.has_failed:
            self._is_distrusted = True

    def check_readable(self) -> None:
        """Raise where rows that are absent may be there.

        Raises:
            OverloadedError: The index is not open at the moment.
        """
        self._opened()

    def release(self) -> None:
        """Close the index really; from here on it counts as not open. Blocks."""
        indexes = {self._index, self._hidden, None if self._work is None else self._work.index}
        self._index = self._hidden = self._work = None
        self.get = self._get_blind
        for index in indexes:
            if index is not None:
                index.close()

    def _show(self, index: Index) -> None:
        def get(family: Family, key: bytes, /) -> bytes | None:
            try:
                return index.get(family, key)
            except DamagedError as error:
                self.on_damage(index, str(error))
                raise

        self._index, self.get = index, get

    def shows(self, index: Index) -> bool:
        """Whether an index is the one that is read now."""
        return index is self._index

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
