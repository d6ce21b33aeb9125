"""Digests of bodies: what a request declares, what is computed while the body streams, what is stored and answered.

Sources: AWS "Checking object integrity in Amazon S3", AWS "PutObject", "CreateMultipartUpload", "CompleteMultipartUpload".

Four things may be declared of one body: Content-MD5, x-amz-content-sha256 (where it is a digest), one x-amz-checksum-*
header, or one such name in x-amz-trailer whose value follows the body. `declared_digests` reads them, `BodyDigests` computes
all that is needed in one pass, and nothing is committed before its `verify` has returned.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.s3.errors import ErrorCode, S3Error
from storage import crc
from storage.hashers import DIGEST_BYTES, ChecksumHasher
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType

HEADER_PREFIX: Final = "x-amz-checksum-"

CHECKSUM_HEADERS: Final[Mapping[str, ChecksumAlgorithm]] = {
    HEADER_PREFIX + algorithm.lower(): algorithm for algorithm in ChecksumAlgorithm
}
"""The headers that carry a checksum; x-amz-checksum-mode, -type and -algorithm do not."""

PARTS_MAX: Final = 10_000

_POLYNOMIALS: Final = {
    ChecksumAlgorithm.CRC32: crc.CRC32,
    ChecksumAlgorithm.CRC32C: crc.CRC32C,
    ChecksumAlgorithm.CRC64NVME: crc.CRC64NVME,
}
_UPLOAD_TYPES: Final[Mapping[ChecksumAlgorithm, tuple[ChecksumType, ...]]] = {
    # The first is the default (AWS "CreateMultipartUpload", x-amz-checksum-type).
    ChecksumAlgorithm.CRC32: (ChecksumType.COMPOSITE, ChecksumType.FULL_OBJECT),
    ChecksumAlgorithm.CRC32C: (ChecksumType.COMPOSITE, ChecksumType.FULL_OBJECT),
    ChecksumAlgorithm.CRC64NVME: (ChecksumType.FULL_OBJECT,),
    ChecksumAlgorithm.SHA1: (ChecksumType.COMPOSITE,),
    ChecksumAlgorithm.SHA256: (ChecksumType.COMPOSITE,),
}
_SHA256_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")
_COMPOSITE: Final = re.compile(r"(.+)-([1-9][0-9]{0,4})")


class DeclaredDigests(msgspec.Struct, frozen=True):
    """What a request says of its body before the body comes.

    Attributes:
        md5: The 16 bytes of Content-MD5.
        sha256_hex: x-amz-content-sha256 where it is a digest and not the name of a form, lower case.
        checksum: The x-amz-checksum-* header.
        trailer: The algorithm whose value follows the body.
    """

    md5: bytes | None = None
    sha256_hex: str | None = None
    checksum: Checksum | None = None
    trailer: ChecksumAlgorithm | None = None

    @property
    def algorithm(self) -> ChecksumAlgorithm | None:
        """The algorithm of the checksum, wherever its value stands."""
        return self.checksum.algorithm if self.checksum else self.trailer


class VerifiedDigests(msgspec.Struct, frozen=True):
    """What a body turned out to be. `etag` is the MD5 in hex; `checksum` is what to store, None without any."""

    size: int
    etag: str
    checksum: Checksum | None


class BodyDigests:
    """Computes, in one pass over a body, its MD5 and what else was declared of it.

    An object of its own that touches nothing shared: `update` may run on a worker thread, one call at a time.

    Args:
        declared: What the request said.
        default: The checksum to compute and store where the client declares none; None for no checksum.
    """

    def __init__(self, declared: DeclaredDigests, default: ChecksumAlgorithm | None = None) -> None:
        self._declared: Final = declared
        algorithm = declared.algorithm or default
        self._md5: Final = hashlib.md5(usedforsecurity=False)
        self._sha256: Final = hashlib.sha256() if declared.sha256_hex is not None else None
        self._checksum: Final = ChecksumHasher(algorithm) if algorithm else None
        self._size = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the decoded body."""
        self._size += len(data)
        self._md5.update(data)
        if self._sha256 is not None:
            self._sha256.update(data)
        if self._checksum is not None:
            self._checksum.update(data)

    def verify(self, trailers: Mapping[str, str] | None = None) -> VerifiedDigests:
        """Compare all that was declared with what came.

        Args:
            trailers: Those that followed the body, lower-case names; `AwsChunkedDecoder.finish` gives them.

        Raises:
            S3Error: BadDigest (400) for MD5 and checksums, XAmzContentSHA256Mismatch (400), MalformedTrailerError (400)
                where the announced trailer is missing.
        """
        declared = self._declared
        if declared.md5 is not None and declared.md5 != self._md5.digest():
            raise S3Error(
                ErrorCode.BAD_DIGEST, "The Content-MD5 you specified did not match what we received."
            )
        if self._sha256 is not None and self._sha256.hexdigest() != declared.sha256_hex:
            raise S3Error(
                ErrorCode.X_AMZ_CONTENT_SHA256_MISMATCH,
                "The provided 'x-amz-content-sha256' header does not match what was computed.",
            )
        computed = self._checksum.checksum() if self._checksum else None
        expected = declared.checksum or _trailing_checksum(declared.trailer, trailers or {})
        if expected is not None and computed != expected:
            raise checksum_mismatch(expected.algorithm)
        return VerifiedDigests(self._size, self._md5.hexdigest(), computed)


def declared_digests(headers: Mapping[str, str]) -> DeclaredDigests:
    """Read what a PutObject or UploadPart declares of its body (lower-case header names).

    Raises:
        S3Error: InvalidDigest (400) for a Content-MD5 that is none; BadDigest (400) for a checksum that cannot be one of its
            algorithm; InvalidRequest (400) for more than one checksum, an unknown trailer, or an x-amz-sdk-checksum-algorithm
            that does not go with the checksum.
    """
    checksum = declared_checksum(headers)
    trailer = _declared_trailer(headers)
    if checksum is not None and trailer is not None:
        raise _several_checksums()
    _check_sdk_algorithm(headers, checksum.algorithm if checksum else trailer)
    sha256 = headers.get("x-amz-content-sha256", "")
    return DeclaredDigests(
        md5=_content_md5(headers.get("content-md5")),
        sha256_hex=sha256.lower() if _SHA256_HEX.fullmatch(sha256) else None,
        checksum=checksum,
        trailer=trailer,
    )


def declared_checksum(headers: Mapping[str, str], *, of_upload: bool = False) -> Checksum | None:
    """Read the one x-amz-checksum-* header of a request; None without any.

    Args:
        headers: Lower-case names.
        of_upload: The request completes an upload, so that the value may be composite, `digest-N`.

    Raises:
        S3Error: InvalidRequest (400) for more than one, BadDigest (400) for a value that cannot be one.
    """
    given = [name for name in CHECKSUM_HEADERS if name in headers]
    if not given:
        return None
    if len(given) > 1:
        raise _several_checksums()
    return parse_checksum(CHECKSUM_HEADERS[given[0]], headers[given[0]], of_upload=of_upload)


def parse_checksum(algorithm: ChecksumAlgorithm, value: str, *, of_upload: bool = False) -> Checksum:
    """Check that a value can be a digest of `algorithm`.

    Raises:
        S3Error: BadDigest (400). AWS says InvalidRequest with the same text; Ceph's conformance suite wants BadDigest, and no
            SDK tells the two apart.
    """
    value = value.strip()
    composite = _COMPOSITE.fullmatch(value) if of_upload else None
    digest = _from_base64(composite[1] if composite else value)
    if len(digest) != DIGEST_BYTES[algorithm]:
        raise S3Error(
            ErrorCode.BAD_DIGEST, f"Value for {HEADER_PREFIX}{algorithm.lower()} header is invalid."
        )
    # Written anew: base64 has several spellings of the same bytes, and values are compared as text.
    if composite:
        return Checksum(algorithm, f"{_base64(digest)}-{composite[2]}", ChecksumType.COMPOSITE)
    return Checksum(algorithm, _base64(digest))


def upload_checksum(headers: Mapping[str, str]) -> tuple[ChecksumAlgorithm, ChecksumType] | None:
    """Read algorithm and type from a CreateMultipartUpload; None where the client names no algorithm.

    Raises:
        S3Error: InvalidRequest (400) for an unknown algorithm or type, a type alone, or two that do not go together.
    """
    name = headers.get("x-amz-checksum-algorithm")
    type_name = headers.get("x-amz-checksum-type")
    if name is None:
        if type_name is not None:
            raise S3Error(
                ErrorCode.INVALID_REQUEST,
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            )
        return None
    algorithm = parse_algorithm(name)
    allowed = _UPLOAD_TYPES[algorithm]
    if type_name is None:
        return algorithm, allowed[0]
    checksum_type = _parse_type(type_name)
    if checksum_type not in allowed:
        raise S3Error(
            ErrorCode.INVALID_REQUEST,
            f"The {checksum_type} checksum type cannot be used with the {algorithm.lower()} checksum algorithm.",
        )
    return algorithm, checksum_type


def parse_algorithm(name: str) -> ChecksumAlgorithm:
    """Read the name of an algorithm, in any case.

    Raises:
        S3Error: InvalidRequest (400), with the valid names.
    """
    try:
        return ChecksumAlgorithm(name.upper())
    except ValueError as error:
        names = ", ".join(ChecksumAlgorithm)
        raise S3Error(
            ErrorCode.INVALID_REQUEST,
            f"Checksum algorithm provided is unsupported. Please try again with any of the valid types: [{names}]",
        ) from error


def whole_checksum(
    algorithm: ChecksumAlgorithm, checksum_type: ChecksumType, parts: Sequence[tuple[Checksum, int]]
) -> Checksum:
    """Give the checksum of a completed upload from those of its parts.

    Composite is the digest of the parts' digests, with `-N`; a full-object CRC is combined from the parts' and their sizes.

    Args:
        algorithm: One whose type `checksum_type` may be.
        checksum_type: As the upload was created.
        parts: The checksum of `algorithm` and the size in bytes of each part, in order; at least one, at most PARTS_MAX.
    """
    assert 0 < len(parts) <= PARTS_MAX, len(parts)
    assert all(part.algorithm is algorithm for part, _ in parts), (algorithm, parts)
    digests = [base64.b64decode(part.value) for part, _ in parts]
    if checksum_type is ChecksumType.COMPOSITE:
        hasher = ChecksumHasher(algorithm)
        hasher.update(b"".join(digests))
        return Checksum(algorithm, f"{hasher.checksum().value}-{len(parts)}", checksum_type)
    polynomial = _POLYNOMIALS[algorithm]
    value = int.from_bytes(digests[0])
    for digest, (_, size) in zip(digests[1:], parts[1:], strict=True):
        value = crc.combine(polynomial, value, int.from_bytes(digest), size)
    return Checksum(algorithm, _base64(value.to_bytes(DIGEST_BYTES[algorithm])))


def completed_checksums(
    algorithm: str,
    checksum_type: str,
    parts: Sequence[tuple[int, tuple[Checksum, ...]]],
    *,
    declared: tuple[Checksum, ...] = (),
    size: int | None = None,
) -> tuple[Checksum, ...]:
    """Give the checksums that an upload's object has, held against what its Complete declares.

    Args:
        algorithm: The upload's, "" where it was created without; then the object has none.
        checksum_type: The upload's.
        parts: Size and checksums of each part, in order.
        declared: The object's checksum by the client's word.
        size: The object's size by the client's word (x-amz-mp-object-size); None where it gave none.

    Raises:
        S3Error: InvalidRequest for another size or a checksum that the parts do not have, BadDigest for another value.
    """
    if size is not None and size != sum(part_size for part_size, _ in parts):
        raise S3Error(ErrorCode.INVALID_REQUEST, "The x-amz-mp-object-size is not the size of the parts.")
    chosen = [
        (checksum, part_size)
        for part_size, checksums in parts
        for checksum in checksums
        if checksum.algorithm == algorithm
    ]
    if not algorithm or len(chosen) != len(parts):
        if declared:
            raise S3Error(ErrorCode.INVALID_REQUEST, "The parts were uploaded without the declared checksum.")
        return ()
    whole = whole_checksum(ChecksumAlgorithm(algorithm), ChecksumType(checksum_type), chosen)
    for expected in declared:
        if (expected.algorithm, expected.value) != (whole.algorithm, whole.value):
            raise checksum_mismatch(expected.algorithm)
    return (whole,)


def checksum_mismatch(algorithm: ChecksumAlgorithm) -> S3Error:
    """Make the BadDigest (400) of a checksum that is not that of the bytes."""
    return S3Error(
        ErrorCode.BAD_DIGEST, f"The {algorithm} you specified did not match the calculated checksum."
    )


def wants_checksums(headers: Mapping[str, str]) -> bool:
    """Say whether a GET or HEAD asks for the stored checksums."""
    return headers.get("x-amz-checksum-mode", "").upper() == "ENABLED"


def checksum_headers(checksums: Sequence[Checksum]) -> tuple[tuple[str, str], ...]:
    """Write response headers for an object's checksums, as a GET or HEAD with x-amz-checksum-mode: ENABLED answers."""
    if not checksums:
        return ()
    values = tuple((HEADER_PREFIX + c.algorithm.lower(), c.value) for c in checksums)
    return (*values, ("x-amz-checksum-type", str(checksums[0].type)))


def _content_md5(header: str | None) -> bytes | None:
    if header is None:
        return None
    md5 = _from_base64(header.strip())
    if len(md5) != 16:
        raise S3Error(ErrorCode.INVALID_DIGEST, "The Content-MD5 you specified is not valid.")
    return md5


def _declared_trailer(headers: Mapping[str, str]) -> ChecksumAlgorithm | None:
    header = headers.get("x-amz-trailer")
    if header is None:
        return None
    names = [name.strip().lower() for name in header.split(",")]
    if len(names) > 1:
        raise _several_checksums()
    if names[0] not in CHECKSUM_HEADERS:
        raise S3Error(
            ErrorCode.INVALID_REQUEST, "The value specified in the x-amz-trailer header is not supported"
        )
    return CHECKSUM_HEADERS[names[0]]


def _check_sdk_algorithm(headers: Mapping[str, str], given: ChecksumAlgorithm | None) -> None:
    name = headers.get("x-amz-sdk-checksum-algorithm")
    if name is None:
        return
    if given is None:
        raise S3Error(
            ErrorCode.INVALID_REQUEST,
            "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer "
            "headers were found.",
        )
    if name.upper() != given:
        raise S3Error(ErrorCode.INVALID_REQUEST, "Value for x-amz-sdk-checksum-algorithm header is invalid.")


def _trailing_checksum(algorithm: ChecksumAlgorithm | None, trailers: Mapping[str, str]) -> Checksum | None:
    if algorithm is None:
        return None
    value = trailers.get(HEADER_PREFIX + algorithm.lower())
    if value is None:
        raise S3Error(
            ErrorCode.MALFORMED_TRAILER,
            "The request contained trailing data that was not well-formed or did not conform to our published schema.",
        )
    return parse_checksum(algorithm, value)


def _parse_type(name: str) -> ChecksumType:
    try:
        return ChecksumType(name.upper())
    except ValueError as error:
        raise S3Error(
            ErrorCode.INVALID_REQUEST, "Value for x-amz-checksum-type header is invalid."
        ) from error


def _several_checksums() -> S3Error:
    return S3Error(
        ErrorCode.INVALID_REQUEST,
        "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
    )


def _from_base64(text: str) -> bytes:
    """Decode strictly; b"" for what is no base64, which no digest is."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")
