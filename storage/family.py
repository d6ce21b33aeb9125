"""The families of index rows, and one write to them."""

from enum import StrEnum
from typing import NamedTuple


class Family(StrEnum):
    """The column families; `storage/keys.py` says how each one's keys are built."""

    META = "meta"
    OBJECTS = "objects"
    EXTENTS = "extents"
    OVERLAY = "overlay"
    DIRTY = "dirty"
    UPLOADS = "uploads"
    PARTS = "parts"
    SEGMENTS = "segments"
    RESIDENTS = "residents"
    BUCKETS = "buckets"


class IndexWrite(NamedTuple):
    """One row written, or removed where `value` is None."""

    family: Family
    key: bytes
    value: bytes | None
