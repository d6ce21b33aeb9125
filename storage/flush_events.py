"""What can be said to the FlushPlanner and what it says: events in, instructions out.

The driver (`flusher.py`) turns each instruction into work whose outcome is the next event. Every StartFlush and every sequence
of a StartDeletes is answered by exactly one FlushSucceeded, FlushFailed or FlushSkipped; CheckByHead by one HeadChecked;
Confirm by one Confirmed. `now_s` of the planner is monotonic; `wall_s` where it stands is the wall clock.
"""

from enum import Enum
from typing import Final

import msgspec

from storage.records import DirtyEntry
from storage.types import ObjectName, Priority

STRAY: Final = 0
"""Stands for the sequence of an attempt that was not the flush's own; no change has it."""


class FlushState(Enum):
    """Where a key's newest dirty state stands."""

    __hash__ = object.__hash__  # each member is one object; the hash of Enum is looked up by name, in Python

    HELD = "held"
    """Waits out its flush delay, since it may soon be overwritten."""
    QUEUED = "queued"
    """May be sent when its turn comes and its bucket is not suspended."""
    IN_FLIGHT = "in flight"
    """An attempt is under way, perhaps of a state that has been replaced meanwhile."""
    WAITING_RETRY = "waiting for a retry"
    WAITING_CHECK = "waiting for a check"
    """The origin has accepted it, but an earlier attempt without an answer may still land."""
    CHECKING = "checking"
    """The HEAD that settles this is under way."""
    CONFIRMING = "confirming"
    """It is at the origin; the journal is to hold that before it counts."""
    QUARANTINED = "quarantined"
    """The origin refused it for good. It stays until it is replaced, discarded or retried on command."""


class FailureKind(Enum):
    """What a failed attempt means for what comes next."""

    RETRY = "retry"
    """The attempt did not take effect; the same may succeed later."""
    THROTTLE = "throttle"
    """The same, and the origin asks for less."""
    REFUSE = "refuse"
    """The origin will not take this object as it is, however often it is asked."""
    SUSPEND_BUCKET = "suspend bucket"
    """The refusal concerns the bucket or the credentials: nothing in the bucket would fare better."""
    UNKNOWN_OUTCOME = "unknown outcome"
    """There was no answer: the attempt may have taken effect, or may yet."""


class HeadResult(Enum):
    """What a HEAD says of a key whose newest state was accepted after an attempt without an answer."""

    OURS = "ours"
    """The newest state is there."""
    SUPERSEDED = "superseded"
    """A superseded attempt of ours landed over it: the newest is to be sent again."""
    OTHER = "other"
    """Another writer's object is there, and stays."""
    FAILED = "failed"
    """The HEAD itself had no usable answer."""


class Scope(msgspec.Struct, frozen=True, gc=False):
    """Which keys something concerns.

    Attributes:
        bucket: "" for all buckets.
        prefix: Keys that begin with it, or the one key that it is.
    """

    bucket: str = ""
    prefix: str = ""
    is_one_key: bool = False

    def __post_init__(self) -> None:
        if not self.bucket and (self.prefix or self.is_one_key):
            raise ValueError("a prefix or key is of a bucket")

    def __contains__(self, name: ObjectName) -> bool:
        if self.bucket and name.bucket != self.bucket:
            return False
        return name.key == self.prefix if self.is_one_key else name.key.startswith(self.prefix)


class FlushSettings(msgspec.Struct, frozen=True, gc=False):
    """The bounds of the flush; all times in seconds.

    Attributes:
        concurrency: Slots: puts, batches of deletes and HEADs under way at once.
        origin_timeout_s: After so long an attempt without an answer does not land any more.
        deadline_lead_s: A change is urgent so long before its deadline.
        deletes_max: Tombstones in one StartDeletes (AWS API_DeleteObjects allows 1000).
        away_after: So many attempts in a row that the origin did not serve, and a bucket's origin counts as away.
        away_probe_s_max: The longest interval of probes, and of retries, while it does.
    """

    concurrency: int = 6
    origin_timeout_s: float = 60.0
    retry_s_min: float = 1.0
    retry_s_max: float = 120.0
    probe_s_min: float = 5.0
    probe_s_max: float = 300.0
    deadline_lead_s: float = 5.0
    deletes_max: int = 1000
    away_after: int = 12
    away_probe_s_max: float = 30.0

    def __post_init__(self) -> None:
        if self.concurrency < 1 or not 1 <= self.deletes_max <= 1000:
            raise ValueError(f"no flush can work with {self}")


class FlushStatus(msgspec.Struct, frozen=True, gc=False):
    """What is not at the origin yet. Pending does not count what is quarantined.

    Attributes:
        oldest_acknowledged_at_s: Wall time of the oldest pending change; None where nothing is pending.
    """

    pending_objects: int
    pending_bytes: int
    oldest_acknowledged_at_s: float | None
    quarantined_objects: int
    quarantined_bytes: int
    slots_used: int
    suspended_buckets: tuple[str, ...]


# --- Events ------------------------------------------------------------------------------------------------------------


class DirtyAdded(msgspec.Struct, frozen=True, gc=False):
    """A change was acknowledged, or read back at the start; it replaces the key's earlier one. Sequences ascend."""

    entry: DirtyEntry
    wall_s: float


class DirtyRemoved(msgspec.Struct, frozen=True, gc=False):
    """A change was given up: discarded on command, or replaced by a write that was passed through. Unknown ones are ignored."""

    sequence: int


class FlushSucceeded(msgspec.Struct, frozen=True, gc=False):
    """The origin confirmed an attempt (status, ETag or digest, no error inside a 200)."""

    sequence: int


class FlushSkipped(msgspec.Struct, frozen=True, gc=False):
    """Nothing was sent, because the state was no longer the key's newest when its turn came."""

    sequence: int


class FlushFailed(msgspec.Struct, frozen=True, gc=False):
    """An attempt failed.

    Attributes:
        reason: For the operator; one line.
        jitter: Drawn uniformly from [0, 1).
        retry_after_s: What the origin asked for; 0 without.
        is_outage: The origin could not be reached or could not serve: it says nothing of the object.
    """

    sequence: int
    kind: FailureKind
    reason: str
    jitter: float
    retry_after_s: float = 0.0
    is_outage: bool = False


class NewestTaken(msgspec.Struct, frozen=True, gc=False):
    """The turn of a key was long in coming, and its newest change is sent instead of the one that was asked for.

    Every later event of the attempt names `newest`, which is the planner's newest too.
    """

    sequence: int
    newest: int


class HeadChecked(msgspec.Struct, frozen=True, gc=False):
    """The answer to CheckByHead; `jitter` is drawn uniformly from [0, 1)."""

    sequence: int
    result: HeadResult
    jitter: float


class Confirmed(msgspec.Struct, frozen=True, gc=False):
    """The journal holds the confirmation, synced. Also sent where there was nothing left to confirm."""

    sequence: int


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time passed; sent at the time of WakeAt."""


class BarrierAdded(msgspec.Struct, frozen=True, gc=False):
    """Somebody waits until all changes in scope up to a sequence are at the origin. The id is new."""

    barrier_id: int
    scope: Scope
    up_to_sequence: int


class BarrierCancelled(msgspec.Struct, frozen=True, gc=False):
    """Nobody waits any more; unknown ids are ignored. What was raised for it stays raised."""

    barrier_id: int


class StrayNoted(msgspec.Struct, frozen=True, gc=False):
    """Something was sent under a key outside of the flush, and may yet take effect: a write passed through without an answer."""

    name: ObjectName


class DrainStarted(msgspec.Struct, frozen=True, gc=False):
    """Flush all as soon as possible, delays or not; from now on nothing is held."""


class RetryQuarantined(msgspec.Struct, frozen=True, gc=False):
    """The operator wants the quarantined changes in scope tried again."""

    scope: Scope


class BucketProbeResult(msgspec.Struct, frozen=True, gc=False):
    """Something outside the flush showed that a bucket takes writes again (`is_open`), or that it does not."""

    bucket: str
    is_open: bool
    reason: str
    jitter: float


Event = (
    DirtyAdded
    | DirtyRemoved
    | FlushSucceeded
    | FlushSkipped
    | FlushFailed
    | NewestTaken
    | HeadChecked
    | Confirmed
    | Tick
    | BarrierAdded
    | BarrierCancelled
    | StrayNoted
    | DrainStarted
    | RetryQuarantined
    | BucketProbeResult
)


# --- Instructions ------------------------------------------------------------------------------------------------------


class StartFlush(msgspec.Struct, frozen=True, gc=False):
    """Send the put of this sequence.

    Attributes:
        needs_followup_head: An earlier attempt may still land: the success will be checked, so the digest is to be kept.
    """

    sequence: int
    priority: Priority
    needs_followup_head: bool


class StartDeletes(msgspec.Struct, frozen=True, gc=False):
    """Send these tombstones, all of one bucket and of different keys; each is answered by its own event."""

    bucket: str
    sequences: tuple[int, ...]
    priority: Priority


class CheckByHead(msgspec.Struct, frozen=True, gc=False):
    """Look what the origin has under the key.

    Attributes:
        attempted: Sequences whose attempts may have landed, oldest first, this one's last; STRAY for one of unknown content.
        is_from_before: Attempts of the process before an unclean stop may have landed too; nothing is known of them.
    """

    sequence: int
    attempted: tuple[int, ...]
    is_from_before: bool = False


class Confirm(msgspec.Struct, frozen=True, gc=False):
    """Commit that the origin has the change.

    Attributes:
        is_overtaken: Another writer's object is there now; what is cached of the key is not to be trusted.
    """

    sequence: int
    is_overtaken: bool = False


class Quarantine(msgspec.Struct, frozen=True, gc=False):
    """Commit that the origin refused the change for good."""

    sequence: int
    reason: str


class Release(msgspec.Struct, frozen=True, gc=False):
    """Commit that a quarantined change is tried again."""

    sequence: int


class BarrierReached(msgspec.Struct, frozen=True, gc=False):
    """All that the barrier waited for is at the origin, or was given up."""

    barrier_id: int


class Remaining(msgspec.Struct, frozen=True, gc=False):
    """One key that keeps a barrier from being reached, and why."""

    name: ObjectName
    sequence: int
    state: FlushState
    reason: str


class BarrierBlocked(msgspec.Struct, frozen=True, gc=False):
    """What is left of the barrier will not get to the origin without help. The barrier is over.

    Attributes:
        count: How many keys are left.
        remaining: The first of them.
    """

    barrier_id: int
    count: int
    remaining: tuple[Remaining, ...]


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Send a Tick at this time, instead of the one asked for before."""

    time_s: float


Instruction = (
    StartFlush
    | StartDeletes
    | CheckByHead
    | Confirm
    | Quarantine
    | Release
    | BarrierReached
    | BarrierBlocked
    | WakeAt
)
