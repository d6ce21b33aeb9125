"""Where bodies get their bytes from: what they ask of who knows what is here, and of who brings what is not."""

from dataclasses import dataclass
from typing import Protocol

from storage.ahead import Ahead, PieceSource
from storage.cached import DropExtents
from storage.fill_table import FillTable
from storage.fills import Fill
from storage.holdings import Held
from storage.openings import Opening
from storage.records import ObjectRecord
from storage.segments import SegmentStore
from storage.types import ByteRange, ObjectName
from storage.workers import Workers


class Holder(Protocol):
    """Who knows what of a version is here: `holdings.Holdings`."""

    def hold(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Held:
        """Read what is known and present of `span` of the version now, and pin it.

        Where the key has moved on, it is what `record` itself names.

        Raises:
            ObjectChangedError: The key has moved on from a version that only the gateway had.
        """
        ...


class VersionSource(PieceSource, Protocol):
    """What a body asks for what is not here: `supply.Supply`."""

    def start_fill(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Fill | None:
        """Begin to bring `span` of the version; None where it is not to be kept. Not joined yet; does not wait.

        Raises:
            OverloadedError: There is no room (DiskFullError: `make_room` may help), or no segment id at the moment.
            EngineClosedError: The engine is stopping.
        """
        ...

    async def make_room(self, name: ObjectName, span: ByteRange) -> bool:
        """Wait a bounded time for room to begin a fill of `span`; False where it does not come."""
        ...

    def stream(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Opening:
        """Ask the origin for `span` of the version, and of no other, without keeping it."""
        ...

    async def drop_extents(self, change: DropExtents) -> None:
        """Forget clean bytes that cannot be served."""
        ...

    async def forget(self, name: ObjectName, record: ObjectRecord) -> None:
        """Forget a clean version that the origin does not have any more, or that it told wrong things of."""
        ...

    def why_not_kept(self, span: ByteRange) -> str:
        """Say why `start_fill` gave none for `span`."""
        ...

    def note_unreadable(self, name: ObjectName, record: ObjectRecord, why: str) -> None:
        """Raise the alarm: bytes of the version cannot be read, which only the gateway has."""
        ...

    def note_read(
        self, name: ObjectName, record: ObjectRecord, span: ByteRange, place: tuple[int, int] | None
    ) -> None:
        """Tell the eviction policy that bytes were read from a segment and offset, or had to be asked of the origin (None)."""
        ...

    def count_bytes(self, *, from_cache: int, from_origin: int) -> None:
        """Count what was handed out."""
        ...


@dataclass(frozen=True, slots=True)
class BodyParts:
    """What all bodies of one reader share; without `ahead` nothing is asked for ahead of them."""

    source: VersionSource
    holdings: Holder
    segments: SegmentStore
    fills: FillTable
    workers: Workers
    ahead: Ahead | None = None
