"""Ask the origin about one object, and keep what it says: by HEAD, or by a GET whose body is kept as it comes.

What the origin says of a key, a 404 too, is stored only if the key was clean when it was asked, and nothing was written to it since
(`Generations`); otherwise the answer is dropped and the row, which is newer, is to be read again. Who may share an answer is not
decided here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from storage import keys
from storage.absent_keys import AbsentKeys, Question
from storage.applier import Applier
from storage.cached import MarkValidated, StoreVersion
from storage.clock import Clock
from storage.described import is_same, record_of, shown
from storage.errors import NoSuchKeyError, OriginRefusedError
from storage.family import Family
from storage.fills import Fill
from storage.generations import Generations, Watch
from storage.holdings import Holdings
from storage.ids import Ids
from storage.openings import OpenAnswer
from storage.origin.answers import OriginAnswer
from storage.origin.client import OriginClient
from storage.origin.wire import OriginObject
from storage.records import ObjectRecord, ObjectState, OverlayRecord, Validated
from storage.rows import RowSource, decode_overlay, row_at
from storage.supply import INDEX_FAILURES, Supply
from storage.types import BLOCK_BYTES, ObjectName, Priority, RangeSpec

METHOD_NOT_ALLOWED: Final = 405
"""The origin's answer where the version that is named is a delete marker."""

RANGE_NOT_SATISFIABLE: Final = 416


@dataclass(slots=True)
class OriginReadsParts:
    """What such questions work with; made once by the engine.

    Attributes:
        absent: What the origin is known not to have.
    """

    index: RowSource
    applier: Applier
    origin: OriginClient
    generations: Generations
    ids: Ids
    clock: Clock
    holdings: Holdings
    supply: Supply
    epoch: int
    absent: AbsentKeys


class Told(msgspec.Struct, frozen=True):
    """What the origin said of an object.

    Attributes:
        record: The version.
        is_kept: Whether the row holds it.
        fill: What the answer began.
        is_late: The question was asked for another read, before this one.
    """

    record: ObjectRecord
    is_kept: bool = True
    fill: Fill | None = None
    is_late: bool = False


class OriginReads:
    """Asks as one authority."""

    def __init__(self, parts: OriginReadsParts, *, is_foreign: bool = False) -> None:
        """Take what is worked with; `is_foreign` where the origin is asked as another authority than the gateway's own."""
        self._parts = parts
        self.is_foreign: Final = is_foreign

    def signed_by(self, origin: OriginClient, supply: Supply, *, is_foreign: bool) -> "OriginReads":
        """Ask by another client, and keep what comes by the supply that goes with it."""
        return OriginReads(replace(self._parts, origin=origin, supply=supply), is_foreign=is_foreign)

    def overlay(self, name: ObjectName) -> OverlayRecord | None:
        """Read what is acknowledged of the object and not yet at the origin: then the origin's word counts for nothing."""
        return row_at(
            self._parts.index, Family.OVERLAY, keys.object_key(name.shelf, name.key), decode_overlay
        )

    # --- by HEAD -----------------------------------------------------------------------------------------------------

    async def validate(self, name: ObjectName, record: ObjectRecord, *, is_covered: bool) -> Told | None:
        """Ask whether a version still stands; None where the row is to be read again.

        `is_covered` says that the version may be served where the origin fails, so its readers should not wait for it long.
        """
        asked, question = self._asked_now(), self._parts.absent.question(name)
        with self._parts.generations.watch(name) as watch:
            if self.overlay(name) is not None:
                return None
            try:
                found = await self._described(name, Priority.VALIDATION, is_covered=is_covered)
            except NoSuchKeyError:
                if not watch.is_current:
                    return None
                await self._parts.supply.forget(name, record)
                self._note_absent(name, watch, question)
                raise
            except OriginRefusedError as error:
                if error.status == METHOD_NOT_ALLOWED and watch.is_current:
                    # A delete marker has taken its place.
                    await self._parts.supply.forget(name, record)
                raise
            if not watch.is_current:
                return None
            if not is_same(record, found):
                return await self._store(name, found, watch, asked, replaces=record.version_id)
            return await self._confirm(name, record, found, asked)

    async def _confirm(
        self, name: ObjectName, record: ObjectRecord, found: OriginObject, asked: Validated
    ) -> Told | None:
        assert record.origin is not None, "a clean version has an origin identity"
        origin = msgspec.structs.replace(
            record.origin, last_modified_s=found.last_modified_s, version_id=found.version_id
        )
        mark = MarkValidated(
            name.shelf, name.key, record.version_id, asked, origin, found.checksums, shown(record, found)
        )
        try:
            is_there = await self._parts.applier.change(mark)
        except INDEX_FAILURES:
            is_there = True
        return Told(record) if is_there else None

    async def describe(self, name: ObjectName) -> Told | None:
        """Ask what an object is of which nothing is known; None where the row is to be read again."""
        with self._parts.generations.watch(name) as watch:
            if self.overlay(name) is not None:
                return None
            return await self._describe_watched(name, watch)

    async def _describe_watched(self, name: ObjectName, watch: Watch) -> Told | None:
        asked, question = self._asked_now(), self._parts.absent.question(name)
        try:
            found = await self._described(name, Priority.FOREGROUND)
        except NoSuchKeyError:
            self._note_absent(name, watch, question)
            if watch.is_current:
                raise
            return None
        return await self._store(name, found, watch, asked, replaces=0)

    async def describe_alone(self, name: ObjectName) -> Told:
        """Ask what an object is for one reader, and keep nothing: what is written to the key from this step on is no matter."""
        asked = self._asked_now()
        found = await self._described(name, Priority.FOREGROUND)
        return Told(record_of(found, self._parts.ids.take_version_id(), asked), is_kept=False)

    async def _described(
        self, name: ObjectName, priority: Priority, *, is_covered: bool = False
    ) -> OriginObject:
        found = await self._parts.origin.head_object(name, priority=priority, is_covered=is_covered)
        assert found is not None, "an unconditional HEAD describes the object"
        return found

    # --- by GET ------------------------------------------------------------------------------------------------------

    async def read(
        self,
        name: ObjectName,
        wanted: RangeSpec | None,
        on_turn: Callable[[], object] | None = None,
        follow_up: "Callable[[], OriginReads] | None" = None,
    ) -> Told | None:
        """Ask for an object of which nothing is known, and begin to fill it from the same answer; None where the row is to be read again.

        `on_turn` is called when the request may go; where it raises NotNeededError nothing is sent. A range behind the end is followed
        by a HEAD, of these unless `follow_up` says of whom.
        """
        asked, question = self._asked_now(), self._parts.absent.question(name)
        with self._parts.generations.watch(name) as watch:
            if self.overlay(name) is not None:
                return None
            asking = self._parts.origin.get_object(name, whole_blocks(wanted), on_turn=on_turn)
            try:
                answer = await asking.__aenter__()
            except NoSuchKeyError:
                self._note_absent(name, watch, question)
                if watch.is_current:
                    raise
                return None
            except OriginRefusedError as error:
                if error.status != RANGE_NOT_SATISFIABLE:
                    raise
                # The range lies behind the end; the description alone lets the caller say so.
                by = self if follow_up is None else follow_up()
                return await by._describe_watched(name, watch)  # noqa: SLF001  of the same class
            told: Told | None = None
            try:
                told = await self._answered(name, answer, watch, asked, OpenAnswer(answer, asking))
            finally:
                if told is None or told.fill is None:
                    await asking.__aexit__(None, None, None)
            return told

    async def _answered(
        self, name: ObjectName, answer: OriginAnswer, watch: Watch, asked: Validated, opening: OpenAnswer
    ) -> Told | None:
        """Keep the version that an answer shows, and hand the answer on to a fill where its bytes can be kept."""
        found = answer.object
        told = await self._store(name, found, watch, asked, replaces=0)
        if told is None:
            told = self._already_known(name, found)
        if told is None or not told.record.size:
            return told
        fill = await self._parts.supply.start_fill_from(
            name, told.record, answer.byte_range, opening, found.checksums
        )
        return Told(told.record, told.is_kept, fill)

    def _already_known(self, name: ObjectName, found: OriginObject) -> Told | None:
        """Find the version that a reader of another stretch stored while this answer came."""
        record = self._parts.holdings.record(name)
        if record is None or record.state is not ObjectState.CLEAN or not is_same(record, found):
            return None
        return Told(record)

    # --- what is kept ------------------------------------------------------------------------------------------------

    def _asked_now(self) -> Validated:
        """Take the time before the origin is asked: its answer may be as old as that (RFC 9111 section 4.2.3)."""
        epoch = self._parts.epoch
        return Validated(self._parts.clock.wall_s(), -epoch if self.is_foreign else epoch)

    def _note_absent(self, name: ObjectName, watch: Watch, question: Question) -> None:
        if not self.is_foreign and watch.is_current and self._parts.holdings.record(name) is None:
            self._parts.absent.note(name, question)

    async def _store(
        self, name: ObjectName, found: OriginObject, watch: Watch, asked: Validated, *, replaces: int
    ) -> Told | None:
        """Keep what the origin showed as a new version; None where the key was written meanwhile."""
        self._parts.absent.forget(name)
        if not watch.is_current:
            return None
        record = record_of(found, self._parts.ids.take_version_id(), asked)
        try:
            is_stored = await self._parts.applier.change(StoreVersion(name.shelf, name.key, record, replaces))
        except INDEX_FAILURES:
            return Told(record, is_kept=False)
        return Told(record) if is_stored else None


def late(told: Told) -> Told:
    """Note that it was told to a question that was asked before."""
    return msgspec.structs.replace(told, is_late=True)


def whole_blocks(wanted: RangeSpec | None) -> RangeSpec | None:
    """Widen the range of a read to whole blocks; None asks for the whole object.

    Not a ByteRange: nobody knows yet how many bytes come, and a budget must not be charged for what a client makes up.
    """
    if wanted is None or wanted.start is None or (wanted.start < BLOCK_BYTES and wanted.stop is None):
        return None
    stop = None if wanted.stop is None else -(-wanted.stop // BLOCK_BYTES) * BLOCK_BYTES
    return RangeSpec(wanted.start - wanted.start % BLOCK_BYTES, stop)
