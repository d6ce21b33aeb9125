"""The upload operations as boto3 sees them."""

import base64
import hashlib
import io
import random
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig  # type: ignore[import-untyped]  # ships no types
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types

from tests.fakes.gateway import RunningGateway, in_thread

MIB = 1024 * 1024
PART = random.Random(3).randbytes(5 * MIB)


async def uploaded(client: Any, upload_id: str, number: int, data: bytes) -> dict[str, Any]:
    """Upload a part; give its line for a Complete."""
    answer = await in_thread(
        client.upload_part, Bucket="bucket", Key="key", UploadId=upload_id, PartNumber=number, Body=data
    )
    return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": answer["ChecksumCRC32"]}


async def created(client: Any, **arguments: Any) -> str:
    """Open an upload; give its id."""
    answer = await in_thread(client.create_multipart_upload, Bucket="bucket", Key="key", **arguments)
    return str(answer["UploadId"])


async def complete(client: Any, upload_id: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Complete an upload."""
    answer: dict[str, Any] = await in_thread(
        client.complete_multipart_upload,
        Bucket="bucket",
        Key="key",
        UploadId=upload_id,
        MultipartUpload={"Parts": parts},
    )
    return answer


async def test_the_parts_become_an_object_when_they_are_completed(gateway: RunningGateway) -> None:
    """B11, B19: parts in order of their numbers, ETag of ETags, metadata of the create, the same answer twice."""
    client = gateway.client()
    upload_id = await created(client, ContentType="a/b", Metadata={"m": "1"}, ChecksumAlgorithm="CRC32")
    last = await uploaded(client, upload_id, 7, b"end")
    first = await uploaded(client, upload_id, 2, PART)

    done = await complete(client, upload_id, [first, last])
    again = await complete(client, upload_id, [first, last])
    got = await in_thread(client.get_object, Bucket="bucket", Key="key")
    body = await in_thread(got["Body"].read)

    digests = hashlib.md5(PART).digest() + hashlib.md5(b"end").digest()
    assert done["ETag"] == again["ETag"] == got["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-2"'
    assert done["ChecksumCRC32"].endswith("-2")
    assert done["Location"] == f"http://{gateway.host}/bucket/key"
    assert body == PART + b"end"
    assert (got["ContentType"], got["Metadata"]) == ("a/b", {"m": "1"})


async def test_the_upload_stays_when_a_complete_is_refused(gateway: RunningGateway) -> None:
    """B19: wrong order, wrong ETag, a small part and an unknown upload each have their own error."""
    client = gateway.client()
    upload_id = await created(client)
    one, two = await uploaded(client, upload_id, 1, b"small"), await uploaded(client, upload_id, 2, PART)

    codes = []
    for parts in ([two, one], [{**one, "ETag": '"0"'}], [one, two], []):
        with pytest.raises(ClientError) as raised:
            await complete(client, upload_id, parts)
        codes.append(raised.value.response["Error"]["Code"])
    with pytest.raises(ClientError) as unknown:
        await complete(client, "nope", [one])
    done = await complete(client, upload_id, [two])

    assert codes == ["InvalidPartOrder", "InvalidPart", "EntityTooSmall", "MalformedXML"]
    assert unknown.value.response["Error"]["Code"] == "NoSuchUpload"
    assert done["ETag"].endswith('-1"')


async def test_parts_are_listed_in_pages_when_there_are_many(gateway: RunningGateway) -> None:
    """ListParts pages by number and shows the last of a number only."""
    client = gateway.client()
    upload_id = await created(client)
    for number, data in ((1, b"a"), (2, b"b"), (10, b"c"), (2, b"bb")):
        await uploaded(client, upload_id, number, data)

    paginator = client.get_paginator("list_parts")
    pages = await in_thread(
        lambda: list(paginator.paginate(Bucket="bucket", Key="key", UploadId=upload_id, MaxParts=2))
    )

    found = [(part["PartNumber"], part["Size"]) for page in pages for part in page.get("Parts", [])]
    assert found == [(1, 1), (2, 2), (10, 1)]
    assert [page["IsTruncated"] for page in pages] == [True, False]


async def test_an_upload_is_gone_when_it_is_aborted(gateway: RunningGateway) -> None:
    """Aborting drops the upload; it is not listed any more and takes no part."""
    client = gateway.client()
    kept, dropped = await created(client), await created(client)

    await in_thread(client.abort_multipart_upload, Bucket="bucket", Key="key", UploadId=dropped)
    listed = await in_thread(client.list_multipart_uploads, Bucket="bucket")
    with pytest.raises(ClientError) as raised:
        await uploaded(client, dropped, 1, b"x")

    assert [(upload["Key"], upload["UploadId"]) for upload in listed["Uploads"]] == [("key", kept)]
    assert raised.value.response["Error"]["Code"] == "NoSuchUpload"


@pytest.mark.parametrize("number", ["0", "10001", "2aaa", ""])
async def test_the_object_stays_when_a_part_number_is_wrong(gateway: RunningGateway, number: str) -> None:
    """B04: a part number that is none never becomes a plain PUT."""
    gateway.store.put("bucket", "key", b"old")
    connection = await gateway.connect()

    await connection.send(
        gateway.signed("PUT", f"/bucket/key?partNumber={number}&uploadId=x", {"content-length": "3"}) + b"new"
    )
    answer = await connection.answer()

    assert answer.status == 400
    assert b"<Code>InvalidArgument</Code>" in answer.body
    assert gateway.store.data("bucket", "key") == b"old"


async def test_entity_too_large_when_a_part_says_so_in_its_head(gateway: RunningGateway) -> None:
    """A part over 5 GiB is refused before its body."""
    connection = await gateway.connect()
    size = str(5 * 1024**3 + 1)

    await connection.send(
        gateway.signed("PUT", "/bucket/key?partNumber=1&uploadId=x", {"content-length": size})
    )
    answer = await connection.answer()

    assert b"<Code>EntityTooLarge</Code>" in answer.body
    assert gateway.store.calls == []


@pytest.mark.slow
async def test_a_file_is_uploaded_when_boto3_splits_it(gateway: RunningGateway) -> None:
    """upload_fileobj, with its threads and parts, gives the object back whole."""
    client = gateway.client()
    data = PART * 3 + b"tail"
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB, max_concurrency=4)
    target = io.BytesIO()

    await in_thread(client.upload_fileobj, io.BytesIO(data), "bucket", "key", Config=config)
    await in_thread(client.download_fileobj, "bucket", "key", target, Config=config)

    assert target.getvalue() == data


async def test_a_complete_may_declare_the_objects_checksum_when_its_own_body_has_another(
    gateway: RunningGateway,
) -> None:
    """x-amz-checksum-* of a Complete speaks of the object, and is not held against the list of parts it is sent with."""
    client = gateway.client()
    upload_id = await created(client, ChecksumAlgorithm="SHA256")
    part = await in_thread(
        client.upload_part,
        Bucket="bucket",
        Key="key",
        UploadId=upload_id,
        PartNumber=1,
        Body=b"part",
        ChecksumAlgorithm="SHA256",
    )
    of_part = hashlib.sha256(b"part").digest()
    of_object = base64.b64encode(hashlib.sha256(of_part).digest()).decode() + "-1"

    answer = await in_thread(
        client.complete_multipart_upload,
        Bucket="bucket",
        Key="key",
        UploadId=upload_id,
        ChecksumSHA256=of_object,
        MultipartUpload={
            "Parts": [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]}]
        },
    )

    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
