"""What the gateway answers when it cannot do what was asked: codes, their statuses, and the one renderer.

Codes and default messages follow AWS S3 API Reference "Error responses"; tools match on the code, people read the message.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from gateway.s3.documents_out import XML_DECLARATION, escape


class ErrorCode(StrEnum):
    """The S3 error codes that the gateway makes itself; what the origin says passes as it is."""

    ACCESS_DENIED = "AccessDenied"
    ACCESS_FORBIDDEN = "AccessForbidden"
    AUTHORIZATION_HEADER_MALFORMED = "AuthorizationHeaderMalformed"
    AUTHORIZATION_QUERY_PARAMETERS_ERROR = "AuthorizationQueryParametersError"
    BAD_DIGEST = "BadDigest"
    BAD_REQUEST = "BadRequest"
    BUCKET_ALREADY_EXISTS = "BucketAlreadyExists"
    BUCKET_ALREADY_OWNED_BY_YOU = "BucketAlreadyOwnedByYou"
    BUCKET_NOT_EMPTY = "BucketNotEmpty"
    CONDITIONAL_REQUEST_CONFLICT = "ConditionalRequestConflict"
    ENTITY_TOO_LARGE = "EntityTooLarge"
    ENTITY_TOO_SMALL = "EntityTooSmall"
    ILLEGAL_LOCATION_CONSTRAINT = "IllegalLocationConstraintException"
    INCOMPLETE_BODY = "IncompleteBody"
    INTERNAL_ERROR = "InternalError"
    INVALID_ACCESS_KEY_ID = "InvalidAccessKeyId"
    INVALID_ARGUMENT = "InvalidArgument"
    INVALID_BUCKET_NAME = "InvalidBucketName"
    INVALID_CHUNK_SIZE = "InvalidChunkSizeError"
    INVALID_DIGEST = "InvalidDigest"
    INVALID_LOCATION_CONSTRAINT = "InvalidLocationConstraint"
    INVALID_OBJECT_STATE = "InvalidObjectState"
    INVALID_PART = "InvalidPart"
    INVALID_PART_NUMBER = "InvalidPartNumber"
    INVALID_PART_ORDER = "InvalidPartOrder"
    INVALID_POLICY_DOCUMENT = "InvalidPolicyDocument"
    INVALID_RANGE = "InvalidRange"
    INVALID_REQUEST = "InvalidRequest"
    INVALID_STORAGE_CLASS = "InvalidStorageClass"
    INVALID_TAG = "InvalidTag"
    INVALID_URI = "InvalidURI"
    KEY_TOO_LONG = "KeyTooLongError"
    MALFORMED_POST_REQUEST = "MalformedPOSTRequest"
    MALFORMED_TRAILER = "MalformedTrailerError"
    MALFORMED_XML = "MalformedXML"
    MAX_MESSAGE_LENGTH_EXCEEDED = "MaxMessageLengthExceeded"
    MAX_POST_PRE_DATA_LENGTH_EXCEEDED = "MaxPostPreDataLengthExceededError"
    METADATA_TOO_LARGE = "MetadataTooLarge"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    MISSING_CONTENT_LENGTH = "MissingContentLength"
    MISSING_REQUEST_BODY = "MissingRequestBodyError"
    NO_SUCH_BUCKET = "NoSuchBucket"
    NO_SUCH_KEY = "NoSuchKey"
    NO_SUCH_UPLOAD = "NoSuchUpload"
    NO_SUCH_VERSION = "NoSuchVersion"
    NOT_IMPLEMENTED = "NotImplemented"
    NOT_MODIFIED = "NotModified"
    OPERATION_ABORTED = "OperationAborted"
    PRECONDITION_FAILED = "PreconditionFailed"
    REQUEST_HEADER_SECTION_TOO_LARGE = "RequestHeaderSectionTooLarge"
    REQUEST_IS_NOT_MULTIPART = "RequestIsNotMultiPartContent"
    REQUEST_TIME_TOO_SKEWED = "RequestTimeTooSkewed"
    REQUEST_TIMEOUT = "RequestTimeout"
    SERVICE_UNAVAILABLE = "ServiceUnavailable"
    SIGNATURE_DOES_NOT_MATCH = "SignatureDoesNotMatch"
    SLOW_DOWN = "SlowDown"
    UNEXPECTED_CONTENT = "UnexpectedContent"
    X_AMZ_CONTENT_SHA256_MISMATCH = "XAmzContentSHA256Mismatch"


ERRORS: Final[Mapping[str, tuple[int, str]]] = MappingProxyType(
    {
        ErrorCode.ACCESS_DENIED: (403, "Access Denied"),
        ErrorCode.ACCESS_FORBIDDEN: (403, "Access Forbidden"),
        ErrorCode.AUTHORIZATION_HEADER_MALFORMED: (400, "The authorization header is malformed."),
        ErrorCode.AUTHORIZATION_QUERY_PARAMETERS_ERROR: (
            400,
            "A presigned URL has X-Amz-Algorithm, -Credential, -Date, -Expires, -SignedHeaders and -Signature, each once.",
        ),
        ErrorCode.BAD_DIGEST: (
            400,
            "The Content-MD5 or checksum value you specified did not match what we received.",
        ),
        ErrorCode.BAD_REQUEST: (400, "An error occurred when parsing the HTTP request."),
        ErrorCode.BUCKET_ALREADY_EXISTS: (409, "The requested bucket name is not available."),
        ErrorCode.BUCKET_ALREADY_OWNED_BY_YOU: (
            409,
            "The bucket you tried to create already exists, and you own it.",
        ),
        ErrorCode.BUCKET_NOT_EMPTY: (409, "The bucket you tried to delete is not empty."),
        ErrorCode.CONDITIONAL_REQUEST_CONFLICT: (
            409,
            "A conflicting operation occurred during the request; retry it.",
        ),
        ErrorCode.ENTITY_TOO_LARGE: (400, "Your proposed upload exceeds the maximum allowed object size."),
        ErrorCode.ENTITY_TOO_SMALL: (400, "Your proposed upload is smaller than the minimum allowed size."),
        ErrorCode.ILLEGAL_LOCATION_CONSTRAINT: (
            400,
            "The location constraint does not fit the endpoint's region.",
        ),
        ErrorCode.INCOMPLETE_BODY: (
            400,
            "You did not provide the number of bytes that the Content-Length header says.",
        ),
        ErrorCode.INTERNAL_ERROR: (500, "We encountered an internal error. Please try again."),
        ErrorCode.INVALID_ACCESS_KEY_ID: (
            403,
            "The access key ID you provided does not exist in our records.",
        ),
        ErrorCode.INVALID_ARGUMENT: (400, "Invalid Argument"),
        ErrorCode.INVALID_BUCKET_NAME: (400, "The specified bucket is not valid."),
        ErrorCode.INVALID_CHUNK_SIZE: (
            403,
            "Only the last chunk is allowed to have a size less than 8192 bytes.",
        ),
        ErrorCode.INVALID_DIGEST: (400, "The Content-MD5 or checksum value you specified is not valid."),
        ErrorCode.INVALID_LOCATION_CONSTRAINT: (400, "The specified location constraint is not valid."),
        ErrorCode.INVALID_OBJECT_STATE: (403, "The operation is not valid for the object's storage class."),
        ErrorCode.INVALID_PART: (
            400,
            "One or more of the specified parts was not uploaded, or its entity tag or checksum does not match.",
        ),
        ErrorCode.INVALID_PART_NUMBER: (416, "The requested part number is not satisfiable."),
        ErrorCode.INVALID_PART_ORDER: (
            400,
            "The list of parts was not in ascending order. Parts must be ordered by part number.",
        ),
        ErrorCode.INVALID_POLICY_DOCUMENT: (
            400,
            "The content of the form does not meet the conditions specified in the policy document.",
        ),
        ErrorCode.INVALID_RANGE: (416, "The requested range is not satisfiable."),
        ErrorCode.INVALID_REQUEST: (400, "The request is not valid."),
        ErrorCode.INVALID_STORAGE_CLASS: (400, "The storage class you specified is not valid."),
        ErrorCode.INVALID_TAG: (400, "The tag provided was not a valid tag."),
        ErrorCode.INVALID_URI: (400, "Couldn't parse the specified URI."),
        ErrorCode.KEY_TOO_LONG: (400, "Your key is too long."),
        ErrorCode.MALFORMED_POST_REQUEST: (
            400,
            "The body of your POST request is not well-formed multipart/form-data.",
        ),
        ErrorCode.MALFORMED_TRAILER: (400, "The request contained trailing data that was not well-formed."),
        ErrorCode.MALFORMED_XML: (
            400,
            "The XML you provided was not well-formed or did not validate against our published schema.",
        ),
        ErrorCode.MAX_MESSAGE_LENGTH_EXCEEDED: (400, "Your request was too large."),
        ErrorCode.MAX_POST_PRE_DATA_LENGTH_EXCEEDED: (
            400,
            "Your POST request fields preceding the upload file were too large.",
        ),
        ErrorCode.METADATA_TOO_LARGE: (
            400,
            "Your metadata headers exceed the maximum allowed metadata size.",
        ),
        ErrorCode.METHOD_NOT_ALLOWED: (405, "The specified method is not allowed against this resource."),
        ErrorCode.MISSING_CONTENT_LENGTH: (411, "You must provide the Content-Length HTTP header."),
        ErrorCode.MISSING_REQUEST_BODY: (400, "Request body is empty."),
        ErrorCode.NO_SUCH_BUCKET: (404, "The specified bucket does not exist."),
        ErrorCode.NO_SUCH_KEY: (404, "The specified key does not exist."),
        ErrorCode.NO_SUCH_UPLOAD: (
            404,
            "The specified multipart upload does not exist. It may have been aborted or completed.",
        ),
        ErrorCode.NO_SUCH_VERSION: (404, "The specified version does not exist."),
        ErrorCode.NOT_IMPLEMENTED: (
            501,
            "A header or operation you provided implies functionality that is not implemented.",
        ),
        ErrorCode.NOT_MODIFIED: (304, "Not Modified"),
        ErrorCode.OPERATION_ABORTED: (
            409,
            "A conflicting operation is in progress against this resource. Try again.",
        ),
        ErrorCode.PRECONDITION_FAILED: (412, "At least one of the preconditions you specified did not hold."),
        ErrorCode.REQUEST_HEADER_SECTION_TOO_LARGE: (
            400,
            "Your request header section exceeds the maximum allowed size.",
        ),
        ErrorCode.REQUEST_IS_NOT_MULTIPART: (
            400,
            "Bucket POST must be of the enclosure-type multipart/form-data.",
        ),
        ErrorCode.REQUEST_TIME_TOO_SKEWED: (
            403,
            "The difference between the request time and the server's time is too large.",
        ),
        ErrorCode.REQUEST_TIMEOUT: (
            400,
            "Your socket connection was not read from or written to within the timeout period.",
        ),
        ErrorCode.SERVICE_UNAVAILABLE: (503, "Service is unable to handle the request. Please try again."),
        ErrorCode.SIGNATURE_DOES_NOT_MATCH: (
            403,
            "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
        ),
        ErrorCode.SLOW_DOWN: (503, "Please reduce your request rate."),
        ErrorCode.UNEXPECTED_CONTENT: (400, "This request does not support content."),
        ErrorCode.X_AMZ_CONTENT_SHA256_MISMATCH: (
            400,
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        ),
    }
)
"""HTTP status and default message of each code."""


class S3Error(Exception):
    """A request that ends in an S3 error answer.

    Attributes:
        code: The S3 error code; the origin's own where it refused.
        status: The HTTP status.
        message: For people.
        extra: Further elements of the error document, name to text.
        headers: Further response headers, as they go over the wire.
    """

    def __init__(
        self,
        code: ErrorCode | str,
        message: str | None = None,
        *,
        status: int | None = None,
        extra: Mapping[str, str] = MappingProxyType({}),
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        default_status, default_message = ERRORS.get(code, (500, ""))
        self.code = str(code)
        self.status = default_status if status is None else status
        self.message = default_message if message is None else message
        self.extra = extra
        self.headers = headers
        super().__init__(f"{self.code}: {self.message}")


def invalid_argument(name: str, value: str, message: str) -> S3Error:
    """Make the InvalidArgument of one parameter, which the document names with what was sent."""
    return S3Error(ErrorCode.INVALID_ARGUMENT, message, extra={"ArgumentName": name, "ArgumentValue": value})


def render(error: S3Error, *, resource: str, request_id: str, host_id: str = "") -> bytes:
    """Write the error document; a HEAD or 304 answer leaves it out.

    Args:
        error: What went wrong.
        resource: The path that was asked for, as received.
        request_id: As in x-amz-request-id.
        host_id: As in x-amz-id-2.
    """
    extra = "".join([f"<{name}>{escape(value)}</{name}>" for name, value in error.extra.items()])
    return (
        f"{XML_DECLARATION}<Error><Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>{extra}"
        f"<Resource>{escape(resource)}</Resource><RequestId>{escape(request_id)}</RequestId>"
        f"<HostId>{escape(host_id)}</HostId></Error>"
    ).encode("utf-8", "replace")
