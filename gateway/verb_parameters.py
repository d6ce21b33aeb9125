"""Parameters of the gateway's own verbs, as they stand in the query."""

from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from gateway.s3.request import S3Request


def optional(request: S3Request, name: str) -> str:
    """Give a parameter, "" where it is missing."""
    return request.query.get(name) or ""


def required(request: S3Request, name: str) -> str:
    """Give a parameter.

    Raises:
        S3Error: InvalidArgument, it is missing.
    """
    value = request.query.get(name)
    if not value:
        raise invalid_argument(name, "", f"The parameter {name} is missing.")
    return value


def number(name: str, text: str) -> int:
    """Read a whole number.

    Raises:
        S3Error: InvalidArgument, it is none.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise invalid_argument(name, text, f"{name} is not a number.")
    return int(text)


def optional_number(request: S3Request, name: str, default: int = 0) -> int:
    """Give a parameter that is a whole number, `default` where it is missing; errors as `number`."""
    text = optional(request, name)
    return number(name, text) if text else default


def not_allowed(request: S3Request) -> S3Error:
    """Say that a path is no verb, or takes another method."""
    return S3Error(
        ErrorCode.METHOD_NOT_ALLOWED, extra={"Method": request.method, "ResourceType": request.key}
    )


def truth(request: S3Request, name: str) -> bool:
    """Whether a parameter is 1 or true."""
    return optional(request, name) in {"1", "true"}
