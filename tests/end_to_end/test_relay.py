"""What the gateway relays, as boto3 sees it over real origins: each answer is the origin's own."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # it ships no types

from gateway.s3.effects import EFFECTS
from gateway.s3.routes import ROUTES, Level
from storage.origin.signing import SigningIdentity, sign_headers
from tests.end_to_end.origins import Origin
from tests.end_to_end.processes import (
    ACCESS_KEY,
    PRESIGNING,
    REGION,
    SECRET_KEY,
    S3Client,
    gateway,
    s3_client,
)

TAGS = [{"Key": "robot", "Value": "r2 d2/+"}, {"Key": "run", "Value": "7"}]
POLICY = '{"Version":"2012-10-17","Statement":[]}'
CORS = [
    {
        "AllowedMethods": ["GET", "PUT"],
        "AllowedOrigins": ["https://*.example"],
        "AllowedHeaders": ["*"],
        "ExposeHeaders": ["ETag"],
    }
]
RULE = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 3}}


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway with a bucket."""

    endpoint: str
    origin: Origin
    bucket: str

    def client(self, **options: Any) -> S3Client:
        """Speak to the gateway."""
        return s3_client(self.endpoint, ACCESS_KEY, SECRET_KEY, **options)


@pytest.fixture(scope="module", params=["moto", "seaweed"])
def served(
    request: pytest.FixtureRequest,
    make_bucket: Callable[[Origin], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """Run the gateway over a real origin."""
    origin: Origin = request.getfixturevalue(request.param)
    with gateway(origin.endpoint, tmp_path_factory.mktemp("relay") / "cache", flush_delay="30s") as running:
        yield Served(running.endpoint, origin, make_bucket(origin))


def outcome(call: Callable[..., Any], **arguments: Any) -> Any:
    """Give an answer without what is of its own request, or the code and status of the refusal."""
    try:
        answer = call(**arguments)
    except ClientError as error:
        return (error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"])
    answer.pop("ResponseMetadata")
    return answer


def both(served: Served, name: str, **arguments: Any) -> Any:
    """Ask the gateway, and the origin itself; what they say is the same, and is given."""
    through = outcome(getattr(served.client(), name), Bucket=served.bucket, **arguments)
    itself = outcome(getattr(served.origin.client(), name), Bucket=served.bucket, **arguments)
    assert through == itself, name
    return through


def test_tags_of_an_object_that_was_just_written(served: Served) -> None:
    """What is tagged is what was acknowledged; bytes and metadata stay."""
    client = served.client()
    client.put_object(Bucket=served.bucket, Key="tagged", Body=b"bytes", Metadata={"a": "1"}, Tagging="x=1")

    before = client.get_object_tagging(Bucket=served.bucket, Key="tagged")["TagSet"]
    client.put_object_tagging(Bucket=served.bucket, Key="tagged", Tagging={"TagSet": TAGS})
    found = both(served, "get_object_tagging", Key="tagged")["TagSet"]
    got = client.get_object(Bucket=served.bucket, Key="tagged")
    count = got.get("TagCount", 0)
    client.delete_object_tagging(Bucket=served.bucket, Key="tagged")
    after = both(served, "get_object_tagging", Key="tagged")["TagSet"]

    assert before == [{"Key": "x", "Value": "1"}]
    assert sorted(tag["Key"] for tag in found) == ["robot", "run"]
    assert (got["Body"].read(), got["Metadata"], count) == (b"bytes", {"a": "1"}, 2)
    assert after == []


@pytest.mark.parametrize(
    ("put", "get", "delete", "arguments"),
    [
        ("put_bucket_policy", "get_bucket_policy", "delete_bucket_policy", {"Policy": POLICY}),
        ("put_bucket_tagging", "get_bucket_tagging", "delete_bucket_tagging", {"Tagging": {"TagSet": TAGS}}),
        (
            "put_bucket_cors",
            "get_bucket_cors",
            "delete_bucket_cors",
            {"CORSConfiguration": {"CORSRules": CORS}},
        ),
        (
            "put_bucket_lifecycle_configuration",
            "get_bucket_lifecycle_configuration",
            "delete_bucket_lifecycle",
            {"LifecycleConfiguration": {"Rules": [RULE]}},
        ),
        (
            "put_bucket_website",
            "get_bucket_website",
            "delete_bucket_website",
            {"WebsiteConfiguration": {"IndexDocument": {"Suffix": "index.html"}}},
        ),
        (
            "put_bucket_encryption",
            "get_bucket_encryption",
            "delete_bucket_encryption",
            {
                "ServerSideEncryptionConfiguration": {
                    "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
                }
            },
        ),
    ],
)
def test_configuration_is_the_origins(
    served: Served, put: str, get: str, delete: str, arguments: dict[str, Any]
) -> None:
    """Written, read and deleted through the gateway it is what the origin has, a refusal too."""
    client, bucket = served.client(), served.bucket

    before = both(served, get)
    written = outcome(getattr(client, put), Bucket=bucket, **arguments)
    found = both(served, get)
    deleted = outcome(getattr(client, delete), Bucket=bucket)
    after = both(served, get)

    assert after == before
    if written == {}:
        assert found != before
        assert deleted == {}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("get_bucket_acl", {}),
        ("get_bucket_versioning", {}),
        ("get_object_lock_configuration", {}),
        ("get_bucket_ownership_controls", {}),
        ("get_public_access_block", {}),
        ("get_bucket_notification_configuration", {}),
        ("get_bucket_logging", {}),
        ("list_bucket_inventory_configurations", {}),
        ("get_object_acl", {"Key": "asked"}),
        ("get_object_tagging", {"Key": "missing"}),
        ("get_object_attributes", {"Key": "asked", "ObjectAttributes": ["ETag", "ObjectSize"]}),
        ("get_object_retention", {"Key": "asked"}),
        ("get_object_legal_hold", {"Key": "asked"}),
    ],
)
def test_what_is_asked_is_answered_as_by_the_origin(
    served: Served, name: str, arguments: dict[str, Any]
) -> None:
    """Of a bucket, of an object that was just acknowledged, of one that is not there: answers and refusals are the same."""
    served.client().put_object(Bucket=served.bucket, Key="asked", Body=b"bytes")

    both(served, name, **arguments)

    assert served.client().get_object(Bucket=served.bucket, Key="asked")["Body"].read() == b"bytes"


@pytest.mark.parametrize("name", ["newfeature", "annotation&annotationName=a", "encryption", "legal-hold"])
def test_no_origin_takes_a_subresource_for_the_object(served: Served, name: str) -> None:
    """B04: both origins replace the object by what is put under a name that they do not know; the gateway does not ask them to."""
    client = served.client()
    client.put_object(Bucket=served.bucket, Key="kept", Body=b"bytes")
    target = f"/{served.bucket}/kept?{name}"

    status = _signed(served.endpoint, "PUT", target, b"<x/>")

    assert status >= 400
    assert client.get_object(Bucket=served.bucket, Key="kept")["Body"].read() == b"bytes"
    assert served.origin.client().get_object(Bucket=served.bucket, Key="kept")["Body"].read() == b"bytes"


@pytest.mark.parametrize("is_empty", [True, False])
def test_no_origin_takes_a_configuration_for_the_bucket(
    served: Served, make_bucket: Callable[[Origin], str], *, is_empty: bool
) -> None:
    """SeaweedFS and moto delete the bucket by names that they do not know in a DELETE, and make one by such names in a PUT."""
    bucket, origin = make_bucket(served.origin), served.origin.client()
    if not is_empty:
        origin.put_object(Bucket=bucket, Key="kept", Body=b"bytes")
    names = {
        (row.method, "&".join(row.subresources))
        for row in ROUTES
        if row.level is Level.BUCKET and row.operation in EFFECTS and row.method in {"PUT", "DELETE"}
    } | {("PUT", "newfeature"), ("DELETE", "newfeature")}
    before = {found["Name"] for found in origin.list_buckets()["Buckets"]}
    refused = set()
    for method, name in sorted(names):
        target = f"/{bucket if method == 'DELETE' else 'missing'}?{name}"
        if _signed(served.endpoint, method, target, b"<x/>" if method == "PUT" else b"") == 501:
            refused.add((method, name))
        assert {found["Name"] for found in origin.list_buckets()["Buckets"]} == before, target
    assert ("DELETE", "metrics") in refused
    assert not {("DELETE", name) for name in ("cors", "lifecycle", "policy", "tagging")} & refused


def test_a_presigned_url_of_a_subresource(served: Served) -> None:
    """The URL's signature is checked here and is none at the origin."""
    served.client().put_object(Bucket=served.bucket, Key="signed", Body=b"bytes", Tagging="a=1")
    url = served.client(config=PRESIGNING).generate_presigned_url(
        "get_object_tagging", {"Bucket": served.bucket, "Key": "signed"}
    )

    with urllib.request.urlopen(url, timeout=30) as answer:
        document = answer.read()

    assert b"<Key>a</Key>" in document


def test_versions_are_those_of_what_was_acknowledged(
    served: Served, make_bucket: Callable[[Origin], str]
) -> None:
    """Versioning is switched on over all that was acknowledged before it; from then on every write is a version."""
    client, bucket = served.client(), make_bucket(served.origin)
    client.put_object(Bucket=bucket, Key="k", Body=b"one")
    switched = outcome(
        client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
    )
    assert switched == {}

    client.put_object(Bucket=bucket, Key="k", Body=b"two")
    client.put_object(Bucket=bucket, Key="k", Body=b"three")
    listed = client.list_object_versions(Bucket=bucket)["Versions"]

    assert [version["Size"] for version in listed] == [5, 3, 3]
    assert [version["IsLatest"] for version in listed] == [True, False, False]
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"three"


def test_a_browser_may_do_what_the_buckets_rules_allow(served: Served) -> None:
    """Rules that were put through the gateway answer preflights and requests at once."""
    client = served.client()
    client.put_object(Bucket=served.bucket, Key="shared", Body=b"bytes")
    client.put_bucket_cors(Bucket=served.bucket, CORSConfiguration={"CORSRules": CORS})
    url = served.client(config=PRESIGNING).generate_presigned_url(
        "get_object", {"Bucket": served.bucket, "Key": "shared"}
    )

    allowed = _preflight(url, "https://a.example", "PUT")
    refused = _preflight(url, "https://elsewhere", "PUT")
    page = urllib.request.Request(url, headers={"Origin": "https://a.example"})
    with urllib.request.urlopen(page, timeout=30) as answer:
        shared = (answer.headers["Access-Control-Allow-Origin"], answer.read())
    client.delete_bucket_cors(Bucket=served.bucket)

    assert (allowed, refused, _preflight(url, "https://a.example", "PUT")) == (200, 403, 403)
    assert shared == ("https://a.example", b"bytes")


def _signed(endpoint: str, method: str, target: str, body: bytes) -> int:
    identity = SigningIdentity(ACCESS_KEY, SECRET_KEY, REGION)
    host = endpoint.partition("//")[2]
    headers = sign_headers(identity, method, target, {"host": host}, "UNSIGNED-PAYLOAD", time.time())
    request = urllib.request.Request(f"{endpoint}{target}", data=body, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _preflight(url: str, origin: str, method: str) -> int:
    headers = {"Origin": origin, "Access-Control-Request-Method": method}
    request = urllib.request.Request(url, headers=headers, method="OPTIONS")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
