import zlib
from collections.abc import Callable

import pytest
from awscrt import checksums  # type: ignore[import-untyped]  # the package ships no types
from hypothesis import given, strategies as st

from storage import crc

CRCS = [
    pytest.param(crc.CRC32, zlib.crc32, id="CRC32"),
    pytest.param(crc.CRC32C, checksums.crc32c, id="CRC32C"),
    pytest.param(crc.CRC64NVME, checksums.crc64nvme, id="CRC64NVME"),
]


@pytest.mark.parametrize(("polynomial", "compute"), CRCS)
@given(first=st.binary(max_size=300), second=st.binary(max_size=300))
def test_combine_gives_the_crc_of_the_joined_bytes(
    polynomial: crc.Polynomial, compute: Callable[[bytes], int], first: bytes, second: bytes
) -> None:
    """The CRC of a whole follows from those of its pieces, empty ones too."""
    joined = crc.combine(polynomial, compute(first), compute(second), len(second))

    assert joined == compute(first + second)


@pytest.mark.parametrize(("polynomial", "compute"), CRCS)
def test_combine_gives_the_crc_of_the_joined_bytes_when_they_are_many(
    polynomial: crc.Polynomial, compute: Callable[[bytes], int]
) -> None:
    """The size of a real part is no different."""
    first, second = b"a" * 1000, bytes(range(256)) * 20_480

    assert crc.combine(polynomial, compute(first), compute(second), len(second)) == compute(first + second)
