"""One warm-up job on its way: what it has been given, what it counts, and whether more of its list will come.

A list comes piece by piece, so what its client does between two pieces is not seen. One that holds the job meanwhile (`Hold`) may take
as long as it likes for the next piece: a stopped process still has its connection, and one that was killed has none. Of a client that
does not hold it, a long silence has to do.
"""

import asyncio
from dataclasses import dataclass, field

from storage.clock import Clock
from storage.listing import ListEntry
from storage.types import ObjectName, RangeSpec
from storage.warm_jobs import Backlog, Tally, WarmKind, WarmPhase, WarmRequest
from storage.warm_order import OrderWindow


@dataclass(frozen=True, slots=True)
class WarmItem:
    """One object on its way to a worker; `index` is its place in an ORDER job's list."""

    name: ObjectName
    range: RangeSpec | None = None
    listed: ListEntry | None = None
    index: int = 0


@dataclass(slots=True)
class WarmJob:
    """One job under way, or ended lately.

    Attributes:
        takes_names: More of its list may come.
        holds: So many clients hold it.
        heard_at_s: When a client was heard of last: begun, fed or let go; monotonic.
        news: Set when names came, a read moved the window, or a hold began or ended.
        released: Set once there is nothing to hold the job for.
    """

    job_id: int
    request: WarmRequest
    started_s: float
    heard_at_s: float
    backlog: Backlog = field(default_factory=Backlog)
    tally: Tally = field(default_factory=Tally)
    window: OrderWindow[WarmItem] | None = None
    phase: WarmPhase = WarmPhase.RUNNING
    error: str = ""
    room_bytes: int = 0
    claimed_bytes: int = 0
    takes_names: bool = True
    holds: int = 0
    ended_s: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def place(self) -> str:
        """What it warms, for people."""
        request = self.request
        if request.kind is WarmKind.PREFIX:
            return f"s3://{request.bucket}/{request.prefix}"
        return "a list" if request.kind is WarmKind.LIST else "a list, in the order of its reads"

    def end(self, phase: WarmPhase, error: str = "") -> None:
        """Say how it ends; the first one counts."""
        if self.phase is WarmPhase.RUNNING:
            self.phase, self.error = phase, error

    def take_no_more(self) -> None:
        """Take no more names; who holds the job need not any longer."""
        self.takes_names = False
        self.released.set()

    def patience_s(self, now_s: float) -> float | None:
        """Say how long the next piece of the list is still waited for; None is without end, since its client holds the job."""
        if self.holds:
            return None
        if self.request.hold_s:
            return max(0.0, self.heard_at_s + self.request.hold_s - now_s)
        return self.request.idle_s


class Hold:
    """A client's word that it is still giving a job its list; `Warmer.hold`."""

    def __init__(self, job: WarmJob, clock: Clock) -> None:
        """Hold a job from now on."""
        self._job = job
        self._clock = clock
        self._is_held = True
        job.holds += 1
        job.news.set()

    async def ended(self) -> None:
        """Wait until there is nothing to hold the job for: it takes no more names, or the gateway is stopping."""
        await self._job.released.wait()

    def release(self) -> None:
        """Let go; idempotent."""
        if self._is_held:
            self._is_held = False
            self._job.holds -= 1
            self._job.heard_at_s = self._clock.monotonic_s()
            self._job.news.set()
