"""Conditions of writes, held against what is there."""

import pytest

from storage.write_conditions import Seen, Verdict, read_write_conditions

HOLDS, FAILED, MISSING = Verdict.HOLDS, Verdict.FAILED, Verdict.MISSING
THERE = Seen("aa", "origin-aa", 5, 1_700_000_000)
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"
OTHER_DATE = "Tue, 14 Nov 2023 22:13:21 GMT"


@pytest.mark.parametrize(
    ("headers", "over_object", "over_nothing"),
    [
        ({"if-none-match": "*"}, FAILED, HOLDS),
        ({"if-none-match": '"aa"'}, FAILED, HOLDS),
        ({"if-none-match": 'W/"aa"'}, FAILED, HOLDS),
        ({"if-none-match": '"bb"'}, HOLDS, HOLDS),
        ({"if-match": "*"}, HOLDS, MISSING),
        ({"if-match": '"aa"'}, HOLDS, MISSING),
        ({"if-match": "aa"}, HOLDS, MISSING),
        ({"if-match": '"origin-aa"'}, HOLDS, MISSING),
        ({"if-match": '"bb", "aa"'}, HOLDS, MISSING),
        ({"if-match": 'W/"aa"'}, FAILED, MISSING),
        ({"if-match": '"bb"'}, FAILED, MISSING),
        ({"if-match": ""}, FAILED, MISSING),
        ({"if-match": '"aa"', "if-none-match": '"aa"'}, FAILED, MISSING),
        ({"x-amz-if-match-size": "5"}, HOLDS, HOLDS),
        ({"x-amz-if-match-size": "6"}, FAILED, HOLDS),
        ({"x-amz-if-match-size": "five"}, FAILED, HOLDS),
        ({"x-amz-if-match-last-modified-time": DATE}, HOLDS, HOLDS),
        ({"x-amz-if-match-last-modified-time": OTHER_DATE}, FAILED, HOLDS),
        ({"x-amz-if-match-last-modified-time": "yesterday"}, FAILED, HOLDS),
        ({"if-match": '"aa"', "x-amz-if-match-size": "6"}, FAILED, MISSING),
    ],
)
def test_verdict(headers: dict[str, str], over_object: Verdict, over_nothing: Verdict) -> None:
    """AWS: If-Match asks for an object, 404 without one; If-None-Match for none; size and date hold where there is none."""
    conditions = read_write_conditions(headers.items())

    assert not conditions.is_empty
    assert (conditions.judge(THERE), conditions.judge(None)) == (over_object, over_nothing)


def test_a_write_without_conditions_asks_nobody() -> None:
    """Dates are the origin's: S3 knows them for reads only."""
    assert read_write_conditions((("if-unmodified-since", DATE), ("x-amz-acl", "private"))).is_empty


@pytest.mark.parametrize(
    ("headers", "seen", "handed_on"),
    [
        ({"if-none-match": "*"}, None, (("if-none-match", "*"),)),
        ({"if-none-match": '"bb"'}, THERE, (("if-none-match", '"bb"'),)),
        ({"if-match": "*"}, THERE, (("if-match", '"origin-aa"'),)),
        ({"if-match": '"bb", "aa"'}, THERE, (("if-match", '"origin-aa"'),)),
        ({"x-amz-if-match-size": "5"}, THERE, (("if-match", '"origin-aa"'),)),
        ({"x-amz-if-match-size": "5"}, None, ()),
    ],
)
def test_the_origin_is_asked_for_the_object_that_was_judged(
    headers: dict[str, str], seen: Seen | None, handed_on: tuple[tuple[str, str], ...]
) -> None:
    """By its own ETag, which every origin that knows conditions understands."""
    assert read_write_conditions(headers.items()).handed_on(seen) == handed_on
