"""Open versions that are named by the origin's id, after what is dirty of their object has become a version there.

    versionId=null -> in a bucket without versions that is the object itself
                   -> else: flush the key, and ask, every time
    versionId=...  -> known here: never changes, so it is served
                   -> else: flush the key, and ask once
                   -> in a bucket with object lock: ask every time what holds it

What this gateway acknowledges into a bucket that it knows as versioned goes through. So a key is dirty only where the bucket became
versioned behind it, or was not known yet; its newest change is then a version of which nobody knows the id.
"""

from storage.facts_table import FactsTable
from storage.flusher import Flusher
from storage.opened import Opened
from storage.reader import Reader
from storage.records import BucketFacts
from storage.through import quarantined_error
from storage.types import NULL_VERSION, ObjectName, RangeSpec


class Versions:
    """Opens named versions. `Reader` does the reading."""

    def __init__(self, reader: Reader, facts: FactsTable, flusher: Flusher) -> None:
        self._reader = reader
        self._facts = facts
        self._flusher = flusher

    def over(self, reader: Reader) -> "Versions":
        """Give the same over a reader that asks the origin as another authority."""
        return Versions(reader, self._facts, self._flusher)

    async def open(self, name: ObjectName, wanted: RangeSpec | None, *, metadata_only: bool) -> Opened:
        """Give the version to read from; arguments and errors as `Reader.open`, and more of these.

        Raises:
            NoSuchBucketError: The origin has no such bucket.
            NoSuchVersionError: The object has no such version.
            OriginRefusedError: 405, the version is a delete marker; `told` says which.
            QuarantinedError: The version `null` is asked for, and the origin refused the key's newest change.
        """
        # Asked once and then known here, also of whether objects are locked, which the reader looks at.
        facts = await self._facts.facts(name.bucket)
        if name.version_id == NULL_VERSION:
            return await self._open_null(name, wanted, metadata_only=metadata_only, facts=facts)
        if not self._reader.knows(name):
            await self._flush(name.plain)
        return await self._reader.open(name, wanted, metadata_only=metadata_only)

    async def _open_null(
        self, name: ObjectName, wanted: RangeSpec | None, *, metadata_only: bool, facts: BucketFacts
    ) -> Opened:
        if not facts.is_versioned:
            opened = await self._reader.open(name.plain, wanted, metadata_only=metadata_only)
            origin = opened.record.origin
            if origin is None or origin.version_id in {"", NULL_VERSION}:
                return opened
            # What is known of the bucket is older than this version.
            await opened.close()
        await self._flush(name.plain)
        reason = self._flusher.quarantine_reason(name.plain)
        if reason:
            raise quarantined_error(name.plain, reason)
        return await self._reader.open(name, wanted, metadata_only=metadata_only)

    async def _flush(self, name: ObjectName) -> None:
        if self._flusher.dirty_entry(name) is not None:
            await self._flusher.flush_key(name)
