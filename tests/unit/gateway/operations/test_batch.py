"""DeleteObjects as boto3 and plain HTTP see it."""

import base64
import hashlib

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types

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
    """A version, a condition or an overlong key fails its own line; the others are deleted, in order."""
    gateway.store.put("bucket", "a", b"x")
    long_key = "k" * 1025
    lines = (
        "<Object><Key>v</Key><VersionId>7</VersionId></Object><Object><Key>a</Key></Object>"
        "<Object><Key>c</Key><ETag>x</ETag></Object><Object><Key>n</Key><VersionId>null</VersionId></Object>"
        f"<Object><Key>{long_key}</Key></Object>"
    )

    answer = await delete(gateway, f"<Delete>{lines}</Delete>")

    text = answer.body.decode()
    assert answer.status == 200
    assert text.count("<Deleted>") == 2
    assert text.count("<Code>NotImplemented</Code>") == 2
    assert text.count("<Code>KeyTooLongError</Code>") == 1
    assert gateway.store.data("bucket", "a") is None


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
