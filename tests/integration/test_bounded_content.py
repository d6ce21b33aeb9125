"""Bodies whose length shows at their end only: written to the disk and cut, or taken in first where the origin has to know it."""

import random
from typing import Any

import pytest

from storage.errors import OverloadedError
from storage.intake import HELD_BODY_BYTES_MAX
from storage.origin.wire import OutgoingBody
from storage.policy import Policy
from storage.sent_digests import without_told
from storage.types import MIB, TINY_BODY_BYTES_MAX, CacheResult, Checksum, ChecksumAlgorithm, WriteMode
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine
from tests.fakes.writing import FormFile, flushed, head, md5, request, until

LONG = HELD_BODY_BYTES_MAX + MIB + 77
SPARE = 200
CRC = Checksum(ChecksumAlgorithm.CRC32, "AAAAAA==")


def body_of(size: int) -> bytes:
    """Bytes that tell where they are from."""
    return random.Random(size).randbytes(size)


def is_settled(running: RunningEngine) -> bool:
    """Whether no write holds space any more."""
    components = running.engine._components
    return components.backlog.admitted_bytes == 0 and all(s.is_settled for s in components.segments.states())


@pytest.mark.parametrize(
    ("size", "spare"),
    [
        (0, SPARE),
        (0, MIB),
        (1, SPARE),
        (TINY_BODY_BYTES_MAX - SPARE, SPARE),
        (TINY_BODY_BYTES_MAX, SPARE),
        (MIB, 0),
        (LONG, SPARE),
        (MIB, 9 * MIB),
    ],
)
async def test_a_body_is_cut_to_its_length_when_it_is_written_back(size: int, spare: int) -> None:
    """What is acknowledged, flushed and read again has the bytes that came, whatever room they were given."""
    data = body_of(size)
    async with running_engine() as running:
        result = await running.engine.put_object(request("k"), FormFile(data, spare))
        before = await running.get("k")
        await flushed(running)
        after = await running.get("k")

        assert result.etag == md5(data)
        assert before.data == after.data == running.origin.store.body(BUCKET, "k") == data
        assert (await head(running, "k")).size == size
        assert is_settled(running)


@pytest.mark.parametrize("size", [0, MIB, LONG])
@pytest.mark.parametrize(
    ("fields", "then"),
    [
        ({"mode": WriteMode.THROUGH}, CacheResult.HIT),
        ({"origin_reason": "acl", "origin_headers": (("x-amz-acl", "private"),)}, CacheResult.MISS),
    ],
)
async def test_the_origin_is_told_the_length_when_a_body_goes_through(
    size: int, fields: dict[str, Any], then: CacheResult
) -> None:
    """It is one PutObject with the right length and digest; the copy that was taken in is kept where a copy may be."""
    data = body_of(size)
    async with running_engine() as running:
        result = await running.engine.put_object(request("k", **fields), FormFile(data, SPARE))
        sent = running.origin.requests_of("PutObject")
        got = await running.get("k")

        assert sent == 1
        assert running.origin.store.body(BUCKET, "k") == got.data == data
        assert result.etag == md5(data)
        assert got.opened is then
        assert running.engine.status().pending_objects == 0
        await until(lambda: is_settled(running))


@pytest.mark.parametrize("mode", [WriteMode.BACK, WriteMode.THROUGH])
@pytest.mark.parametrize("size", [MIB, LONG])
async def test_the_old_object_stays_when_a_bounded_body_fails_its_check(mode: WriteMode, size: int) -> None:
    """Nothing is stored, sent or held of a form that turns out to be none."""
    async with running_engine() as running:
        await running.put("k", b"old")
        await flushed(running)

        with pytest.raises(ValueError, match="cut"):
            await running.engine.put_object(
                request("k", mode=mode), FormFile(body_of(size), SPARE, ValueError("cut"))
            )

        assert (await running.get("k")).data == running.origin.store.body(BUCKET, "k") == b"old"
        await until(lambda: is_settled(running))


@pytest.mark.parametrize(
    ("checksums", "told", "left"),
    [
        ((), (), ("md5", ())),
        ((CRC,), (), ("", (CRC,))),
        ((), (("content-md5", "x"),), ("", ())),
        ((CRC,), (("content-md5", "x"),), ("", (CRC,))),
        ((CRC,), (("x-amz-checksum-crc32", "x"),), ("", ())),
    ],
)
def test_a_digest_is_told_once_when_the_client_told_it(
    checksums: tuple[Checksum, ...], told: tuple[tuple[str, str], ...], left: tuple[str, tuple[Checksum, ...]]
) -> None:
    """The origin wants one checksum at most, and no header twice."""
    body = OutgoingBody(0, list, is_repeatable=True, md5="md5", checksums=checksums)  # type: ignore[arg-type]  # not read

    sent = without_told(body, told)

    assert (sent.md5, sent.checksums) == left


async def test_a_long_body_is_refused_when_it_must_be_taken_in_and_there_is_no_room() -> None:
    """503 before a byte of it is read, where the origin has to know its length and the disk cannot take it in."""
    async with running_engine(cache_bytes=64 * MIB, policy=Policy(write=WriteMode.THROUGH)) as running:
        with pytest.raises(OverloadedError):
            await running.engine.put_object(
                request("k"), FormFile(body_of(LONG), 4096 * MIB, AssertionError("read"))
            )

        assert running.origin.requests_of("PutObject") == 0
