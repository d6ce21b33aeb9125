"""Whether a bucket is at the origin, asked where an answer says that an object is not and does not say why.

A HEAD has no document, so its 404 is the same for a key that is not there and for a bucket that is not: deleted, or not known to what
answers at the endpoint for the moment. Who takes it for the key forgets cached bytes, takes a flush for not landed, or a delete for
done. So after such a 404, and only then, the bucket is asked for; what is there is believed for a while.
"""

import asyncio
from contextlib import suppress
from typing import Final

from storage.clock import Clock
from storage.errors import OriginRefusedError, OriginSuspendedError
from storage.origin.calls import Answer, Call, Caller
from storage.types import Priority

SEEN_S: Final = 5.0
"""So long a bucket that was there counts as there; clients that look for keys which do not exist cost a question in that time."""

BUCKETS_MAX: Final = 10_000


class BucketPresence:
    """Asks by HeadBucket, one question at a time for each bucket."""

    def __init__(self, caller: Caller, clock: Clock) -> None:
        self._caller = caller
        self._clock = clock
        self._seen_at_s: dict[str, float] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def check(self, bucket: str, priority: Priority, *, within_s: float | None, is_fresh: bool) -> None:
        """Return where the bucket is there, as far as the origin lets us ask.

        Args:
            bucket: Which.
            priority: Of the call that needs to know.
            within_s: Longest wait for an answer; None as for other calls.
            is_fresh: Believe only what was asked after this call began.

        Raises:
            NoSuchBucketError: It is not.
            OriginUnavailableError, OverloadedError: The origin gives no answer, or was not asked.
        """
        valid_from_s = self._clock.monotonic_s() - (0.0 if is_fresh else SEEN_S)
        if self._is_seen(bucket, valid_from_s):
            return
        lock = self._asking.setdefault(bucket, asyncio.Lock())
        try:
            async with lock:
                if not self._is_seen(bucket, valid_from_s):
                    await self._ask(bucket, priority, within_s)
        finally:
            if not lock.locked():
                self._asking.pop(bucket, None)

    def _is_seen(self, bucket: str, valid_from_s: float) -> bool:
        seen_at_s = self._seen_at_s.get(bucket)
        return seen_at_s is not None and seen_at_s >= valid_from_s

    async def _ask(self, bucket: str, priority: Priority, within_s: float | None) -> None:
        asked_at_s = self._clock.monotonic_s()

        async def answered(answer: Answer) -> None:
            answer.close()

        self._seen_at_s.pop(bucket, None)
        call = Call("HeadBucket", "HEAD", bucket, priority=priority, within_s=within_s)
        # It may not be asked for (403), or not in this way (405, 501): that does not say that it is not there.
        with suppress(OriginRefusedError, OriginSuspendedError):
            await self._caller.run(call, answered)
        if len(self._seen_at_s) >= BUCKETS_MAX:
            self._seen_at_s.pop(next(iter(self._seen_at_s)))
        self._seen_at_s[bucket] = asked_at_s
