"""Speak to a running gateway as the command line does: signed requests over plain http.client, blocking.

Used by commands and the demo only; everything in the service is asynchronous.
"""

import hashlib
import http.client
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from html import unescape
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from storage.origin.signing import SigningIdentity, sign_headers, uri_encode
from storage.words import in_words

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
"""Longer than any answer takes: a barrier is waited for in steps of 20 seconds at most."""

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024

_DROPPED_BYTES: Final = 4096

_REGION: Final = "us-east-1"
_MESSAGE: Final = re.compile(r"<Code>(?P<code>[^<]*)</Code><Message>(?P<message>[^<]*)</Message>")


class GatewayError(Exception):
    """The gateway refused, with that status, or cannot be reached, with 0. One line for people."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status: Final = status


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
        with closing(self._connection()) as connection:
            answer = self._begun(connection, method, path, parameters, body)
            return self._rest(answer)

    def hold(self, path: str) -> "HeldAnswer":
        """Begin a GET whose answer ends when there is a reason; on return it has begun.

        Raises:
            GatewayError: As `call`.
        """
        with ExitStack() as failing:
            connection = failing.enter_context(closing(self._connection()))
            answer = self._begun(connection, "GET", path)
            failing.pop_all()
        return HeldAnswer(connection, answer)

    def _connection(self) -> http.client.HTTPConnection:
        url = urlsplit(self._endpoint)
        make = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        return make(url.netloc, timeout=TIMEOUT_S)

    def _begun(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> http.client.HTTPResponse:
        """Send a request, the only one of its connection; give its answer, of which the head has come."""
        query = "&".join(
            f"{uri_encode(name)}={uri_encode(value)}" for name, value in (parameters or {}).items()
        )
        target = f"{path}?{query}" if query else path
        digest = hashlib.sha256(body).hexdigest()
        host = urlsplit(self._endpoint).netloc
        headers = sign_headers(self._identity, method, target, {"host": host}, digest, self._wall_s())
        try:
            connection.request(
                method, target, body or None, headers={**headers, "content-length": str(len(body))}
            )
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise GatewayError(f"{self._endpoint} does not answer: {in_words(error)}") from error
        if not 200 <= answer.status < 300:
            reason = _reason(answer.status, self._rest(answer))
            raise GatewayError(f"{method} {path}: {reason}", answer.status)
        return answer

    def _rest(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise GatewayError(f"{self._endpoint} does not answer: {in_words(error)}") from error

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


class HeldAnswer:
    """An answer that is on its way; what it says is dropped, and the gateway sees when this process lets go of it or dies."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        """Take a connection over, with the answer whose head has come."""
        self._connection: Final = connection
        # As long as it is not read to its end, it keeps the connection.
        self._answer: Final = answer
        if connection.sock is not None:
            connection.sock.settimeout(0)

    def is_open(self) -> bool:
        """Say whether the connection still stands; what has come meanwhile makes room for more."""
        connected = self._connection.sock
        try:
            while connected is not None and connected.recv(_DROPPED_BYTES):
                pass
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Let go."""
        self._connection.close()


def _reason(status: int, body: bytes) -> str:
    match = _MESSAGE.search(body.decode("utf-8", "replace"))
    return f"{status}" if match is None else f"{status} {match['code']}: {unescape(match['message'])}"
