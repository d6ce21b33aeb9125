"""Open objects for reading: from the index while that is right, from the origin where it must be asked.

    open -> row? -> fresh: serve it
                 -> not fresh: validate (HEAD), then serve it, or the new version, or 404
         -> tombstone: 404
         -> nothing known: ask the origin. A GET is one request: its answer's headers make the version, its body fills it.

What the origin says of a key, a 404 too, is believed and stored only if the key was clean when it was asked, and
nothing was written to it since (`Generations`); otherwise the answer is dropped and the row, which is newer, is read
again. Equal questions asked at the same time are asked once; but a policy that says `always` is kept to the letter:
what the origin was asked before a read began proves nothing to that read.

A key that is written faster than the origin answers is asked for once more, for this reader alone, whose answer serves
it and is not kept. It too must be clean when that is asked: then the origin holds what was acknowledged last, and
whatever it shows from there on was right at some moment of the read. The origin's word on a dirty key is older than
what was acknowledged, and never served; also not where the flush ends before the answer comes.

While writes are refused because the disk failed, no clean row is trusted: what was passed through or flushed last may be missing
in it. Each is validated before its use, `immutable` excepted, and covers for no failing origin.

A version that is asked for by the origin's id goes the same road, by rows of its own (`storage/keys.py`). It never changes, so it is
served without asking anybody once it is known. The version `null` may be overwritten, and what an object lock says of a version
changes without a new one: these are validated each time.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from storage import keys
from storage.absent_keys import Absence, AbsentKeys, Question
from storage.applier import Applier
from storage.cached import MarkValidated, Shown, StoreVersion
from storage.clock import Clock
from storage.errors import (
    NoSuchKeyError,
    NotNeededError,
    OriginRefusedError,
    OriginUnavailableError,
    OverloadedError,
)
from storage.eviction import Intent
from storage.family import Family
from storage.fills import Fill
from storage.freshness import NO_EPOCH_TRUSTED, Verdict, as_shown, judge, may_serve_stale
from storage.generations import Generations, Watch
from storage.hashers import whole_check
from storage.ids import Ids
from storage.opened import Opened, joined
from storage.openings import FillAnswer
from storage.origin.answers import OriginAnswer
from storage.origin.client import OriginClient
from storage.origin.wire import OriginObject
from storage.policy import Freshness, FreshnessMode, PolicyTable
from storage.reasons import Reason, origin_failed
from storage.records import (
    FORMAT,
    ObjectRecord,
    ObjectState,
    OriginIdentity,
    OverlayRecord,
    Validated,
)
from storage.rows import RowSource, decode_overlay, row_at
from storage.sender import has_description
from storage.singleflight import SingleFlight
from storage.supply import INDEX_FAILURES, Supply
from storage.types import BLOCK_BYTES, NULL_VERSION, ByteRange, CacheResult, ObjectName, Priority, RangeSpec

SHARED_ATTEMPTS_MAX: Final = 3
"""So often an open starts over because the key was written while the origin was asked."""

METHOD_NOT_ALLOWED: Final = 405
"""The origin's answer where the version that is named is a delete marker."""

ROW_READS_MAX: Final = 100
"""So often in a row a key's rows are read again because a change was applied between two reads."""

_NEVER_ASKED: Final = Freshness(mode=FreshnessMode.IMMUTABLE)
_ASKED_ALWAYS: Final = Freshness(mode=FreshnessMode.ALWAYS)
"""Whatever the policy says: its word `immutable` cannot mean the version `null`, which others overwrite, nor what is locked."""

_LOCK_PREFIX: Final = "x-amz-object-lock-"

_Flight = tuple[ObjectName, int]
"""A cold question: the object, and the block in which the stretch that is wanted begins."""

NO_BYTES: Final = RangeSpec(suffix=0)
"""What is held for who opens an object for its description."""


@dataclass(slots=True)
class ReaderParts:
    """What the reader works with; made once by the engine.

    Attributes:
        has_failed: Whether writes are refused since the disk failed.
        absent: What the origin is known not to have.
        has_object_lock: Whether a bucket is known to lock objects, so that what holds a version may change.
    """

    index: RowSource
    applier: Applier
    origin: OriginClient
    policies: Callable[[], PolicyTable]
    generations: Generations
    ids: Ids
    clock: Clock
    supply: Supply
    epoch: int
    trusted_epoch: int
    has_failed: Callable[[], bool]
    doubted_at_s: Callable[[ObjectName], float]
    absent: AbsentKeys
    has_object_lock: Callable[[str], bool]


class _Told(msgspec.Struct, frozen=True):
    """What the origin said of an object: its version, whether the row holds it, and the fill that the answer began."""

    record: ObjectRecord
    is_kept: bool = True
    fill: Fill | None = None


class Reader:
    """Opens objects and feeds their bodies. Owns the fills and the questions in flight."""

    def __init__(self, parts: ReaderParts, *, is_foreign: bool = False) -> None:
        """Make a reader; `is_foreign` where it asks the origin as another authority than the gateway's own."""
        self._parts = parts
        self._is_foreign = is_foreign
        self._others: dict[tuple[str, bool], Reader] = {}
        self._supply = parts.supply
        self._validations: SingleFlight[ObjectName, _Told | None] = SingleFlight()
        self._heads: SingleFlight[ObjectName, _Told | None] = SingleFlight()
        self._colds: SingleFlight[_Flight, _Told | None] = SingleFlight()
        # Whose question, let through already, a cold read of this reader joins.
        self._askers: dict[_Flight, Reader] = {}
        self._ahead_of: Reader | None = None

    async def open(
        self,
        name: ObjectName,
        wanted: RangeSpec | None,
        *,
        metadata_only: bool,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Opened:
        """Give one version of the object to read from.

        Args:
            name: The object.
            wanted: What part will be read, so that a cold GET asks the origin for no more.
            metadata_only: No body will be read, or perhaps none; a cold object is asked for by HEAD.
            is_wanted: Looked at when a cold GET may go, by a reader that asks for what clients will read.

        Raises:
            NoSuchKeyError: There is none, or its delete was acknowledged.
            OriginError: The origin was needed and failed or refused.
            NotNeededError: Only of a reader that asks for what clients will read: they have asked themselves, or it `is_wanted` no more.
        """
        for _ in range(SHARED_ATTEMPTS_MAX):
            record = self._supply.record(name)
            is_described_only = metadata_only or (wanted is not None and wanted.start is None)
            part = NO_BYTES if metadata_only else wanted
            if record is not None and (
                record.extents or is_described_only or not self._is_being_told(name, record, wanted)
            ):
                opened = await self._open_known(name, record, part)
            elif record is None and self._is_deleted(name):
                raise _no_such_key(name)
            elif record is None and self.absence(name) is not None:
                raise self._parts.absent.refusal(name)
            elif is_described_only:
                opened = await self._open_by_head(name, part)
            else:
                opened = await self._open_cold(name, wanted, is_wanted)
            if opened is not None:
                return opened
        return await self._open_alone(name, NO_BYTES if metadata_only else wanted)

    def signed_by(self, authority_id: str, origin: OriginClient) -> "Reader":
        """Give the reader that asks as another authority: over the same rows and fills, with questions of its own.

        It is for names that the origin lets that authority read; this is not looked at here. What the origin shows to it is
        kept for all, but served to this reader's own clients only once the origin has shown it to the gateway's authority.
        """
        return self._other(authority_id, origin, is_foreign=True)

    def asking_ahead(self, origin: OriginClient, intent: Intent) -> "Reader":
        """Give the reader that asks, by a client of the gateway's own, for what this reader's clients will read.

        No client waits in the line for a question of lower priority: it joins one that has been let through, and the other is dropped
        when its turn comes after the client has asked. It is made once for each intent, and ends with this one.
        """
        ahead = self._other(intent.value, origin, is_foreign=False, intent=intent)
        ahead._ahead_of = self  # noqa: SLF001  of the same class
        return ahead

    def _other(
        self, whom: str, origin: OriginClient, *, is_foreign: bool, intent: Intent = Intent.READ
    ) -> "Reader":
        known = self._others.get((whom, is_foreign))
        if known is None:
            parts = replace(self._parts, origin=origin, supply=self._supply.signed_by(origin, intent))
            known = self._others[whom, is_foreign] = Reader(parts, is_foreign=is_foreign)
        return known

    def verdict(self, name: ObjectName, record: ObjectRecord) -> Verdict:
        """Say whether a version would be served as it is now, or the origin asked first."""
        return judge(record, *self.circumstances(name))

    def circumstances(self, name: ObjectName) -> tuple[Freshness, float, int, float]:
        """Give what `judge` and `may_serve_stale` rest on, now."""
        parts = self._parts
        trusted_epoch = NO_EPOCH_TRUSTED if parts.has_failed() else parts.trusted_epoch
        return self._freshness(name), parts.clock.wall_s(), trusted_epoch, parts.doubted_at_s(name)

    def knows(self, name: ObjectName) -> bool:
        """Say whether the index has a row of the name."""
        return self._supply.record(name) is not None

    def absence(self, name: ObjectName) -> Absence | None:
        """Say whether the origin is known not to have an object of which nothing is known here; never to another authority."""
        return None if self._is_foreign else self._parts.absent.find(name)

    def _note_absent(self, name: ObjectName, watch: Watch, question: Question) -> None:
        if not self._is_foreign and watch.is_current and self._supply.record(name) is None:
            self._parts.absent.note(name, question)

    def _is_being_told(self, name: ObjectName, record: ObjectRecord, wanted: RangeSpec | None) -> bool:
        """Whether the row comes of a cold read that has not begun its fill yet: who joins it shares the fill."""
        is_shared = self._freshness(name).mode is not FreshnessMode.ALWAYS
        flight = _flight(name, wanted)
        is_asked = flight in self._colds or flight in self._askers
        return is_shared and record.state is ObjectState.CLEAN and is_asked

    def _is_deleted(self, name: ObjectName) -> bool:
        overlay = self._overlay(name)
        return overlay is not None and overlay.is_tombstone

    def _overlay(self, name: ObjectName) -> OverlayRecord | None:
        return row_at(
            self._parts.index, Family.OVERLAY, keys.object_key(name.shelf, name.key), decode_overlay
        )

    def _freshness(self, name: ObjectName) -> Freshness:
        if name.version_id:
            may_change = name.version_id == NULL_VERSION or self._parts.has_object_lock(name.bucket)
            return _ASKED_ALWAYS if may_change else _NEVER_ASKED
        return self._parts.policies().find(name).freshness

    # --- known objects -----------------------------------------------------------------------------------------------

    async def _open_known(
        self, name: ObjectName, record: ObjectRecord, part: RangeSpec | None
    ) -> Opened | None:
        circumstances = self.circumstances(name)
        if self._is_foreign:
            record = as_shown(record)
        if judge(record, *circumstances) is Verdict.FRESH:
            return self._held(name, record, part, CacheResult.HIT)
        is_covered = may_serve_stale(record, *circumstances)
        is_strict = circumstances[0].mode is FreshnessMode.ALWAYS
        try:
            told = await self._validations.run(
                name,
                lambda: self._validate(name, record, is_strict=is_strict, is_covered=is_covered),
            )
        except (OriginUnavailableError, OverloadedError) as error:
            if not is_covered:
                raise
            code = error.code if isinstance(error, OriginUnavailableError) else "Overloaded"
            return self._opened(name, _Told(record), part, CacheResult.STALE, origin_failed(code))
        if told is None:
            return None
        is_same = told.record.version_id == record.version_id
        return self._opened(
            name,
            told,
            part,
            CacheResult.HIT if is_same else CacheResult.MISS,
            Reason.VALIDATED if is_same else Reason.CHANGED,
        )

    async def _validate(
        self, name: ObjectName, record: ObjectRecord, *, is_strict: bool, is_covered: bool
    ) -> _Told | None:
        """Ask the origin whether the version still stands; None where the row is to be read again.

        Args:
            name: The object.
            record: The version known.
            is_strict: Nobody may join who comes after the question was sent.
            is_covered: The version may be served where the origin fails, so its readers should not wait for it long.
        """
        if is_strict:
            self._validations.seal(name)
        asked, question = self._asked_now(), self._parts.absent.question(name)
        with self._parts.generations.watch(name) as watch:
            if self._overlay(name) is not None:
                return None
            try:
                found = await self._described(name, Priority.VALIDATION, is_covered=is_covered)
            except NoSuchKeyError:
                if not watch.is_current:
                    return None
                await self._supply.forget(name, record)
                self._note_absent(name, watch, question)
                raise
            except OriginRefusedError as error:
                if error.status == METHOD_NOT_ALLOWED and watch.is_current:
                    # A delete marker has taken its place.
                    await self._supply.forget(name, record)
                raise
            if not watch.is_current:
                return None
            if not _is_same(record, found):
                return await self._store(name, found, watch, asked, replaces=record.version_id)
            return await self._confirm(name, record, found, asked)

    async def _confirm(
        self, name: ObjectName, record: ObjectRecord, found: OriginObject, asked: Validated
    ) -> _Told | None:
        assert record.origin is not None, "a clean version has an origin identity"
        origin = msgspec.structs.replace(
            record.origin, last_modified_s=found.last_modified_s, version_id=found.version_id
        )
        mark = MarkValidated(
            name.shelf, name.key, record.version_id, asked, origin, found.checksums, _shown(record, found)
        )
        try:
            is_there = await self._parts.applier.change(mark)
        except INDEX_FAILURES:
            is_there = True
        return _Told(record) if is_there else None

    def _asked_now(self) -> Validated:
        """Take the time before the origin is asked: its answer may be as old as that (RFC 9111 section 4.2.3)."""
        epoch = self._parts.epoch
        return Validated(self._parts.clock.wall_s(), -epoch if self._is_foreign else epoch)

    def _opened(
        self, name: ObjectName, told: _Told, part: RangeSpec | None, result: CacheResult, reason: str = ""
    ) -> Opened | None:
        """Open what was told, as the row holds it now; None where the row has moved on since."""
        if not told.is_kept:
            return self._held(name, told.record, part, result, reason, told.fill)
        current = self._supply.record(name)
        if current is None or current.version_id != told.record.version_id:
            return None
        return self._held(name, current, part, result, reason, told.fill)

    def _held(
        self,
        name: ObjectName,
        record: ObjectRecord,
        part: RangeSpec | None,
        result: CacheResult,
        reason: str = "",
        fill: Fill | None = None,
    ) -> Opened | None:
        """Open a version whose row was read in this step; None where the key has moved on meanwhile."""
        span = (part or RangeSpec(start=0)).resolve(record.size) or ByteRange(0, 0)
        held = self._supply.held(name, record, span)
        return None if held is None else Opened(self._supply, name, held, result, reason, joined(fill))

    # --- unknown objects ---------------------------------------------------------------------------------------------

    async def _open_by_head(self, name: ObjectName, part: RangeSpec | None) -> Opened | None:
        is_late = name in self._heads
        told = await self._heads.run(name, lambda: self._head(name))
        return self._opened_unknown(name, told, part, is_late=is_late)

    def _opened_unknown(
        self, name: ObjectName, told: _Told | None, part: RangeSpec | None, *, is_late: bool
    ) -> Opened | None:
        """Open what was told to a question that was asked for this read, or before it (`is_late`)."""
        if told is None or (is_late and self._freshness(name).mode is FreshnessMode.ALWAYS):
            return None
        return self._opened(
            name, told, part, CacheResult.MISS, Reason.FETCHING if is_late else Reason.UNKNOWN
        )

    async def _head(self, name: ObjectName) -> _Told | None:
        with self._parts.generations.watch(name) as watch:
            if self._overlay(name) is not None:
                return None
            return await self._head_watched(name, watch)

    async def _head_watched(self, name: ObjectName, watch: Watch) -> _Told | None:
        asked, question = self._asked_now(), self._parts.absent.question(name)
        try:
            found = await self._described(name, Priority.FOREGROUND)
        except NoSuchKeyError:
            self._note_absent(name, watch, question)
            if watch.is_current:
                raise
            return None
        return await self._store(name, found, watch, asked, replaces=0)

    async def _open_alone(self, name: ObjectName, part: RangeSpec | None) -> Opened:
        """Ask once more, share nothing, keep nothing: for a key that is written all the time.

        A dirty key is served from its row, or is deleted. One that is clean when this step looks may be asked for
        (see the head of the module).
        """
        for _ in range(ROW_READS_MAX):
            record = self._supply.record(name)
            if record is not None and record.state is not ObjectState.CLEAN:
                opened = self._held(name, record, part, CacheResult.HIT)
                if opened is not None:
                    return opened
                continue
            overlay = self._overlay(name)
            if overlay is None:
                return await self._ask_alone(name, part)
            if record is None and overlay.is_tombstone:
                raise _no_such_key(name)
            # A change was applied between the two reads; its row is there by now.
        raise OverloadedError(f"{name} is written faster than its rows are read")

    async def _ask_alone(self, name: ObjectName, part: RangeSpec | None) -> Opened:
        asked = self._asked_now()
        found = await self._described(name, Priority.FOREGROUND)
        told = _record_of(found, self._parts.ids.take_version_id(), asked)
        opened = self._opened(name, _Told(told, is_kept=False), part, CacheResult.MISS, Reason.WRITTEN)
        assert opened is not None, "a version that is not kept cannot move on"
        return opened

    async def _described(
        self, name: ObjectName, priority: Priority, *, is_covered: bool = False
    ) -> OriginObject:
        found = await self._parts.origin.head_object(name, priority=priority, is_covered=is_covered)
        assert found is not None, "an unconditional HEAD describes the object"
        return found

    async def _open_cold(
        self, name: ObjectName, wanted: RangeSpec | None, is_wanted: Callable[[], bool]
    ) -> Opened | None:
        flight = _flight(name, wanted)
        clients = self._ahead_of
        asker = clients if clients is not None else self._askers.get(flight)
        if asker is not None and flight in asker._colds:  # noqa: SLF001  of the same class
            return await self._open_asked(asker, flight, wanted)
        is_late = flight in self._colds
        told = await self._colds.run(flight, lambda: self._cold(name, wanted, is_wanted))
        return self._opened_unknown(name, told, wanted, is_late=is_late)

    async def _open_asked(self, asker: "Reader", flight: _Flight, wanted: RangeSpec | None) -> Opened | None:
        """Open by the question of a reader that asks ahead of this one, or of which this one is ahead; where it fails, ask oneself."""
        try:
            told = await asker._colds.join(flight)  # noqa: SLF001  of the same class
        except (OriginUnavailableError, OverloadedError):
            return None
        except NotNeededError:
            if self._ahead_of is not None:
                raise
            return None
        return self._opened_unknown(flight[0], told, wanted, is_late=True)

    async def _cold(
        self, name: ObjectName, wanted: RangeSpec | None, is_wanted: Callable[[], bool]
    ) -> _Told | None:
        """Ask for the object and begin to fill it from the same answer."""
        if self._ahead_of is None:
            return await self._ask_cold(name, wanted, None)
        clients, flight = self._ahead_of, _flight(name, wanted)

        def lend() -> None:
            if clients._askers.get(flight) is self:  # noqa: SLF001  of the same class
                return  # sent again
            if clients._asks(flight) or not is_wanted():  # noqa: SLF001  of the same class
                raise NotNeededError(f"{name} is asked for by a client, or passed")
            clients._askers[flight] = self  # noqa: SLF001

        try:
            return await self._ask_cold(name, wanted, lend)
        finally:
            if clients._askers.get(flight) is self:  # noqa: SLF001
                del clients._askers[flight]  # noqa: SLF001

    def _asks(self, flight: _Flight) -> bool:
        """Whether a client's cold read has been asked for, by this reader or ahead of it, or has brought something."""
        record = self._supply.record(flight[0])
        is_asked = flight in self._colds or flight in self._askers
        return is_asked or (record is not None and bool(record.extents))

    async def _ask_cold(
        self, name: ObjectName, wanted: RangeSpec | None, on_turn: Callable[[], object] | None
    ) -> _Told | None:
        asked, question = self._asked_now(), self._parts.absent.question(name)
        with self._parts.generations.watch(name) as watch:
            if self._overlay(name) is not None:
                return None
            asking = self._parts.origin.get_object(name, _cold_range(wanted), on_turn=on_turn)
            opening = AsyncExitStack()
            try:
                answer = await opening.enter_async_context(asking)
            except NoSuchKeyError:
                self._note_absent(name, watch, question)
                if watch.is_current:
                    raise
                return None
            except OriginRefusedError as error:
                if error.status != 416:
                    raise
                # The range lies behind the end; the description alone lets the caller say so.
                return await self._head_watched(name, watch)
            told: _Told | None = None
            try:
                told = await self._cold_answered(name, answer, watch, asked, opening)
            finally:
                if told is None or told.fill is None:
                    await opening.aclose()
            return told

    async def _cold_answered(
        self, name: ObjectName, answer: OriginAnswer, watch: Watch, asked: Validated, opening: AsyncExitStack
    ) -> _Told | None:
        """Keep the version that an answer shows, and hand the answer on to a fill where its bytes can be kept."""
        told = await self._store(name, answer.object, watch, asked, replaces=0)
        if told is None:
            told = self._already_known(name, answer.object)
        if told is None or not told.record.size:
            return told
        fill = await self._supply.start_fill_from(
            name, told.record, answer.byte_range, opened_already(answer, opening), answer.object.checksums
        )
        return msgspec.structs.replace(told, fill=fill)

    def _already_known(self, name: ObjectName, found: OriginObject) -> _Told | None:
        """Find the version that a reader of another stretch stored while this answer came."""
        record = self._supply.record(name)
        if record is None or record.state is not ObjectState.CLEAN or not _is_same(record, found):
            return None
        return _Told(record)

    async def _store(
        self, name: ObjectName, found: OriginObject, watch: Watch, asked: Validated, *, replaces: int
    ) -> _Told | None:
        """Keep what the origin showed as a new version; None where the key was written meanwhile."""
        self._parts.absent.forget(name)
        if not watch.is_current:
            return None
        record = _record_of(found, self._parts.ids.take_version_id(), asked)
        try:
            is_stored = await self._parts.applier.change(StoreVersion(name.shelf, name.key, record, replaces))
        except INDEX_FAILURES:
            return _Told(record, is_kept=False)
        return _Told(record) if is_stored else None

    async def close(self) -> None:
        """End fills and questions in flight."""
        await self._supply.close()
        for reader in (self, *self._others.values()):
            for flight in (reader._validations, reader._heads, reader._colds):  # noqa: SLF001  of the same class
                await flight.close()


@asynccontextmanager
async def opened_already(answer: FillAnswer, holding: AsyncExitStack) -> AsyncIterator[FillAnswer]:
    """Make an opening of an answer that is there already, and held open by `holding`."""
    async with holding:
        yield answer


def _flight(name: ObjectName, wanted: RangeSpec | None) -> _Flight:
    """Name what readers of the same stretch wait for; a reader of another one need not wait for its bytes."""
    start = 0 if wanted is None or wanted.start is None else wanted.start
    return name, start // BLOCK_BYTES


def _no_such_key(name: ObjectName) -> NoSuchKeyError:
    return NoSuchKeyError(f"{name} does not exist")


def _cold_range(wanted: RangeSpec | None) -> RangeSpec | None:
    """Widen the range of a cold GET to whole blocks; None asks for the whole object.

    Not a ByteRange: nobody knows yet how many bytes come, and a budget must not be charged for what a client makes up.
    """
    if wanted is None or wanted.start is None or (wanted.start < BLOCK_BYTES and wanted.stop is None):
        return None
    stop = None if wanted.stop is None else -(-wanted.stop // BLOCK_BYTES) * BLOCK_BYTES
    return RangeSpec(wanted.start - wanted.start % BLOCK_BYTES, stop)


def _is_same(record: ObjectRecord, found: OriginObject) -> bool:
    """Whether the origin still shows the version we know, metadata included."""
    origin = record.origin
    if origin is None or origin.etag != found.etag or record.size != found.size:
        return False
    if _locks(record.headers) != _locks(found.headers):
        return False
    # A version of our own, just flushed, does not know the origin's date and id yet; it learns them now.
    if not origin.last_modified_s:
        # Flushed from here, and no answer to a write carries a date: another writer's may have the same bytes.
        return has_description(found, record)
    return origin.last_modified_s == found.last_modified_s


def _shown(record: ObjectRecord, found: OriginObject) -> Shown | None:
    """Give how the origin describes a version that still stands, where that differs from what is known; the bytes are the same.

    Dates have whole seconds, so what was written twice within one shows the same date (RFC 9110 section 8.8.2.2); and some of a
    description changes without a new date: storage class, restore, replication, tags (AWS API_HeadObject). What a HEAD says takes
    the place of what was known (RFC 9111 section 4.3.5).
    """
    is_known = sorted(found.headers) == sorted(record.headers) and sorted(found.user_metadata) == sorted(
        record.user_metadata
    )
    return None if is_known else Shown(found.headers, found.user_metadata)


def _locks(headers: tuple[tuple[str, str], ...]) -> frozenset[tuple[str, str]]:
    """Pick the headers of a version that change without a new one (AWS API_PutObjectRetention, API_PutObjectLegalHold)."""
    return frozenset(pair for pair in headers if pair[0].startswith(_LOCK_PREFIX))


def _record_of(found: OriginObject, version_id: int, validated: Validated) -> ObjectRecord:
    """Make the row of what the origin showed.

    Raises:
        OriginUnavailableError: Code BadAnswer, it says that the object is empty and gives the checksum of another. Nothing
            is ever filled of an empty object, so it is found out here.
    """
    check = None if found.size else whole_check(found.checksums)
    if check is not None:
        check.verify()
    return ObjectRecord(
        FORMAT,
        version_id,
        found.size,
        found.etag,
        found.last_modified_s,
        ObjectState.CLEAN,
        OriginIdentity("", 0, found.size, found.etag, found.version_id, found.last_modified_s),
        validated,
        headers=found.headers,
        user_metadata=found.user_metadata,
        checksums=found.checksums,
    )
