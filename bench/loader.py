"""What trains, for `bench/training.py`: workers that read samples in a sampler's order and write augmented ones, and what feeds them.

Two loaders of one shape: a PyTorch DataLoader (`TorchLoader`), and where torch is not installed plain processes (`PlainLoader`). Batch
`n` of an epoch goes to worker `n` modulo their number, `prefetch` batches a worker are on their way at most, and batches come back in
their order. Processes live as long as the loader, so that each keeps its client and its connections over all epochs.

A worker gets each sample of its batch, one after the other, and compares every byte. After each eighth it writes an augmented sample
into the next of its slots in the replay buffer, and reads one back that it has written before: that has to be what was acknowledged
last. It asks by boto3, which costs some 4 ms of processor a request, or by plain HTTP on one connection, which costs 0.6: eight workers
that ask for twice 230 samples a second by boto3 take two processors for themselves.
"""

import hashlib
import http.client
import importlib
import importlib.util
import multiprocessing
import multiprocessing.connection
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from storage.origin.signing import EMPTY_SHA256, SigningIdentity, sign_headers

KEY: Final = SigningIdentity("trainingkey", "trainingsecrettrainingsecret", "us-east-1")
BUCKET: Final = "data"
AUGMENTED_EVERY: Final = 8
"""After so many samples one is written and one is read back."""

HEAD_BYTES: Final = 16
ATTEMPTS_MAX: Final = 10
_PATTERN: Final = random.Random(7).randbytes(1 << 20)


class Done(NamedTuple):
    """One request of a worker or of the trainer.

    Attributes:
        kind: "sample", "replay" (read) or "write".
        serial: Of a write: which state of its key.
        is_hit: The gateway said so; never true of the origin.
        error: "" where it was answered and right.
    """

    kind: str
    key: str
    seconds: float
    serial: int = 0
    is_hit: bool = False
    error: str = ""


def content(number: int, serial: int, size: int) -> bytes:
    """Give the bytes of one state of one object."""
    whole, rest = divmod(size - HEAD_BYTES, len(_PATTERN))
    return number.to_bytes(8) + serial.to_bytes(8) + _PATTERN * whole + _PATTERN[:rest]


def serial_of(body: bytes) -> int:
    """Give the state that a body is of."""
    return int.from_bytes(body[8:HEAD_BYTES])


def sample_key(number: int) -> str:
    """Name a sample."""
    return f"samples/{number:06d}"


class Client(Protocol):
    """What workers ask with. A request that was not answered well after its retries raises one of FAILURES."""

    def get(self, key: str) -> tuple[bytes, bool]:
        """Give an object, and whether the gateway had it."""

    def put(self, key: str, body: bytes) -> None:
        """Write an object."""


FAILURES: Final = (ClientError, BotoCoreError, OSError, http.client.HTTPException)


class Boto3:
    """boto3, as a data loader has it: a client of its own, retries by the SDK."""

    def __init__(self, endpoint: str) -> None:
        self._s3 = s3(endpoint)

    def get(self, key: str) -> tuple[bytes, bool]:
        """Give an object, and whether the gateway had it."""
        answer = self._s3.get_object(Bucket=BUCKET, Key=key)
        return answer["Body"].read(), answer["ResponseMetadata"]["HTTPHeaders"].get("x-cache") == "HIT"

    def put(self, key: str, body: bytes) -> None:
        """Write an object."""
        self._s3.put_object(Bucket=BUCKET, Key=key, Body=body)


class PlainHttp:
    """One connection that is kept, signatures of version 4, and retries as SDKs do them."""

    def __init__(self, endpoint: str) -> None:
        self._host = endpoint.removeprefix("http://")
        self._connection = http.client.HTTPConnection(self._host, timeout=60)
        self._random = random.Random(self._host)

    def get(self, key: str) -> tuple[bytes, bool]:
        """Give an object, and whether the gateway had it."""
        answer, body = self._ask("GET", key, b"")
        return body, answer.headers.get("x-cache") == "HIT"

    def put(self, key: str, body: bytes) -> None:
        """Write an object."""
        self._ask("PUT", key, body)

    def _ask(self, method: str, key: str, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                time.sleep(self._random.random() * min(20.0, 0.1 * 2**attempt))
            try:
                answer, received = self._ask_once(method, key, body)
            except (OSError, http.client.HTTPException):
                self._connection.close()
                if attempt == ATTEMPTS_MAX - 1:
                    raise
                continue
            if answer.status == 200:
                return answer, received
            if answer.status < 500:
                break
        raise OSError(f"{answer.status} {received[:200]!r}")

    def _ask_once(self, method: str, key: str, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        path, digest = f"/{BUCKET}/{key}", hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256
        headers = sign_headers(KEY, method, path, {"host": self._host}, digest, time.time())
        self._connection.request(method, path, body or None, headers)
        answer = self._connection.getresponse()
        return answer, answer.read()


CLIENTS: Final = {"boto3": Boto3, "http": PlainHttp}


def s3(endpoint: str) -> Any:
    """Make a client of boto3."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEY.access_key,
        aws_secret_access_key=KEY.secret_key,
        config=Config(
            s3={"addressing_style": "path"}, retries={"mode": "standard", "max_attempts": ATTEMPTS_MAX}
        ),
    )


def put(client: Client, key: str, body: bytes, serial: int) -> Done:
    """Write an object, and say how long its acknowledgement took."""
    begun_s = time.perf_counter()
    try:
        client.put(key, body)
    except FAILURES as error:
        return Done("write", key, time.perf_counter() - begun_s, serial, error=str(error))
    return Done("write", key, time.perf_counter() - begun_s, serial)


@dataclass(slots=True)
class Worker:
    """The dataset, as one process has it. `__getitems__` is what PyTorch calls with the numbers of a batch.

    Attributes:
        client: One of CLIENTS.
        slots: Keys of the replay buffer, of all workers together.
        worker: Its number among `workers`.
    """

    endpoint: str
    client: str
    size: int
    slots: int
    workers: int
    seed: int
    worker: int = 0
    _client: Client | None = None
    _serial: int = 0
    _written: dict[int, int] = field(default_factory=dict)

    def __getitems__(self, batch: Sequence[int]) -> list[Done]:
        """Read a batch, and augment."""
        if self._client is None:
            self._client = CLIENTS[self.client](self.endpoint)
        done = []
        for place, number in enumerate(batch, start=1):
            done.append(self._get(self._client, "sample", sample_key(number), number, 0))
            if place % AUGMENTED_EVERY == 0:
                done.append(self._augment(self._client))
                done += self._replay(self._client)
        return done

    def _augment(self, client: Client) -> Done:
        self._serial += 1
        own = self.slots // self.workers
        slot = self.worker + self.workers * (self._serial % own)
        written = put(client, _slot_key(slot), content(slot, self._serial, self.size), self._serial)
        if written.error:
            self._written.pop(slot, None)
        else:
            self._written[slot] = self._serial
        return written

    def _replay(self, client: Client) -> list[Done]:
        if not self._written:
            return []
        slot = random.Random(self.seed * 1_000_003 + self._serial).choice(sorted(self._written))
        return [self._get(client, "replay", _slot_key(slot), slot, self._written[slot])]

    def _get(self, client: Client, kind: str, key: str, number: int, serial: int) -> Done:
        begun_s = time.perf_counter()
        try:
            body, is_hit = client.get(key)
        except FAILURES as error:
            return Done(kind, key, time.perf_counter() - begun_s, error=str(error))
        took_s = time.perf_counter() - begun_s
        wrong = "" if body == content(number, serial, self.size) else "WRONG BYTES"
        return Done(kind, key, took_s, is_hit=is_hit, error=wrong)


def _slot_key(slot: int) -> str:
    return f"replay/{slot:06d}"


def reading_order(batches: list[list[int]], workers: int) -> list[int]:
    """Give the order in which samples are asked for: so many batches are read at a time, a sample of each in turn."""
    order = []
    for first in range(0, len(batches), workers):
        together = batches[first : first + workers]
        for place in range(max(map(len, together))):
            order += [batch[place] for batch in together if place < len(batch)]
    return order


class Loader(Protocol):
    """Gives the batches of an epoch in their order."""

    def epoch(self, batches: list[list[int]]) -> Iterator[list[Done]]:
        """Read these batches."""

    def close(self) -> None:
        """End the workers."""


def has_torch() -> bool:
    """Whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


class PlainLoader:
    """Processes that do what a DataLoader's workers do."""

    def __init__(self, dataset: Worker, prefetch: int) -> None:
        context = multiprocessing.get_context("fork")
        self._prefetch = prefetch * dataset.workers
        self._pipes = []
        self._processes = []
        for number in range(dataset.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(dataset, number, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def epoch(self, batches: list[list[int]]) -> Iterator[list[Done]]:
        """Read these batches."""
        sent = 0
        for number in range(len(batches)):
            while sent < min(len(batches), number + self._prefetch):
                self._pipes[sent % len(self._pipes)].send(batches[sent])
                sent += 1
            yield self._pipes[number % len(self._pipes)].recv()

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.kill()
            process.join()


def _work(dataset: Worker, number: int, pipe: multiprocessing.connection.Connection) -> None:
    dataset.worker = number
    while True:
        pipe.send(dataset.__getitems__(pipe.recv()))


class _Batches:
    """The sampler: what the next epoch reads."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class TorchLoader:
    """A DataLoader of PyTorch."""

    def __init__(self, dataset: Worker, prefetch: int) -> None:
        data = importlib.import_module("torch.utils.data")
        self._sampler = _Batches()
        self._loader = data.DataLoader(
            dataset,
            batch_sampler=self._sampler,
            num_workers=dataset.workers,
            prefetch_factor=prefetch,
            persistent_workers=True,
            collate_fn=list,
            worker_init_fn=_number_worker,
        )

    def epoch(self, batches: list[list[int]]) -> Iterator[list[Done]]:
        """Read these batches."""
        self._sampler.batches = batches
        return iter(self._loader)

    def close(self) -> None:
        """End the workers."""
        del self._loader


def _number_worker(number: int) -> None:
    info = importlib.import_module("torch.utils.data").get_worker_info()
    info.dataset.worker = number
