"""Whose authority at the origin an operation has, and what the origin lets it read.

An authority is an identity at the origin: the gateway's own, which most client keys share, or that of a client key with origin
credentials of its own. The origin alone knows what such a one may read, so it is asked, by a HEAD that the authority signs,
before anything cached is served to it. `ReadPermits` keeps the answers for a bounded time, refusals too.

An answer to HEAD has no document, so a 403 or 400 may also be about the credentials. A GET of one byte then tells which: keys that
have expired are renewed on its way, and who is refused after it is told the origin's own code.

A permit is of a name, not of a version. That there is no such object is no permit and no refusal, and is not kept.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from storage.errors import OriginRefusedError, OriginSuspendedError
from storage.origin.answers import OriginAnswer
from storage.origin.credentials import CredentialSource
from storage.origin.wire import OriginObject
from storage.singleflight import SingleFlight
from storage.types import ObjectName, RangeSpec

PERMITS_MAX: Final = 20_000
"""Answers kept of one authority, some 300 bytes each; the oldest goes first."""

_REFUSALS: Final = frozenset({401, 403})
_UNEXPLAINED: Final = frozenset({400, 401, 403})
_ONE_BYTE: Final = RangeSpec(0, 1)


@dataclass(frozen=True, slots=True)
class Authority:
    """An identity at the origin that is not the gateway's own.

    Attributes:
        authority_id: Names it here; the same credentials have the same.
        credentials: Sign its calls.
        believed_s: So long after it was asked, an answer of the origin on what it may read is believed.
    """

    authority_id: str
    credentials: CredentialSource = field(repr=False)
    believed_s: float = 60.0


class Describer(Protocol):
    """Who asks as the authority: `origin.client.OriginClient`."""

    async def head_object(self, name: ObjectName) -> OriginObject | None:
        """Describe an object."""
        ...

    def get_object(self, name: ObjectName, wanted: RangeSpec) -> AbstractAsyncContextManager[OriginAnswer]:
        """Open a range of an object."""
        ...


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the origin said; `refusal` None where it let the object be read."""

    until_s: float
    refusal: OriginRefusedError | OriginSuspendedError | None = None


class ReadPermits:
    """What the origin lets one authority read. Owns the questions in flight: equal ones are asked once."""

    def __init__(self, origin: Describer, now_s: Callable[[], float], believed_s: float) -> None:
        """Take who asks, the monotonic clock, and how long an answer is believed."""
        self._origin = origin
        self._now_s = now_s
        self._believed_s = believed_s
        self._answers: OrderedDict[ObjectName, _Answer] = OrderedDict()
        self._asked: dict[ObjectName, object] = {}
        self._flights: SingleFlight[ObjectName, None] = SingleFlight()

    async def check(self, name: ObjectName) -> None:
        """Return where the origin lets the object be read, by an answer that is no older than is believed.

        Raises:
            OriginRefusedError, OriginSuspendedError: It does not.
            NoSuchKeyError: There is none, and the authority may know that.
            OriginError, OverloadedError: The origin did not say.
        """
        answer = self._answers.get(name)
        if answer is None or answer.until_s <= self._now_s():
            await self._flights.run(name, lambda: self._ask(name))
        elif answer.refusal is not None:
            raise _again(answer.refusal)

    def forget(self, name: ObjectName) -> None:
        """Ask anew at the next check: the object was written. A question that is in flight answers who asked before."""
        self._answers.pop(name, None)
        self._asked.pop(name, None)
        self._flights.seal(name)

    async def close(self) -> None:
        """End the questions in flight."""
        await self._flights.close()

    async def _ask(self, name: ObjectName) -> None:
        question = self._asked[name] = object()
        until_s = self._now_s() + self._believed_s
        try:
            await self._describe(name)
        except (OriginRefusedError, OriginSuspendedError) as error:
            if error.status in _REFUSALS:
                self._keep(name, question, _Answer(until_s, error))
            raise
        else:
            self._keep(name, question, _Answer(until_s))
        finally:
            if self._asked.get(name) is question:
                del self._asked[name]

    async def _describe(self, name: ObjectName) -> None:
        try:
            await self._origin.head_object(name)
        except (OriginRefusedError, OriginSuspendedError) as error:
            if error.status not in _UNEXPLAINED:
                raise
            await self._read_a_byte(name)

    async def _read_a_byte(self, name: ObjectName) -> None:
        try:
            async with self._origin.get_object(name, _ONE_BYTE):
                return
        except OriginRefusedError as error:
            # There is no first byte of an empty object, which it lets be read, or it would not say so.
            if error.status != 416:
                raise

    def _keep(self, name: ObjectName, question: object, answer: _Answer) -> None:
        if self._asked.get(name) is not question:
            return
        self._answers[name] = answer
        self._answers.move_to_end(name)
        if len(self._answers) > PERMITS_MAX:
            self._answers.popitem(last=False)


def _again(error: OriginRefusedError | OriginSuspendedError) -> OriginRefusedError | OriginSuspendedError:
    """Make a refusal anew, so that those who get it share no traceback."""
    return type(error)(str(error), status=error.status, code=error.code, body=error.body)
