"""The ledger's load and check over an origin in this process: what it writes down, and what it finds."""

import re
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.ledger.book import Book, lines_of
from gateway.ledger.check import CheckReport, check
from gateway.ledger.client import LoadSettings, Tally, is_definite
from gateway.ledger.entries import Attempt, Broken, LedgerError
from gateway.ledger.history import Histories
from gateway.ledger.load import Load
from gateway.proof_commands import Place, check_ledger
from gateway.s3_endpoint import Answer, EndpointError, S3Endpoint
from storage.clock import SystemClock
from storage.origin.credentials import Credentials
from storage.origin.endpoint import OriginSettings
from storage.types import KIB
from tests.fakes.gateway import in_thread
from tests.fakes.origin_faults import Fault
from tests.fakes.origin_server import FakeOrigin
from tests.fakes.writing import until

PLACE = Place("data", "p/")


class Written:
    """An origin, and a ledger of a load that ran on it."""

    def __init__(self, origin: FakeOrigin, path: Path) -> None:
        self.origin = origin
        self.path = str(path)

    def connect(self) -> S3Endpoint:
        """Speak to the origin."""
        settings = OriginSettings(self.origin.url, answer_s=5.0)
        return S3Endpoint(settings, lambda: Credentials("a", "s"), SystemClock())

    async def load(self, requests: int, *, seed: int = 1, clients: int = 8, keys_a_client: int = 6) -> Tally:
        """Run a load until so many requests were acknowledged."""
        how = LoadSettings(
            PLACE.bucket,
            PLACE.prefix,
            clients=clients,
            seed=seed,
            keys_a_client=keys_a_client,
            size_max=KIB,
        )
        book = Book.open(self.path, place=str(PLACE), seed=how.seed)
        load = Load(how, book, Histories(lines_of(self.path)), self.connect, SystemClock())
        stop = threading.Event()
        running = threading.Thread(target=load.run, args=(stop,))
        running.start()
        try:
            await until(lambda: load.tally().acknowledged >= requests, timeout_s=30.0)
        finally:
            stop.set()
            await in_thread(running.join)
            book.close()
        return load.tally()

    async def check(self) -> CheckReport:
        """Check the ledger."""
        return await in_thread(check_ledger, self.path, PLACE, self.connect)

    def present(self) -> list[str]:
        """Keys that are there."""
        return list(self.origin.store.buckets["data"].keys)


@pytest.fixture
async def written(tmp_path: Path) -> AsyncIterator[Written]:
    """An origin with an empty bucket."""
    async with FakeOrigin() as origin:
        origin.store.create_bucket("data")
        yield Written(origin, tmp_path / "ledger")


async def test_a_load_that_all_went_well_is_found_right(written: Written) -> None:
    """All kinds of requests are acknowledged, and each key is as the ledger says; also after a second run."""
    tally = await written.load(150)
    first = await written.check()
    await written.load(60, seed=2)
    second = await written.check()

    assert {what for what, outcome in tally.counts if outcome == "acknowledged"} == {
        "put",
        "delete",
        "copy",
        "complete",
    }
    assert first.violations == second.violations == []
    assert first.uncertain == 0
    assert (
        first.present == len([key for key in written.present() if key.startswith("p/")]) or second.present > 0
    )
    assert second.bytes_read > 0


async def test_a_load_goes_on_through_failures_and_is_found_right(written: Written) -> None:
    """Throttled, cut and lost answers are written down as such; both states are then allowed."""
    for fault in (
        Fault(times=5, skip=5, status=503, code="SlowDown"),
        Fault(operation="PutObject", times=5, skip=10, drop="before"),
        Fault(operation="PutObject", times=5, skip=20, drop="after"),
        Fault(operation="DeleteObject", times=2, skip=1, drop="after"),
        Fault(operation="CompleteMultipartUpload", times=2, status=500, is_processed=True),
    ):
        written.origin.faults.add(fault)

    tally = await written.load(150)
    report = await written.check()

    assert tally.unanswered > 0
    assert report.violations == []


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (412, "PreconditionFailed")])
async def test_a_refused_write_that_is_there_all_the_same_is_a_violation(
    written: Written, status: int, code: str
) -> None:
    """What was answered 4xx is not done: found later, it is reported; where it stays away, exactly one state is allowed."""
    written.origin.faults.add(Fault(operation="PutObject", times=-1, skip=12, status=status, code=code))
    kept = await written.load(60)
    clean = await written.check()
    written.origin.faults.clear()
    written.origin.faults.add(
        Fault(operation="PutObject", times=-1, skip=12, status=status, code=code, is_processed=True)
    )
    await written.load(60, seed=2)
    found = await written.check()

    assert kept.counts["put", "refused"] > 0
    assert clean.violations == []
    assert clean.uncertain == 0
    assert found.violations
    assert any(one.what.startswith("REFUSED: attempt ") and code in one.what for one in found.violations)


@pytest.mark.parametrize("status", [408, 409, 499, 500, 503])
def test_an_answer_that_leaves_the_outcome_open_is_no_refusal(status: int) -> None:
    """Requests that were given up on, met another one, or failed at the endpoint may have been carried out."""
    assert not is_definite(status)
    assert is_definite(400)
    assert not is_definite(200)


async def test_each_attempt_is_on_the_disk_before_it_is_sent(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever reaches the origin stands in the synced part of the ledger."""
    synced: set[str] = set()
    unsynced: list[str] = []
    sync, call = Book.sync, S3Endpoint.call

    def noted_sync(book: Book, upto: int | None = None) -> None:
        sync(book, upto)
        synced.update(line.key for line in lines_of(written.path) if isinstance(line, Attempt))

    def noted_call(endpoint: S3Endpoint, method: str, bucket: str, key: str = "", **rest: object) -> object:
        if method == "PUT" and "query" not in rest and key not in synced:
            unsynced.append(key)
        return call(endpoint, method, bucket, key, **rest)  # type: ignore[arg-type]  # handed on

    monkeypatch.setattr(Book, "sync", noted_sync)
    monkeypatch.setattr(S3Endpoint, "call", noted_call)
    await written.load(20, clients=1, keys_a_client=100)

    assert unsynced == []


async def test_a_lost_object_is_found_with_its_history(written: Written) -> None:
    """The key, what is wrong, and each attempt on it."""
    await written.load(80)
    key = written.present()[0]
    written.origin.store._delete("data", key)

    report = await written.check()

    (violation,) = report.violations
    assert violation.key == key
    assert violation.what.startswith("LOST")
    assert any("acknowledged" in line for line in violation.history)


async def test_a_wrong_byte_is_found(written: Written) -> None:
    """Size and metadata are right, the bytes are not."""
    await written.load(80)
    objects = written.origin.store.buckets["data"].objects
    key = next(key for key, stored in objects.items() if stored.body)
    body = bytes([objects[key].body[0] ^ 1]) + objects[key].body[1:]
    written.origin.store.put("data", key, body, **_kept(objects[key].headers))

    report = await written.check()

    assert [(one.key, one.what.partition(":")[0]) for one in report.violations] == [(key, "WRONG BYTES")]


async def test_a_key_that_nobody_attempted_is_found(written: Written) -> None:
    """The prefix belongs to the ledger alone."""
    await written.load(20)
    written.origin.store.put("data", "p/stranger", b"x")

    report = await written.check()

    assert [one.what for one in report.violations] == ["UNKNOWN KEY: it is listed, and nobody attempted it"]


async def test_a_check_without_a_ledger_is_refused(written: Written, tmp_path: Path) -> None:
    """A wrong file name proves nothing, and leaves no empty ledger behind."""
    with pytest.raises(LedgerError, match="is not there"):
        await in_thread(check_ledger, str(tmp_path / "other"), PLACE, written.connect)

    assert await in_thread(lambda: list(tmp_path.iterdir())) == []


async def test_a_bucket_that_is_gone_is_no_absence(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be said of keys whose bucket is not there."""
    await written.load(20)
    monkeypatch.setattr("gateway.ledger.check.TRIES_MAX", 1)
    del written.origin.store.buckets["data"]

    with pytest.raises(EndpointError, match="404 NoSuchBucket"):
        await written.check()


async def test_an_upload_that_is_gone_is_found(written: Written) -> None:
    """Its parts were acknowledged, so the Complete must not be told that it does not exist."""
    written.origin.faults.add(
        Fault(operation="CompleteMultipartUpload", status=404, code="NoSuchUpload", times=1)
    )
    await written.load(80)

    report = await written.check()

    assert [one.what.partition(":")[0] for one in report.violations] == ["BROKEN"]
    assert sum(isinstance(line, Broken) for line in lines_of(written.path)) == 1


@pytest.mark.slow
async def test_a_load_waits_for_an_endpoint_that_is_away(written: Written) -> None:
    """Nothing is attempted while nobody listens, and the load goes on when somebody does."""
    written.origin.faults.add(Fault(times=60, skip=30, drop="before"))

    tally = await written.load(60)

    cut = sum(count for (_, outcome), count in tally.counts.items() if outcome == "unanswered")
    assert 0 < cut < 60
    assert (await written.check()).violations == []


def _kept(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in headers.items() if name.startswith("x-amz-meta")}


def test_a_check_of_a_dead_gateway_says_so_and_gives_up_at_once_for_all_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line while it is asked again, then an error: nobody waits in silence for each of a thousand keys in turn."""
    monkeypatch.setattr("gateway.ledger.check.TRIES_MAX", 3)
    monkeypatch.setattr("gateway.ledger.check.TRY_WAIT_S", 0.01)
    lines = [Attempt(number, str(number), "put", 1.0, "sha", 3, "etag") for number in range(1000)]
    told: list[str] = []
    calls: list[str] = []

    class Dead(S3Endpoint):
        def stream(self, bucket: str, key: str) -> tuple[Answer, Iterator[bytes]]:
            calls.append(key)
            return super().stream(bucket, key)

    def connect() -> S3Endpoint:
        settings = OriginSettings("http://127.0.0.1:1", answer_s=1.0)
        return Dead(settings, lambda: Credentials("a", "s"), SystemClock())

    with pytest.raises(EndpointError, match=re.escape("127.0.0.1:1")):
        check(Histories(lines), "data", "p/", connect, tell=told.append)

    assert len(told) == 1
    assert told[0].endswith("; asked again for up to 0 s")
    assert len(calls) < 100, "keys were asked for after the end"
