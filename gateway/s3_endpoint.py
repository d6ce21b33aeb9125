"""Speak S3 to one endpoint as a client does: signed requests over plain http.client, blocking, one connection.

Used by commands only, a gateway's own endpoint and the origin's alike; everything in the service is asynchronous. It shares the
signing and the reading of documents with the service, and nothing of its cache, limiter or retries: what it is answered is what the
endpoint says now.
"""

import asyncio
import hashlib
import http.client
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from storage.clock import Clock
from storage.errors import StorageError
from storage.origin.credentials import Credentials, CredentialSource
from storage.origin.documents import ListedObject, parse_error, parse_list_page
from storage.origin.endpoint import Address, OriginSettings, address, is_region
from storage.origin.signing import SigningIdentity, sign_headers
from storage.words import in_words

TIMEOUT_S: Final = 60.0
"""How long an endpoint may be silent."""

READ_BYTES: Final = 1 << 20
PAGE_KEYS: Final = 1000

KEYS_FRESH_S: Final = 300.0
"""Keys of the standard AWS chain are asked for again after so long; the chain renews them before they expire."""

TRIES_MAX: Final = 2
"""An idle connection that the other side has closed shows only when it is used: one more try, for reads."""

_REGION_HEADER: Final = "x-amz-bucket-region"


class EndpointError(Exception):
    """The endpoint cannot be reached, broke off, or answered what cannot be read. One line for people.

    `may_land` says that the request had been sent and not answered, with the endpoint still there: it may take effect later.
    """

    def __init__(self, message: str, *, may_land: bool = False) -> None:
        super().__init__(message)
        self.may_land = may_land


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint said; header names are lower case, the ETag is without its quotes."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)

    @property
    def etag(self) -> str:
        """The ETag header."""
        return self.headers.get("etag", "").strip('"')

    @property
    def is_success(self) -> bool:
        """2xx, and no error document inside it (AWS API_CopyObject and API_CompleteMultipartUpload answer so)."""
        return 200 <= self.status < 300 and not self.code

    @property
    def code(self) -> str:
        """The code of the error document, "" without one."""
        document = parse_error(self.body) if b"<Error" in self.body[:1024] else None
        return "" if document is None else document.code


class KeyRing:
    """Keys for the origin as a blocking caller needs them: those of a source, asked again every few minutes."""

    def __init__(self, source: CredentialSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._keys: Credentials | None = None
        self._asked_at_s = 0.0

    def __call__(self) -> Credentials:
        """Give keys that are good now.

        Raises:
            EndpointError: There are none.
        """
        now_s = self._clock.monotonic_s()
        if self._keys is None or now_s - self._asked_at_s > KEYS_FRESH_S:
            try:
                self._keys, self._asked_at_s = asyncio.run(self._ask()), now_s
            except StorageError as error:
                raise EndpointError(str(error)) from error
        return self._keys

    async def _ask(self) -> Credentials:
        return await self._source.credentials()


def _words(error: OSError | http.client.HTTPException) -> str:
    if isinstance(error, http.client.IncompleteRead):
        left = "" if error.expected is None else f", {error.expected} before the end"
        return f"after {len(error.partial)} bytes{left}"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
        return "no HTTP answer"
    return in_words(error)


class S3Endpoint:
    """One connection to one endpoint; of one thread at a time.

    Args:
        settings: Where it is, and how buckets are named there; `answer_s` is how long it may be silent.
        keys: Whose keys sign.
        clock: For the dates of signatures.
    """

    def __init__(self, settings: OriginSettings, keys: Callable[[], Credentials], clock: Clock) -> None:
        self._settings: Final = settings
        self._keys: Final = keys
        self._clock: Final = clock
        self._regions: Final[dict[str, str]] = {}
        self._connection: http.client.HTTPConnection | None = None
        self._host = ""

    @property
    def url(self) -> str:
        """The endpoint, for messages."""
        return self._settings.endpoint_url

    def close(self) -> None:
        """Drop the connection; the next request opens one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- requests ----------------------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        bucket: str,
        key: str = "",
        *,
        query: tuple[tuple[str, str], ...] = (),
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """Send one request and read its whole answer, any status.

        Raises:
            EndpointError: There was no whole answer.
        """
        answer = self._send(method, bucket, key, query, headers or {}, body)
        try:
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise EndpointError(f"{self.url} broke off: {_words(error)}") from error
        return Answer(answer.status, _headers(answer), content)

    def stream(self, bucket: str, key: str) -> tuple[Answer, Iterator[bytes]]:
        """Read an object: its head, and its body in pieces of up to 1 MiB, which must be read to the end.

        Raises:
            EndpointError: There was no answer; also from the iterator, where the body is not as long as the head says.
        """
        answer = self._send("GET", bucket, key, (), {}, b"")
        head = Answer(answer.status, _headers(answer))
        return head, self._pieces(answer, head)

    def _pieces(self, answer: http.client.HTTPResponse, head: Answer) -> Iterator[bytes]:
        left = int(head.headers.get("content-length", "0"))
        try:
            while piece := answer.read(READ_BYTES):
                left -= len(piece)
                yield piece
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise EndpointError(f"{self.url} broke off: {_words(error)}") from error
        if left:
            self.close()
            raise EndpointError(f"{self.url} broke off {left} bytes before the end")

    def _send(
        self,
        method: str,
        bucket: str,
        key: str,
        query: tuple[tuple[str, str], ...],
        headers: Mapping[str, str],
        body: bytes,
    ) -> http.client.HTTPResponse:
        region = self._regions.get(bucket, self._settings.region)
        answer = self._send_to(region, method, address(self._settings, bucket, key, query), headers, body)
        told = answer.getheader(_REGION_HEADER, "")
        if answer.status in (301, 307, 400) and told not in ("", region) and is_region(told):
            answer.read()
            self._regions[bucket] = told
            place = address(self._settings, bucket, key, query, region=told)
            answer = self._send_to(told, method, place, headers, body)
        return answer

    def _send_to(
        self, region: str, method: str, place: Address, headers: Mapping[str, str], body: bytes
    ) -> http.client.HTTPResponse:
        is_reused = self._connection is not None
        for _ in range(TRIES_MAX):
            try:
                return self._send_once(region, method, place, headers, body)
            except (ConnectionError, http.client.RemoteDisconnected) as error:
                self.close()
                if not is_reused or method not in ("GET", "HEAD"):
                    raise EndpointError(f"{self.url} broke off: {_words(error)}") from error
                is_reused = False
            except (OSError, http.client.HTTPException) as error:
                self.close()
                may_land = isinstance(error, TimeoutError)
                raise EndpointError(
                    f"{self.url} does not answer: {_words(error)}", may_land=may_land
                ) from error
        raise AssertionError("a fresh connection is not tried twice")

    def _send_once(
        self, region: str, method: str, place: Address, headers: Mapping[str, str], body: bytes
    ) -> http.client.HTTPResponse:
        keys = self._keys()
        identity = SigningIdentity(keys.access_key, keys.secret_key, region, keys.session_token)
        signed = sign_headers(
            identity,
            method,
            place.target,
            {"host": place.host, **headers},
            hashlib.sha256(body).hexdigest(),
            self._clock.wall_s(),
        )
        connection = self._connected(place)
        connection.request(
            method, place.target, body=body or None, headers={**signed, "content-length": str(len(body))}
        )
        return connection.getresponse()

    def _connected(self, place: Address) -> http.client.HTTPConnection:
        if self._connection is None or self._host != place.host:
            self.close()
            kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
            self._connection, self._host = kind(place.host, timeout=self._settings.answer_s), place.host
        return self._connection

    # --- listing -----------------------------------------------------------------------------------------------------

    def listing(self, bucket: str, prefix: str) -> Iterator[ListedObject]:
        """Give every object under a prefix in the order of its key's UTF-8 bytes, a page at a time in memory.

        Raises:
            EndpointError: A page was refused or cannot be read, or the endpoint does not list in order.
        """
        token, last = "", b""
        while True:
            page = parse_list_page(self._page(bucket, prefix, token))
            for listed in page.objects:
                key = listed.key.encode()
                if key <= last and last:
                    raise EndpointError(f"{self.url} does not list in the order of keys: {listed.key!r}")
                last = key
                yield listed
            if not page.is_truncated:
                return
            token = page.next_token

    def _page(self, bucket: str, prefix: str, token: str) -> bytes:
        query = [
            ("list-type", "2"),
            ("encoding-type", "url"),
            ("max-keys", str(PAGE_KEYS)),
            ("prefix", prefix),
        ]
        query += [("continuation-token", token)] if token else []
        answer = self.call("GET", bucket, query=tuple(sorted(query)))
        if not answer.is_success:
            raise EndpointError(f"{self.url} does not list {bucket}: {answer.status} {answer.code}")
        return answer.body


def _headers(answer: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.getheaders()}
