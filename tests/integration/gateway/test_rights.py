"""Rights over a real socket: what a key may not see reaches it in no answer, and the access log names who asked."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.grants import Access, parse_grant
from tests.fakes.engine import FakeStore
from tests.fakes.gateway import RunningGateway, ask, in_thread, running_gateway

SECRET = b"the secret bytes"
ETAG = hashlib.md5(SECRET).hexdigest()
READS = [
    ("GET", "/bucket/hidden/key", {}),
    ("HEAD", "/bucket/hidden/key", {}),
    ("GET", "/bucket/hidden/key", {"range": "bytes=0-3"}),
    ("GET", "/bucket/hidden/key?partNumber=1", {}),
    ("GET", "/bucket/hidden/key", {"if-none-match": f'"{ETAG}"'}),
    ("GET", "/bucket/hidden/key", {"if-match": '"other"'}),
    ("GET", "/bucket/hidden/none", {}),
    ("HEAD", "/bucket/hidden/none", {}),
    ("GET", "/bucket", {}),
    ("GET", "/bucket?list-type=2", {}),
    ("GET", "/bucket?list-type=2&prefix=hidden/", {}),
    ("GET", "/bucket?list-type=2&delimiter=/", {}),
    ("GET", "/bucket?uploads", {}),
    ("GET", "/bucket?versions", {}),
    ("GET", "/bucket/hidden/key?uploadId=u", {}),
    ("GET", "/bucket/hidden/key?tagging", {}),
    ("GET", "/bucket/hidden/key?attributes", {}),
    ("PUT", "/bucket/open/copy", {"x-amz-copy-source": "/bucket/hidden/key"}),
    ("PUT", "/bucket/in/copy", {"x-amz-copy-source": "/bucket/hidden/key"}),
    ("PUT", "/bucket/in/key", {"if-match": f'"{ETAG}"'}),
    ("GET", "/-/acknowledged?bucket=bucket&prefix=", {}),
    ("GET", "/-/pending?bucket=bucket&prefix=", {}),
    ("GET", "/other/key", {}),
    ("HEAD", "/other", {}),
    ("GET", "/nowhere/key", {}),
]


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway with a key for two prefixes of a bucket, and a third one open to everybody."""
    store = FakeStore()
    for bucket in ("bucket", "other"):
        store.make_bucket(bucket)
    for key in ("hidden/key", "in/key", "open/key"):
        store.put("bucket", key, SECRET)
    store.put("other", "key", SECRET)
    team = Access(tuple(map(parse_grant, ["read,write s3://bucket/open/*", "write s3://bucket/in/*"])))
    anonymous = Access((parse_grant("read s3://bucket/open/*"),))
    async with running_gateway(
        str(tmp_path / "log"), store=store, access={"team": team}, anonymous=anonymous
    ) as running:
        yield running


@pytest.mark.parametrize("access_key", ["team", ""])
@pytest.mark.parametrize(("method", "target", "headers"), READS)
async def test_nothing_is_told_when_the_right_is_missing(
    held: RunningGateway, method: str, target: str, headers: dict[str, str], access_key: str
) -> None:
    """403 with nothing of the object, of its name's existence, or of the bucket's; storage is not even asked."""
    answer = await ask(held, method, target, headers, access_key)

    told = answer.body + repr(answer.headers).encode()
    assert answer.status == 403
    assert (answer.body == b"") == (method == "HEAD")
    assert held.store.calls == []
    for part in (SECRET, ETAG.encode(), b"x-cache", b"last-modified", b"x-amz-version-id", b"x-forebay"):
        assert part not in told


@pytest.mark.parametrize("access_key", ["team", ""])
async def test_what_is_open_is_read_and_listed(held: RunningGateway, access_key: str) -> None:
    """A granted prefix is read and listed as ever, by the key and by everybody where the settings open it."""
    got = await ask(held, "GET", "/bucket/open/key", {}, access_key)
    missing = await ask(held, "GET", "/bucket/open/none", {}, access_key)
    listed = await ask(held, "GET", "/bucket?list-type=2&prefix=open/", {}, access_key)
    head = await ask(held, "HEAD", "/bucket", {}, access_key)

    assert (got.status, got.body) == (200, SECRET)
    assert (missing.status, head.status, listed.status) == (404, 200, 200)
    assert b"<Key>open/key</Key>" in listed.body
    assert b"hidden" not in listed.body


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("PUT", "/bucket/open/key", 403),
        ("DELETE", "/bucket/open/key", 403),
        ("POST", "/bucket/open/key?uploads", 403),
        ("POST", "/bucket?delete", 403),
        ("GET", "/", 403),
        ("GET", "/bucket?versioning", 403),
        ("GET", "/bucket/open/key?response-content-type=text/html", 400),
        ("GET", "/-/status", 403),
        ("POST", "/-/reload", 403),
    ],
)
async def test_anonymous_requests_do_nothing_but_read(
    held: RunningGateway, method: str, target: str, status: int
) -> None:
    """An open prefix is open for reading: no write, no bucket list, no verb of the gateway, no header of the reader's choice."""
    answer = await ask(held, method, target, {}, "")

    assert answer.status == status
    assert SECRET not in answer.body
    assert held.store.data("bucket", "open/key") == SECRET


async def test_each_key_of_a_batch_is_refused_when_it_may_not_be_deleted(held: RunningGateway) -> None:
    """Of one DeleteObjects, what the key may write goes, and each other key gets its own AccessDenied line."""
    client = held.client("team")
    keys = [
        {"Key": "in/key"},
        {"Key": "hidden/key"},
        {"Key": "open/key", "ETag": ETAG},
        {"Key": "in/other", "ETag": ETAG},
    ]

    answer = await in_thread(client.delete_objects, Bucket="bucket", Delete={"Objects": keys})

    assert [line["Key"] for line in answer["Deleted"]] == ["in/key", "open/key"]
    assert [(line["Key"], line["Code"]) for line in answer["Errors"]] == [
        ("hidden/key", "AccessDenied"),
        # What it may only write it may not compare.
        ("in/other", "AccessDenied"),
    ]
    assert held.store.data("bucket", "hidden/key") == SECRET


async def test_a_batch_that_bypasses_locks_needs_the_right_to(held: RunningGateway) -> None:
    """The header counts for every line, so each key needs `admin` beside `write`, as a single delete of it does."""
    client = held.client("team")
    keys = [{"Key": "in/key"}, {"Key": "open/key", "VersionId": "v"}]

    answer = await in_thread(
        client.delete_objects, Bucket="bucket", Delete={"Objects": keys}, BypassGovernanceRetention=True
    )

    assert "Deleted" not in answer
    assert [line["Code"] for line in answer["Errors"]] == ["AccessDenied"] * 2
    assert held.store.data("bucket", "in/key") == SECRET


async def test_only_buckets_that_the_key_may_see_are_listed(held: RunningGateway) -> None:
    """ListBuckets leaves out what the key has no right in."""
    seen = await in_thread(held.client("team").list_buckets)
    everything = await in_thread(held.client().list_buckets)

    assert [bucket["Name"] for bucket in seen["Buckets"]] == ["bucket"]
    assert [bucket["Name"] for bucket in everything["Buckets"]] == ["bucket", "other"]


async def test_the_access_log_names_the_key(held: RunningGateway) -> None:
    """Each line says which key asked, refused or not, and none for a request without a signature."""
    await ask(held, "GET", "/bucket/open/key", {}, "team")
    await ask(held, "GET", "/bucket/hidden/key", {}, "team")
    await ask(held, "GET", "/bucket/hidden/key", {}, "")

    assert [(line.access_key, line.operation, line.status) for line in await held.log()] == [
        ("team", "GetObject", 200),
        ("team", "GetObject", 403),
        ("", "GetObject", 403),
    ]


async def test_a_presigned_url_holds_what_its_key_holds(held: RunningGateway) -> None:
    """A URL is its signer's request: the rights are those of the key that signed it."""
    client = held.client("team", signature_version="s3v4")

    for key, status in (("open/key", 200), ("hidden/key", 403)):
        url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": key})
        answer = await ask(held, "GET", url.removeprefix(f"http://{held.host}"), {}, "")
        assert answer.status == status
