"""Why a read was answered as it was: the words of `x-cache-reason`. Pure.

Several are joined by "; ". Two more have a value of their own: `origin: CODE`, of an answer that covers for a failing origin, and
`waited N s for the limiter`, of one that the limiter in front of the origin held up.
"""

from collections import OrderedDict
from enum import StrEnum
from typing import Final

import msgspec

from storage.types import CacheResult, ObjectName

ANSWERS_MAX: Final = 2048
"""So many objects are remembered whose last read was no plain hit."""

WAIT_TOLD_S: Final = 0.1
"""A shorter wait for the limiter is not worth a word."""


class Reason(StrEnum):
    """Of a closed set.

    UNKNOWN, ABSENT and FETCHING go with MISS and PARTIAL; the four of what is not kept with BYPASS; KNOWN_MISSING with a 404.
    """

    UNKNOWN = "not known here"
    ABSENT = "not cached"
    FETCHING = "being fetched"
    VALIDATED = "validated"
    CHANGED = "changed at the origin"
    WRITTEN = "written all the time"
    KNOWN_MISSING = "known not to exist"
    TOO_LARGE = "too large to keep"
    NO_ROOM = "no room"
    NOT_ADMITTED = "not admitted"
    NOT_KEPT = "the cache keeps nothing now"


def origin_failed(code: str) -> str:
    """Say what the origin failed with."""
    return f"origin: {code}"


def waited(wait_s: float) -> str:
    """Say for how long an answer was held up in front of the origin; "" where that is not worth a word."""
    return f"waited {wait_s:.1f} s for the limiter" if wait_s >= WAIT_TOLD_S else ""


def joined_reasons(*reasons: str) -> str:
    """Write several reasons as one, each once."""
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


class Answer(msgspec.Struct, frozen=True):
    """How a read was answered, and when."""

    result: CacheResult
    reason: str
    at_s: float


class LastAnswers:
    """The last read of each object that was no plain hit, for who asks why; the oldest are forgotten."""

    def __init__(self) -> None:
        self._answers: OrderedDict[ObjectName, Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def note(self, name: ObjectName, answer: Answer) -> None:
        """Remember an answer."""
        self._answers.pop(name, None)
        self._answers[name] = answer
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)

    def find(self, name: ObjectName) -> Answer | None:
        """Give the answer to the last such read; None where there was none, or it is forgotten."""
        return self._answers.get(name)
