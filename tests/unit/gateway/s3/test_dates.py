import pytest
from hypothesis import given, strategies as st

from gateway.s3.dates import http_date, iso8601, parse_amz_date, parse_http_date

NOVEMBER_1994_S = 784111777


def test_http_date_is_written_as_imf_fixdate() -> None:
    """The date of RFC 9110's example is written as the RFC writes it."""
    assert http_date(NOVEMBER_1994_S) == "Sun, 06 Nov 1994 08:49:37 GMT"


def test_iso8601_is_written_with_zero_milliseconds_when_seconds_have_a_fraction() -> None:
    """Listings show whole seconds, cut and not rounded, so that they agree with HEAD."""
    assert iso8601(784111777.999) == "1994-11-06T08:49:37.000Z"


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "sun, 6 nov 1994 08:49:37 gmt",
        " Sun, 06 Nov 1994 08:49:37 +0000 ",
    ],
)
def test_parse_http_date_reads_all_three_forms(text: str) -> None:
    """Each form of RFC 9110 section 5.6.7, and the small liberties clients take, is the same second."""
    assert parse_http_date(text) == NOVEMBER_1994_S


def test_parse_http_date_reads_a_two_digit_year_as_this_century_below_70() -> None:
    """A short year below 70 is of the 21st century."""
    assert parse_http_date("Tuesday, 06-Nov-29 08:49:37 GMT") == parse_http_date(
        "Tue, 06 Nov 2029 08:49:37 GMT"
    )


def test_parse_http_date_takes_a_leap_second() -> None:
    """The 60th second, which the grammar allows, counts as the one before it."""
    assert parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT") == 1483228799


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "Sun, 32 Nov 1994 08:49:37 GMT", "Sun, 06 Foo 1994 08:49:37 GMT", "Sun, 06 Nov 1994 24:49:37 GMT",
     "1994-11-06T08:49:37Z", "Sun, 06 Nov 1994 08:49:37 +0100", "Sun, 06 Nov 1994 08:49:37 GMT, x"],
)  # fmt: skip
def test_parse_http_date_gives_none_when_the_text_is_no_date(text: str) -> None:
    """What is no HTTP date is told apart, so that the condition can be ignored."""
    assert parse_http_date(text) is None


@given(st.integers(0, 253402300799))
def test_parse_http_date_reads_what_http_date_writes(seconds: int) -> None:
    """Every second up to the year 9999 survives the way out and in."""
    assert parse_http_date(http_date(seconds)) == seconds


def test_parse_amz_date_reads_the_form_of_signatures() -> None:
    """The date of AWS's signing examples is midnight of 24 May 2013."""
    assert parse_amz_date("20130524T000000Z") == 1369353600


@pytest.mark.parametrize(
    "text", ["", "20130524", "20131324T000000Z", "20130524T000000", "\uff120130524T000000Z"]
)
def test_parse_amz_date_gives_none_when_the_text_is_no_date(text: str) -> None:
    """Anything but the one form is no date, digits of other scripts with it."""
    assert parse_amz_date(text) is None
