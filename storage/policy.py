"""What the operator decided for a bucket or prefix, and the table that finds it for an object.

Values only: `gateway/settings.py` parses and builds them, storage asks `PolicyTable.find` on each request.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from storage.types import ObjectName, WriteMode

POLICIES_MAX: Final = 256
"""The longest table; a request may compare its key with each prefix of its bucket."""

ANY_BUCKET: Final = "*"
"""As `Policy.bucket`: the policy holds in every bucket. No bucket can have this name."""


class FreshnessMode(StrEnum):
    """When a cached version that the origin has confirmed must be confirmed again."""

    TTL = "ttl"
    ALWAYS = "always"
    IMMUTABLE = "immutable"


class OnConflict(StrEnum):
    """What a flush does when another writer changed the object since the write was accepted."""

    OVERWRITE = "overwrite"
    QUARANTINE = "quarantine"


class RetentionPriority(StrEnum):
    """How much a cached byte is worth compared with one of another prefix when space is needed."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    PINNED = "pinned"
    """What is cached stays, as long as all that is pinned fits in `pinned_bytes_max`; what is above that is HIGH."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """How long a confirmed version may be served without asking, and how long when the origin fails.

    Attributes:
        ttl_s: With TTL, a version is fresh while younger than this; 0 asks each time. Other modes ignore it.
        stale_s: With TTL, how long past its ttl a version covers for a failing origin. ALWAYS never covers,
            IMMUTABLE does without limit.
    """

    mode: FreshnessMode = FreshnessMode.TTL
    ttl_s: float = 60.0
    stale_s: float = 3600.0

    def __post_init__(self) -> None:
        _require_not_negative("ttl_s", self.ttl_s)
        _require_not_negative("stale_s", self.stale_s)


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of one bucket and prefix; the defaults are those of the gateway.

    Attributes:
        bucket: The bucket's name, or ANY_BUCKET.
        prefix: The keys that begin with it; "" is the whole bucket.
        write: How a write is acknowledged where the request does not say and the bucket's facts allow it.
        negative_ttl_s: How long a 404 of the origin is believed; 0 asks each time.
        listing_ttl_s: How long a page of the origin's listing is believed; 0 asks each time.
        flush_delay_s: A write-back is held so long before it is sent, for keys that are soon overwritten.
        flush_deadline_s: So long after its acknowledgement a write-back gets priority; 0 without a deadline.
        release_after_flush: Bytes leave the disk once the origin has them (checkpoints that nobody reads again here).
        on_conflict: What the flush of a write-back does when another writer changed the object after it was accepted.
        published: What lies under the prefix is a published target: read-only, and switched as a whole.
    """

    bucket: str = ANY_BUCKET
    prefix: str = ""
    write: WriteMode = WriteMode.BACK
    freshness: Freshness = field(default_factory=Freshness)
    negative_ttl_s: float = 0.0
    listing_ttl_s: float = 0.0
    flush_delay_s: float = 0.0
    flush_deadline_s: float = 0.0
    on_conflict: OnConflict = OnConflict.OVERWRITE
    priority: RetentionPriority = RetentionPriority.NORMAL
    release_after_flush: bool = False
    published: bool = False

    def __post_init__(self) -> None:
        if not self.bucket:
            raise ValueError("a policy names a bucket, or * for all")
        _require_not_negative("negative_ttl_s", self.negative_ttl_s)
        _require_not_negative("listing_ttl_s", self.listing_ttl_s)
        _require_not_negative("flush_delay_s", self.flush_delay_s)
        _require_not_negative("flush_deadline_s", self.flush_deadline_s)
        if 0 < self.flush_deadline_s < self.flush_delay_s:
            raise ValueError(
                f"flush_deadline_s {self.flush_deadline_s} is before flush_delay_s {self.flush_delay_s}"
            )

    def matches(self, name: ObjectName) -> bool:
        """Whether the policy is about an object, were it the only one."""
        return self.bucket in {ANY_BUCKET, name.bucket} and name.key.startswith(self.prefix)


class PolicyTable:
    """Finds the policy of an object: the first of the list whose bucket and prefix match, else the default.

    Args:
        policies: In order of precedence, at most POLICIES_MAX.
        default: Holds where none matches; its own bucket and prefix are not looked at.

    Attributes:
        has_pins: Whether any policy pins what it is about.
    """

    def __init__(self, policies: tuple[Policy, ...] = (), default: Policy | None = None) -> None:
        if len(policies) > POLICIES_MAX:
            raise ValueError(f"{len(policies)} policies are more than {POLICIES_MAX}")
        self.policies: Final = policies
        self.default: Final = default or Policy()
        self.has_pins: Final = any(p.priority is RetentionPriority.PINNED for p in (*policies, self.default))
        # Made once for each bucket named, so that a request walks only prefixes that can match.
        self._any_bucket = _by_prefix(policies, ANY_BUCKET)
        self._by_bucket = {
            p.bucket: _by_prefix(policies, p.bucket) for p in policies if p.bucket != ANY_BUCKET
        }

    def find(self, name: ObjectName) -> Policy:
        """Give the policy of an object; for a bucket as a whole ask with the key ""."""
        key = name.key
        for prefix, policy in self._by_bucket.get(name.bucket, self._any_bucket):
            if key.startswith(prefix):
                return policy
        return self.default

    def listing_ttl_s(self, bucket: str, prefix: str) -> float:
        """Say how long a listing of a prefix is believed: the shortest time of all policies that hold for a key under it."""
        shortest = self.find(ObjectName(bucket, prefix)).listing_ttl_s
        if not shortest:
            return 0.0
        for longer, policy in self._by_bucket.get(bucket, self._any_bucket):
            if longer.startswith(prefix):
                shortest = min(shortest, policy.listing_ttl_s)
        return shortest


class PoliciesInForce:
    """The table that storage asks from request to request; a reload puts another one in its place, whole.

    What was queued for the flush keeps the times that its acknowledgement gave it.
    """

    def __init__(self, table: PolicyTable) -> None:
        self.table = table

    def __call__(self) -> PolicyTable:
        """Give the table in force."""
        return self.table


def _by_prefix(policies: tuple[Policy, ...], bucket: str) -> tuple[tuple[str, Policy], ...]:
    return tuple((p.prefix, p) for p in policies if p.bucket in {bucket, ANY_BUCKET})


def _require_not_negative(name: str, value: float) -> None:
    # Written so that a NaN, which every comparison refuses, is refused too.
    if not value >= 0:
        raise ValueError(f"{name} is {value}, but a time is not negative")
