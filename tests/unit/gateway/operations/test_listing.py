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


async def test_an_empty_token_is_none(gateway: RunningGateway) -> None:
    """The listing begins where it would without one, at its start or behind StartAfter, and says what it was sent."""
    for key in ("a", "b", "c"):
        gateway.store.put("bucket", key, b"x")
    client = gateway.client()

    whole = await in_thread(client.list_objects_v2, Bucket="bucket", ContinuationToken="")
    behind = await in_thread(client.list_objects_v2, Bucket="bucket", ContinuationToken="", StartAfter="a")
    without = await in_thread(client.list_objects_v2, Bucket="bucket")

    assert [entry["Key"] for entry in whole["Contents"]] == ["a", "b", "c"]
    assert [entry["Key"] for entry in behind["Contents"]] == ["b", "c"]
    assert (whole["ContinuationToken"], behind["ContinuationToken"]) == ("", "")
    assert "ContinuationToken" not in without


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


# --- to the letter --------------------------------------------------------------------------------------------------------


async def ask(gateway: RunningGateway, query: str) -> tuple[int, str]:
    """List with this query; give status and document."""
    connection = await gateway.connect()
    await connection.send(gateway.signed("GET", f"/bucket?{query}"))
    answer = await connection.answer()
    return answer.status, answer.body.decode()


@pytest.mark.parametrize("version", ["", "list-type=2&"])
@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        ("0", 200, "<MaxKeys>0</MaxKeys>"),
        ("1", 200, "<MaxKeys>1</MaxKeys>"),
        ("1000", 200, "<MaxKeys>1000</MaxKeys>"),
        ("1001", 200, "<MaxKeys>1000</MaxKeys>"),
        ("2147483647", 200, "<MaxKeys>1000</MaxKeys>"),
        ("2147483648", 400, "<ArgumentName>max-keys</ArgumentName>"),
        ("9" * 5000, 400, "<ArgumentName>max-keys</ArgumentName>"),
        ("-1", 400, "<ArgumentValue>-1</ArgumentValue>"),
        ("+1", 400, "<Code>InvalidArgument</Code>"),
        ("1.0", 400, "<Code>InvalidArgument</Code>"),
        ("x", 400, "<Code>InvalidArgument</Code>"),
        ("%D9%A1", 400, "<Code>InvalidArgument</Code>"),
        ("", 200, "<MaxKeys>1000</MaxKeys>"),
    ],
)
async def test_max_keys_is_a_number_up_to_a_thousand(
    gateway: RunningGateway, version: str, sent: str, status: int, said: str
) -> None:
    """More means 1000, which the answer says; no number, or one that S3 cannot hold, is refused by name."""
    gateway.store.put("bucket", "a", b"x")
    gateway.store.put("bucket", "b", b"x")

    answered, document = await ask(gateway, f"{version}max-keys={sent}")

    assert answered == status
    assert said in document
    assert status == 400 or document.count("<Contents>") == (0 if sent == "0" else 1 if sent == "1" else 2)


ODD = "a b+&<\u00fc/\x01(3)"
ENCODED = "a%20b%2B%26%3C%C3%BC/%01%283%29"
ESCAPED = "a b+&amp;&lt;\u00fc/&#x1;(3)"


@pytest.mark.parametrize("is_encoded", [False, True])
async def test_names_are_encoded_when_the_client_asks_for_it(
    gateway: RunningGateway, is_encoded: bool
) -> None:
    """AWS "ListObjectsV2", EncodingType: delimiter, prefix, key and start-after, and in version 1 marker and next marker; never a token."""
    for key in (ODD + "1", ODD + "2", ODD + "d|x", ODD + "e|x"):
        gateway.store.put("bucket", key, b"x")
    name = ENCODED if is_encoded else ESCAPED
    bar = "%7C" if is_encoded else "|"
    common = f"prefix={ENCODED}&delimiter=%7C&max-keys=2" + ("&encoding-type=url" if is_encoded else "")

    _, second = await ask(gateway, f"list-type=2&start-after={ENCODED}1&{common}")
    _, first = await ask(gateway, f"marker={ENCODED}1&{common}")

    for document in (first, second):
        assert f"<Prefix>{name}</Prefix>" in document
        assert f"<Delimiter>{bar}</Delimiter>" in document
        assert f"<Key>{name}2</Key>" in document
        assert f"<CommonPrefixes><Prefix>{name}d{bar}</Prefix></CommonPrefixes>" in document
        assert ("<EncodingType>url</EncodingType>" in document) is is_encoded
        assert "<IsTruncated>true</IsTruncated>" in document
    assert f"<StartAfter>{name}1</StartAfter>" in second
    assert f"<Marker>{name}1</Marker>" in first
    assert f"<NextMarker>{name}d{bar}</NextMarker>" in first
    token = second.partition("<NextContinuationToken>")[2].partition("<")[0]
    assert token.isascii()
    assert "%" not in token


async def test_a_token_counts_when_a_start_is_sent_too(gateway: RunningGateway) -> None:
    """AWS "ListObjectsV2": start-after is for the first page; with a token it is said again and does nothing."""
    for key in "abcdef":
        gateway.store.put("bucket", key, b"x")
    _, first = await ask(gateway, "list-type=2&start-after=b&max-keys=1")
    token = first.partition("<NextContinuationToken>")[2].partition("<")[0]

    _, second = await ask(gateway, f"list-type=2&start-after=e&max-keys=1&continuation-token={token}")

    assert "<Key>c</Key>" in first
    assert "<Key>d</Key>" in second
    assert "<StartAfter>e</StartAfter>" in second
    assert f"<ContinuationToken>{token}</ContinuationToken>" in second


@pytest.mark.parametrize(
    ("prefix", "keys"), [("a/", []), ("b/", ["b/2"]), ("c/", ["c/1", "c/2"]), ("", ["b/2", "c/1", "c/2"])]
)
async def test_a_token_is_a_place_when_it_is_of_another_prefix(
    gateway: RunningGateway, prefix: str, keys: list[str]
) -> None:
    """What lies behind the token's key and has the prefix, whatever was listed when it was made."""
    for key in ("a/1", "b/1", "b/2", "c/1", "c/2"):
        gateway.store.put("bucket", key, b"x")
    _, first = await ask(gateway, "list-type=2&prefix=b/&max-keys=1")
    token = first.partition("<NextContinuationToken>")[2].partition("<")[0]

    _, second = await ask(gateway, f"list-type=2&prefix={prefix}&continuation-token={token}")

    assert [part.partition("<")[0] for part in second.split("<Key>")[1:]] == keys


async def test_the_next_marker_is_there_when_there_is_a_delimiter(gateway: RunningGateway) -> None:
    """AWS "ListObjects": without a delimiter the last key is the next marker; with one it may be a common prefix, which works as one."""
    for key in ("a/1", "a/2", "b/1", "c"):
        gateway.store.put("bucket", key, b"x")

    _, plain = await ask(gateway, "max-keys=1")
    _, grouped = await ask(gateway, "max-keys=1&delimiter=/")
    _, behind = await ask(gateway, "max-keys=1&delimiter=/&marker=a/")
    _, last = await ask(gateway, "delimiter=/&marker=b/")

    assert "<NextMarker>" not in plain
    assert "<NextMarker>a/</NextMarker>" in grouped
    assert "<CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes>" in behind
    assert "<Key>c</Key>" in last
    assert "<NextMarker>" not in last


@pytest.mark.parametrize(("sent", "is_shown"), [("true", True), ("false", False), ("", False)])
async def test_the_owner_is_shown_when_it_is_fetched(
    gateway: RunningGateway, sent: str, is_shown: bool
) -> None:
    """`fetch-owner=true` and nothing else; every key of the page has one then."""
    gateway.store.put("bucket", "a", b"x")
    gateway.store.put("bucket", "b", b"x")

    _, document = await ask(gateway, f"list-type=2&fetch-owner={sent}")

    assert document.count("<Owner>") == (2 if is_shown else 0)


@pytest.mark.parametrize("operation", ["list_objects_v2", "list_objects"])
async def test_a_listing_of_before_says_so(gateway: RunningGateway, operation: str) -> None:
    """A page that covers for a failing origin is marked as an object would be; one of now has no such header."""
    gateway.store.put("bucket", "key", b"x")
    ask = getattr(gateway.client(), operation)

    fresh = await in_thread(ask, Bucket="bucket")
    gateway.store.stale_reason = "origin: Away"
    stale = await in_thread(ask, Bucket="bucket")

    headers = stale["ResponseMetadata"]["HTTPHeaders"]
    assert (headers["x-cache"], headers["x-cache-reason"]) == ("STALE", "origin: Away")
    assert "x-cache" not in fresh["ResponseMetadata"]["HTTPHeaders"]
