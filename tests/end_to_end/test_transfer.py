"""boto3's transfers over real S3 servers: the bytes, the ETag and all that goes with an object arrive as they were sent."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest

from storage.types import GIB, MIB
from tests.end_to_end.content import IS_LONG, s3_etag, write_content
from tests.end_to_end.origins import Origin
from tests.end_to_end.processes import GatewayProcess, gateway
from tests.fakes.certificate import make_certificate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 if IS_LONG else 180)]

SIZES = [0, 1, 5 * MIB - 1, 64 * MIB, *([GIB] if IS_LONG else [])]


class Readable(Protocol):
    """A file, or boto3's body of an answer."""

    def read(self, size: int, /) -> bytes:
        """Give the next bytes, at most `size`; b"" at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway over an origin with a bucket of its own."""

    gateway: GatewayProcess
    origin: Origin
    bucket: str


@pytest.fixture(
    scope="module",
    params=[(origin, scheme) for origin in ("moto", "seaweed") for scheme in ("http", "https")],
    ids="-".join,
)
def served(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    make_bucket: Callable[[Origin], str],
) -> Iterator[Served]:
    """Run the gateway over each real server, over HTTP and over TLS."""
    name, scheme = request.param
    origin: Origin = request.getfixturevalue(name)
    bucket = make_bucket(origin)
    directory = tmp_path_factory.mktemp("gateway")
    settings = {"cache_size": "4GiB"}
    if scheme == "https":
        certificate, key = make_certificate(directory)
        settings |= {"tls_cert": str(certificate), "tls_key": str(key)}
    with gateway(origin.endpoint, directory / "cache", **settings) as running:
        yield Served(running, origin, bucket)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_transfer_is_byte_identical_and_keeps_its_etag_when_flushed(
    served: Served, tmp_path: Path, size_bytes: int
) -> None:
    """upload_file and download_file with default settings give the bytes back, and the origin ends with the client's ETag."""
    source = write_content(tmp_path / "source", size_bytes, size_bytes)
    client, key = served.gateway.client(), f"transfer/{size_bytes}"

    client.upload_file(str(source), served.bucket, key)
    etag = client.head_object(Bucket=served.bucket, Key=key)["ETag"]
    client.download_file(served.bucket, key, str(tmp_path / "from-gateway"))
    served.gateway.flush(f"s3://{served.bucket}/{key}")
    etag_after = client.head_object(Bucket=served.bucket, Key=key)["ETag"]
    # In one request: moto takes a whole object into memory for each range of it.
    at_origin = served.origin.client().get_object(Bucket=served.bucket, Key=key)
    digest_at_origin = _digest(at_origin["Body"])

    assert etag == s3_etag(source)
    assert etag_after == etag
    assert at_origin["ETag"] == etag
    assert at_origin["ContentLength"] == size_bytes
    assert digest_at_origin == _file_digest(source)
    assert _file_digest(tmp_path / "from-gateway") == _file_digest(source)


DESCRIPTION = {
    "ContentType": "text/csv",
    "CacheControl": "max-age=60",
    "ContentDisposition": 'attachment; filename="a.csv"',
    "ContentEncoding": "gzip",
    "ContentLanguage": "de",
    "Metadata": {"run": "17", "robot": "arm-3"},
}
TAGS = [{"Key": "robot", "Value": "arm 3"}, {"Key": "run", "Value": "17"}]


@pytest.mark.parametrize("size_bytes", [100, 9 * MIB], ids=["put", "multipart"])
def test_headers_metadata_and_tags_are_the_same_at_the_origin_when_flushed(
    served: Served, tmp_path: Path, size_bytes: int
) -> None:
    """All that a client says of an object is answered by the gateway at once, and by the origin after the flush."""
    source = write_content(tmp_path / "source", 1, size_bytes)
    client, key = served.gateway.client(), f"described/{size_bytes}"
    expires = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    described = {**DESCRIPTION, "Expires": expires, "Tagging": "robot=arm%203&run=17"}

    client.upload_file(str(source), served.bucket, key, ExtraArgs=described)
    before = client.head_object(Bucket=served.bucket, Key=key)
    served.gateway.flush(f"s3://{served.bucket}/{key}")
    after = client.head_object(Bucket=served.bucket, Key=key)
    origin = served.origin.client()
    at_origin = origin.head_object(Bucket=served.bucket, Key=key)
    tags = origin.get_object_tagging(Bucket=served.bucket, Key=key)["TagSet"]

    for answer in (before, after, at_origin):
        assert {name: answer.get(name) for name in DESCRIPTION} == DESCRIPTION
        assert answer["ExpiresString"] == "Tue, 06 May 2031 07:08:09 GMT"
    assert after["LastModified"] == before["LastModified"]
    assert sorted(tags, key=lambda tag: str(tag["Key"])) == TAGS


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return _digest(file)


def _digest(source: Readable) -> str:
    digest = hashlib.md5()
    while piece := source.read(MIB):
        digest.update(piece)
    return digest.hexdigest()
