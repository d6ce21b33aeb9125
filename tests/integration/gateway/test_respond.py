"""How bodies reach a client: in memory, by sendfile from real files, from the origin, and cut where they break."""

import asyncio
import contextlib
import hashlib
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.context import S3Response
from gateway.respond import STEP_BYTES, Wire, head_bytes
from storage.errors import ObjectChangedError, OriginUnavailableError
from storage.filesystem import PosixFile, PosixFilesystem
from storage.requests import FileSpan
from storage.types import CacheResult
from tests.fakes.engine import FakeStore
from tests.fakes.gateway import RunningGateway, pause, running_gateway, until

MIB = 1024 * 1024
BODY = random.Random(5).randbytes(9 * MIB + 123)


class CountedFile(PosixFile):
    """A real file that says how it was read, and plays cold where told."""

    def __init__(self, file: PosixFile) -> None:
        super().__init__(file.fileno(), "counted")
        self.file = file
        self.is_cold = False
        self.preads: list[tuple[int, int]] = []

    def pread(self, offset: int, length: int) -> bytes:
        self.preads.append((offset, length))
        return super().pread(offset, length)

    def pread_if_cached(self, offset: int, length: int) -> bytes | None:
        return None if self.is_cold else super().pread_if_cached(offset, length)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CountedFile]:
    """A real file whose reads are counted."""
    counted = CountedFile(PosixFilesystem(str(tmp_path)).create("segment"))
    yield counted
    counted.close()


@pytest.fixture
async def slow_gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway that does not wait long for clients."""
    async with running_gateway(str(tmp_path / "log"), stalled_send_s=0.3) as running:
        running.store.make_bucket("bucket")
        yield running


@contextmanager
def small_socket(port: int) -> Iterator[socket.socket]:
    """A client whose receive buffer fills soon."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.setblocking(False)
        yield client


async def received(client: socket.socket) -> bytes:
    """Read until the other side ends."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    try:
        while piece := await loop.sock_recv(client, 1 << 16):
            data += piece
    except ConnectionError:
        pass
    return bytes(data)


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, MIB, len(BODY)])
async def test_the_body_is_whole_when_it_lies_in_a_file(
    gateway: RunningGateway, file: CountedFile, size: int
) -> None:
    """Every size leaves byte for byte, small ones by pread, large ones by sendfile, twice on one connection."""
    gateway.store.files = file
    gateway.store.put("bucket", "key", BODY[:size])
    connection = await gateway.connect()

    for _ in range(2):
        await connection.send(gateway.signed("GET", "/bucket/key"))
        answer = await connection.answer()

        assert answer.status == 200
        assert int(answer.headers["content-length"]) == size
        assert hashlib.md5(answer.body).digest() == hashlib.md5(BODY[:size]).digest()
    assert file.preads == []


async def test_cold_bytes_are_read_by_a_worker_when_they_are_not_in_memory(
    gateway: RunningGateway, file: CountedFile
) -> None:
    """What the page cache lacks is read off the loop, in steps of at most a MiB, and then sent."""
    gateway.store.files = file
    gateway.store.put("bucket", "large", BODY)
    gateway.store.put("bucket", "small", BODY[:1000])
    file.is_cold = True
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/large"))
    large = await connection.answer()
    await connection.send(gateway.signed("GET", "/bucket/small"))
    small = await connection.answer()

    assert large.body == BODY
    assert small.body == BODY[:1000]
    steps = [(offset, min(STEP_BYTES, len(BODY) - offset)) for offset in range(0, len(BODY), STEP_BYTES)]
    assert file.preads == [*steps, (len(BODY), 1000)]


async def test_pieces_keep_their_order_when_files_and_bytes_alternate(
    gateway: RunningGateway, file: CountedFile
) -> None:
    """A partly cached body mixes sendfile and the transport's buffer, and no byte overtakes another."""
    file.pwrite(0, BODY)
    spans = [(0, 3 * MIB), (3 * MIB, 3 * MIB + 70_000), (3 * MIB + 70_000, 6 * MIB), (6 * MIB, len(BODY))]
    pieces = [
        FileSpan(file, start, stop - start) if number % 2 else BODY[start:stop]
        for number, (start, stop) in enumerate(spans)
    ]
    gateway.store.put("bucket", "key", BODY)
    gateway.store.script = [list(pieces), list(reversed_pieces(file, spans))]
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/key"))
    first = await connection.answer()
    await connection.send(gateway.signed("GET", "/bucket/key"))
    second = await connection.answer()

    assert first.body == BODY
    assert second.body == BODY


def reversed_pieces(file: CountedFile, spans: list[tuple[int, int]]) -> Iterator[bytes | FileSpan]:
    """Give the body as spans and bytes in turn, a span first."""
    for number, (start, stop) in enumerate(spans):
        yield BODY[start:stop] if number % 2 else FileSpan(file, start, stop - start)


@pytest.mark.parametrize("in_file", [True, False])
async def test_a_slow_reader_gets_all_when_it_keeps_reading(
    slow_gateway: RunningGateway, file: CountedFile, in_file: bool
) -> None:
    """A client may take longer than stalled_send_s in all, as long as it takes something."""
    slow_gateway.store.files = file if in_file else None
    slow_gateway.store.put("bucket", "key", BODY)
    loop = asyncio.get_running_loop()

    with small_socket(slow_gateway.port) as client:
        await loop.sock_sendall(
            client, slow_gateway.signed("GET", "/bucket/key", unsigned={"connection": "close"})
        )
        data = bytearray()
        for _ in range(40):
            data += await loop.sock_recv(client, 1 << 12)
            await pause(0.02)
        slow_bytes = len(data)
        data += await received(client)

    assert slow_bytes < MIB
    assert bytes(data[-len(BODY) :]) == BODY


@pytest.mark.parametrize("in_file", [True, False])
async def test_the_connection_ends_when_a_client_takes_nothing(
    slow_gateway: RunningGateway, file: CountedFile, in_file: bool
) -> None:
    """A client that stops reading loses its connection, and the body lets go of what it held."""
    slow_gateway.store.files = file if in_file else None
    slow_gateway.store.put("bucket", "key", BODY)
    loop = asyncio.get_running_loop()

    with small_socket(slow_gateway.port) as client:
        await loop.sock_sendall(client, slow_gateway.signed("GET", "/bucket/key"))
        await until(lambda: slow_gateway.stats.requests)
        data = await received(client)

    assert len(data) < len(BODY)
    assert slow_gateway.store.bodies[0].is_closed
    assert [entry.is_cut for entry in await slow_gateway.log()] == [True]


@pytest.mark.parametrize(
    "error",
    [
        OriginUnavailableError("gone", status=0, code="Incomplete"),
        ObjectChangedError("changed"),
        KeyError("a bug"),
    ],
)
async def test_the_connection_is_cut_when_a_body_fails_in_the_middle(
    gateway: RunningGateway, error: Exception
) -> None:
    """After the first byte an error never looks like a whole body, and never like another answer."""
    gateway.store.put("bucket", "key", BODY[:200_000])
    gateway.store.script.append([BODY[:100_000], error])
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/key"))
    status, headers = await connection.head()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)) as raised:
        await connection.reader.readexactly(int(headers["content-length"]))

    assert status == 200
    assert headers["content-length"] == "200000"
    if isinstance(raised.value, asyncio.IncompleteReadError):
        assert BODY.startswith(raised.value.partial)
    assert gateway.store.bodies[0].is_closed


@pytest.mark.parametrize("pieces", [[BODY[:100]], [BODY[:100], BODY[:200]], []])
async def test_the_connection_is_cut_when_a_body_has_another_length(
    gateway: RunningGateway, pieces: list[bytes]
) -> None:
    """A body that ends early or goes on too long is cut, and nothing beyond its length is sent."""
    gateway.store.put("bucket", "key", BODY[:200])
    gateway.store.script.append(list(pieces))
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/key"))
    try:
        data = await connection.reader.read()
    except ConnectionError:
        data = b""

    assert len(data.partition(b"\r\n\r\n")[2]) < 200


async def test_the_connection_is_cut_when_a_file_is_shorter_than_its_span(
    gateway: RunningGateway, file: CountedFile
) -> None:
    """Sendfile at the end of a file must not become an endless loop or a padded body."""
    file.pwrite(0, BODY[: 2 * MIB])
    gateway.store.put("bucket", "key", BODY[: 3 * MIB])
    gateway.store.script.append([FileSpan(file, 0, 3 * MIB)])
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/key"))
    await connection.head()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await connection.reader.readexactly(3 * MIB)

    assert gateway.store.bodies[0].is_closed


async def test_the_body_is_let_go_when_the_client_leaves_in_the_middle(
    gateway: RunningGateway, file: CountedFile
) -> None:
    """A client that goes away during sendfile costs nothing but its own connection."""
    gateway.store.files = file
    gateway.store.put("bucket", "key", BODY)
    loop = asyncio.get_running_loop()
    with small_socket(gateway.port) as client:
        await loop.sock_sendall(client, gateway.signed("GET", "/bucket/key"))
        await loop.sock_recv(client, 100)

    await until(lambda: gateway.stats.requests)
    connection = await gateway.connect()
    await connection.send(gateway.signed("GET", "/bucket/key"))
    answer = await connection.answer()

    assert gateway.store.bodies[0].is_closed
    assert answer.body == BODY


def open_descriptors() -> int:
    """Count this process' open files."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_every_descriptor_is_closed_when_connections_have_ended(
    gateway: RunningGateway, file: CountedFile
) -> None:
    """The duplicate of each socket goes with its connection."""
    gateway.store.files = file
    gateway.store.put("bucket", "key", BODY[:MIB])

    async def read(times: int) -> int:
        for _ in range(times):
            connection = await gateway.connect()
            await connection.send(gateway.signed("GET", "/bucket/key"))
            await connection.answer()
            await connection.close()
        await until(lambda: not gateway.stats.connections)
        return open_descriptors()

    # The first connection has libuv open one that it keeps in reserve.
    before = await read(1)
    after = await read(5)

    assert after <= before


async def test_the_body_is_whole_over_tls_when_it_lies_in_a_file(
    tmp_path: Path, file: CountedFile, tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """TLS cannot use sendfile; the bytes are the same."""
    server_context, client_context = tls_contexts
    store = FakeStore()
    store.files = file
    store.put("bucket", "key", BODY)
    async with running_gateway(str(tmp_path / "log"), store=store, tls=server_context) as gateway:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", gateway.port, ssl=client_context, server_hostname="localhost"
        )

        writer.write(gateway.signed("GET", "/bucket/key"))
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(len(BODY))
        writer.close()

    assert body == BODY


async def test_x_cache_tells_how_it_was_answered_when_it_is_stale(gateway: RunningGateway) -> None:
    """A stale answer says so, and why."""
    gateway.store.put("bucket", "key", b"abc")
    gateway.store.results = [CacheResult.STALE]
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/key"))
    answer = await connection.answer()

    assert answer.headers["x-cache"] == "STALE"
    assert answer.headers["x-cache-reason"] == "origin does not answer"
    assert gateway.store.stats.cache_requests[CacheResult.STALE] == 1


@pytest.mark.parametrize("value", ["a\r\nset-cookie: x", "a\nb", "a\rb"])
def test_a_head_is_refused_when_a_header_has_a_line_break(value: str) -> None:
    """No header of a client's making can add lines to an answer."""
    response = S3Response(200, (("content-type", value),), b"", 0)

    with pytest.raises(ValueError, match="line break"):
        head_bytes(response, date="now", request_id="1", host_id="h", keep_alive=True)


def test_a_head_keeps_the_bytes_when_metadata_is_no_utf8() -> None:
    """A header value with bytes that are no UTF-8 leaves as it came."""
    response = S3Response(200, (("x-amz-meta-a", "caf\udce9"),), b"", 0)

    head = head_bytes(response, date="now", request_id="1", host_id="h", keep_alive=False)

    assert head == (
        b"HTTP/1.1 200 OK\r\nserver: Forebay\r\ndate: now\r\nx-amz-request-id: 1\r\nx-amz-id-2: h\r\n"
        b"connection: close\r\nx-amz-meta-a: caf\xe9\r\ncontent-length: 0\r\n\r\n"
    )


def test_a_head_is_utf8_when_metadata_is_text() -> None:
    """Text that an origin sent in Latin-1 is kept as text, and leaves as UTF-8."""
    response = S3Response(200, (("content-disposition", "caf\u00e9"),), b"", 0)

    head = head_bytes(response, date="now", request_id="1", host_id="h", keep_alive=True)

    assert b"content-disposition: caf\xc3\xa9\r\n" in head


class SocketTransport(asyncio.Transport):
    """As much of a connection as `Wire` asks for."""

    def __init__(self, socket_: socket.socket) -> None:
        super().__init__({"socket": socket_})

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Buffer nothing."""

    def is_closing(self) -> bool:
        """Be open."""
        return False


async def test_another_connection_is_still_watched_when_one_is_lost() -> None:
    """A descriptor's number may have a new owner before the old one's wait ends; that one keeps its watch."""
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while near.send(bytes(65536)):
                pass
        wire = Wire(SocketTransport(near))
        waiting = loop.create_task(wire.writable())
        await pause(0)
        number = wire.duplicate().fileno()

        wire.lost()
        other = socket.socket(fileno=os.dup(far.fileno()))
        with other:
            assert other.fileno() == number
            is_writable = asyncio.Event()
            loop.add_writer(number, is_writable.set)
            with pytest.raises(ConnectionResetError):
                await waiting
            is_writable.clear()

            async with asyncio.timeout(1.0):
                await is_writable.wait()
            loop.remove_writer(number)
