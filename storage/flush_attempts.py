"""One attempt at the origin each: send a put, send deletes, look by HEAD; each ends in the planner's event.

Whoever calls holds the turns of the keys. What an attempt sent is remembered while somebody may ask for it: the
origin's answer until the journal has it, the ETag of an attempt without an answer until a HEAD has settled whether it
landed.
"""

import logging
import random
from dataclasses import dataclass
from typing import Final

from storage.conflict_rules import Base
from storage.described import has_description
from storage.dirty_rows import DirtyRows
from storage.errors import DirtyBytesLostError, NoSuchKeyError, StorageError
from storage.facts_table import FactsTable
from storage.flush_events import (
    CheckByHead,
    Event,
    FailureKind,
    FlushFailed,
    FlushSkipped,
    FlushSucceeded,
    HeadChecked,
    HeadResult,
)
from storage.flush_outcomes import failure_event, head_result, line_failure
from storage.guarded import ConflictError, GuardedSends
from storage.origin.client import OriginClient
from storage.origin.documents import MAY_LAND
from storage.outgoing import ReadRefusedError
from storage.records import DirtyEntry, OriginIdentity
from storage.sender import SupersededError
from storage.stats import Stats
from storage.types import ObjectName, Priority
from storage.unreadable import REASON, Unreadable

log = logging.getLogger(__name__)

SENT_ETAGS_MAX: Final = 65_536
"""So many attempts without an answer are remembered by what they sent; what is forgotten counts as unknown."""

READ_TRIES_MAX: Final = 5
"""So many attempts of a change may end in a read that the disk refused; then its bytes count as lost."""

ODD_ETAGS_MAX: Final = 3
"""So many puts in a row answered with another ETag mean that the bucket's ETags are no MD5."""

_MAY_LAND: Final = (MAY_LAND, "an earlier attempt may still land")


@dataclass(slots=True)
class AttemptsParts:
    """What attempts work with; made once by the engine."""

    rows: DirtyRows
    guarded: GuardedSends
    origin: OriginClient
    facts: FactsTable
    rng: random.Random
    stats: Stats
    unreadable: Unreadable


class Attempts:
    """Makes attempts and remembers them."""

    def __init__(self, parts: AttemptsParts) -> None:
        self._parts = parts
        self._rows = parts.rows
        self._answers: dict[int, OriginIdentity | None] = {}
        self._sent_etags: dict[int, str] = {}
        self._odd_etags: dict[str, int] = {}
        self._refused_reads: dict[int, int] = {}

    def answer(self, sequence: int) -> OriginIdentity | None:
        """Give the origin's name of what a successful attempt sent; None for a delete."""
        return self._answers.get(sequence)

    def forget(self, sequence: int) -> None:
        """Forget an attempt that is confirmed, or of which there is nothing to confirm."""
        self.forget_answer(sequence)
        self._sent_etags.pop(sequence, None)

    def forget_answer(self, sequence: int) -> None:
        """Forget the answer to a change that left the queue; what it sent may still be asked for."""
        self._answers.pop(sequence, None)
        self._refused_reads.pop(sequence, None)

    async def put(self, entry: DirtyEntry, priority: Priority) -> Event:
        """Send a put once, which is its key's newest change when the call begins."""
        sequence = entry.sequence
        record = self._rows.record(entry)
        if record is None:
            # Write-backs pass flushes: the change was replaced between the two reads.
            return self._ended(FlushSkipped(sequence))
        self._sent_etags[sequence] = record.etag
        try:
            identity = await self._parts.guarded.put(
                entry, record, priority, lambda: self._rows.entry(sequence) is not None
            )
        except SupersededError:
            return self._ended(FlushSkipped(sequence))
        except ConflictError as conflict:
            return self._ended(self._refused(sequence, conflict))
        except (DirtyBytesLostError, ReadRefusedError) as error:
            return self._ended(self._unread(entry, error))
        except StorageError as error:
            return self._ended(failure_event(sequence, error, self._jitter()))
        self._answers[sequence] = identity
        if not record.parts:
            await self._note_etag(entry.bucket, is_md5=identity.etag == record.etag)
        return self._ended(FlushSucceeded(sequence))

    def _unread(self, entry: DirtyEntry, error: DirtyBytesLostError | ReadRefusedError) -> FlushFailed:
        """Say what bytes mean that could not be read: a read that the disk refused is tried again for a while."""
        sequence = entry.sequence
        tries = self._refused_reads[sequence] = self._refused_reads.get(sequence, 0) + 1
        if isinstance(error, ReadRefusedError) and tries < READ_TRIES_MAX:
            return failure_event(sequence, error, self._jitter())
        del self._refused_reads[sequence]
        self._parts.unreadable.note(ObjectName(entry.bucket, entry.key), str(error))
        return FlushFailed(sequence, FailureKind.REFUSE, f"{REASON}{error}", self._jitter())

    async def deletes(self, bucket: str, entries: tuple[DirtyEntry, ...], priority: Priority) -> list[Event]:
        """Send tombstones of different keys once; one event each. One that is guarded comes by itself."""
        for entry in entries:
            self._sent_etags[entry.sequence] = ""
        base = self._parts.guarded.conflicts.base_of(entries[0]) if len(entries) == 1 else None
        if base is not None:
            return [self._ended(await self._delete_over(base, entries[0], priority))]
        keys = tuple(entry.key for entry in entries)
        try:
            results = await self._delete(bucket, keys, priority)
        except StorageError as error:
            failures = [failure_event(entry.sequence, error, self._jitter()) for entry in entries]
            return [self._ended(failure) for failure in failures]
        return [self._ended(self._settled(entry, *results[entry.key])) for entry in entries]

    async def _delete(
        self, bucket: str, keys: tuple[str, ...], priority: Priority
    ) -> dict[str, tuple[str, str]]:
        """Delete keys; code and message of each, "" where it is gone."""
        origin = self._parts.origin
        if len(keys) == 1:
            alone = await origin.delete_object(ObjectName(bucket, keys[0]), priority=priority)
            return {keys[0]: _MAY_LAND if alone.is_earlier_unknown else ("", "")}
        batch = await origin.delete_objects(bucket, keys, priority=priority)
        if batch.is_earlier_unknown:
            return dict.fromkeys(keys, _MAY_LAND)
        return {line.key: (line.code, line.message) for line in batch.results}

    def is_guarded(self, entry: DirtyEntry) -> bool:
        """Whether a change must not be written over another writer's: it is sent by itself."""
        return self._parts.guarded.conflicts.base_of(entry) is not None

    async def _delete_over(self, base: Base, entry: DirtyEntry, priority: Priority) -> Event:
        try:
            answer = await self._parts.guarded.delete(base, entry, priority)
        except ConflictError as conflict:
            return self._refused(entry.sequence, conflict)
        except StorageError as error:
            return failure_event(entry.sequence, error, self._jitter())
        return self._settled(entry, *(_MAY_LAND if answer.is_earlier_unknown else ("", "")))

    def _refused(self, sequence: int, conflict: ConflictError) -> FlushFailed:
        return FlushFailed(sequence, FailureKind.REFUSE, str(conflict), self._jitter())

    def confirmed(self, entry: DirtyEntry) -> None:
        """Learn that the journal has the confirmation of a key's newest change."""
        self._parts.guarded.conflicts.settle(ObjectName(entry.bucket, entry.key))

    def _settled(self, entry: DirtyEntry, code: str, message: str) -> Event:
        if code:
            return line_failure(entry.sequence, code, message, self._jitter())
        self._answers[entry.sequence] = None
        return FlushSucceeded(entry.sequence)

    def _ended(self, event: Event) -> Event:
        """Count an attempt that has ended, and forget of it what nobody will ask for."""
        match event:
            case FlushFailed(kind=FailureKind.UNKNOWN_OUTCOME):
                self._parts.stats.flushed["retried"] += 1
                # May yet land; a later HEAD is compared with it.
                if len(self._sent_etags) > SENT_ETAGS_MAX:
                    self._sent_etags.pop(next(iter(self._sent_etags)))
            case FlushFailed(sequence=sequence, kind=kind):
                self._parts.stats.flushed["retried"] += kind is not FailureKind.REFUSE
                self._sent_etags.pop(sequence, None)
            case FlushSucceeded(sequence=sequence) if self._rows.entry(sequence) is None:
                # Overtaken by a newer change: there is nothing to confirm.
                self._parts.stats.flushed["superseded"] += 1
                self.forget(sequence)
            case FlushSkipped(sequence=sequence):
                self._sent_etags.pop(sequence, None)
            case _:
                pass
        return event

    async def _note_etag(self, bucket: str, *, is_md5: bool) -> None:
        """Learn that a bucket's ETags are no MD5; a single odd answer among good ones is the origin's slip."""
        if is_md5:
            self._odd_etags.pop(bucket, None)
            return
        self._odd_etags[bucket] = self._odd_etags.get(bucket, 0) + 1
        if self._odd_etags[bucket] < ODD_ETAGS_MAX:
            return
        try:
            await self._parts.facts.mark_etags_not_md5(bucket)
        except StorageError as error:
            # The next flush learns it again.
            log.warning("bucket %s cannot be marked: %s", bucket, error)

    async def check(self, check: CheckByHead) -> HeadChecked:
        """Look what the origin has under a key whose newest state it accepted after an attempt without an answer."""
        entry = self._rows.entry(check.sequence)
        result = HeadResult.OURS if entry is None else await self._head_result(entry, check)
        if result is not HeadResult.FAILED:
            for sequence in check.attempted:
                if sequence != check.sequence:
                    self._sent_etags.pop(sequence, None)
        return HeadChecked(check.sequence, result, self._jitter())

    async def _head_result(self, entry: DirtyEntry, check: CheckByHead) -> HeadResult:
        name = ObjectName(entry.bucket, entry.key)
        try:
            # The planner asks again, later and later; retries of each question would multiply.
            found = await self._parts.origin.head_object(name, priority=Priority.VALIDATION, is_retried=False)
        except NoSuchKeyError:
            found = None
        except StorageError:
            return HeadResult.FAILED
        etag = "" if found is None else found.etag
        answered = self._answers.get(check.sequence)
        ours = "" if answered is None else answered.etag
        record = None if entry.is_tombstone else self._rows.record(entry)
        if found is not None and record is not None and etag == ours and not has_description(found, record):
            # The same bytes with other headers or metadata: an older attempt of ours landed over the newest.
            return HeadResult.SUPERSEDED
        others = [sequence for sequence in check.attempted if sequence != check.sequence]
        attempted = {self._sent_etags.get(sequence) for sequence in others}
        base = self._parts.guarded.conflicts.base_of(entry)
        if base is not None:
            # All that was ever sent is known then, by this process and those before it; anything else is another writer's.
            attempted.update(base.own_etags)
        is_from_before = check.is_from_before and base is None
        return head_result(etag, ours, attempted, is_from_before=is_from_before)

    def _jitter(self) -> float:
        return self._parts.rng.random()
