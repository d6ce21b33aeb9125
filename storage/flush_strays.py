"""What was sent of keys that have nothing left to send, had no answer, and may yet land. Pure.

While a key has a change to send, its attempts are the key's own business (`FlushKey.attempted`): the success of that change is checked.
Here are those of changes that were given up, and what was sent past the flush (`STRAY`), until their time is past.
"""

from storage.flush_events import STRAY
from storage.flush_order import LazyHeap
from storage.types import ObjectName


class Strays:
    """Sequences by key, each with the time after which nothing of it lands."""

    __slots__ = ("_attempted", "_ends")

    def __init__(self) -> None:
        self._attempted: dict[ObjectName, tuple[int, ...]] = {}
        self._ends: LazyHeap[ObjectName] = LazyHeap()

    def __len__(self) -> int:
        return len(self._attempted)

    def remember(self, name: ObjectName, attempted: tuple[int, ...], until_s: float) -> None:
        """Note what a key leaves behind."""
        self._attempted[name] = attempted
        self._ends.put(until_s, name)

    def add(self, name: ObjectName, until_s: float) -> None:
        """Note what was sent of a key past the flush."""
        known = self._attempted.get(name, ())
        self.remember(name, (*(attempt for attempt in known if attempt != STRAY), STRAY), until_s)

    def take(self, name: ObjectName) -> tuple[int, ...]:
        """Give what may land of a key, which looks after it from now on."""
        return self._attempted.pop(name, ())

    def until_s(self, name: ObjectName) -> float:
        """Say until when what the flush sent of a key may land; 0 where nothing may."""
        return (self._ends.order_of(name) or 0.0) if is_flushs(self._attempted.get(name, ())) else 0.0

    def end_due(self, now_s: float) -> None:
        """Forget those whose time is past."""
        while (name := self._ends.pop_due(now_s)) is not None:
            self._attempted.pop(name, None)


def is_flushs(attempted: tuple[int, ...]) -> bool:
    """Whether one of these attempts is the flush's own."""
    return any(attempt != STRAY for attempt in attempted)
