"""May this cached version be served as it is, must the origin confirm it first, may it cover for a failing origin?

Time is the wall clock, since an age must survive a restart. That clock may jump: an age that comes out negative says
nothing about how old the version is, so it counts as stale and covers for nothing.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from storage.policy import Freshness, FreshnessMode
from storage.records import ObjectRecord, ObjectState

NO_EPOCH_TRUSTED: Final = 1 << 64
"""As `trusted_epoch`: every clean version is validated before its use, `immutable` excepted."""


class Verdict(Enum):
    """What to do with a cached version before it is served."""

    FRESH = auto()
    VALIDATE = auto()


def as_shown(record: ObjectRecord) -> ObjectRecord:
    """Give a record as it is to an authority that the origin lets read it: it does not matter whom it was shown to."""
    validated = record.validated
    if validated.epoch >= 0:
        return record
    return replace(record, validated=replace(validated, epoch=-validated.epoch))


def judge(
    record: ObjectRecord, freshness: Freshness, now_s: float, trusted_epoch: int, doubted_at_s: float = 0.0
) -> Verdict:
    """Say whether a version may be served at once or has to be validated with the origin.

    What the gateway acknowledged and the origin does not hold (dirty, quarantined) is the truth and always fresh. A version
    that the origin showed to another authority than the gateway's own (`Validated.epoch` is negative) has still to be shown to
    that one, whatever the policy; who asks for the other authority gives the record `as_shown`.

    Args:
        record: The version.
        freshness: The rule of its policy.
        now_s: Wall time.
        trusted_epoch: Clean versions last validated in an earlier process epoch are validated before their first use:
            the stop between was unclean, and what was written through just before it may be unknown here.
        doubted_at_s: So is what was validated up to this wall time, immutable or not: something may have changed any object of
            the bucket. 0 where nothing has.
    """
    if record.state is not ObjectState.CLEAN:
        return Verdict.FRESH
    if record.validated.epoch < 0 or is_doubted(record, doubted_at_s):
        return Verdict.VALIDATE
    if freshness.mode is FreshnessMode.IMMUTABLE:
        return Verdict.FRESH
    if freshness.mode is FreshnessMode.ALWAYS or record.validated.epoch < trusted_epoch:
        return Verdict.VALIDATE
    return Verdict.FRESH if 0 <= now_s - record.validated.wall_s < freshness.ttl_s else Verdict.VALIDATE


@dataclass(frozen=True, slots=True)
class Standing:
    """What `judge` says of a version, and why, for people; until when it is fresh, 0 where it is not or where that has no end."""

    is_fresh: bool
    why: str
    until_s: float = 0.0


def standing(  # noqa: PLR0911 - one arm a reason
    record: ObjectRecord, freshness: Freshness, now_s: float, trusted_epoch: int, doubted_at_s: float = 0.0
) -> Standing:
    """Say what `judge` says, and why."""
    if record.state is not ObjectState.CLEAN:
        return Standing(is_fresh=True, why="it was acknowledged here and is not at the origin yet")
    if record.validated.epoch < 0:
        return Standing(is_fresh=False, why="the origin has shown it to another key than the gateway's own")
    if is_doubted(record, doubted_at_s):
        return Standing(is_fresh=False, why="something passed through since may have changed it")
    if freshness.mode is FreshnessMode.IMMUTABLE:
        return Standing(is_fresh=True, why="the policy says immutable")
    if freshness.mode is FreshnessMode.ALWAYS:
        return Standing(is_fresh=False, why="the policy has the origin asked each time")
    if trusted_epoch == NO_EPOCH_TRUSTED:
        return Standing(
            is_fresh=False, why="the disk has failed, and nothing clean is trusted until it is re-opened"
        )
    if record.validated.epoch < trusted_epoch:
        return Standing(is_fresh=False, why="it was not confirmed since a stop that was not clean")
    age_s = now_s - record.validated.wall_s
    if age_s < 0:
        return Standing(is_fresh=False, why="the clock has gone back since it was confirmed")
    if age_s < freshness.ttl_s:
        until_s = record.validated.wall_s + freshness.ttl_s
        return Standing(is_fresh=True, why="it was confirmed within its time to live", until_s=until_s)
    return Standing(is_fresh=False, why="its time to live has passed since it was confirmed")


def is_doubted(record: ObjectRecord, doubted_at_s: float) -> bool:
    """Whether a clean version was validated no later than a wall time up to which nothing is trusted."""
    return 0.0 < doubted_at_s >= record.validated.wall_s


def may_serve_stale(
    record: ObjectRecord, freshness: Freshness, now_s: float, trusted_epoch: int, doubted_at_s: float = 0.0
) -> bool:
    """Say whether a version may be served while the origin does not answer (RFC 5861 section 4, stale-if-error).

    At most `stale_s` past the ttl; never with ALWAYS; without limit with IMMUTABLE. A version of an untrusted epoch
    covers for nothing: it may lie before a write of this gateway's own, which every reader has to see. Nor does one that is
    doubted.
    """
    if record.state is not ObjectState.CLEAN:
        return True
    if record.validated.epoch < 0 or is_doubted(record, doubted_at_s):
        return False
    if freshness.mode is FreshnessMode.IMMUTABLE:
        return True
    if freshness.mode is FreshnessMode.ALWAYS or record.validated.epoch < trusted_epoch:
        return False
    return 0 <= now_s - record.validated.wall_s < freshness.ttl_s + freshness.stale_s
