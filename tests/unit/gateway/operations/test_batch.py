"""DeleteObjects as boto3 and plain HTTP see it."""

import base64
import hashlib

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types

from storage.requests import DeleteResult
from storage.types import ObjectName
from tests.fakes.gateway import Answer, RunningGateway, in_thread


async def delete(gateway: RunningGateway, document: str, headers: dict[str, str] | None = None) -> Answer:
    """Send a DeleteObjects document; with its MD5 where no headers are given."""
    body = document.encode()
    connection = await gateway.connect()
    digest = (
        {"content-md5": base64.b64encode(hashlib.md5(body).digest()).decode()} if headers is None else headers
    )
    head = gateway.signed("POST", "/bucket?delete", {"content-length": str(len(body)), **digest})
    await connection.send(head + body)
    return await connection.answer()


async def test_every_key_is_deleted_when_it_is_named(gateway: RunningGateway) -> None:
    """B29: unknown keys count as deleted, escaped ones are found, a quiet request hears nothing."""
    client = gateway.client()
    for key in ("a", "b & <c>", "d"):
        gateway.store.put("bucket", key, b"x")

    loud = await in_thread(
        client.delete_objects,
        Bucket="bucket",
        Delete={"Objects": [{"Key": "a"}, {"Key": "b & <c>"}, {"Key": "none"}]},
    )
    quiet = await in_thread(
        client.delete_objects, Bucket="bucket", Delete={"Objects": [{"Key": "d"}], "Quiet": True}
    )

    assert [line["Key"] for line in loud["Deleted"]] == ["a", "b & <c>", "none"]
    assert "Deleted" not in quiet
    assert all(gateway.store.data("bucket", key) is None for key in ("a", "b & <c>", "d"))


async def test_lines_fail_alone_when_they_cannot_be_done(gateway: RunningGateway) -> None:
    """An overlong key or what is no version id fails its own line; the others are deleted, in order."""
    gateway.store.put("bucket", "a", b"x")
    long_key, long_id = "k" * 1025, "v" * 1025
    lines = (
        f"<Object><Key>v</Key><VersionId>{long_id}</VersionId></Object><Object><Key>a</Key></Object>"
        f"<Object><Key>{long_key}</Key></Object>"
    )

    answer = await delete(gateway, f"<Delete>{lines}</Delete>")

    text = answer.body.decode()
    assert answer.status == 200
    assert text.count("<Deleted>") == 1
    assert text.count("<Code>InvalidArgument</Code>") == 1
    assert text.count("<Code>KeyTooLongError</Code>") == 1
    assert gateway.store.data("bucket", "a") is None


async def test_each_line_says_what_became_of_it_when_versions_are_named(gateway: RunningGateway) -> None:
    """AWS API_DeleteObjects: a marker that was made, a version that is gone, a marker that is gone, a condition unmet."""
    key = ObjectName("bucket", "k")
    marker = ("x-amz-delete-marker", "true")
    gateway.store.delete_results = {
        key: DeleteResult("k", version_id="m2", headers=(marker, ("x-amz-version-id", "m2"))),
        key.at_version("v1"): DeleteResult("k", version_id="v1", headers=(("x-amz-version-id", "v1"),)),
        key.at_version("m1"): DeleteResult(
            "k", version_id="m1", headers=(marker, ("x-amz-version-id", "m1"))
        ),
        key.at_version("v0"): DeleteResult("k", "PreconditionFailed", "no", "v0"),
    }
    lines = (
        "<Object><Key>k</Key></Object><Object><Key>k</Key><VersionId>v1</VersionId></Object>"
        "<Object><Key>k</Key><VersionId>m1</VersionId></Object>"
        '<Object><Key>k</Key><VersionId>v0</VersionId><ETag>"e"</ETag><Size>3</Size>'
        "<LastModifiedTime>Mon, 30 Nov 2026 01:03:50 GMT</LastModifiedTime></Object>"
    )
    body = f"<Delete>{lines}</Delete>"
    digest = base64.b64encode(hashlib.md5(body.encode()).digest()).decode()

    answer = await delete(gateway, body, {"content-md5": digest, "x-amz-bypass-governance-retention": "true"})

    text = answer.body.decode()
    assert (
        "<Deleted><Key>k</Key><DeleteMarker>true</DeleteMarker>"
        "<DeleteMarkerVersionId>m2</DeleteMarkerVersionId></Deleted>"
        "<Deleted><Key>k</Key><VersionId>v1</VersionId></Deleted>"
        "<Deleted><Key>k</Key><VersionId>m1</VersionId><DeleteMarker>true</DeleteMarker>"
        "<DeleteMarkerVersionId>m1</DeleteMarkerVersionId></Deleted>"
    ) in text
    assert "<Error><Key>k</Key><VersionId>v0</VersionId><Code>PreconditionFailed</Code>" in text
    bypass = ("x-amz-bypass-governance-retention", "true")
    assert [headers for _, headers in gateway.store.deletes] == [
        (bypass,),
        (bypass,),
        (bypass,),
        (
            ("if-match", '"e"'),
            ("x-amz-if-match-last-modified-time", "Mon, 30 Nov 2026 01:03:50 GMT"),
            ("x-amz-if-match-size", "3"),
            bypass,
        ),
    ]


@pytest.mark.parametrize(
    ("document", "headers", "code"),
    [
        (
            "<Delete><Object><Key>a</Key></Object></Delete>",
            {"content-md5": "1B2M2Y8AsgTpgAmY7PhCfg=="},
            "BadDigest",
        ),
        ("<Delete><Object><Key>a</Key></Object></Delete>", {}, "InvalidRequest"),
        ("<Delete>", None, "MalformedXML"),
        ("<Delete></Delete>", None, "MalformedXML"),
    ],
)
async def test_nothing_is_deleted_when_the_document_is_refused(
    gateway: RunningGateway, document: str, headers: dict[str, str] | None, code: str
) -> None:
    """B29: a damaged, unprotected or malformed document deletes nothing."""
    gateway.store.put("bucket", "a", b"x")

    answer = await delete(gateway, document, headers)

    assert answer.status == 400
    assert f"<Code>{code}</Code>".encode() in answer.body
    assert gateway.store.data("bucket", "a") == b"x"


@pytest.mark.slow
async def test_a_thousand_long_keys_are_deleted_when_they_come_at_once(gateway: RunningGateway) -> None:
    """B27: a document over 1 MiB is no error; 1001 keys are."""
    client = gateway.client()
    keys = [{"Key": f"{number:04d}" + "k" * 1015} for number in range(1001)]

    done = await in_thread(client.delete_objects, Bucket="bucket", Delete={"Objects": keys[:1000]})
    with pytest.raises(ClientError) as raised:
        await in_thread(client.delete_objects, Bucket="bucket", Delete={"Objects": keys})

    assert len(done["Deleted"]) == 1000
    assert raised.value.response["Error"]["Code"] == "MalformedXML"


async def test_a_key_is_deleted_once_when_it_is_named_often(gateway: RunningGateway) -> None:
    """B29: each line has its answer, and a document that repeats one key a thousand times costs one delete."""
    gateway.store.put("bucket", "k", b"x")

    answer = await delete(gateway, f"<Delete>{'<Object><Key>k</Key></Object>' * 1000}</Delete>")

    assert answer.status == 200
    assert answer.body.count(b"<Deleted><Key>k</Key></Deleted>") == 1000
    assert gateway.store.deleted == ["k"]
