"""What a client may expect of each key and upload, and whether a recovered directory holds it.

Each key has one client, so of each at most one operation is under way. What was acknowledged must be there; of what is
under way either the state before or the state after; nothing else. Bytes are told by their ETag, since no two bodies
are alike.
"""

import hashlib
from dataclasses import dataclass, field

from storage import keys
from storage.checksums import checksums
from storage.errors import DamagedError
from storage.family import Family
from storage.journal_format import journal_path
from storage.records import ObjectRecord, ObjectState
from storage.recovery import Recovered
from storage.rows import Rows, decode_object, decode_part, decode_upload, read_extents
from storage.segments import segment_path
from storage.types import Extent
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.records import BUCKET
from tests.fakes.row_invariants import check_rows, rows_of

DELETED = ""
"""Stands for an ETag where a key was deleted."""


class ViolationError(AssertionError):
    """Something acknowledged is gone, something superseded is back, or a wrong byte would be served."""


@dataclass
class KeyState:
    """What is known of a key.

    Attributes:
        dirty: The ETag of its newest acknowledged change, DELETED for a delete; None where the origin has it.
        pending: The same of a change that is under way; None where there is none.
        is_flushing: The confirmation of `dirty` is under way.
        is_refused: `dirty` is quarantined.
        is_marking: Its quarantine, or its release, is under way.
        is_leaving: Its discard is under way.
        clean: The ETags of clean versions that an unclean stop may bring back: no older one than the last that was
        flushed.
        newest_clean: The one that is in the cache now, if any; after a clean stop nothing else may be.
    """

    dirty: str | None = None
    pending: str | None = None
    is_flushing: bool = False
    is_refused: bool = False
    is_marking: bool = False
    is_leaving: bool = False
    clean: set[str] = field(default_factory=set)
    newest_clean: str | None = None

    def acknowledge(self) -> None:
        """The change under way is acknowledged."""
        self.dirty, self.pending = self.pending, None
        self.is_refused = False
        self.clean, self.newest_clean = set(), None

    def confirm(self) -> None:
        """The flush under way is journaled."""
        assert self.dirty is not None
        self.newest_clean = self.dirty or None
        self.clean = {self.dirty} if self.dirty else set()
        self.dirty, self.is_flushing = None, False

    def mark(self) -> None:
        """The quarantine or the release under way is journaled."""
        self.is_refused, self.is_marking = not self.is_refused, False

    def discard(self) -> None:
        """The discard under way is journaled: nothing is known of the key."""
        self.dirty, self.is_refused, self.is_leaving = None, False, False
        self.clean, self.newest_clean = set(), None

    def forget(self) -> None:
        """What was cached must not come back."""
        self.clean, self.newest_clean = set(), None

    def may_be_refused(self, dirty: str) -> set[bool]:
        """Say whether a change that was found may, and may not, be quarantined."""
        if dirty == self.pending:
            # A delete that replaces a delete cannot be told from it.
            return {False, self.is_refused} if dirty == self.dirty else {False}
        return {True, False} if self.is_marking else {self.is_refused}


@dataclass
class UploadState:
    """What is known of an upload: parts by number, the acknowledged ETag and the one under way."""

    key: str
    parts: dict[int, str] = field(default_factory=dict)
    pending: dict[int, str] = field(default_factory=dict)
    is_ending: bool = False


@dataclass
class Expectation:
    """All that clients of one directory were told."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    keys: dict[str, KeyState] = field(default_factory=dict)
    uploads: dict[str, UploadState] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    creating: int = 0

    def body(self, data: bytes) -> str:
        """Remember a body; give its ETag."""
        etag = hashlib.md5(data).hexdigest()
        self.bodies[etag] = data
        return etag

    def joined(self, parts: list[str]) -> str:
        """Remember the body that parts make; give its ETag."""
        etag = f"{hashlib.md5(''.join(parts).encode()).hexdigest()}-{len(parts)}"
        self.bodies[etag] = b"".join(self.bodies[part] for part in parts)
        return etag

    def key(self, key: str) -> KeyState:
        """Give what is known of a key."""
        return self.keys.setdefault(key, KeyState())

    # --- what was recovered ------------------------------------------------------------------------------------------

    def check(self, filesystem: FakeFilesystem, recovered: Recovered) -> None:
        """Raise ViolationError where a recovered directory does not hold what was acknowledged."""
        try:
            check_rows(recovered.index)
        except (AssertionError, DamagedError) as error:
            raise ViolationError(f"rows contradict each other: {error}") from error
        rows = Rows(recovered.index)
        queued = {change.key: change for change in recovered.dirty}
        for name in {*self.keys, *queued, *_object_keys(recovered)}:
            refused = name in queued and bool(queued[name].quarantine_reason)
            self._check_key(rows, name, recovered, is_refused=refused)
        for key, value in rows_of(recovered.index, Family.OBJECTS):
            self._check_bytes(filesystem, rows, keys.split_object_key(key).key, decode_object(value))
        self._check_uploads(filesystem, recovered)
        if recovered.is_unclean and recovered.trusted_epoch != recovered.epoch:
            raise ViolationError(
                f"clean rows of epoch {recovered.trusted_epoch} are trusted after an unclean stop"
            )

    def _check_key(self, rows: Rows, key: str, recovered: Recovered, *, is_refused: bool) -> None:
        state = self.keys.get(key, KeyState())
        overlay, record = rows.overlay(BUCKET, key), rows.object(BUCKET, key)
        dirty = None if overlay is None else DELETED if overlay.is_tombstone else overlay.etag
        allowed = {state.dirty}
        if state.pending is not None:
            allowed.add(state.pending)
        if state.is_flushing or state.is_leaving:
            allowed.add(None)
        if dirty not in allowed:
            raise ViolationError(f"{key}: {_shown(dirty)} is dirty, expected was {_shown(*allowed)}")
        if dirty is not None and is_refused not in state.may_be_refused(dirty):
            raise ViolationError(f"{key}: {_shown(dirty)} is{'' if is_refused else ' not'} quarantined")
        if dirty is None:
            self._check_clean(key, state, record, recovered)

    def _check_clean(
        self, key: str, state: KeyState, record: ObjectRecord | None, recovered: Recovered
    ) -> None:
        if record is None:
            return
        clean = set(state.clean)
        if state.is_flushing and state.dirty:
            clean.add(state.dirty)
        if not recovered.is_unclean and not state.is_flushing:
            clean = {state.newest_clean} if state.newest_clean else set()
        if record.etag not in clean:
            raise ViolationError(f"{key}: {_shown(record.etag)} is clean, expected was {_shown(*clean)}")

    def _check_bytes(self, filesystem: FakeFilesystem, rows: Rows, key: str, record: ObjectRecord) -> None:
        body = self.bodies[record.etag]
        if len(body) != record.size:
            raise ViolationError(f"{key}: {record.size} bytes instead of {len(body)}")
        extents = read_extents(rows, record)
        self._check_extents(filesystem, key, body, extents, is_dirty=record.state is not ObjectState.CLEAN)

    def _check_extents(
        self,
        filesystem: FakeFilesystem,
        what: str,
        body: bytes,
        extents: tuple[Extent, ...],
        *,
        is_dirty: bool,
    ) -> None:
        for extent in extents:
            data = _read(filesystem, extent)
            is_right = data is not None and checksums(data) == extent.location.checksums
            if not is_right and is_dirty:
                raise ViolationError(f"{what}: acknowledged bytes of {extent} are lost")
            if is_right and data != body[extent.start : extent.stop]:
                raise ViolationError(f"{what}: wrong bytes with a right checksum at {extent}")

    def _check_uploads(self, filesystem: FakeFilesystem, recovered: Recovered) -> None:
        found = {
            keys.split_upload_key(key): decode_upload(value)
            for key, value in rows_of(recovered.index, Family.UPLOADS)
        }
        unknown = found.keys() - self.uploads.keys() - self.completed
        if len(unknown) > self.creating or unknown & self.ended:
            raise ViolationError(f"uploads {sorted(unknown)} are there, {self.creating} are being created")
        for upload_id in self.completed:
            if upload_id not in found or not found[upload_id].completed_at_s:
                raise ViolationError(f"a repeated Complete of {upload_id} would fail")
        for upload_id, state in self.uploads.items():
            upload = found.get(upload_id)
            is_open = upload is not None and not upload.completed_at_s
            if not is_open and not state.is_ending:
                raise ViolationError(f"open upload {upload_id} is gone")
            if is_open:
                self._check_parts(filesystem, recovered, upload_id, state)

    def _check_parts(
        self, filesystem: FakeFilesystem, recovered: Recovered, upload_id: str, state: UploadState
    ) -> None:
        rows = {
            keys.split_part_key(key): decode_part(value)
            for key, value in rows_of(recovered.index, Family.PARTS)
        }
        parts = {number: part for (owner, number), part in rows.items() if owner == upload_id}
        for number in {*state.parts, *parts}:
            allowed = {state.parts.get(number), state.pending.get(number, state.parts.get(number))}
            part = parts.get(number)
            if (None if part is None else part.etag) not in allowed:
                raise ViolationError(f"part {number} of {upload_id}: {part}, expected was {_shown(*allowed)}")
            if part is not None:
                body = self.bodies[part.etag]
                self._check_extents(filesystem, f"{upload_id}/{number}", body, part.extents, is_dirty=True)

    # --- going on with what was recovered ----------------------------------------------------------------------------

    def adopt(self, recovered: Recovered) -> None:
        """Take what a start found, and `check` has accepted, for what is true from now on."""
        rows = Rows(recovered.index)
        self.keys = {name: settled_state(rows, name) for name in {*self.keys, *_object_keys(recovered)}}
        self.uploads, self.completed, self.creating = {}, set(), 0
        for key, value in rows_of(recovered.index, Family.UPLOADS):
            upload, upload_id = decode_upload(value), keys.split_upload_key(key)
            if upload.completed_at_s:
                self.completed.add(upload_id)
            else:
                parts = {part.number: part.etag for part in rows.parts(upload_id)}
                self.uploads[upload_id] = UploadState(upload.key, parts)


def settled_state(rows: Rows, key: str) -> KeyState:
    """Say what the rows say of a key that nobody works on."""
    overlay, record = rows.overlay(BUCKET, key), rows.object(BUCKET, key)
    if overlay is not None:
        entry = rows.dirty(overlay.sequence)
        assert entry is not None, f"{key} has no entry {overlay.sequence}"
        dirty = DELETED if overlay.is_tombstone else overlay.etag
        return KeyState(dirty=dirty, is_refused=bool(entry.quarantine_reason))
    if record is None:
        return KeyState()
    return KeyState(clean={record.etag}, newest_clean=record.etag)


def _object_keys(recovered: Recovered) -> set[str]:
    return {keys.split_object_key(key).key for key, _ in rows_of(recovered.index, Family.OBJECTS)}


def _read(filesystem: FakeFilesystem, extent: Extent) -> bytes | None:
    place = extent.location
    for path in (segment_path(place.segment_id), journal_path(place.segment_id)):
        try:
            return filesystem.contents(path, place.offset, place.offset + place.length)
        except FileNotFoundError:
            continue
    return None


def _shown(*etags: str | None) -> str:
    return " or ".join(
        sorted("nothing" if etag is None else "a delete" if etag == DELETED else etag[:8] for etag in etags)
    )
