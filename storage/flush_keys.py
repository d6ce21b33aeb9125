"""What the FlushPlanner remembers of a key and of a bucket, and which state may follow which."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from storage.flush_events import FlushState
from storage.flush_strays import is_flushs
from storage.types import ObjectName

if TYPE_CHECKING:
    from storage.records import DirtyEntry

ATTEMPTED_MAX: Final = 16
"""So many attempts without an answer are remembered of one key, the newest ones."""

_S = FlushState

MAY_FOLLOW: Final[Mapping[FlushState | None, frozenset[FlushState]]] = MappingProxyType(
    {
        None: frozenset({_S.HELD, _S.QUEUED, _S.QUARANTINED}),
        _S.HELD: frozenset({_S.QUEUED}),
        _S.QUEUED: frozenset({_S.IN_FLIGHT}),
        _S.IN_FLIGHT: frozenset(
            {_S.HELD, _S.QUEUED, _S.WAITING_RETRY, _S.WAITING_CHECK, _S.CONFIRMING, _S.QUARANTINED}
        ),
        _S.WAITING_RETRY: frozenset({_S.HELD, _S.QUEUED}),
        _S.WAITING_CHECK: frozenset({_S.CHECKING, _S.HELD, _S.QUEUED}),
        _S.CHECKING: frozenset({_S.CONFIRMING, _S.WAITING_CHECK, _S.HELD, _S.QUEUED}),
        _S.CONFIRMING: frozenset({_S.HELD, _S.QUEUED}),
        _S.QUARANTINED: frozenset({_S.HELD, _S.QUEUED}),
    }
)
"""The states that may follow each; None is a new key. Any state but a busy one may end."""

BUSY: Final = frozenset({_S.IN_FLIGHT, _S.CHECKING, _S.CONFIRMING})
"""The driver is at work on the key and will answer; until then a newer change waits."""


class Flight:
    """One slot in use: a put, a HEAD, or a batch of deletes until its last line is settled."""

    __slots__ = ("is_urgent", "remaining")

    def __init__(self, remaining: int, *, is_urgent: bool) -> None:
        self.remaining = remaining
        self.is_urgent = is_urgent


class FlushKey:
    """One key with a change that is not confirmed.

    Attributes:
        entry: The newest change; None once it was given up while the driver was at work.
        since: The sequence of the first change since the last attempt: the key's age. A key that is overwritten again and
            again keeps its place in the queue.
        sent: The sequence the driver is at work on, or that waits for its check; None otherwise.
        attempted: Sequences of attempts without an answer that may yet land.
        attempted_at_s: When the last of them was given up.
        check_until_s: Not 0: an attempt from before an unclean stop may land until then.
        barriers: The barriers that wait for the key.
    """

    __slots__ = (
        "attempted",
        "attempted_at_s",
        "attempts",
        "barriers",
        "check_until_s",
        "deadline_at_s",
        "entry",
        "flight",
        "hold_until_s",
        "name",
        "reason",
        "sent",
        "since",
        "state",
    )

    def __init__(self, name: ObjectName) -> None:
        self.name = name
        self.entry: DirtyEntry | None = None
        self.since = 0
        self.state: FlushState | None = None
        self.sent: int | None = None
        self.flight: Flight | None = None
        self.attempted: tuple[int, ...] = ()
        self.attempted_at_s = 0.0
        self.check_until_s = 0.0
        self.attempts = 0
        self.reason = ""
        self.hold_until_s = 0.0
        self.deadline_at_s = float("inf")
        self.barriers: set[int] = set()

    def __repr__(self) -> str:
        newest = "given up" if self.entry is None else f"sequence {self.entry.sequence}"
        return f"<FlushKey {self.name}: {self.state and self.state.value}, {newest}, sent {self.sent}>"

    @property
    def is_busy(self) -> bool:
        """Whether the driver owes an answer."""
        return self.state in BUSY

    @property
    def has_unsent(self) -> bool:
        """Whether the newest change has not been part of the attempt under way."""
        return self.entry is not None and self.entry.sequence != self.sent

    @property
    def needs_check(self) -> bool:
        """Whether an earlier attempt may still land over the next success."""
        return bool(self.attempted) or self.check_until_s > 0

    @property
    def is_overtaken(self) -> bool:
        """Whether what the driver is at work on is no longer the newest change."""
        return self.entry is None or self.has_unsent

    def is_urgent(self, now_s: float) -> bool:
        """Whether somebody waits for the key, or its deadline is near."""
        return bool(self.barriers) or self.deadline_at_s <= now_s

    def began_before(self, up_to_sequence: int) -> bool:
        """Whether the key holds a change up to a sequence, which may have been merged into a newer one."""
        first = self.since if self.sent is None else min(self.since, self.sent)
        return self.entry is not None and first <= up_to_sequence

    def remember_attempt(self, sequence: int, now_s: float) -> None:
        """Note that an attempt had no answer."""
        self.attempted_at_s = now_s
        known = [attempt for attempt in self.attempted if attempt != sequence]
        self.attempted = (*known, sequence)[-ATTEMPTED_MAX:]

    def may_land_until_s(self, timeout_s: float) -> float:
        """Say until when an attempt of the flush may land that nothing will be sent behind; 0 where none may.

        A change that is to be sent has its attempts settled by its own success. One that was refused for good has not.
        """
        if self.state is not FlushState.QUARANTINED:
            return 0.0
        until_s = self.attempted_at_s + timeout_s if is_flushs(self.attempted) else 0.0
        return max(until_s, self.check_until_s)

    def forget_attempts(self) -> None:
        """Note that no attempt can land any more."""
        self.attempted, self.check_until_s = (), 0.0


class FlushBucket:
    """The keys of one bucket and its suspension.

    Attributes:
        outages: Attempts since the last one that the origin served.
        unserved: The keys of these attempts.
        is_away: It is suspended since the origin serves nobody, which ends without anybody's help.
    """

    __slots__ = (
        "flights",
        "is_away",
        "is_suspended",
        "keys",
        "name",
        "outages",
        "probe",
        "probe_is_due",
        "reason",
        "suspensions",
        "unserved",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys: dict[str, FlushKey] = {}
        self.flights = 0
        self.outages = 0
        self.unserved: set[FlushKey] = set()
        self.is_away = False
        self.is_suspended = False
        self.reason = ""
        self.suspensions = 0
        self.probe: FlushKey | None = None
        self.probe_is_due = False

    @property
    def is_stuck(self) -> bool:
        """Whether nothing will happen in the bucket without help: the origin refuses it, and no probe is due."""
        return self.is_suspended and not self.is_away and not self.flights and not self.probe_is_due
