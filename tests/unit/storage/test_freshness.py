"""When a cached version may be served, by state, mode, age and epoch."""

import pytest
from hypothesis import given, strategies as st

from storage.freshness import (
    NO_EPOCH_TRUSTED,
    Verdict,
    as_shown,
    judge,
    may_serve_stale,
    standing,
)
from storage.policy import Freshness, FreshnessMode
from storage.records import ObjectRecord, ObjectState, Validated

TTL = Freshness(FreshnessMode.TTL, ttl_s=60.0, stale_s=3600.0)
ALWAYS = Freshness(FreshnessMode.ALWAYS)
IMMUTABLE = Freshness(FreshnessMode.IMMUTABLE)


def record(state: ObjectState = ObjectState.CLEAN, epoch: int = 5) -> ObjectRecord:
    """A version validated at wall time 1000."""
    return ObjectRecord(1, 1, 10, "e", 900, state, None, Validated(1000.0, epoch))


@pytest.mark.parametrize(
    ("freshness", "now_s", "expected"),
    [
        (TTL, 1000.0, Verdict.FRESH),
        (TTL, 1059.9, Verdict.FRESH),
        (TTL, 1060.0, Verdict.VALIDATE),
        (TTL, 999.9, Verdict.VALIDATE),
        (Freshness(ttl_s=0.0), 1000.0, Verdict.VALIDATE),
        (ALWAYS, 1000.0, Verdict.VALIDATE),
        (IMMUTABLE, 1e9, Verdict.FRESH),
        (IMMUTABLE, 0.0, Verdict.FRESH),
    ],
)
def test_clean_version_is_fresh_when_younger_than_its_ttl(
    freshness: Freshness, now_s: float, expected: Verdict
) -> None:
    """A negative age, after the clock went back, is stale; immutable is fresh at any age."""
    assert judge(record(), freshness, now_s, trusted_epoch=5) is expected


@pytest.mark.parametrize("state", [ObjectState.DIRTY, ObjectState.QUARANTINED])
@pytest.mark.parametrize("freshness", [TTL, ALWAYS, IMMUTABLE])
def test_own_write_is_fresh_when_the_origin_does_not_hold_it(
    state: ObjectState, freshness: Freshness
) -> None:
    """What was acknowledged is the truth, whatever the policy, the clock and the epoch say."""
    own = record(state, epoch=0)

    assert judge(own, freshness, 0.0, trusted_epoch=9) is Verdict.FRESH
    assert may_serve_stale(own, freshness, 0.0, trusted_epoch=9)


def test_version_of_an_untrusted_epoch_is_validated_when_not_immutable() -> None:
    """After an unclean stop each clean version is validated before its first use and covers for nothing until then."""
    old = record(epoch=4)

    assert judge(old, TTL, 1000.0, trusted_epoch=5) is Verdict.VALIDATE
    assert judge(old, IMMUTABLE, 1000.0, trusted_epoch=5) is Verdict.FRESH
    assert not may_serve_stale(old, TTL, 1000.0, trusted_epoch=5)
    assert may_serve_stale(old, IMMUTABLE, 1000.0, trusted_epoch=5)


@pytest.mark.parametrize(
    ("freshness", "now_s", "expected"),
    [
        (TTL, 1000.0, True),
        (TTL, 4659.9, True),
        (TTL, 4660.0, False),
        (TTL, 999.9, False),
        (ALWAYS, 1000.0, False),
        (IMMUTABLE, 1e9, True),
    ],
)
def test_stale_version_covers_for_the_origin_when_within_its_limit(
    freshness: Freshness, now_s: float, expected: bool
) -> None:
    """At most stale_s past the ttl; always never, immutable without limit."""
    assert may_serve_stale(record(), freshness, now_s, trusted_epoch=5) is expected


@pytest.mark.parametrize("freshness", [TTL, IMMUTABLE])
def test_version_that_is_doubted_is_validated_whatever_the_policy(freshness: Freshness) -> None:
    """What may have been changed after its validation is asked for again, and covers for no failing origin."""
    assert judge(record(), freshness, 1000.0, 5, doubted_at_s=1000.0) is Verdict.VALIDATE
    assert not may_serve_stale(record(), freshness, 1000.0, 5, doubted_at_s=1000.0)
    assert judge(record(), freshness, 1000.0, 5, doubted_at_s=999.9) is Verdict.FRESH
    assert judge(record(ObjectState.DIRTY), freshness, 1000.0, 5, doubted_at_s=2000.0) is Verdict.FRESH
    assert may_serve_stale(record(), freshness, 1000.0, 5, doubted_at_s=0.0)


@pytest.mark.parametrize("mode", list(FreshnessMode))
def test_version_that_another_authority_was_shown_is_validated_whatever_the_policy(
    mode: FreshnessMode,
) -> None:
    """A negative epoch is no word of the origin to the gateway's own authority: neither fresh nor a cover."""
    freshness = Freshness(mode, 60, 600)
    shown = record(epoch=-5)

    assert judge(shown, freshness, 110.0, 0) is Verdict.VALIDATE
    assert not may_serve_stale(shown, freshness, 110.0, 0)
    assert as_shown(shown) == record(epoch=5)
    assert as_shown(record(epoch=5)) == record(epoch=5)


def test_own_write_is_fresh_to_everybody_who_is_asked_about_it_here() -> None:
    """What the origin does not hold was shown to nobody by it."""
    assert judge(record(ObjectState.DIRTY, epoch=-5), Freshness(), 110.0, 0) is Verdict.FRESH


@given(
    st.sampled_from(ObjectState),
    st.sampled_from([TTL, ALWAYS, IMMUTABLE, Freshness(ttl_s=0.0)]),
    st.sampled_from([-5, 0, 4, 5, 6]),
    st.sampled_from([0.0, 999.0, 1000.0, 1059.9, 1060.0, 1e9]),
    st.sampled_from([0, 5, NO_EPOCH_TRUSTED]),
    st.sampled_from([0.0, 999.0, 1000.0]),
)
def test_what_is_told_of_a_version_is_what_is_done_with_it(
    state: ObjectState,
    freshness: Freshness,
    epoch: int,
    now_s: float,
    trusted_epoch: int,
    doubted_at_s: float,
) -> None:
    """The reason is that of the verdict, and a time is told only of what is fresh until then."""
    version = record(state, epoch=epoch)

    told = standing(version, freshness, now_s, trusted_epoch, doubted_at_s)

    verdict = judge(version, freshness, now_s, trusted_epoch, doubted_at_s)
    assert told.is_fresh is (verdict is Verdict.FRESH)
    assert told.why
    if told.until_s:
        assert judge(version, freshness, told.until_s - 0.1, trusted_epoch, doubted_at_s) is Verdict.FRESH
        assert judge(version, freshness, told.until_s, trusted_epoch, doubted_at_s) is Verdict.VALIDATE
