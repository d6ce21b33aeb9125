"""The documents that the gateway writes: as AWS's clients read them."""

import re
from urllib.parse import unquote

import pytest
from botocore.parsers import RestXMLParser  # type: ignore[import-untyped]  # botocore ships no types
from botocore.session import get_session  # type: ignore[import-untyped]  # as above
from defusedxml.ElementTree import fromstring
from hypothesis import given, strategies as st

from gateway.s3 import documents_out as out
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType

HEAD = b'<?xml version="1.0" encoding="UTF-8"?>\n'
XMLNS = b' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
DATE_S = 1369353600
OWNER = out.Owner("id", "name")
ENTRY = out.ObjectEntry("a&b/c", 12, "0123", DATE_S)
CRC = Checksum(ChecksumAlgorithm.CRC32, "AAAAAA==")
COMPOSITE = Checksum(ChecksumAlgorithm.SHA256, "abc=-2", ChecksumType.COMPOSITE)
MODEL = get_session().get_service_model("s3")


def read_by_botocore(operation: str, document: bytes) -> str:
    """Give the repr of what a user of boto3 gets for a document; botocore's answers have no types."""
    shape = MODEL.operation_model(operation).output_shape
    parsed = RestXMLParser().parse({"status_code": 200, "headers": {}, "body": document}, shape)
    del parsed["ResponseMetadata"]
    return repr(parsed)


def body_of(document: bytes, root: bytes) -> bytes:
    """Give what stands in the root element, which must be this one."""
    start = HEAD + b"<" + root + XMLNS + b">"
    end = b"</" + root + b">"
    assert document.startswith(start)
    assert document.endswith(end)
    return document[len(start) : -len(end)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain/ä€", "plain/ä€"),
        ('<a href="x">&amp;\'', "&lt;a href=&quot;x&quot;&gt;&amp;amp;'"),
        ("\x00\x01\x1f\x7f", "&#x0;&#x1;&#x1f;&#x7f;"),
        ("\r\n\t", "&#xd;\n\t"),
        ("\ufffe\uffff", "&#xfffe;&#xffff;"),
    ],
)
def test_escape(text: str, expected: str) -> None:
    """Markup and control characters become references, as AWS writes them."""
    assert out.escape(text) == expected


@given(text=st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")))
def test_escape_comes_back_from_a_parser(text: str) -> None:
    """Whatever XML can hold comes back the same."""
    assert fromstring(f"<a>{out.escape(text)}</a>".encode()).text == (text or None)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_url_encode_comes_back_and_is_plain(text: str) -> None:
    """An encoded key holds nothing that XML or a URL cares for, and decodes to itself."""
    encoded = out.url_encode(text)

    assert unquote(encoded) == text
    assert re.fullmatch(r"[A-Za-z0-9%/._~-]*", encoded)


def test_iso_time() -> None:
    """Dates have milliseconds, always 0, and a Z."""
    assert out.iso_time(DATE_S) == "2013-05-24T00:00:00.000Z"


def test_list_buckets() -> None:
    """Owner, buckets, and where to go on."""
    document = out.list_buckets(
        OWNER,
        [out.BucketEntry("one", 1369353600.9), out.BucketEntry("two", 0.0, "eu")],
        prefix="p",
        continuation_token="t",
    )

    assert body_of(document, b"ListAllMyBucketsResult") == (
        b"<Owner><ID>id</ID><DisplayName>name</DisplayName></Owner><Buckets>"
        b"<Bucket><Name>one</Name><CreationDate>2013-05-24T00:00:00.000Z</CreationDate></Bucket>"
        b"<Bucket><Name>two</Name><CreationDate>1970-01-01T00:00:00.000Z</CreationDate>"
        b"<BucketRegion>eu</BucketRegion></Bucket></Buckets><Prefix>p</Prefix><ContinuationToken>t</ContinuationToken>"
    )


@pytest.mark.parametrize(("region", "text"), [("us-east-1", b""), ("eu-north-1", b"eu-north-1")])
def test_location_constraint(region: str, text: bytes) -> None:
    """The oldest region is the empty one."""
    assert body_of(out.location_constraint(region), b"LocationConstraint") == text


def test_list_objects() -> None:
    """Version 1: markers, entries, prefixes, in AWS's order."""
    document = out.list_objects(
        out.ObjectsPage("bucket", "a<", "/", "m", 2, True, (ENTRY,), ("p/",), next_marker="p/")
    )

    assert body_of(document, b"ListBucketResult") == (
        b"<Name>bucket</Name><Prefix>a&lt;</Prefix><Marker>m</Marker><NextMarker>p/</NextMarker><MaxKeys>2</MaxKeys>"
        b"<Delimiter>/</Delimiter><IsTruncated>true</IsTruncated>"
        b"<Contents><Key>a&amp;b/c</Key><LastModified>2013-05-24T00:00:00.000Z</LastModified>"
        b"<ETag>&quot;0123&quot;</ETag><Size>12</Size><StorageClass>STANDARD</StorageClass></Contents>"
        b"<CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>"
    )


def test_list_objects_when_empty() -> None:
    """Prefix and marker are there even if empty; a delimiter is not."""
    document = out.list_objects(out.ObjectsPage("bucket", "", "", "", 1000, False, (), ()))

    assert body_of(document, b"ListBucketResult") == (
        b"<Name>bucket</Name><Prefix></Prefix><Marker></Marker><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
    )


def test_list_objects_v2() -> None:
    """Version 2: tokens, the count of both kinds, owner and checksums where asked for."""
    entry = out.ObjectEntry("k", 1, "e", DATE_S, "GLACIER", ("CRC32", "SHA256"), "COMPOSITE", OWNER)
    document = out.list_objects_v2(
        out.ObjectsPageV2(
            "bucket",
            "p",
            "/",
            2,
            (entry,),
            ("p/",),
            start_after="s",
            continuation_token="t1",
            next_continuation_token="t2",
        )
    )

    assert body_of(document, b"ListBucketResult") == (
        b"<Name>bucket</Name><Prefix>p</Prefix><StartAfter>s</StartAfter><ContinuationToken>t1</ContinuationToken>"
        b"<NextContinuationToken>t2</NextContinuationToken><KeyCount>2</KeyCount><MaxKeys>2</MaxKeys>"
        b"<Delimiter>/</Delimiter><IsTruncated>true</IsTruncated>"
        b"<Contents><Key>k</Key><LastModified>2013-05-24T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
        b"<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumAlgorithm>SHA256</ChecksumAlgorithm>"
        b"<ChecksumType>COMPOSITE</ChecksumType><Size>1</Size>"
        b"<Owner><ID>id</ID><DisplayName>name</DisplayName></Owner><StorageClass>GLACIER</StorageClass></Contents>"
        b"<CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>"
    )


def test_list_objects_v2_when_url_encoded() -> None:
    """All that a client sends or a key holds is encoded; tokens and the bucket are not."""
    entry = out.ObjectEntry("a b+\x01ä/c", 1, "e", DATE_S)
    document = out.list_objects_v2(
        out.ObjectsPageV2(
            "bucket",
            "a ",
            " ",
            2,
            (entry,),
            ("a +",),
            start_after="+",
            next_continuation_token="t",
            is_url_encoded=True,
        )
    )

    body = body_of(document, b"ListBucketResult")

    for part in (
        b"<Prefix>a%20</Prefix>",
        b"<StartAfter>%2B</StartAfter>",
        b"<Delimiter>%20</Delimiter><EncodingType>url</EncodingType>",
        b"<Key>a%20b%2B%01%C3%A4/c</Key>",
        b"<CommonPrefixes><Prefix>a%20%2B</Prefix></CommonPrefixes>",
    ):
        assert part in body


def test_list_uploads() -> None:
    """Uploads with their markers, in AWS's order."""
    upload = out.UploadEntry("k", "u", 1369353600.5, "STANDARD", "CRC32", "FULL_OBJECT", OWNER)
    document = out.list_uploads(
        out.UploadsPage(
            "bucket",
            "",
            "/",
            "km",
            "um",
            3,
            True,
            (upload,),
            ("p/",),
            next_key_marker="k",
            next_upload_id_marker="u",
        )
    )

    assert body_of(document, b"ListMultipartUploadsResult") == (
        b"<Bucket>bucket</Bucket><KeyMarker>km</KeyMarker><UploadIdMarker>um</UploadIdMarker>"
        b"<NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker><Prefix></Prefix>"
        b"<MaxUploads>3</MaxUploads><Delimiter>/</Delimiter><IsTruncated>true</IsTruncated>"
        b"<Upload><Key>k</Key><UploadId>u</UploadId><Initiator><ID>id</ID><DisplayName>name</DisplayName></Initiator>"
        b"<Owner><ID>id</ID><DisplayName>name</DisplayName></Owner><StorageClass>STANDARD</StorageClass>"
        b"<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>"
        b"<Initiated>2013-05-24T00:00:00.000Z</Initiated></Upload>"
        b"<CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>"
    )


def test_list_parts() -> None:
    """Parts with their checksums, in AWS's order."""
    upload = out.UploadEntry("k<", "u", 0.0)
    parts = (out.PartEntry(7, 5, "e7", DATE_S, (CRC,)),)
    document = out.list_parts(out.PartsPage(upload, "bucket", 6, 1, True, parts, next_part_number_marker=7))

    assert body_of(document, b"ListPartsResult") == (
        b"<Bucket>bucket</Bucket><Key>k&lt;</Key><UploadId>u</UploadId><StorageClass>STANDARD</StorageClass>"
        b"<PartNumberMarker>6</PartNumberMarker><NextPartNumberMarker>7</NextPartNumberMarker><MaxParts>1</MaxParts>"
        b"<IsTruncated>true</IsTruncated><Part><PartNumber>7</PartNumber>"
        b"<LastModified>2013-05-24T00:00:00.000Z</LastModified><ETag>&quot;e7&quot;</ETag><Size>5</Size>"
        b"<ChecksumCRC32>AAAAAA==</ChecksumCRC32></Part>"
    )


def test_initiate_upload() -> None:
    """The upload id goes to the client."""
    assert body_of(out.initiate_upload("b", "k&", "u"), b"InitiateMultipartUploadResult") == (
        b"<Bucket>b</Bucket><Key>k&amp;</Key><UploadId>u</UploadId>"
    )


def test_complete_upload() -> None:
    """ETag in quotes, checksum and its type."""
    document = out.complete_upload(
        location="http://h/b/k", bucket="b", key="k", etag="e-2", checksums=(COMPOSITE,)
    )

    assert body_of(document, b"CompleteMultipartUploadResult") == (
        b"<Location>http://h/b/k</Location><Bucket>b</Bucket><Key>k</Key><ETag>&quot;e-2&quot;</ETag>"
        b"<ChecksumSHA256>abc=-2</ChecksumSHA256><ChecksumType>COMPOSITE</ChecksumType>"
    )


def test_copy_results() -> None:
    """An object's copy has a checksum type, a part's has none (B23: the ETag is in quotes)."""
    common = (
        b"<LastModified>2013-05-24T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
        b"<ChecksumCRC32>AAAAAA==</ChecksumCRC32>"
    )

    copied = body_of(out.copy_object_result("e", DATE_S, (CRC,)), b"CopyObjectResult")
    part = body_of(out.copy_part_result("e", DATE_S, (CRC,)), b"CopyPartResult")

    assert copied == common + b"<ChecksumType>FULL_OBJECT</ChecksumType>"
    assert part == common


def test_delete_result() -> None:
    """What was deleted and what was not, each under its key (B29)."""
    document = out.delete_result(
        [
            out.DeletedEntry("a<"),
            out.DeletedEntry("b", "v1", is_delete_marker=True, delete_marker_version_id="v2"),
        ],
        [out.DeleteFailure("c", "AccessDenied", "No & no", "v3")],
    )

    assert body_of(document, b"DeleteResult") == (
        b"<Deleted><Key>a&lt;</Key></Deleted><Deleted><Key>b</Key><VersionId>v1</VersionId>"
        b"<DeleteMarker>true</DeleteMarker><DeleteMarkerVersionId>v2</DeleteMarkerVersionId></Deleted>"
        b"<Error><Key>c</Key><VersionId>v3</VersionId><Code>AccessDenied</Code><Message>No &amp; no</Message></Error>"
    )


def test_botocore_reads_a_listing() -> None:
    """boto3 sees the entries with their types."""
    document = out.list_objects_v2(
        out.ObjectsPageV2("bucket", "", "/", 2, (ENTRY,), ("p/",), next_continuation_token="t")
    )

    parsed = read_by_botocore("ListObjectsV2", document)

    assert parsed.startswith(
        "{'IsTruncated': True, 'Contents': [{'Key': 'a&b/c', 'LastModified': datetime.datetime("
    )
    assert parsed.endswith(
        "'ETag': '\"0123\"', 'Size': 12, 'StorageClass': 'STANDARD'}], 'Name': 'bucket', 'Prefix': '', "
        "'Delimiter': '/', 'MaxKeys': 2, 'CommonPrefixes': [{'Prefix': 'p/'}], 'KeyCount': 2, "
        "'NextContinuationToken': 't'}"
    )


UPLOAD = out.UploadEntry("k", "u", 0.0)


@pytest.mark.parametrize(
    ("operation", "document", "part"),
    [
        (
            "ListParts",
            out.list_parts(out.PartsPage(UPLOAD, "b", 0, 1, False, (out.PartEntry(1, 5, "e", 0, (CRC,)),))),
            "'Size': 5, 'ChecksumCRC32': 'AAAAAA=='",
        ),
        (
            "ListMultipartUploads",
            out.list_uploads(out.UploadsPage("b", "", "", "", "", 1, False, (UPLOAD,), ())),
            "'Uploads': [{'UploadId': 'u', 'Key': 'k'",
        ),
        (
            "CreateMultipartUpload",
            out.initiate_upload("b", "k", "u"),
            "{'Bucket': 'b', 'Key': 'k', 'UploadId': 'u'}",
        ),
        (
            "CompleteMultipartUpload",
            out.complete_upload(location="l", bucket="b", key="k", etag="e", checksums=(CRC,)),
            "'ChecksumCRC32': 'AAAAAA==', 'ChecksumType': 'FULL_OBJECT'",
        ),
        ("ListBuckets", out.list_buckets(OWNER, [out.BucketEntry("one", 0.0)]), "'Buckets': [{'Name': 'one'"),
        ("DeleteObjects", out.delete_result([out.DeletedEntry("a")], []), "{'Deleted': [{'Key': 'a'}]}"),
        ("CopyObject", out.copy_object_result("e", 0, (CRC,)), "'ETag': '\"e\"'"),
    ],
)
def test_botocore_reads_each_document(operation: str, document: bytes, part: str) -> None:
    """boto3 finds in each document what its users ask for."""
    assert part in read_by_botocore(operation, document)
