"""Take a body in from a client: hash it and write it to reserved space, in bounded memory.

    Inlet.begin ──> BodyIntake.take      for write-back: PutObject and UploadPart alike
    Inlet.copy  ──> BodyIntake.pieces    the local copy of what is streamed through to the origin
    HeldBodies  ──> HeldContent          what is written through is taken into memory first, where it is small
    Inlet.spool ──> BodyIntake.take      what is written through and says its length only at its end, where it is long

A tiny body stays in memory and rides in the journal. Any other body gets its space before its first byte, so that a
full disk is told at the head; what fails later leaves dead space in its segment, never a half-written object. A body
that says at its head only how long it may be gets that much, and what it leaves is dead space, too. While
the disk is known to be bad no body begins here at all: the caller writes through instead, from the first byte.
"""

import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, Self

import msgspec

from storage.clock import Clock
from storage.errors import DiskFailedError, DiskFullError, StorageError, UnknownOutcomeError
from storage.records import NOWHERE
from storage.requests import BoundedContent, Content
from storage.segments import BlockChecksums, Reservation, SegmentStore
from storage.types import BLOCK_BYTES, MIB, TINY_BODY_BYTES_MAX, Checksum, Extent, Location, Stream
from storage.workers import Workers

SYNC_EVERY_BYTES: Final = 8 * MIB
"""A long body is synced as it comes, so that a small commit in the same segment never waits for much of it."""

PIECE_BYTES: Final = MIB
"""A held body is given in pieces of this size."""

BAD_DISK_S: Final = 5.0
"""So long after a write that the disk refused no body begins; then one is tried again."""

HELD_BODY_BYTES_MAX: Final = 8 * MIB
"""A body up to this size is taken in whole before it is written through: nothing unverified reaches the origin."""

HELD_BYTES_MAX: Final = 64 * MIB
"""All bodies held at a time; one that finds no room is streamed, with its last piece held back."""

log = logging.getLogger(__name__)


class Intake(msgspec.Struct, frozen=True):
    """A body that is on disk, or in memory where it is tiny; durable once a commit has named its extents."""

    size: int
    md5_hex: str
    extents: tuple[Extent, ...]
    tiny: bytes = b""

    async def pieces(self) -> AsyncIterator[bytes]:
        """Give a tiny body."""
        yield self.tiny


class BodyIntake:
    """Takes in one body, once, by `take` or by `pieces`.

    A context manager that is left once a row names the bytes, or none will: until then their space is held, so that
    no segment goes between its writing and the row. Leaving it in the middle, cancelled or not, gives the space up.
    """

    def __init__(self, segments: SegmentStore, workers: Workers, content: Content, stream: Stream) -> None:
        """Reserve the space.

        Raises:
            DiskFullError: There is none; nothing of the body was read.
        """
        self._segments = segments
        self._workers = workers
        self._content = content
        self._stream = stream
        self._is_tiny = content.size <= TINY_BODY_BYTES_MAX and stream is not Stream.CLEAN
        self._reservations: tuple[Reservation, ...] = ()
        if self._is_tiny:
            _check_tiny_room(segments, content.size)
        elif content.size:
            self._reservations = segments.reserve(content.size, stream)
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._checksums = [BlockChecksums() for _ in self._reservations]
        self._tiny = bytearray()
        self._received = 0
        self._written = 0
        self._current = 0
        self._current_start = 0
        self._synced_at = 0
        self._has_failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._segments.settle(self._reservations)

    async def take(self) -> Intake:
        """Take in the whole body.

        Raises:
            DiskFullError, DiskFailedError, UnknownOutcomeError: The disk refused; the space is dead then.
            Exception: What the content raised when it failed its check.
        """
        async for piece in self._content.chunks():
            await self._add(piece)
        await self._sync_long_body(is_last=True)
        return self.result()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield each piece of the body after it was taken in, the last one after the whole body was.

        A disk that refuses ends the taking in, not the stream: `kept` is None then.
        """
        async for piece in self._content.chunks():
            if not self._has_failed:
                await self._add_if_possible(piece)
            yield piece

    def kept(self) -> Intake | None:
        """Say what `pieces` took in; None where the disk refused, or not all was asked for."""
        is_whole = self._written == self._content.size and not self._has_failed
        return self.result() if is_whole else None

    def result(self) -> Intake:
        """Say what was taken in; only after the last piece."""
        size = len(self._tiny) if self._is_tiny else self._written
        is_whole = size == self._content.size or isinstance(self._content, BoundedContent)
        assert is_whole, f"{size} bytes of {self._content.size} were taken in"
        return Intake(size, self._md5.hexdigest(), self._extents(), bytes(self._tiny))

    async def _add(self, piece: bytes) -> None:
        """Write one piece; a long body is synced as it comes, and with its last piece."""
        self._received += len(piece)
        assert self._received <= self._content.size, f"a body of {self._content.size} bytes goes on"
        is_last = self._received == self._content.size
        if self._is_tiny:
            self._md5.update(piece)
            self._tiny += piece
            return
        # Not gathered here: whoever gives the pieces makes them as large as memory for all bodies allows.
        await self._write(piece)
        await self._sync_long_body(is_last=is_last)

    async def _add_if_possible(self, piece: bytes) -> None:
        try:
            await self._add(piece)
        except StorageError as error:
            log.warning("a body is not kept: %s", error)
            self._has_failed = True

    async def _write(self, piece: bytes) -> None:
        await self._workers.run(self._hash_and_write, piece)

    def _hash_and_write(self, piece: bytes) -> None:
        """Write one piece, across reservations where it crosses one; runs in a worker thread."""
        self._md5.update(piece)
        rest = memoryview(piece)
        while rest:
            reservation = self._reservations[self._current]
            start = self._written - self._current_start
            part = rest[: reservation.length - start]
            self._checksums[self._current].update(part)
            self._segments.write(reservation, start, part)
            self._written += len(part)
            rest = rest[len(part) :]
            if self._written == self._current_start + reservation.length:
                self._current += 1
                self._current_start = self._written

    async def _sync_long_body(self, *, is_last: bool) -> None:
        """Sync what has come of a body over a block; a copy of what the origin has needs none."""
        unsynced = self._written - self._synced_at
        if self._stream is Stream.CLEAN or self._content.size <= BLOCK_BYTES or not unsynced:
            return
        if is_last or unsynced >= SYNC_EVERY_BYTES:
            self._synced_at = self._written
            await self._workers.run(self._segments.sync, sorted({r.segment_id for r in self._reservations}))

    def _extents(self) -> tuple[Extent, ...]:
        if self._is_tiny:
            size = len(self._tiny)
            return (Extent(0, size, msgspec.structs.replace(NOWHERE, length=size)),) if size else ()
        extents: list[Extent] = []
        position = 0
        for reservation, checksums in zip(self._reservations, self._checksums, strict=True):
            length = min(reservation.length, self._written - position)
            if not length:
                break
            location = Location(reservation.segment_id, reservation.offset, length, checksums.digest())
            extents.append(Extent(position, position + length, location))
            position += length
        return tuple(extents)


def _check_tiny_room(segments: SegmentStore, size: int) -> None:
    """Refuse a tiny body before the journal eats the reserve, or the way out, flush confirmations, would be blocked."""
    if size > segments.disk_room_bytes:
        raise DiskFullError(
            f"no room for {size} bytes: the disk has {segments.disk_room_bytes} above its reserve"
        )


RECORD_ROOM_BYTES: Final = 64 * 1024
"""Above the reserve there must be so much for a change without a body: its record, and its rows in the index."""


class Room(Protocol):
    """Who makes space where clean bytes can go: `Reclaim`."""

    async def make_room(self, size: int, *, is_for_write: bool) -> bool:
        """Wait a bounded time for room for `size` bytes; False where it does not come."""
        ...


class Inlet:
    """Where bodies begin: space for them, made where it can be, and what is known of the disk."""

    def __init__(
        self,
        segments: SegmentStore,
        workers: Workers,
        room: Room,
        clock: Clock,
        on_failure: Callable[[str], None] = lambda _failure: None,
    ) -> None:
        """`on_failure` is told of a sync that failed while a body came: nothing is written then before a re-opening."""
        self._on_failure = on_failure
        self._segments = segments
        self._workers = workers
        self._room = room
        self._clock = clock
        self._bad_until_s = 0.0

    async def begin(self, content: Content, *, releases: bool = False) -> BodyIntake | None:
        """Reserve space for a body that will be dirty, after clean bytes have gone where they must.

        What `releases` its space once it is flushed lies among its like, so that segments die whole.
        None where there is no space, or the disk refused a write just now; nothing of the body was read.
        """
        return await self._begin(content, Stream.RELEASED if releases else Stream.DIRTY)

    async def spool(self, content: Content) -> BodyIntake | None:
        """Reserve space for a body that has to be whole before the origin can be told of it; None as `begin`."""
        return await self._begin(content, Stream.CLEAN)

    async def _begin(self, content: Content, stream: Stream) -> BodyIntake | None:
        if self._is_disk_bad():
            return None
        try:
            return BodyIntake(self._segments, self._workers, content, stream)
        except DiskFullError:
            # A body may open a segment behind its last full one, which counts whole.
            room_bytes = content.size + self._segments.segment_bytes
            if not await self._room.make_room(room_bytes, is_for_write=True):
                return None
        try:
            return BodyIntake(self._segments, self._workers, content, stream)
        except DiskFullError:
            return None

    def has_record_room(self) -> bool:
        """Whether a change without a body may be journaled: not on a bad disk, nor from the reserve that confirmations need."""
        return not self._is_disk_bad() and self._segments.disk_room_bytes >= RECORD_ROOM_BYTES

    def _is_disk_bad(self) -> bool:
        return self._clock.monotonic_s() < self._bad_until_s

    def copy(self, content: Content) -> BodyIntake | None:
        """Reserve space for a copy of what goes through to the origin; None where there is none at hand."""
        try:
            return BodyIntake(self._segments, self._workers, content, Stream.CLEAN)
        except StorageError:
            return None

    @contextmanager
    def watching_disk(self) -> Iterator[None]:
        """Learn from what the block raises that the disk is bad."""
        try:
            yield
        except (DiskFullError, DiskFailedError) as error:
            log.warning("writes go through for %.0f s: %s", BAD_DISK_S, error)
            self._bad_until_s = self._clock.monotonic_s() + BAD_DISK_S
            raise
        except UnknownOutcomeError as error:
            self._on_failure(str(error))
            raise


class HeldContent:
    """A body in memory, verified, as content that can be read more than once."""

    def __init__(self, data: bytes, original: Content) -> None:
        self._original = original
        self.data = data
        self.size = len(data)

    @classmethod
    async def take(cls, content: Content) -> "HeldContent":
        """Read a body whole; raises what the content raises when it fails its check."""
        data = b"".join([piece async for piece in content.chunks()])
        is_whole = len(data) == content.size or isinstance(content, BoundedContent)
        assert is_whole, f"{len(data)} bytes of {content.size} came"
        return cls(data, content)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield it."""
        view = memoryview(self.data)
        for start in range(0, self.size, PIECE_BYTES):
            yield bytes(view[start : start + PIECE_BYTES])

    def checksums(self) -> tuple[Checksum, ...]:
        """Give what the original verified."""
        return self._original.checksums()

    def md5_digest(self) -> bytes:
        """Compute the MD5: 1.5 ms a MiB, so not in the event loop."""
        return hashlib.md5(self.data, usedforsecurity=False).digest()


class HeldBodies:
    """Bounds the bodies that are in memory on their way through to the origin."""

    def __init__(self, limit_bytes: int = HELD_BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self.taken_bytes = 0

    @contextmanager
    def room(self, size: int) -> Iterator[bool]:
        """Say whether a body of `size` bytes may be held while the block lasts."""
        has_room = size <= HELD_BODY_BYTES_MAX and self.taken_bytes + size <= self._limit_bytes
        taken = size if has_room else 0
        self.taken_bytes += taken
        try:
            yield has_room
        finally:
            self.taken_bytes -= taken
