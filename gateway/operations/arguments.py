"""What requests of several operations say in the same way."""

from collections.abc import Mapping
from typing import Final

from gateway.context import HeaderPairs, OperationContext
from gateway.s3.documents_out import Owner
from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from gateway.s3.passage import with_hoisted
from gateway.s3.request import S3Request
from gateway.s3.versions import read_version_id
from storage.origin.relayed import answered_headers
from storage.types import KIB, ObjectName, WriteMode

DURABILITY: Final = "x-forebay-durability"

GENERATION: Final = "x-forebay-generation"

WRITE_HEADERS_BYTES_MAX: Final = 8 * KIB

COUNT_MAX: Final = 2**31 - 1
"""The greatest number that a listing may ask for; S3 gives less, and says how much (AWS "ListObjectsV2")."""

_DURABILITIES: Final[Mapping[str, WriteMode]] = {"origin": WriteMode.THROUGH, "disk": WriteMode.BACK}


def object_name(request: S3Request) -> ObjectName:
    """Give the object that a request names."""
    return ObjectName(request.bucket, request.key)


def version_name(request: S3Request) -> ObjectName:
    """Give the object that a request names, or the version of it.

    Raises:
        S3Error: InvalidArgument: a version id that none can be.
    """
    return ObjectName(request.bucket, request.key, read_version_id(request.query.get("versionId")))


def name_generation(context: OperationContext, generation: int | None) -> None:
    """Have the answer, an error too, say of which generation of a published target it is, None: of none; the last word counts."""
    context.stamps[:] = [stamp for stamp in context.stamps if stamp[0] != GENERATION]
    if generation is not None:
        context.stamps.append((GENERATION, str(generation)))


def quoted(etag: str) -> str:
    """Write an ETag as it stands in a header."""
    return f'"{etag}"'


def write_headers(request: S3Request) -> Mapping[str, str]:
    """Give the headers of a write, with those that the signer of a URL moved into its query.

    Raises:
        S3Error: RequestHeaderSectionTooLarge: more than the origin would take (AWS "Working with object metadata": the
            headers of a PUT are limited to 8 KB); acknowledged here it would be refused there for good.
    """
    headers = with_hoisted(request.headers.combined, request.query.pairs)
    if sum(len(name) + len(value) for name, value in headers.items()) > WRITE_HEADERS_BYTES_MAX:
        raise S3Error(ErrorCode.REQUEST_HEADER_SECTION_TOO_LARGE)
    return headers


def durability(headers: Mapping[str, str]) -> WriteMode | None:
    """Read how the client wants its write acknowledged; None where the policy decides.

    Raises:
        S3Error: InvalidArgument for anything but `origin` and `disk`.
    """
    value = headers.get(DURABILITY)
    if value is None:
        return None
    mode = _DURABILITIES.get(value.lower())
    if mode is None:
        raise invalid_argument(DURABILITY, value, f"{DURABILITY} is origin or disk.")
    return mode


def count_parameter(request: S3Request, name: str, *, default: int, most: int) -> int:
    """Read a number of the query such as `max-keys`; more than `most` means `most`.

    Raises:
        S3Error: InvalidArgument: no number, negative, or over COUNT_MAX.
    """
    text = request.query.get(name)
    if text is None or text == "":
        return default
    if text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) <= COUNT_MAX:
        return min(int(text), most)
    message = f"Argument {name} must be an integer between 0 and {COUNT_MAX}"
    raise invalid_argument(name, text, message)


def is_url_encoded(request: S3Request) -> bool:
    """Say whether a listing's names are to be percent-encoded.

    Raises:
        S3Error: InvalidArgument: another encoding than `url`.
    """
    encoding = request.query.get("encoding-type")
    if encoding is None or encoding == "":
        return False
    if encoding.lower() != "url":
        raise invalid_argument("encoding-type", encoding, "Invalid Encoding Method specified in Request")
    return True


async def account_owner(context: OperationContext) -> Owner:
    """Give the owner of what is written here, as documents name it."""
    found = await context.store.owner()
    return Owner(found.id, found.display_name)


def end_to_end(headers: HeaderPairs) -> HeaderPairs:
    """Give the headers of an answer of the origin that a client may see."""
    return answered_headers(headers)


def written_headers(own: HeaderPairs, of_origin: HeaderPairs) -> HeaderPairs:
    """Join what is said here of a write and what the origin said of it; what both say, a checksum, stands once.

    A client reads a header that is there twice as one value with a comma in it (RFC 9110 section 5.3).
    """
    names = {name for name, _ in own}
    return (*own, *(pair for pair in end_to_end(of_origin) if pair[0] not in names))


def resource_url(context: OperationContext, request: S3Request) -> str:
    """Write the URL of the resource that a request names, as the client reached it."""
    host = request.headers.get("host") or "localhost"
    return f"{context.scheme}://{host}{request.raw_path}"
