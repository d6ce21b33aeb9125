import pytest

from gateway.s3.errors import S3Error
from gateway.s3.passage import (
    copy_headers,
    needs_origin,
    origin_headers,
    relayed_headers,
    relayed_query,
    with_hoisted,
)

SDK_PUT = {
    "host": "127.0.0.1:9000",
    "accept-encoding": "identity",
    "user-agent": "Boto3/1.44",
    "expect": "100-continue",
    "content-length": "3",
    "content-md5": "rL0Y20zC+Fzt72VPzMSk2A==",
    "content-encoding": "aws-chunked",
    "content-type": "text/plain",
    "authorization": "AWS4-HMAC-SHA256 ...",
    "amz-sdk-invocation-id": "1",
    "amz-sdk-request": "attempt=1",
    "x-amzn-trace-id": "Root=1",
    "x-amz-user-agent": "aws-sdk-js",
    "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "x-amz-date": "20130524T000000Z",
    "x-amz-security-token": "t",
    "x-amz-decoded-content-length": "3",
    "x-amz-trailer": "x-amz-checksum-crc32",
    "x-amz-sdk-checksum-algorithm": "CRC32",
    "x-amz-meta-a": "b",
    "x-amz-tagging": "a=1",
    "x-amz-storage-class": "STANDARD_IA",
    "x-amz-website-redirect-location": "/x",
    "x-forebay-durability": "disk",
}


def test_needs_origin_says_nothing_when_an_sdk_writes_plainly() -> None:
    """All that SDKs send by themselves, and all that is stored, may be answered from the disk."""
    assert needs_origin(SDK_PUT) == ""


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("if-match", '"a"', "conditional"),
        ("if-none-match", "*", "conditional"),
        ("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT", "conditional"),
        ("x-amz-if-match-size", "3", "conditional"),
        ("x-amz-server-side-encryption", "AES256", "encryption"),
        ("x-amz-server-side-encryption", "aws:kms", "encryption"),
        ("x-amz-server-side-encryption-customer-key", "k", "encryption"),
        ("x-amz-copy-source-server-side-encryption-customer-key", "k", "encryption"),
        ("x-amz-object-lock-mode", "GOVERNANCE", "object-lock"),
        ("x-amz-bypass-governance-retention", "true", "object-lock"),
        ("x-amz-acl", "private", "acl"),
        ("x-amz-grant-read", "id=1", "acl"),
        ("x-amz-expected-bucket-owner", "1", "expected-bucket-owner"),
        ("x-amz-request-payer", "requester", "request-payer"),
        ("x-amz-storage-class", "DEEP_ARCHIVE", "storage-class"),
        ("x-amz-checksum-sha3", "v", "unknown-header x-amz-checksum-sha3"),
        ("x-amz-new-thing", "v", "unknown-header x-amz-new-thing"),
    ],
)
def test_needs_origin_says_why_when_a_header_demands_it(name: str, value: str, reason: str) -> None:
    """What the gateway cannot answer exactly as the origin would goes through, unknown headers with it."""
    assert needs_origin({**SDK_PUT, name: value}) == reason


def test_origin_headers_hand_on_what_is_neither_stored_nor_of_this_hop() -> None:
    """Conditions, declared digests and the origin's own business pass; signing, framing and stored headers do not."""
    headers = {
        **SDK_PUT,
        "if-none-match": "*",
        "x-amz-acl": "private",
        "x-amz-checksum-crc32": "y/Q5Jg==",
        "x-amz-new-thing": "v",
    }

    assert origin_headers(headers) == (
        ("content-md5", "rL0Y20zC+Fzt72VPzMSk2A=="),
        ("if-none-match", "*"),
        ("x-amz-acl", "private"),
        ("x-amz-checksum-crc32", "y/Q5Jg=="),
        ("x-amz-new-thing", "v"),
    )


def test_with_hoisted_adds_headers_that_a_signer_moved_into_the_query() -> None:
    """A presigned URL may carry x-amz-* as parameters; its own and those of a body are no headers."""
    query = [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Expires", "60"),
        ("X-Amz-Signature", "0"),
        ("X-Amz-SignedHeaders", "host"),
        ("x-amz-checksum-crc32", "AAAAAA=="),
        ("x-amz-meta-a", "from the query"),
        ("X-Amz-Acl", "public-read"),
        ("partNumber", "1"),
    ]

    merged = with_hoisted({"host": "h", "x-amz-meta-a": "sent"}, query)

    assert merged == {"host": "h", "x-amz-meta-a": "sent", "x-amz-acl": "public-read"}


def test_with_hoisted_gives_the_headers_themselves_when_nothing_was_moved() -> None:
    """The ordinary request costs no copy."""
    headers = {"host": "h"}

    assert with_hoisted(headers, [("prefix", "a")]) is headers


def test_copy_headers_leave_out_the_source_and_the_signature() -> None:
    """A copy hands on what the target is to be and the conditions, and nothing that names the source or signs this hop."""
    headers = {
        "host": "gateway",
        "content-length": "0",
        "content-type": "text/plain",
        "x-amz-copy-source": "bucket/key",
        "x-amz-copy-source-if-match": '"e"',
        "x-amz-metadata-directive": "REPLACE",
        "x-amz-meta-color": "red",
        "x-amz-date": "20261129T000000Z",
        "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
        "authorization": "AWS4-HMAC-SHA256 ...",
        "if-none-match": "*",
    }

    passed = copy_headers(headers)

    assert passed == (
        ("content-type", "text/plain"),
        ("x-amz-copy-source-if-match", '"e"'),
        ("x-amz-metadata-directive", "REPLACE"),
        ("x-amz-meta-color", "red"),
        ("if-none-match", "*"),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-amz-meta-a", "v\r\nset-cookie: x"),
        ("x-amz-meta-a", "\x00"),
        ("X-Amz-Acl", "private\n"),
        ("x-amz-meta-a b", "v"),
        ("x-amz-meta-\r\nb", "v"),
        ("x-amz-new:thing", "v"),
    ],
)
def test_with_hoisted_refuses_when_a_parameter_can_be_no_header(name: str, value: str) -> None:
    """Percent signs bring no line break into a header, whether it is stored or passed on."""
    with pytest.raises(S3Error) as caught:
        with_hoisted({"host": "h"}, [(name, value)])

    assert (caught.value.code, caught.value.status) == ("InvalidArgument", 400)


def test_relayed_headers_when_presigned() -> None:
    """What the signer of a URL moved into its query is a header again; the signature's own parameters are neither."""
    query = (
        ("acl", ""),
        ("X-Amz-Signature", "s"),
        ("X-Amz-SignedHeaders", "host"),
        ("X-Amz-Security-Token", "t"),
        ("x-amz-acl", "private"),
        ("versionId", "v"),
        ("x-id", "PutObjectAcl"),
    )

    assert relayed_headers({"content-type": "a"}, query) == (("x-amz-acl", "private"), ("content-type", "a"))
    assert relayed_query(query) == (("acl", ""), ("versionId", "v"), ("x-id", "PutObjectAcl"))


def test_relayed_headers_leave_framing_and_sources_out() -> None:
    """The framing's token is no encoding, and no relayed operation copies."""
    given = {"content-encoding": "aws-chunked,gzip", "x-amz-copy-source": "/b/k", "x-amz-meta-a": "1"}

    assert relayed_headers(given, ()) == (("content-encoding", "gzip"), ("x-amz-meta-a", "1"))
    assert relayed_headers({"content-encoding": "aws-chunked"}, ()) == ()
