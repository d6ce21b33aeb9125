"""Buckets with versions as boto3 uses them, the gateway in front of moto and of SeaweedFS."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # it ships no types

from tests.end_to_end.origins import Origin
from tests.end_to_end.processes import GatewayProcess, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", params=["moto", "seaweed"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayProcess, Origin]]:
    """Run the gateway over one origin and the other."""
    origin: Origin = request.getfixturevalue(request.param)
    with gateway(origin.endpoint, tmp_path_factory.mktemp("versions") / "cache") as running:
        yield running, origin


@pytest.fixture
def bucket(served: tuple[GatewayProcess, Origin], make_bucket: Callable[[Origin], str]) -> str:
    """Make a bucket, and have the gateway give it versions."""
    name = make_bucket(served[1])
    set_versioning(served[0].client(), name, "Enabled")
    return name


def set_versioning(client: Any, bucket: str, status: str) -> None:
    """Change whether a bucket keeps versions."""
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})


def read(client: Any, bucket: str, key: str, version_id: str) -> tuple[bytes, str]:
    """Read a version; give its bytes and how it was answered."""
    answer = client.get_object(Bucket=bucket, Key=key, VersionId=version_id)
    assert answer.get("VersionId", version_id) == version_id
    return answer["Body"].read(), answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"]


def origin_reads(running: GatewayProcess) -> float:
    """Count the GETs and HEADs of objects that were asked of the origin and answered."""
    return sum(
        running.metric(f'forebay_origin_requests_total{{operation="{operation}",status="{status}"}}')
        for operation in ("GetObject", "HeadObject")
        for status in (200, 206)
    )


def test_versions_are_kept_listed_and_read_once(served: tuple[GatewayProcess, Origin], bucket: str) -> None:
    """Three puts are three versions with the origin's ids; each is fetched once; a copy and a marker do what they do at S3."""
    running, origin = served
    client = running.client()
    ids = [
        client.put_object(Bucket=bucket, Key="a b/k", Body=b"body %d" % number)["VersionId"]
        for number in range(3)
    ]

    listed = client.list_object_versions(Bucket=bucket, Prefix="a b/")
    first = [read(client, bucket, "a b/k", version_id)[0] for version_id in ids]
    asked = origin_reads(running)
    again = [read(client, bucket, "a b/k", version_id) for version_id in ids]

    assert {version["VersionId"] for version in listed["Versions"]} == set(ids)
    assert first == [b"body 0", b"body 1", b"body 2"]
    assert again == [(b"body %d" % number, "HIT") for number in range(3)]
    assert origin_reads(running) == asked

    marker = client.delete_object(Bucket=bucket, Key="a b/k")
    assert marker["DeleteMarker"]
    with pytest.raises(ClientError) as hidden:
        client.get_object(Bucket=bucket, Key="a b/k")
    assert hidden.value.response["Error"]["Code"] == "NoSuchKey"
    client.delete_object(Bucket=bucket, Key="a b/k", VersionId=marker["VersionId"])
    assert client.get_object(Bucket=bucket, Key="a b/k")["Body"].read() == b"body 2"

    source = {"Bucket": bucket, "Key": "a b/k", "VersionId": ids[0]}
    copied = client.copy_object(Bucket=bucket, Key="a b/k", CopySource=source)
    assert copied["VersionId"] not in ids
    assert client.get_object(Bucket=bucket, Key="a b/k")["Body"].read() == b"body 0"

    lines = [{"Key": "a b/k", "VersionId": version_id} for version_id in ids]
    done = client.delete_objects(Bucket=bucket, Delete={"Objects": [*lines, {"Key": "a b/k"}]})
    assert [line.get("VersionId") for line in done["Deleted"]] == [*ids, None]
    assert done["Deleted"][3]["DeleteMarker"]
    for version_id in ids:
        with pytest.raises(ClientError) as gone:
            read(client, bucket, "a b/k", version_id)
        assert gone.value.response["Error"]["Code"] == "NoSuchVersion"
    left = origin.client().list_object_versions(Bucket=bucket)
    assert [version["VersionId"] for version in left["Versions"]] == [copied["VersionId"]]


def test_the_null_version_is_overwritten_while_a_bucket_is_suspended(
    seaweed: Origin, make_bucket: Callable[[Origin], str], tmp_path: Path
) -> None:
    """What is written while suspended has the id null; other versions stay; nothing old is answered.

    Not over moto, which drops the other versions of a key at such a put.
    """
    bucket = make_bucket(seaweed)
    with gateway(seaweed.endpoint, tmp_path / "cache") as running:
        _overwrite_null(running.client(), seaweed, bucket)


def _overwrite_null(client: Any, origin: Origin, bucket: str) -> None:
    set_versioning(client, bucket, "Enabled")
    kept = client.put_object(Bucket=bucket, Key="k", Body=b"kept")["VersionId"]
    set_versioning(client, bucket, "Suspended")

    for body in (b"null one", b"null two, longer"):
        client.put_object(Bucket=bucket, Key="k", Body=body)
        assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == body
        got = client.get_object(Bucket=bucket, Key="k", VersionId="null")
        assert got["Body"].read() == body

    assert read(client, bucket, "k", kept)[0] == b"kept"
    listed = origin.client().list_object_versions(Bucket=bucket)["Versions"]
    assert sorted(version["VersionId"] == "null" for version in listed) == [False, True]


def test_writes_from_the_disk_end_when_a_bucket_gets_versions(
    served: tuple[GatewayProcess, Origin], make_bucket: Callable[[Origin], str]
) -> None:
    """What was acknowledged before is a version at the origin by the answer; whatever is acknowledged after has an id."""
    running, origin = served
    client, bucket = running.client(), make_bucket(origin)
    before = [client.put_object(Bucket=bucket, Key=f"k{number}", Body=b"x") for number in range(20)]
    upload = client.create_multipart_upload(Bucket=bucket, Key="upload")["UploadId"]
    part = client.upload_part(Bucket=bucket, Key="upload", UploadId=upload, PartNumber=1, Body=b"part")

    set_versioning(client, bucket, "Enabled")

    at_origin = origin.client().list_objects_v2(Bucket=bucket)["KeyCount"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    done = client.complete_multipart_upload(
        Bucket=bucket, Key="upload", UploadId=upload, MultipartUpload=parts
    )
    after = client.put_object(Bucket=bucket, Key="k0", Body=b"y")
    assert not any("VersionId" in answer for answer in before)
    assert at_origin == 20
    assert read(client, bucket, "upload", done["VersionId"])[0] == b"part"
    assert read(client, bucket, "k0", after["VersionId"])[0] == b"y"


def test_versions_outlive_a_kill(
    seaweed: Origin, make_bucket: Callable[[Origin], str], tmp_path: Path
) -> None:
    """A version that was read is served after a SIGKILL without the origin; one that was deleted is not."""
    bucket = make_bucket(seaweed)
    with gateway(seaweed.endpoint, tmp_path / "cache") as running:
        client = running.client()
        set_versioning(client, bucket, "Enabled")
        kept, gone = (
            client.put_object(Bucket=bucket, Key="k", Body=body)["VersionId"] for body in (b"kept", b"gone")
        )
        for version_id in (kept, gone):
            read(client, bucket, "k", version_id)
        client.delete_object(Bucket=bucket, Key="k", VersionId=gone)
        running.kill()
        status, out, err = running.execute("fsck", "--cache-dir", str(running.cache_dir))
        assert status == 0, f"{out}\n{err}"
        running.start()
        client = running.client()

        assert read(client, bucket, "k", kept) == (b"kept", "HIT")
        with pytest.raises(ClientError):
            read(client, bucket, "k", gone)
