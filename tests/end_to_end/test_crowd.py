"""2,000 writers at once into one prefix that is full of changes waiting for the flush, with a LIST every second.

What is compared is the 99th percentile of the same PUTs into an empty prefix, in the same run. 5,000 waiting changes by default,
100,000 with FOREBAY_TEST_LONG=1.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from storage.origin.signing import SigningIdentity, sign_headers
from tests.end_to_end.content import IS_LONG, note_figure
from tests.end_to_end.origins import FakeOriginProcess
from tests.end_to_end.processes import ACCESS_KEY, REGION, SECRET_KEY, GatewayProcess, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timing, pytest.mark.timeout(1800 if IS_LONG else 240)]

BUCKET: Final = "data"
WAITING: Final = 100_000 if IS_LONG else 5_000
WRITERS: Final = 2_000
PUTS_A_WRITER: Final = 5 if IS_LONG else 2
FILLERS: Final = 100
BODY: Final = b"a frame of a simulator, a line of a log, a small thing " * 20
RATIO_MAX: Final = 2.0
_IDENTITY: Final = SigningIdentity(ACCESS_KEY, SECRET_KEY, REGION)
_BODY_SHA256: Final = hashlib.sha256(BODY).hexdigest()


def test_putting_is_as_fast_among_many_waiting_changes_as_into_an_empty_prefix(
    fake: FakeOriginProcess, cache_dir: Path
) -> None:
    """The 99th percentile of PUT is under twice that of an empty prefix, though the prefix is listed every second."""
    with gateway(fake.endpoint, cache_dir, flush_delay="1h") as running:
        running.client().put_object(Bucket=BUCKET, Key="first", Body=b"")

        asyncio.run(_crowd(running, "warming-up/"))
        empty = asyncio.run(_crowd(running, "empty/"))
        asyncio.run(_put_all(running.port, _names("full/waiting", WAITING), FILLERS))
        pending = running.metric("forebay_writeback_pending_objects")
        full = asyncio.run(_crowd(running, "full/"))

    ratio = full.p99_s / empty.p99_s
    note_figure(
        f"PUT by {WRITERS} writers: p99 {empty.p99_s * 1000:.0f} ms (median {empty.median_s * 1000:.0f}) into an empty prefix, "
        f"{full.p99_s * 1000:.0f} ms (median {full.median_s * 1000:.0f}) among {WAITING} waiting changes: {ratio:.2f}; "
        f"{len(full.listed)} LISTs, the slowest {max(full.list_times_s) * 1000:.0f} ms"
    )
    assert pending >= WAITING
    assert ratio < RATIO_MAX
    assert all(count == 1000 for count in full.listed)


@dataclass(slots=True)
class Crowd:
    """What was measured of one crowd of writers.

    Attributes:
        times_s: Of each PUT, from before its bytes were written to its answer.
        listed: How many keys each LIST gave.
    """

    times_s: list[float] = field(default_factory=list)
    listed: list[int] = field(default_factory=list)
    list_times_s: list[float] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        """The 99th percentile of a PUT."""
        return sorted(self.times_s)[int(len(self.times_s) * 0.99)]

    @property
    def median_s(self) -> float:
        """The median of a PUT."""
        return sorted(self.times_s)[len(self.times_s) // 2]


async def _crowd(running: GatewayProcess, prefix: str) -> Crowd:
    """Have all writers put at once, while the prefix is listed every second."""
    crowd = Crowd()
    lister = asyncio.get_running_loop().create_task(_list_each_second(running.port, prefix, crowd))
    crowd.times_s = await _put_all(running.port, _names(f"{prefix}new", WRITERS * PUTS_A_WRITER), WRITERS)
    lister.cancel()
    await asyncio.wait([lister])
    return crowd


def _names(prefix: str, count: int) -> Iterable[str]:
    return (f"{prefix}/{number:08}" for number in range(count))


async def _put_all(port: int, names: Iterable[str], writers: int) -> list[float]:
    """Put each name once, each writer on a connection of its own; give how long each took."""
    waiting = iter(names)
    times_s: list[float] = []
    connections = [await Connection.open(port) for _ in range(writers)]
    try:
        await asyncio.gather(*(_put_some(connection, waiting, times_s) for connection in connections))
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))
    return times_s


async def _put_some(connection: "Connection", waiting: Iterable[str], times_s: list[float]) -> None:
    for name in waiting:
        request = _signed("PUT", f"/{BUCKET}/{name}", connection.host, BODY)
        begun_s = time.perf_counter()
        status, _ = await connection.ask(request)
        times_s.append(time.perf_counter() - begun_s)
        assert status == 200, f"{name}: {status}"


async def _list_each_second(port: int, prefix: str, crowd: Crowd) -> None:
    connection = await Connection.open(port)
    target = f"/{BUCKET}?list-type=2&prefix={prefix.replace('/', '%2F')}"
    try:
        while True:
            begun_s = time.perf_counter()
            status, body = await connection.ask(_signed("GET", target, connection.host, b""))
            assert status == 200, body
            crowd.list_times_s.append(time.perf_counter() - begun_s)
            crowd.listed.append(body.count(b"<Contents>"))
            await asyncio.sleep(1.0)
    finally:
        await connection.close()


def _signed(method: str, target: str, host: str, body: bytes) -> bytes:
    digest = _BODY_SHA256 if body is BODY else hashlib.sha256(body).hexdigest()
    headers = {"host": host, "content-length": str(len(body))}
    signed = sign_headers(_IDENTITY, method, target, headers, digest, time.time())
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **signed}.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + body


class Connection:
    """A connection of one writer: requests as bytes, answers as status and body. boto3 would be what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self.host = host

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """Connect to a gateway on the loopback."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**22), f"127.0.0.1:{port}")

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and take its whole answer."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = next(line for line in head.split("\r\n") if line.lower().startswith("content-length:"))
        return int(head.split(" ", 2)[1]), await self._reader.readexactly(int(length.split(":")[1]))

    async def close(self) -> None:
        """Close it."""
        self._writer.close()
        await self._writer.wait_closed()
