"""Checksums of bytes in pieces, and what they prove."""

import base64

import pytest

from storage.errors import OriginUnavailableError
from storage.hashers import ChecksumHasher, whole_check
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType

CRC32 = Checksum(ChecksumAlgorithm.CRC32, "y/Q5Jg==")  # of the digits 1 to 9


@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [
        (ChecksumAlgorithm.CRC32, "cbf43926"),
        (ChecksumAlgorithm.CRC32C, "e3069283"),
        (ChecksumAlgorithm.CRC64NVME, "ae8b14860a799888"),
        (ChecksumAlgorithm.SHA1, "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
        (ChecksumAlgorithm.SHA256, "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"),
    ],
)
def test_hasher_gives_the_published_check_value(algorithm: ChecksumAlgorithm, digest: str) -> None:
    """Each algorithm gives, for the digits 1 to 9 in two pieces, the check value its catalogue names."""
    hasher = ChecksumHasher(algorithm)

    hasher.update(b"1234")
    hasher.update(memoryview(b"56789"))

    assert hasher.digest().hex() == digest


@pytest.mark.parametrize("algorithm", ChecksumAlgorithm)
def test_bytes_are_held_against_any_algorithm(algorithm: ChecksumAlgorithm) -> None:
    """The bytes of a checksum pass, one byte more or less does not."""
    hasher = ChecksumHasher(algorithm)
    hasher.update(b"123456789")
    same, short = whole_check((hasher.checksum(),)), whole_check((hasher.checksum(),))
    assert same is not None
    assert short is not None

    same.update(b"1234")
    same.update(b"56789")
    short.update(b"12345678")

    same.verify()
    with pytest.raises(OriginUnavailableError) as refuted:
        short.verify()
    assert refuted.value.code == "BadAnswer"
    assert (same.is_refuted, short.is_refuted) == (False, True)


@pytest.mark.parametrize(
    "checksum",
    [
        Checksum(ChecksumAlgorithm.CRC32, "y/Q5Jg==-1", ChecksumType.COMPOSITE),
        Checksum(ChecksumAlgorithm.CRC32, "y/Q5Jg==", ChecksumType.COMPOSITE),
        Checksum(ChecksumAlgorithm.CRC32, "y/Q5Jg==-1"),
        Checksum(ChecksumAlgorithm.CRC32, "not base64"),
        Checksum(ChecksumAlgorithm.CRC32, base64.b64encode(bytes(5)).decode()),
    ],
)
def test_what_is_no_digest_of_all_bytes_proves_nothing(checksum: Checksum) -> None:
    """Composite checksums and values of another form are passed over; the next one is used."""
    other = Checksum(ChecksumAlgorithm.SHA1, "98O8HYCOBHMq32eZZczDTKeuNEE=")

    check = whole_check((checksum, other))

    assert whole_check((checksum,)) is None
    assert check is not None
    check.update(b"123456789")
    check.verify()


def test_one_checksum_is_computed_and_the_cheapest() -> None:
    """Of several, CRC32 decides."""
    check = whole_check((Checksum(ChecksumAlgorithm.SHA1, base64.b64encode(bytes(20)).decode()), CRC32))

    assert check is not None
    check.update(b"123456789")
    check.verify()
