"""Random mutations of every kind on a few keys, for a ledger (`tests/fakes/ledger_harness.py`)."""

import random
from typing import TYPE_CHECKING

import msgspec

from storage import keys
from storage.family import Family
from storage.records import (
    FORMAT,
    Attempted,
    BucketFacts,
    Discarded,
    FactsLearnt,
    Forgotten,
    OriginUploadEnded,
    OriginUploadOpened,
    PartSize,
    Quarantined,
    Released,
    UploadRecord,
)
from storage.rows import decode_part, decode_upload, read_origin_uploads
from tests.fakes.ledger_harness import BUCKET, Ledger, all_rows

if TYPE_CHECKING:
    from collections.abc import Callable


class RandomLoad:
    """Draws mutations of every kind on a few keys. Each `step` takes one through `commit_now`."""

    def __init__(self, ledger: Ledger, draws: random.Random) -> None:
        self._ledger = ledger
        self._draws = draws
        self._steps: list[tuple[int, Callable[[], object]]] = [
            (10, self._put),
            (3, self._delete),
            (5, self._flush),
            (2, self._quarantine),
            (2, self._release),
            (2, self._attempt),
            (3, self._open_at_origin),
            (1, self._end_at_origin),
            (1, self._discard),
            (1, self._forget),
            (1, self._facts),
            (1, lambda: ledger.commit_now(ledger.recovered.ids.reservation())),
            (4, self._create),
            (10, self._part),
            (4, self._complete),
            (1, self._abort),
            (2, self._rotate),
        ]

    def run(self, steps: int) -> None:
        """Take so many steps."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """Take one step."""
        weights = [weight for weight, _ in self._steps]
        ((_, step),) = self._draws.choices(self._steps, weights)
        step()

    def _key(self) -> str:
        return f"key-{self._draws.randrange(6)}"

    def _body(self) -> tuple[bytes, bool]:
        size = self._draws.choice([0, 1, 100, 700])
        return self._draws.randbytes(size), self._draws.random() < 0.6

    def _dirty(self) -> int:
        """Draw a sequence, mostly one of a dirty change."""
        rows = all_rows(self._ledger.index, Family.DIRTY)
        if not rows or self._draws.random() < 0.1:
            return self._draws.randrange(1, self._ledger.applier.applied_sequence + 1)
        return keys.split_dirty_key(self._draws.choice(rows)[0])

    def _uploads(self, *, is_open: bool) -> list[UploadRecord]:
        uploads = [decode_upload(value) for _, value in all_rows(self._ledger.index, Family.UPLOADS)]
        return [upload for upload in uploads if bool(upload.completed_at_s) is not is_open]

    def _put(self) -> None:
        body, is_tiny = self._body()
        self._ledger.put_now(self._key(), body, is_tiny=is_tiny)

    def _delete(self) -> None:
        self._ledger.delete_now(self._key())

    def _flush(self) -> None:
        self._ledger.flush_now(self._dirty())

    def _quarantine(self) -> None:
        self._ledger.commit_now(Quarantined(FORMAT, self._dirty(), "refused"))

    def _release(self) -> None:
        self._ledger.commit_now(Released(FORMAT, self._dirty()))

    def _attempt(self) -> None:
        done = tuple(range(1, self._draws.randrange(1, 4)))
        upload_id = self._draws.choice(["", "origin-1", "origin-2"])
        self._ledger.commit_now(Attempted(FORMAT, self._dirty(), upload_id, done))

    def _open_at_origin(self) -> None:
        upload_id = f"origin-{self._draws.getrandbits(32):x}"
        uploads = self._uploads(is_open=True)
        opened = OriginUploadOpened(FORMAT, upload_id, BUCKET, self._key())
        if uploads and self._draws.random() < 0.6:
            carried = self._draws.choice(uploads).upload_id
            self._ledger.commit_now(msgspec.structs.replace(opened, upload_id=carried))
        else:
            self._ledger.commit_now(msgspec.structs.replace(opened, sequence=self._dirty()))

    def _end_at_origin(self) -> None:
        opened = read_origin_uploads(self._ledger.index)
        if opened:
            self._ledger.commit_now(OriginUploadEnded(FORMAT, self._draws.choice(opened).origin_upload_id))

    def _discard(self) -> None:
        self._ledger.commit_now(Discarded(FORMAT, self._dirty()))

    def _forget(self) -> None:
        self._ledger.commit_now(Forgotten(FORMAT, BUCKET, self._key()))

    def _facts(self) -> None:
        bucket, exists = f"bucket-{self._draws.randrange(3)}", self._draws.random() < 0.7
        self._ledger.commit_now(
            FactsLearnt(FORMAT, BucketFacts(FORMAT, bucket, exists, self._draws.random()))
        )

    def _create(self) -> None:
        self._ledger.create_upload_now(self._key())

    def _part(self) -> None:
        uploads = self._uploads(is_open=True)
        if uploads:
            body, is_tiny = self._body()
            upload = self._draws.choice(uploads)
            self._known_parts(upload.upload_id)
            self._ledger.part_now(
                upload.upload_id, self._draws.randrange(1, 4), body, is_tiny=is_tiny and bool(body)
            )

    def _complete(self) -> None:
        uploads = self._uploads(is_open=True)
        if uploads:
            upload = self._draws.choice(uploads)
            known = self._known_parts(upload.upload_id)
            numbers = sorted(number for number in known if self._draws.random() < 0.8)
            self._ledger.complete_now(upload.upload_id, upload.key, numbers)

    def _known_parts(self, upload_id: str) -> dict[int, PartSize]:
        """Give the parts of an upload, those of an earlier life of the directory too."""
        rows = self._ledger.index.scan(Family.PARTS, *keys.parts_range(upload_id), 1000)
        parts = [decode_part(value) for _, value in rows]
        sizes = {part.number: PartSize(part.number, part.size, part.etag) for part in parts}
        self._ledger.upload_parts[upload_id] = sizes
        return sizes

    def _abort(self) -> None:
        uploads = self._uploads(is_open=self._draws.random() < 0.5)
        if uploads:
            self._ledger.abort_now(self._draws.choice(uploads).upload_id)

    def _rotate(self) -> None:
        self._ledger.recovered.journal.rotate()
