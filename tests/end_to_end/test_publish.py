"""Publishing with real processes: the command line, tools on a target, and a target switched back and forth under load."""

import http.client
import io
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # it ships no types

from gateway.cli import execute
from storage.origin.signing import UNSIGNED_PAYLOAD, SigningIdentity, sign_headers
from tests.end_to_end.content import IS_LONG
from tests.end_to_end.origins import FakeOriginProcess
from tests.end_to_end.processes import ACCESS_KEY, REGION, SECRET_KEY, GatewayProcess, S3Client, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SWITCHES = 100 if IS_LONG else 6
PAUSE_S = 0.5
BREATH_S = 0.01
"""Each reader pauses so long after a request, or the readers would measure how fast an SDK is."""
OBJECTS = 1000
SOURCES = ("staging/v1/", "staging/v2/")
TARGET = "datasets/current/"
GENERATION = "x-forebay-generation"

CONFIG = f"""
[[policies]]
match = "s3://data/{TARGET}"
published = true
freshness = "300ms"
"""

# Nine keys in ten are of both, so that most mistakes show in bytes and sizes, and the others in what is listed and found.
KEYS = {
    source: [f"{n % 7}/k{n:04}" if n % 10 else f"{n % 7}/only-{source[-2]}-{n:04}" for n in range(OBJECTS)]
    for source in SOURCES
}


def body_of(source: str, key: str) -> bytes:
    """Make the bytes of an object, of another length in each source."""
    return f"{source}:{key}".encode() + b"." * SOURCES.index(source)


def source_of(generation: int) -> str:
    """Say which source a generation shows: the switches alternate."""
    return SOURCES[(generation - 1) % 2]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write the policies."""
    path = tmp_path / "forebay.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def gateways(fake: FakeOriginProcess, tmp_path: Path, config: Path) -> Iterator[list[GatewayProcess]]:
    """Run two gateways over one origin."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(gateway(fake.endpoint, tmp_path / f"cache-{n}", "--config", str(config)))
            for n in range(2)
        ]


def store(running: GatewayProcess) -> None:
    """Write both sources, over one connection each: an SDK would take longer than all the rest of the test."""

    def put_all(source: str) -> None:
        identity = SigningIdentity(ACCESS_KEY, SECRET_KEY, REGION)
        host = f"127.0.0.1:{running.port}"
        with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
            for key in KEYS[source]:
                target, body = f"/data/{source}{key}", body_of(source, key)
                headers = sign_headers(identity, "PUT", target, {"host": host}, UNSIGNED_PAYLOAD, time.time())
                connection.request("PUT", target, body, headers)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200, target

    with ThreadPoolExecutor(len(SOURCES)) as pool:
        list(pool.map(put_all, SOURCES))


def command(running: GatewayProcess, *arguments: str) -> tuple[int, str]:
    """Do what a command does, in this process, which is seconds faster; give its exit status and all that it says."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        status = execute(arguments, running.environment)
    return status, said.getvalue()


def publish(running: GatewayProcess, source: str, *flags: str, target: str = TARGET) -> tuple[int, str]:
    """Show a source under a target."""
    return command(running, "publish", f"s3://data/{source}", "--as", f"s3://data/{target}", *flags)


class Reader(threading.Thread):
    """Reads a target until told to stop, and keeps what is wrong; a request at a time, so its generations only grow.

    Attributes:
        wrong: What no reader may see.
        generations: All that were seen.
        answers: So many were checked.
    """

    def __init__(self, client: S3Client, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.wrong: list[str] = []
        self.generations: set[int] = set()
        self.answers = 0
        self._client = client
        self._random = random.Random(seed)
        self._done = stop
        self._newest = 0

    def run(self) -> None:
        """Read."""
        try:
            while not self._done.wait(BREATH_S) and len(self.wrong) < 10:
                self.read()
        except (BotoCoreError, ClientError) as error:
            self.wrong.append(f"{type(error).__name__}: {error}")

    def read(self) -> None:
        """Read one thing."""
        raise NotImplementedError

    def note(self, headers: dict[str, str], *, is_continued: bool = False) -> int:
        """Take the generation of an answer; only the next page of a listing may be of an older one than was seen."""
        generation = int(headers[GENERATION])
        self.answers += 1
        self.generations.add(generation)
        if generation < self._newest and not is_continued:
            self.wrong.append(f"generation {generation} after {self._newest}")
        self._newest = max(self._newest, generation)
        return generation


class ObjectReader(Reader):
    """GETs, ranges and HEADs of keys of both sources."""

    def read(self) -> None:
        """Read one object, which may not be there."""
        key = self._random.choice(KEYS[self._random.choice(SOURCES)])
        wanted = self._random.choice(["get", "range", "head"])
        try:
            if wanted == "head":
                answer = self._client.head_object(Bucket="data", Key=TARGET + key)
                data = None
            else:
                options = {"Range": "bytes=0-9"} if wanted == "range" else {}
                answer = self._client.get_object(Bucket="data", Key=TARGET + key, **options)
                data = answer["Body"].read()
        except ClientError as error:
            told = error.response["ResponseMetadata"]
            source = source_of(self.note(told["HTTPHeaders"]))
            if told["HTTPStatusCode"] != 404 or key in KEYS[source]:
                self.wrong.append(f"{key} of {source}: {error}")
            return
        source = source_of(self.note(answer["ResponseMetadata"]["HTTPHeaders"]))
        whole = body_of(source, key)
        expected = {"get": whole, "range": whole[:10], "head": None}[wanted]
        if (
            key not in KEYS[source]
            or data != expected
            or (wanted != "range" and answer["ContentLength"] != len(whole))
        ):
            self.wrong.append(f"{wanted} {key} of {source}: {data!r}")


class Lister(Reader):
    """Paginated listings of the whole target or of a part of it, in both versions."""

    def read(self) -> None:
        """List once; all pages together must be one source's."""
        operation = self._random.choice(["list_objects_v2", "list_objects"])
        prefix = self._random.choice(["", "", "3/"])
        pages = self._client.get_paginator(operation).paginate(
            Bucket="data", Prefix=TARGET + prefix, PaginationConfig={"PageSize": 90}
        )
        generations: set[int] = set()
        found: list[tuple[str, int]] = []
        for page in pages:
            headers = page["ResponseMetadata"]["HTTPHeaders"]
            generations.add(self.note(headers, is_continued=bool(generations)))
            found += [(entry["Key"], entry["Size"]) for entry in page.get("Contents", [])]
            if self._done.is_set():
                return
        source = source_of(min(generations))
        expected = [
            (TARGET + key, len(body_of(source, key)))
            for key in sorted(KEYS[source])
            if key.startswith(prefix)
        ]
        if len(generations) != 1 or found != expected:
            self.wrong.append(f"{operation} of {generations}: {len(found)} keys, {len(expected)} expected")


def test_no_answer_mixes_generations_when_a_target_is_switched_under_load(
    gateways: list[GatewayProcess],
) -> None:
    """1,000 objects switched back and forth: every GET, HEAD and listing, at two gateways, is of one generation and says which.

    The publishes go through both gateways in turn; each sees what the other did within its freshness.
    """
    store(gateways[0])
    published = [publish(gateways[0], SOURCES[0])]
    stop = threading.Event()
    readers = [
        kind(running.client(), seed, stop)
        for seed, (running, kind) in enumerate((r, k) for r in gateways for k in (ObjectReader, Lister))
    ]
    for reader in readers:
        reader.start()
    for number in range(1, SWITCHES + 1):
        time.sleep(PAUSE_S)
        published.append(publish(gateways[number % 2], SOURCES[number % 2]))
    _wait_until(lambda: all(SWITCHES + 1 in reader.generations or reader.wrong for reader in readers))
    stop.set()
    for reader in readers:
        reader.join(60)

    assert [status for status, _ in published] == [0] * (SWITCHES + 1), published
    assert [reader.wrong for reader in readers] == [[]] * len(readers)
    assert [max(reader.generations) for reader in readers] == [SWITCHES + 1] * len(readers)
    assert sum(reader.answers for reader in readers) > 10 * SWITCHES
    assert len(set().union(*(reader.generations for reader in readers))) > SWITCHES // 2


def _wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what readers see in their own time."""
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)


def test_the_command_publishes_rolls_back_and_copies(
    fake: FakeOriginProcess, cache_dir: Path, config: Path
) -> None:
    """What a person does: publish, look, roll back, find the target read-only; and copies for readers without a gateway."""
    with gateway(fake.endpoint, cache_dir, "--config", str(config)) as running:
        client, origin = running.client(), fake.client()
        for version, keys in (("v1", ("a", "b")), ("v2", ("a",))):
            for key in keys:
                client.put_object(Bucket="data", Key=f"staging/{version}/{key}", Body=version.encode())

        copied = publish(running, "staging/v1/", "--copy")
        copies = [e["Key"] for e in origin.list_objects_v2(Bucket="data", Prefix=TARGET)["Contents"]]
        refused = publish(running, "staging/v1/")
        for key in copies:
            origin.delete_object(Bucket="data", Key=key)
        seen = []
        for source in ("staging/v1/", "staging/v2/", "staging/v1/"):
            publish(running, source)
            listing = client.list_objects_v2(Bucket="data", Prefix=TARGET)
            got = client.get_object(Bucket="data", Key=f"{TARGET}a")
            generation = got["ResponseMetadata"]["HTTPHeaders"][GENERATION]
            seen.append((generation, got["Body"].read(), listing["KeyCount"]))
        status = command(running, "status")
        with pytest.raises(ClientError, match="AccessDenied"):
            client.put_object(Bucket="data", Key=f"{TARGET}a", Body=b"x")
        elsewhere = publish(running, "staging/v1/", target="elsewhere/")

    assert copied[0] == 0
    assert f"2 objects copied from s3://data/staging/v1/ to s3://data/{TARGET}\n" in copied[1]
    assert copies == [f"{TARGET}a", f"{TARGET}b"]
    assert (refused[0], "would be hidden" in refused[1]) == (1, True)
    assert seen == [("1", b"v1", 2), ("2", b"v2", 1), ("3", b"v1", 2)]
    assert f"published   s3://data/{TARGET} shows staging/v1/, generation 3" in status[1]
    assert (elsewhere[0], "no published target" in elsewhere[1]) == (1, True)
