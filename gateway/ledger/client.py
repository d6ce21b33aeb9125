"""One client of a ledger's load: a thread with a connection and keys of its own.

It draws what comes next, writes it down, sends it, and writes down the answer; a request without one as such. While the endpoint is
away it only asks whether it is back: nothing is attempted that could not arrive.

A body is a function of the seed and the attempt's number: nothing has to be kept to know it again.
"""

import hashlib
import random
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.ledger.book import Book
from gateway.ledger.entries import ATTEMPT_METADATA, Acknowledged, Attempt, Broken, Refused, Unanswered
from gateway.ledger.history import KeyHistory
from gateway.s3_endpoint import Answer, EndpointError, S3Endpoint
from storage.clock import Clock
from storage.errors import StorageError
from storage.origin.documents import PartToComplete, parse_upload_id, write_complete
from storage.origin.signing import uri_encode
from storage.types import MIB

PART_BYTES_MIN: Final = 5 * MIB
"""Every part but the last is at least so large (AWS User Guide "Amazon S3 multipart upload limits")."""

SIZE_BITS_MIN: Final = 6
KEEP_OPEN_SHARE: Final = 0.3
"""Of the uploads whose parts are there, so many wait for their Complete while other things happen."""

RETRY_WAIT_S: Final = 0.2
"""Pause between questions to an endpoint that is away; nothing is written down before it answers one."""

SETTLE_S: Final = 5.0
"""A key is left alone so long after a copy, or a request that the endpoint sat on, had no answer: it may land late."""

_OPERATIONS: Final = ("put",) * 60 + ("delete",) * 15 + ("copy",) * 10 + ("complete",) * 15
_OPEN_STATUSES: Final = frozenset({408, 409, 499})
"""Of the 4xx those of requests that were given up on, or met another one: they may have been carried out."""

_GONE: Final = frozenset({"NoSuchUpload", "InvalidPart"})


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What the load is like.

    Attributes:
        seed: Of bodies and of what comes next; a load over the same ledger goes on with other draws.
        keys_a_client: Few, so that keys are overwritten often.
        size_max: Bytes of the largest body; sizes are spread evenly over the powers of two up to it.
        pause_s: Between two requests of a client.
    """

    bucket: str
    prefix: str
    clients: int = 8
    seed: int = 1
    keys_a_client: int = 25
    size_max: int = MIB
    pause_s: float = 0.0
    settle_s: float = SETTLE_S


@dataclass(slots=True)
class Tally:
    """What a load did: attempts by operation and outcome."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes_acknowledged: int = 0

    @property
    def acknowledged(self) -> int:
        """All requests that changed a key and were answered 2xx."""
        return sum(count for (_, outcome), count in self.counts.items() if outcome == "acknowledged")

    @property
    def unanswered(self) -> int:
        """All that were not."""
        return sum(count for (_, outcome), count in self.counts.items() if outcome != "acknowledged")

    def add(self, other: "Tally") -> None:
        """Add another's."""
        # A copy: the other may be counting on in its thread.
        self.counts.update(dict(other.counts))
        self.bytes_acknowledged += other.bytes_acknowledged


@dataclass(frozen=True, slots=True)
class _Upload:
    """An upload whose parts were all acknowledged."""

    upload_id: str
    attempt: Attempt
    parts: tuple[PartToComplete, ...]


class Numbers:
    """Numbers of attempts, rising over all clients."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._lock = threading.Lock()

    def take(self) -> int:
        """Give the next one."""
        with self._lock:
            self._last += 1
            return self._last


class Client:
    """One thread's work: keys, connection, random draws and open uploads of its own."""

    def __init__(  # noqa: PLR0913 - what one client needs, made by Load alone
        self,
        settings: LoadSettings,
        number: int,
        *,
        book: Book,
        known: Mapping[str, KeyHistory],
        numbers: Numbers,
        endpoint: S3Endpoint,
        clock: Clock,
    ) -> None:
        self.number: Final = number
        self.tally = Tally()
        self._settings: Final = settings
        self._book: Final = book
        self._numbers: Final = numbers
        self._endpoint: Final = endpoint
        self._clock: Final = clock
        self._random = random.Random(f"{settings.seed}/{number}/{numbers.take()}")  # noqa: S311 - repeatable, no secret
        self._keys: Final = [
            f"{settings.prefix}{number:03}/{index:04}" for index in range(settings.keys_a_client)
        ]
        self._histories: Final = {key: known.get(key) or KeyHistory() for key in self._keys}
        self._left_alone_until_s: Final[dict[str, float]] = {}
        self._uploads: Final[list[_Upload]] = []
        self._is_away = False

    def run(self, stop: threading.Event) -> None:
        """Write until `stop` is set."""
        while not stop.is_set():
            if self._is_away:
                self._is_away = self._ask("HEAD", self._random.choice(self._keys), ()) is None
            if self._is_away:
                stop.wait(RETRY_WAIT_S)
                continue
            self._step()
            stop.wait(self._settings.pause_s)
        self._endpoint.close()

    def _step(self) -> None:
        key = self._random.choice(self._keys)
        operation = self._random.choice(_OPERATIONS)
        if self._clock.monotonic_s() < self._left_alone_until_s.get(key, 0.0):
            return
        match operation:
            case "put":
                self._put(key)
            case "delete":
                self._send(self._attempt(key, "delete"), "DELETE")
            case "copy":
                self._copy(key)
            case _:
                self._upload(key)

    # --- operations --------------------------------------------------------------------------------------------------

    def _put(self, key: str) -> None:
        number = self._numbers.take()
        body = self._body(number, self._size())
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        attempt = self._attempt(key, "put", number=number, sha256=_sha256(body), size=len(body), etag=etag)
        self._send(attempt, "PUT", headers={ATTEMPT_METADATA: str(number)}, body=body)

    def _copy(self, key: str) -> None:
        source = self._random.choice(self._keys)
        history = self._histories[source]
        what = history.current
        if source == key or what is None or not history.is_certain:
            return
        attempt = self._attempt(key, "copy", sha256=what.sha256, size=what.size)
        headers = {
            "x-amz-copy-source": uri_encode(f"{self._settings.bucket}/{source}", keep_slash=True),
            "x-amz-metadata-directive": "REPLACE",
            ATTEMPT_METADATA: str(attempt.number),
        }
        self._send(attempt, "PUT", headers=headers)

    def _upload(self, key: str) -> None:
        """Open an upload and send its parts, or complete one that waits for it."""
        waiting = next((one for one in self._uploads if one.attempt.key == key), None)
        if waiting is None:
            waiting = self._send_parts(key)
            if waiting is not None:
                self._uploads.append(waiting)
                if self._random.random() < KEEP_OPEN_SHARE:
                    return
        if waiting is not None:
            self._uploads.remove(waiting)
            self._complete(waiting)

    def _send_parts(self, key: str) -> _Upload | None:
        number = self._numbers.take()
        bodies = self._part_bodies(number)
        whole = hashlib.sha256(b"".join(bodies)).hexdigest()
        digests = [hashlib.md5(body, usedforsecurity=False) for body in bodies]
        joined = hashlib.md5(b"".join(one.digest() for one in digests), usedforsecurity=False).hexdigest()
        etag, size = f"{joined}-{len(bodies)}", sum(map(len, bodies))
        attempt = Attempt(number, key, "complete", 0.0, whole, size, etag, mark=str(number))
        opened = self._ask("POST", key, (("uploads", ""),), headers={ATTEMPT_METADATA: str(number)})
        if opened is None or not opened.is_success:
            return None
        with suppress(StorageError):
            return self._fill(_Upload(parse_upload_id(opened.body), attempt, ()), bodies)
        return None

    def _fill(self, upload: _Upload, bodies: list[bytes]) -> _Upload | None:
        """Send the parts of an upload; None where one of them was not acknowledged."""
        parts: list[PartToComplete] = []
        for part, body in enumerate(bodies, start=1):
            query = (("partNumber", str(part)), ("uploadId", upload.upload_id))
            answer = self._ask("PUT", upload.attempt.key, query, body=body)
            if answer is None or not answer.is_success:
                return None
            parts.append(PartToComplete(part, answer.etag))
        return replace(upload, parts=tuple(parts))

    def _part_bodies(self, number: int) -> list[bytes]:
        size = self._size()
        if self._settings.size_max > PART_BYTES_MIN and self._random.random() < 0.3:
            rest = 1 + size % (self._settings.size_max - PART_BYTES_MIN)
            body = self._body(number, PART_BYTES_MIN + rest)
            return [body[:PART_BYTES_MIN], body[PART_BYTES_MIN:]]
        return [self._body(number, size)]

    def _complete(self, upload: _Upload) -> None:
        """Complete an upload; each of its parts was acknowledged, so it must be there."""
        number = self._numbers.take()
        attempt = Attempt(
            number,
            upload.attempt.key,
            "complete",
            self._clock.wall_s(),
            upload.attempt.sha256,
            upload.attempt.size,
            upload.attempt.etag,
            mark=upload.attempt.mark,
        )
        self._begin(attempt)
        answer = self._finish(
            attempt,
            "POST",
            query=(("uploadId", upload.upload_id),),
            body=write_complete(upload.parts),
        )
        if answer is not None and answer.code in _GONE:
            what = f"{answer.code}: upload {upload.upload_id} had all its parts acknowledged"
            self._book.append(Broken(attempt.key, what))

    # --- attempts ----------------------------------------------------------------------------------------------------

    def _attempt(
        self, key: str, operation: str, *, number: int = 0, sha256: str = "", size: int = 0, etag: str = ""
    ) -> Attempt:
        number = number or self._numbers.take()
        return Attempt(number, key, operation, self._clock.wall_s(), sha256, size, etag)

    def _send(
        self, attempt: Attempt, method: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        self._begin(attempt)
        self._finish(attempt, method, headers=headers, body=body)

    def _begin(self, attempt: Attempt) -> None:
        """Put an attempt on the disk, and with it all that was written down before."""
        self._book.sync(self._book.append(attempt))
        self._histories[attempt.key].attempts[attempt.number] = attempt

    def _finish(
        self,
        attempt: Attempt,
        method: str,
        *,
        query: tuple[tuple[str, str], ...] = (),
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer | None:
        """Send it and write down what came of it; None without an answer."""
        history, answer, reason = self._histories[attempt.key], None, ""
        may_land = attempt.operation == "copy"
        try:
            answer = self._endpoint.call(
                method, self._settings.bucket, attempt.key, query=query, headers=headers, body=body
            )
        except EndpointError as error:
            reason, may_land = str(error), may_land or error.may_land
        self._is_away = answer is None
        if answer is not None and answer.is_success:
            etag = answer.etag or _etag_of(answer.body)
            self._book.append(Acknowledged(attempt.number, attempt.key, etag))
            history.told[attempt.number] = etag
            history.acknowledge(attempt.number)
            history.forget_superseded()
            self.tally.bytes_acknowledged += attempt.size
            self.tally.counts[attempt.operation, "acknowledged"] += 1
            return answer
        if answer is not None:
            reason = f"{answer.status} {answer.code}"
        if answer is not None and is_definite(answer.status):
            self._book.append(Refused(attempt.number, attempt.key, reason))
            history.refuse(attempt.number)
        else:
            self._book.append(Unanswered(attempt.number, attempt.key, reason))
        self.tally.counts[attempt.operation, "refused" if answer is not None else "unanswered"] += 1
        if may_land:
            self._left_alone_until_s[attempt.key] = self._clock.monotonic_s() + self._settings.settle_s
        return answer

    def _ask(
        self,
        method: str,
        key: str,
        query: tuple[tuple[str, str], ...],
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer | None:
        """Send what changes no key; None without an answer."""
        try:
            answer = self._endpoint.call(
                method, self._settings.bucket, key, query=query, headers=headers, body=body
            )
        except EndpointError:
            self._is_away = True
            return None
        self._is_away = False
        return answer

    # --- bodies ------------------------------------------------------------------------------------------------------

    def _size(self) -> int:
        bits = self._random.randrange(
            SIZE_BITS_MIN - 1, max(SIZE_BITS_MIN, self._settings.size_max.bit_length())
        )
        return (
            0 if bits < SIZE_BITS_MIN else min(self._settings.size_max, self._random.randrange(1, 2 << bits))
        )

    def _body(self, number: int, size: int) -> bytes:
        return random.Random(f"{self._settings.seed}/{number}").randbytes(size)  # noqa: S311 - as above


def is_definite(status: int) -> bool:
    """Whether an answer that is no success says that the request is not done, and will not be (RFC 9110 section 15.5)."""
    return 400 <= status < 500 and status not in _OPEN_STATUSES


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _etag_of(document: bytes) -> str:
    """Find the ETag of a CopyObjectResult or CompleteMultipartUploadResult."""
    _, _, rest = document.partition(b"<ETag>")
    return rest.partition(b"</ETag>")[0].decode().replace("&quot;", "").replace("&#34;", "").strip('"')
