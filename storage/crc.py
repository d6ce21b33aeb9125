"""CRCs of joined data from the CRCs of its pieces, without reading the data again.

A CRC is the remainder of the message, seen as a polynomial over GF(2), modulo a fixed one. Appending n bytes multiplies the
first message by x^(8n), so that

    crc(A + B) = crc(A) * x^(8 * len(B)) mod P   xor   crc(B)

which holds for the finished values too where initial and final mask are both all ones, as in the three CRCs of S3 (the
masks cancel). All three are reflected: the most significant bit of a value is the coefficient of x^0.

The power is the product of the x^(8 * 2^k) for each bit k of n, which are remembered, as is the power itself: the parts of an
upload mostly have one size. A join then costs one multiplication, 10 to 20 us; a new length ten times as much. An upload of
thousands of parts is joined on a worker.
"""

from functools import lru_cache
from typing import Final

import msgspec


class Polynomial(msgspec.Struct, frozen=True, gc=False):
    """A CRC's polynomial in reflected form, without its highest term."""

    width: int
    reflected: int


CRC32: Final = Polynomial(32, 0xEDB88320)
CRC32C: Final = Polynomial(32, 0x82F63B78)
CRC64NVME: Final = Polynomial(64, 0x9A6C9329AC4BC9B5)


_LENGTHS_KEPT: Final = 1024
"""So many lengths are remembered: some 100 KiB."""


def combine(polynomial: Polynomial, first: int, second: int, second_length: int) -> int:
    """Give the CRC of two joined byte strings from their CRCs and the length of the second in bytes."""
    return _multiply(polynomial, _shift(polynomial, second_length), first) ^ second


def _multiply(polynomial: Polynomial, a: int, b: int) -> int:
    """Multiply modulo the polynomial: add up b * x^i for each term x^i of a."""
    reflected = polynomial.reflected
    product = 0
    term = 1 << (polynomial.width - 1)
    while a:
        if a & term:
            product ^= b
            a ^= term
        term >>= 1
        b = (b >> 1) ^ reflected if b & 1 else b >> 1
    return product


@lru_cache(maxsize=_LENGTHS_KEPT)
def _shift(polynomial: Polynomial, length: int) -> int:
    """Give x^(8 * length), what appending `length` bytes multiplies by."""
    power = 1 << (polynomial.width - 1)
    exponent = 0
    while length >> exponent:
        if (length >> exponent) & 1:
            power = _multiply(polynomial, _shift_by_power_of_two(polynomial, exponent), power)
        exponent += 1
    return power


@lru_cache(maxsize=3 * 64)
def _shift_by_power_of_two(polynomial: Polynomial, exponent: int) -> int:
    """Give x^(8 * 2^exponent), by squaring the one before."""
    if exponent == 0:
        return 1 << (polynomial.width - 1 - 8)
    half = _shift_by_power_of_two(polynomial, exponent - 1)
    return _multiply(polynomial, half, half)
