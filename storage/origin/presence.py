"""Why a HEAD was answered 404: is it the key that is not there, or its bucket?

A HEAD has no document, so its 404 is the same for a key that is not there and for a bucket that is not: deleted, or not known to what
answers at the endpoint for the moment. Who takes it for the key forgets cached bytes, takes a flush for not landed, or a delete for
done. Asking for the bucket afterwards proves nothing of the moment of the 404: the bucket may be back by then, or another server
may answer. Nor does a bucket that was seen before. So the key is asked for again, by a GET of its first byte, whose one answer says
that there is nothing and why (AWS "Error responses": NoSuchKey, NoSuchVersion, NoSuchBucket).

Only where that answer has no document either is there nothing better than to ask for the bucket.
"""

import asyncio
from contextlib import suppress
from typing import Final

import msgspec

from storage.clock import Clock
from storage.errors import NoSuchKeyError, OriginRefusedError, OriginSuspendedError
from storage.origin.calls import Answer, Call, Caller, History
from storage.types import Priority

BUCKETS_MAX: Final = 10_000

_FIRST_BYTE: Final = (("range", "bytes=0-0"),)


class Presence:
    """Finds out what a 404 without a reason was about. Buckets are asked for by one question at a time each."""

    def __init__(self, caller: Caller, clock: Clock) -> None:
        """Take who asks for buckets."""
        self._caller = caller
        self._clock = clock
        self._seen_at_s: dict[str, float] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def explain(self, caller: Caller, head: Call) -> None:
        """Ask why a HEAD was answered 404; return where the object turns out to be there.

        Args:
            caller: Asks, with the same authority as the HEAD.
            head: What was answered 404.

        Raises:
            NoSuchKeyError, NoSuchBucketError: That is why.
            OriginError, OverloadedError: The origin does not say, or was not asked.
        """
        call = msgspec.structs.replace(
            head, operation="GetObject", method="GET", headers=_FIRST_BYTE, bytes_hint=1
        )
        history = History()
        try:
            await caller.run(call, _closed, history)
        except NoSuchKeyError:
            if history.lacks_reason:
                await self.check_bucket(head.bucket, head.priority, within_s=head.within_s)
            raise
        except OriginRefusedError as error:
            # An object that is empty has no first byte.
            if error.status != 416:
                raise

    async def check_bucket(self, bucket: str, priority: Priority, *, within_s: float | None) -> None:
        """Return where a bucket is there, as far as the origin lets us ask, by an answer to what was asked after this call began.

        Args:
            bucket: Which.
            priority: Of the call that needs to know.
            within_s: Longest wait for an answer; None as for other calls.

        Raises:
            NoSuchBucketError: It is not.
            OriginUnavailableError, OverloadedError: The origin gives no answer, or was not asked.
        """
        began_s = self._clock.monotonic_s()
        lock = self._asking.setdefault(bucket, asyncio.Lock())
        try:
            async with lock:
                if self._seen_at_s.get(bucket, -1.0) < began_s:
                    await self._ask(bucket, priority, within_s)
        finally:
            if not lock.locked():
                self._asking.pop(bucket, None)

    async def _ask(self, bucket: str, priority: Priority, within_s: float | None) -> None:
        asked_at_s = self._clock.monotonic_s()
        call = Call("HeadBucket", "HEAD", bucket, priority=priority, within_s=within_s)
        # It may not be asked for (403), or not in this way (405, 501): that does not say that it is not there.
        with suppress(OriginRefusedError, OriginSuspendedError):
            await self._caller.run(call, _closed)
        self._seen_at_s.pop(bucket, None)
        if len(self._seen_at_s) >= BUCKETS_MAX:
            self._seen_at_s.pop(next(iter(self._seen_at_s)))
        self._seen_at_s[bucket] = asked_at_s


async def _closed(answer: Answer) -> None:
    answer.close()
