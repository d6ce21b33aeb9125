"""A whole gateway over an in-memory store, on a loopback port, and clients that speak to it."""

import asyncio
import datetime as dt
import hashlib
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import boto3  # type: ignore[import-untyped]  # ships no types
import msgspec
from botocore.config import Config  # type: ignore[import-untyped]  # as above

from gateway.access_log import AccessEntry, AccessLog
from gateway.admin import Admin
from gateway.body import Intake, MemoryBudget
from gateway.build import OwnStores
from gateway.cli import execute
from gateway.grants import NOTHING, Access
from gateway.late_answer import BLANKS_EVERY_S
from gateway.s3.auth import Credential, CredentialsInForce
from gateway.server import S3Server, ServerParts
from gateway.setting_values import OriginKeys
from gateway.telemetry import Exporter, RequestStats
from storage.clock import SystemClock
from storage.engine import Engine
from storage.origin.signing import SigningIdentity, sign_headers
from storage.workers import ThreadWorkers
from tests.fakes.engine import FakeStore

ACCESS_KEY = "forebay-access"
SECRET_KEY = "forebay-secret"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
PLAIN_KEY = "forebay-plain"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

T = TypeVar("T")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class RawConnection:
    """A connection on which a test writes bytes itself."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            # As clients read a header that is there twice (RFC 9110 section 5.3).
            name = name.lower()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return int(first.split(" ")[1]), headers

    async def answer(self, *, has_body: bool = True) -> Answer:
        status, headers = await self.head()
        length = int(headers.get("content-length", "0")) if has_body else 0
        return Answer(status, headers, await self.reader.readexactly(length))

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


@dataclass
class RunningGateway:
    store: FakeStore
    server: S3Server
    stats: RequestStats
    budget: MemoryBudget
    access_log: AccessLog
    port: int
    scheme: str
    log_path: str
    clients: list[Any] = field(default_factory=list)
    connections: list[RawConnection] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY, **config: Any) -> Any:
        client = boto3.client(
            "s3",
            endpoint_url=f"{self.scheme}://{self.host}",
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            region_name="us-east-1",
            verify=False,
            config=Config(
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
                connect_timeout=5,
                read_timeout=20,
                **config,
            ),
        )
        self.clients.append(client)
        return client

    async def connect(self) -> RawConnection:
        connection = RawConnection(*await asyncio.open_connection("127.0.0.1", self.port))
        self.connections.append(connection)
        return connection

    def signed(
        self,
        method: str,
        target: str,
        headers: dict[str, str] | None = None,
        payload_hash: str = "UNSIGNED-PAYLOAD",
        unsigned: dict[str, str] | None = None,
        access_key: str = ACCESS_KEY,
    ) -> bytes:
        """Write the head of a signed request."""
        identity = SigningIdentity(access_key, SECRET_KEY, "us-east-1")
        now_s = dt.datetime.now(dt.UTC).timestamp()
        given = {"host": self.host, **(headers or {})}
        all_headers = {
            **sign_headers(identity, method, target, given, payload_hash, now_s),
            **(unsigned or {}),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
        return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode()

    async def log(self) -> list[AccessEntry]:
        await self.access_log.flush()
        with open(self.log_path, "rb") as file:  # noqa: ASYNC230, PTH123  # a few lines, in a test
            return [msgspec.json.decode(line, type=AccessEntry) for line in file]


async def until(holds: Callable[[], object]) -> None:
    """Wait for what the other side of a socket does in its own time; the test's time-out bounds it."""
    while not holds():  # noqa: ASYNC110  # there is no event on that side
        await asyncio.sleep(0.01)


async def pause(wait_s: float) -> None:
    """Let real time pass, where a test is about a client that is slow."""
    await asyncio.sleep(wait_s)


async def in_thread(call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Run a blocking client."""
    return await asyncio.to_thread(call, *args, **kwargs)


@asynccontextmanager
async def running_gateway(
    log_path: str,
    *,
    store: FakeStore | None = None,
    engine: Engine | None = None,
    origin_keys: Mapping[str, OriginKeys] = MappingProxyType({}),
    tls: ssl.SSLContext | None = None,
    domains: tuple[str, ...] = (),
    connections_max: int = 64,
    stalled_send_s: float = 10,
    stalled_receive_s: float = 10,
    budget_bytes: int = 64 * 1024 * 1024,
    blanks_every_s: float = BLANKS_EVERY_S,
    access: Mapping[str, Access] = MappingProxyType({}),
    anonymous: Access = NOTHING,
) -> AsyncIterator[RunningGateway]:
    """Serve a store until the block ends, or an engine that runs.

    `access` adds keys that are held to rights, `origin_keys` such as have credentials of their own at the engine's origin.
    """
    store = store or FakeStore()
    served = engine or store
    clock, workers, stats = SystemClock(), ThreadWorkers("test", 4), RequestStats()
    budget = MemoryBudget(budget_bytes)
    access_log = AccessLog(log_path, workers, stats)
    admin = Admin(served, Exporter(served.stats, stats, clock), has_own_port=False)
    credentials = CredentialsInForce(
        {
            ACCESS_KEY: Credential(ACCESS_KEY, SECRET_KEY, "admin-id", is_admin=True),
            PLAIN_KEY: Credential(PLAIN_KEY, SECRET_KEY, "plain-id"),
            **{key: Credential(key, SECRET_KEY, f"{key}-id", access=held) for key, held in access.items()},
            **{key: Credential(key, SECRET_KEY, f"{key}-id", origin=own) for key, own in origin_keys.items()},
        },
        anonymous,
    )
    server = S3Server(
        ServerParts(
            store=served,
            own_stores=(lambda _keys: store) if engine is None else OwnStores(engine.own_store, 60.0),
            own_paths=admin,
            credentials=credentials,
            domains=domains,
            region="us-east-1",
            clock=clock,
            random=random.Random(1),
            workers=workers,
            intake=Intake(budget, workers, stalled_receive_s),
            access_log=access_log,
            stats=stats,
            connections_max=connections_max,
            stalled_send_s=stalled_send_s,
            blanks_every_s=blanks_every_s,
        )
    )
    _, port = await server.listen("127.0.0.1", 0, tls)
    scheme = "http" if tls is None else "https"
    gateway = RunningGateway(store, server, stats, budget, access_log, port, scheme, log_path)
    try:
        yield gateway
    finally:
        for client in gateway.clients:
            client.close()
        for connection in gateway.connections:
            await connection.close()
        await server.stop(1.0)
        workers.close()


async def ask(  # all that a request is
    gateway: RunningGateway,
    method: str,
    target: str,
    headers: Mapping[str, str] = NO_HEADERS,
    access_key: str = ACCESS_KEY,
    *,
    body: bytes = b"",
) -> Answer:
    """Send one request on a connection of its own, unsigned and without a body for no key."""
    connection = await gateway.connect()
    sent = {**headers, "content-length": f"{len(body)}"}
    if access_key:
        digest = hashlib.sha256(body).hexdigest() if body else "UNSIGNED-PAYLOAD"
        await connection.send(gateway.signed(method, target, sent, digest, access_key=access_key) + body)
    else:
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"host": gateway.host, **sent}.items())
        await connection.send(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode())
    answer = await connection.answer(has_body=method != "HEAD")
    gateway.connections.remove(connection)
    await connection.close()
    return answer


async def execute_at(gateway: RunningGateway, *arguments: str) -> int:
    """Run a command against the gateway, as its admin."""
    environment = {
        "FOREBAY_ACCESS_KEY": ACCESS_KEY,
        "FOREBAY_SECRET_KEY": SECRET_KEY,
        "FOREBAY_ENDPOINT": f"http://{gateway.host}",
    }
    return await in_thread(execute, arguments, environment)
