"""The XML documents that the gateway answers with.

Plain string building: a listing of 1000 keys is the largest document and is made on the event loop. Text is escaped as AWS
does it, control characters as `&#x1;`, which XML 1.0 forbids and S3 sends nevertheless; a client that must have well-formed
XML asks for `encoding-type=url`. ETags come without quotes and leave with them.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from urllib.parse import quote

import msgspec

from storage.types import Checksum

XML_DECLARATION: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
XML_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"

_DEFAULT_REGION: Final = "us-east-1"
_NAMED: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
# A carriage return would come out of a parser as a line feed.
_SPECIAL: Final = re.compile('[&<>"\x00-\x08\x0b-\x1f\x7f\ufffe\uffff]')


class Owner(msgspec.Struct, frozen=True, gc=False):
    """Who owns a bucket, object or upload. The name is left out where it is ""."""

    id: str
    display_name: str = ""


class BucketEntry(msgspec.Struct, frozen=True, gc=False):
    """One line of ListBuckets."""

    name: str
    created_s: float
    region: str = ""


class ObjectEntry(msgspec.Struct, frozen=True, gc=False):
    """One object of a listing. `checksum_type` is "" where there is no checksum; `owner` None where not asked for."""

    key: str
    size: int
    etag: str
    last_modified_s: int
    storage_class: str = "STANDARD"
    checksum_algorithms: tuple[str, ...] = ()
    checksum_type: str = ""
    owner: Owner | None = None


class ObjectsPage(msgspec.Struct, frozen=True, gc=False):
    """A page of ListObjects, version 1. `next_marker` is "" where the last key says the same."""

    bucket: str
    prefix: str
    delimiter: str
    marker: str
    max_keys: int
    is_truncated: bool
    entries: tuple[ObjectEntry, ...]
    common_prefixes: tuple[str, ...]
    next_marker: str = ""
    is_url_encoded: bool = False


class ObjectsPageV2(msgspec.Struct, frozen=True, gc=False):
    """A page of ListObjectsV2, truncated exactly if there is a next token, "" for none; the request's is None where it had none."""

    bucket: str
    prefix: str
    delimiter: str
    max_keys: int
    entries: tuple[ObjectEntry, ...]
    common_prefixes: tuple[str, ...]
    start_after: str = ""
    continuation_token: str | None = None
    next_continuation_token: str = ""
    is_url_encoded: bool = False


class UploadEntry(msgspec.Struct, frozen=True, gc=False):
    """One upload of ListMultipartUploads."""

    key: str
    upload_id: str
    initiated_s: float
    storage_class: str = "STANDARD"
    checksum_algorithm: str = ""
    checksum_type: str = ""
    owner: Owner | None = None


class UploadsPage(msgspec.Struct, frozen=True, gc=False):
    """A page of ListMultipartUploads."""

    bucket: str
    prefix: str
    delimiter: str
    key_marker: str
    upload_id_marker: str
    max_uploads: int
    is_truncated: bool
    entries: tuple[UploadEntry, ...]
    common_prefixes: tuple[str, ...]
    next_key_marker: str = ""
    next_upload_id_marker: str = ""
    is_url_encoded: bool = False


class PartEntry(msgspec.Struct, frozen=True, gc=False):
    """One part of ListParts."""

    number: int
    size: int
    etag: str
    last_modified_s: int
    checksums: tuple[Checksum, ...] = ()


class PartsPage(msgspec.Struct, frozen=True, gc=False):
    """A page of ListParts."""

    upload: UploadEntry
    bucket: str
    part_number_marker: int
    max_parts: int
    is_truncated: bool
    entries: tuple[PartEntry, ...]
    next_part_number_marker: int = 0


class DeletedEntry(msgspec.Struct, frozen=True, gc=False):
    """A key that DeleteObjects deleted, or found absent. Version ids are "" in an unversioned bucket."""

    key: str
    version_id: str = ""
    is_delete_marker: bool = False
    delete_marker_version_id: str = ""


class DeleteFailure(msgspec.Struct, frozen=True, gc=False):
    """A key that DeleteObjects could not delete."""

    key: str
    code: str
    message: str
    version_id: str = ""


def escape(text: str) -> str:
    """Make text safe between tags and in attributes."""
    if _SPECIAL.search(text) is None:
        return text
    return _SPECIAL.sub(_escape_character, text)


def url_encode(text: str) -> str:
    """Encode a key as `encoding-type=url` asks for.

    A blank becomes `%20`, not AWS's `+`: clients decode both, and some only the first.
    """
    return quote(text, safe="/-._~", errors="surrogateescape")


@lru_cache(maxsize=4096)
def iso_time(wall_s: int) -> str:
    """Write whole seconds since the epoch as S3's documents do: `2013-05-24T00:00:00.000Z`."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def list_buckets(
    owner: Owner, buckets: Sequence[BucketEntry], *, prefix: str = "", continuation_token: str = ""
) -> bytes:
    """Write ListAllMyBucketsResult; `continuation_token` leads to the next page, "" at the end."""
    lines = [
        f"<Bucket><Name>{escape(bucket.name)}</Name><CreationDate>{iso_time(int(bucket.created_s))}</CreationDate>"
        f"{_optional('BucketRegion', escape(bucket.region))}</Bucket>"
        for bucket in buckets
    ]
    return _document(
        "ListAllMyBucketsResult",
        f"{_owner('Owner', owner)}<Buckets>{''.join(lines)}</Buckets>{_optional('Prefix', escape(prefix))}"
        f"{_optional('ContinuationToken', escape(continuation_token))}",
    )


def location_constraint(region: str) -> bytes:
    """Write GetBucketLocation's answer; us-east-1 is the empty one."""
    return _document("LocationConstraint", "" if region == _DEFAULT_REGION else escape(region))


def list_objects(page: ObjectsPage) -> bytes:
    """Write a page of ListObjects, version 1."""
    text = url_encode if page.is_url_encoded else escape
    return _document(
        "ListBucketResult",
        f"<Name>{escape(page.bucket)}</Name><Prefix>{text(page.prefix)}</Prefix><Marker>{text(page.marker)}</Marker>"
        f"{_optional('NextMarker', text(page.next_marker))}<MaxKeys>{page.max_keys}</MaxKeys>"
        f"{_listing_tail(page.delimiter, page.is_truncated, is_url_encoded=page.is_url_encoded)}"
        f"{_contents(page.entries, is_url_encoded=page.is_url_encoded)}"
        f"{_common_prefixes(page.common_prefixes, is_url_encoded=page.is_url_encoded)}",
    )


def list_objects_v2(page: ObjectsPageV2) -> bytes:
    """Write a page of ListObjectsV2."""
    text = url_encode if page.is_url_encoded else escape
    return _document(
        "ListBucketResult",
        f"<Name>{escape(page.bucket)}</Name><Prefix>{text(page.prefix)}</Prefix>"
        f"{_optional('StartAfter', text(page.start_after))}"
        f"{_continuation_token(page.continuation_token)}"
        f"{_optional('NextContinuationToken', escape(page.next_continuation_token))}"
        f"<KeyCount>{len(page.entries) + len(page.common_prefixes)}</KeyCount><MaxKeys>{page.max_keys}</MaxKeys>"
        f"{_listing_tail(page.delimiter, bool(page.next_continuation_token), is_url_encoded=page.is_url_encoded)}"
        f"{_contents(page.entries, is_url_encoded=page.is_url_encoded)}"
        f"{_common_prefixes(page.common_prefixes, is_url_encoded=page.is_url_encoded)}",
    )


def list_uploads(page: UploadsPage) -> bytes:
    """Write a page of ListMultipartUploads."""
    text = url_encode if page.is_url_encoded else escape
    uploads = [
        f"<Upload><Key>{text(upload.key)}</Key><UploadId>{escape(upload.upload_id)}</UploadId>"
        f"{_upload_facts(upload)}<Initiated>{iso_time(int(upload.initiated_s))}</Initiated></Upload>"
        for upload in page.entries
    ]
    return _document(
        "ListMultipartUploadsResult",
        f"<Bucket>{escape(page.bucket)}</Bucket><KeyMarker>{text(page.key_marker)}</KeyMarker>"
        f"<UploadIdMarker>{escape(page.upload_id_marker)}</UploadIdMarker>"
        f"{_optional('NextKeyMarker', text(page.next_key_marker))}"
        f"{_optional('NextUploadIdMarker', escape(page.next_upload_id_marker))}"
        f"<Prefix>{text(page.prefix)}</Prefix><MaxUploads>{page.max_uploads}</MaxUploads>"
        f"{_listing_tail(page.delimiter, page.is_truncated, is_url_encoded=page.is_url_encoded)}"
        f"{''.join(uploads)}{_common_prefixes(page.common_prefixes, is_url_encoded=page.is_url_encoded)}",
    )


def list_parts(page: PartsPage) -> bytes:
    """Write a page of ListParts."""
    parts = [
        f"<Part><PartNumber>{part.number}</PartNumber><LastModified>{iso_time(part.last_modified_s)}</LastModified>"
        f"<ETag>&quot;{escape(part.etag)}&quot;</ETag><Size>{part.size}</Size>{_checksums(part.checksums)}</Part>"
        for part in page.entries
    ]
    following = page.next_part_number_marker
    return _document(
        "ListPartsResult",
        f"<Bucket>{escape(page.bucket)}</Bucket><Key>{escape(page.upload.key)}</Key>"
        f"<UploadId>{escape(page.upload.upload_id)}</UploadId>{_upload_facts(page.upload)}"
        f"<PartNumberMarker>{page.part_number_marker}</PartNumberMarker>"
        f"<NextPartNumberMarker>{following}</NextPartNumberMarker>"
        f"<MaxParts>{page.max_parts}</MaxParts><IsTruncated>{_boolean(page.is_truncated)}</IsTruncated>{''.join(parts)}",
    )


def initiate_upload(bucket: str, key: str, upload_id: str) -> bytes:
    """Write CreateMultipartUpload's answer."""
    return _document(
        "InitiateMultipartUploadResult",
        f"<Bucket>{escape(bucket)}</Bucket><Key>{escape(key)}</Key><UploadId>{escape(upload_id)}</UploadId>",
    )


def complete_upload(
    *, location: str, bucket: str, key: str, etag: str, checksums: Sequence[Checksum] = ()
) -> bytes:
    """Write CompleteMultipartUpload's answer; `location` is the object's URL."""
    return _document(
        "CompleteMultipartUploadResult",
        f"<Location>{escape(location)}</Location><Bucket>{escape(bucket)}</Bucket><Key>{escape(key)}</Key>"
        f"<ETag>&quot;{escape(etag)}&quot;</ETag>{_checksums(checksums)}{_checksum_type(checksums)}",
    )


def copy_object_result(etag: str, last_modified_s: int, checksums: Sequence[Checksum] = ()) -> bytes:
    """Write CopyObject's answer."""
    return _document(
        "CopyObjectResult", _copied(etag, last_modified_s, checksums) + _checksum_type(checksums)
    )


def copy_part_result(etag: str, last_modified_s: int, checksums: Sequence[Checksum] = ()) -> bytes:
    """Write UploadPartCopy's answer."""
    return _document("CopyPartResult", _copied(etag, last_modified_s, checksums))


def delete_result(deleted: Sequence[DeletedEntry], failures: Sequence[DeleteFailure]) -> bytes:
    """Write DeleteObjects' answer; a quiet one is given no `deleted`."""
    done = [
        f"<Deleted><Key>{escape(entry.key)}</Key>{_optional('VersionId', escape(entry.version_id))}"
        f"{'<DeleteMarker>true</DeleteMarker>' if entry.is_delete_marker else ''}"
        f"{_optional('DeleteMarkerVersionId', escape(entry.delete_marker_version_id))}</Deleted>"
        for entry in deleted
    ]
    failed = [
        f"<Error><Key>{escape(entry.key)}</Key>{_optional('VersionId', escape(entry.version_id))}"
        f"<Code>{escape(entry.code)}</Code><Message>{escape(entry.message)}</Message></Error>"
        for entry in failures
    ]
    return _document("DeleteResult", f"{''.join(done)}{''.join(failed)}")


def post_response(location: str, bucket: str, key: str, etag: str) -> bytes:
    """Write PostObject's answer of status 201, which has no namespace (AWS "POST Object")."""
    return (
        f"{XML_DECLARATION}<PostResponse><Location>{escape(location)}</Location><Bucket>{escape(bucket)}</Bucket>"
        f"<Key>{escape(key)}</Key><ETag>&quot;{escape(etag)}&quot;</ETag></PostResponse>"
    ).encode("utf-8", "replace")


def _document(root: str, body: str) -> bytes:
    text = f'{XML_DECLARATION}<{root} xmlns="{XML_NAMESPACE}">{body}</{root}>'
    return text.encode("utf-8", "replace")


def _escape_character(match: re.Match[str]) -> str:
    character = match.group()
    return _NAMED.get(character) or f"&#x{ord(character):x};"


def _continuation_token(token: str | None) -> str:
    return "" if token is None else f"<ContinuationToken>{escape(token)}</ContinuationToken>"


def _optional(name: str, text: str) -> str:
    """Give an element of text that is already safe, nothing where it is empty."""
    return f"<{name}>{text}</{name}>" if text else ""


def _boolean(value: bool) -> str:  # noqa: FBT001  # it is the value that is written
    return "true" if value else "false"


def _listing_tail(delimiter: str, is_truncated: bool, *, is_url_encoded: bool) -> str:  # noqa: FBT001  # as above
    text = url_encode(delimiter) if is_url_encoded else escape(delimiter)
    encoding = "<EncodingType>url</EncodingType>" if is_url_encoded else ""
    return f"{_optional('Delimiter', text)}{encoding}<IsTruncated>{_boolean(is_truncated)}</IsTruncated>"


def _contents(entries: Iterable[ObjectEntry], *, is_url_encoded: bool) -> str:
    text = url_encode if is_url_encoded else escape
    return "".join(
        [
            f"<Contents><Key>{text(entry.key)}</Key><LastModified>{iso_time(entry.last_modified_s)}</LastModified>"
            f"<ETag>&quot;{escape(entry.etag)}&quot;</ETag>{_checksum_names(entry)}<Size>{entry.size}</Size>"
            f"{_owner('Owner', entry.owner)}<StorageClass>{escape(entry.storage_class)}</StorageClass></Contents>"
            for entry in entries
        ]
    )


def _checksum_names(entry: ObjectEntry) -> str:
    if not entry.checksum_algorithms:
        return ""
    names = "".join(
        [f"<ChecksumAlgorithm>{escape(name)}</ChecksumAlgorithm>" for name in entry.checksum_algorithms]
    )
    return f"{names}{_optional('ChecksumType', escape(entry.checksum_type))}"


def _common_prefixes(prefixes: Iterable[str], *, is_url_encoded: bool) -> str:
    text = url_encode if is_url_encoded else escape
    return "".join(
        [f"<CommonPrefixes><Prefix>{text(prefix)}</Prefix></CommonPrefixes>" for prefix in prefixes]
    )


def _owner(element: str, owner: Owner | None) -> str:
    if owner is None:
        return ""
    name = _optional("DisplayName", escape(owner.display_name))
    return f"<{element}><ID>{escape(owner.id)}</ID>{name}</{element}>"


def _upload_facts(upload: UploadEntry) -> str:
    return (
        f"{_owner('Initiator', upload.owner)}{_owner('Owner', upload.owner)}"
        f"<StorageClass>{escape(upload.storage_class)}</StorageClass>"
        f"{_optional('ChecksumAlgorithm', escape(upload.checksum_algorithm))}"
        f"{_optional('ChecksumType', escape(upload.checksum_type))}"
    )


def _checksums(checksums: Iterable[Checksum]) -> str:
    return "".join(
        [f"<Checksum{sum_.algorithm}>{escape(sum_.value)}</Checksum{sum_.algorithm}>" for sum_ in checksums]
    )


def _checksum_type(checksums: Sequence[Checksum]) -> str:
    return f"<ChecksumType>{checksums[0].type}</ChecksumType>" if checksums else ""


def _copied(etag: str, last_modified_s: int, checksums: Sequence[Checksum]) -> str:
    return (
        f"<LastModified>{iso_time(last_modified_s)}</LastModified><ETag>&quot;{escape(etag)}&quot;</ETag>"
        f"{_checksums(checksums)}"
    )
