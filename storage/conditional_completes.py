"""Complete an upload that is kept here under a client's condition: only the origin can decide that against all writers.

    early flush lets go ──> turn of the key: look, judge ──> parts that the origin lacks ──> turn of the key: look, judge, Complete
                                              └> 404, 412                                                          │
    the upload stays open, with what the origin has of it <── refused ─────────────────────────────────────────────┤
    UploadPassed through the door: the parts here are given up, a repeated Complete is answered <── done ──────────┘

What a kill leaves: the journal names the upload at the origin before its first part is sent, and the client's upload is open until
UploadPassed. So a client whose answer was lost completes again; then an upload at the origin that is gone, and an object there that
is ours, say that the first Complete took effect. It is never refused because of itself. See ADR 0020.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from storage import keys
from storage.clock import Clock
from storage.commit import Commit
from storage.conditional_writes import ConditionalWrites
from storage.conflict_rules import UNCONDITIONAL
from storage.early_flush import carried_on
from storage.early_flusher import EarlyFlusher
from storage.errors import (
    NoSuchKeyError,
    NoSuchUploadError,
    OriginError,
    OriginUnavailableError,
)
from storage.family import Family
from storage.origin.answers import WriteAnswer
from storage.origin_uploads import OriginUpload, OriginUploads, Owner, checksum_headers_of
from storage.outgoing import Outgoing
from storage.records import FORMAT, DirtyEntry, ObjectRecord, OriginIdentity, UploadPassed, UploadRecord
from storage.requests import PutResult
from storage.rows import RowSource, decode_upload
from storage.sender import Sender, Shipment
from storage.through import Through
from storage.types import ObjectName, Priority

CONFLICT: Final = "ConditionalRequestConflict"

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ConditionalCompletesParts:
    """What this works with; made once by the engine."""

    index: RowSource
    through: Through
    conditional: ConditionalWrites
    sender: Sender
    outgoing: Outgoing
    uploads: OriginUploads
    early: EarlyFlusher
    commit: Commit
    clock: Clock


class ConditionalCompletes:
    """Completes at the origin. Whoever calls holds the upload's turn, so its parts stay as they are."""

    def __init__(self, parts: ConditionalCompletesParts) -> None:
        self._parts = parts

    async def complete(self, upload_id: str, record: ObjectRecord, conditions: Headers) -> PutResult:
        """Make the object at the origin; `record` is what it will be, with the extents of its bytes here.

        Raises:
            NoSuchKeyError: If-Match, and there is no object. The upload stays open, as after the next two.
            OriginRefusedError: 412 PreconditionFailed, 409 ConditionalRequestConflict, or another refusal.
            OriginUnavailableError: The origin failed; with `outcome_unknown` the object may come to be all the same.
            QuarantinedError: The key holds a change that the origin refused.
            StorageError: The object is there and could not be journaled; a repeated Complete finds it.
        """
        await self._parts.early.settle(upload_id)
        upload = self._upload(upload_id)
        name = ObjectName(upload.bucket, upload.key)
        shipment = _shipment(upload, record)
        with self._parts.outgoing.pin(record.extents):
            async with self._parts.through.operation(name) as passed:
                passed.is_untouched = True
                landed = await self._landed(name, upload.origin_upload_id, shipment)
                if landed is not None:
                    passed.is_untouched = False
                    return await self._settle(upload, shipment, landed.etag)
                # Before its parts are sent: most that are refused are refused here.
                await self._parts.conditional.checked(name, conditions)
            return await self._send(upload, shipment, conditions)

    async def _send(self, upload: UploadRecord, shipment: Shipment, conditions: Headers) -> PutResult:
        name = shipment.name
        at_origin = await self._opened(upload, shipment)
        try:
            lines = await self._parts.sender.fill(at_origin, shipment)
        except NoSuchUploadError as error:
            raise self._gone(at_origin) from error
        async with self._parts.through.operation(name) as passed:
            try:
                with passed.looking():
                    headers = await self._parts.conditional.checked(name, conditions)
                answer = await self._parts.sender.complete_under(at_origin, shipment, lines, headers)
            except (OriginError, NoSuchKeyError, NoSuchUploadError) as error:
                if isinstance(error, OriginUnavailableError) and error.code != CONFLICT:
                    raise
                # Perhaps by an earlier attempt of the same Complete, which landed late.
                landed = await self._landed(name, at_origin.upload_id, shipment)
                if landed is None:
                    raise self._refused(at_origin, error) from error
                passed.is_untouched = False
                answer = WriteAnswer(landed.etag, landed.version_id)
            passed.is_unknown = answer.is_earlier_unknown
            return await self._settle(upload, shipment, answer.etag, answer.headers)

    def _upload(self, upload_id: str) -> UploadRecord:
        value = self._parts.index.get(Family.UPLOADS, keys.upload_key(upload_id))
        assert value is not None, f"{upload_id} ended under its turn"
        return decode_upload(value)

    async def _landed(
        self, name: ObjectName, origin_upload_id: str, shipment: Shipment
    ) -> OriginIdentity | None:
        """Say whether a Complete whose answer was lost took effect."""
        if not origin_upload_id:
            return None
        return await self._parts.sender.landed(OriginUpload(name, origin_upload_id), shipment)

    async def _opened(self, upload: UploadRecord, shipment: Shipment) -> OriginUpload:
        """Go on with the upload at the origin that carries this one, or open another."""
        record = shipment.record
        carried = carried_on(upload, record.parts, record.checksums)
        if carried and not self._parts.uploads.is_ending(carried):
            return OriginUpload(shipment.name, carried)
        return await self._parts.uploads.open(
            shipment.name,
            upload,
            checksum_headers_of(record.checksums),
            Owner(upload_id=upload.upload_id),
            Priority.FOREGROUND,
        )

    def _refused(self, at_origin: OriginUpload, error: Exception) -> Exception:
        """Say what a refused Complete is to the client, whose own upload is open and whole."""
        if isinstance(error, NoSuchUploadError):
            return self._gone(at_origin)
        if isinstance(error, OriginError) and error.code in {CONFLICT, "InvalidPart"}:
            # Such an upload is not to be completed any more (AWS API_CompleteMultipartUpload); the next attempt opens another.
            self._parts.uploads.end(at_origin)
        if isinstance(error, OriginError) and error.code == "InvalidPart":
            return OriginUnavailableError(
                "what was sent of a part before has landed late", status=0, code="InvalidPart"
            )
        return error

    def _gone(self, at_origin: OriginUpload) -> OriginUnavailableError:
        self._parts.uploads.note_gone(at_origin)
        return OriginUnavailableError(
            f"the upload that carried {at_origin.name} is gone at the origin", status=0, code="NoSuchUpload"
        )

    async def _settle(
        self, upload: UploadRecord, shipment: Shipment, etag: str, headers: Headers = ()
    ) -> PutResult:
        """Write down that the upload has ended; its parts here are given up with it."""
        now_s = self._parts.clock.wall_s()
        checksums = shipment.record.checksums
        at_origin = self._upload(upload.upload_id).origin_upload_id
        await self._parts.commit.commit(UploadPassed(FORMAT, upload.upload_id, now_s, etag, checksums))
        self._parts.uploads.forget(OriginUpload(shipment.name, at_origin))
        return PutResult(etag, int(now_s), checksums, headers)


def _shipment(upload: UploadRecord, record: ObjectRecord) -> Shipment:
    entry = DirtyEntry(
        FORMAT,
        0,
        upload.bucket,
        upload.key,
        keys.slot(upload.bucket, upload.key),
        record.version_id,
        record.size,
        upload.credential_id,
        0.0,
    )
    extents = record.extents
    bare = msgspec.structs.replace(record, extents=())
    return Shipment(entry, bare, extents, Priority.FOREGROUND, lambda: True, UNCONDITIONAL)
