"""`kill -9` in the middle of a write load, on the real disk, the real index and a real process.

Several clients put, overwrite, delete and upload in parts, each on keys of its own, and write down what was acknowledged. A call that
was cut by the kill may have happened or not; once it was seen after the restart, it must stay so. Nothing else may be: what reads back
is what was acknowledged, bit by bit, and after a flush the origin has the same.
"""

import hashlib
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from botocore.config import Config  # type: ignore[import-untyped]  # it ships no types
from botocore.exceptions import (  # type: ignore[import-untyped]  # it ships no types
    BotoCoreError,
    ClientError,
    HTTPClientError,
)

from storage.types import KIB, MIB
from tests.end_to_end.content import note_figure
from tests.end_to_end.origins import fake_origin
from tests.end_to_end.processes import GatewayProcess, S3Client, gateway

KILLS: Final = int(os.environ.get("FOREBAY_KILLS", "3"))
SEED: Final = int(os.environ.get("FOREBAY_SEED", "1"))
CLIENTS: Final = 6
ORIGIN_LATENCY_S: Final = 0.5
LOAD_S_MAX: Final = 20.0
START_S_MAX: Final = 2.0
SIZES: Final = (0, 1, 100, 4 * KIB, 32 * KIB, 32 * KIB + 1, 300 * KIB, MIB, MIB + 1, 3 * MIB, 6 * MIB)
PART_BYTES: Final = 5 * MIB
ONE_TRY: Final = Config(retries={"total_max_attempts": 1, "mode": "standard"}, read_timeout=30)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 + 60 * KILLS)]


@dataclass(frozen=True, slots=True)
class State:
    """What a key may hold: the digest and size of a body, or nothing."""

    digest: str = ""
    size: int = -1


NOTHING: Final = State()


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """An upload whose parts were acknowledged and whose Complete was not sent."""

    key: str
    upload_id: str
    parts: tuple[tuple[int, str], ...]
    state: State


@dataclass(slots=True)
class Ledger:
    """What one client knows of its keys.

    Attributes:
        known: What was acknowledged last.
        asked: What a call without an answer asked for.
        uploads: Open, with all their parts acknowledged.
        acknowledged: Calls that were answered, in all rounds.
    """

    known: dict[str, State] = field(default_factory=dict)
    asked: dict[str, State] = field(default_factory=dict)
    uploads: list[OpenUpload] = field(default_factory=list)
    acknowledged: int = 0

    def allowed(self, key: str) -> set[State]:
        """Say what may be read of a key."""
        return {self.known.get(key, NOTHING), self.asked.get(key, self.known.get(key, NOTHING))}


class Writer:
    """One client: works on its own keys until its connection breaks."""

    def __init__(self, number: int, ledger: Ledger, seed: int) -> None:
        self._number = number
        self._ledger = ledger
        self._rng = random.Random(seed)

    def run(self, client: S3Client, stop: Event) -> None:
        """Write until the gateway is gone or `stop` is set."""
        while not stop.is_set():
            try:
                self._step(client)
            except (BotoCoreError, HTTPClientError, ClientError, OSError):
                if stop.wait(0.05):
                    return

    def _step(self, client: S3Client) -> None:
        key = self._key()
        draw = self._rng.random()
        if draw < 0.7:
            body = self._rng.randbytes(self._rng.choice(SIZES))
            with self._asking(key, state_of(body)):
                client.put_object(Bucket="data", Key=key, Body=body)
        elif draw < 0.85:
            with self._asking(key, NOTHING):
                client.delete_object(Bucket="data", Key=key)
        else:
            self._upload(client, key)

    def _key(self) -> str:
        return f"client-{self._number}/key-{self._rng.randrange(40):03}"

    def _upload(self, client: S3Client, key: str) -> None:
        upload_id = client.create_multipart_upload(Bucket="data", Key=key)["UploadId"]
        bodies = [self._rng.randbytes(PART_BYTES), self._rng.randbytes(self._rng.choice(SIZES[1:8]))]
        etags = [
            client.upload_part(Bucket="data", Key=key, UploadId=upload_id, PartNumber=number, Body=body)[
                "ETag"
            ]
            for number, body in enumerate(bodies, 1)
        ]
        upload = OpenUpload(key, upload_id, tuple(enumerate(etags, 1)), state_of(b"".join(bodies)))
        self._ledger.acknowledged += 1 + len(bodies)
        if self._rng.random() < 0.3:
            self._ledger.uploads.append(upload)
            return
        with self._asking(key, upload.state):
            complete(client, upload)

    def _asking(self, key: str, state: State) -> "Asking":
        return Asking(self._ledger, key, state)


class Asking:
    """One call that changes a key: without an answer, both its old and its new state are possible."""

    def __init__(self, ledger: Ledger, key: str, state: State) -> None:
        self._ledger, self._key, self._state = ledger, key, state

    def __enter__(self) -> None:
        self._ledger.asked[self._key] = self._state

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            del self._ledger.asked[self._key]
            self._ledger.known[self._key] = self._state
            self._ledger.acknowledged += 1


def test_every_acknowledged_write_survives_when_the_gateway_is_killed_under_load(tmp_path: Path) -> None:
    """After each of several kills the gateway starts within 2 s with all that it acknowledged, and flushes it to the origin."""
    ledgers = [Ledger() for _ in range(CLIENTS)]
    rng = random.Random(SEED)
    starts: list[float] = []
    with (
        fake_origin("--bucket", "data") as origin,
        # What was sent just before the kill is asked for once more after the origin's time-out: a short one here.
        gateway(origin.endpoint, tmp_path / "cache", origin_timeout_s="1s") as running,
    ):
        running.client().put_object(
            Bucket="data", Key="first", Body=b""
        )  # the bucket's facts are known from here on
        for kill in range(KILLS):
            origin.set_latency(ORIGIN_LATENCY_S)
            acknowledged = _write_until_killed(
                running, ledgers, seed=SEED * 1000 + kill, calls=rng.randrange(50, 200)
            )
            origin.set_latency(0.0)
            unflushed = _differing(origin.client(), ledgers)
            running.start()
            starts.append(running.started_s)
            note_figure(
                f"kill {kill}: after {acknowledged} acknowledged calls, {unflushed} keys not at the origin; "
                f"ready in {running.started_s:.2f} s and {running.queued_s():.2f} s of waiting for a processor"
            )

            read = _read_all(running.client(), ledgers)
            _complete_uploads(running.client(), ledgers, read)
            running.flush("s3://data/")
            at_origin = _read_all(origin.client(), ledgers)

            assert unflushed > 0, "the kill came too late to show anything"
            assert at_origin == read
            assert _listed(origin.client()) == {"first": 0} | {
                key: s.size for key, s in read.items() if s != NOTHING
            }
            assert _listed(running.client()) == _listed(origin.client())
        assert "Traceback" not in running.log_path.read_text()

    assert max(starts) < START_S_MAX, f"starts took {starts} s"


def _write_until_killed(running: GatewayProcess, ledgers: list[Ledger], *, seed: int, calls: int) -> int:
    """Write with all clients until so many calls were acknowledged, then kill; give how many were by then."""
    before = sum(ledger.acknowledged for ledger in ledgers)
    stop = Event()
    clients = [running.client(config=ONE_TRY) for _ in ledgers]
    with ThreadPoolExecutor(len(ledgers)) as threads:
        for number, (ledger, client) in enumerate(zip(ledgers, clients, strict=True)):
            threads.submit(Writer(number, ledger, seed * 100 + number).run, client, stop)
        deadline = time.monotonic() + LOAD_S_MAX
        while sum(ledger.acknowledged for ledger in ledgers) - before < calls and time.monotonic() < deadline:
            time.sleep(0.005)
        running.kill()
        stop.set()
    for client in clients:
        client.close()
    return sum(ledger.acknowledged for ledger in ledgers) - before


def _differing(origin: S3Client, ledgers: list[Ledger]) -> int:
    """Count the keys whose acknowledged state the origin does not have."""
    known = {key: state for ledger in ledgers for key, state in ledger.known.items()}
    return sum(read_state(origin, key) != state for key, state in known.items())


def _read_all(client: S3Client, ledgers: list[Ledger]) -> dict[str, State]:
    """Read every key, hold it against what may be there, and take what is there as known from now on."""
    with ThreadPoolExecutor(8) as threads:
        pairs = [(ledger, key) for ledger in ledgers for key in sorted({*ledger.known, *ledger.asked})]
        states = threads.map(lambda pair: read_state(client, pair[1]), pairs)
        found = {key: (ledger, state) for (ledger, key), state in zip(pairs, states, strict=True)}
    for key, (ledger, state) in found.items():
        assert state in ledger.allowed(key), f"{key} is {state}, not {ledger.allowed(key)} (seed {SEED})"
        ledger.known[key] = state
        ledger.asked.pop(key, None)
    return {key: state for key, (_, state) in found.items()}


def _complete_uploads(client: S3Client, ledgers: list[Ledger], read: dict[str, State]) -> None:
    """Finish what was open at the kill: its parts were acknowledged, so they are there."""
    for ledger in ledgers:
        for upload in ledger.uploads:
            complete(client, upload)
            ledger.known[upload.key] = read[upload.key] = upload.state
            assert read_state(client, upload.key) == upload.state
        ledger.uploads.clear()


def complete(client: S3Client, upload: OpenUpload) -> None:
    """Complete an upload with all its parts."""
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in upload.parts]
    client.complete_multipart_upload(
        Bucket="data", Key=upload.key, UploadId=upload.upload_id, MultipartUpload={"Parts": parts}
    )


def read_state(client: S3Client, key: str) -> State:
    """Read a whole object."""
    try:
        return state_of(client.get_object(Bucket="data", Key=key)["Body"].read())
    except client.exceptions.NoSuchKey:
        return NOTHING


def state_of(body: bytes) -> State:
    """Describe a body so that it can be compared and need not be kept."""
    return State(hashlib.sha256(body).hexdigest(), len(body))


def _listed(client: S3Client) -> dict[str, int]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="data")
    return {str(one["Key"]): int(one["Size"]) for page in pages for one in page.get("Contents", [])}
