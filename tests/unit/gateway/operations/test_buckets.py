"""The bucket operations as boto3 sees them."""

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types

from tests.fakes.gateway import RunningGateway, in_thread


async def test_a_bucket_lives_when_it_is_created_until_it_is_deleted(gateway: RunningGateway) -> None:
    """Create, head, location, list, delete, gone."""
    client = gateway.client()

    created = await in_thread(client.create_bucket, Bucket="new-bucket")
    head = await in_thread(client.head_bucket, Bucket="new-bucket")
    location = await in_thread(client.get_bucket_location, Bucket="new-bucket")
    listed = await in_thread(client.list_buckets)
    await in_thread(client.delete_bucket, Bucket="new-bucket")
    with pytest.raises(ClientError) as gone:
        await in_thread(client.head_bucket, Bucket="new-bucket")

    assert created["Location"] == "/new-bucket"
    assert created["ResponseMetadata"]["RequestId"] != "OF-THE-ORIGIN"
    assert head["BucketRegion"] == "eu-west-1"
    assert location["LocationConstraint"] == "eu-west-1"
    assert [bucket["Name"] for bucket in listed["Buckets"]] == ["bucket", "new-bucket"]
    assert gone.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


async def test_the_origins_refusal_is_passed_on_when_a_bucket_exists(gateway: RunningGateway) -> None:
    """What the origin says of a create is what the client reads."""
    with pytest.raises(ClientError) as raised:
        await in_thread(gateway.client().create_bucket, Bucket="bucket")

    assert raised.value.response["Error"]["Code"] == "BucketAlreadyOwnedByYou"
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 409


async def test_a_bucket_stays_when_it_is_not_empty(gateway: RunningGateway) -> None:
    """DeleteBucket refuses while there are objects."""
    gateway.store.put("bucket", "key", b"x")

    with pytest.raises(ClientError) as raised:
        await in_thread(gateway.client().delete_bucket, Bucket="bucket")

    assert raised.value.response["Error"]["Code"] == "BucketNotEmpty"


async def test_buckets_are_listed_in_pages_when_there_are_many(gateway: RunningGateway) -> None:
    """ListBuckets pages by name and filters by prefix."""
    for name in ("pa", "pb", "pc"):
        gateway.store.make_bucket(name)
    paginator = gateway.client().get_paginator("list_buckets")

    pages = await in_thread(lambda: list(paginator.paginate(Prefix="p", PaginationConfig={"PageSize": 2})))

    assert [[bucket["Name"] for bucket in page["Buckets"]] for page in pages] == [["pa", "pb"], ["pc"]]


@pytest.mark.parametrize("name", ["UPPER", "a_b", "1.2.3.4", "a..b"])
async def test_invalid_bucket_name_when_a_new_one_may_not_exist(gateway: RunningGateway, name: str) -> None:
    """CreateBucket takes the names that S3 takes today."""
    connection = await gateway.connect()

    await connection.send(gateway.signed("PUT", f"/{name}", {"content-length": "0"}))
    answer = await connection.answer()

    assert answer.status == 400
    assert b"<Code>InvalidBucketName</Code>" in answer.body
    assert "create_bucket" not in gateway.store.calls
