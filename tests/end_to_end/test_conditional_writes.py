"""Locks, conditional Completes, copied parts and part reads by boto3, over origins that know conditions each in its own way."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # it ships no types

from storage.types import MIB
from tests.end_to_end.origins import Origin
from tests.end_to_end.processes import GatewayProcess, S3Client, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ODD = "a b+c%2F\u00fc?x&y"


@pytest.fixture(scope="module", params=["moto", "seaweed"])
def served(
    request: pytest.FixtureRequest,
    make_bucket: Callable[[Origin], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[GatewayProcess, Origin, str]]:
    """Run the gateway over an origin."""
    origin: Origin = request.getfixturevalue(request.param)
    with gateway(origin.endpoint, tmp_path_factory.mktemp("gateway") / "cache") as running:
        yield running, origin, make_bucket(origin)


def refusal(call: Callable[..., object], **arguments: Any) -> tuple[int, str]:
    """Give status and code of a call that is refused; (200, "") for one that is not."""
    try:
        call(**arguments)
    except ClientError as error:
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"]), str(error.response["Error"]["Code"])
    return 200, ""


def uploaded(client: S3Client, bucket: str, key: str, *parts: bytes) -> dict[str, Any]:
    """Open an upload and send its parts; give what its Complete takes."""
    upload_id = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    place = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
    lines = [
        {"PartNumber": number, "ETag": client.upload_part(**place, PartNumber=number, Body=data)["ETag"]}
        for number, data in enumerate(parts, start=1)
    ]
    return {**place, "MultipartUpload": {"Parts": lines}}


def test_sixteen_clients_have_one_winner_and_a_lock_goes_round(
    served: tuple[GatewayProcess, Origin, str],
) -> None:
    """B10: puts and Completes with If-None-Match: * at once; the winner's bytes stay, here and at the origin."""
    running, origin, bucket = served
    client, key = running.client(), "lock"

    def attempt(n: int) -> tuple[int, tuple[int, str]]:
        if n % 2:
            return n, refusal(client.put_object, Bucket=bucket, Key=key, Body=b"%d" % n, IfNoneMatch="*")
        complete = uploaded(client, bucket, key, b"%d" % n)
        return n, refusal(client.complete_multipart_upload, **complete, IfNoneMatch="*")

    for _ in range(2):
        with ThreadPoolExecutor(16) as pool:
            ends = dict(pool.map(attempt, range(16)))
        won = [n for n, end in ends.items() if end == (200, "")]
        assert len(won) == 1, ends
        assert set(ends.values()) == {(200, ""), (412, "PreconditionFailed")}
        assert origin.client().get_object(Bucket=bucket, Key=key)["Body"].read() == b"%d" % won[0]
        client.delete_object(Bucket=bucket, Key=key)


def test_conditions_answer_as_aws_documents(served: tuple[GatewayProcess, Origin, str]) -> None:
    """404 for If-Match on nothing, 412 for another ETag, 200 for the right one; on dirty, deleted and foreign objects alike."""
    running, origin, bucket = served
    client = running.client()
    place = {"Bucket": bucket, "Key": "conditions"}
    missing, failed, done = (404, "NoSuchKey"), (412, "PreconditionFailed"), (200, "")

    assert refusal(client.put_object, **place, Body=b"x", IfMatch='"0"') == missing
    assert refusal(client.put_object, **place, Body=b"x", IfMatch="*") == missing
    complete = uploaded(client, bucket, "conditions", b"x")
    assert refusal(client.complete_multipart_upload, **complete, IfMatch='"0"') == missing
    etag = client.put_object(**place, Body=b"dirty")["ETag"]
    assert refusal(client.put_object, **place, Body=b"x", IfNoneMatch="*") == failed
    assert refusal(client.complete_multipart_upload, **complete, IfMatch='"0"') == failed
    assert refusal(client.delete_object, **place, IfMatch='"0"') == failed
    assert client.get_object(**place)["Body"].read() == b"dirty"
    assert refusal(client.complete_multipart_upload, **complete, IfMatch=etag) == done
    again = client.complete_multipart_upload(**complete, IfMatch=etag)["ETag"]
    assert client.head_object(**place)["ETag"] == again
    client.delete_object(**place)
    assert refusal(client.put_object, **place, Body=b"x", IfMatch=again) == missing
    foreign = origin.client().put_object(**place, Body=b"foreign")["ETag"]
    assert refusal(client.put_object, **place, Body=b"mine", IfMatch=foreign) == done
    assert refusal(client.delete_object, **place, IfMatch="*") == done
    assert refusal(client.head_object, **place)[0] == 404
    # Of this key: refused Completes of other tests leave their uploads open.
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket, Prefix="conditions")
    assert "Uploads" not in origin.client().list_multipart_uploads(Bucket=bucket, Prefix="conditions")


def test_parts_are_copied_and_read_back(served: tuple[GatewayProcess, Origin, str]) -> None:
    """B23: a dirty source and one at the origin only, with an odd name; the object is read by its parts before and after the flush."""
    running, origin, bucket = served
    client = running.client()
    first, second = b"x" * (5 * MIB), b"0123456789"
    client.put_object(Bucket=bucket, Key=ODD, Body=b"-" + first)
    origin.client().put_object(Bucket=bucket, Key="foreign", Body=second)
    upload_id = client.create_multipart_upload(Bucket=bucket, Key="copied")["UploadId"]
    place = {"Bucket": bucket, "Key": "copied", "UploadId": upload_id}

    sources = [(ODD, f"bytes=1-{5 * MIB}"), ("foreign", "bytes=2-4")]
    lines = []
    for number, (key, span) in enumerate(sources, start=1):
        source = {"Bucket": bucket, "Key": key}
        part = client.upload_part_copy(**place, PartNumber=number, CopySource=source, CopySourceRange=span)
        lines.append({"PartNumber": number, "ETag": part["CopyPartResult"]["ETag"]})
    absent = {"Bucket": bucket, "Key": "absent"}
    assert refusal(client.upload_part_copy, **place, PartNumber=3, CopySource=absent) == (404, "NoSuchKey")
    assert [part["Size"] for part in client.list_parts(**place)["Parts"]] == [5 * MIB, 3]
    client.complete_multipart_upload(**place, MultipartUpload={"Parts": lines})

    for _ in range(2):
        got = client.get_object(Bucket=bucket, Key="copied", PartNumber=2)
        assert (got["Body"].read(), got["PartsCount"], got["ContentRange"]) == (
            b"234",
            2,
            f"bytes {5 * MIB}-{5 * MIB + 2}/{5 * MIB + 3}",
        )
        running.flush(f"s3://{bucket}/copied")
    assert origin.client().head_object(Bucket=bucket, Key="copied")["ContentLength"] == 5 * MIB + 3


def test_parts_of_what_another_program_uploaded(
    seaweed: Origin, make_bucket: Callable[[Origin], str], tmp_path: Path
) -> None:
    """An origin that knows parts is asked for them; GET and HEAD answer as it does itself."""
    bucket, bare = make_bucket(seaweed), seaweed.client()
    bare.complete_multipart_upload(**uploaded(bare, bucket, "theirs", b"x" * (5 * MIB), b"yz"))
    with gateway(seaweed.endpoint, tmp_path / "cache") as running:
        client = running.client()
        place = {"Bucket": bucket, "Key": "theirs"}
        for ask in (bare, client):
            got = ask.get_object(**place, PartNumber=2)
            assert (got["Body"].read(), got["PartsCount"], got["ContentLength"]) == (b"yz", 2, 2)
            assert ask.head_object(**place, PartNumber=1)["ContentLength"] == 5 * MIB
        assert refusal(client.get_object, **place, PartNumber=3) == (416, "InvalidPartNumber")
