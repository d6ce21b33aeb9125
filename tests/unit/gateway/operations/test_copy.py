"""CopyObject as boto3 and plain HTTP see it."""

import hashlib
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types
from msgspec.structs import replace

from storage.errors import ObjectChangedError
from storage.publish import View
from storage.types import PUT_BYTES_MAX, ObjectName
from tests.fakes.gateway import RunningGateway, in_thread


async def test_the_copy_has_the_bytes_when_the_source_exists(gateway: RunningGateway) -> None:
    """A copy answers ETag and date, and hands the request's headers to the engine."""
    gateway.store.put("bucket", "a b", b"bytes")
    client = gateway.client()

    answer = await in_thread(
        client.copy_object,
        Bucket="bucket",
        Key="copy",
        CopySource={"Bucket": "bucket", "Key": "a b"},
        MetadataDirective="REPLACE",
        ContentType="text/x",
    )

    assert gateway.store.data("bucket", "copy") == b"bytes"
    assert answer["CopyObjectResult"]["ETag"] == '"4b3a6218bb3e3a7303e8a171a60fcf92"'
    source, target, headers = gateway.store.copies[0]
    assert (source.key, target.key) == ("a b", "copy")
    assert ("x-amz-metadata-directive", "REPLACE") in headers
    assert ("content-type", "text/x") in headers


async def test_the_target_stays_when_the_source_is_missing(gateway: RunningGateway) -> None:
    """B23: a failed copy leaves what was there."""
    gateway.store.put("bucket", "target", b"old")

    with pytest.raises(ClientError) as raised:
        await in_thread(gateway.client().copy_object, Bucket="bucket", Key="target", CopySource="bucket/none")

    assert raised.value.response["Error"]["Code"] == "NoSuchKey"
    assert gateway.store.data("bucket", "target") == b"old"


# --- UploadPartCopy -------------------------------------------------------------------------------------------------------


async def opened_upload(client: Any) -> str:
    """Open an upload of `bucket/target`."""
    answer = await in_thread(client.create_multipart_upload, Bucket="bucket", Key="target")
    return str(answer["UploadId"])


async def copied_part(
    client: Any, upload_id: str, key: str, number: int = 1, **arguments: Any
) -> dict[str, Any]:
    """Copy a part out of `bucket`."""
    answer: dict[str, Any] = await in_thread(
        client.upload_part_copy,
        Bucket="bucket",
        Key="target",
        UploadId=upload_id,
        PartNumber=number,
        CopySource={"Bucket": "bucket", "Key": key},
        **arguments,
    )
    return answer


@pytest.mark.parametrize(
    "key", ["plain", "a b+c", "k?x=1&y", "100%", "\u00fc/\u4e2d", "//lead", " ", "a%2Fb"]
)
async def test_a_part_is_copied_whatever_the_name_of_its_source(gateway: RunningGateway, key: str) -> None:
    """B23: the bytes of the very key, or of a range of it; the result has ETag and date."""
    gateway.store.put("bucket", key, b"0123456789")
    client = gateway.client()
    upload_id = await opened_upload(client)

    whole = await copied_part(client, upload_id, key)
    part = await copied_part(client, upload_id, key, 2, CopySourceRange="bytes=3-9")
    listed = await in_thread(client.list_parts, Bucket="bucket", Key="target", UploadId=upload_id)

    digests = [hashlib.md5(data).hexdigest() for data in (b"0123456789", b"3456789")]
    assert [whole["CopyPartResult"]["ETag"], part["CopyPartResult"]["ETag"]] == [
        f'"{md5}"' for md5 in digests
    ]
    assert whole["CopyPartResult"]["LastModified"].timestamp() == gateway.store.now_s
    assert [(one["PartNumber"], one["Size"]) for one in listed["Parts"]] == [(1, 10), (2, 7)]
    assert all(body.is_closed for body in gateway.store.bodies)
    assert gateway.store.copied_reads == len(gateway.store.bodies)


@pytest.mark.parametrize(
    ("key", "arguments", "code", "status"),
    [
        ("absent", {}, "NoSuchKey", 404),
        ("source", {"CopySourceRange": "bytes=0-10"}, "InvalidRange", 416),
        ("source", {"CopySourceRange": "bytes=10-12"}, "InvalidRange", 416),
        ("source", {"CopySourceRange": "bytes=3-"}, "InvalidArgument", 400),
        ("source", {"CopySourceRange": "0-3"}, "InvalidArgument", 400),
        ("source", {"CopySourceIfMatch": "other"}, "PreconditionFailed", 412),
        ("source", {"CopySourceIfNoneMatch": "*"}, "PreconditionFailed", 412),
        ("source", {"CopySourceIfModifiedSince": 1_800_000_000}, "PreconditionFailed", 412),
        ("source", {"CopySourceIfUnmodifiedSince": 1_600_000_000}, "PreconditionFailed", 412),
        ("huge", {}, "InvalidRequest", 400),
        ("source", {"CopySourceSSECustomerAlgorithm": "AES256"}, "NotImplemented", 501),
    ],
)
async def test_the_part_list_stays_when_a_copy_is_refused(
    gateway: RunningGateway, key: str, arguments: dict[str, Any], code: str, status: int
) -> None:
    """A refused copy leaves the part that was there; nothing of the source is read."""
    gateway.store.put("bucket", "source", b"0123456789")
    record = gateway.store.put("bucket", "huge", b"x")
    gateway.store.revise("bucket", "huge", replace(record, size=PUT_BYTES_MAX + 1))
    client = gateway.client()
    upload_id = await opened_upload(client)
    await copied_part(client, upload_id, "source", CopySourceRange="bytes=0-0")
    read_before = len(gateway.store.bodies)

    with pytest.raises(ClientError) as raised:
        await copied_part(client, upload_id, key, **arguments)
    listed = await in_thread(client.list_parts, Bucket="bucket", Key="target", UploadId=upload_id)

    answer = raised.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
    assert [one["Size"] for one in listed["Parts"]] == [1]
    assert len(gateway.store.bodies) == read_before


async def test_a_copy_begins_anew_when_its_source_changes_under_it(gateway: RunningGateway) -> None:
    """What came of the old version is dropped with it: a part is of one version."""
    gateway.store.put("bucket", "source", b"0123456789")
    gateway.store.script.append([b"01234", ObjectChangedError("another one")])
    client = gateway.client()
    upload_id = await opened_upload(client)

    part = await copied_part(client, upload_id, "source")

    assert part["CopyPartResult"]["ETag"] == f'"{hashlib.md5(b"0123456789").hexdigest()}"'


async def test_the_origin_copies_into_an_upload_of_its_own(gateway: RunningGateway) -> None:
    """Range and conditions are handed on with it."""
    part = await copied_part(
        gateway.client(), "origin-1", "a b", CopySourceRange="bytes=0-4", CopySourceIfMatch="e"
    )

    source, target, headers = gateway.store.copies[0]
    assert part["CopyPartResult"]["ETag"] == f'"{"0" * 32}"'
    assert (source, target) == (ObjectName("bucket", "a b"), ObjectName("bucket", "target"))
    assert {("x-amz-copy-source-range", "bytes=0-4"), ("x-amz-copy-source-if-match", "e")} <= set(headers)


async def test_a_published_target_is_copied_as_it_is_read(gateway: RunningGateway) -> None:
    """The source of a copy means the generation that a GET of it shows; a name that cannot be one is 404."""
    gateway.store.put("bucket", "v2/a", b"of the source")
    gateway.store.views[ObjectName("bucket", "live/a")] = View(ObjectName("bucket", "v2/a"), 2)
    client = gateway.client()

    part = await copied_part(client, await opened_upload(client), "live/a")

    assert part["CopyPartResult"]["ETag"] == f'"{hashlib.md5(b"of the source").hexdigest()}"'
