"""ListObjects and ListObjectsV2 as boto3 sees them."""

from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types

from tests.fakes.gateway import RunningGateway, in_thread

KEYS = ["a/1", "a/2", "b", "c/d/e", "c/f", "z & <x>", "\u00fc"]


@pytest.mark.parametrize("operation", ["list_objects_v2", "list_objects"])
@pytest.mark.parametrize("delimiter", ["", "/"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_pages_add_up_when_a_listing_is_cut(
    gateway: RunningGateway, operation: str, delimiter: str, size: int
) -> None:
    """B17: keys and prefixes of all pages together are those of one, none twice, each page within its size."""
    for key in KEYS:
        gateway.store.put("bucket", key, b"x")
    paginator = gateway.client().get_paginator(operation)

    pages: list[dict[str, Any]] = await in_thread(
        lambda: list(
            paginator.paginate(Bucket="bucket", Delimiter=delimiter, PaginationConfig={"PageSize": size})
        )
    )

    keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
    assert keys == (["b", "z & <x>", "\u00fc"] if delimiter else KEYS)
    assert prefixes == (["a/", "c/"] if delimiter else [])
    counts = [len(page.get("Contents", [])) + len(page.get("CommonPrefixes", [])) for page in pages]
    assert all(count <= size for count in counts)
    assert [page["IsTruncated"] for page in pages] == [True] * (len(pages) - 1) + [False]
    if operation == "list_objects_v2":
        assert [page["KeyCount"] for page in pages] == counts


async def test_a_listing_begins_behind_when_a_key_is_given(gateway: RunningGateway) -> None:
    """StartAfter and Marker begin behind a key, or behind the group that it lies in."""
    for key in KEYS:
        gateway.store.put("bucket", key, b"x")
    client = gateway.client()

    after = await in_thread(client.list_objects_v2, Bucket="bucket", StartAfter="b")
    marked = await in_thread(client.list_objects, Bucket="bucket", Marker="a/", Delimiter="/")

    assert [entry["Key"] for entry in after["Contents"]] == ["c/d/e", "c/f", "z & <x>", "\u00fc"]
    assert [entry["Prefix"] for entry in marked["CommonPrefixes"]] == ["c/"]


async def test_owners_are_shown_when_they_are_asked_for(gateway: RunningGateway) -> None:
    """Version 1 always names an owner, version 2 when asked."""
    gateway.store.put("bucket", "key", b"x")
    client = gateway.client()

    plain = await in_thread(client.list_objects_v2, Bucket="bucket")
    asked = await in_thread(client.list_objects_v2, Bucket="bucket", FetchOwner=True)
    first = await in_thread(client.list_objects, Bucket="bucket")

    assert "Owner" not in plain["Contents"][0]
    assert asked["Contents"][0]["Owner"] == first["Contents"][0]["Owner"]


@pytest.mark.parametrize(
    "query",
    [
        "max-keys=-1",
        "max-keys=x",
        "continuation-token=",
        "continuation-token=nonsense",
        "encoding-type=base64",
    ],
)
async def test_invalid_argument_when_a_parameter_is_wrong(gateway: RunningGateway, query: str) -> None:
    """A parameter that is none is refused, not overlooked."""
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", f"/bucket?list-type=2&{query}"))
    answer = await connection.answer()

    assert answer.status == 400
    assert b"<Code>InvalidArgument</Code>" in answer.body


async def test_a_page_is_empty_when_no_key_is_wanted(gateway: RunningGateway) -> None:
    """max-keys=0 gives nothing, and nothing follows."""
    gateway.store.put("bucket", "key", b"x")

    page = await in_thread(gateway.client().list_objects_v2, Bucket="bucket", MaxKeys=0)

    assert (page["KeyCount"], page["IsTruncated"]) == (0, False)


async def test_no_such_bucket_when_it_is_missing(gateway: RunningGateway) -> None:
    """A bucket that does not exist is told apart from an empty one."""
    with pytest.raises(ClientError) as raised:
        await in_thread(gateway.client().list_objects_v2, Bucket="missing")

    assert raised.value.response["Error"]["Code"] == "NoSuchBucket"
