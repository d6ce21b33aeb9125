"""Decide conditional writes here first, under the key's turn; what is sent then carries the condition for the origin to decide too.

    turn of the key, flushed (storage/through.py) ──> HEAD ──> judge ──> 404, 412: nothing is sent
                                                                  └────> holds: sent with If-Match on what was seen, or If-None-Match

So clients of one gateway have one winner at any origin, also at one that ignores conditions, or knows them for some operations
only; and against writers elsewhere an origin that heeds them decides. See ADR 0020.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from storage.errors import NoSuchKeyError, OriginError, OriginRefusedError, OriginUnavailableError
from storage.origin.client import OriginClient
from storage.origin.wire import OriginObject
from storage.records import ObjectRecord
from storage.types import ObjectName
from storage.write_conditions import DECIDED, Headers, Seen, Verdict, read_write_conditions


@dataclass(frozen=True, slots=True)
class ConditionalWrites:
    """Looks and judges. `version` gives the newest version of a key that the index knows."""

    origin: OriginClient
    version: Callable[[ObjectName], ObjectRecord | None]

    async def checked(self, name: ObjectName, headers: Headers) -> Headers:
        """Judge the conditions among a write's headers; give the headers to send it with. Without conditions nobody is asked.

        Whoever calls holds the key's turn alone, and what was dirty of it is at the origin.

        Raises:
            NoSuchKeyError: If-Match, and there is no object.
            OriginRefusedError: 412 PreconditionFailed.
            OriginUnavailableError: The origin does not say what is there; nothing was sent.
        """
        conditions = read_write_conditions(headers)
        if conditions.is_empty:
            return headers
        try:
            seen = await self._seen(name)
        except OriginUnavailableError:
            raise
        except OriginError:
            # It does not show the object to our key (403 where that may not list, 400 where the client holds the key of SSE-C).
            return headers
        match conditions.judge(seen):
            case Verdict.HOLDS:
                return tuple(pair for pair in headers if pair[0] not in DECIDED) + conditions.handed_on(seen)
            case Verdict.MISSING:
                raise NoSuchKeyError(f"{name} does not exist, and If-Match asks for it")
            case Verdict.FAILED:
                raise precondition_failed()
            case verdict:
                assert_never(verdict)

    async def _seen(self, name: ObjectName) -> Seen | None:
        try:
            found = await self.origin.head_object(name)
        except NoSuchKeyError:
            return None
        assert found is not None, "an unconditional HEAD describes the object"
        return self._as_clients_see(name, found)

    def _as_clients_see(self, name: ObjectName, found: OriginObject) -> Seen:
        record = self.version(name)
        if record is None or record.origin is None or record.origin.etag != found.etag:
            return Seen(found.etag, found.etag, found.size, found.last_modified_s)
        return Seen(record.etag, found.etag, found.size, record.last_modified_s)


def precondition_failed() -> OriginRefusedError:
    """Make the refusal of a write whose condition does not hold, as the origin would."""
    return OriginRefusedError(
        "At least one of the preconditions you specified did not hold.", status=412, code="PreconditionFailed"
    )
