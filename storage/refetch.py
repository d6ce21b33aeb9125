"""Fetch clean bytes that a repair has dropped, from the origin, into segments of their own.

Each range is asked for with the ETag of the version that the row is of, and held against the checksums that the dropped place had, so that
no other bytes come into it; what the origin does not have any more stays a miss. The bytes are synced before a row names them. They take no
more room than the cache may have, and a disk that refuses them ends the fetching, not the repair.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from storage import keys
from storage.applier import write_change
from storage.cached import AddExtents
from storage.checksums import BlockChecksums
from storage.errors import ObjectChangedError, StorageError
from storage.family import Family
from storage.filesystem import File, Filesystem, disk_error
from storage.fsck_rows import Damage
from storage.index import Index
from storage.layout import SEGMENTS_DIRECTORY
from storage.origin.client import OriginClient
from storage.origin_look import OpenClient
from storage.records import ObjectState
from storage.rows import decode_object
from storage.segment_files import segment_path
from storage.types import MIB, ByteRange, Extent, Location, ObjectName

NEW_SEGMENT_BYTES: Final = 64 * MIB


class Refetching:
    """`fsck_repair.Refetch` over the data lane.

    Args:
        take_segment_id: Gives ids that were never given.
        room_bytes: So many bytes may be written.
        say: Takes a line for each range that could not be fetched.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        open_client: OpenClient,
        take_segment_id: Callable[[Index], int],
        say: Callable[[str], None],
        *,
        room_bytes: int,
    ) -> None:
        self._filesystem = filesystem
        self._open_client = open_client
        self._take_segment_id = take_segment_id
        self._say = say
        self._room_bytes = room_bytes
        self._file: File | None = None
        self._segment_id = 0
        self._end = 0

    def __call__(self, index: Index, damages: Sequence[Damage]) -> int:
        """Fetch what can be; give how many places were."""
        try:
            return asyncio.run(self._fetch_all(index, damages))
        finally:
            self._close()

    async def _fetch_all(self, index: Index, damages: Sequence[Damage]) -> int:
        fetched = 0
        async with self._open_client() as client:
            for damage in damages:
                try:
                    fetched += await self._fetch(client, index, damage)
                except _NoRoomError:
                    self._say(f"{damage.owner} and what follows: not fetched: the cache has no more room")
                    break
                except OSError as error:
                    self._say(f"{damage.owner} and what follows: not fetched: {disk_error(error, 'write')}")
                    break
                except StorageError as error:
                    self._say(f"{damage.owner}: not fetched: {error}")
        return fetched

    async def _fetch(self, client: OriginClient, index: Index, damage: Damage) -> bool:
        """Fetch one place; False where the row has moved on."""
        owner, wanted = damage.owner, damage.extent
        value = index.get(Family.OBJECTS, keys.object_key(owner.bucket, owner.key))
        record = None if value is None else decode_object(value)
        if wanted is None or record is None or record.version_id != owner.version_id:
            return False
        if record.state is not ObjectState.CLEAN or record.origin is None:
            return False
        asked = _Asked(keys.name_on(owner.bucket, owner.key), record.origin.etag)
        location = await self._store(client, index, wanted, asked)
        extent = Extent(wanted.start, wanted.stop, location)
        added, _ = write_change(index, AddExtents(owner.bucket, owner.key, owner.version_id, (extent,)))
        return added

    async def _store(self, client: OriginClient, index: Index, wanted: Extent, asked: "_Asked") -> Location:
        """Append the bytes to the segment in use; those of a failure are overwritten by the next.

        Raises:
            ObjectChangedError: The origin gave other bytes, under the same ETag or another.
        """
        length = wanted.stop - wanted.start
        if length > self._room_bytes:
            raise _NoRoomError
        if self._file is None or self._end + length > NEW_SEGMENT_BYTES:
            self._begin_segment(index)
        assert self._file is not None, "a segment was begun"
        sums, end = BlockChecksums(), self._end
        async with client.get_object(
            asked.name, ByteRange(wanted.start, wanted.stop), if_match=asked.etag
        ) as answer:
            async for chunk in answer.chunks():
                self._file.pwrite(end, chunk)
                sums.update(chunk)
                end += len(chunk)
        digest = sums.digest()
        if (end - self._end, digest) != (length, wanted.location.checksums):
            raise ObjectChangedError(
                f"the origin has other bytes than were cached, under the ETag {asked.etag}"
            )
        self._file.fdatasync()
        location = Location(self._segment_id, self._end, length, digest)
        self._end, self._room_bytes = end, self._room_bytes - length
        return location

    def _begin_segment(self, index: Index) -> None:
        self._close()
        self._segment_id = self._take_segment_id(index)
        self._file, self._end = self._filesystem.create(segment_path(self._segment_id)), 0
        self._filesystem.sync_directory(SEGMENTS_DIRECTORY)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class _NoRoomError(Exception):
    """The bytes would take more than there is."""


class _Asked(NamedTuple):
    """A version at the origin."""

    name: ObjectName
    etag: str
