"""How grants are written, and what they cover."""

import pytest

from gateway.grants import EVERYTHING, NOTHING, Access, Grant, Right, parse_grant


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("read s3://data", Grant("data", "", frozenset({Right.READ}))),
        ("read s3://data/*", Grant("data", "", frozenset({Right.READ}))),
        ("read,write s3://data/in/*", Grant("data", "in/", frozenset({Right.READ, Right.WRITE}))),
        ("admin s3://team-*", Grant("team-*", "", frozenset({Right.ADMIN}))),
        (" write   s3://*/a b,c/* ", Grant("*", "a b,c/", frozenset({Right.WRITE}))),
    ],
)
def test_a_grant_is_read_when_it_is_well_written(text: str, grant: Grant) -> None:
    """Rights, a bucket or the beginning of one, and what keys begin with."""
    assert parse_grant(text) == grant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "read",
        "s3://data",
        "reads s3://data",
        "read, write s3://data",
        "READ s3://data",
        "read data",
        "read s3://",
        "read s3:///x*",
        "read s3://d*ta/*",
        "read s3://data/in",
        "read s3://data/in/",
        "read s3://data/*/x",
        "read s3://data/**",
        "read s3://data/* s3://other/*",
    ],
)
def test_a_grant_is_refused_when_it_could_be_meant_otherwise(text: str) -> None:
    """What is no grant is an error: a prefix without its star could be one key, or all below it."""
    with pytest.raises(ValueError, match=r"."):
        parse_grant(text)


@pytest.mark.parametrize(
    ("grants", "right", "bucket", "start", "is_allowed"),
    [
        (["read s3://data"], Right.READ, "data", "k", True),
        (["read s3://data"], Right.READ, "data", "", True),
        (["read s3://data"], Right.WRITE, "data", "k", False),
        (["read s3://data"], Right.READ, "data2", "k", False),
        (["read s3://data"], Right.READ, "dat", "k", False),
        (["read s3://data/in/*"], Right.READ, "data", "in/k", True),
        (["read s3://data/in/*"], Right.READ, "data", "in/", True),
        (["read s3://data/in/*"], Right.READ, "data", "in", False),
        (["read s3://data/in/*"], Right.READ, "data", "", False),
        (["read s3://data/in/*"], Right.READ, "data", "IN/k", False),
        (["read s3://data/in/*"], Right.READ, "data", "in/../k", True),
        (["write s3://team-*"], Right.WRITE, "team-a", "k", True),
        (["write s3://team-*"], Right.WRITE, "team", "k", False),
        (["admin s3://*"], Right.ADMIN, "any", "", True),
        (["admin s3://*"], Right.READ, "any", "", False),
        (["read s3://data/a/*", "write s3://data/b/*"], Right.WRITE, "data", "a/k", False),
        (["read s3://data/a/*", "read s3://data/b/*"], Right.READ, "data", "b/k", True),
        ([], Right.READ, "data", "k", False),
    ],
)
def test_a_right_is_held_when_a_grant_covers_all_that_is_asked_for(
    grants: list[str], right: Right, bucket: str, start: str, *, is_allowed: bool
) -> None:
    """No right includes another, no bucket another of a similar name, no prefix what stands above it."""
    assert Access(tuple(map(parse_grant, grants))).allows(right, bucket, start) is is_allowed


def test_everything_and_nothing_are_what_they_say() -> None:
    """A key without a list may do all, one with an empty list nothing."""
    for right in Right:
        assert EVERYTHING.allows(right, "any", "")
        assert not NOTHING.allows(right, "any", "k")
    assert (EVERYTHING.holds_any("any"), NOTHING.holds_any("any")) == (True, False)


def test_a_bucket_is_seen_when_anything_in_it_is_granted() -> None:
    """Some right on some of its keys is enough to know that a bucket is there; another right is not that right."""
    access = Access((parse_grant("write s3://data/in/*"),))

    assert access.holds_any("data")
    assert access.holds_any("data", Right.WRITE)
    assert not access.holds_any("data", Right.READ)
    assert not access.holds_any("other")
