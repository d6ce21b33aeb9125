"""What is known of buckets, asked before the first write-back into one and kept fresh behind the requests.

A fact older than REFRESH_S is refreshed in the background when it is used; the old one goes on deciding meanwhile,
and if the refresh fails. Passed-through changes of a bucket drop its facts, so that the next use asks. What was asked
before a drop answers only those who asked then; it is not kept.

While a bucket is being deleted, or made versioned, it is *closed*: whoever wants its facts waits for the end and asks anew.
So no write is acknowledged into a bucket that is gone by then, or as what it no longer is there (`since`).

A doubt of what is cached of a bucket holds from the step in which it is raised, and is never taken back: whatever else is committed
of the bucket from then on carries it, also that the bucket is away.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from storage.clock import Clock
from storage.commit import Commit
from storage.errors import (
    DiskFailedError,
    DiskFullError,
    NoSuchBucketError,
    StorageError,
    UnknownOutcomeError,
)
from storage.origin.facts import FactsSource
from storage.records import FORMAT, BucketFacts, FactsLearnt
from storage.singleflight import SingleFlight
from storage.state import State

REFRESH_S: Final = 60.0
REFRESH_RETRY_S: Final = 10.0
"""So long after a refresh that failed the next one is tried, so that a failing origin is not asked by every write."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Closing:
    """How far the deletion of a bucket has come. `is_asked`: the origin is asked for it, so nothing is known any more."""

    is_asked: bool = False


class FactsTable:
    """Gives facts; owns the refreshes under way."""

    def __init__(self, state: State, source: FactsSource, commit: Commit, clock: Clock) -> None:
        self._state = state
        self._source = source
        self._commit = commit
        self._clock = clock
        # By bucket and how often it had been dropped, so that a question is never shared across a drop.
        self._flights: SingleFlight[tuple[str, int], BucketFacts] = SingleFlight()
        self._drops: Counter[str] = Counter()
        self._dropped: set[str] = set()
        self._refreshes: dict[str, asyncio.Task[None]] = {}
        self._refresh_at_s: dict[str, float] = {}
        self._closed: dict[str, asyncio.Event] = {}
        # Until they are committed; from then on the state knows them.
        self._doubted_at_s: dict[str, float] = {}

    async def facts(self, bucket: str) -> BucketFacts:
        """Give what the origin says of a bucket.

        Raises:
            NoSuchBucketError: The origin has no such bucket.
            OriginError: Nothing is known yet and the origin fails.
        """
        while (closed := self._closed.get(bucket)) is not None:
            await closed.wait()
        known = self._state.facts.get(bucket)
        if known is None or not known.asked_at_s or bucket in self._dropped:
            known = await self._ask(bucket)
        elif self._clock.wall_s() - known.asked_at_s > REFRESH_S:
            self._refresh(bucket)
        if not known.exists:
            raise NoSuchBucketError(f"bucket {bucket} does not exist")
        return known

    def drops(self, bucket: str) -> int:
        """Say how often what was known of the bucket was dropped; see `since`."""
        return self._drops[bucket]

    def since(self, bucket: str, drops: int, known: BucketFacts) -> BucketFacts | None:
        """Give what is known of a bucket now, of which `known` was told when `drops` said how often it had been dropped.

        None where the bucket is being changed or deleted, or was since: nothing is acknowledged into it before `facts` is
        asked again. Looked at in the step that hands a write to the door, no change of the bucket is answered between.
        """
        if bucket in self._closed or self._drops[bucket] != drops:
            return None
        newest = self._state.facts.get(bucket, known)
        return newest if newest.asked_at_s >= known.asked_at_s else known

    @property
    def dropped(self) -> frozenset[str]:
        """The buckets that are asked for anew at their next use."""
        return frozenset(self._dropped)

    def take_over(self, before: "FactsTable") -> None:
        """Go on with what the life before did not trust, and perhaps could not commit: it is asked for anew at its next use."""
        self._doubted_at_s |= before._doubted_at_s  # noqa: SLF001  of the same class
        for bucket in {*before.dropped, *before._doubted_at_s}:  # noqa: SLF001
            self.drop(bucket)

    def drop(self, bucket: str) -> None:
        """Ask anew at the next use: something passed through may have changed the bucket."""
        self._drops[bucket] += 1
        self._dropped.add(bucket)

    async def doubt(self, bucket: str, until_s: float) -> None:
        """Have every clean version of the bucket that was validated up to a wall time validated again before its use.

        Durable on return. The bucket's other facts are asked for anew at their next use, after a restart too.

        Raises:
            StorageError: The disk refused; until a restart it holds all the same.
        """
        self._doubted_at_s[bucket] = max(until_s, self.doubted_at_s(bucket))
        known = self._state.facts.get(bucket) or _nothing_known(bucket)
        await self._keep(msgspec.structs.replace(known, asked_at_s=0.0))
        known = self._state.facts.get(bucket) or known
        if known.doubted_at_s >= self.doubted_at_s(bucket):
            self._doubted_at_s.pop(bucket, None)

    def doubted_at_s(self, bucket: str) -> float:
        """Give the wall time up to which what was validated in a bucket is doubted; 0 where nothing is."""
        known = self._state.facts.get(bucket)
        return max(0.0 if known is None else known.doubted_at_s, self._doubted_at_s.get(bucket, 0.0))

    @asynccontextmanager
    async def closed(self, bucket: str) -> AsyncIterator["Closing"]:
        """Keep writes out of a bucket while the block deletes it; all that was committed before is known in the block.

        What was known of the bucket holds again after a block that did not come to ask for the deletion, if nothing dropped it
        meanwhile.

        Raises:
            StorageError: The disk refused; nothing has begun.
        """
        while (before := self._closed.get(bucket)) is not None:
            await before.wait()
        self._closed[bucket] = asyncio.Event()
        known, closing = self._state.facts.get(bucket), Closing()
        try:
            self.drop(bucket)
            drops = self._drops[bucket]
            # In the order of commits: what was on its way is applied on return. And a restart asks anew.
            await self._keep(BucketFacts(FORMAT, bucket, exists=False, asked_at_s=0.0))
            yield closing
        finally:
            if closing.is_asked:
                # What was asked about the bucket in the block was asked before its deletion.
                self.drop(bucket)
            try:
                if known is not None and not closing.is_asked and self._drops[bucket] == drops:
                    # Where the disk refuses, the origin is asked at the next use.
                    with suppress(StorageError):
                        await self._keep(known)
                        if self._drops[bucket] == drops:
                            self._dropped.discard(bucket)
            finally:
                self._closed.pop(bucket).set()

    async def mark_etags_not_md5(self, bucket: str) -> None:
        """Remember that the origin's ETags are no MD5 here, so that further writes go through."""
        known = self._state.facts.get(bucket)
        if known is not None and known.etag_is_md5:
            log.warning("bucket %s: the origin's ETags are not MD5; further writes go through", bucket)
            await self._keep(msgspec.structs.replace(known, etag_is_md5=False))

    async def close(self) -> None:
        """End what is under way."""
        await self._flights.close()
        tasks = tuple(self._refreshes.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _ask(self, bucket: str) -> BucketFacts:
        drops = self._drops[bucket]
        return await self._flights.run((bucket, drops), lambda: self._learn(bucket, drops))

    async def _learn(self, bucket: str, drops: int) -> BucketFacts:
        facts = await self._source.ask(bucket)
        if self._drops[bucket] != drops:
            return facts
        known = self._state.facts.get(bucket)
        if known is not None and facts.exists:
            is_md5 = facts.etag_is_md5 and known.etag_is_md5
            facts = msgspec.structs.replace(facts, etag_is_md5=is_md5)
        if facts.exists or known is not None:
            try:
                await self._keep(facts)
            except (DiskFullError, DiskFailedError, UnknownOutcomeError) as error:
                # They are right all the same, for who asked: a write that goes through needs nothing of the disk.
                log.warning("facts of bucket %s are not kept: %s", bucket, error)
                return facts
        if self._drops[bucket] == drops:
            self._dropped.discard(bucket)
        return facts

    async def _keep(self, facts: BucketFacts) -> None:
        """Commit facts, with the doubt that there is of their bucket. One that is away comes back with what is cached of it."""
        doubted_at_s = self.doubted_at_s(facts.bucket)
        if doubted_at_s:
            if not facts.exists:
                known = self._state.facts.get(facts.bucket) or _nothing_known(facts.bucket)
                facts = msgspec.structs.replace(known, asked_at_s=0.0)
            facts = msgspec.structs.replace(facts, doubted_at_s=doubted_at_s)
        await self._commit.commit(FactsLearnt(FORMAT, facts))

    def _refresh(self, bucket: str) -> None:
        """Ask in the background, one question a bucket; not soon again after a failure."""
        if bucket in self._refreshes or self._clock.monotonic_s() < self._refresh_at_s.get(bucket, 0.0):
            return
        self._refreshes[bucket] = asyncio.get_running_loop().create_task(
            self._refresh_quietly(bucket), name=f"facts-{bucket}"
        )

    async def _refresh_quietly(self, bucket: str) -> None:
        try:
            await self._ask(bucket)
            self._refresh_at_s.pop(bucket, None)
        except StorageError as error:
            self._refresh_at_s[bucket] = self._clock.monotonic_s() + REFRESH_RETRY_S
            log.info("facts of bucket %s are not refreshed: %s", bucket, error)
        finally:
            self._refreshes.pop(bucket, None)


def _nothing_known(bucket: str) -> BucketFacts:
    """Make the row of a bucket that is to be asked for."""
    return BucketFacts(FORMAT, bucket, exists=True, asked_at_s=0.0)
