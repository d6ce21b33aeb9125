"""GetObject, HeadObject, PutObject, DeleteObject as boto3 and plain HTTP see them."""

from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types
from msgspec.structs import replace

from storage.errors import (
    NoSuchKeyError,
    NotSupportedError,
    ObjectChangedError,
    OriginRefusedError,
    OriginThrottledError,
)
from storage.records import ObjectState, OriginIdentity, PartSize
from storage.requests import DeleteResult
from storage.types import ByteRange, CacheResult, ObjectName, PartSpan, WriteMode
from tests.fakes.gateway import Answer, RunningGateway, in_thread

DATA = b"0123456789"


async def ask(
    gateway: RunningGateway, method: str, target: str, headers: dict[str, str] | None = None
) -> Answer:
    """Send one signed request without a body on a connection of its own."""
    connection = await gateway.connect()
    await connection.send(gateway.signed(method, target, headers))
    return await connection.answer(has_body=method != "HEAD")


# --- ranges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("header", "status", "content_range", "body"),
    [
        ("bytes=0-3", 206, "bytes 0-3/10", b"0123"),
        ("bytes=4-", 206, "bytes 4-9/10", b"456789"),
        ("bytes=-2", 206, "bytes 8-9/10", b"89"),
        ("bytes=-99", 206, "bytes 0-9/10", DATA),
        ("bytes=8-99", 206, "bytes 8-9/10", b"89"),
        ("bytes=3-2", 200, None, DATA),
        ("bytes=0-1,4-5", 200, None, DATA),
        ("bytes=10-", 416, None, b""),
        ("bytes=-0", 416, None, b""),
    ],
)
async def test_the_range_is_answered_when_one_is_asked_for(
    gateway: RunningGateway, method: str, header: str, status: int, content_range: str | None, body: bytes
) -> None:
    """B16, B24: GET and HEAD give the same status, range and length; what cannot be satisfied is 416."""
    gateway.store.put("bucket", "key", DATA)

    answer = await ask(gateway, method, "/bucket/key", {"range": header})

    assert answer.status == status
    assert answer.headers.get("content-range") == content_range
    if status == 416:
        assert method == "HEAD" or b"<Code>InvalidRange</Code>" in answer.body
    else:
        assert int(answer.headers["content-length"]) == len(body)
        assert answer.headers["etag"] == '"781e5e245d69b566979b86e28d23f2c7"'
        assert answer.headers["last-modified"] == "Tue, 14 Nov 2023 22:13:20 GMT"
        assert answer.headers["accept-ranges"] == "bytes"
        assert answer.body == (body if method == "GET" else b"")


@pytest.mark.parametrize(("header", "status"), [("bytes=0-", 416), ("bytes=-5", 200), (None, 200)])
async def test_an_empty_object_is_answered_when_a_range_is_asked_for(
    gateway: RunningGateway, header: str | None, status: int
) -> None:
    """B24: an empty object has no byte 0, and its whole is nothing."""
    gateway.store.put("bucket", "key", b"")

    answer = await ask(gateway, "GET", "/bucket/key", {} if header is None else {"range": header})

    assert answer.status == status
    assert status == 416 or answer.headers["content-length"] == "0"


# --- conditions -----------------------------------------------------------------------------------------------------------

ETAG = '"781e5e245d69b566979b86e28d23f2c7"'
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"if-match": ETAG}, 200),
        ({"if-match": '"other"'}, 412),
        ({"if-none-match": ETAG}, 304),
        ({"if-none-match": '"other"'}, 200),
        ({"if-modified-since": DATE}, 304),
        ({"if-unmodified-since": "Tue, 14 Nov 2023 22:13:19 GMT"}, 412),
        ({"if-match": ETAG, "if-unmodified-since": "Tue, 14 Nov 2023 22:13:19 GMT"}, 200),
        ({"if-none-match": ETAG, "range": "bytes=0-1"}, 304),
        ({"if-match": ETAG, "range": "bytes=0-1"}, 206),
        ({"if-range": ETAG, "range": "bytes=0-1"}, 206),
        ({"if-range": '"other"', "range": "bytes=0-1"}, 200),
    ],
)
async def test_the_conditions_decide_when_they_are_sent(
    gateway: RunningGateway, method: str, headers: dict[str, str], status: int
) -> None:
    """B33: conditions come before ranges; a 304 has the ETag, no body and no length."""
    gateway.store.put("bucket", "key", DATA, headers=(("cache-control", "no-cache"), ("content-type", "a/b")))
    connection = await gateway.connect()

    await connection.send(gateway.signed(method, "/bucket/key", headers))
    answer = await connection.answer(has_body=method != "HEAD")
    await connection.send(gateway.signed("GET", "/bucket/key"))
    following = await connection.answer()

    assert answer.status == status
    assert following.body == DATA
    if status == 304:
        assert answer.headers["etag"] == ETAG
        assert answer.headers["cache-control"] == "no-cache"
        assert "content-length" not in answer.headers
        assert "content-type" not in answer.headers


# --- parts ----------------------------------------------------------------------------------------------------------------


async def test_one_part_is_read_when_its_number_is_asked_for(gateway: RunningGateway) -> None:
    """A read by part number gives the part as it was uploaded, with the count of parts."""
    record = gateway.store.put("bucket", "key", DATA)
    parts = (PartSize(1, 4, "a"), PartSize(3, 5, "b"), PartSize(7, 1, "c"))
    gateway.store.revise("bucket", "key", replace(record, etag="abc-3", parts=parts))

    second = await ask(gateway, "GET", "/bucket/key?partNumber=2")
    head = await ask(gateway, "HEAD", "/bucket/key?partNumber=3")
    beyond = await ask(gateway, "GET", "/bucket/key?partNumber=4")
    both = await ask(gateway, "GET", "/bucket/key?partNumber=2", {"range": "bytes=0-1"})

    assert (second.status, second.body, second.headers["content-range"]) == (206, b"45678", "bytes 4-8/10")
    assert second.headers["x-amz-mp-parts-count"] == "3"
    assert (head.status, head.headers["content-length"]) == (206, "1")
    assert (beyond.status, both.status) == (416, 400)
    assert b"<Code>InvalidPartNumber</Code>" in beyond.body


async def test_part_one_is_the_whole_when_an_object_has_no_parts(gateway: RunningGateway) -> None:
    """An object put at once has one part, without a count."""
    gateway.store.put("bucket", "key", DATA)

    first = await ask(gateway, "GET", "/bucket/key?partNumber=1")
    second = await ask(gateway, "GET", "/bucket/key?partNumber=2")

    assert (first.status, first.body, "x-amz-mp-parts-count" in first.headers) == (206, DATA, False)
    assert second.status == 416


async def test_the_origin_is_asked_for_the_parts_of_what_was_uploaded_there(gateway: RunningGateway) -> None:
    """A version that another program uploaded; one that changed meanwhile is read anew, and what nobody knows is not guessed."""
    record = gateway.store.put("bucket", "key", DATA)
    gateway.store.revise("bucket", "key", replace(record, etag="abc-3"))
    gateway.store.part_spans = [PartSpan(ByteRange(0, 4), 3), PartSpan(ByteRange(4, 9), 3)]

    second = await ask(gateway, "GET", "/bucket/key?partNumber=2")
    gateway.store.fail["part_span"] = ObjectChangedError("another one")
    head = await ask(gateway, "HEAD", "/bucket/key?partNumber=1")
    gateway.store.fail["part_span"] = OriginRefusedError("no", status=416, code="InvalidRange")
    beyond = await ask(gateway, "GET", "/bucket/key?partNumber=4")
    gateway.store.fail["part_span"] = NotSupportedError("it knows no parts")
    unknown = await ask(gateway, "GET", "/bucket/key?partNumber=1")

    assert (second.status, second.body, second.headers["content-range"]) == (206, b"45678", "bytes 4-8/10")
    assert second.headers["x-amz-mp-parts-count"] == "3"
    assert (head.status, head.headers["content-length"]) == (206, "4")
    assert (beyond.status, unknown.status) == (416, 501)
    assert b"<Code>InvalidPartNumber</Code>" in beyond.body
    assert b"<ActualPartCount>3</ActualPartCount>" in beyond.body


# --- what is answered -----------------------------------------------------------------------------------------------------


async def test_metadata_comes_back_when_it_was_stored(gateway: RunningGateway) -> None:
    """B12: every stored header, user metadata, and the number of tags."""
    client = gateway.client()
    stored: dict[str, Any] = {
        "ContentType": "text/plain",
        "CacheControl": "max-age=1",
        "ContentDisposition": "attachment",
        "ContentEncoding": "gzip",
        "ContentLanguage": "de",
        "Metadata": {"one": "1", "zwei": "2"},
    }

    await in_thread(client.put_object, Bucket="bucket", Key="key", Body=DATA, Tagging="a=1&b=2", **stored)
    head: dict[str, Any] = await in_thread(client.head_object, Bucket="bucket", Key="key")
    await in_thread(client.put_object, Bucket="bucket", Key="plain", Body=DATA)
    plain: dict[str, Any] = await in_thread(client.head_object, Bucket="bucket", Key="plain")

    assert {name: head[name] for name in stored} == stored
    assert head["ResponseMetadata"]["HTTPHeaders"]["x-amz-tagging-count"] == "2"
    assert head["ContentLength"] == 10
    assert plain["ContentType"] == "binary/octet-stream"
    assert "x-amz-tagging-count" not in plain["ResponseMetadata"]["HTTPHeaders"]


async def test_overrides_last_one_answer_when_they_are_signed(gateway: RunningGateway) -> None:
    """B35: response-* parameters replace headers in that answer only, and cannot bring line breaks in."""
    gateway.store.put("bucket", "key", DATA, headers=(("content-type", "text/plain"),))
    connection = await gateway.connect()

    await connection.send(
        gateway.signed("GET", "/bucket/key?response-content-type=a%2Fb&response-expires=later")
    )
    overridden = await connection.answer()
    await connection.send(gateway.signed("GET", "/bucket/key"))
    plain = await connection.answer()
    await connection.send(gateway.signed("GET", "/bucket/key?response-content-type=a%0D%0Ax-evil%3A%201"))
    broken = await connection.answer()

    assert (overridden.headers["content-type"], overridden.headers["expires"]) == ("a/b", "later")
    assert (plain.headers["content-type"], "expires" in plain.headers) == ("text/plain", False)
    assert broken.status == 400
    assert "x-evil" not in broken.headers


async def test_checksums_are_answered_when_they_are_asked_for(gateway: RunningGateway) -> None:
    """Checksums of the whole object belong to whole answers that want them."""
    client = gateway.client()
    await in_thread(client.put_object, Bucket="bucket", Key="key", Body=DATA, ChecksumAlgorithm="CRC32")

    whole = await ask(gateway, "GET", "/bucket/key", {"x-amz-checksum-mode": "ENABLED"})
    ranged = await ask(
        gateway, "GET", "/bucket/key", {"x-amz-checksum-mode": "ENABLED", "range": "bytes=0-1"}
    )
    silent = await ask(gateway, "GET", "/bucket/key")

    assert whole.headers["x-amz-checksum-crc32"] == "poTHxg=="
    assert whole.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    assert "x-amz-checksum-crc32" not in ranged.headers
    assert "x-amz-checksum-crc32" not in silent.headers


async def test_the_origins_version_is_answered_when_it_has_one(gateway: RunningGateway) -> None:
    """A version id that the origin gave is passed on."""
    record = gateway.store.put("bucket", "key", DATA)
    origin = OriginIdentity("key", 0, 10, record.etag, "v7")
    gateway.store.revise("bucket", "key", replace(record, state=ObjectState.CLEAN, origin=origin))

    answer = await ask(gateway, "HEAD", "/bucket/key")

    assert answer.headers["x-amz-version-id"] == "v7"


async def test_a_version_is_read_when_it_is_named(gateway: RunningGateway) -> None:
    """Bytes, ranges, conditions and overrides are of the version that the query names, and never of another."""
    named = ObjectName("bucket", "key", "v 1/+%")
    gateway.store.put_version(named, DATA)
    gateway.store.put("bucket", "key", b"newest")
    target = "/bucket/key?versionId=v%201%2F%2B%25"

    whole = await ask(gateway, "GET", target)
    head = await ask(gateway, "HEAD", target)
    part = await ask(gateway, "GET", f"{target}&partNumber=1&response-content-type=a%2Fb")
    ranged = await ask(gateway, "GET", target, {"range": "bytes=1-2"})
    unmet = await ask(gateway, "GET", target, {"if-match": '"other"'})
    newest = await ask(gateway, "GET", "/bucket/key")

    assert (whole.status, whole.body, whole.headers["x-amz-version-id"]) == (200, DATA, "v 1/+%")
    assert (head.status, head.headers["content-length"]) == (200, str(len(DATA)))
    assert (part.status, part.body, part.headers["content-type"]) == (206, DATA, "a/b")
    assert (ranged.status, ranged.body) == (206, DATA[1:3])
    assert unmet.status == 412
    assert newest.body == b"newest"
    assert gateway.store.read[0] == named


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("version_id", ["", "a%00b", "a%0Ab", "v" * 1025])
async def test_a_version_id_is_refused_when_none_can_be_so(
    gateway: RunningGateway, method: str, version_id: str
) -> None:
    """What is no id names nothing, and above all not the newest version."""
    gateway.store.put("bucket", "key", DATA)

    answer = await ask(gateway, method, f"/bucket/key?versionId={version_id}")

    assert answer.status == 400
    if method != "HEAD":
        assert b"<Code>InvalidArgument</Code>" in answer.body
    assert gateway.store.data("bucket", "key") == DATA
    assert not gateway.store.read


async def test_a_version_is_not_found_when_there_is_none(gateway: RunningGateway) -> None:
    """The code says that it is the version that is missing."""
    gateway.store.put("bucket", "key", DATA)

    answer = await ask(gateway, "GET", "/bucket/key?versionId=abc")

    assert (answer.status, b"<Code>NoSuchVersion</Code>" in answer.body) == (404, True)


async def test_a_delete_marker_is_told_when_it_is_met(gateway: RunningGateway) -> None:
    """404 for the key under it, 405 for the marker itself, each with what the origin says of it."""
    gateway.store.put("bucket", "key", DATA)
    told = (("x-amz-delete-marker", "true"), ("x-amz-version-id", "m1"))
    hidden, marker = NoSuchKeyError("k"), OriginRefusedError("no", status=405, code="MethodNotAllowed")
    hidden.told, marker.told = told, (*told, ("last-modified", "Mon, 30 Nov 2026 01:03:50 GMT"))

    gateway.store.fail["open_object"] = hidden
    newest = await ask(gateway, "GET", "/bucket/key")
    gateway.store.fail["open_object"] = hidden
    newest_head = await ask(gateway, "HEAD", "/bucket/key")
    gateway.store.fail["open_object"] = marker
    itself = await ask(gateway, "GET", "/bucket/key?versionId=m1")

    assert (newest.status, newest_head.status, itself.status) == (404, 404, 405)
    assert b"<Code>NoSuchKey</Code>" in newest.body
    assert b"<Code>MethodNotAllowed</Code>" in itself.body
    for answer in (newest, newest_head, itself):
        assert answer.headers["x-amz-delete-marker"] == "true"
        assert answer.headers["x-amz-version-id"] == "m1"
    assert (itself.headers["allow"], itself.headers["last-modified"][:3]) == ("DELETE", "Mon")


async def test_a_delete_says_what_the_origin_made_of_it(gateway: RunningGateway) -> None:
    """A delete marker's id, or the id of the version that is gone, stands in the answer's headers."""
    name = ObjectName("bucket", "key")
    marker = (("x-amz-delete-marker", "true"), ("x-amz-version-id", "m1"))
    gateway.store.delete_results = {
        name: DeleteResult("key", version_id="m1", headers=marker),
        name.at_version("v1"): DeleteResult("key", version_id="v1", headers=(("x-amz-version-id", "v1"),)),
    }

    hidden = await ask(gateway, "DELETE", "/bucket/key")
    gone = await ask(gateway, "DELETE", "/bucket/key?versionId=v1", {"if-match": '"e"'})

    assert (hidden.status, hidden.headers["x-amz-delete-marker"]) == (204, "true")
    assert hidden.headers["x-amz-version-id"] == "m1"
    assert (gone.status, gone.headers["x-amz-version-id"]) == (204, "v1")
    assert gateway.store.deletes == [(name, ()), (name.at_version("v1"), (("if-match", '"e"'),))]


async def test_a_read_starts_over_when_the_object_changes_before_its_first_byte(
    gateway: RunningGateway,
) -> None:
    """An overwrite under a GET that has sent nothing is answered with the new version."""
    gateway.store.put("bucket", "key", DATA)
    gateway.store.script.append([ObjectChangedError("overwritten")])

    answer = await ask(gateway, "GET", "/bucket/key")

    assert answer.body == DATA
    assert gateway.store.calls == ["open_object", "open_object"]
    assert [body.is_closed for body in gateway.store.bodies] == [True, True]
    assert all(opened.is_closed for opened in gateway.store.opened)


async def test_a_read_gives_up_when_the_object_never_stops_changing(gateway: RunningGateway) -> None:
    """A key that is overwritten all the time is answered with a 503 after some tries."""
    gateway.store.put("bucket", "key", DATA)
    gateway.store.script = [[ObjectChangedError("overwritten")] for _ in range(5)]

    answer = await ask(gateway, "GET", "/bucket/key")

    assert answer.status == 503
    assert len(gateway.store.calls) == 3


async def test_reads_are_counted_by_result_when_they_are_answered(gateway: RunningGateway) -> None:
    """Only GETs that were answered count, by what x-cache said."""
    gateway.store.put("bucket", "key", DATA)
    gateway.store.results = [CacheResult.MISS, CacheResult.BYPASS, CacheResult.HIT]

    for _ in range(3):
        await ask(gateway, "GET", "/bucket/key")
    await ask(gateway, "HEAD", "/bucket/key")
    await ask(gateway, "GET", "/bucket/none")

    assert {result.value: n for result, n in gateway.store.stats.cache_requests.items() if n} == {
        "MISS": 1,
        "BYPASS": 1,
        "HIT": 1,
    }


# --- writes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "mode", "reason"),
    [
        ({}, None, ""),
        ({"x-forebay-durability": "origin"}, WriteMode.THROUGH, ""),
        ({"x-forebay-durability": "disk"}, WriteMode.BACK, ""),
        ({"if-none-match": "*"}, None, "conditional"),
        ({"x-amz-server-side-encryption": "aws:kms"}, None, "encryption"),
        ({"x-amz-acl": "private"}, None, "acl"),
        ({"x-amz-from-the-future": "1"}, None, "unknown-header x-amz-from-the-future"),
    ],
)
async def test_the_engine_is_told_when_only_the_origin_can_answer(
    gateway: RunningGateway, headers: dict[str, str], mode: WriteMode | None, reason: str
) -> None:
    """A write carries how it is to be acknowledged, and why only the origin may."""
    connection = await gateway.connect()

    await connection.send(gateway.signed("PUT", "/bucket/key", {"content-length": "2", **headers}) + b"hi")
    answer = await connection.answer()

    assert answer.status == 200
    put = gateway.store.put_requests[0]
    assert (put.mode, put.origin_reason, put.credential_id) == (mode, reason, "admin-id")


async def test_invalid_argument_when_the_durability_is_unknown(gateway: RunningGateway) -> None:
    """Durability is origin or disk."""
    connection = await gateway.connect()

    await connection.send(
        gateway.signed("PUT", "/bucket/key", {"content-length": "0", "x-forebay-durability": "ram"})
    )
    answer = await connection.answer()

    assert answer.status == 400
    assert b"<Code>InvalidArgument</Code>" in answer.body


async def test_delete_succeeds_when_there_is_nothing(gateway: RunningGateway) -> None:
    """A delete answers 204 whether or not there was an object."""
    gateway.store.put("bucket", "key", DATA)

    first = await ask(gateway, "DELETE", "/bucket/key")
    second = await ask(gateway, "DELETE", "/bucket/key")

    assert (first.status, second.status) == (204, 204)
    assert "content-length" not in first.headers
    assert gateway.store.data("bucket", "key") is None


async def test_slow_down_when_the_origin_throttles(gateway: RunningGateway) -> None:
    """B56: a throttled origin is told as SlowDown, with the time to wait."""
    gateway.store.fail["open_object"] = OriginThrottledError(
        "slow", status=503, code="SlowDown", retry_after_s=7
    )
    client = gateway.client()

    with pytest.raises(ClientError) as raised:
        await in_thread(client.get_object, Bucket="bucket", Key="key")

    assert raised.value.response["Error"]["Code"] == "SlowDown"
    assert raised.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"


async def test_a_put_is_refused_when_its_headers_are_more_than_s3_takes(gateway: RunningGateway) -> None:
    """Over 8 KB of headers the origin would refuse for good what was acknowledged here."""
    client = gateway.client()

    with pytest.raises(ClientError) as refused:
        await in_thread(
            client.put_object, Bucket="bucket", Key="key", Body=DATA, ContentDisposition="a" * 9000
        )

    assert refused.value.response["Error"]["Code"] == "RequestHeaderSectionTooLarge"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
