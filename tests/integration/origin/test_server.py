"""The fake origin, asked by a client that is not ours: what our tests stand on is S3 as botocore knows it."""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import pytest
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]  # it ships no types
from aiobotocore.session import get_session  # type: ignore[import-untyped]  # it ships no types
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # it ships no types

from tests.fakes.origin_faults import Fault
from tests.fakes.origin_server import FakeOrigin

S3 = Any
"""botocore has no types."""


@asynccontextmanager
async def botocore() -> AsyncIterator[tuple[FakeOrigin, S3]]:
    """Start an origin that checks signatures, and a botocore client."""
    async with FakeOrigin() as origin:
        origin.store.create_bucket("data")
        origin.keys = {"AK": "secret"}
        context = get_session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=origin.url,
            aws_access_key_id="AK",
            aws_secret_access_key="secret",
            config=AioConfig(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )
        async with context as s3:
            yield origin, cast("S3", s3)


async def test_objects_go_in_and_out() -> None:
    """Put, get, range, head, list, copy and delete work for botocore, chunked framing and all."""
    async with botocore() as (origin, s3):
        await s3.put_object(
            Bucket="data", Key="a b+ü/1", Body=b"x" * 70_000, Metadata={"m": "1"}, ContentType="t/x"
        )
        whole = await s3.get_object(Bucket="data", Key="a b+ü/1")
        body = await whole["Body"].read()
        part = await (await s3.get_object(Bucket="data", Key="a b+ü/1", Range="bytes=1-3"))["Body"].read()
        head = await s3.head_object(Bucket="data", Key="a b+ü/1")
        await s3.copy_object(Bucket="data", Key="copy", CopySource={"Bucket": "data", "Key": "a b+ü/1"})
        listed = await s3.list_objects_v2(Bucket="data", Delimiter="/")
        await s3.delete_objects(Bucket="data", Delete={"Objects": [{"Key": "copy"}]})

        assert (len(body), part) == (70_000, b"xxx")
        assert (head["ContentLength"], head["Metadata"], head["ContentType"]) == (70_000, {"m": "1"}, "t/x")
        assert [entry["Prefix"] for entry in listed["CommonPrefixes"]] == ["a b+ü/"]
        assert [entry["Key"] for entry in listed["Contents"]] == ["copy"]
        assert list(origin.store.buckets["data"].objects) == ["a b+ü/1"]
        assert origin.store.body("data", "a b+ü/1") == b"x" * 70_000


async def test_upload_is_completed() -> None:
    """A multipart upload by botocore becomes an object with a -N ETag."""
    async with botocore() as (origin, s3):
        origin.store.part_bytes_min = 1
        upload_id = (await s3.create_multipart_upload(Bucket="data", Key="k"))["UploadId"]
        parts = []
        for number, data in enumerate((b"one", b"two"), start=1):
            sent = await s3.upload_part(
                Bucket="data", Key="k", UploadId=upload_id, PartNumber=number, Body=data
            )
            parts.append({"PartNumber": number, "ETag": sent["ETag"]})

        done = await s3.complete_multipart_upload(
            Bucket="data", Key="k", UploadId=upload_id, MultipartUpload={"Parts": parts}
        )

        digests = hashlib.md5(b"one").digest() + hashlib.md5(b"two").digest()
        assert done["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-2"'
        assert origin.store.body("data", "k") == b"onetwo"


async def test_wrong_secret_is_refused() -> None:
    """Signatures are really checked."""
    async with botocore() as (origin, s3):
        origin.keys = {"AK": "other"}

        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            await s3.list_objects_v2(Bucket="data")


async def test_history_keeps_the_order_of_states() -> None:
    """What a key went through can be read back, deletes included."""
    async with botocore() as (origin, s3):
        await s3.put_object(Bucket="data", Key="k", Body=b"1")
        await s3.delete_object(Bucket="data", Key="k")
        await s3.put_object(Bucket="data", Key="k", Body=b"2")

        assert origin.store.etags("data", "k") == [
            hashlib.md5(b"1").hexdigest(),
            "",
            hashlib.md5(b"2").hexdigest(),
        ]


async def test_throttle_refuses_above_its_rate() -> None:
    """Beyond the burst requests get SlowDown."""
    async with botocore() as (origin, s3):
        origin.throttle.set(0.0, rate=0.000001, burst=2.0)

        await s3.list_buckets()
        await s3.list_buckets()
        with pytest.raises(ClientError, match="SlowDown"):
            await s3.list_buckets()


async def test_faults_hit_what_they_match() -> None:
    """A rule spares the first `skip`, hits the next `times`, of its operation and key only."""
    async with botocore() as (origin, s3):
        origin.faults.add(Fault(operation="PutObject", key="data/a*", skip=1, times=1, status=500))
        outcomes = []

        for key in ("b", "a1", "a2", "a3"):
            try:
                await s3.put_object(Bucket="data", Key=key, Body=b"x")
                outcomes.append("done")
            except ClientError as error:
                outcomes.append(error.response["Error"]["Code"])

        assert outcomes == ["done", "done", "InternalError", "done"]


async def test_process_is_steered_over_http() -> None:
    """As a process it prints its URL, serves, takes faults and gives counters."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.origin_server", "--bucket", "data", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with aiohttp.ClientSession() as session:
            async with session.put(f"{url}/data/k", data=b"abc") as stored:
                status = stored.status
            await session.post(
                f"{url}/-/faults", data=json.dumps([{"operation": "GetObject", "status": 503}])
            )
            async with session.get(f"{url}/data/k") as refused:
                refusal = refused.status
            async with session.get(f"{url}/-/counters") as told:
                counters = json.loads(await told.text())
    finally:
        process.terminate()
        await process.wait()

    assert (status, refusal) == (200, 503)
    assert counters["requests"] == {"PutObject": 1, "GetObject": 1}
