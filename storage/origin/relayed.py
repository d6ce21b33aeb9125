"""Which headers pass the gateway, to the origin and back. Pure.

A header is left out for one of a few reasons, written beside it; all others are passed on as they are, known or not.
"""

from typing import Final

Headers = tuple[tuple[str, str], ...]

_CONNECTION: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Of one connection only (RFC 9110 section 7.6.1); so is what a Connection header names."""

_NOT_SENT: Final = _CONNECTION | {
    # Of the request's framing and addressing, which are made anew.
    "content-length",
    "expect",
    "host",
    "x-amz-decoded-content-length",
    "x-amz-trailer",
    # Of the client's signature.
    "authorization",
    "date",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-security-token",
    # What software on the way may change, so that it must not be signed; and the tracing of the client's own attempts.
    "accept-encoding",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "forwarded",
    "user-agent",
    "via",
    "x-amz-cf-id",
    "x-amz-user-agent",
    "x-amzn-trace-id",
    "x-real-ip",
    # Of the browser and the gateway's own site: its cookies, and its questions about sharing, which are answered here.
    "access-control-request-headers",
    "access-control-request-method",
    "cookie",
    "origin",
}

_NOT_ANSWERED: Final = _CONNECTION | {
    # Made anew for the client's connection.
    "content-length",
    "date",
    "server",
    # Which request of whom it is: ours has an id of its own.
    "x-amz-id-2",
    "x-amz-request-id",
    # Of the origin's own site.
    "alt-svc",
    "set-cookie",
    "strict-transport-security",
}

_OURS: Final = ("x-forebay-", "x-forwarded-")
_SHARING: Final = ("access-control-",)


def passed_headers(headers: Headers) -> Headers:
    """Give what of a client's headers goes on to the origin, names in lower case."""
    return _kept(headers, _NOT_SENT, _OURS)


def answered_headers(headers: Headers) -> Headers:
    """Give what of an answer's headers goes back to the client, names in lower case."""
    return _kept(headers, _NOT_ANSWERED, _SHARING)


def _kept(headers: Headers, dropped: frozenset[str], prefixes: tuple[str, ...]) -> Headers:
    lowered = tuple((name.lower(), value) for name, value in headers)
    named = {
        token.strip().lower() for name, value in lowered if name == "connection" for token in value.split(",")
    }
    return tuple(
        (name, value)
        for name, value in lowered
        if name not in dropped and name not in named and not name.startswith(prefixes)
    )
