"""Hashes that tell extents apart for the eviction policy: of 64 bits for the sample, of 32 for the ghost. Pure."""

from typing import Final

_MASK_32: Final = 0xFFFF_FFFF
_MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF
_MIX: Final = 0x9E37_79B9_7F4A_7C15
_GRAIN_MIX: Final = 0xC2B2_AE3D_27D4_EB4F
_MARK_MIX: Final = 0x2545_F491


def identity_of(version_id: int, grain_number: int) -> int:
    """Hash a grain of a version to 64 bits, the upper half being the version's own."""
    version_hash = version_id * _MIX & _MASK_64
    return (
        version_hash & 0xFFFF_FFFF_0000_0000 | (version_hash ^ (grain_number * _GRAIN_MIX >> 16)) & _MASK_32
    )


def mark_of(identity: int) -> int:
    """Give the 32 bits, not 0, under which the ghost knows an extent."""
    return (identity >> 32 ^ identity * _MARK_MIX) & _MASK_32 or 1
