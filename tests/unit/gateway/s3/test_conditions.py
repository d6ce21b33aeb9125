import itertools

import pytest

from gateway.s3.conditions import (
    UNCONDITIONAL,
    Outcome,
    copy_source_conditions,
    evaluate,
    if_range_holds,
    read_conditions,
)

ETAG = "d41d8cd98f00b204e9800998ecf8427e"
LAST_MODIFIED_S = 784111777
BEFORE = "Sun, 06 Nov 1994 08:49:36 GMT"
SAME = "Sun, 06 Nov 1994 08:49:37 GMT"
AFTER = "Sun, 06 Nov 1994 08:49:38 GMT"

PASS = Outcome.PASS
NOT_MODIFIED = Outcome.NOT_MODIFIED
FAILED = Outcome.PRECONDITION_FAILED


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({"if-match": f'"{ETAG}"'}, PASS),
        ({"if-match": ETAG}, PASS),
        ({"if-match": "*"}, PASS),
        ({"if-match": f'"other", "{ETAG}"'}, PASS),
        ({"if-match": '"other"'}, FAILED),
        ({"if-match": f'W/"{ETAG}"'}, FAILED),
        ({"if-match": ""}, FAILED),
        ({"if-none-match": f'"{ETAG}"'}, NOT_MODIFIED),
        ({"if-none-match": ETAG}, NOT_MODIFIED),
        ({"if-none-match": f'W/"{ETAG}"'}, NOT_MODIFIED),
        ({"if-none-match": "*"}, NOT_MODIFIED),
        ({"if-none-match": f'"a" ,"{ETAG}"'}, NOT_MODIFIED),
        ({"if-none-match": '"other"'}, PASS),
        ({"if-modified-since": BEFORE}, PASS),
        ({"if-modified-since": SAME}, NOT_MODIFIED),
        ({"if-modified-since": AFTER}, NOT_MODIFIED),
        ({"if-modified-since": "no date"}, PASS),
        ({"if-unmodified-since": BEFORE}, FAILED),
        ({"if-unmodified-since": SAME}, PASS),
        ({"if-unmodified-since": AFTER}, PASS),
        ({"if-unmodified-since": "no date"}, PASS),
        ({"if-match": ETAG, "if-unmodified-since": BEFORE}, PASS),
        ({"if-match": "other", "if-unmodified-since": AFTER}, FAILED),
        ({"if-none-match": ETAG, "if-modified-since": BEFORE}, NOT_MODIFIED),
        ({"if-none-match": "other", "if-modified-since": AFTER}, PASS),
        ({"if-match": ETAG, "if-none-match": ETAG}, NOT_MODIFIED),
        ({"if-match": "other", "if-none-match": ETAG}, FAILED),
    ],
)
def test_evaluate_decides_as_rfc_9110_and_aws_when_a_read_is_conditional(
    headers: dict[str, str], outcome: Outcome
) -> None:
    """B33, B34: order, precedence and whole seconds of conditional GET and HEAD."""
    assert evaluate(read_conditions(headers), ETAG, LAST_MODIFIED_S) is outcome


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({"x-amz-copy-source-if-match": ETAG}, PASS),
        ({"x-amz-copy-source-if-match": "other"}, FAILED),
        ({"x-amz-copy-source-if-none-match": ETAG}, FAILED),
        ({"x-amz-copy-source-if-modified-since": SAME}, FAILED),
        ({"x-amz-copy-source-if-unmodified-since": BEFORE}, FAILED),
        ({"x-amz-copy-source-if-match": ETAG, "x-amz-copy-source-if-unmodified-since": BEFORE}, PASS),
        ({"x-amz-copy-source-if-none-match": "other", "x-amz-copy-source-if-modified-since": AFTER}, PASS),
        ({"if-none-match": ETAG}, PASS),
    ],
)
def test_evaluate_never_says_not_modified_when_the_condition_is_of_a_copy(
    headers: dict[str, str], outcome: Outcome
) -> None:
    """A copy whose source is not what was asked for fails with 412, and looks at its own headers only."""
    assert evaluate(copy_source_conditions(headers), ETAG, LAST_MODIFIED_S) is outcome


def test_read_conditions_says_so_when_there_is_none() -> None:
    """A request without a condition, or with a date that is none, is unconditional."""
    assert read_conditions({"range": "bytes=0-1"}) is UNCONDITIONAL
    assert read_conditions({"if-modified-since": "soon"}).is_empty
    assert not read_conditions({"if-match": "*"}).is_empty


@pytest.mark.parametrize(
    ("header", "holds"),
    [
        (None, True),
        (f'"{ETAG}"', True),
        (ETAG, True),
        ('"other"', False),
        (f'W/"{ETAG}"', False),
        (SAME, True),
        (BEFORE, False),
        (AFTER, False),
        ("other", False),
    ],
)
def test_if_range_holds_only_when_it_names_this_version(header: str | None, holds: bool) -> None:
    """A range of a version the client does not have is never sent as if it were of its own."""
    assert if_range_holds(header, ETAG, LAST_MODIFIED_S) is holds


ETAGS = [None, f'"{ETAG}"', '"other"', "*", f'"other", "{ETAG}"']
DATES = [None, BEFORE, SAME, AFTER, "no date"]


@pytest.mark.parametrize("if_match", ETAGS)
@pytest.mark.parametrize("if_none_match", ETAGS)
def test_evaluate_decides_as_the_table_says_when_any_conditions_meet(
    if_match: str | None, if_none_match: str | None
) -> None:
    """B33: all 625 meetings of the four headers, against RFC 9110 section 13.2.2 written down step by step."""
    names = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
    for modified, unmodified in itertools.product(DATES, DATES):
        sent = dict(zip(names, (if_match, if_none_match, modified, unmodified), strict=True))
        headers = {name: value for name, value in sent.items() if value is not None}

        # Step 1 and 2: If-Match, or else If-Unmodified-Since; steps 3 and 4: If-None-Match, or else If-Modified-Since.
        is_refused = if_match == '"other"' if if_match is not None else unmodified == BEFORE
        is_known = if_none_match != '"other"' if if_none_match is not None else modified in {SAME, AFTER}
        expected = FAILED if is_refused else NOT_MODIFIED if is_known else PASS

        assert evaluate(read_conditions(headers), ETAG, LAST_MODIFIED_S) is expected, headers
