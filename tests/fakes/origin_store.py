"""An S3 origin's state and operations, in memory: what `origin_server` answers from.

Bodies are kept whole. Versioning, encryption and object lock exist as configuration documents and as what they change of
answers (version ids, ETags that are not MD5). Versions and delete markers are kept, newest last. Each key has a history of the
states that were accepted, so that a test can check their order.
"""

import base64
import bisect
import calendar
import hashlib
import itertools
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, unquote
from xml.sax.saxutils import escape

from awscrt import checksums  # type: ignore[import-untyped]  # it ships no types
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
STORED = (
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
    "x-amz-website-redirect-location",
    "x-amz-storage-class",
    "x-amz-object-lock-legal-hold",
)
ALGORITHMS: dict[str, Callable[[bytes], bytes]] = {
    "crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "crc32c": lambda body: checksums.crc32c(body).to_bytes(4, "big"),
    "crc64nvme": lambda body: checksums.crc64nvme(body).to_bytes(8, "big"),
    "sha1": lambda body: hashlib.sha1(body).digest(),
    "sha256": lambda body: hashlib.sha256(body).digest(),
}


@dataclass(frozen=True, slots=True)
class Received:
    """A request as the server took it in: decoded names, lower-case headers, the whole body."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""


@dataclass(slots=True)
class Reply:
    """An answer before faults are put into it."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    """Content-Length where it is not the body's, as for HEAD."""
    is_streamed: bool = False
    """No Content-Length is sent."""


@dataclass(frozen=True, slots=True)
class Part:
    """One uploaded part."""

    body: bytes
    etag: str
    at_s: float
    checksums: dict[str, str]


@dataclass(frozen=True, slots=True)
class Stored:
    """One object."""

    body: bytes
    etag: str
    at_s: float
    headers: dict[str, str]
    checksums: dict[str, str]
    checksum_type: str = "FULL_OBJECT"
    tags: str = ""
    version_id: str = ""
    part_sizes: tuple[int, ...] = ()
    is_marker: bool = False

    @property
    def is_null(self) -> bool:
        """Whether a put into a suspended bucket takes its place."""
        return self.version_id in ("", "null")


@dataclass(slots=True)
class Upload:
    """An open upload."""

    bucket: str
    key: str
    at_s: float
    headers: dict[str, str]
    parts: dict[int, Part] = field(default_factory=dict)


@dataclass(slots=True)
class Bucket:
    """A bucket with its configuration documents; "" for none."""

    region: str = "us-east-1"
    at_s: float = 0.0
    versioning: str = ""
    encryption: str = ""
    has_object_lock: bool = False
    objects: dict[str, Stored] = field(default_factory=dict)
    versions: dict[str, list[Stored]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Accepted:
    """One state of a key that the origin took: an ETag, or "" for a delete."""

    sequence: int
    at_s: float
    etag: str
    md5: str
    size: int


class S3Error(Exception):
    """An error answer."""

    def __init__(self, status: int, code: str, message: str = "", **headers: str) -> None:
        super().__init__(code)
        self.reply = error_reply(status, code, message)
        self.reply.headers.update({name.replace("_", "-"): value for name, value in headers.items()})


def parsed(body: bytes) -> "Element":
    """Read a document, or refuse it as S3 does."""
    try:
        return fromstring(body)
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        # The last two: an encoding declared that is wrong or unknown.
        raise S3Error(400, "MalformedXML") from error


def error_reply(status: int, code: str, message: str = "", region: str = "") -> Reply:
    """Write an error document."""
    extra = f"<Region>{region}</Region>" if region else ""
    body = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message>{extra}<RequestId>0</RequestId></Error>"
    return Reply(status, xml(body), {"content-type": "application/xml"})


def xml(body: str) -> bytes:
    """Put the declaration before a document."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'.encode()


DOCUMENTS = (
    "accelerate",
    "acl",
    "attributes",
    "cors",
    "legal-hold",
    "lifecycle",
    "newfeature",
    "policy",
    "restore",
    "retention",
    "select",
    "torrent",
    "versions",
    "website",
)
"""Sub-resources that are kept as the documents that clients write; an object's, except for a POST, needs the object."""


def operation_of(request: Received) -> str:
    """Name the S3 operation of a request, a document's as `PUT acl`; "Unknown" where the fake has none."""
    document = next((name for name in DOCUMENTS if name in request.query), "")
    return f"{request.method} {document}" if document else _plain_operation(request)


def _plain_operation(request: Received) -> str:
    method, query = request.method, request.query
    if not request.bucket:
        return "ListBuckets" if method == "GET" else "Unknown"
    if not request.key:
        return _bucket_operation(method, query)
    if "tagging" in query:
        return {"GET": "GetObjectTagging", "PUT": "PutObjectTagging", "DELETE": "DeleteObjectTagging"}.get(
            method, "Unknown"
        )
    if "uploadId" in query:
        copied = "x-amz-copy-source" in request.headers
        return {
            "GET": "ListParts",
            "PUT": "UploadPartCopy" if copied else "UploadPart",
            "POST": "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
        }.get(method, "Unknown")
    if method == "POST":
        return "CreateMultipartUpload" if "uploads" in query else "Unknown"
    put = "CopyObject" if "x-amz-copy-source" in request.headers else "PutObject"
    return {"GET": "GetObject", "HEAD": "HeadObject", "PUT": put, "DELETE": "DeleteObject"}.get(
        method, "Unknown"
    )


def _bucket_operation(method: str, query: dict[str, str]) -> str:
    for name, title in (
        ("versioning", "BucketVersioning"),
        ("encryption", "BucketEncryption"),
        ("object-lock", "ObjectLockConfiguration"),
        ("location", "BucketLocation"),
    ):
        if name in query:
            verb = {"GET": "Get", "PUT": "Put", "DELETE": "Delete"}.get(method)
            return f"{verb}{title}" if verb else "Unknown"
    if method == "POST":
        return "DeleteObjects" if "delete" in query else "Unknown"
    if method == "GET" and "uploads" in query:
        return "ListMultipartUploads"
    if method == "GET" and "versions" in query:
        return "ListObjectVersions"
    listing = "ListObjectsV2" if query.get("list-type") == "2" else "ListObjects"
    return {"GET": listing, "HEAD": "HeadBucket", "PUT": "CreateBucket", "DELETE": "DeleteBucket"}.get(
        method, "Unknown"
    )


class OriginStore:
    """All buckets. `unsupported` names operations that this origin does not have; they answer 501.

    `heeds_conditions` is False for one that takes no notice of the conditions of writes. `ignored` has a method with a query name of
    DOCUMENTS that is overlooked under it; `deletes_all` deletes a bucket with what is in it.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._sequence = itertools.count(1)
        self.buckets: dict[str, Bucket] = {}
        self.uploads: dict[str, Upload] = {}
        self.history: dict[tuple[str, str], list[Accepted]] = {}
        self.unsupported: set[str] = set()
        self.denied: set[str] = set()
        self.ignored: set[tuple[str, str]] = set()
        self.deletes_all = False
        self.part_bytes_min = 5 * 1024 * 1024
        self.documents: dict[tuple[str, str, str], bytes] = {}
        self.heeds_conditions = True
        self.heeds_ranges = True

    # --- What tests use directly -------------------------------------------------------------------------------------

    def create_bucket(
        self, name: str, *, region: str = "us-east-1", versioning: str = "", encryption: str = ""
    ) -> Bucket:
        """Make a bucket, or give the one that is there."""
        bucket = Bucket(region, self._now_s(), versioning, encryption)
        return self.buckets.setdefault(name, bucket)

    def put(self, bucket: str, key: str, body: bytes, **headers: str) -> Stored:
        """Store an object as another writer would; header names with `_` for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._put_object(Received("PUT", bucket, key, {}, named, body))
        return self.buckets[bucket].objects[key]

    def body(self, bucket: str, key: str) -> bytes | None:
        """Give an object's bytes, None where there is no object."""
        found = self.buckets[bucket].objects.get(key)
        return None if found is None else found.body

    def etags(self, bucket: str, key: str) -> list[str]:
        """Give the states that a key went through, "" for deletes, in order."""
        return [accepted.etag for accepted in self.history.get((bucket, key), [])]

    # --- The road ----------------------------------------------------------------------------------------------------

    def handle(self, operation: str, request: Received) -> Reply:
        """Carry out one operation."""
        overlooked = {
            name for method, name in self.ignored if method == request.method and name in request.query
        }
        if overlooked:
            query = {name: value for name, value in request.query.items() if name not in overlooked}
            request = replace(request, query=query)
            operation = operation_of(request)
        if operation in self.unsupported or operation == "Unknown":
            return error_reply(501, "NotImplemented")
        if operation in self.denied:
            return error_reply(403, "AccessDenied")
        if request.bucket and operation != "CreateBucket" and request.bucket not in self.buckets:
            return error_reply(404, "NoSuchBucket") if request.method != "HEAD" else Reply(404)
        try:
            reply = self._operations().get(operation, self._document)(request)
        except S3Error as error:
            reply = error.reply
        if request.method == "HEAD" and reply.length is None:
            reply.body = b""
        return reply

    def _operations(self) -> dict[str, Callable[[Received], Reply]]:
        return {
            "ListBuckets": self._list_buckets,
            "CreateBucket": self._create_bucket,
            "DeleteBucket": self._delete_bucket,
            "HeadBucket": lambda r: Reply(headers={"x-amz-bucket-region": self.buckets[r.bucket].region}),
            "GetBucketLocation": self._location,
            "GetBucketVersioning": self._get_versioning,
            "PutBucketVersioning": self._put_versioning,
            "GetBucketEncryption": self._get_encryption,
            "PutBucketEncryption": self._put_encryption,
            "DeleteBucketEncryption": self._delete_encryption,
            "GetObjectLockConfiguration": self._get_lock,
            "ListObjects": self._list,
            "ListObjectsV2": self._list,
            "ListMultipartUploads": self._list_uploads,
            "ListObjectVersions": self._list_versions,
            "DeleteObjects": self._delete_objects,
            "GetObject": self._get_object,
            "HeadObject": self._get_object,
            "PutObject": self._put_object,
            "CopyObject": self._copy_object,
            "DeleteObject": self._delete_object,
            "GetObjectTagging": self._get_tagging,
            "PutObjectTagging": self._put_tagging,
            "DeleteObjectTagging": self._put_tagging,
            "CreateMultipartUpload": self._create_upload,
            "UploadPart": self._upload_part,
            "UploadPartCopy": self._upload_part_copy,
            "CompleteMultipartUpload": self._complete,
            "AbortMultipartUpload": self._abort,
            "ListParts": self._list_parts,
        }

    # --- Buckets -----------------------------------------------------------------------------------------------------

    def _list_buckets(self, _: Received) -> Reply:
        lines = "".join(
            f"<Bucket><Name>{name}</Name><CreationDate>{iso(bucket.at_s)}</CreationDate></Bucket>"
            for name, bucket in sorted(self.buckets.items())
        )
        return document("ListAllMyBucketsResult", f"<Owner><ID>o</ID></Owner><Buckets>{lines}</Buckets>")

    def _create_bucket(self, request: Received) -> Reply:
        if request.bucket in self.buckets:
            raise S3Error(409, "BucketAlreadyOwnedByYou")
        region = "us-east-1"
        if request.body.strip():
            region = find(request.body, "LocationConstraint") or region
        self.create_bucket(request.bucket, region=region)
        if request.headers.get("x-amz-bucket-object-lock-enabled", "").lower() == "true":
            self.buckets[request.bucket].has_object_lock = True
        return Reply(headers={"location": f"/{request.bucket}"})

    def _delete_bucket(self, request: Received) -> Reply:
        if self.buckets[request.bucket].versions and not self.deletes_all:
            raise S3Error(409, "BucketNotEmpty")
        del self.buckets[request.bucket]
        return Reply(204)

    def _location(self, request: Received) -> Reply:
        region = self.buckets[request.bucket].region
        return document("LocationConstraint", "" if region == "us-east-1" else region)

    def _get_versioning(self, request: Received) -> Reply:
        status = self.buckets[request.bucket].versioning
        return document("VersioningConfiguration", f"<Status>{status}</Status>" if status else "")

    def _put_versioning(self, request: Received) -> Reply:
        self.buckets[request.bucket].versioning = find(request.body, "Status")
        return Reply()

    def _get_encryption(self, request: Received) -> Reply:
        algorithm = self.buckets[request.bucket].encryption
        if not algorithm:
            raise S3Error(404, "ServerSideEncryptionConfigurationNotFoundError")
        rule = f"<ApplyServerSideEncryptionByDefault><SSEAlgorithm>{algorithm}</SSEAlgorithm></ApplyServerSideEncryptionByDefault>"
        return document("ServerSideEncryptionConfiguration", f"<Rule>{rule}</Rule>")

    def _put_encryption(self, request: Received) -> Reply:
        self.buckets[request.bucket].encryption = find(request.body, "SSEAlgorithm")
        return Reply()

    def _delete_encryption(self, request: Received) -> Reply:
        self.buckets[request.bucket].encryption = ""
        return Reply(204)

    def _get_lock(self, request: Received) -> Reply:
        if not self.buckets[request.bucket].has_object_lock:
            raise S3Error(404, "ObjectLockConfigurationNotFoundError")
        return document("ObjectLockConfiguration", "<ObjectLockEnabled>Enabled</ObjectLockEnabled>")

    def _document(self, request: Received) -> Reply:
        name = next(name for name in DOCUMENTS if name in request.query)
        place = (request.bucket, request.key, name)
        if request.key and request.key not in self.buckets[request.bucket].objects:
            raise S3Error(404, "NoSuchKey")
        if request.method == "PUT":
            self.documents[place] = request.body
            return Reply()
        if request.method == "DELETE":
            self.documents.pop(place, None)
            return Reply(204)
        if place not in self.documents:
            raise S3Error(404, f"NoSuch{name.title()}Configuration")
        body = self.documents[place]
        is_streamed = request.method == "POST"
        return Reply(200, body, {"content-type": "application/xml"}, is_streamed=is_streamed)

    # --- Listings ----------------------------------------------------------------------------------------------------

    def _list(self, request: Received) -> Reply:
        query, bucket = request.query, self.buckets[request.bucket]
        is_v2 = query.get("list-type") == "2"
        limit = min(1000, int(query.get("max-keys") or "1000"))
        marker, skipped = query.get("start-after", "") if is_v2 else query.get("marker", ""), ""
        if is_v2 and query.get("continuation-token"):
            kind, _, marker = base64.urlsafe_b64decode(query["continuation-token"]).decode().partition(":")
            skipped = marker if kind == "p" else ""
        elif not is_v2 and query.get("delimiter") and marker.endswith(query["delimiter"]):
            skipped = marker
        entries, is_truncated = page(bucket, query, marker=marker, skipped=skipped, limit=limit)
        name = (lambda text: quote_plus(text, safe="/")) if query.get("encoding-type") == "url" else escape
        lines = [f"<Name>{request.bucket}</Name><Prefix>{name(query.get('prefix', ''))}</Prefix>"]
        lines.append(f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(is_truncated).lower()}</IsTruncated>")
        if query.get("delimiter"):
            lines.append(f"<Delimiter>{name(query['delimiter'])}</Delimiter>")
        if query.get("encoding-type"):
            lines.append("<EncodingType>url</EncodingType>")
        if is_v2:
            lines.append(f"<KeyCount>{len(entries)}</KeyCount>")
        if is_truncated and entries:
            last, is_prefix = entries[-1]
            token = base64.urlsafe_b64encode(f"{'p' if is_prefix else 'k'}:{last}".encode()).decode()
            lines.append(
                f"<NextContinuationToken>{token}</NextContinuationToken>"
                if is_v2
                else f"<NextMarker>{name(last)}</NextMarker>"
            )
        for entry, is_prefix in entries:
            if is_prefix:
                lines.append(f"<CommonPrefixes><Prefix>{name(entry)}</Prefix></CommonPrefixes>")
            else:
                with_owner = not is_v2 or query.get("fetch-owner") == "true"
                lines.append(listed(name(entry), bucket.objects[entry], with_owner=with_owner))
        return document("ListBucketResult", "".join(lines))

    def _list_versions(self, request: Received) -> Reply:
        bucket, prefix = self.buckets[request.bucket], request.query.get("prefix", "")
        lines = []
        for key in sorted(key for key in bucket.versions if key.startswith(prefix)):
            newest = bucket.versions[key][-1]
            for found in reversed(bucket.versions[key]):
                kind = "DeleteMarker" if found.is_marker else "Version"
                lines.append(
                    f"<{kind}><Key>{escape(key)}</Key><VersionId>{found.version_id or 'null'}</VersionId>"
                    f"<IsLatest>{str(found is newest).lower()}</IsLatest><LastModified>{iso(found.at_s)}</LastModified>"
                    + ("" if found.is_marker else f"<ETag>&quot;{found.etag}&quot;</ETag>")
                    + f"</{kind}>"
                )
        head = f"<Name>{request.bucket}</Name><IsTruncated>false</IsTruncated>"
        return document("ListVersionsResult", head + "".join(lines))

    def _list_uploads(self, request: Received) -> Reply:
        prefix = request.query.get("prefix", "")
        found = sorted(
            (u.key, i, u)
            for i, u in self.uploads.items()
            if u.bucket == request.bucket and u.key.startswith(prefix)
        )
        name = (
            (lambda text: quote_plus(text, safe="/"))
            if request.query.get("encoding-type") == "url"
            else escape
        )
        lines = "".join(
            f"<Upload><Key>{name(key)}</Key><UploadId>{upload_id}</UploadId><Initiated>{iso(upload.at_s)}</Initiated>"
            "<StorageClass>STANDARD</StorageClass></Upload>"
            for key, upload_id, upload in found
        )
        encoding = "<EncodingType>url</EncodingType>" if request.query.get("encoding-type") else ""
        head = f"<Bucket>{request.bucket}</Bucket>{encoding}<IsTruncated>false</IsTruncated>"
        return document("ListMultipartUploadsResult", head + lines)

    # --- Objects -----------------------------------------------------------------------------------------------------

    def _find(self, bucket: str, key: str, version_id: str | None = None) -> Stored:
        if bucket not in self.buckets:
            raise S3Error(404, "NoSuchBucket")
        versions = self.buckets[bucket].versions.get(key, [])
        if version_id is not None:
            found = next((v for v in versions if (v.version_id or "null") == version_id), None)
            if found is None:
                raise S3Error(404, "NoSuchVersion")
        elif versions and versions[-1].is_marker:
            found = versions[-1]
        else:
            # A test may take an object away without a word to anybody.
            found = self.buckets[bucket].objects.get(key)
            if found is None:
                raise S3Error(404, "NoSuchKey")
        if found.is_marker:
            told = {"x_amz_delete_marker": "true", "x_amz_version_id": found.version_id}
            if version_id is None:
                raise S3Error(404, "NoSuchKey", **told)
            date = formatdate(int(found.at_s), usegmt=True)
            raise S3Error(405, "MethodNotAllowed", allow="DELETE", last_modified=date, **told)
        return found

    def _get_object(self, request: Received) -> Reply:
        found = self._find(request.bucket, request.key, request.query.get("versionId"))
        headers = answered(found)
        if self.buckets[request.bucket].versioning:
            headers.setdefault("x-amz-version-id", "null")
        verdict = condition(request.headers, found)
        if verdict == 304:
            return Reply(304, headers={"etag": headers["etag"], "last-modified": headers["last-modified"]})
        if verdict == 412:
            raise S3Error(412, "PreconditionFailed")
        body, status = found.body, 200
        size = len(body)
        if "partNumber" in request.query and found.part_sizes:
            number = int(request.query["partNumber"])
            if number > len(found.part_sizes):
                raise S3Error(416, "InvalidPartNumber")
            start = sum(found.part_sizes[: number - 1])
            headers["x-amz-mp-parts-count"] = str(len(found.part_sizes))
            body, status = body[start : start + found.part_sizes[number - 1]], 206
            headers["content-range"] = f"bytes {start}-{start + len(body) - 1}/{size}"
        elif self.heeds_ranges and request.headers.get("range", "").startswith("bytes="):
            start, stop = span(request.headers["range"], size)
            body, status = body[start:stop], 206
            headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
        if request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED" and len(body) == size:
            headers.update({f"x-amz-checksum-{name}": value for name, value in found.checksums.items()})
            headers["x-amz-checksum-type"] = found.checksum_type
        return Reply(status, b"" if request.method == "HEAD" else body, headers, len(body))

    def _put_object(self, request: Received) -> Reply:
        current = self.buckets[request.bucket].objects.get(request.key)
        if self.heeds_conditions:
            check_write(request.headers, current)
        given = verified(request)
        tags = request.headers.get("x-amz-tagging", "")
        stored = self._store(request, request.body, kept(request.headers), given, tags=tags)
        headers = {"etag": f'"{stored.etag}"', "x-amz-checksum-type": "FULL_OBJECT"}
        headers.update({f"x-amz-checksum-{name}": value for name, value in stored.checksums.items()})
        return Reply(headers=headers | self._write_headers(request.bucket, stored))

    def _copy_object(self, request: Received) -> Reply:
        source = self._source(request)
        replaces = request.headers.get("x-amz-metadata-directive", "COPY").upper() == "REPLACE"
        headers = kept(request.headers) if replaces else source.headers
        stored = self._store(request, source.body, headers, dict(source.checksums), tags=source.tags)
        body = f"<ETag>&quot;{stored.etag}&quot;</ETag><LastModified>{iso(stored.at_s)}</LastModified>"
        reply = document("CopyObjectResult", body)
        reply.headers.update(self._write_headers(request.bucket, stored))
        if "?versionId=" in request.headers["x-amz-copy-source"]:
            reply.headers["x-amz-copy-source-version-id"] = source.version_id or "null"
        return reply

    def _delete_object(self, request: Received) -> Reply:
        return Reply(204, headers=self._delete(request.bucket, request.key, request.query.get("versionId")))

    def _delete_objects(self, request: Received) -> Reply:
        if "content-md5" not in request.headers and not any(
            n.startswith("x-amz-checksum-") for n in request.headers
        ):
            raise S3Error(400, "InvalidRequest", "Missing required header for this request: Content-MD5")
        verified(request)
        lines = []
        for element in parsed(request.body):
            if not element.tag.endswith("Object"):
                continue
            fields = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
            told = self._delete(request.bucket, fields["Key"], fields.get("VersionId"))
            version = f"<VersionId>{fields['VersionId']}</VersionId>" if "VersionId" in fields else ""
            marker = (
                f"<DeleteMarker>true</DeleteMarker><DeleteMarkerVersionId>{told['x-amz-version-id']}</DeleteMarkerVersionId>"
                if "x-amz-delete-marker" in told
                else ""
            )
            key = escape(fields["Key"], ESCAPES)
            lines.append(f"<Deleted><Key>{key}</Key>{version}{marker}</Deleted>")
        return document("DeleteResult", "".join(lines))

    def _get_tagging(self, request: Received) -> Reply:
        tags = self._find(request.bucket, request.key, request.query.get("versionId")).tags
        pairs = [pair.partition("=") for pair in tags.split("&") if pair]
        lines = "".join(f"<Tag><Key>{unquote(k)}</Key><Value>{unquote(v)}</Value></Tag>" for k, _, v in pairs)
        return document("Tagging", f"<TagSet>{lines}</TagSet>")

    def _put_tagging(self, request: Received) -> Reply:
        found = self._find(request.bucket, request.key, request.query.get("versionId"))
        pairs: list[str] = []
        if request.method == "PUT":
            tags = [tag for tag in parsed(request.body).iter() if tag.tag.rpartition("}")[2] == "Tag"]
            pairs = ["=".join(quote_plus(child.text or "") for child in tag) for tag in tags]
        tagged = replace(found, tags="&".join(pairs))
        versions = self.buckets[request.bucket].versions[request.key]
        versions[versions.index(found)] = tagged
        self._show(request.bucket, request.key)
        headers = {"x-amz-version-id": tagged.version_id} if tagged.version_id else {}
        return Reply(200 if request.method == "PUT" else 204, headers=headers)

    # --- Uploads -----------------------------------------------------------------------------------------------------

    def _create_upload(self, request: Received) -> Reply:
        upload_id = f"upload-{next(self._sequence)}"
        self.uploads[upload_id] = Upload(request.bucket, request.key, self._now_s(), dict(request.headers))
        body = f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key><UploadId>{upload_id}</UploadId>"
        return document("InitiateMultipartUploadResult", body)

    def _upload(self, request: Received) -> Upload:
        upload = self.uploads.get(request.query["uploadId"])
        if upload is None or (upload.bucket, upload.key) != (request.bucket, request.key):
            raise S3Error(404, "NoSuchUpload")
        return upload

    def _upload_part(self, request: Received) -> Reply:
        upload = self._upload(request)
        given = verified(request)
        part = Part(request.body, hashlib.md5(request.body).hexdigest(), self._now_s(), given)
        upload.parts[int(request.query["partNumber"])] = part
        sums = {f"x-amz-checksum-{name}": value for name, value in given.items()}
        return Reply(headers={"etag": f'"{part.etag}"', **sums})

    def _upload_part_copy(self, request: Received) -> Reply:
        upload, source = self._upload(request), self._source(request)
        body = source.body
        if "x-amz-copy-source-range" in request.headers:
            start, stop = span(request.headers["x-amz-copy-source-range"], len(body))
            body = body[start:stop]
        part = Part(body, hashlib.md5(body).hexdigest(), self._now_s(), {})
        upload.parts[int(request.query["partNumber"])] = part
        result = f"<ETag>&quot;{part.etag}&quot;</ETag><LastModified>{iso(part.at_s)}</LastModified>"
        return document("CopyPartResult", result)

    def _complete(self, request: Received) -> Reply:
        upload = self._upload(request)
        if self.heeds_conditions:
            check_write(request.headers, self.buckets[request.bucket].objects.get(request.key))
        asked = named_parts(request.body)
        if [number for number, _ in asked] != sorted({number for number, _ in asked}):
            raise S3Error(400, "InvalidPartOrder")
        parts = []
        for number, etag in asked:
            part = upload.parts.get(number)
            if part is None or part.etag != etag.strip('"'):
                raise S3Error(400, "InvalidPart")
            parts.append(part)
        if not parts or any(len(part.body) < self.part_bytes_min for part in parts[:-1]):
            raise S3Error(400, "EntityTooSmall" if parts else "MalformedXML")
        digests = b"".join(bytes.fromhex(part.etag) for part in parts)
        stored = self._store(
            request,
            b"".join(part.body for part in parts),
            kept(upload.headers),
            upload_checksums(upload, parts),
            etag=f"{hashlib.md5(digests).hexdigest()}-{len(parts)}",
            tags=upload.headers.get("x-amz-tagging", ""),
            part_sizes=tuple(len(part.body) for part in parts),
        )
        del self.uploads[request.query["uploadId"]]
        sums = "".join(
            f"<Checksum{name.upper()}>{value}</Checksum{name.upper()}>"
            for name, value in stored.checksums.items()
        )
        body = f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key><ETag>&quot;{stored.etag}&quot;</ETag>{sums}"
        reply = document("CompleteMultipartUploadResult", body)
        reply.headers.update(self._write_headers(request.bucket, stored))
        return reply

    def _abort(self, request: Received) -> Reply:
        self._upload(request)
        del self.uploads[request.query["uploadId"]]
        return Reply(204)

    def _list_parts(self, request: Received) -> Reply:
        upload = self._upload(request)
        marker, limit = (
            int(request.query.get("part-number-marker") or 0),
            int(request.query.get("max-parts") or 1000),
        )
        numbers = [number for number in sorted(upload.parts) if number > marker]
        lines = "".join(
            f"<Part><PartNumber>{n}</PartNumber><LastModified>{iso(upload.parts[n].at_s)}</LastModified>"
            f"<ETag>&quot;{upload.parts[n].etag}&quot;</ETag><Size>{len(upload.parts[n].body)}</Size></Part>"
            for n in numbers[:limit]
        )
        is_truncated = len(numbers) > limit
        next_marker = numbers[limit - 1] if is_truncated else (numbers[-1] if numbers else 0)
        head = f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated><NextPartNumberMarker>{next_marker}</NextPartNumberMarker>"
        algorithm = upload.headers.get("x-amz-checksum-algorithm", "")
        head += f"<ChecksumAlgorithm>{algorithm}</ChecksumAlgorithm>" if algorithm else ""
        head += f"<StorageClass>{upload.headers.get('x-amz-storage-class', 'STANDARD')}</StorageClass>"
        return document("ListPartsResult", head + lines)

    # --- Changing state ----------------------------------------------------------------------------------------------

    def _source(self, request: Received) -> Stored:
        path, _, query = request.headers["x-amz-copy-source"].partition("?")
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        version_id = unquote(query.removeprefix("versionId=")) if query else None
        return self._find(bucket, key, version_id)

    def _store(
        self,
        request: Received,
        body: bytes,
        headers: dict[str, str],
        sums: dict[str, str],
        *,
        etag: str = "",
        tags: str = "",
        part_sizes: tuple[int, ...] = (),
    ) -> Stored:
        bucket = self.buckets[request.bucket]
        encryption = request.headers.get("x-amz-server-side-encryption") or bucket.encryption
        if encryption:
            headers = {**headers, "x-amz-server-side-encryption": encryption}
        if not etag:
            etag = hashlib.md5(b"kms" + body if encryption.startswith("aws:kms") else body).hexdigest()
        stored = Stored(
            body,
            etag,
            self._now_s(),
            headers,
            sums or {"crc64nvme": base64.b64encode(ALGORITHMS["crc64nvme"](body)).decode()},
            "COMPOSITE" if any("-" in value for value in sums.values()) else "FULL_OBJECT",
            tags,
            self._new_version_id(bucket),
            part_sizes,
        )
        self._add(request.bucket, request.key, stored)
        self._accept(request.bucket, request.key, etag, body)
        return stored

    def _new_version_id(self, bucket: Bucket) -> str:
        if bucket.versioning == "Enabled":
            return f"v{next(self._sequence)}"
        return "null" if bucket.versioning else ""

    def _add(self, bucket: str, key: str, stored: Stored) -> None:
        versions = self.buckets[bucket].versions.setdefault(key, [])
        if stored.is_null:
            versions[:] = [version for version in versions if not version.is_null]
        versions.append(stored)
        self._show(bucket, key)

    def _delete(self, name: str, key: str, version_id: str | None = None) -> dict[str, str]:
        """Delete a key, or one version of it; give what the answer says of versions."""
        bucket = self.buckets[name]
        versions = bucket.versions.get(key, [])
        if version_id is not None:
            gone = [version for version in versions if (version.version_id or "null") == version_id]
            versions[:] = [version for version in versions if version not in gone]
            self._show(name, key)
            is_marker = any(version.is_marker for version in gone)
            return {"x-amz-version-id": version_id} | ({"x-amz-delete-marker": "true"} if is_marker else {})
        self._accept(name, key, "", b"")
        if not bucket.versioning:
            versions[:] = [version for version in versions if not version.is_null]
            self._show(name, key)
            return {}
        marker = Stored(
            b"", "", self._now_s(), {}, {}, version_id=self._new_version_id(bucket), is_marker=True
        )
        self._add(name, key, marker)
        return {"x-amz-delete-marker": "true", "x-amz-version-id": marker.version_id}

    def _show(self, name: str, key: str) -> None:
        """Let the newest version be the object, or nothing where that is a delete marker."""
        bucket = self.buckets[name]
        versions = bucket.versions.get(key, [])
        if not versions:
            bucket.versions.pop(key, None)
        was_there = key in bucket.objects
        if versions and not versions[-1].is_marker:
            bucket.objects[key] = versions[-1]
            if not was_there:
                bisect.insort(bucket.keys, key)
        elif was_there:
            del bucket.objects[key]
            bucket.keys.remove(key)

    def _accept(self, bucket: str, key: str, etag: str, body: bytes) -> None:
        accepted = Accepted(
            next(self._sequence), self._now_s(), etag, hashlib.md5(body).hexdigest(), len(body)
        )
        self.history.setdefault((bucket, key), []).append(accepted)

    def _write_headers(self, bucket: str, stored: Stored) -> dict[str, str]:
        headers = {"x-amz-version-id": stored.version_id} if self.buckets[bucket].versioning else {}
        encryption = stored.headers.get("x-amz-server-side-encryption")
        return headers | ({"x-amz-server-side-encryption": encryption} if encryption else {})


# --- Parts of the above --------------------------------------------------------------------------------------------------

ESCAPES = {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}


def document(name: str, body: str) -> Reply:
    """Answer a document."""
    return Reply(
        200, xml(f'<{name} xmlns="{NAMESPACE}">{body}</{name}>'), {"content-type": "application/xml"}
    )


def find(body: bytes, name: str) -> str:
    """Find the text of the first element of that name, "" for none."""
    for element in parsed(body).iter():
        if element.tag.rpartition("}")[2] == name:
            return element.text or ""
    return ""


def iso(at_s: float) -> str:
    """Write a time as listings do."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at_s))


def kept(headers: dict[str, str]) -> dict[str, str]:
    """Pick what belongs to the object."""
    found = {
        name: value for name, value in headers.items() if name in STORED or name.startswith("x-amz-meta-")
    }
    tokens = [token.strip() for token in found.pop("content-encoding", "").split(",")]
    encoding = ",".join(token for token in tokens if token and token != "aws-chunked")
    return found | ({"content-encoding": encoding} if encoding else {})


def answered(found: Stored) -> dict[str, str]:
    """Give an object's headers."""
    headers = {
        "content-type": "binary/octet-stream",
        **found.headers,
        "etag": f'"{found.etag}"',
        "last-modified": formatdate(int(found.at_s), usegmt=True),
        "accept-ranges": "bytes",
    }
    if found.tags:
        headers["x-amz-tagging-count"] = str(found.tags.count("&") + 1)
    if found.version_id:
        headers["x-amz-version-id"] = found.version_id
    return headers


def listed(name: str, found: Stored, *, with_owner: bool) -> str:
    """Write one entry of a listing; each is another account's than the one that asks."""
    owner = "<Owner><ID>other</ID><DisplayName>another</DisplayName></Owner>" if with_owner else ""
    algorithms = "".join(f"<ChecksumAlgorithm>{a.upper()}</ChecksumAlgorithm>" for a in found.checksums)
    return (
        f"<Contents><Key>{name}</Key><LastModified>{iso(found.at_s)}</LastModified>"
        f"<ETag>&quot;{found.etag}&quot;</ETag>{algorithms}<Size>{len(found.body)}</Size>"
        f"{owner}<StorageClass>{found.headers.get('x-amz-storage-class', 'STANDARD')}</StorageClass></Contents>"
    )


def page(
    bucket: Bucket, query: dict[str, str], *, marker: str, skipped: str, limit: int
) -> tuple[list[tuple[str, bool]], bool]:
    """Give keys and common prefixes behind the marker, and whether there are more."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    entries: list[tuple[str, bool]] = []
    for key in bucket.keys[bisect.bisect_left(bucket.keys, max(prefix, marker)) :]:
        if not key.startswith(prefix):
            break
        if key <= marker or (skipped and key.startswith(skipped)):
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        entry = (key, False) if cut < 0 else (key[: cut + len(delimiter)], True)
        if entries and entries[-1] == entry:
            continue
        if len(entries) == limit:
            return entries, True
        entries.append(entry)
    return entries, False


def span(text: str, size: int) -> tuple[int, int]:
    """Read a Range header against a size as a half-open range."""
    first, _, last = text.removeprefix("bytes=").partition("-")
    start = max(0, size - int(last)) if not first else int(first)
    stop = size if not first or not last else min(size, int(last) + 1)
    if start >= stop:
        raise S3Error(416, "InvalidRange", content_range=f"bytes */{size}")
    return start, stop


def condition(headers: dict[str, str], found: Stored) -> int:
    """Say 304, 412 or 0 for a read's conditions (RFC 9110 section 13.2.2)."""
    at_s = int(found.at_s)
    if "if-match" in headers:
        if not matches(headers["if-match"], found.etag):
            return 412
    elif "if-unmodified-since" in headers and at_s > http_s(headers["if-unmodified-since"]):
        return 412
    if "if-none-match" in headers:
        return 304 if matches(headers["if-none-match"], found.etag) else 0
    is_old = "if-modified-since" in headers and at_s <= http_s(headers["if-modified-since"])
    return 304 if is_old else 0


def check_write(headers: dict[str, str], current: Stored | None) -> None:
    """Refuse a write whose condition does not hold."""
    if "if-none-match" in headers and current is not None:
        raise S3Error(412, "PreconditionFailed")
    if "if-match" in headers:
        if current is None:
            raise S3Error(404, "NoSuchKey")
        if not matches(headers["if-match"], current.etag):
            raise S3Error(412, "PreconditionFailed")


def matches(text: str, etag: str) -> bool:
    """Say whether an ETag is in a list of them."""
    return any(tag.strip().strip('"') in ("*", etag) for tag in text.split(","))


def http_s(text: str) -> int:
    """Read an HTTP date."""
    return calendar.timegm(time.strptime(text, "%a, %d %b %Y %H:%M:%S GMT"))


def verified(request: Received) -> dict[str, str]:
    """Check the digests that came with a body and give its checksums by algorithm."""
    md5 = request.headers.get("content-md5")
    if md5 is not None and base64.b64encode(hashlib.md5(request.body).digest()).decode() != md5:
        raise S3Error(400, "BadDigest")
    given = {}
    for name, digest in ALGORITHMS.items():
        value = request.headers.get(f"x-amz-checksum-{name}")
        if value is not None:
            if base64.b64encode(digest(request.body)).decode() != value:
                raise S3Error(400, "BadDigest", f"the {name} does not fit")
            given[name] = value
    return given


def named_parts(body: bytes) -> list[tuple[int, str]]:
    """Read a Complete request."""
    parts = []
    for element in parsed(body):
        if element.tag.rpartition("}")[2] == "Part":
            fields = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
            parts.append((int(fields["PartNumber"]), fields["ETag"]))
    return parts


def upload_checksums(upload: Upload, parts: list[Part]) -> dict[str, str]:
    """Give the checksum of an upload that asked for one: of all bytes, or of the parts' checksums."""
    name = upload.headers.get("x-amz-checksum-algorithm", "").lower()
    if name not in ALGORITHMS:
        return {}
    digest = ALGORITHMS[name]
    default = "FULL_OBJECT" if name == "crc64nvme" else "COMPOSITE"
    if upload.headers.get("x-amz-checksum-type", default).upper() == "FULL_OBJECT":
        return {name: base64.b64encode(digest(b"".join(part.body for part in parts))).decode()}
    total = digest(b"".join(digest(part.body) for part in parts))
    return {name: f"{base64.b64encode(total).decode()}-{len(parts)}"}
