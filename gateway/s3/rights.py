"""Which right each operation needs, and on which names: one table, and the decision over it.

    operation ─> Need(right, scope) ─> names that the request speaks of ─> does the key hold the right on all of them?

An operation that has no row, as one that nobody here has heard of, is for unrestricted keys only: one which is added and forgotten
here is closed, not open.
What a header adds to an operation is asked for as well: the source of a copy must be readable, as must be what `If-Match` compares
with (AWS "How to prevent object overwrites with conditional writes": If-Match needs s3:GetObject), and an ACL or a lock
needs what the operation that sets it needs.

A listing needs the right on every name that begins with the prefix that was asked for. A wider one is refused, never filtered:
see ADR 0018.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, assert_never

from gateway.grants import Access, Right
from gateway.s3.copy_source import SOURCE, parse_copy_source
from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.passage import CONDITIONAL_HEADERS, with_hoisted
from gateway.s3.request import S3Request
from gateway.s3.routes import Operation

ASSUMED_ACLS: Final = frozenset({"private", "bucket-owner-full-control", "bucket-owner-read"})
"""Canned ACLs that give nobody but the bucket's owner anything: some clients send one with every write."""

_POWERS: Final = ("x-amz-acl", "x-amz-grant-", "x-amz-object-lock-", "x-amz-bypass-governance-retention")


class Scope(Enum):
    """On which names an operation needs its right.

    Attributes:
        OBJECT: The object that the path names.
        PREFIX: Every name that begins with the `prefix` of the query.
        BUCKET: The whole bucket.
        BUCKET_NAME: Anything in the bucket: only that it is there is told, and where.
        EACH: Names that stand in the body. Something in the bucket here, and the operation asks for each.
        SIGNED: None in particular; the operation leaves out what the key may not see.
        UNRESTRICTED: All there are: it names other objects or buckets in its body, or hands out credentials.
        OPEN: None, not even a signature: preflights.
    """

    OBJECT = "object"
    PREFIX = "prefix"
    BUCKET = "bucket"
    BUCKET_NAME = "bucket name"
    EACH = "each"
    SIGNED = "signed"
    UNRESTRICTED = "unrestricted"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Need:
    """What an operation needs: `right` on the names of `scope`."""

    right: Right
    scope: Scope


_READ_OBJECT: Final = Need(Right.READ, Scope.OBJECT)
_LIST: Final = Need(Right.READ, Scope.PREFIX)
_READ_BUCKET: Final = Need(Right.READ, Scope.BUCKET)
_SEE_BUCKET: Final = Need(Right.READ, Scope.BUCKET_NAME)
_WRITE_OBJECT: Final = Need(Right.WRITE, Scope.OBJECT)
_ADMIN_OBJECT: Final = Need(Right.ADMIN, Scope.OBJECT)
_UNRESTRICTED: Final = Need(Right.ADMIN, Scope.UNRESTRICTED)
_ADMIN_BUCKET: Final = Need(Right.ADMIN, Scope.BUCKET)

_SPECIAL: Final[Mapping[Operation, Need]] = {
    Operation.LIST_BUCKETS: Need(Right.READ, Scope.SIGNED),
    Operation.OPTIONS_OBJECT: Need(Right.READ, Scope.OPEN),
    Operation.DELETE_OBJECTS: Need(Right.WRITE, Scope.EACH),
    Operation.HEAD_BUCKET: _SEE_BUCKET,
    Operation.GET_BUCKET_LOCATION: _SEE_BUCKET,
    # How the bucket keeps what is written to it: tools ask before they list or write.
    Operation.GET_BUCKET_ENCRYPTION: _READ_BUCKET,
    Operation.GET_BUCKET_VERSIONING: _READ_BUCKET,
    Operation.GET_OBJECT_LOCK_CONFIGURATION: _READ_BUCKET,
    Operation.LIST_MULTIPART_UPLOADS: _LIST,
    Operation.LIST_OBJECT_VERSIONS: _LIST,
    Operation.LIST_OBJECTS: _LIST,
    Operation.LIST_OBJECTS_V2: _LIST,
    Operation.GET_OBJECT: _READ_OBJECT,
    Operation.GET_OBJECT_ANNOTATION: _READ_OBJECT,
    Operation.GET_OBJECT_ATTRIBUTES: _READ_OBJECT,
    Operation.GET_OBJECT_LEGAL_HOLD: _READ_OBJECT,
    Operation.GET_OBJECT_RETENTION: _READ_OBJECT,
    Operation.GET_OBJECT_TAGGING: _READ_OBJECT,
    Operation.GET_OBJECT_TORRENT: _READ_OBJECT,
    Operation.HEAD_OBJECT: _READ_OBJECT,
    Operation.LIST_OBJECT_ANNOTATIONS: _READ_OBJECT,
    Operation.LIST_PARTS: _READ_OBJECT,
    Operation.SELECT_OBJECT_CONTENT: _READ_OBJECT,
    Operation.ABORT_MULTIPART_UPLOAD: _WRITE_OBJECT,
    Operation.COMPLETE_MULTIPART_UPLOAD: _WRITE_OBJECT,
    Operation.COPY_OBJECT: _WRITE_OBJECT,
    Operation.CREATE_MULTIPART_UPLOAD: _WRITE_OBJECT,
    Operation.DELETE_OBJECT: _WRITE_OBJECT,
    Operation.DELETE_OBJECT_ANNOTATION: _WRITE_OBJECT,
    Operation.DELETE_OBJECT_TAGGING: _WRITE_OBJECT,
    # The object that the form names; its fields are headers by then.
    Operation.POST_OBJECT: _WRITE_OBJECT,
    Operation.PUT_OBJECT: _WRITE_OBJECT,
    Operation.PUT_OBJECT_ANNOTATION: _WRITE_OBJECT,
    Operation.PUT_OBJECT_TAGGING: _WRITE_OBJECT,
    Operation.UPLOAD_PART: _WRITE_OBJECT,
    Operation.UPLOAD_PART_COPY: _WRITE_OBJECT,
    # Who may do what with an object, and for how long nobody may remove it.
    Operation.GET_OBJECT_ACL: _ADMIN_OBJECT,
    Operation.PUT_OBJECT_ACL: _ADMIN_OBJECT,
    Operation.PUT_OBJECT_LEGAL_HOLD: _ADMIN_OBJECT,
    Operation.PUT_OBJECT_RETENTION: _ADMIN_OBJECT,
    Operation.UPDATE_OBJECT_ENCRYPTION: _ADMIN_OBJECT,
    Operation.CREATE_SESSION: _UNRESTRICTED,
    Operation.RENAME_OBJECT: _UNRESTRICTED,
    Operation.RESTORE_OBJECT: _UNRESTRICTED,
}

_OF_BUCKETS: Final = (
    Operation.CREATE_BUCKET,
    Operation.CREATE_BUCKET_METADATA_CONFIGURATION,
    Operation.CREATE_BUCKET_METADATA_TABLE_CONFIGURATION,
    Operation.DELETE_BUCKET,
    Operation.DELETE_BUCKET_ANALYTICS_CONFIGURATION,
    Operation.DELETE_BUCKET_CORS,
    Operation.DELETE_BUCKET_ENCRYPTION,
    Operation.DELETE_BUCKET_INTELLIGENT_TIERING_CONFIGURATION,
    Operation.DELETE_BUCKET_INVENTORY_CONFIGURATION,
    Operation.DELETE_BUCKET_LIFECYCLE,
    Operation.DELETE_BUCKET_METADATA_CONFIGURATION,
    Operation.DELETE_BUCKET_METADATA_TABLE_CONFIGURATION,
    Operation.DELETE_BUCKET_METRICS_CONFIGURATION,
    Operation.DELETE_BUCKET_OWNERSHIP_CONTROLS,
    Operation.DELETE_BUCKET_POLICY,
    Operation.DELETE_BUCKET_REPLICATION,
    Operation.DELETE_BUCKET_TAGGING,
    Operation.DELETE_BUCKET_WEBSITE,
    Operation.DELETE_PUBLIC_ACCESS_BLOCK,
    Operation.GET_BUCKET_ABAC,
    Operation.GET_BUCKET_ACCELERATE_CONFIGURATION,
    Operation.GET_BUCKET_ACL,
    Operation.GET_BUCKET_ANALYTICS_CONFIGURATION,
    Operation.GET_BUCKET_CORS,
    Operation.GET_BUCKET_INTELLIGENT_TIERING_CONFIGURATION,
    Operation.GET_BUCKET_INVENTORY_CONFIGURATION,
    Operation.GET_BUCKET_LIFECYCLE_CONFIGURATION,
    Operation.GET_BUCKET_LOGGING,
    Operation.GET_BUCKET_METADATA_CONFIGURATION,
    Operation.GET_BUCKET_METADATA_TABLE_CONFIGURATION,
    Operation.GET_BUCKET_METRICS_CONFIGURATION,
    Operation.GET_BUCKET_NOTIFICATION_CONFIGURATION,
    Operation.GET_BUCKET_OWNERSHIP_CONTROLS,
    Operation.GET_BUCKET_POLICY,
    Operation.GET_BUCKET_POLICY_STATUS,
    Operation.GET_BUCKET_REPLICATION,
    Operation.GET_BUCKET_REQUEST_PAYMENT,
    Operation.GET_BUCKET_TAGGING,
    Operation.GET_BUCKET_WEBSITE,
    Operation.GET_PUBLIC_ACCESS_BLOCK,
    Operation.LIST_BUCKET_ANALYTICS_CONFIGURATIONS,
    Operation.LIST_BUCKET_INTELLIGENT_TIERING_CONFIGURATIONS,
    Operation.LIST_BUCKET_INVENTORY_CONFIGURATIONS,
    Operation.LIST_BUCKET_METRICS_CONFIGURATIONS,
    Operation.PUT_BUCKET_ABAC,
    Operation.PUT_BUCKET_ACCELERATE_CONFIGURATION,
    Operation.PUT_BUCKET_ACL,
    Operation.PUT_BUCKET_ANALYTICS_CONFIGURATION,
    Operation.PUT_BUCKET_CORS,
    Operation.PUT_BUCKET_ENCRYPTION,
    Operation.PUT_BUCKET_INTELLIGENT_TIERING_CONFIGURATION,
    Operation.PUT_BUCKET_INVENTORY_CONFIGURATION,
    Operation.PUT_BUCKET_LIFECYCLE_CONFIGURATION,
    Operation.PUT_BUCKET_LOGGING,
    Operation.PUT_BUCKET_METRICS_CONFIGURATION,
    Operation.PUT_BUCKET_NOTIFICATION_CONFIGURATION,
    Operation.PUT_BUCKET_OWNERSHIP_CONTROLS,
    Operation.PUT_BUCKET_POLICY,
    Operation.PUT_BUCKET_REPLICATION,
    Operation.PUT_BUCKET_REQUEST_PAYMENT,
    Operation.PUT_BUCKET_TAGGING,
    Operation.PUT_BUCKET_VERSIONING,
    Operation.PUT_BUCKET_WEBSITE,
    Operation.PUT_OBJECT_LOCK_CONFIGURATION,
    Operation.PUT_PUBLIC_ACCESS_BLOCK,
    Operation.UPDATE_BUCKET_METADATA_ANNOTATION_TABLE_CONFIGURATION,
    Operation.UPDATE_BUCKET_METADATA_INVENTORY_TABLE_CONFIGURATION,
    Operation.UPDATE_BUCKET_METADATA_JOURNAL_TABLE_CONFIGURATION,
)
"""Buckets and their configuration, read or changed."""

NEEDS: Final[Mapping[Operation, Need]] = MappingProxyType(
    {**dict.fromkeys(_OF_BUCKETS, _ADMIN_BUCKET), **_SPECIAL}
)
"""What each operation needs."""


def may(access: Access, operation: Operation, request: S3Request, key: str) -> bool:
    """Whether a key of the gateway may do an operation on one object of the request's bucket, which its body names.

    What the request's headers add is asked for as well, as `authorise` does for the object that a path names.
    """
    if access.is_unrestricted:
        return True
    need = NEEDS.get(operation)
    return need is not None and all(
        access.allows(right, request.bucket, key) for right in (need.right, *_added(need.right, request))
    )


def authorise(access: Access, operation: Operation, request: S3Request, *, is_signed: bool) -> None:
    """Refuse a request that its key has no right to.

    Raises:
        S3Error: AccessDenied; InvalidArgument, the source of a copy names none.
    """
    if access.is_unrestricted:
        return
    need = NEEDS.get(operation)
    if need is None or not _is_met(need, access, request, is_signed=is_signed):
        raise S3Error(ErrorCode.ACCESS_DENIED)
    if need.scope is Scope.OBJECT:
        for right in _added(need.right, request):
            if not access.allows(right, request.bucket, request.key):
                raise S3Error(ErrorCode.ACCESS_DENIED)
        _authorise_source(access, operation, request)


def _is_met(need: Need, access: Access, request: S3Request, *, is_signed: bool) -> bool:
    bucket = request.bucket
    match need.scope:
        case Scope.OBJECT | Scope.PREFIX | Scope.BUCKET:
            start = _start(need.scope, request)
            return start is not None and access.allows(need.right, bucket, start)
        case Scope.BUCKET_NAME:
            return access.holds_any(bucket)
        case Scope.EACH:
            return access.holds_any(bucket, need.right)
        case Scope.SIGNED:
            return is_signed
        case Scope.UNRESTRICTED | Scope.OPEN:
            return need.scope is Scope.OPEN
        case _:
            assert_never(need.scope)


def _start(scope: Scope, request: S3Request) -> str | None:
    """Give what all names begin with that a request is about; None where that can be read in two ways."""
    if scope is not Scope.PREFIX:
        return request.key if scope is Scope.OBJECT else ""
    prefixes = [value for name, value in request.query.pairs if name == "prefix"]
    # Of two, the origin may take the other one.
    return None if len(prefixes) > 1 else "".join(prefixes)


def _added(right: Right, request: S3Request) -> Iterator[Right]:
    """Give what the headers of a write ask for beyond the write itself."""
    if right is not Right.WRITE:
        return
    headers = with_hoisted(request.headers.combined, request.query.pairs)
    if any(_compares(name, value) for name, value in headers.items()):
        yield Right.READ
    for name, value in headers.items():
        if name.startswith(_POWERS) and not (name == "x-amz-acl" and value in ASSUMED_ACLS):
            yield Right.ADMIN


def _compares(name: str, value: str) -> bool:
    """Whether a header's outcome tells what an object is; that there is one, `If-None-Match: *` may tell to who may write it."""
    if name == "if-none-match":
        return value.strip() != "*"
    return name in CONDITIONAL_HEADERS or name.startswith("x-amz-if-match-")


def _authorise_source(access: Access, operation: Operation, request: S3Request) -> None:
    if operation not in {Operation.COPY_OBJECT, Operation.UPLOAD_PART_COPY}:
        return
    source = parse_copy_source(request.headers.get(SOURCE) or "")
    if not access.allows(Right.READ, source.bucket, source.key):
        raise S3Error(ErrorCode.ACCESS_DENIED)
