"""Is what was acknowledged what the origin has? One key at a time, and two sorted streams of keys against each other.

Pure. The origin is described by its listing, by the headers of a HEAD, and by digests of its bytes.
"""

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from awscrt import checksums as crt  # type: ignore[import-untyped]  # it ships no types

from storage.acknowledgements import AcknowledgedLine
from storage.flush_events import FlushState
from storage.origin.documents import ListedObject
from storage.origin.wire import ANSWER_ONLY_HEADERS, META_PREFIX, header_text
from storage.types import ChecksumAlgorithm, ChecksumType


class Verdict(StrEnum):
    """What is the matter with one key."""

    DIRTY = "dirty"
    """Acknowledged, and on its way to the origin."""
    QUARANTINED = "quarantined"
    """Acknowledged, and refused by the origin for good."""
    MISSING = "missing"
    """The origin has confirmed it and does not have it now: another writer deleted it, or the origin lost it."""
    DIFFERENT = "different"
    """The origin has confirmed it and has something else now: another writer replaced it."""
    GONE = "gone"
    """Missing or different, and forgotten by the gateway while it was compared: deleted by a client just then, or seen by a read."""
    METADATA = "metadata"
    """Size and ETag are right; headers, metadata or tags are not."""
    BYTES = "bytes"
    """Size and ETag are right; the bytes do not have the digest that was acknowledged."""
    UNPROVEN = "unproven"
    """The bytes cannot be held against anything: the origin encrypts, so its ETag is no MD5, and there is no checksum."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One key that the origin alone does not hold as it was acknowledged."""

    verdict: Verdict
    line: AcknowledgedLine
    detail: str

    @property
    def key(self) -> str:
        """The key."""
        return self.line.key


@dataclass(frozen=True, slots=True)
class Pair:
    """A key that the gateway has acknowledged, the origin lists, or both."""

    line: AcknowledgedLine | None
    listed: ListedObject | None


def pairs(lines: Iterable[AcknowledgedLine], listing: Iterable[ListedObject]) -> Iterator[Pair]:
    """Put two streams, each in the order of its keys' UTF-8 bytes, side by side; one of each in memory at a time."""
    ours, theirs = iter(lines), iter(listing)
    line, listed = next(ours, None), next(theirs, None)
    while line is not None or listed is not None:
        if listed is None or (line is not None and line.key.encode() < listed.key.encode()):
            yield Pair(line, None)
            line = next(ours, None)
        elif line is None or listed.key.encode() < line.key.encode():
            yield Pair(None, listed)
            listed = next(theirs, None)
        else:
            yield Pair(line, listed)
            line, listed = next(ours, None), next(theirs, None)


def find(line: AcknowledgedLine, listed: ListedObject | None) -> Finding | None:
    """Hold one key against the origin's listing; None where the origin has what was acknowledged."""
    if line.state:
        is_refused = line.state == FlushState.QUARANTINED.value
        what = "delete" if line.is_tombstone else f"{line.size} bytes"
        reason = f": {line.reason}" if line.reason else ""
        verdict = Verdict.QUARANTINED if is_refused else Verdict.DIRTY
        return Finding(verdict, line, f"{what}, {line.state}{reason}")
    if listed is None:
        return Finding(Verdict.MISSING, line, f"{line.size} bytes, {line.etag}, are not at the origin")
    wanted = line.origin_etag or line.etag
    if listed.size == line.size and listed.etag == wanted:
        return None
    detail = f"the origin has {listed.size} bytes, {listed.etag}, not {line.size} bytes, {wanted}"
    return Finding(Verdict.DIFFERENT, line, detail)


def find_in_head(line: AcknowledgedLine, headers: Mapping[str, str]) -> Finding | None:
    """Hold what was stored with an object against the headers of its HEAD (lower-case names)."""
    told = {name: _as_stored(value) for name, value in headers.items()}
    wanted = {name: value for name, value in line.headers if name not in ANSWER_ONLY_HEADERS}
    # An origin leaves the default class out of its answers.
    wrong = [name for name, value in wanted.items() if told.get(name, "STANDARD") != value]
    ours = dict(line.user_metadata)
    theirs = {
        name.removeprefix(META_PREFIX): value for name, value in told.items() if name.startswith(META_PREFIX)
    }
    wrong += [META_PREFIX + name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    tags = len(line.tags.split("&")) if line.tags else 0
    # Some origins do not tell how many tags there are.
    if int(told.get("x-amz-tagging-count", tags)) != tags:
        wrong.append("tags")
    return Finding(Verdict.METADATA, line, f"the origin differs in {', '.join(wrong)}") if wrong else None


def _as_stored(value: str) -> str:
    """Read a header of http.client, which takes bytes for Latin-1, as the gateway keeps it."""
    return header_text(value.encode("latin-1", "replace").decode("utf-8", "surrogateescape"))


def has_own_etag(headers: Mapping[str, str]) -> bool:
    """Whether the ETag of an answer is not of the bytes (AWS API_Object: encrypted with keys of KMS or of the customer)."""
    is_kms = headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    return is_kms or "x-amz-server-side-encryption-customer-algorithm" in headers


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    """A CRC with the face of a hash."""

    def __init__(self, add: Callable[[bytes, int], int], length: int) -> None:
        self._add = add
        self._length = length
        self._value = 0

    def update(self, data: bytes, /) -> None:
        """Add bytes."""
        self._value = self._add(data, self._value)

    def digest(self) -> bytes:
        """Give the CRC."""
        return self._value.to_bytes(self._length, "big")


_DIGESTS: Final[dict[ChecksumAlgorithm, Callable[[], _Digest]]] = {
    ChecksumAlgorithm.CRC32: lambda: _Crc(zlib.crc32, 4),
    ChecksumAlgorithm.CRC32C: lambda: _Crc(crt.crc32c, 4),
    ChecksumAlgorithm.CRC64NVME: lambda: _Crc(crt.crc64nvme, 8),
    ChecksumAlgorithm.SHA1: lambda: hashlib.sha1(usedforsecurity=False),
    ChecksumAlgorithm.SHA256: hashlib.sha256,
}


class ByteProof:
    """Digests of an object's bytes as the origin sends them, against what was acknowledged of them."""

    def __init__(self, line: AcknowledgedLine) -> None:
        self._line = line
        self._sizes = [size for size, count in line.part_runs for _ in range(count)] or [line.size]
        self._parts: list[bytes] = []
        self._part = hashlib.md5(usedforsecurity=False)
        self._left = self._sizes[0]
        self._size = 0
        self._checksums = {
            one: _DIGESTS[one.algorithm]() for one in line.checksums if one.type is ChecksumType.FULL_OBJECT
        }

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self._size += len(data)
        for digest in self._checksums.values():
            digest.update(data)
        view = memoryview(data)
        while view:
            taken = view[: self._left] if self._left else view
            self._part.update(taken)
            self._left -= len(taken)
            view = view[len(taken) :]
            if self._left == 0 and len(self._parts) + 1 < len(self._sizes):
                self._end_part()

    def _end_part(self) -> None:
        self._parts.append(self._part.digest())
        self._part = hashlib.md5(usedforsecurity=False)
        self._left = self._sizes[len(self._parts)]

    def finding(self, headers: Mapping[str, str]) -> Finding | None:
        """Say what is wrong, once all bytes were added. `headers` are those that they came with."""
        line = self._line
        if self._size != line.size:
            return Finding(Verdict.BYTES, line, f"the origin sent {self._size} bytes, not {line.size}")
        for checksum, digest in self._checksums.items():
            if base64.b64encode(digest.digest()).decode() != checksum.value:
                return Finding(Verdict.BYTES, line, f"the {checksum.algorithm} is not {checksum.value}")
        if self._checksums or self._etag() == line.etag:
            return None
        if line.etag == line.origin_etag and has_own_etag(headers):
            return Finding(Verdict.UNPROVEN, line, f"{line.etag} is not the MD5, and there is no checksum")
        return Finding(Verdict.BYTES, line, f"the MD5 is {self._etag()}, not {line.etag}")

    def _etag(self) -> str:
        if not self._line.part_runs:
            return self._part.hexdigest()
        digests = [*self._parts, self._part.digest()]
        return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"
