"""The policy table and the values in it."""

import pytest

from storage.policy import ANY_BUCKET, POLICIES_MAX, Freshness, PoliciesInForce, Policy, PolicyTable
from storage.types import ObjectName

LOGS = Policy("data", "logs/")
DATA = Policy("data")
TEMPORARY = Policy(ANY_BUCKET, "tmp/")
DEFAULT = Policy(negative_ttl_s=1.0)


@pytest.mark.parametrize(
    ("bucket", "key", "expected"),
    [
        ("data", "logs/1", LOGS),
        ("data", "logs", DATA),
        ("data", "tmp/1", DATA),
        ("other", "tmp/1", TEMPORARY),
        ("other", "logs/1", DEFAULT),
        ("data", "", DATA),
    ],
)
def test_first_match_wins_when_several_policies_hold(bucket: str, key: str, expected: Policy) -> None:
    """The first of the list whose bucket and prefix match is found, else the default."""
    table = PolicyTable((LOGS, DATA, TEMPORARY), DEFAULT)

    assert table.find(ObjectName(bucket, key)) is expected


def test_policy_of_any_bucket_comes_first_when_listed_first() -> None:
    """Order in the list counts, not how exact a policy is."""
    table = PolicyTable((TEMPORARY, DATA))

    assert table.find(ObjectName("data", "tmp/x")) is TEMPORARY


def test_matches_says_what_the_table_says_of_a_policy_alone() -> None:
    """A policy by itself holds for its bucket, or any, and what begins with its prefix."""
    assert TEMPORARY.matches(ObjectName("data", "tmp/1"))
    assert LOGS.matches(ObjectName("data", "logs/"))
    assert not LOGS.matches(ObjectName("data", "log"))
    assert not LOGS.matches(ObjectName("other", "logs/"))


def test_policies_in_force_are_exchanged_whole() -> None:
    """Whoever asked for the table before goes on with that one."""
    in_force = PoliciesInForce(PolicyTable((LOGS,)))
    before = in_force()

    in_force.table = PolicyTable((DATA,))

    assert before.find(ObjectName("data", "logs/1")) is LOGS
    assert in_force().find(ObjectName("data", "logs/1")) is DATA


def test_default_is_the_gateways_own_when_none_is_given() -> None:
    """An empty table writes back and validates after a minute."""
    policy = PolicyTable().find(ObjectName("b", "k"))

    assert policy == Policy()
    assert policy.freshness == Freshness(ttl_s=60.0, stale_s=3600.0)


def test_table_is_refused_when_it_is_too_long() -> None:
    """The table is walked on each request, so its length has a bound."""
    with pytest.raises(ValueError, match="257"):
        PolicyTable((DATA,) * (POLICIES_MAX + 1))


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_time_is_refused_when_it_is_negative(value: float) -> None:
    """A policy that exists is valid, and the message names the setting."""
    with pytest.raises(ValueError, match="ttl_s"):
        Freshness(ttl_s=value)
    with pytest.raises(ValueError, match="stale_s"):
        Freshness(stale_s=value)
    with pytest.raises(ValueError, match="negative_ttl_s"):
        Policy(negative_ttl_s=value)
    with pytest.raises(ValueError, match="flush_delay_s"):
        Policy(flush_delay_s=value)
    with pytest.raises(ValueError, match="flush_deadline_s"):
        Policy(flush_deadline_s=value)


def test_policy_is_refused_when_it_contradicts_itself() -> None:
    """No bucket, and a deadline before the end of the delay, are refused."""
    with pytest.raises(ValueError, match="bucket"):
        Policy(bucket="")
    with pytest.raises(ValueError, match="before flush_delay_s"):
        Policy(flush_delay_s=10, flush_deadline_s=5)
