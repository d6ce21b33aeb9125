"""The orders in which the flush looks at its keys: by time, and oldest first within urgency and bucket."""

import heapq
import itertools
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_SLACK: Final = 64
"""A heap is cleaned when it holds twice as many dead places as live ones, but not for so few."""


class LazyHeap(Generic[T]):
    """A priority queue whose items can be moved and taken out: O(log n) a call, memory by what is in it.

    An item that is moved or taken out leaves a dead place in the heap, which is skipped when it comes up; the heap is built
    anew when most of it is dead. Equal orders come out in the order they were put.
    """

    __slots__ = ("_count", "_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._live: dict[T, tuple[float, int, T]] = {}
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: T) -> bool:
        return item in self._live

    def put(self, order: float, item: T) -> None:
        """Put an item in, or move it."""
        place = (order, next(self._count), item)
        self._live[item] = place
        heapq.heappush(self._heap, place)
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) is entry]
            heapq.heapify(self._heap)

    def discard(self, item: T) -> None:
        """Take an item out, if it is in."""
        self._live.pop(item, None)

    def order_of(self, item: T) -> float | None:
        """Give an item's order; None where it is not in."""
        place = self._live.get(item)
        return None if place is None else place[0]

    def first_order(self) -> float | None:
        """Give the order of the first item; None where there is none."""
        place = self._first() if self._live else None
        return None if place is None else place[0]

    def first(self) -> T | None:
        """Give the first item and leave it in; None where there is none."""
        place = self._first() if self._live else None
        return None if place is None else place[2]

    def pop(self) -> T | None:
        """Take the first item; None where there is none."""
        place = self._first() if self._live else None
        if place is None:
            return None
        heapq.heappop(self._heap)
        del self._live[place[2]]
        return place[2]

    def pop_due(self, now: float) -> T | None:
        """Take the first item if its order is not beyond `now`."""
        place = self._first() if self._live else None
        return self.pop() if place is not None and place[0] <= now else None

    def _first(self) -> tuple[float, int, T] | None:
        heap = self._heap
        while heap and self._live.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None


class ReadyOrder(Generic[T]):
    """What may be sent: urgent before not, oldest first, buckets set aside while they are suspended.

    Each bucket has a queue for each urgency and kind, and the open buckets stand in one queue for each urgency by their oldest.
    So a suspended bucket with any number of keys costs the others nothing.
    """

    def __init__(self) -> None:
        self._buckets: dict[str, _Queues[T]] = {}
        self._open: dict[bool, LazyHeap[str]] = {True: LazyHeap(), False: LazyHeap()}
        self._suspended: set[str] = set()

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def count(self, bucket: str) -> int:
        """Say how many of a bucket are ready."""
        queues = self._buckets.get(bucket)
        return 0 if queues is None else len(queues)

    def is_in(self, bucket: str, item: T) -> bool:
        """Whether an item of the bucket is ready."""
        queues = self._buckets.get(bucket)
        return queues is not None and any(item in queue for queue in queues.all)

    def put(self, bucket: str, item: T, age: int, *, is_urgent: bool, is_tombstone: bool) -> None:
        """Put an item in, or move it; a lower `age` goes first."""
        queues = self._buckets.get(bucket)
        if queues is None:
            queues = self._buckets[bucket] = _Queues()
        self.discard(bucket, item)
        self._buckets[bucket] = queues  # it goes when its last item does, which may have been this one
        queues.all[2 * is_urgent + is_tombstone].put(age, item)
        self._order(bucket, is_urgent=is_urgent)

    def discard(self, bucket: str, item: T) -> None:
        """Take an item out, if it is in."""
        queues = self._buckets.get(bucket)
        if queues is None:
            return
        for place, queue in enumerate(queues.all):
            if item in queue:
                queue.discard(item)
                self._order(bucket, is_urgent=place >= 2)
                return

    def take(self, *, is_urgent: bool) -> T | None:
        """Take the oldest of all open buckets; None where there is none."""
        bucket = self._open[is_urgent].first()
        return None if bucket is None else self._take(bucket, is_urgent=is_urgent)

    def take_in(self, bucket: str) -> T | None:
        """Take the oldest of one bucket, suspended or not, urgent ones first; None where there is none."""
        item = self._take(bucket, is_urgent=True)
        return self._take(bucket, is_urgent=False) if item is None else item

    def take_tombstones(self, bucket: str, limit: int, *, is_urgent: bool) -> list[T]:
        """Take up to `limit` of a bucket's tombstones, oldest first."""
        queues = self._buckets.get(bucket)
        if queues is None:
            return []
        queue = queues.all[2 * is_urgent + 1]
        taken = [item for _ in range(min(limit, len(queue))) if (item := queue.pop()) is not None]
        self._order(bucket, is_urgent=is_urgent)
        return taken

    def suspend(self, bucket: str) -> None:
        """Set a bucket aside; suspending twice is allowed."""
        self._suspended.add(bucket)
        self._order(bucket, is_urgent=True)
        self._order(bucket, is_urgent=False)

    def resume(self, bucket: str) -> None:
        """Let a bucket take part again."""
        self._suspended.discard(bucket)
        self._order(bucket, is_urgent=True)
        self._order(bucket, is_urgent=False)

    def _take(self, bucket: str, *, is_urgent: bool) -> T | None:
        queues = self._buckets.get(bucket)
        if queues is None:
            return None
        item = queues.oldest(is_urgent=is_urgent).pop()
        self._order(bucket, is_urgent=is_urgent)
        return item

    def _order(self, bucket: str, *, is_urgent: bool) -> None:
        """Put a bucket where its oldest belongs, or out where it has none or is suspended."""
        queues = self._buckets.get(bucket)
        age = None if queues is None else queues.oldest(is_urgent=is_urgent).first_order()
        ready = self._open[is_urgent]
        if age is None or bucket in self._suspended:
            ready.discard(bucket)
        elif ready.order_of(bucket) != age:
            ready.put(age, bucket)
        if age is None and queues is not None and not queues:
            del self._buckets[bucket]


class _Queues(Generic[T]):
    """The ready items of one bucket: puts, tombstones, urgent puts, urgent tombstones."""

    __slots__ = ("all",)

    def __init__(self) -> None:
        self.all: tuple[LazyHeap[T], ...] = (LazyHeap(), LazyHeap(), LazyHeap(), LazyHeap())

    def __len__(self) -> int:
        return sum(map(len, self.all))

    def oldest(self, *, is_urgent: bool) -> LazyHeap[T]:
        """Give the queue whose first is older; either where both are empty."""
        puts, tombstones = self.all[2 * is_urgent], self.all[2 * is_urgent + 1]
        put, tombstone = puts.first_order(), tombstones.first_order()
        if put is None or (tombstone is not None and tombstone < put):
            return tombstones
        return puts
