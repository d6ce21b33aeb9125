"""CopyObject as boto3 and plain HTTP see it."""

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types

from gateway.operations.copy import read_source
from gateway.s3.errors import S3Error
from storage.types import ObjectName
from tests.fakes.gateway import RunningGateway, in_thread


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("bucket/key", "key"),
        ("/bucket/key", "key"),
        ("bucket%2Fkey", "key"),
        ("bucket/a%20b+c%252F%C3%BC", "a b+c%2F\u00fc"),
        ("bucket//lead", "/lead"),
        ("bucket/k%3Fx?versionId=null", "k?x"),
    ],
)
def test_the_source_is_decoded_once_when_it_is_read(header: str, key: str) -> None:
    """B23: every form of the header names the key byte for byte."""
    source = read_source(header)

    assert source == ObjectName("bucket", key)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", "InvalidArgument"),
        ("bucket", "InvalidArgument"),
        ("bucket/", "InvalidArgument"),
        ("-/key", "InvalidArgument"),
        ("bucket/k%zz", "InvalidURI"),
        ("bucket/k?versionId=3", "NotImplemented"),
    ],
)
def test_the_source_is_refused_when_it_is_none(header: str, code: str) -> None:
    """What names no object is an error, not another object."""
    with pytest.raises(S3Error) as raised:
        read_source(header)

    assert raised.value.code == code


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
