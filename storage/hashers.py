"""The checksums that S3 keeps with an object: computed of bytes that come in pieces, and held against what was told.

Source: AWS User Guide "Checking object integrity in Amazon S3". Pure.
"""

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Mapping
from typing import Final

from awscrt import checksums as _awscrt  # type: ignore[import-untyped]  # the package ships no types

from storage import crc
from storage.errors import OriginUnavailableError
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType

DIGEST_BYTES: Final[Mapping[ChecksumAlgorithm, int]] = {
    ChecksumAlgorithm.CRC32: 4,
    ChecksumAlgorithm.CRC32C: 4,
    ChecksumAlgorithm.CRC64NVME: 8,
    ChecksumAlgorithm.SHA1: 20,
    ChecksumAlgorithm.SHA256: 32,
}

_PREFERRED: Final = (
    # One proves enough; the cheap ones first.
    ChecksumAlgorithm.CRC32,
    ChecksumAlgorithm.CRC64NVME,
    ChecksumAlgorithm.CRC32C,
    ChecksumAlgorithm.SHA1,
    ChecksumAlgorithm.SHA256,
)

_POLYNOMIALS: Final[Mapping[ChecksumAlgorithm, crc.Polynomial]] = {
    ChecksumAlgorithm.CRC32: crc.CRC32,
    ChecksumAlgorithm.CRC64NVME: crc.CRC64NVME,
    ChecksumAlgorithm.CRC32C: crc.CRC32C,
}


class ChecksumHasher:
    """One x-amz-checksum of bytes that come in pieces."""

    def __init__(self, algorithm: ChecksumAlgorithm) -> None:
        self.algorithm: Final = algorithm
        self._running: Final = _running(algorithm)

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""
        self._running.update(data)

    def digest(self) -> bytes:
        """Give the digest of all bytes so far, big-endian where it is a CRC."""
        return self._running.digest()

    def checksum(self) -> Checksum:
        """Give the checksum as it is stored and answered."""
        return Checksum(self.algorithm, base64.b64encode(self.digest()).decode("ascii"))


class WholeCheck:
    """Holds the bytes of a whole object against the checksum that the origin gave of them.

    An object of its own that touches nothing shared: it may be fed on worker threads, one call at a time.

    Attributes:
        is_refuted: `verify` has found another checksum.
    """

    def __init__(self, algorithm: ChecksumAlgorithm, digest: bytes) -> None:
        self._hasher: Final = ChecksumHasher(algorithm)
        self._digest: Final = digest
        self.is_refuted = False

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the object."""
        self._hasher.update(data)

    def verify(self) -> None:
        """Compare, after the last byte.

        Raises:
            OriginUnavailableError: Code BadAnswer, these are not the bytes that the checksum is of.
        """
        if self._hasher.digest() != self._digest:
            self.is_refuted = True
            raise _others(self._hasher.algorithm)


class JointCheck:
    """Holds the bytes of a whole object, brought in stretches and in any order, against the CRC that the origin gave of them.

    Attributes:
        is_settled: It is known whether the bytes are the object's, or that it will not be known.
        is_refuted: They are not.
    """

    def __init__(self, algorithm: ChecksumAlgorithm, digest: bytes, size: int) -> None:
        self._algorithm: Final = algorithm
        self._digest: Final = int.from_bytes(digest)
        self._size: Final = size
        self._waiting: dict[int, tuple[int, int]] = {}
        self._joined_bytes = 0
        self._joined = 0
        self.is_settled = False
        self.is_refuted = False

    def stretch(self) -> ChecksumHasher:
        """Give what computes the digest of one stretch."""
        return ChecksumHasher(self._algorithm)

    def add(self, start: int, stop: int, digest: bytes) -> None:
        """Take the digest of bytes `[start, stop)`; what was there already counts once."""
        assert 0 <= start < stop <= self._size, f"[{start}, {stop}) of {self._size} bytes"
        self._waiting.setdefault(start, (stop, int.from_bytes(digest)))
        polynomial = _POLYNOMIALS[self._algorithm]
        while (following := self._waiting.pop(self._joined_bytes, None)) is not None:
            stop, value = following
            self._joined = crc.combine(polynomial, self._joined, value, stop - self._joined_bytes)
            self._joined_bytes = stop
        if self._joined_bytes == self._size and not self.is_settled:
            self.is_settled = True
            self.is_refuted = self._joined != self._digest

    def give_up(self) -> None:
        """Take it that some stretch will never come."""
        self.is_settled = True

    def error(self) -> OriginUnavailableError:
        """Make the error for bytes that are refuted."""
        return _others(self._algorithm)


def joint_check(checksums: tuple[Checksum, ...], size: int) -> JointCheck | None:
    """Begin to check a whole object of `size` bytes in stretches; None without a CRC of all its bytes."""
    algorithm, digest = _whole_digest(checksums, tuple(_POLYNOMIALS))
    return None if algorithm is None else JointCheck(algorithm, digest, size)


def whole_check(checksums: tuple[Checksum, ...]) -> WholeCheck | None:
    """Begin to check a whole object; None without a checksum of all its bytes.

    Composite checksums are of the parts' checksums, and a value that cannot be one of its algorithm proves nothing.
    """
    algorithm, digest = _whole_digest(checksums, _PREFERRED)
    return None if algorithm is None else WholeCheck(algorithm, digest)


def _whole_digest(
    checksums: tuple[Checksum, ...], preferred: tuple[ChecksumAlgorithm, ...]
) -> tuple[ChecksumAlgorithm | None, bytes]:
    """Find the digest of all bytes by the first of the algorithms that has one."""
    digests = {c.algorithm: _digest(c) for c in checksums if c.type is ChecksumType.FULL_OBJECT}
    for algorithm in preferred:
        digest = digests.get(algorithm, b"")
        if len(digest) == DIGEST_BYTES[algorithm]:
            return algorithm, digest
    return None, b""


def _others(algorithm: ChecksumAlgorithm) -> OriginUnavailableError:
    return OriginUnavailableError(
        f"the origin's bytes do not have its {algorithm}", status=0, code="BadAnswer"
    )


def _digest(checksum: Checksum) -> bytes:
    """Decode a value strictly; b"" for what is no base64, which no digest is."""
    try:
        return base64.b64decode(checksum.value, validate=True)
    except (binascii.Error, ValueError):
        return b""


class _RunningCrc:
    def __init__(self, step: Callable[[bytes | bytearray | memoryview, int], int], digest_bytes: int) -> None:
        self._step: Final = step
        self._digest_bytes: Final = digest_bytes
        self._value = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._digest_bytes)


def _running(algorithm: ChecksumAlgorithm) -> "_RunningCrc | hashlib._Hash":
    if algorithm is ChecksumAlgorithm.SHA1:
        return hashlib.sha1(usedforsecurity=False)
    if algorithm is ChecksumAlgorithm.SHA256:
        return hashlib.sha256()
    steps = {
        ChecksumAlgorithm.CRC32: zlib.crc32,
        ChecksumAlgorithm.CRC32C: _awscrt.crc32c,
        ChecksumAlgorithm.CRC64NVME: _awscrt.crc64nvme,
    }
    return _RunningCrc(steps[algorithm], DIGEST_BYTES[algorithm])
