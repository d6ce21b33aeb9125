"""The origin's XML: read answers, write requests.

Pure. Documents are read whole, with a bound, by a parser that refuses DTDs and entities. Names are matched without their
namespace: some origins give none. An error may come with status 200 behind white space that kept the connection open (AWS
API_CompleteMultipartUpload, API_CopyObject), so every reader of a result looks for it first.
"""

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_plus
from xml.sax.saxutils import escape

import msgspec
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from storage.errors import OriginUnavailableError
from storage.origin.wire import bad_answer, kept_text, number, unquote_etag, utc_s
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element  # noqa: TID251 - the type of what defusedxml returns

DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""1000 keys of 1024 bytes, percent-encoded, with their prefixes and fields, are under 8 MiB."""

ERROR_BYTES_MAX: Final = 64 * 1024
DELETE_KEYS_MAX: Final = 1000
"""AWS API_DeleteObjects."""

_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
_XML_UNSAFE: Final = frozenset(chr(c) for c in range(32) if chr(c) not in "\t\n\r") | {"\ufffe", "\uffff"}
_ESCAPES: Final = {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}


class ErrorDocument(msgspec.Struct, frozen=True, gc=False):
    """An S3 error document; absent fields are ""."""

    code: str
    message: str = ""
    region: str = ""
    endpoint: str = ""


class ListedObject(msgspec.Struct, frozen=True, gc=False):
    """One entry of a listing. `last_modified_s` is in whole seconds, as HTTP dates are."""

    key: str
    size: int
    etag: str
    last_modified_s: int
    storage_class: str = "STANDARD"
    checksum_algorithms: tuple[str, ...] = ()
    checksum_type: str = ""
    owner_id: str = ""
    owner_display_name: str = ""


class PageRequest(msgspec.Struct, frozen=True):
    """What ListObjectsV2 is asked for (AWS API_ListObjectsV2): one page of a listing, keys as text.

    Attributes:
        delimiter: "" lists keys only.
        start_after: Not sent where `token` is set.
        token: The continuation token of the page before.
        with_owner: Whether the owners of the objects are to be told.
    """

    bucket: str
    prefix: str = ""
    delimiter: str = ""
    start_after: str = ""
    token: str = ""
    max_keys: int = 1000
    with_owner: bool = False


class ListPage(msgspec.Struct, frozen=True):
    """One page of ListObjectsV2, keys decoded, in the origin's order."""

    objects: tuple[ListedObject, ...]
    prefixes: tuple[str, ...]
    is_truncated: bool
    next_token: str = ""


class CompletedObject(msgspec.Struct, frozen=True, gc=False):
    """What CompleteMultipartUpload, CopyObject or UploadPartCopy made."""

    etag: str
    checksums: tuple[Checksum, ...] = ()
    last_modified_s: int = 0


MAY_LAND: Final = "MayLand"
"""Code of a delete that succeeded, and of which an earlier attempt may yet take effect; not S3's."""


class DeleteResult(msgspec.Struct, frozen=True, gc=False):
    """How one key of a batch delete ended; `code` is "" for a success."""

    key: str
    code: str = ""
    message: str = ""


class ListedPart(msgspec.Struct, frozen=True, gc=False):
    """One part of an open upload at the origin."""

    number: int
    size: int
    etag: str
    last_modified_s: int
    checksums: tuple[Checksum, ...] = ()


class PartsPage(msgspec.Struct, frozen=True):
    """One page of ListParts; ask on with `next_marker` where truncated. What the upload is has "" where not told."""

    parts: tuple[ListedPart, ...]
    is_truncated: bool
    next_marker: int
    storage_class: str = ""
    checksum_algorithm: str = ""
    checksum_type: str = ""


class ListedUpload(msgspec.Struct, frozen=True, gc=False):
    """One open upload at the origin."""

    key: str
    upload_id: str
    initiated_s: int
    storage_class: str = "STANDARD"


class UploadsPage(msgspec.Struct, frozen=True):
    """One page of ListMultipartUploads; ask on with both markers where truncated."""

    uploads: tuple[ListedUpload, ...]
    prefixes: tuple[str, ...]
    is_truncated: bool
    next_key_marker: str
    next_upload_id_marker: str


class PartToComplete(msgspec.Struct, frozen=True, gc=False):
    """One line of a CompleteMultipartUpload request."""

    number: int
    etag: str
    checksums: tuple[Checksum, ...] = ()


# --- Errors ------------------------------------------------------------------------------------------------------------


def parse_error(body: bytes) -> ErrorDocument | None:
    """Read an error document; None where the body is something else. White space before it is allowed."""
    if not body:
        return None
    try:
        root = _parse(body)
    except OriginUnavailableError:
        return None
    if _local(root) != "Error":
        return None
    return ErrorDocument(
        _text(root, "Code"), _text(root, "Message"), _text(root, "Region"), _text(root, "Endpoint")
    )


def is_spoilt(body: bytes) -> bool:
    """Say whether a body begins as a document and is none: cut off, damaged, or a web page."""
    if not body.lstrip().startswith(b"<"):
        return False
    try:
        return _local(_parse(body)).lower() == "html"
    except OriginUnavailableError:
        return True


# --- Results -----------------------------------------------------------------------------------------------------------


def parse_list_page(body: bytes) -> ListPage:
    """Read a ListObjectsV2 result.

    Raises:
        OriginUnavailableError: Code BadAnswer, the document is not one.
    """
    root = _expect(body, "ListBucketResult")
    is_encoded = _text(root, "EncodingType").lower() == "url"
    return ListPage(
        objects=tuple(_listed_object(entry, is_encoded=is_encoded) for entry in _children(root, "Contents")),
        prefixes=_prefixes(root, is_encoded=is_encoded),
        is_truncated=_text(root, "IsTruncated").lower() == "true",
        next_token=_text(root, "NextContinuationToken"),
    )


def parse_upload_id(body: bytes) -> str:
    """Read the upload id of a CreateMultipartUpload result; BadAnswer where it is none."""
    upload_id = _text(_expect(body, "InitiateMultipartUploadResult"), "UploadId")
    if not upload_id:
        raise bad_answer("no UploadId")
    return upload_id


def parse_completed(body: bytes) -> CompletedObject:
    """Read what a Complete or copy made; BadAnswer where there is no ETag."""
    root = _expect(body, "CompleteMultipartUploadResult", "CopyObjectResult", "CopyPartResult")
    etag = unquote_etag(_text(root, "ETag"))
    if not etag:
        raise bad_answer("a result without ETag")
    return CompletedObject(etag, _checksums(root), iso_date_s(_text(root, "LastModified")))


def parse_delete_results(body: bytes) -> tuple[DeleteResult, ...]:
    """Read the lines of a DeleteObjects result, in the origin's order."""
    root = _expect(body, "DeleteResult")
    results = []
    for child in root:
        kind = _local(child)
        if kind == "Deleted":
            results.append(DeleteResult(_text(child, "Key")))
        elif kind == "Error":
            code = _text(child, "Code") or "InternalError"
            if code == "NoSuchKey":
                code = ""  # some origins say so of a key that is not there, which is what was wanted
            results.append(DeleteResult(_text(child, "Key"), code, _text(child, "Message")))
    return tuple(results)


def parse_parts_page(body: bytes) -> PartsPage:
    """Read a ListParts result; moto calls it a response, and no SDK looks."""
    root = _expect(body, "ListPartsResult", "ListPartsResponse")
    return PartsPage(
        parts=tuple(
            ListedPart(
                number=_number(part, "PartNumber"),
                size=_number(part, "Size"),
                etag=unquote_etag(_text(part, "ETag")),
                last_modified_s=iso_date_s(_text(part, "LastModified")),
                checksums=_checksums(part),
            )
            for part in _children(root, "Part")
        ),
        is_truncated=_text(root, "IsTruncated").lower() == "true",
        next_marker=_number(root, "NextPartNumberMarker", default=0),
        storage_class=kept_text(_text(root, "StorageClass")),
        checksum_algorithm=kept_text(_text(root, "ChecksumAlgorithm")),
        checksum_type=kept_text(_text(root, "ChecksumType")),
    )


def parse_uploads_page(body: bytes) -> UploadsPage:
    """Read a ListMultipartUploads result, keys decoded."""
    root = _expect(body, "ListMultipartUploadsResult")
    is_encoded = _text(root, "EncodingType").lower() == "url"
    return UploadsPage(
        uploads=tuple(
            ListedUpload(
                key=_decoded(_text(upload, "Key"), is_encoded=is_encoded),
                upload_id=_text(upload, "UploadId"),
                initiated_s=iso_date_s(_text(upload, "Initiated")),
                storage_class=_text(upload, "StorageClass") or "STANDARD",
            )
            for upload in _children(root, "Upload")
        ),
        prefixes=_prefixes(root, is_encoded=is_encoded),
        is_truncated=_text(root, "IsTruncated").lower() == "true",
        next_key_marker=_decoded(_text(root, "NextKeyMarker"), is_encoded=is_encoded),
        next_upload_id_marker=_text(root, "NextUploadIdMarker"),
    )


# --- Configuration documents ---------------------------------------------------------------------------------------------


def parse_versioning(body: bytes) -> str:
    """Read `Enabled`, `Suspended`, or "" for a bucket that never had versioning."""
    return _text(_expect(body, "VersioningConfiguration"), "Status")


def parse_encryption(body: bytes) -> str:
    """Read the default encryption: `AES256`, `aws:kms`, `aws:kms:dsse`, "" for none."""
    root = _expect(body, "ServerSideEncryptionConfiguration")
    for rule in _children(root, "Rule"):
        for default in _children(rule, "ApplyServerSideEncryptionByDefault"):
            return _text(default, "SSEAlgorithm")
    return ""


def parse_object_lock(body: bytes) -> bool:
    """Say whether the bucket has object lock."""
    return _text(_expect(body, "ObjectLockConfiguration"), "ObjectLockEnabled") == "Enabled"


def parse_location(body: bytes) -> str:
    """Read a bucket's region; the empty document is us-east-1, `EU` is eu-west-1 (AWS API_GetBucketLocation)."""
    root = _expect(body, "LocationConstraint", "GetBucketLocationOutput")
    region = (root.text or "").strip() or _text(root, "LocationConstraint")
    return {"": "us-east-1", "EU": "eu-west-1"}.get(region, region)


# --- Requests ----------------------------------------------------------------------------------------------------------


def can_be_named(key: str) -> bool:
    """Say whether XML 1.0 can carry the key; a delete of any other goes alone."""
    return not any(char in _XML_UNSAFE or "\ud800" <= char <= "\udfff" for char in key)


def write_delete(keys: tuple[str, ...]) -> bytes:
    """Write a DeleteObjects request that asks for a line of each key."""
    assert 0 < len(keys) <= DELETE_KEYS_MAX, f"{len(keys)} keys in one batch"
    lines = "".join(f"<Object><Key>{escape(key, _ESCAPES)}</Key></Object>" for key in keys)
    return f'<Delete xmlns="{_NAMESPACE}">{lines}</Delete>'.encode()


def write_complete(parts: tuple[PartToComplete, ...]) -> bytes:
    """Write a CompleteMultipartUpload request, parts in the order given."""
    lines = "".join(
        f"<Part><PartNumber>{part.number}</PartNumber><ETag>&quot;{escape(part.etag)}&quot;</ETag>"
        + "".join(
            f"<Checksum{sum_.algorithm}>{escape(sum_.value)}</Checksum{sum_.algorithm}>"
            for sum_ in part.checksums
        )
        + "</Part>"
        for part in parts
    )
    return f'<CompleteMultipartUpload xmlns="{_NAMESPACE}">{lines}</CompleteMultipartUpload>'.encode()


def iso_date_s(text: str) -> int:
    """Read `YYYY-MM-DDTHH:MM:SS[.mmm]Z` as whole seconds; 0 where it is none."""
    fields = (text[0:4], text[5:7], text[8:10], text[11:13], text[14:16], text[17:19])
    if not text.endswith("Z") or text[10:11] != "T" or not all(f.isascii() and f.isdigit() for f in fields):
        return 0
    year, month, day, hour, minute, second = map(int, fields)
    return utc_s(year, month, day, hour, minute, second)


# --- Reading elements ----------------------------------------------------------------------------------------------------


def _parse(body: bytes) -> "Element":
    if len(body) > DOCUMENT_BYTES_MAX:
        raise bad_answer(f"a document of {len(body)} bytes")
    try:
        return fromstring(body.lstrip(), forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise bad_answer(f"not XML: {error}") from error


def _expect(body: bytes, *names: str) -> "Element":
    root = _parse(body)
    if _local(root) not in names:
        raise bad_answer(f"{_local(root)} instead of {names[0]}")
    return root


def _local(element: "Element") -> str:
    return element.tag.rpartition("}")[2]


def _prefix(element: "Element") -> str:
    return element.tag[: element.tag.rfind("}") + 1]


def _text(element: "Element", name: str) -> str:
    return element.findtext(_prefix(element) + name) or ""


def _children(element: "Element", name: str) -> "list[Element]":
    return element.findall(_prefix(element) + name)


def _number(element: "Element", name: str, default: int | None = None) -> int:
    text = _text(element, name).strip()
    read = number(text)
    if read is not None:
        return read
    if default is None or text:
        raise bad_answer(f"{name} {text!r:.100}")
    return default


def _decoded(text: str, *, is_encoded: bool) -> str:
    # S3 writes a space as "+" and a plus as "%2B" under encoding-type=url.
    return unquote_plus(text, errors="surrogateescape") if is_encoded else text


def _prefixes(root: "Element", *, is_encoded: bool) -> tuple[str, ...]:
    return tuple(
        _decoded(_text(entry, "Prefix"), is_encoded=is_encoded) for entry in _children(root, "CommonPrefixes")
    )


def _listed_object(entry: "Element", *, is_encoded: bool) -> ListedObject:
    prefix = _prefix(entry)
    owner = entry.find(prefix + "Owner")
    return ListedObject(
        key=_decoded(_text(entry, "Key"), is_encoded=is_encoded),
        size=_number(entry, "Size"),
        etag=unquote_etag(_text(entry, "ETag")),
        last_modified_s=iso_date_s(_text(entry, "LastModified")),
        storage_class=_text(entry, "StorageClass") or "STANDARD",
        checksum_algorithms=tuple(found.text or "" for found in entry.findall(prefix + "ChecksumAlgorithm")),
        checksum_type=_text(entry, "ChecksumType"),
        owner_id="" if owner is None else _text(owner, "ID"),
        owner_display_name="" if owner is None else _text(owner, "DisplayName"),
    )


def _checksums(element: "Element") -> tuple[Checksum, ...]:
    told = _text(element, "ChecksumType")
    found = []
    for name in ChecksumAlgorithm:
        value = kept_text(_text(element, f"Checksum{name}"))
        if value:
            composite = told == ChecksumType.COMPOSITE or (not told and "-" in value)
            kind = ChecksumType.COMPOSITE if composite else ChecksumType.FULL_OBJECT
            found.append(Checksum(name, value, kind))
    return tuple(found)
