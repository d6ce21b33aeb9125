"""The documents that clients send: read as meant, or refused whole."""

import pytest
from hypothesis import given, strategies as st

from gateway.s3 import documents_in as doc
from gateway.s3.documents_out import escape
from gateway.s3.errors import S3Error
from storage.types import Checksum, ChecksumAlgorithm

NS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
KEYS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), min_size=1, max_size=30
)


def delete(inner: str) -> bytes:
    """Make a DeleteObjects document."""
    return f"<Delete {NS}>{inner}</Delete>".encode()


def complete(inner: str) -> bytes:
    """Make a CompleteMultipartUpload document."""
    return f"<CompleteMultipartUpload {NS}>{inner}</CompleteMultipartUpload>".encode()


PART = "<Part><PartNumber>1</PartNumber><ETag>e</ETag></Part>"
OBJECT = "<Object><Key>k</Key></Object>"


def test_delete_when_plain() -> None:
    """Keys come in order, with their escapes undone (B29)."""
    actual = doc.parse_delete(
        b'<?xml version="1.0" encoding="UTF-8"?>\n'
        + delete(
            "\n <Object><Key>a&amp;b</Key></Object>\n <Object><Key> c\n</Key><VersionId></VersionId></Object>\n"
        )
    )

    assert actual == doc.DeleteRequest(
        (doc.ObjectToDelete("a&b"), doc.ObjectToDelete(" c\n")), is_quiet=False
    )
    assert all(entry.is_plain for entry in actual.objects)


def test_delete_when_conditional() -> None:
    """Versions and conditions are kept, so that none can be overlooked."""
    actual = doc.parse_delete(
        delete(
            '<Object><Key>a</Key><VersionId>null</VersionId></Object><Object><Key>b</Key><ETag>"e"</ETag>'
            "<LastModifiedTime>2026</LastModifiedTime><Size>7</Size></Object>"
        )
    )

    assert actual.objects == (
        doc.ObjectToDelete("a", "null"),
        doc.ObjectToDelete("b", None, '"e"', "2026", "7"),
    )
    assert not any(entry.is_plain for entry in actual.objects)


@pytest.mark.parametrize(
    ("text", "is_quiet"),
    [("true", True), ("TRUE", True), ("1", True), (" true\n", True), ("false", False), ("0", False)],
)
def test_delete_when_quiet(text: str, is_quiet: bool) -> None:
    """Quiet is a boolean, before or after the objects (B29)."""
    assert doc.parse_delete(delete(f"<Quiet>{text}</Quiet>{OBJECT}")).is_quiet is is_quiet
    assert doc.parse_delete(delete(f"{OBJECT}<Quiet>{text}</Quiet>")).is_quiet is is_quiet


@pytest.mark.parametrize("root", ["<Delete>", '<Delete xmlns="urn:other">', '<s3:Delete xmlns:s3="urn:s3">'])
def test_delete_when_another_namespace(root: str) -> None:
    """Namespaces do not matter."""
    end = "</s3:Delete>" if "s3:" in root else "</Delete>"

    assert doc.parse_delete(f"{root}{OBJECT}{end}".encode()).objects == (doc.ObjectToDelete("k"),)


def test_delete_when_1000_objects() -> None:
    """A thousand objects are allowed, one more is not (B29)."""
    assert len(doc.parse_delete(delete(OBJECT * 1000)).objects) == 1000
    with pytest.raises(S3Error) as caught:
        doc.parse_delete(delete(OBJECT * 1001))
    assert caught.value.code == "MalformedXML"


@given(keys=st.lists(KEYS, min_size=1, max_size=5))
def test_delete_reads_any_key(keys: list[str]) -> None:
    """Whatever key XML can hold arrives byte for byte."""
    document = delete("".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys))

    assert [entry.key for entry in doc.parse_delete(document).objects] == keys


MALFORMED = [
    b"",
    b" ",
    b"no xml",
    b"<Delete>",
    b"\xff\xfe\x00",
    b'<?xml version="1.0" encoding="nonsense"?><Delete/>',
    b'<?xml version="1.0" encoding="utf-16"?><Delete/>',
    b"<Delete/>",
    b"<Other><Object><Key>k</Key></Object></Other>",
    b"<delete><Object><Key>k</Key></Object></delete>",
    delete(""),
    delete("text"),
    delete(f"text{OBJECT}"),
    delete("<Object/>"),
    delete("<Object>k</Object>"),
    delete("<Object><Key/></Object>"),
    delete("<Object><Key><b>k</b></Key></Object>"),
    delete("<Object><Key>k</Key><Key>l</Key></Object>"),
    delete("<Object><Key>k</Key><IfSomething>1</IfSomething></Object>"),
    delete(f"{OBJECT}<Unknown/>"),
    delete(f"{OBJECT}<Quiet>maybe</Quiet>"),
    delete(f"{OBJECT}<Quiet>true</Quiet><Quiet>false</Quiet>"),
    delete(f"{OBJECT}") + b"<Delete/>",
    delete("<Object><Key>&nothing;</Key></Object>"),
    delete("<Object><Key>\x01</Key></Object>"),
    b"<!DOCTYPE Delete>" + delete(OBJECT),
    b'<!DOCTYPE Delete [<!ENTITY a "aaaa">]>' + delete("<Object><Key>&a;</Key></Object>"),
    b'<!DOCTYPE Delete [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    + delete("<Object><Key>&a;</Key></Object>"),
    b"<Delete>" + b"<a>" * 100_000,
    delete("<a/>" * 100_000),
]


@pytest.mark.slow
@pytest.mark.parametrize("document", MALFORMED, ids=range(len(MALFORMED)))
def test_delete_when_malformed(document: bytes) -> None:
    """Anything that is not of the schema deletes nothing (B29)."""
    with pytest.raises(S3Error) as caught:
        doc.parse_delete(document)

    assert (caught.value.code, caught.value.status) == ("MalformedXML", 400)


def test_document_when_too_long() -> None:
    """Size is bounded before anything is read."""
    with pytest.raises(S3Error) as caught:
        doc.parse_delete(b" " * (doc.DOCUMENT_BYTES_MAX + 1))

    assert caught.value.code == "MaxMessageLengthExceeded"


def test_complete_when_parts() -> None:
    """Parts come in the order sent, ETags without quotes, checksums with them (B19)."""
    actual = doc.parse_complete(
        complete(
            '<Part><PartNumber>7</PartNumber><ETag>"e7"</ETag></Part>'
            "<Part><ETag>&quot;e2&quot;</ETag><ChecksumCRC32>AAAAAA==</ChecksumCRC32><PartNumber> 2 </PartNumber>"
            "<ChecksumSHA256>abc=</ChecksumSHA256></Part>"
        )
    )

    assert actual == (
        doc.PartToComplete(7, "e7"),
        doc.PartToComplete(
            2,
            "e2",
            (Checksum(ChecksumAlgorithm.CRC32, "AAAAAA=="), Checksum(ChecksumAlgorithm.SHA256, "abc=")),
        ),
    )


@pytest.mark.slow
def test_complete_when_10000_parts() -> None:
    """The most parts that an upload can have are read, one more is refused."""
    assert len(doc.parse_complete(complete(PART * 10_000))) == 10_000
    with pytest.raises(S3Error) as caught:
        doc.parse_complete(complete(PART * 10_001))
    assert caught.value.code == "MalformedXML"


@pytest.mark.parametrize(
    ("inner", "code"),
    [
        ("", "MalformedXML"),
        ("<Parts/>", "MalformedXML"),
        ("<Part><ETag>e</ETag></Part>", "MalformedXML"),
        ("<Part><PartNumber>1</PartNumber></Part>", "MalformedXML"),
        ('<Part><PartNumber>1</PartNumber><ETag>""</ETag></Part>', "MalformedXML"),
        ("<Part><PartNumber>one</PartNumber><ETag>e</ETag></Part>", "MalformedXML"),
        ("<Part><PartNumber>-1</PartNumber><ETag>e</ETag></Part>", "MalformedXML"),
        (f"<Part><PartNumber>{'1' * 5000}</PartNumber><ETag>e</ETag></Part>", "MalformedXML"),
        ("<Part><PartNumber>0</PartNumber><ETag>e</ETag></Part>", "InvalidPart"),
        ("<Part><PartNumber>10001</PartNumber><ETag>e</ETag></Part>", "InvalidPart"),
        ("<Part><PartNumber>1</PartNumber><ETag>e</ETag><Size>1</Size></Part>", "MalformedXML"),
        (
            "<Part><PartNumber>1</PartNumber><ETag>e</ETag><ChecksumXXHASH64>1</ChecksumXXHASH64></Part>",
            "NotImplemented",
        ),
    ],
)
def test_complete_when_refused(inner: str, code: str) -> None:
    """A list that cannot be meant completes nothing (B19)."""
    with pytest.raises(S3Error) as caught:
        doc.parse_complete(complete(inner))

    assert caught.value.code == code


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"", doc.BucketConfiguration()),
        (b" \n", doc.BucketConfiguration()),
        (b"<CreateBucketConfiguration/>", doc.BucketConfiguration()),
        (
            f"<CreateBucketConfiguration {NS}><LocationConstraint> eu-north-1\n</LocationConstraint>"
            "</CreateBucketConfiguration>".encode(),
            doc.BucketConfiguration("eu-north-1"),
        ),
        (
            b"<CreateBucketConfiguration><Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags></CreateBucketConfiguration>",
            doc.BucketConfiguration("", is_plain=False),
        ),
    ],
)
def test_bucket_configuration(document: bytes, expected: doc.BucketConfiguration) -> None:
    """The location is read; whatever more there is shows."""
    assert doc.parse_bucket_configuration(document) == expected


@pytest.mark.parametrize(
    "document",
    [
        b"x",
        b"<Other/>",
        b"<CreateBucketConfiguration><Unknown/></CreateBucketConfiguration>",
        b"<CreateBucketConfiguration><LocationConstraint><a/></LocationConstraint></CreateBucketConfiguration>",
    ],
)
def test_bucket_configuration_when_malformed(document: bytes) -> None:
    """What is not of the schema creates nothing."""
    with pytest.raises(S3Error) as caught:
        doc.parse_bucket_configuration(document)

    assert caught.value.code == "MalformedXML"


PIECES = st.sampled_from(
    [
        "<Delete>",
        "</Delete>",
        OBJECT,
        PART,
        "<Object>",
        "</Object>",
        "<Key>",
        "</Key>",
        "k",
        "&amp;",
        "<",
        "<!--",
        "-->",
        "<![CDATA[",
        "]]>",
        "<?a?>",
        "\x00",
        "ä",
        "<Quiet>true</Quiet>",
        "<!DOCTYPE a>",
    ]
)


@given(
    document=st.binary(max_size=40)
    | st.lists(PIECES, max_size=12).map(lambda pieces: "".join(pieces).encode())
)
def test_parsers_raise_only_s3_errors(document: bytes) -> None:
    """Any bytes are read or refused with an S3Error; nothing else gets out."""
    refusals = 0
    for read in (doc.parse_delete, doc.parse_complete, doc.parse_bucket_configuration):
        try:
            read(document)
        except S3Error as error:
            refusals += error.status == 400

    assert refusals >= 2, "a document is of one kind at most, or empty and good for one"
