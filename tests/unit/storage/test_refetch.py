"""What a repair fetches anew is what was cached, and takes no more room than there is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from storage import keys
from storage.applier import write_change
from storage.cached import AddExtents, DropExtents, StoreVersion
from storage.checksums import checksums
from storage.family import Family
from storage.fsck_rows import Damage, Owner
from storage.origin.client import OriginClient
from storage.records import ObjectState, OriginIdentity
from storage.refetch import Refetching
from storage.rows import decode_object
from storage.types import ByteRange, Extent, Location, ObjectName
from tests.fakes import records
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.index import FakeIndex

BODIES = {"one": b"the first body", "two": b"the second body"}
LENGTH = 14
"""What is fetched of each."""


class Origin:
    """Has the bodies, under the ETags that are asked for."""

    def __init__(self, **bodies: bytes) -> None:
        self.bodies = {**BODIES, **bodies}

    @asynccontextmanager
    async def get_object(
        self, name: ObjectName, wanted: ByteRange, *, if_match: str
    ) -> AsyncIterator[SimpleNamespace]:
        """Open a range."""
        body = self.bodies[name.key][wanted.start : wanted.stop]

        async def chunks() -> AsyncIterator[bytes]:
            yield body[:5]
            yield body[5:]

        assert if_match == "origin-etag"
        yield SimpleNamespace(chunks=chunks)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OriginClient]:
        """Open the data lane."""
        yield cast("OriginClient", self)


class Fetch:
    """Clean objects whose bytes were dropped, and what it takes to fetch them."""

    def __init__(self, origin: Origin, room_bytes: int = 1000) -> None:
        self.said: list[str] = []
        self.filesystem, self.index = FakeFilesystem(), FakeIndex()
        self.filesystem.make_directory("segments")
        self.damages: list[Damage] = []
        for version_id, (key, body) in enumerate(BODIES.items(), start=1):
            place = Location(7, 100 * version_id, LENGTH, checksums(body[:LENGTH]))
            extent = Extent(0, LENGTH, place)
            record = msgspec.structs.replace(
                records.record(version_id, ()),
                size=len(body),
                state=ObjectState.CLEAN,
                origin=OriginIdentity("", 0, 1, "origin-etag"),
            )
            write_change(self.index, StoreVersion("bucket", key, record, 0))
            write_change(self.index, AddExtents("bucket", key, version_id, (extent,)))
            write_change(self.index, DropExtents("bucket", key, version_id, (place,)))
            self.damages.append(Damage(Owner("bucket", key, version_id), False, extent, "wrong"))
        self.fetch = Refetching(
            self.filesystem, origin.open, lambda _index: 9, self.said.append, room_bytes=room_bytes
        )

    def __call__(self) -> int:
        """Fetch."""
        return self.fetch(self.index, self.damages)

    def body(self, key: str) -> bytes:
        """Read what rows name of an object."""
        record = decode_object(self.index.get(Family.OBJECTS, keys.object_key("bucket", key)) or b"")
        places = [extent.location for extent in record.extents]
        contents = self.filesystem.contents("segments/0000000000000009.seg") if places else b""
        return b"".join(contents[place.offset : place.offset + place.length] for place in places)


def test_dropped_bytes_are_there_again() -> None:
    """One behind the other in a segment of their own."""
    fetch = Fetch(Origin())

    assert (fetch(), fetch.said) == (2, [])
    assert (fetch.body("one"), fetch.body("two")) == (b"the first body", b"the second bod")


@pytest.mark.parametrize("lie", [b"another  body!", b"short"])
def test_other_bytes_are_refused_when_the_origin_gives_them_under_the_same_etag(lie: bytes) -> None:
    """The checksums of what was cached are known."""
    fetch = Fetch(Origin(one=lie))

    assert fetch() == 1
    assert (fetch.body("one"), fetch.body("two")) == (b"", b"the second bod")
    assert fetch.said == [
        "s3://bucket/one: not fetched: the origin has other bytes than were cached, under the ETag origin-etag"
    ]


def test_no_more_is_fetched_than_there_is_room_for() -> None:
    """The rest stays a miss."""
    fetch = Fetch(Origin(), room_bytes=20)

    assert fetch() == 1
    assert fetch.said == ["s3://bucket/two and what follows: not fetched: the cache has no more room"]


def test_a_disk_that_refuses_ends_the_fetching_only() -> None:
    """What was fetched before counts, and the repair goes on."""
    fetch = Fetch(Origin())
    fetch.filesystem.fail(Operation.PWRITE, nth=3)

    assert fetch() == 1
    assert fetch.said[0].startswith("s3://bucket/two and what follows: not fetched: write: ")
    assert (fetch.body("one"), fetch.body("two")) == (b"the first body", b"")
