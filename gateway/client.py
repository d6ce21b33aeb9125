"""Speak to a running gateway as the command line does: signed requests over plain http.client, blocking.

Used by commands and the demo only; everything in the service is asynchronous.
"""

import hashlib
import http.client
import re
from collections.abc import Callable, Mapping
from html import unescape
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from storage.origin.signing import SigningIdentity, sign_headers, uri_encode

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
"""Longer than any answer takes: a barrier is waited for in steps of 20 seconds at most."""

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024

_REGION: Final = "us-east-1"
_MESSAGE: Final = re.compile(r"<Code>(?P<code>[^<]*)</Code><Message>(?P<message>[^<]*)</Message>")


class GatewayError(Exception):
    """The gateway refused, or cannot be reached. One line for people."""


class GatewayClient:
    """Sends signed requests to one endpoint, a connection each.

    Args:
        endpoint: `http(s)://HOST[:PORT]`.
        access_key: With the admin right for what lies under `/-/`.
        secret_key: Its secret.
        wall_s: The wall clock.
    """

    def __init__(self, endpoint: str, access_key: str, secret_key: str, wall_s: Callable[[], float]) -> None:
        self._endpoint: Final = endpoint
        self._identity: Final = SigningIdentity(access_key, secret_key, _REGION)
        self._wall_s: Final = wall_s

    def call(
        self, method: str, path: str, parameters: Mapping[str, str] | None = None, body: bytes = b""
    ) -> bytes:
        """Send a request; give the body of the answer.

        Raises:
            GatewayError: No connection, or any answer but 2xx.
        """
        query = "&".join(
            f"{uri_encode(name)}={uri_encode(value)}" for name, value in (parameters or {}).items()
        )
        target = f"{path}?{query}" if query else path
        url = urlsplit(self._endpoint)
        digest = hashlib.sha256(body).hexdigest()
        headers = sign_headers(self._identity, method, target, {"host": url.netloc}, digest, self._wall_s())
        make = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = make(url.netloc, timeout=TIMEOUT_S)
        try:
            connection.request(
                method, target, body or None, headers={**headers, "content-length": str(len(body))}
            )
            answer = connection.getresponse()
            told = answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise GatewayError(f"{self._endpoint} does not answer: {error}") from error
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise GatewayError(f"{method} {path}: {_reason(answer.status, told)}")
        return told

    def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> T:
        """Send a request and read its JSON answer.

        Raises:
            GatewayError: As `call`, or the answer is not of that kind: the gateway is of another version.
        """
        try:
            return msgspec.json.decode(self.call(method, path, parameters, body), type=kind)
        except msgspec.DecodeError as error:
            raise GatewayError(f"{method} {path}: the answer cannot be read: {error}") from error


def _reason(status: int, body: bytes) -> str:
    match = _MESSAGE.search(body.decode("utf-8", "replace"))
    return f"{status}" if match is None else f"{status} {match['code']}: {unescape(match['message'])}"
