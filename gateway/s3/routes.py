"""Which operation a request asks for: one table of all S3 operations, implemented or not.

S3 hides its verbs in the query: `PUT /b/k?tagging` is not a PutObject. So every sub-resource that S3 has is known here, an
operation that the gateway does not do gets its own name (and 501 from the server), and a request that fits no row is refused.
Nothing falls through to a plain GET, PUT or DELETE of the object.

A query name is one of three things. A *sub-resource* chooses the row; the set of those sent must be exactly the row's.
A *parameter* belongs to some operation or to signing, and chooses nothing. Anything else is *unknown*: S3 ignores most of
those, but a later S3 may give one a meaning, so where it could matter (without a value, as sub-resources are written, or on
any request that writes) the request asks for an operation that only the origin knows, `Operation.UNKNOWN`, and never for the
plain one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final

from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from gateway.s3.request import ADMIN_BUCKET, S3Request

PART_NUMBER_MAX: Final = 10_000
"""AWS User Guide "Multipart upload limits"."""


class Operation(StrEnum):
    """Every operation of S3, under AWS's name; OptionsObject and PostObject, which browsers send; and what is none of these."""

    ABORT_MULTIPART_UPLOAD = "AbortMultipartUpload"
    COMPLETE_MULTIPART_UPLOAD = "CompleteMultipartUpload"
    COPY_OBJECT = "CopyObject"
    CREATE_BUCKET = "CreateBucket"
    CREATE_BUCKET_METADATA_CONFIGURATION = "CreateBucketMetadataConfiguration"
    CREATE_BUCKET_METADATA_TABLE_CONFIGURATION = "CreateBucketMetadataTableConfiguration"
    CREATE_MULTIPART_UPLOAD = "CreateMultipartUpload"
    CREATE_SESSION = "CreateSession"
    DELETE_BUCKET = "DeleteBucket"
    DELETE_BUCKET_ANALYTICS_CONFIGURATION = "DeleteBucketAnalyticsConfiguration"
    DELETE_BUCKET_CORS = "DeleteBucketCors"
    DELETE_BUCKET_ENCRYPTION = "DeleteBucketEncryption"
    DELETE_BUCKET_INTELLIGENT_TIERING_CONFIGURATION = "DeleteBucketIntelligentTieringConfiguration"
    DELETE_BUCKET_INVENTORY_CONFIGURATION = "DeleteBucketInventoryConfiguration"
    DELETE_BUCKET_LIFECYCLE = "DeleteBucketLifecycle"
    DELETE_BUCKET_METADATA_CONFIGURATION = "DeleteBucketMetadataConfiguration"
    DELETE_BUCKET_METADATA_TABLE_CONFIGURATION = "DeleteBucketMetadataTableConfiguration"
    DELETE_BUCKET_METRICS_CONFIGURATION = "DeleteBucketMetricsConfiguration"
    DELETE_BUCKET_OWNERSHIP_CONTROLS = "DeleteBucketOwnershipControls"
    DELETE_BUCKET_POLICY = "DeleteBucketPolicy"
    DELETE_BUCKET_REPLICATION = "DeleteBucketReplication"
    DELETE_BUCKET_TAGGING = "DeleteBucketTagging"
    DELETE_BUCKET_WEBSITE = "DeleteBucketWebsite"
    DELETE_OBJECT = "DeleteObject"
    DELETE_OBJECT_ANNOTATION = "DeleteObjectAnnotation"
    DELETE_OBJECT_TAGGING = "DeleteObjectTagging"
    DELETE_OBJECTS = "DeleteObjects"
    DELETE_PUBLIC_ACCESS_BLOCK = "DeletePublicAccessBlock"
    GET_BUCKET_ABAC = "GetBucketAbac"
    GET_BUCKET_ACCELERATE_CONFIGURATION = "GetBucketAccelerateConfiguration"
    GET_BUCKET_ACL = "GetBucketAcl"
    GET_BUCKET_ANALYTICS_CONFIGURATION = "GetBucketAnalyticsConfiguration"
    GET_BUCKET_CORS = "GetBucketCors"
    GET_BUCKET_ENCRYPTION = "GetBucketEncryption"
    GET_BUCKET_INTELLIGENT_TIERING_CONFIGURATION = "GetBucketIntelligentTieringConfiguration"
    GET_BUCKET_INVENTORY_CONFIGURATION = "GetBucketInventoryConfiguration"
    GET_BUCKET_LIFECYCLE_CONFIGURATION = "GetBucketLifecycleConfiguration"
    GET_BUCKET_LOCATION = "GetBucketLocation"
    GET_BUCKET_LOGGING = "GetBucketLogging"
    GET_BUCKET_METADATA_CONFIGURATION = "GetBucketMetadataConfiguration"
    GET_BUCKET_METADATA_TABLE_CONFIGURATION = "GetBucketMetadataTableConfiguration"
    GET_BUCKET_METRICS_CONFIGURATION = "GetBucketMetricsConfiguration"
    GET_BUCKET_NOTIFICATION_CONFIGURATION = "GetBucketNotificationConfiguration"
    GET_BUCKET_OWNERSHIP_CONTROLS = "GetBucketOwnershipControls"
    GET_BUCKET_POLICY = "GetBucketPolicy"
    GET_BUCKET_POLICY_STATUS = "GetBucketPolicyStatus"
    GET_BUCKET_REPLICATION = "GetBucketReplication"
    GET_BUCKET_REQUEST_PAYMENT = "GetBucketRequestPayment"
    GET_BUCKET_TAGGING = "GetBucketTagging"
    GET_BUCKET_VERSIONING = "GetBucketVersioning"
    GET_BUCKET_WEBSITE = "GetBucketWebsite"
    GET_OBJECT = "GetObject"
    GET_OBJECT_ACL = "GetObjectAcl"
    GET_OBJECT_ANNOTATION = "GetObjectAnnotation"
    GET_OBJECT_ATTRIBUTES = "GetObjectAttributes"
    GET_OBJECT_LEGAL_HOLD = "GetObjectLegalHold"
    GET_OBJECT_LOCK_CONFIGURATION = "GetObjectLockConfiguration"
    GET_OBJECT_RETENTION = "GetObjectRetention"
    GET_OBJECT_TAGGING = "GetObjectTagging"
    GET_OBJECT_TORRENT = "GetObjectTorrent"
    GET_PUBLIC_ACCESS_BLOCK = "GetPublicAccessBlock"
    HEAD_BUCKET = "HeadBucket"
    HEAD_OBJECT = "HeadObject"
    LIST_BUCKET_ANALYTICS_CONFIGURATIONS = "ListBucketAnalyticsConfigurations"
    LIST_BUCKET_INTELLIGENT_TIERING_CONFIGURATIONS = "ListBucketIntelligentTieringConfigurations"
    LIST_BUCKET_INVENTORY_CONFIGURATIONS = "ListBucketInventoryConfigurations"
    LIST_BUCKET_METRICS_CONFIGURATIONS = "ListBucketMetricsConfigurations"
    LIST_BUCKETS = "ListBuckets"
    LIST_MULTIPART_UPLOADS = "ListMultipartUploads"
    LIST_OBJECT_ANNOTATIONS = "ListObjectAnnotations"
    LIST_OBJECT_VERSIONS = "ListObjectVersions"
    LIST_OBJECTS = "ListObjects"
    LIST_OBJECTS_V2 = "ListObjectsV2"
    LIST_PARTS = "ListParts"
    OPTIONS_OBJECT = "OptionsObject"
    POST_OBJECT = "PostObject"
    PUT_BUCKET_ABAC = "PutBucketAbac"
    PUT_BUCKET_ACCELERATE_CONFIGURATION = "PutBucketAccelerateConfiguration"
    PUT_BUCKET_ACL = "PutBucketAcl"
    PUT_BUCKET_ANALYTICS_CONFIGURATION = "PutBucketAnalyticsConfiguration"
    PUT_BUCKET_CORS = "PutBucketCors"
    PUT_BUCKET_ENCRYPTION = "PutBucketEncryption"
    PUT_BUCKET_INTELLIGENT_TIERING_CONFIGURATION = "PutBucketIntelligentTieringConfiguration"
    PUT_BUCKET_INVENTORY_CONFIGURATION = "PutBucketInventoryConfiguration"
    PUT_BUCKET_LIFECYCLE_CONFIGURATION = "PutBucketLifecycleConfiguration"
    PUT_BUCKET_LOGGING = "PutBucketLogging"
    PUT_BUCKET_METRICS_CONFIGURATION = "PutBucketMetricsConfiguration"
    PUT_BUCKET_NOTIFICATION_CONFIGURATION = "PutBucketNotificationConfiguration"
    PUT_BUCKET_OWNERSHIP_CONTROLS = "PutBucketOwnershipControls"
    PUT_BUCKET_POLICY = "PutBucketPolicy"
    PUT_BUCKET_REPLICATION = "PutBucketReplication"
    PUT_BUCKET_REQUEST_PAYMENT = "PutBucketRequestPayment"
    PUT_BUCKET_TAGGING = "PutBucketTagging"
    PUT_BUCKET_VERSIONING = "PutBucketVersioning"
    PUT_BUCKET_WEBSITE = "PutBucketWebsite"
    PUT_OBJECT = "PutObject"
    PUT_OBJECT_ACL = "PutObjectAcl"
    PUT_OBJECT_ANNOTATION = "PutObjectAnnotation"
    PUT_OBJECT_LEGAL_HOLD = "PutObjectLegalHold"
    PUT_OBJECT_LOCK_CONFIGURATION = "PutObjectLockConfiguration"
    PUT_OBJECT_RETENTION = "PutObjectRetention"
    PUT_OBJECT_TAGGING = "PutObjectTagging"
    PUT_PUBLIC_ACCESS_BLOCK = "PutPublicAccessBlock"
    RENAME_OBJECT = "RenameObject"
    RESTORE_OBJECT = "RestoreObject"
    SELECT_OBJECT_CONTENT = "SelectObjectContent"
    UNKNOWN = "Unknown"
    UPDATE_BUCKET_METADATA_ANNOTATION_TABLE_CONFIGURATION = "UpdateBucketMetadataAnnotationTableConfiguration"
    UPDATE_BUCKET_METADATA_INVENTORY_TABLE_CONFIGURATION = "UpdateBucketMetadataInventoryTableConfiguration"
    UPDATE_BUCKET_METADATA_JOURNAL_TABLE_CONFIGURATION = "UpdateBucketMetadataJournalTableConfiguration"
    UPDATE_OBJECT_ENCRYPTION = "UpdateObjectEncryption"
    UPLOAD_PART = "UploadPart"
    UPLOAD_PART_COPY = "UploadPartCopy"


class Level(Enum):
    """What a path names."""

    SERVICE = "service"
    BUCKET = "bucket"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Route:
    """One row: what a request must be to ask for `operation`.

    Attributes:
        operation: What it asks for.
        method: HTTP method.
        level: What the path names.
        subresources: Exactly these sub-resources stand in the query.
        qualifier: A parameter that must be there too, "" for none.
        header: A header that must be there too, "" for none.
    """

    operation: Operation
    method: str
    level: Level
    subresources: tuple[str, ...] = ()
    qualifier: str = ""
    header: str = ""


ROUTES: Final[tuple[Route, ...]] = (
    Route(Operation.LIST_BUCKETS, "GET", Level.SERVICE),
    Route(Operation.CREATE_BUCKET, "PUT", Level.BUCKET),
    Route(Operation.CREATE_BUCKET_METADATA_CONFIGURATION, "POST", Level.BUCKET, ("metadataConfiguration",)),
    Route(Operation.CREATE_BUCKET_METADATA_TABLE_CONFIGURATION, "POST", Level.BUCKET, ("metadataTable",)),
    Route(Operation.CREATE_SESSION, "GET", Level.BUCKET, ("session",)),
    Route(Operation.DELETE_BUCKET, "DELETE", Level.BUCKET),
    Route(Operation.DELETE_BUCKET_ANALYTICS_CONFIGURATION, "DELETE", Level.BUCKET, ("analytics",)),
    Route(Operation.DELETE_BUCKET_CORS, "DELETE", Level.BUCKET, ("cors",)),
    Route(Operation.DELETE_BUCKET_ENCRYPTION, "DELETE", Level.BUCKET, ("encryption",)),
    Route(
        Operation.DELETE_BUCKET_INTELLIGENT_TIERING_CONFIGURATION,
        "DELETE",
        Level.BUCKET,
        ("intelligent-tiering",),
    ),
    Route(Operation.DELETE_BUCKET_INVENTORY_CONFIGURATION, "DELETE", Level.BUCKET, ("inventory",)),
    Route(Operation.DELETE_BUCKET_LIFECYCLE, "DELETE", Level.BUCKET, ("lifecycle",)),
    Route(Operation.DELETE_BUCKET_METADATA_CONFIGURATION, "DELETE", Level.BUCKET, ("metadataConfiguration",)),
    Route(Operation.DELETE_BUCKET_METADATA_TABLE_CONFIGURATION, "DELETE", Level.BUCKET, ("metadataTable",)),
    Route(Operation.DELETE_BUCKET_METRICS_CONFIGURATION, "DELETE", Level.BUCKET, ("metrics",)),
    Route(Operation.DELETE_BUCKET_OWNERSHIP_CONTROLS, "DELETE", Level.BUCKET, ("ownershipControls",)),
    Route(Operation.DELETE_BUCKET_POLICY, "DELETE", Level.BUCKET, ("policy",)),
    Route(Operation.DELETE_BUCKET_REPLICATION, "DELETE", Level.BUCKET, ("replication",)),
    Route(Operation.DELETE_BUCKET_TAGGING, "DELETE", Level.BUCKET, ("tagging",)),
    Route(Operation.DELETE_BUCKET_WEBSITE, "DELETE", Level.BUCKET, ("website",)),
    Route(Operation.DELETE_OBJECTS, "POST", Level.BUCKET, ("delete",)),
    Route(Operation.DELETE_PUBLIC_ACCESS_BLOCK, "DELETE", Level.BUCKET, ("publicAccessBlock",)),
    Route(Operation.GET_BUCKET_ABAC, "GET", Level.BUCKET, ("abac",)),
    Route(Operation.GET_BUCKET_ACCELERATE_CONFIGURATION, "GET", Level.BUCKET, ("accelerate",)),
    Route(Operation.GET_BUCKET_ACL, "GET", Level.BUCKET, ("acl",)),
    Route(Operation.GET_BUCKET_ANALYTICS_CONFIGURATION, "GET", Level.BUCKET, ("analytics",), qualifier="id"),
    Route(Operation.GET_BUCKET_CORS, "GET", Level.BUCKET, ("cors",)),
    Route(Operation.GET_BUCKET_ENCRYPTION, "GET", Level.BUCKET, ("encryption",)),
    Route(
        Operation.GET_BUCKET_INTELLIGENT_TIERING_CONFIGURATION,
        "GET",
        Level.BUCKET,
        ("intelligent-tiering",),
        qualifier="id",
    ),
    Route(Operation.GET_BUCKET_INVENTORY_CONFIGURATION, "GET", Level.BUCKET, ("inventory",), qualifier="id"),
    Route(Operation.GET_BUCKET_LIFECYCLE_CONFIGURATION, "GET", Level.BUCKET, ("lifecycle",)),
    Route(Operation.GET_BUCKET_LOCATION, "GET", Level.BUCKET, ("location",)),
    Route(Operation.GET_BUCKET_LOGGING, "GET", Level.BUCKET, ("logging",)),
    Route(Operation.GET_BUCKET_METADATA_CONFIGURATION, "GET", Level.BUCKET, ("metadataConfiguration",)),
    Route(Operation.GET_BUCKET_METADATA_TABLE_CONFIGURATION, "GET", Level.BUCKET, ("metadataTable",)),
    Route(Operation.GET_BUCKET_METRICS_CONFIGURATION, "GET", Level.BUCKET, ("metrics",), qualifier="id"),
    Route(Operation.GET_BUCKET_NOTIFICATION_CONFIGURATION, "GET", Level.BUCKET, ("notification",)),
    Route(Operation.GET_BUCKET_OWNERSHIP_CONTROLS, "GET", Level.BUCKET, ("ownershipControls",)),
    Route(Operation.GET_BUCKET_POLICY, "GET", Level.BUCKET, ("policy",)),
    Route(Operation.GET_BUCKET_POLICY_STATUS, "GET", Level.BUCKET, ("policyStatus",)),
    Route(Operation.GET_BUCKET_REPLICATION, "GET", Level.BUCKET, ("replication",)),
    Route(Operation.GET_BUCKET_REQUEST_PAYMENT, "GET", Level.BUCKET, ("requestPayment",)),
    Route(Operation.GET_BUCKET_TAGGING, "GET", Level.BUCKET, ("tagging",)),
    Route(Operation.GET_BUCKET_VERSIONING, "GET", Level.BUCKET, ("versioning",)),
    Route(Operation.GET_BUCKET_WEBSITE, "GET", Level.BUCKET, ("website",)),
    Route(Operation.GET_OBJECT_LOCK_CONFIGURATION, "GET", Level.BUCKET, ("object-lock",)),
    Route(Operation.GET_PUBLIC_ACCESS_BLOCK, "GET", Level.BUCKET, ("publicAccessBlock",)),
    Route(Operation.HEAD_BUCKET, "HEAD", Level.BUCKET),
    Route(Operation.LIST_BUCKET_ANALYTICS_CONFIGURATIONS, "GET", Level.BUCKET, ("analytics",)),
    Route(
        Operation.LIST_BUCKET_INTELLIGENT_TIERING_CONFIGURATIONS,
        "GET",
        Level.BUCKET,
        ("intelligent-tiering",),
    ),
    Route(Operation.LIST_BUCKET_INVENTORY_CONFIGURATIONS, "GET", Level.BUCKET, ("inventory",)),
    Route(Operation.LIST_BUCKET_METRICS_CONFIGURATIONS, "GET", Level.BUCKET, ("metrics",)),
    Route(Operation.LIST_MULTIPART_UPLOADS, "GET", Level.BUCKET, ("uploads",)),
    Route(Operation.LIST_OBJECT_VERSIONS, "GET", Level.BUCKET, ("versions",)),
    Route(Operation.LIST_OBJECTS, "GET", Level.BUCKET),
    Route(Operation.LIST_OBJECTS_V2, "GET", Level.BUCKET, qualifier="list-type"),
    Route(Operation.PUT_BUCKET_ABAC, "PUT", Level.BUCKET, ("abac",)),
    Route(Operation.PUT_BUCKET_ACCELERATE_CONFIGURATION, "PUT", Level.BUCKET, ("accelerate",)),
    Route(Operation.PUT_BUCKET_ACL, "PUT", Level.BUCKET, ("acl",)),
    Route(Operation.PUT_BUCKET_ANALYTICS_CONFIGURATION, "PUT", Level.BUCKET, ("analytics",)),
    Route(Operation.PUT_BUCKET_CORS, "PUT", Level.BUCKET, ("cors",)),
    Route(Operation.PUT_BUCKET_ENCRYPTION, "PUT", Level.BUCKET, ("encryption",)),
    Route(
        Operation.PUT_BUCKET_INTELLIGENT_TIERING_CONFIGURATION, "PUT", Level.BUCKET, ("intelligent-tiering",)
    ),
    Route(Operation.PUT_BUCKET_INVENTORY_CONFIGURATION, "PUT", Level.BUCKET, ("inventory",)),
    Route(Operation.PUT_BUCKET_LIFECYCLE_CONFIGURATION, "PUT", Level.BUCKET, ("lifecycle",)),
    Route(Operation.PUT_BUCKET_LOGGING, "PUT", Level.BUCKET, ("logging",)),
    Route(Operation.PUT_BUCKET_METRICS_CONFIGURATION, "PUT", Level.BUCKET, ("metrics",)),
    Route(Operation.PUT_BUCKET_NOTIFICATION_CONFIGURATION, "PUT", Level.BUCKET, ("notification",)),
    Route(Operation.PUT_BUCKET_OWNERSHIP_CONTROLS, "PUT", Level.BUCKET, ("ownershipControls",)),
    Route(Operation.PUT_BUCKET_POLICY, "PUT", Level.BUCKET, ("policy",)),
    Route(Operation.PUT_BUCKET_REPLICATION, "PUT", Level.BUCKET, ("replication",)),
    Route(Operation.PUT_BUCKET_REQUEST_PAYMENT, "PUT", Level.BUCKET, ("requestPayment",)),
    Route(Operation.PUT_BUCKET_TAGGING, "PUT", Level.BUCKET, ("tagging",)),
    Route(Operation.PUT_BUCKET_VERSIONING, "PUT", Level.BUCKET, ("versioning",)),
    Route(Operation.PUT_BUCKET_WEBSITE, "PUT", Level.BUCKET, ("website",)),
    Route(Operation.PUT_OBJECT_LOCK_CONFIGURATION, "PUT", Level.BUCKET, ("object-lock",)),
    Route(Operation.PUT_PUBLIC_ACCESS_BLOCK, "PUT", Level.BUCKET, ("publicAccessBlock",)),
    Route(
        Operation.UPDATE_BUCKET_METADATA_ANNOTATION_TABLE_CONFIGURATION,
        "PUT",
        Level.BUCKET,
        ("metadataAnnotationTable",),
    ),
    Route(
        Operation.UPDATE_BUCKET_METADATA_INVENTORY_TABLE_CONFIGURATION,
        "PUT",
        Level.BUCKET,
        ("metadataInventoryTable",),
    ),
    Route(
        Operation.UPDATE_BUCKET_METADATA_JOURNAL_TABLE_CONFIGURATION,
        "PUT",
        Level.BUCKET,
        ("metadataJournalTable",),
    ),
    Route(Operation.POST_OBJECT, "POST", Level.BUCKET),
    Route(Operation.ABORT_MULTIPART_UPLOAD, "DELETE", Level.OBJECT, ("uploadId",)),
    Route(Operation.COMPLETE_MULTIPART_UPLOAD, "POST", Level.OBJECT, ("uploadId",)),
    Route(Operation.COPY_OBJECT, "PUT", Level.OBJECT, header="x-amz-copy-source"),
    Route(Operation.CREATE_MULTIPART_UPLOAD, "POST", Level.OBJECT, ("uploads",)),
    Route(Operation.DELETE_OBJECT, "DELETE", Level.OBJECT),
    Route(Operation.DELETE_OBJECT_ANNOTATION, "DELETE", Level.OBJECT, ("annotation",)),
    Route(Operation.DELETE_OBJECT_TAGGING, "DELETE", Level.OBJECT, ("tagging",)),
    Route(Operation.GET_OBJECT, "GET", Level.OBJECT),
    Route(Operation.GET_OBJECT_ACL, "GET", Level.OBJECT, ("acl",)),
    Route(Operation.GET_OBJECT_ANNOTATION, "GET", Level.OBJECT, ("annotation",), qualifier="annotationName"),
    Route(Operation.GET_OBJECT_ATTRIBUTES, "GET", Level.OBJECT, ("attributes",)),
    Route(Operation.GET_OBJECT_LEGAL_HOLD, "GET", Level.OBJECT, ("legal-hold",)),
    Route(Operation.GET_OBJECT_RETENTION, "GET", Level.OBJECT, ("retention",)),
    Route(Operation.GET_OBJECT_TAGGING, "GET", Level.OBJECT, ("tagging",)),
    Route(Operation.GET_OBJECT_TORRENT, "GET", Level.OBJECT, ("torrent",)),
    Route(Operation.HEAD_OBJECT, "HEAD", Level.OBJECT),
    Route(Operation.LIST_OBJECT_ANNOTATIONS, "GET", Level.OBJECT, ("annotation",)),
    Route(Operation.LIST_PARTS, "GET", Level.OBJECT, ("uploadId",)),
    Route(Operation.PUT_OBJECT, "PUT", Level.OBJECT),
    Route(Operation.PUT_OBJECT_ACL, "PUT", Level.OBJECT, ("acl",)),
    Route(Operation.PUT_OBJECT_ANNOTATION, "PUT", Level.OBJECT, ("annotation",)),
    Route(Operation.PUT_OBJECT_LEGAL_HOLD, "PUT", Level.OBJECT, ("legal-hold",)),
    Route(Operation.PUT_OBJECT_RETENTION, "PUT", Level.OBJECT, ("retention",)),
    Route(Operation.PUT_OBJECT_TAGGING, "PUT", Level.OBJECT, ("tagging",)),
    Route(Operation.RENAME_OBJECT, "PUT", Level.OBJECT, ("renameObject",)),
    Route(Operation.RESTORE_OBJECT, "POST", Level.OBJECT, ("restore",)),
    Route(Operation.SELECT_OBJECT_CONTENT, "POST", Level.OBJECT, ("select",)),
    Route(Operation.UPDATE_OBJECT_ENCRYPTION, "PUT", Level.OBJECT, ("encryption",)),
    Route(Operation.UPLOAD_PART, "PUT", Level.OBJECT, ("partNumber", "uploadId")),
    Route(
        Operation.UPLOAD_PART_COPY,
        "PUT",
        Level.OBJECT,
        ("partNumber", "uploadId"),
        header="x-amz-copy-source",
    ),
)
"""All rows. Of two that both fit, the one that asks for more wins; a test shows that no two ask for the same."""

SUBRESOURCES: Final = frozenset(name for row in ROUTES for name in row.subresources)
"""Query names that choose an operation."""

PARAMETERS: Final = frozenset(
    {
        "annotation-prefix",
        "annotationName",
        "bucket-region",
        "continuation-token",
        "delimiter",
        "encoding-type",
        "fetch-owner",
        "id",
        "key-marker",
        "list-type",
        "marker",
        "max-annotation-results",
        "max-buckets",
        "max-directory-buckets",
        "max-keys",
        "max-parts",
        "max-uploads",
        "part-number-marker",
        "prefix",
        "select-type",
        "start-after",
        "upload-id-marker",
        "version-id-marker",
        "versionId",
    }
)
"""Query names that belong to an operation and choose none; with `response-*` and `x-*`, which no row needs."""

# Signing and tracing, and what S3 documents as ignored and logged: any name that begins with "x-".
_PARAMETER_PREFIXES: Final = ("x-", "X-Amz-", "response-")
_ONCE: Final = SUBRESOURCES | {"versionId", "list-type"}
_NONE: Final[frozenset[str]] = frozenset()
_READING: Final = frozenset({"GET", "HEAD"})
_CARRYING: Final = frozenset({*_READING, "DELETE", "PATCH", "POST", "PUT"})
"""The methods under which an operation that is not known here may exist."""
_WITHOUT_VERSION: Final = frozenset(
    {
        Operation.ABORT_MULTIPART_UPLOAD,
        Operation.COMPLETE_MULTIPART_UPLOAD,
        Operation.COPY_OBJECT,
        Operation.CREATE_MULTIPART_UPLOAD,
        Operation.LIST_PARTS,
        Operation.PUT_OBJECT,
        Operation.UPLOAD_PART,
        Operation.UPLOAD_PART_COPY,
    }
)


def _by_choice(rows: Sequence[Route]) -> Mapping[tuple[str, Level, frozenset[str]], tuple[Route, ...]]:
    """Index the table by what chooses a row, the more demanding rows first."""
    table: dict[tuple[str, Level, frozenset[str]], tuple[Route, ...]] = {}
    for row in rows:
        choice = (row.method, row.level, frozenset(row.subresources))
        fitting = (*table.get(choice, ()), row)
        table[choice] = tuple(
            sorted(fitting, key=lambda other: bool(other.qualifier) + bool(other.header), reverse=True)
        )
    return MappingProxyType(table)


_TABLE: Final = _by_choice(ROUTES)


def route(request: S3Request) -> Operation:
    """Say which operation a request asks for.

    Raises:
        S3Error: MethodNotAllowed: no operation has this method there; InvalidArgument: sub-resources that do not go
            together, a parameter sent twice, a bad part number.
    """
    if request.bucket == ADMIN_BUCKET:
        raise S3Error(ErrorCode.INVALID_BUCKET_NAME, extra={"BucketName": request.bucket})
    if request.method == "OPTIONS":
        return Operation.OPTIONS_OBJECT
    level = level_of(request)
    chosen: frozenset[str] | None = _chosen(request) if request.query.pairs else _NONE
    if chosen is None:
        return Operation.UNKNOWN
    for row in _TABLE.get((request.method, level, chosen), ()):
        if (not row.qualifier or row.qualifier in request.query) and (
            not row.header or row.header in request.headers
        ):
            if request.query.pairs:
                _check_parameters(row.operation, request)
            return row.operation
    raise _refusal(request.method, level, chosen)


def level_of(request: S3Request) -> Level:
    """Say what a request's path names."""
    return Level.OBJECT if request.key else Level.BUCKET if request.bucket else Level.SERVICE


def is_form(request: S3Request) -> bool:
    """Say whether a request is a POST upload, the one operation whose signature is in its body.

    A POST on a bucket without sub-resources is nothing else, whatever its headers say. What no operation is, is no form.
    """
    if request.method != "POST" or request.key or request.bucket in {"", ADMIN_BUCKET}:
        return False
    try:
        return route(request) is Operation.POST_OBJECT
    except S3Error:
        return False


def operation_names(request: S3Request) -> tuple[str, ...]:
    """Give the query names that make an operation of a request other than the plain one, known here or not, in order."""
    names = {name for name, _ in request.query.pairs}
    return tuple(
        sorted(name for name in names if name not in PARAMETERS and not name.startswith(_PARAMETER_PREFIXES))
    )


def part_number(request: S3Request) -> int | None:
    """Give the query's partNumber, 1 to 10,000; None where it was not sent.

    Raises:
        S3Error: InvalidArgument: not such a number (AWS API_UploadPart).
    """
    text = request.query.get("partNumber")
    if text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= PART_NUMBER_MAX:
        return int(text)
    raise invalid_argument(
        "partNumber", text, f"Part number must be an integer between 1 and {PART_NUMBER_MAX}, inclusive"
    )


def _chosen(request: S3Request) -> frozenset[str] | None:
    """Give the sub-resources of a query, None where an unknown name may be one; refuse what is sent twice."""
    is_reading = request.method in _READING
    once: set[str] = set()
    is_unknown = False
    for name, value in request.query.pairs:
        if name in _ONCE:
            if name in once:
                raise invalid_argument(name, value, f"The parameter {name} was sent more than once.")
            once.add(name)
        elif (
            name not in PARAMETERS and not name.startswith(_PARAMETER_PREFIXES) and not (is_reading and value)
        ):
            is_unknown = True
    if is_unknown and request.method in _CARRYING:
        return None
    # A read of one part is a read; in any other method the number alone must choose nothing by being overlooked.
    return SUBRESOURCES & (once - {"partNumber"} if is_reading else once)


def _check_parameters(operation: Operation, request: S3Request) -> None:
    if request.key:
        part_number(request)
    version_id = request.query.get("versionId")
    if version_id is not None and operation in _WITHOUT_VERSION:
        raise invalid_argument("versionId", version_id, "This operation does not accept a version-id.")
    list_type = request.query.get("list-type")
    if operation is Operation.LIST_OBJECTS_V2 and list_type != "2":
        raise invalid_argument("list-type", list_type or "", "Incorrect List Type specified in Request")


def _refusal(method: str, level: Level, chosen: frozenset[str]) -> S3Error:
    """Say why no row fits: sub-resources that do not go together, or a method that is not for them."""
    names = ", ".join(sorted(chosen))
    if len(chosen) > 1:
        return invalid_argument("ResourceType", names, f"Conflicting query string parameters: {names}")
    if method == "PUT" and chosen & {"partNumber", "uploadId"}:
        return invalid_argument("ResourceType", names, "An upload of a part needs partNumber and uploadId.")
    allowed = sorted(
        {row.method for row in ROUTES if row.level is level and frozenset(row.subresources) == chosen}
    )
    return S3Error(
        ErrorCode.METHOD_NOT_ALLOWED,
        extra={"Method": method, "ResourceType": names or level.value.upper()},
        headers={"Allow": ", ".join(allowed)} if allowed else {},
    )
