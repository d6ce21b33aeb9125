import base64
import hashlib
import zlib

import pytest
from hypothesis import given, strategies as st

from gateway.s3.checksums import (
    BodyDigests,
    DeclaredDigests,
    checksum_headers,
    declared_checksum,
    declared_digests,
    parse_algorithm,
    upload_checksum,
    wants_checksums,
    whole_checksum,
)
from gateway.s3.errors import S3Error
from storage.hashers import ChecksumHasher
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType

BODY = b"A" * 1024
BODY_VALUES = {
    ChecksumAlgorithm.CRC32: base64.b64encode(zlib.crc32(BODY).to_bytes(4)).decode(),
    ChecksumAlgorithm.CRC64NVME: "Qeh8oXvGiSo=",
    ChecksumAlgorithm.SHA1: base64.b64encode(hashlib.sha1(BODY).digest()).decode(),
    ChecksumAlgorithm.SHA256: "arcu6553sHVAiX4MjW0j7I7vD4w6R+Gz9Ok0Q9lTa+0=",
}
BODY_MD5 = base64.b64encode(hashlib.md5(BODY).digest()).decode()


def code_of(error: pytest.ExceptionInfo[S3Error]) -> str:
    """Give the code of an error that must be a 400."""
    assert error.value.status == 400
    return error.value.code


@pytest.mark.parametrize("algorithm", BODY_VALUES)
def test_verify_accepts_when_all_that_was_declared_holds(algorithm: ChecksumAlgorithm) -> None:
    """MD5, SHA-256 of the payload and a checksum are computed in one pass; the checksum is what to store."""
    declared = declared_digests(
        {
            "content-md5": BODY_MD5,
            "x-amz-content-sha256": hashlib.sha256(BODY).hexdigest().upper(),
            f"x-amz-checksum-{algorithm.lower()}": BODY_VALUES[algorithm],
            "x-amz-sdk-checksum-algorithm": algorithm,
        }
    )
    digests = BodyDigests(declared)

    digests.update(BODY[:100])
    digests.update(BODY[100:])
    verified = digests.verify()

    assert verified.size == 1024
    assert verified.etag == hashlib.md5(BODY).hexdigest()
    assert verified.checksum == Checksum(algorithm, BODY_VALUES[algorithm])


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"content-md5": BODY_MD5}, "BadDigest"),
        ({"x-amz-content-sha256": hashlib.sha256(BODY).hexdigest()}, "XAmzContentSHA256Mismatch"),
        ({"x-amz-checksum-crc64nvme": "Qeh8oXvGiSo="}, "BadDigest"),
        ({"x-amz-checksum-sha1": BODY_VALUES[ChecksumAlgorithm.SHA1]}, "BadDigest"),
    ],
)
def test_verify_refuses_when_the_body_is_another(headers: dict[str, str], code: str) -> None:
    """B30: each digest is compared with what came."""
    digests = BodyDigests(declared_digests(headers))
    digests.update(BODY + b"!")

    with pytest.raises(S3Error) as caught:
        digests.verify()

    assert code_of(caught) == code


@pytest.mark.parametrize("value", ["UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "", "abc"])
def test_declared_digests_takes_no_payload_hash_when_the_header_names_a_form(value: str) -> None:
    """Only 64 hex digits are a digest of the payload."""
    assert declared_digests({"x-amz-content-sha256": value}) == DeclaredDigests()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"content-md5": ""}, "InvalidDigest"),
        ({"content-md5": "YWJyYWNhZGFicmE="}, "InvalidDigest"),
        ({"content-md5": "rL0Y20zC+Fzt72VPzMSk2A"}, "InvalidDigest"),
        ({"content-md5": "not base64!"}, "InvalidDigest"),
        ({"x-amz-checksum-sha256": "bad"}, "BadDigest"),
        ({"x-amz-checksum-crc32": "y/Q5JgAA"}, "BadDigest"),
        ({"x-amz-checksum-crc32": "y/Q5Jg==-2"}, "BadDigest"),
        ({"x-amz-checksum-crc32": "y/Q5Jg==,y/Q5Jg=="}, "BadDigest"),
        ({"x-amz-checksum-crc32": "y/Q5Jg==", "x-amz-checksum-crc32c": "4waSgw=="}, "InvalidRequest"),
        ({"x-amz-checksum-crc32": "y/Q5Jg==", "x-amz-trailer": "x-amz-checksum-crc32c"}, "InvalidRequest"),
        ({"x-amz-trailer": "x-amz-checksum-crc32c, x-amz-checksum-sha1"}, "InvalidRequest"),
        ({"x-amz-trailer": "x-amz-meta-a"}, "InvalidRequest"),
        ({"x-amz-sdk-checksum-algorithm": "CRC32"}, "InvalidRequest"),
        ({"x-amz-sdk-checksum-algorithm": "SHA1", "x-amz-checksum-crc32": "y/Q5Jg=="}, "InvalidRequest"),
    ],
)
def test_declared_digests_refuses_when_headers_are_malformed_or_contradict_each_other(
    headers: dict[str, str], code: str
) -> None:
    """What cannot be a digest, and more than one checksum, is refused before the body is read."""
    with pytest.raises(S3Error) as caught:
        declared_digests(headers)

    assert code_of(caught) == code


def test_verify_compares_with_the_trailer_when_one_was_announced() -> None:
    """A checksum that follows the body counts like one before it."""
    declared = declared_digests(
        {"x-amz-trailer": "x-amz-checksum-crc64nvme", "x-amz-sdk-checksum-algorithm": "CRC64NVME"}
    )
    digests = BodyDigests(declared)
    digests.update(BODY)

    assert digests.verify({"x-amz-checksum-crc64nvme": "Qeh8oXvGiSo="}).checksum == Checksum(
        ChecksumAlgorithm.CRC64NVME, "Qeh8oXvGiSo="
    )
    for trailers, code in [
        ({"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}, "BadDigest"),
        ({"x-amz-checksum-crc64nvme": "AAAA"}, "BadDigest"),
        ({}, "MalformedTrailerError"),
    ]:
        with pytest.raises(S3Error) as caught:
            digests.verify(trailers)
        assert code_of(caught) == code


def test_verify_takes_another_spelling_of_the_same_digest() -> None:
    """Base64 has unused bits; digests are compared as bytes and stored in the one canonical spelling."""
    digests = BodyDigests(declared_digests({"x-amz-checksum-crc32": "y/Q5Jh=="}))
    digests.update(b"123456789")

    assert digests.verify().checksum == Checksum(ChecksumAlgorithm.CRC32, "y/Q5Jg==")


def test_verify_gives_the_default_checksum_when_none_was_declared() -> None:
    """The checksum that S3 adds by itself is computed where the caller asks for it."""
    digests = BodyDigests(DeclaredDigests(), ChecksumAlgorithm.CRC64NVME)
    digests.update(BODY)

    assert digests.verify().checksum == Checksum(ChecksumAlgorithm.CRC64NVME, "Qeh8oXvGiSo=")
    assert BodyDigests(DeclaredDigests()).verify().checksum is None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"x-amz-checksum-algorithm": "crc32"}, (ChecksumAlgorithm.CRC32, ChecksumType.COMPOSITE)),
        (
            {"x-amz-checksum-algorithm": "CRC32C", "x-amz-checksum-type": "FULL_OBJECT"},
            (ChecksumAlgorithm.CRC32C, ChecksumType.FULL_OBJECT),
        ),
        ({"x-amz-checksum-algorithm": "CRC64NVME"}, (ChecksumAlgorithm.CRC64NVME, ChecksumType.FULL_OBJECT)),
        ({"x-amz-checksum-algorithm": "SHA256"}, (ChecksumAlgorithm.SHA256, ChecksumType.COMPOSITE)),
    ],
)
def test_upload_checksum_reads_algorithm_and_type_with_aws_defaults(
    headers: dict[str, str], expected: tuple[ChecksumAlgorithm, ChecksumType] | None
) -> None:
    """CreateMultipartUpload names the algorithm, and the type where it is not the algorithm's default."""
    assert upload_checksum(headers) == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-checksum-type": "FULL_OBJECT"},
        {"x-amz-checksum-algorithm": "MD4"},
        {"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-type": "PARTIAL"},
        {"x-amz-checksum-algorithm": "SHA1", "x-amz-checksum-type": "FULL_OBJECT"},
        {"x-amz-checksum-algorithm": "CRC64NVME", "x-amz-checksum-type": "COMPOSITE"},
    ],
)
def test_upload_checksum_refuses_when_algorithm_and_type_do_not_go_together(headers: dict[str, str]) -> None:
    """AWS's table of algorithms and types holds."""
    with pytest.raises(S3Error) as caught:
        upload_checksum(headers)

    assert code_of(caught) == "InvalidRequest"


def test_declared_checksum_is_composite_only_when_it_is_of_an_upload() -> None:
    """Complete may declare `digest-N`; a PutObject may not."""
    composite = "Ok6Cs5b96ux6+MWQkJO7UBT5sKPBeXBLwvj/hK89smg=-1"
    headers = {"x-amz-checksum-sha256": composite}

    assert declared_checksum(headers, of_upload=True) == Checksum(
        ChecksumAlgorithm.SHA256, composite, ChecksumType.COMPOSITE
    )
    with pytest.raises(S3Error):
        declared_checksum(headers)


def test_whole_checksum_is_composite_as_s3_computes_it() -> None:
    """The digest of the parts' digests, with their number; the value is that of Ceph's conformance suite."""
    part = Checksum(ChecksumAlgorithm.SHA256, BODY_VALUES[ChecksumAlgorithm.SHA256])

    whole = whole_checksum(ChecksumAlgorithm.SHA256, ChecksumType.COMPOSITE, [(part, 1024)])

    assert whole == Checksum(
        ChecksumAlgorithm.SHA256, "Ok6Cs5b96ux6+MWQkJO7UBT5sKPBeXBLwvj/hK89smg=-1", ChecksumType.COMPOSITE
    )


@given(
    algorithm=st.sampled_from(
        [ChecksumAlgorithm.CRC32, ChecksumAlgorithm.CRC32C, ChecksumAlgorithm.CRC64NVME]
    ),
    bodies=st.lists(st.binary(max_size=100), min_size=1, max_size=6),
)
def test_whole_checksum_is_that_of_the_whole_body_when_it_is_full_object(
    algorithm: ChecksumAlgorithm, bodies: list[bytes]
) -> None:
    """A full-object CRC combined from parts is the CRC of the joined parts."""
    hashers = [ChecksumHasher(algorithm) for _ in bodies]
    whole = ChecksumHasher(algorithm)
    for hasher, body in zip(hashers, bodies, strict=True):
        hasher.update(body)
        whole.update(body)
    parts = [(hasher.checksum(), len(body)) for hasher, body in zip(hashers, bodies, strict=True)]

    assert whole_checksum(algorithm, ChecksumType.FULL_OBJECT, parts) == whole.checksum()


def test_checksum_headers_name_value_and_type() -> None:
    """A response shows each checksum under its own header, and the type once."""
    checksum = Checksum(ChecksumAlgorithm.CRC64NVME, "Qeh8oXvGiSo=")

    assert checksum_headers([checksum]) == (
        ("x-amz-checksum-crc64nvme", "Qeh8oXvGiSo="),
        ("x-amz-checksum-type", "FULL_OBJECT"),
    )
    assert checksum_headers([]) == ()


def test_wants_checksums_only_when_the_mode_is_enabled() -> None:
    """Checksums are shown to those who ask."""
    assert wants_checksums({"x-amz-checksum-mode": "ENABLED"})
    assert not wants_checksums({"x-amz-checksum-mode": "off"})
    assert not wants_checksums({})


def test_parse_algorithm_lists_the_valid_names_when_it_refuses() -> None:
    """The message says what is allowed."""
    with pytest.raises(S3Error) as caught:
        parse_algorithm("md5")

    assert "[CRC32, CRC32C, CRC64NVME, SHA1, SHA256]" in caught.value.message
