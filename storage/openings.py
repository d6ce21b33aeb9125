"""Answers of the origin that are opened to be read: entered once, left once, however far they were read."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Protocol

from storage.errors import OriginUnavailableError


class FillAnswer(Protocol):
    """What a fill reads from: the origin's answer, its head checked."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body; raises OriginUnavailableError where it ends short."""
        ...


Opening = AbstractAsyncContextManager[FillAnswer]
"""Entering asks the origin, or gives an answer that is open already; leaving closes it."""


class OpenAnswer:
    """An opening of an answer that is there already; leaving it ends the asking that gave it."""

    __slots__ = ("_answer", "_asking")

    def __init__(self, answer: FillAnswer, asking: AbstractAsyncContextManager[object]) -> None:
        self._answer = answer
        self._asking = asking

    async def __aenter__(self) -> FillAnswer:
        """Give the answer."""
        return self._answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Close it."""
        return await self._asking.__aexit__(kind, error, trace)


class _Beginning:
    """The first bytes of an answer."""

    def __init__(self, answer: FillAnswer, length: int) -> None:
        self._answer = answer
        self._length = length

    async def chunks(self) -> AsyncIterator[bytes]:
        left = self._length
        async for chunk in self._answer.chunks():
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return


@asynccontextmanager
async def beginning(opening: Opening, length: int) -> AsyncIterator[FillAnswer]:
    """Give an opening of no more than the first bytes of an answer; leaving it cuts a longer one."""
    async with opening as answer:
        yield _Beginning(answer, length)


def incomplete(arrived: int, stop: int) -> OriginUnavailableError:
    """Make the error for an answer that ended short of what its head had said."""
    return OriginUnavailableError(f"the answer ended at {arrived} of {stop}", status=0, code="Incomplete")
