import pytest
from hypothesis import given, strategies as st

from storage.errors import OriginUnavailableError
from storage.origin.documents import (
    DOCUMENT_BYTES_MAX,
    DeleteResult,
    ErrorDocument,
    PartToComplete,
    can_be_named,
    iso_date_s,
    parse_completed,
    parse_delete_results,
    parse_encryption,
    parse_error,
    parse_list_page,
    parse_location,
    parse_object_lock,
    parse_parts_page,
    parse_upload_id,
    parse_uploads_page,
    parse_versioning,
    write_complete,
    write_delete,
)
from storage.types import Checksum, ChecksumAlgorithm

NS = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'

LISTING = """<ListBucketResult{ns}><Name>b</Name><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
<NextContinuationToken>tok</NextContinuationToken>
<Contents><Key>a+b%2Bc/%C3%BC%0A</Key><LastModified>2015-10-21T07:28:00.123Z</LastModified><ETag>&quot;e1&quot;</ETag>
<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType><Size>5</Size></Contents>
<Contents><Key>z</Key><LastModified>2015-10-21T07:28:00Z</LastModified><ETag>"e2"</ETag><Size>0</Size>
<StorageClass>GLACIER</StorageClass></Contents>
<CommonPrefixes><Prefix>p+q/</Prefix></CommonPrefixes></ListBucketResult>"""


@pytest.mark.parametrize("namespace", [NS, ""])
def test_listing_is_read_with_keys_decoded(namespace: str) -> None:
    """Keys come back as text, with and without a namespace; `+` is a blank and `%2B` a plus."""
    page = parse_list_page((HEAD + LISTING.format(ns=namespace)).encode())

    first, second = page.objects
    assert (first.key, first.size, first.etag, first.last_modified_s) == ("a b+c/ü\n", 5, "e1", 1445412480)
    assert (first.storage_class, first.checksum_algorithms, first.checksum_type) == (
        "STANDARD",
        ("CRC32",),
        "FULL_OBJECT",
    )
    assert (second.key, second.storage_class) == ("z", "GLACIER")
    assert (page.prefixes, page.is_truncated, page.next_token) == (("p q/",), True, "tok")


def test_listing_without_encoding_is_read_as_it_is() -> None:
    """An origin that does not encode keys is not decoded."""
    page = parse_list_page(
        b"<ListBucketResult><Contents><Key>a+%20</Key><Size>1</Size></Contents></ListBucketResult>"
    )

    assert page.objects[0].key == "a+%20"
    assert page.is_truncated is False


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>login</html>",
        b"<ListBucketResult>",
        b"<ListBucketResult><Contents><Key>a</Key><Size>x</Size></Contents></ListBucketResult>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><ListBucketResult/>',
        b"<Error><Code>SlowDown</Code></Error>",
        b" " * (DOCUMENT_BYTES_MAX + 1),
    ],
)
def test_what_is_no_listing_is_refused(body: bytes) -> None:
    """Not XML, another document, a DTD, a wrong number, too long: BadAnswer, never half a page."""
    with pytest.raises(OriginUnavailableError) as refused:
        parse_list_page(body)

    assert refused.value.code == "BadAnswer"


def test_error_is_found_behind_white_space() -> None:
    """A 200 that was kept alive with blanks still shows its error."""
    body = b"\n  \r\n" + (HEAD + "<Error><Code>InternalError</Code><Message>m</Message></Error>").encode()

    assert parse_error(body) == ErrorDocument("InternalError", "m")


def test_error_names_the_region() -> None:
    """AuthorizationHeaderMalformed tells the region in its document."""
    body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"

    assert parse_error(body) == ErrorDocument("AuthorizationHeaderMalformed", region="eu-west-1")


@pytest.mark.parametrize("body", [b"", b"busy", b"<html/>", b"<CopyObjectResult/>"])
def test_other_bodies_are_no_errors(body: bytes) -> None:
    """What is not an error document is not taken for one."""
    assert parse_error(body) is None


@pytest.mark.parametrize("name", ["CompleteMultipartUploadResult", "CopyObjectResult", "CopyPartResult"])
def test_result_has_etag_and_checksums(name: str) -> None:
    """Complete and both copies say what they made."""
    body = f" {HEAD}<{name}{NS}><ETag>&quot;e-2&quot;</ETag><ChecksumCRC32>AA==</ChecksumCRC32></{name}>".encode()

    made = parse_completed(body)

    assert made.etag == "e-2"
    assert made.checksums == (Checksum(ChecksumAlgorithm.CRC32, "AA=="),)


def test_result_without_etag_is_refused() -> None:
    """A 200 that does not say what was made is no success."""
    with pytest.raises(OriginUnavailableError):
        parse_completed(b"<CompleteMultipartUploadResult/>")


def test_upload_id_is_read_or_refused() -> None:
    """No upload id, no upload."""
    body = f"<InitiateMultipartUploadResult{NS}><UploadId>u/1</UploadId></InitiateMultipartUploadResult>".encode()

    assert parse_upload_id(body) == "u/1"
    with pytest.raises(OriginUnavailableError):
        parse_upload_id(b"<InitiateMultipartUploadResult/>")


def test_delete_results_keep_each_line() -> None:
    """Each key is settled by its own line."""
    body = (
        f"<DeleteResult{NS}><Deleted><Key>a</Key></Deleted>"
        "<Error><Key>b</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    ).encode()

    assert parse_delete_results(body) == (DeleteResult("a"), DeleteResult("b", "AccessDenied", "no"))


def test_delete_of_what_is_not_there_is_a_success_in_its_line() -> None:
    """Where S3 says Deleted some origins say NoSuchKey, which is what was wanted."""
    body = b"<DeleteResult><Error><Key>a</Key><Code>NoSuchKey</Code></Error></DeleteResult>"

    assert [(result.key, result.code) for result in parse_delete_results(body)] == [("a", "")]


@pytest.mark.parametrize("root", ["ListPartsResult", "ListPartsResponse"])
def test_parts_page_is_read(root: str) -> None:
    """Parts come with number, size and ETag, and the marker to go on."""
    body = (
        f"<{root}{NS}><IsTruncated>true</IsTruncated><NextPartNumberMarker>2</NextPartNumberMarker>"
        f"<Part><PartNumber>2</PartNumber><Size>7</Size><ETag>&quot;e&quot;</ETag></Part></{root}>"
    ).encode()

    page = parse_parts_page(body)

    assert (page.is_truncated, page.next_marker) == (True, 2)
    assert [(part.number, part.size, part.etag) for part in page.parts] == [(2, 7, "e")]


def test_uploads_page_is_read() -> None:
    """Open uploads come with decoded keys and both markers."""
    body = (
        f"<ListMultipartUploadsResult{NS}><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
        "<NextKeyMarker>a+b</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>"
        "<Upload><Key>a+b</Key><UploadId>u</UploadId><Initiated>2015-10-21T07:28:00.000Z</Initiated></Upload>"
        "</ListMultipartUploadsResult>"
    ).encode()

    page = parse_uploads_page(body)

    assert [(u.key, u.upload_id, u.initiated_s) for u in page.uploads] == [("a b", "u", 1445412480)]
    assert (page.next_key_marker, page.next_upload_id_marker) == ("a b", "u")


def test_configuration_documents_are_read() -> None:
    """Versioning, encryption, lock and location say what facts need; empty documents mean the default."""
    default = "<ApplyServerSideEncryptionByDefault><SSEAlgorithm>aws:kms</SSEAlgorithm></ApplyServerSideEncryptionByDefault>"
    encryption = (
        f"<ServerSideEncryptionConfiguration{NS}><Rule>{default}</Rule></ServerSideEncryptionConfiguration>"
    )
    lock = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>"

    assert (
        parse_versioning(b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>")
        == "Enabled"
    )
    assert parse_versioning(f"<VersioningConfiguration{NS}/>".encode()) == ""
    assert parse_encryption(encryption.encode()) == "aws:kms"
    assert parse_object_lock(lock.encode()) is True
    assert (
        parse_location(f"<LocationConstraint{NS}>eu-central-1</LocationConstraint>".encode())
        == "eu-central-1"
    )
    assert parse_location(b"<LocationConstraint/>") == "us-east-1"
    assert parse_location(b"<LocationConstraint>EU</LocationConstraint>") == "eu-west-1"


def test_complete_request_is_written() -> None:
    """Each part names its number, quoted ETag and checksums."""
    parts = (PartToComplete(1, "e1", (Checksum(ChecksumAlgorithm.CRC32, "AA=="),)), PartToComplete(3, "e3"))

    assert (
        write_complete(parts)
        == (
            f"<CompleteMultipartUpload{NS}>"
            "<Part><PartNumber>1</PartNumber><ETag>&quot;e1&quot;</ETag><ChecksumCRC32>AA==</ChecksumCRC32></Part>"
            "<Part><PartNumber>3</PartNumber><ETag>&quot;e3&quot;</ETag></Part></CompleteMultipartUpload>"
        ).encode()
    )


@pytest.mark.slow
@given(st.lists(st.text(min_size=1).filter(can_be_named), min_size=1, max_size=5))
def test_delete_request_survives_the_way(keys: list[str]) -> None:
    """Every key that XML can carry arrives as it is, line ends and markup included."""
    echoed = (
        write_delete(tuple(keys))
        .replace(b"<Delete ", b"<DeleteResult ")
        .replace(b"</Delete>", b"</DeleteResult>")
    )
    echoed = echoed.replace(b"<Object>", b"<Deleted>").replace(b"</Object>", b"</Deleted>")

    assert [result.key for result in parse_delete_results(echoed)] == keys


@pytest.mark.parametrize(
    ("key", "can"),
    [("a\n\r\t&<ü", True), ("a\x00", False), ("\x1f", False), ("\ud800", False), ("\uffff", False)],
)
def test_keys_that_xml_cannot_carry_are_known(key: str, can: bool) -> None:
    """Control characters and lone surrogates have no form in XML 1.0."""
    assert can_be_named(key) is can


@pytest.mark.parametrize("text", ["", "2015-10-21", "2015-10-21T07:28:00", "20x5-10-21T07:28:00Z"])
def test_what_is_no_date_is_zero(text: str) -> None:
    """A listing without a usable date still lists."""
    assert iso_date_s(text) == 0


@pytest.mark.parametrize(
    "text",
    ["0000-10-21T07:28:00Z", "2015-13-21T07:28:00Z", "2015-10-32T07:28:00Z", "2015-10-21T25:28:00Z"],
)
def test_date_is_zero_when_there_is_no_such_time(text: str) -> None:
    """A date that no calendar has counts as not told."""
    assert iso_date_s(text) == 0


@pytest.mark.parametrize("digits", ["9" * 19, "1" * 4301])
def test_document_is_bad_when_a_number_in_it_is_no_size(digits: str) -> None:
    """A number that no object can have is a wrong answer, not an error of ours."""
    body = f"<ListBucketResult><Contents><Key>a</Key><Size>{digits}</Size></Contents></ListBucketResult>"

    with pytest.raises(OriginUnavailableError) as refused:
        parse_list_page(body.encode())

    assert refused.value.code == "BadAnswer"


def test_result_has_no_control_characters_when_the_document_has() -> None:
    """What becomes a header of ours later can stand in one."""
    body = b"<CopyObjectResult><ETag>a\n\tb</ETag><ChecksumCRC32>AA\n==</ChecksumCRC32></CopyObjectResult>"

    completed = parse_completed(body)

    assert (completed.etag, completed.checksums[0].value) == ("a\tb", "AA==")
