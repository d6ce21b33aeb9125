"""Open objects for reading: from the index while that is right, from the origin where it must be asked.

    open -> row? -> fresh: serve it
                 -> not fresh: validate (HEAD), then serve it, or the new version, or 404
         -> tombstone: 404
         -> nothing known: ask the origin. A GET is one request: its answer's headers make the version, its body fills it.

What the origin says of a key counts only if nothing was written to it since (`storage/origin_reads.py`); otherwise the row, which
is newer, is read again. Equal questions asked at the same time are asked once (`storage/cold_reads.py`); but a policy that says
`always` is kept to the letter: what the origin was asked before a read began proves nothing to that read.

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

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from storage.absent_keys import Absence, AbsentKeys
from storage.asks import FOR_READ, Ask
from storage.clock import Clock
from storage.cold_reads import ColdReads, stretch_of
from storage.errors import NoSuchKeyError, OriginUnavailableError, OverloadedError
from storage.fills import Fill
from storage.freshness import NO_EPOCH_TRUSTED, Verdict, as_shown, judge, may_serve_stale
from storage.holdings import Holdings
from storage.opened import Opened, joined
from storage.origin.client import OriginClient
from storage.origin_reads import OriginReads, Told, late
from storage.policy import Freshness, FreshnessMode, PolicyTable
from storage.reasons import Reason, origin_failed
from storage.records import ObjectRecord, ObjectState
from storage.singleflight import SingleFlight
from storage.supply import Supply
from storage.types import NULL_VERSION, ByteRange, CacheResult, ObjectName, RangeSpec

SHARED_ATTEMPTS_MAX: Final = 3
"""So often an open starts over because the key was written while the origin was asked."""

ROW_READS_MAX: Final = 100
"""So often in a row a key's rows are read again because a change was applied between two reads."""

_NEVER_ASKED: Final = Freshness(mode=FreshnessMode.IMMUTABLE)
_ASKED_ALWAYS: Final = Freshness(mode=FreshnessMode.ALWAYS)
"""Whatever the policy says: its word `immutable` cannot mean the version `null`, which others overwrite, nor what is locked."""

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

    reads: OriginReads
    holdings: Holdings
    supply: Supply
    policies: Callable[[], PolicyTable]
    clock: Clock
    trusted_epoch: int
    has_failed: Callable[[], bool]
    doubted_at_s: Callable[[ObjectName], float]
    absent: AbsentKeys
    has_object_lock: Callable[[str], bool]


class Reader:
    """Opens objects and feeds their bodies. Owns the questions in flight."""

    def __init__(self, parts: ReaderParts, clients: "Reader | None" = None) -> None:
        """Make a reader; `clients` is the one ahead of whose clients it asks."""
        self._parts = parts
        self._reads = parts.reads
        self._holdings = parts.holdings
        self._supply = parts.supply
        self._ask = FOR_READ
        self._others: dict[tuple[str, bool], Reader] = {}
        self._validations: SingleFlight[ObjectName, Told | None] = SingleFlight()
        self._heads: SingleFlight[ObjectName, Told | None] = SingleFlight()
        self._colds: ColdReads = ColdReads(
            parts.reads,
            parts.holdings,
            None if clients is None else clients._colds,  # noqa: SLF001  of the same class
        )

    async def open(self, name: ObjectName, wanted: RangeSpec | None, *, metadata_only: bool) -> Opened:
        """Give one version of the object to read from.

        Args:
            name: The object.
            wanted: What part will be read, so that a cold GET asks the origin for no more.
            metadata_only: No body will be read, or perhaps none; a cold object is asked for by HEAD.

        Raises:
            NoSuchKeyError: There is none, or its delete was acknowledged.
            OriginError: The origin was needed and failed or refused.
            NotNeededError: Only of a reader that asks ahead of clients: they have asked themselves, or it is wanted no more.
        """
        for _ in range(SHARED_ATTEMPTS_MAX):
            record = self._holdings.record(name)
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
                told = await self._colds.read(name, wanted, self._ask)
                opened = None if told is None else self._opened_unknown(name, told, wanted)
            if opened is not None:
                return opened
        return await self._open_alone(name, NO_BYTES if metadata_only else wanted)

    def signed_by(self, authority_id: str, origin: OriginClient) -> "Reader":
        """Give the reader that asks as another authority: over the same rows and fills, with questions of its own.

        It is for names that the origin lets that authority read; this is not looked at here. What the origin shows to it is
        kept for all, but served to this reader's own clients only once the origin has shown it to the gateway's authority.
        """
        return self._other(authority_id, origin, FOR_READ, is_foreign=True)

    def asking_ahead(self, ask: Ask, origin: OriginClient) -> "Reader":
        """Give the reader that asks, by a client of the gateway's own, for what this reader's clients will read.

        Its questions are shared by all who ask with the same intent, and end with this one.
        """
        ahead = copy.copy(self._other(ask.intent.value, origin, Ask(ask.intent), is_foreign=False))
        ahead._ask = ask  # noqa: SLF001  of the same class
        return ahead

    def _other(self, whom: str, origin: OriginClient, ask: Ask, *, is_foreign: bool) -> "Reader":
        known = self._others.get((whom, is_foreign))
        if known is None:
            supply = self._supply.signed_by(origin, ask)
            reads = self._reads.signed_by(origin, supply, is_foreign=is_foreign)
            parts = replace(self._parts, reads=reads, supply=supply)
            known = self._others[whom, is_foreign] = Reader(parts, None if is_foreign else self)
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
        return self._holdings.record(name) is not None

    def absence(self, name: ObjectName) -> Absence | None:
        """Say whether the origin is known not to have an object of which nothing is known here; never to another authority."""
        return None if self._reads.is_foreign else self._parts.absent.find(name)

    def _is_being_told(self, name: ObjectName, record: ObjectRecord, wanted: RangeSpec | None) -> bool:
        """Whether the row comes of a cold read that has not begun its fill yet: who joins it shares the fill."""
        is_shared = self._freshness(name).mode is not FreshnessMode.ALWAYS
        is_clean = record.state is ObjectState.CLEAN
        return is_shared and is_clean and self._colds.is_asking(stretch_of(name, wanted))

    def _is_deleted(self, name: ObjectName) -> bool:
        overlay = self._reads.overlay(name)
        return overlay is not None and overlay.is_tombstone

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
        if self._reads.is_foreign:
            record = as_shown(record)
        if judge(record, *circumstances) is Verdict.FRESH:
            return self._held(name, record, part, CacheResult.HIT)
        is_covered = may_serve_stale(record, *circumstances)
        is_strict = circumstances[0].mode is FreshnessMode.ALWAYS
        validate = self._validate_sealed if is_strict else self._reads.validate
        try:
            told = await self._validations.run(name, lambda: validate(name, record, is_covered=is_covered))
        except (OriginUnavailableError, OverloadedError) as error:
            if not is_covered:
                raise
            code = error.code if isinstance(error, OriginUnavailableError) else "Overloaded"
            return self._opened(name, Told(record), part, CacheResult.STALE, origin_failed(code))
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

    async def _validate_sealed(
        self, name: ObjectName, record: ObjectRecord, *, is_covered: bool
    ) -> Told | None:
        """Ask the origin, for none who comes after the question was sent."""
        self._validations.seal(name)
        return await self._reads.validate(name, record, is_covered=is_covered)

    def _opened(
        self, name: ObjectName, told: Told, part: RangeSpec | None, result: CacheResult, reason: str = ""
    ) -> Opened | None:
        """Open what was told, as the row holds it now; None where the row has moved on since."""
        if not told.is_kept:
            return self._held(name, told.record, part, result, reason, told.fill)
        current = self._holdings.record(name)
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
        held = self._holdings.held(name, record, span)
        return (
            None
            if held is None
            else Opened(self._supply.body_parts, name, held, result, reason, joined(fill))
        )

    # --- unknown objects ---------------------------------------------------------------------------------------------

    async def _open_by_head(self, name: ObjectName, part: RangeSpec | None) -> Opened | None:
        is_late = name in self._heads
        told = await self._heads.run(name, lambda: self._reads.describe(name))
        if told is None:
            return None
        return self._opened_unknown(name, late(told) if is_late else told, part)

    def _opened_unknown(self, name: ObjectName, told: Told, part: RangeSpec | None) -> Opened | None:
        """Open what was told to a question that was asked for this read, or before it."""
        if told.is_late and self._freshness(name).mode is FreshnessMode.ALWAYS:
            return None
        return self._opened(
            name, told, part, CacheResult.MISS, Reason.FETCHING if told.is_late else Reason.UNKNOWN
        )

    async def _open_alone(self, name: ObjectName, part: RangeSpec | None) -> Opened:
        """Ask once more, share nothing, keep nothing: for a key that is written all the time.

        A dirty key is served from its row, or is deleted. One that is clean when this step looks may be asked for
        (see the head of the module).
        """
        for _ in range(ROW_READS_MAX):
            record = self._holdings.record(name)
            if record is not None and record.state is not ObjectState.CLEAN:
                opened = self._held(name, record, part, CacheResult.HIT)
                if opened is not None:
                    return opened
                continue
            overlay = self._reads.overlay(name)
            if overlay is None:
                return await self._ask_alone(name, part)
            if record is None and overlay.is_tombstone:
                raise _no_such_key(name)
            # A change was applied between the two reads; its row is there by now.
        raise OverloadedError(f"{name} is written faster than its rows are read")

    async def _ask_alone(self, name: ObjectName, part: RangeSpec | None) -> Opened:
        told = await self._reads.describe_alone(name)
        opened = self._opened(name, told, part, CacheResult.MISS, Reason.WRITTEN)
        assert opened is not None, "a version that is not kept cannot move on"
        return opened

    async def close(self) -> None:
        """End fills and questions in flight."""
        await self._supply.close()
        for reader in (self, *self._others.values()):
            for flight in (reader._validations, reader._heads, reader._colds):  # noqa: SLF001  of the same class
                await flight.close()


def _no_such_key(name: ObjectName) -> NoSuchKeyError:
    return NoSuchKeyError(f"{name} does not exist")
