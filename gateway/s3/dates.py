"""Dates as S3 writes and reads them: HTTP dates, ISO 8601 in documents, the x-amz-date of signatures.

All are whole seconds since the epoch, in UTC. Written without the standard library's e-mail and locale code: a warm GET
formats a date, and `strftime` would follow the machine's language.
"""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

_WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH_NUMBERS: Final = {name.lower(): number for number, name in enumerate(_MONTHS, start=1)}

_DATES_KEPT: Final = 4096
"""So many formatted dates are remembered: about one a warm object, 0.5 MiB at most."""

# RFC 9110 section 5.6.7. A recipient must read all three forms; the weekday is not compared with the date.
_IMF_FIXDATE: Final = re.compile(
    r"[a-z]{3}, (?P<day>\d{1,2}) (?P<month>[a-z]{3}) (?P<year>\d{4}) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) (?:GMT|UTC|[+-]0000)",
    re.ASCII | re.IGNORECASE,
)
_RFC_850: Final = re.compile(
    r"[a-z]{6,9}, (?P<day>\d\d)-(?P<month>[a-z]{3})-(?P<year>\d\d) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) GMT",
    re.ASCII | re.IGNORECASE,
)
_ASCTIME: Final = re.compile(
    r"[a-z]{3} (?P<month>[a-z]{3}) (?P<day>[\d ]\d) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) (?P<year>\d{4})",
    re.ASCII | re.IGNORECASE,
)
_AMZ_DATE: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)


@lru_cache(maxsize=_DATES_KEPT)
def http_date(seconds: int) -> str:
    """Write an IMF-fixdate such as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 section 5.6.7)."""
    t = datetime.fromtimestamp(seconds, UTC)
    return (
        f"{_WEEKDAYS[t.weekday()]}, {t.day:02d} {_MONTHS[t.month - 1]} {t.year:04d} "
        f"{t.hour:02d}:{t.minute:02d}:{t.second:02d} GMT"
    )


def iso8601(seconds: float) -> str:
    """Write `2009-10-12T17:50:30.000Z` as S3's documents do: a fraction is cut, so that LIST agrees with HEAD."""
    t = datetime.fromtimestamp(int(seconds), UTC)
    return f"{t.year:04d}-{t.month:02d}-{t.day:02d}T{t.hour:02d}:{t.minute:02d}:{t.second:02d}.000Z"


def parse_http_date(text: str) -> int | None:
    """Read an HTTP date in any of its three forms; None where it is none, which a condition then ignores.

    The two-digit year of the RFC 850 form counts as 1970 to 2069, so that reading needs no clock.
    """
    text = text.strip()
    match = _IMF_FIXDATE.fullmatch(text) or _RFC_850.fullmatch(text) or _ASCTIME.fullmatch(text)
    if match is None or (month := _MONTH_NUMBERS.get(match["month"].lower())) is None:
        return None
    year = int(match["year"])
    if len(match["year"]) == 2:
        year += 1900 if year >= 70 else 2000
    # A leap second is allowed by the grammar and unknown to datetime.
    second = 59 if match["second"] == "60" else int(match["second"])
    return _seconds(year, month, int(match["day"]), (int(match["hour"]), int(match["minute"]), second))


def parse_amz_date(text: str) -> int | None:
    """Read an x-amz-date such as `20130524T000000Z`; None where it is none."""
    match = _AMZ_DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups())
    return _seconds(year, month, day, (hour, minute, second))


def _seconds(year: int, month: int, day: int, time_of_day: tuple[int, int, int]) -> int | None:
    try:
        return int(datetime(year, month, day, *time_of_day, tzinfo=UTC).timestamp())
    except ValueError:
        return None
