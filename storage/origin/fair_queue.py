"""Who is next among equals: the demands of one priority that wait, fair between clients.

Pure. Start-time fair queueing (Goyal, Vin, Cheng 1996) with a flow for each client: whoever waits with one request goes before the second
of somebody who waits with a thousand. A client's requests go in their order. What a client does not use is not saved up, and what it
took is remembered while others wait, until they have had as much, so that one who asks again at once gains nothing by it.

Requests to different buckets wait in lines of their own, since one bucket may have to wait while another need not; a client has one
account over all of them.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from typing import Final, Generic, Protocol, TypeVar

FLOWS_KEPT_MAX: Final = 1024
"""Accounts of clients; beyond it those that neither wait nor owe anything are dropped, each time that as many have come again."""


class Waiting(Protocol):
    """What can wait."""

    @property
    def bucket(self) -> str:
        """The line it waits in."""
        ...

    @property
    def client(self) -> str:
        """Whose it is."""
        ...


W = TypeVar("W", bound=Waiting)


class _Flow:
    """A client's account: the virtual time at which its next request is due, and how many wait."""

    __slots__ = ("due", "waiting")

    def __init__(self) -> None:
        self.due = 0.0
        self.waiting = 0


class _Line(Generic[W]):
    """What waits for one bucket: each client's demands in order, and the clients by when they are due."""

    __slots__ = ("by_client", "heap")

    def __init__(self) -> None:
        self.by_client: dict[str, OrderedDict[int, W]] = {}
        self.heap: list[tuple[float, int, str]] = []


class FairQueue(Generic[W]):
    """The demands of one priority."""

    __slots__ = ("_flows", "_lines", "_order", "_sweep_above", "_virtual", "_waiting")

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._lines: dict[str, _Line[W]] = {}
        self._virtual = 0.0
        self._waiting = 0
        self._order = 0
        self._sweep_above = FLOWS_KEPT_MAX

    def __len__(self) -> int:
        return self._waiting

    def waiting_of(self, client: str) -> int:
        """Say with how many requests a client waits."""
        flow = self._flows.get(client)
        return 0 if flow is None else flow.waiting

    def buckets(self) -> tuple[str, ...]:
        """Give the buckets that something waits for."""
        return tuple(self._lines)

    def add(self, demand: W) -> None:
        """Let a demand wait, behind its client's others."""
        client = demand.client
        flow = self._flows.get(client)
        if flow is None:
            flow = self._flows[client] = _Flow()
        if not flow.waiting:
            flow.due = max(flow.due, self._virtual)
        flow.waiting += 1
        self._waiting += 1
        line = self._lines.get(demand.bucket)
        if line is None:
            line = self._lines[demand.bucket] = _Line()
        own = line.by_client.get(client)
        if own is None:
            own = line.by_client[client] = OrderedDict()
            self._order += 1
            heappush(line.heap, (flow.due, self._order, client))
        own[id(demand)] = demand

    def discard(self, demand: W) -> None:
        """Forget a demand that gave up."""
        line = self._lines[demand.bucket]
        own = line.by_client[demand.client]
        del own[id(demand)]
        self._gone(line, demand)

    def head(self, bucket: str) -> tuple[float, int, W] | None:
        """Give what is next in a bucket's line, with what orders it among the heads of all lines; None where nothing waits."""
        line = self._lines.get(bucket)
        while line is not None and line.heap:
            due, order, client = line.heap[0]
            own = line.by_client.get(client)
            if own is None:
                heappop(line.heap)
                continue
            now_due = self._flows[client].due
            if now_due > due:
                # It was served in another line, or in this one, since it took its place.
                self._order += 1
                heapreplace(line.heap, (now_due, self._order, client))
                continue
            return due, order, next(iter(own.values()))
        return None

    def take(self, demand: W) -> None:
        """Serve a demand that is the head of its line."""
        flow = self._flows[demand.client]
        self._virtual = max(self._virtual, flow.due)
        flow.due += 1.0
        self.discard(demand)

    def drop_bucket(self, bucket: str) -> Iterator[W]:
        """Forget all that waits for a bucket, and give it."""
        line = self._lines.get(bucket)
        if line is None:
            return
        for demand in [one for own in line.by_client.values() for one in own.values()]:
            self.discard(demand)
            yield demand

    def _gone(self, line: _Line[W], demand: W) -> None:
        if not line.by_client[demand.client]:
            del line.by_client[demand.client]
            if not line.by_client:
                del self._lines[demand.bucket]
        self._flows[demand.client].waiting -= 1
        self._waiting -= 1
        if not self._waiting:
            # Nobody waits whom it could be owed: all begin anew, as if time had gone on to the last debt (Goyal: the end of a busy period).
            self._flows.clear()
            self._sweep_above = FLOWS_KEPT_MAX
        elif len(self._flows) > self._sweep_above:
            self._sweep()

    def _sweep(self) -> None:
        """Drop accounts of no use, and look again once there are twice as many: a look at all of them is paid by half of them."""
        self._flows = {
            client: flow for client, flow in self._flows.items() if flow.waiting or flow.due > self._virtual
        }
        self._sweep_above = max(FLOWS_KEPT_MAX, 2 * len(self._flows))
