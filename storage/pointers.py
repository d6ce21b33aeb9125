"""What each published target shows: known here, asked of the origin by the target's freshness, kept in the journal.

The manifest at the origin is the truth; what is known here is a copy of it with a time. The journal holds the last pointer of
each target for one case only, an origin that does not answer after a restart. Nothing is shown by a start before the origin was
asked, so a crash between a manifest's write and its record in the journal shows nothing wrong.

Order. A pointer is journaled before it is shown, so that a restart never goes back behind what was shown here. Questions and
publishes overlap: of two answers, the one whose question was asked after the other was known is the newer. Where that does not
tell, the higher generation is, since generations only grow; so what was asked before a switch does not come back after it.
Ticks tell what was before what; the wall clock, which may jump, tells only the age of what is known. Whether an answer is
overtaken is looked at in the same step that hands its record to the journal, and again before it is shown.

A disk that takes no writes does not stop reads: a pointer that cannot be journaled is shown all the same.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from storage.clock import Clock
from storage.commit import Commit
from storage.errors import (
    GenerationGoneError,
    NoSuchKeyError,
    OriginUnavailableError,
    OverloadedError,
    ReadOnlyError,
    StorageError,
)
from storage.origin.answers import OriginAnswer
from storage.origin.client import COVERED_ANSWER_S, OriginClient
from storage.policy import FreshnessMode, PolicyTable
from storage.publish import (
    MANIFEST_BYTES_MAX,
    MANIFEST_FORMAT,
    MANIFEST_NAME,
    UNPUBLISHED,
    Manifest,
    Pointer,
    Target,
    Targets,
    View,
    decode_manifest,
    is_manifest_name,
)
from storage.records import FORMAT, PointerSet
from storage.requests import DeleteResult
from storage.singleflight import SingleFlight
from storage.types import ObjectName, Priority

RETRY_S: Final = 1.0
"""So long after a question without an answer the origin is not asked again, while what is known covers for it."""

JOURNAL_EVERY_S: Final = 300.0
"""So old the time in the journal may be: a start without the origin counts `stale_s` from it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What the origin holds as a target's manifest; None and "" where it holds none."""

    manifest: Manifest | None
    etag: str


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a target.

    Attributes:
        checked_at_s: Wall time before the question that the origin answered last.
        journaled_at_s: The `checked_at_s` that the journal holds.
        answered: The tick at which it became known.
        last_generation: The highest one that was ever seen; a manifest that went missing must not begin again at 1.
        is_asked: The origin was asked by this process; what a journal says must be confirmed first.
    """

    manifest: Manifest | None
    etag: str
    checked_at_s: float
    journaled_at_s: float
    last_generation: int
    is_asked: bool
    answered: int = 0


class Pointers:
    """The pointers of all targets. Owns the questions in flight."""

    def __init__(
        self,
        *,
        origin: OriginClient,
        commit: Commit,
        clock: Clock,
        policies: Callable[[], PolicyTable],
        journaled: Iterable[PointerSet],
    ) -> None:
        self._origin = origin
        self._commit = commit
        self._clock = clock
        self._policies = policies
        self._table: PolicyTable | None = None
        self._targets = Targets()
        self._known = {Target(one.bucket, one.target): _known_of(one) for one in journaled}
        self._ticks = 0
        self._flights: SingleFlight[Target, _Known] = SingleFlight()
        self._retry_at_s: dict[Target, float] = {}

    @property
    def targets(self) -> Targets:
        """The targets of the policies in force."""
        table = self._policies()
        if table is not self._table:
            self._table, self._targets = table, Targets(table.policies)
        return self._targets

    async def view(self, name: ObjectName) -> View | None:
        """Say how a name is read: under a target as its source's, of one generation; None where it means itself.

        Raises:
            OriginError: Nothing is known, and the origin fails or refused.
        """
        target = self.targets.find(name)
        if target is None or name == target.manifest:
            return None
        pointer = await self.pointer(target)
        return View(pointer.read_name(name), pointer.generation)

    async def pointer(self, target: Target, generation: int | None = None) -> Pointer:
        """Give what a target shows now; or what it showed in a generation, for a listing that began with it.

        Raises:
            GenerationGoneError: The generation is not known any more, or never was.
            OriginError: Nothing is known, and the origin fails or refused.
        """
        known = await self._current(target)
        if generation is None or generation == _generation(known):
            return _pointer(target, known)
        if not known.is_asked or generation > _generation(known):
            # Another gateway has seen a newer one; and what a journal says does not name those before it.
            known = await self._ask(target)
        source = "" if known.manifest is None else known.manifest.source_of(generation)
        if not source:
            raise GenerationGoneError(
                f"generation {generation} of {target} is not known any more; begin the listing anew"
            )
        return Pointer(target, source, generation)

    def check_writable(self, name: ObjectName) -> None:
        """Refuse a write of a client under a target, or of a manifest: one that lies there before the target would be its pointer.

        Raises:
            ReadOnlyError: It lies under one, or has a manifest's name, wherever that is.
        """
        refusal = self._refusal(name)
        if refusal:
            raise ReadOnlyError(refusal)

    def refused_lines(self, bucket: str, keys: Iterable[str]) -> Mapping[str, DeleteResult]:
        """Give the lines of a batch of deletes that `check_writable` refuses, by key, each with its refusal."""
        found = ((key, self._refusal(ObjectName(bucket, key))) for key in keys)
        return {key: DeleteResult(key, "AccessDenied", refusal) for key, refusal in found if refusal}

    def shown(self) -> Sequence[Pointer]:
        """Give the pointers of all targets in force that are known here, without asking anybody."""
        found = [_pointer(target, known) for target, known in self._known.items() if target in self.targets]
        return sorted((pointer for pointer in found if pointer.source), key=lambda one: one.target)

    # --- for the publisher -------------------------------------------------------------------------------------------

    async def read(self, target: Target, known_etag: str = "") -> Found | None:
        """Ask the origin for a target's manifest; None where it is the one of `known_etag`.

        Raises:
            OriginUnavailableError: Also with code BadAnswer, where what lies there is no manifest.
            OriginError: The origin refused.
        """
        try:
            async with self._origin.get_object(
                target.manifest, if_none_match=known_etag, priority=Priority.VALIDATION
            ) as answer:
                if answer.not_modified:
                    return None
                return Found(_decoded(await _document(answer), target), answer.object.etag)
        except NoSuchKeyError:
            return Found(None, "")

    def tick(self) -> int:
        """Give a number for this moment; it goes to `adopt` with what was written after it."""
        self._ticks += 1
        return self._ticks

    async def adopt(self, target: Target, found: Found, asked: int) -> None:
        """Take over the manifest that this gateway wrote after the tick `asked`: journaled and shown on return.

        Raises:
            StorageError: It is not journaled, nor shown; the next question to the origin finds it.
        """
        await self._take(target, found, asked, self._clock.wall_s(), must_journal=True)

    def last_generation(self, target: Target) -> int:
        """Give the highest generation of a target that was seen here."""
        known = self._known.get(target)
        return UNPUBLISHED if known is None else known.last_generation

    def take_over(self, before: "Pointers") -> None:
        """Know what another one knows: what it showed may be newer than what the journal holds."""
        self._known |= before._known  # noqa: SLF001  of the same class
        self._ticks = max(self._ticks, before._ticks)  # noqa: SLF001  as above

    async def close(self) -> None:
        """End the questions in flight."""
        await self._flights.close()

    def _refusal(self, name: ObjectName) -> str:
        """Say why no client writes a name; "" where one may."""
        target = self.targets.find(name)
        if target is not None:
            return f"{target} is published and read-only"
        if is_manifest_name(name.key):
            return f"the name {MANIFEST_NAME} is kept for what forebay publish writes"
        return ""

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _current(self, target: Target) -> _Known:
        known = self._known.get(target)
        if known is None:
            return await self._ask(target)
        freshness = self.targets.freshness(target)
        is_timed = freshness.mode is FreshnessMode.TTL
        age_s = self._clock.wall_s() - known.checked_at_s
        if known.is_asked and is_timed and 0 <= age_s < freshness.ttl_s:
            return known
        if not (is_timed and 0 <= age_s < freshness.ttl_s + freshness.stale_s):
            return await self._ask(target)
        if self._clock.monotonic_s() < self._retry_at_s.get(target, 0.0):
            return known
        try:
            async with asyncio.timeout(COVERED_ANSWER_S):
                return await self._ask(target)
        except (OriginUnavailableError, OverloadedError, TimeoutError) as error:
            log.info("%s: the manifest is not checked, the pointer known stays: %s", target, error)
            self._retry_at_s[target] = self._clock.monotonic_s() + RETRY_S
            return known

    async def _ask(self, target: Target) -> _Known:
        return await self._flights.run(target, lambda: self._refresh(target))

    async def _refresh(self, target: Target) -> _Known:
        if self.targets.freshness(target).mode is FreshnessMode.ALWAYS:
            # What the origin was asked before a read began proves nothing to that read.
            self._flights.seal(target)
        asked, asked_at_s = self.tick(), self._clock.wall_s()
        before = self._known.get(target)
        found = await self.read(target, before.etag if before is not None and before.is_asked else "")
        if found is None:
            assert before is not None, "not modified, and nothing was known"
            found = Found(before.manifest, before.etag)
        return await self._take(target, found, asked, asked_at_s, must_journal=False)

    async def _take(
        self, target: Target, found: Found, asked: int, asked_at_s: float, *, must_journal: bool
    ) -> _Known:
        """Journal what was found, where that is news, and show it; give what is shown then."""
        before = self._known.get(target)
        if before is not None and _is_overtaken(found, asked, before):
            return before
        known = self._next(before, found, asked_at_s)
        is_due = known.manifest is not None and asked_at_s - known.journaled_at_s > JOURNAL_EVERY_S
        if is_due or _is_news(before, known):
            known = await self._journaled(target, known, must=must_journal)
            current = self._known.get(target)
            if current is not None and _is_overtaken(found, asked, current):
                # Its record may stand before this one in the journal.
                await self._journaled(target, current, must=False)
                return current
        self._known[target] = replace(known, answered=self.tick())
        return known

    def _next(self, before: _Known | None, found: Found, asked_at_s: float) -> _Known:
        generation = UNPUBLISHED if found.manifest is None else found.manifest.generation
        last = UNPUBLISHED if before is None else before.last_generation
        if UNPUBLISHED < generation < last:
            log.warning(
                "generation %d follows %d: an old manifest was put back at the origin", generation, last
            )
        return _Known(
            found.manifest,
            found.etag,
            asked_at_s,
            0.0 if before is None else before.journaled_at_s,
            max(generation, last),
            is_asked=True,
        )

    async def _journaled(self, target: Target, known: _Known, *, must: bool) -> _Known:
        try:
            await self._commit.commit(_record(target, known))
        except StorageError as error:
            if must:
                raise
            log.warning("%s: the pointer is not journaled: %s", target, error)
            return known
        return replace(known, journaled_at_s=known.checked_at_s)


def _is_overtaken(found: Found, asked: int, known: _Known) -> bool:
    """Whether what is known is newer than what was found by a question that was asked at a tick."""
    generation = UNPUBLISHED if found.manifest is None else found.manifest.generation
    return known.answered > asked and generation < _generation(known)


def _known_of(record: PointerSet) -> _Known:
    manifest = Manifest(MANIFEST_FORMAT, record.source, record.generation) if record.source else None
    checked_at_s = record.checked_at_s
    return _Known(manifest, "", checked_at_s, checked_at_s, record.generation, is_asked=False)


def _record(target: Target, known: _Known) -> PointerSet:
    source = "" if known.manifest is None else known.manifest.source
    generation = known.last_generation if known.manifest is None else known.manifest.generation
    return PointerSet(FORMAT, target.bucket, target.prefix, source, generation, known.checked_at_s)


def _is_news(before: _Known | None, known: _Known) -> bool:
    """Whether the journal has to hear of it: not of a target where nothing ever was."""
    if before is None:
        return known.manifest is not None
    return _identity(before) != _identity(known)


def _identity(known: _Known) -> tuple[str, int]:
    return ("", 0) if known.manifest is None else (known.manifest.source, known.manifest.generation)


def _generation(known: _Known) -> int:
    return UNPUBLISHED if known.manifest is None else known.manifest.generation


def _pointer(target: Target, known: _Known) -> Pointer:
    if known.manifest is None:
        return Pointer(target)
    return Pointer(target, known.manifest.source, known.manifest.generation)


async def _document(answer: OriginAnswer) -> bytes:
    data = bytearray()
    async for chunk in answer.chunks():
        data += chunk
        if len(data) > MANIFEST_BYTES_MAX:
            break  # cut, it is no JSON any more
    return bytes(data)


def _decoded(data: bytes, target: Target) -> Manifest:
    try:
        return decode_manifest(data, target)
    except ValueError as error:
        raise OriginUnavailableError(str(error), status=0, code="BadAnswer") from error
