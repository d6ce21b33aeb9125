"""How a simulated process reaches the origin: in the place of aiohttp, of the credentials' chain and of the control lane."""

import asyncio
from collections.abc import Mapping
from email.utils import formatdate
from urllib.parse import parse_qsl, unquote

from storage.errors import NoSuchBucketError, OriginUnavailableError
from storage.origin.credentials import Credentials
from storage.origin.endpoint import Address, OriginSettings
from storage.origin.transport import Attempt, Exchange, Transport
from storage.origin.wire import OutgoingBody
from tests.fakes.origin_store import Received, Reply
from tests.simulation.loop import WALL_START_S, DrawnLoop
from tests.simulation.origin import Sent, SimOrigin
from tests.simulation.weather import Weather


class SimExchange(Exchange):
    """An answer that is there."""

    def __init__(self, reply: Reply, date: str, *, is_broken_off: bool) -> None:
        self._reply = reply
        self._left = reply.body[: len(reply.body) // 2] if is_broken_off else reply.body
        self._is_broken_off = is_broken_off and bool(reply.body)
        self._told = {"date": date, **reply.headers}
        self.bytes_received = 0
        length = len(reply.body) if reply.length is None else reply.length
        if reply.status not in (204, 304):
            self._told["content-length"] = str(length)

    @property
    def status(self) -> int:
        return self._reply.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._told

    async def read(self) -> bytes:
        chunk, self._left = self._left, b""
        if not chunk and self._is_broken_off:
            raise OriginUnavailableError("the answer broke off", status=0, code="Incomplete")
        self.bytes_received += len(chunk)
        return chunk

    def close(self) -> None:
        """Nothing is held."""


class SimTransport(Transport):
    """A process' way to the origin; `is_alive` false is a process that is gone."""

    def __init__(self, settings: OriginSettings, origin: SimOrigin, process: int) -> None:
        super().__init__(settings)
        self._answer_s = settings.answer_s
        self._origin = origin
        self._process = process
        self.is_alive = True

    async def open(self) -> None:
        """Nothing is made ready."""

    async def close(self) -> None:
        """Nothing is held."""

    async def send(
        self,
        method: str,
        address: Address,
        headers: Mapping[str, str],
        body: bytes | OutgoingBody,
        attempt: Attempt,
    ) -> Exchange:
        data = body if isinstance(body, bytes) else b"".join([chunk async for chunk in body.content()])
        if not self.is_alive:
            raise asyncio.CancelledError
        attempt.bytes_sent = len(data)
        sent = self._origin.send(_received(method, address, headers, data), self._process)
        if sent is None:
            raise OriginUnavailableError("connection refused", status=0, code="Connection")
        attempt.is_sent = True
        attempt.is_reused = self._origin.draws.random() < 0.5
        reply = await self._answered(sent, attempt)
        attempt.is_answered = True
        date = formatdate(WALL_START_S + self._origin.loop.time(), usegmt=True)
        return SimExchange(reply, date, is_broken_off=sent.fate.is_broken_off and method != "HEAD")

    async def _answered(self, sent: Sent, attempt: Attempt) -> Reply:
        loop, fate = self._origin.loop, sent.fate
        until_s = sent.at_s + (fate.cut_s if fate.cut_s >= 0 else self._answer_s)
        if attempt.until_s is not None:
            until_s = min(until_s, attempt.until_s)
        try:
            async with asyncio.timeout_at(until_s):
                return await asyncio.shield(sent.answered)
        except TimeoutError:
            self._hold_to_the_bound(sent, loop)
            code = "Connection" if fate.cut_s >= 0 else "Timeout"
            raise OriginUnavailableError("no answer", status=0, code=code) from None

    def _hold_to_the_bound(self, sent: Sent, loop: DrawnLoop) -> None:
        """Have it land within the time that is allowed to an attempt without an answer."""
        landing, latest_s = sent.landing, loop.time() + self._origin.late_s
        if landing is not None and not sent.is_settled and landing.when() > latest_s:
            landing.cancel()
            sent.landing = loop.call_at(latest_s, self._origin._land, sent)


class SimCredentials:
    """Keys that are renewed at the origin's word."""

    def __init__(self, origin: SimOrigin) -> None:
        self._origin = origin

    async def credentials(self) -> Credentials:
        """Give what there is now."""
        return Credentials(f"key{self._origin.token}", "secret")

    def refused(self, credentials: Credentials) -> bool:
        """Whether there are others."""
        return credentials.access_key != f"key{self._origin.token}"


class SimQuestions:
    """What the control lane is asked of buckets."""

    def __init__(self, origin: SimOrigin) -> None:
        self._origin = origin

    async def head_bucket(self, bucket: str) -> str:
        """Give the region."""
        await asyncio.sleep(0.01)
        if self._origin.weather is Weather.DOWN:
            raise OriginUnavailableError("connection refused", status=0, code="Connection")
        if bucket not in self._origin.store.buckets:
            raise NoSuchBucketError(bucket)
        return "us-east-1"

    async def get_bucket_versioning(self, bucket: str) -> str:
        """Not versioned."""
        del bucket
        return ""

    async def get_bucket_encryption(self, bucket: str) -> str:
        """Not encrypted."""
        del bucket
        return ""

    async def get_object_lock_configuration(self, bucket: str) -> bool:
        """Not locked."""
        del bucket
        return False


def _received(method: str, address: Address, headers: Mapping[str, str], body: bytes) -> Received:
    bucket, _, key = address.path.removeprefix("/").partition("/")
    query = dict(parse_qsl(address.query, keep_blank_values=True))
    named = {name.lower(): value for name, value in headers.items()}
    return Received(method, unquote(bucket), unquote(key), query, named, body)
