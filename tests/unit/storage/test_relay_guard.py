from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from storage.effects import Changes, Effect, Needs
from storage.errors import NotSupportedError, OriginUnavailableError
from storage.origin.wire import OriginObject
from storage.relay_guard import LOOKS_MAX, RelayGuard
from storage.requests import RelayRequest
from storage.types import ObjectName

REQUEST = RelayRequest(
    "PutObjectAcl", "PUT", ObjectName("b", "k"), Effect(Needs.KEY, Changes.KEY), guarded=("acl",)
)


@dataclass
class Answer:
    """One answer to the read by the name."""

    status: int
    etag: str

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("etag", f'"{self.etag}"'),) if self.etag else ()

    async def chunks(self) -> AsyncIterator[bytes]:
        yield b""


@dataclass
class Origin:
    """Gives answers to GET?acl and sizes and ETags to HEAD, each in turn, the last one for ever."""

    answers: list[Answer]
    shown: list[tuple[int, str]]
    asked: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def request(self, method: str, _name: ObjectName, **_rest: object) -> AsyncIterator[Answer]:
        self.asked.append(method)
        yield self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def head_object(self, _name: ObjectName) -> OriginObject:
        self.asked.append("HEAD")
        size, etag = self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]
        return OriginObject(etag=etag, size=size, last_modified_s=0)


def guard(answers: list[Answer], shown: list[tuple[int, str]]) -> tuple[RelayGuard, Origin]:
    """Make a guard over an origin that answers so."""
    origin = Origin(answers, shown)
    return RelayGuard(origin), origin  # type: ignore[arg-type]  # a double of the client


@pytest.mark.parametrize(
    ("answers", "shown"),
    [
        ([Answer(206, "one")], [(3, "one")]),
        ([Answer(206, "one"), Answer(206, "two")], [(3, "two")]),
        ([Answer(416, ""), Answer(206, "two")], [(3, "two")]),
        ([Answer(206, "one"), Answer(416, "")], [(0, "empty")]),
        ([Answer(416, "")], [(0, "empty")]),
    ],
)
async def test_an_object_that_others_write_meanwhile_is_still_the_object(
    answers: list[Answer], shown: list[tuple[int, str]]
) -> None:
    """Taken for a sub-resource, it would be replaced by the document that was meant for that, and so would all after it."""
    made, _ = guard(answers, shown)

    with pytest.raises(NotSupportedError):
        await made.check(REQUEST)
    with pytest.raises(NotSupportedError):
        await made.check(REQUEST)


async def test_an_object_that_is_written_all_the_time_is_not_written_by_the_name() -> None:
    """The questions are bounded, and what cannot be told is refused."""
    made, origin = guard([Answer(206, str(n)) for n in range(10)], [(3, "other")])

    with pytest.raises(OriginUnavailableError):
        await made.check(REQUEST)

    assert origin.asked == ["GET", "HEAD", "GET"] * LOOKS_MAX


@pytest.mark.parametrize(
    "answer", [Answer(200, ""), Answer(200, "its own"), Answer(404, ""), Answer(403, "")]
)
async def test_a_subresource_is_told_from_the_object_once(answer: Answer) -> None:
    """Also where it has an ETag, which stays as it is."""
    made, origin = guard([answer], [(3, "object")])

    await made.check(REQUEST)
    asked = len(origin.asked)
    await made.check(REQUEST)

    assert len(origin.asked) == asked <= 3
