"""Bytes that rot on the disk under a running engine."""

from storage import keys
from storage.family import Family
from storage.rows import decode_object
from storage.segment_files import segment_path
from storage.types import Location
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.running_engine import BUCKET, RunningEngine


def location_of(running: RunningEngine, key: str) -> Location:
    """Say where an object's first bytes lie."""
    value = running.engine._recovered.index.get(Family.OBJECTS, keys.object_key(BUCKET, key))
    assert value is not None
    return decode_object(value).extents[0].location


def rot(running: RunningEngine, place: Location, at: int) -> None:
    """Flip a bit of a segment."""
    disk = running.filesystem
    assert isinstance(disk, FakeFilesystem)
    path = segment_path(place.segment_id)
    data = bytearray(disk.contents(path))
    data[place.offset + at] ^= 1
    disk.replace_contents(path, data)
