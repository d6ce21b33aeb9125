"""How far a warm-up goes ahead of its readers in an order that they have announced. Pure.

    read .......... position .......... issued .......... loaded
     already read      being read, warm       known names     not looked at yet

Readers of one order come as several workers, so they read out of turn by a little: the position is behind the furthest name that
was read. A name that was passed before its turn came is not warmed any more. A name may be listed again, in the next epoch of the same
list: a read counts for the occurrence that lies nearer to the position, so that an object which is read range by range moves nothing
but once.

What the readers do beyond that is not followed: a read of a name that is not among those known moves nothing, and once nothing has
moved for so long, they have stopped or gone elsewhere.
"""

from collections import deque
from typing import Final, Generic, TypeVar

from storage.types import ObjectName

LOADED_AHEAD: Final = 2
"""Names are known up to so many windows ahead of the position, so that a jump of the readers over one window is followed."""

T = TypeVar("T")


class OrderWindow(Generic[T]):
    """The window of one job. All calls are synchronous; memory is bounded by `ahead_objects`."""

    def __init__(self, *, ahead_objects: int, ahead_bytes: int, idle_s: float, now_s: float) -> None:
        """Begin before the first name.

        Args:
            ahead_objects: So many objects at most lie between the position and what is warmed last.
            ahead_bytes: So many bytes, about: an object more is begun while they are under it.
            idle_s: After so long without a read the readers are taken to be gone.
            now_s: Monotonic time.
        """
        self._ahead_objects = ahead_objects
        self._ahead_bytes_max = ahead_bytes
        self._idle_s = idle_s
        self._moved_at_s = now_s
        # From `_first`, which trails behind the position by a window, to `loaded`.
        self._names: deque[ObjectName] = deque()
        self._first = 0
        self._items: dict[int, T] = {}
        self._sizes: dict[int, int] = {}
        self._indices: dict[ObjectName, deque[int]] = {}
        self.position = 0
        self.issued = 0
        self.passed = 0
        self.ahead_bytes = 0

    @property
    def loaded(self) -> int:
        """How many names were loaded in all."""
        return self._first + len(self._names)

    @property
    def wants_names(self) -> bool:
        """Whether more names should be loaded."""
        return self.loaded - self.position < LOADED_AHEAD * self._ahead_objects

    def load(self, name: ObjectName, item: T) -> None:
        """Take the next name of the order."""
        index = self.loaded
        self._names.append(name)
        self._items[index] = item
        self._indices.setdefault(name, deque()).append(index)

    def next(self) -> tuple[int, T] | None:
        """Give what is to be warmed now; None while the window is full, or nothing is loaded behind it."""
        if self.issued < self.position:
            self.passed += self.position - self.issued
            for index in range(self.issued, self.position):
                self._items.pop(index, None)
            self.issued = self.position
        if self.issued == self.loaded:
            return None
        is_first = self.issued == self.position
        is_full = (
            self.issued - self.position >= self._ahead_objects or self.ahead_bytes >= self._ahead_bytes_max
        )
        if is_full and not is_first:
            return None
        index, self.issued = self.issued, self.issued + 1
        return index, self._items.pop(index)

    def is_behind(self, index: int) -> bool:
        """Whether the readers have passed a name."""
        return index < self.position

    def sized(self, index: int, size: int) -> None:
        """Learn what an object takes that was issued."""
        if index >= self.position:
            self._sizes[index] = size
            self.ahead_bytes += size

    def read(self, name: ObjectName, now_s: float) -> bool:
        """Take note of a read; say whether it moved the window."""
        indices = self._indices.get(name)
        if indices is None:
            return False
        before = [index for index in indices if index < self.position]
        index = next((index for index in indices if index >= self.position), None)
        # Any read of the order's names shows that the readers are there.
        self._moved_at_s = now_s
        if index is None:
            return False
        if before and self.position - before[-1] <= index + 1 - self.position:
            return False
        self._move(index + 1)
        return True

    def _move(self, position: int) -> None:
        for index in range(self.position, position):
            self.ahead_bytes -= self._sizes.pop(index, 0)
        self.position = position
        while self._names and self._first < position - self._ahead_objects:
            self._forget_first()

    def _forget_first(self) -> None:
        name = self._names.popleft()
        indices = self._indices[name]
        indices.popleft()
        if not indices:
            del self._indices[name]
        self._items.pop(self._first, None)
        self._first += 1

    def wait_for_names(self, now_s: float) -> None:
        """Take the readers to be there, since nothing is left for them to read before more names come."""
        self._moved_at_s = now_s

    def idle_left_s(self, now_s: float) -> float:
        """Say for how long the window still waits for a read; 0 where the readers are gone."""
        return max(0.0, self._moved_at_s + self._idle_s - now_s)
