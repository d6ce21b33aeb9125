"""Checksums of bytes in pieces, and what they prove."""

import base64
import random
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from storage.errors import OriginUnavailableError
from storage.hashers import ChecksumHasher, joint_check, whole_check
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


CRCS = (ChecksumAlgorithm.CRC32, ChecksumAlgorithm.CRC32C, ChecksumAlgorithm.CRC64NVME)


@given(
    data=st.binary(min_size=1, max_size=200),
    cuts=st.sets(st.integers(1, 199)),
    algorithm=st.sampled_from(CRCS),
    order=st.randoms(use_true_random=False),
    wrong_at=st.one_of(st.none(), st.integers(0, 199)),
)
def test_stretches_in_any_order_are_held_against_the_whole(
    data: bytes,
    cuts: set[int],
    algorithm: ChecksumAlgorithm,
    order: random.Random,
    wrong_at: int | None,
) -> None:
    """However an object is cut, and whatever comes first: right bytes pass, a wrong one does not, and nothing is said before the last."""
    whole = ChecksumHasher(algorithm)
    whole.update(data)
    joint = joint_check((whole.checksum(),), len(data))
    assert joint is not None
    brought = bytearray(data)
    if wrong_at is not None:
        brought[wrong_at % len(data)] ^= 1
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    stretches = list(pairwise(edges))
    order.shuffle(stretches)

    for number, (start, stop) in enumerate(stretches):
        hasher = joint.stretch()
        hasher.update(brought[start:stop])
        assert not joint.is_settled
        joint.add(start, stop, hasher.digest())
        if number + 1 < len(stretches):
            joint.add(start, stop, hasher.digest())  # the same bytes, brought once more

    assert joint.is_settled
    assert joint.is_refuted is (wrong_at is not None)


def test_what_only_all_bytes_in_order_show_is_no_joint_check() -> None:
    """A SHA cannot be joined; a joint check that was given up is settled, and refutes nothing."""
    sha, crc = ChecksumHasher(ChecksumAlgorithm.SHA256), ChecksumHasher(ChecksumAlgorithm.CRC32C)
    joint = joint_check((sha.checksum(), crc.checksum()), 5)

    assert joint_check((sha.checksum(),), 5) is None
    assert joint is not None
    joint.give_up()
    joint.add(0, 5, bytes(4))
    assert joint.is_settled
    assert not joint.is_refuted
