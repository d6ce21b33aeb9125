"""Questions to the origin get an answer each, or an error each; one that failed says nothing of the others."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from storage.errors import NoSuchKeyError, OriginUnavailableError
from storage.origin.client import OriginClient
from storage.origin.wire import OriginObject
from storage.origin_look import OriginLook
from storage.types import ObjectName

NAMES = [ObjectName("bucket", f"key-{number:02}") for number in range(40)]


class Origin:
    """Has the objects with an even number; `is_silent` is told the key and how often it was asked for before."""

    def __init__(self, is_silent: Callable[[str, int], bool]) -> None:
        self.is_silent = is_silent
        self.asked: list[str] = []

    async def head_object(self, name: ObjectName, *, is_covered: bool) -> OriginObject:
        """Answer."""
        assert is_covered
        self.asked.append(name.key)
        if self.is_silent(name.key, self.asked.count(name.key) - 1):
            raise OriginUnavailableError("no answer", status=0, code="Timeout")
        if int(name.key[-2:]) % 2:
            raise NoSuchKeyError(name.key)
        return OriginObject(1, name.key, 1)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OriginClient]:
        """Open the data lane."""
        yield cast("OriginClient", self)


def told(origin: Origin) -> list[str]:
    """Ask about all names; give each answer as a word."""
    answers = OriginLook(origin.open)(NAMES)
    return [answer.error or (answer.found.etag if answer.found else "not there") for answer in answers]


TRUE_ANSWERS = [name.key if number % 2 == 0 else "not there" for number, name in enumerate(NAMES)]


@pytest.mark.parametrize("silent", ["key-00", "key-07"])
def test_a_question_is_asked_again_when_it_got_no_answer(silent: str) -> None:
    """A blip costs nothing, also as the very first question."""
    origin = Origin(lambda key, asked: key == silent and asked == 0)

    assert told(origin) == TRUE_ANSWERS


@pytest.mark.parametrize("silent", [0, 7])
def test_all_others_are_compared_when_one_key_gets_no_answer(silent: int) -> None:
    """Only that one is told as not asked."""
    origin = Origin(lambda key, _asked: key == NAMES[silent].key)

    wanted = list(TRUE_ANSWERS)
    wanted[silent] = "no answer"
    assert told(origin) == wanted


def test_an_origin_that_is_away_is_asked_a_few_times_only() -> None:
    """No answer is taken for "not there"."""
    origin = Origin(lambda _key, _asked: True)

    assert told(origin) == ["no answer"] * len(NAMES)
    assert len(origin.asked) == 4
