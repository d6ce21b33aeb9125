"""What an origin does to a request, drawn for the weather that it is in."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Weather(StrEnum):
    """How the origin is for a while."""

    CLEAR = "clear"
    FLAKY = "flaky"
    SLOW = "slow"
    THROTTLED = "throttled"
    DOWN = "down"
    """Connections are refused, or die; now and then one of them was carried out."""
    DENIED = "denied"
    """AccessDenied for one bucket."""
    GONE = "gone"
    """One bucket is not there."""
    EXPIRED = "expired"
    """The credentials are refused until the weather ends, with or without new ones."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one request.

    Attributes:
        out_s: Until the origin carries it out; it does not where `is_lost`.
        answer_s: From there until the answer is there.
        cut_s: The connection dies so long after the request was sent, whatever the origin does; negative: it does not.
        is_refused: There is no connection at all.
        status: Answered instead of the truth, with `code`; carried out first where `is_done`.
        is_in_200: The error comes inside a 200, after blanks.
        is_garbage: The answer is no document, or has no ETag.
        is_broken_off: The answer's body ends too early.
        line_code: For lines of DeleteObjects, each with a chance of its own.
    """

    out_s: float = 0.02
    answer_s: float = 0.02
    cut_s: float = -1.0
    is_refused: bool = False
    is_lost: bool = False
    status: int = 0
    code: str = ""
    is_done: bool = False
    is_in_200: bool = False
    is_garbage: bool = False
    is_broken_off: bool = False
    line_code: str = ""
    retry_after_s: int = -1


_REFUSALS: Final = ("InvalidStorageClass", "KeyTooLongError", "InvalidRequest", "EntityTooLarge")
_SOON: Final = ("RequestTimeout", "BadDigest", "OperationAborted")


def fate_of(weather: Weather, draws: random.Random, *, late_s: float, refuses: bool) -> Fate:
    """Draw what becomes of a request.

    Args:
        weather: What it is like.
        draws: The simulation's chances.
        late_s: An attempt without an answer lands at the latest so long after it was cut.
        refuses: Objects may be refused for good.
    """
    quick = Fate(out_s=draws.random() * 0.1, answer_s=draws.random() * 0.1)
    match weather:
        case Weather.FLAKY:
            return _flaky(quick, draws, late_s, refuses=refuses)
        case Weather.SLOW:
            return Fate(out_s=draws.random() * 20.0, answer_s=draws.random() * 20.0)
        case Weather.THROTTLED if draws.random() < 0.8:
            after_s = draws.choice((-1, -1, 0, 3))
            code = draws.choice(("SlowDown", "ServiceUnavailable", "TooManyRequests"))
            return Fate(status=429 if code[0] == "T" else 503, code=code, retry_after_s=after_s)
        case Weather.DOWN:
            return _cut(draws, late_s, refused=0.8)
        case Weather.EXPIRED:
            code = draws.choice(("ExpiredToken", "InvalidAccessKeyId"))
            return Fate(status=400 if code == "ExpiredToken" else 403, code=code)
        case _:
            return quick


def _cut(draws: random.Random, late_s: float, *, refused: float = 0.2) -> Fate:
    """Draw a request without an answer: not sent, lost, carried out, or carried out late."""
    drawn = draws.random()
    if drawn < refused:
        return Fate(is_refused=True)
    cut_s = draws.random() * 3.0
    if drawn < refused + (1 - refused) * 0.3:
        return Fate(cut_s=cut_s, is_lost=True)
    if drawn < refused + (1 - refused) * 0.5:
        return Fate(out_s=cut_s * draws.random(), cut_s=cut_s, answer_s=1e6)
    return Fate(out_s=cut_s + draws.random() * late_s, cut_s=cut_s, answer_s=1e6)


def _flaky(quick: Fate, draws: random.Random, late_s: float, *, refuses: bool) -> Fate:
    """Draw one of all kinds; nearly half are answered."""
    is_done = draws.random() < 0.5
    kinds = (
        (45, quick),
        (25, _cut(draws, late_s)),
        (7, Fate(status=draws.choice((500, 502, 504)), code="InternalError", is_done=is_done)),
        (6, Fate(status=200, code="InternalError", is_in_200=True, is_done=is_done)),
        (4, Fate(is_garbage=True)),
        (3, Fate(is_broken_off=True)),
        (4, Fate(line_code=draws.choice(("InternalError", "SlowDown", "AccessDenied")))),
        (3, Fate(status=400, code=draws.choice(_SOON))),
        (3 if refuses else 0, Fate(status=400, code=draws.choice(_REFUSALS))),
    )
    (fate,) = draws.choices([fate for _, fate in kinds], [weight for weight, _ in kinds])
    return fate
