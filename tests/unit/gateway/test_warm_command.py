"""`forebay warm` against a gateway over HTTP: lists, progress, exit statuses; and the verbs as any client may send them."""

import asyncio
import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import msgspec
import pytest

from gateway import warm_command
from gateway.client import GatewayClient, HeldAnswer
from gateway.warm_list import WarmList
from storage.clock import SystemClock
from storage.errors import OriginRefusedError
from storage.types import KEY_BYTES_MAX, ObjectName, RangeSpec
from storage.warm_jobs import (
    FEED_ENTRIES_MAX,
    WarmEntry,
    WarmFed,
    WarmJobs,
    WarmKind,
    WarmPhase,
    WarmReport,
    WarmRequest,
    WarmResult,
)
from storage.warm_source import Brought
from tests.fakes.gateway import (
    ACCESS_KEY,
    SECRET_KEY,
    RunningGateway,
    ask,
    execute_at,
    in_thread,
    running_gateway,
    until,
)
from tests.fakes.scripted_body import Gate


def stock(gateway: RunningGateway, count: int = 3) -> None:
    """Put objects into the store."""
    for number in range(count):
        gateway.store.put("bucket", f"data/k{number}", b"x" * 1000)


# --- the command -----------------------------------------------------------------------------------------------------


async def test_a_prefix_is_warmed(gateway: RunningGateway, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0, one line at the end and plain progress where nobody watches a terminal."""
    stock(gateway)
    gateway.store.put("bucket", "other", b"x")

    status = await execute_at(gateway, "warm", "s3://bucket/data/", "--concurrency", "2", "--metadata-only")

    assert status == 0
    assert {wanted.name.key for wanted in gateway.store.warm.wanted} == {"data/k0", "data/k1", "data/k2"}
    assert all(wanted.metadata_only for wanted in gateway.store.warm.wanted)
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("3 of 3 objects warm (100.00%): 3 fetched (2.9 KiB), 0 were here")
    assert "\r" not in said


async def test_progress_is_one_line_when_a_terminal_shows_it(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written over, and ended before the last line."""
    stock(gateway)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    await execute_at(gateway, "warm", "s3://bucket/data/")

    assert "\r3 of 3 objects, " in capsys.readouterr().out


async def test_a_list_on_standard_input_is_warmed(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In pieces, of whatever buckets it names."""
    stock(gateway, 2)
    gateway.store.put("other", "k", b"x")
    lines = ["s3://other/k", *(f"s3://bucket/data/k{n % 2}" for n in range(FEED_ENTRIES_MAX + 5))]
    path = tmp_path / "list"
    path.write_text("\n".join(lines))

    with path.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        status = await execute_at(gateway, "warm", "-")

    assert status == 0
    wanted = [wanted.name for wanted in gateway.store.warm.wanted]
    assert len(wanted) == FEED_ENTRIES_MAX + 6
    assert ObjectName("other", "k") in wanted


async def test_a_list_in_a_file_is_warmed_with_its_ranges(gateway: RunningGateway, tmp_path: Path) -> None:
    """Keys are of the bucket that is named beside it."""
    stock(gateway)
    path = tmp_path / "list"
    path.write_text('data/k0\n{"key": "data/k1", "range": "bytes=5-"}\n')

    status = await execute_at(gateway, "warm", "s3://bucket", "--from", str(path))

    assert status == 0
    wanted = {wanted.name.key: wanted.range for wanted in gateway.store.warm.wanted}
    assert wanted == {"data/k0": None, "data/k1": RangeSpec(start=5)}


@pytest.mark.parametrize(
    ("more", "status"),
    [((), 3), (("--fail-under", "60"), 0), (("--fail-under", "66.7"), 3), (("--fail-under", "100"), 3)],
)
async def test_the_status_says_whether_enough_is_warm(
    more: tuple[str, ...], status: int, gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of three are: without a share to reach, a failure is one."""
    stock(gateway)
    gateway.store.warm.results["data/k1"] = OriginRefusedError("403", status=403, code="AccessDenied")

    assert await execute_at(gateway, "warm", "s3://bucket/data/", *more) == status
    assert "not warm    s3://bucket/data/k1: 403" in capsys.readouterr().out


async def test_what_does_not_fit_is_no_failure_but_is_not_warm(gateway: RunningGateway) -> None:
    """It counts for the share only."""
    stock(gateway)
    gateway.store.warm.results["data/k1"] = Brought(WarmResult.UNFIT, 1000)

    assert await execute_at(gateway, "warm", "s3://bucket/data/") == 0
    assert await execute_at(gateway, "warm", "s3://bucket/data/", "--fail-under", "99.5") == 3


async def test_an_empty_prefix_is_not_warm_when_a_share_is_asked_for(gateway: RunningGateway) -> None:
    """It is most likely misspelt."""
    stock(gateway)

    assert await execute_at(gateway, "warm", "s3://bucket/nothing/") == 0
    assert await execute_at(gateway, "warm", "s3://bucket/nothing/", "--fail-under", "1") == 3


async def test_a_job_goes_on_without_its_client_and_can_be_found_again(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its number: shown, ended, and named in the status of the gateway."""
    stock(gateway)
    gate = gateway.store.warm.gate = Gate()

    begun = await execute_at(gateway, "warm", "s3://bucket/data/", "--detach")
    shown = await execute_at(gateway, "warm", "--status")
    status = await execute_at(gateway, "status")
    cancelled = await execute_at(gateway, "warm", "--cancel", "1")
    gate.opened.set()
    followed = await execute_at(gateway, "warm", "--status", "1")
    unknown = await execute_at(gateway, "warm", "--status", "7")

    said = capsys.readouterr()
    assert (begun, shown, status, cancelled, followed, unknown) == (0, 0, 0, 0, 1, 1)
    assert said.out.count("warm-up 1   running   s3://bucket/data/: 0 of 3 objects, 0 B fetched") == 2
    assert "warm-up 1   cancelled" in said.out
    assert "warm-up 1 was cancelled" in said.err


async def test_a_job_that_fails_ends_with_the_reason(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing could be listed."""
    status = await execute_at(gateway, "warm", "s3://nowhere/data/")

    assert status == 1
    assert "warm-up 1 failed: nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "place: nothing to warm"),
        (("s3://bucket/p", "--order"), "order: there is no list"),
        (("s3://bucket/p", "--from", "f"), "place: 's3://bucket/p' has a prefix"),
        (("s3://bucket/p", "--fail-under", "101"), "fail-under: '101' is wrong"),
        (("s3://bucket/p", "--fail-under", "nan"), "fail-under: 'nan' is wrong"),
        (("s3://bucket/p", "--concurrency", "0"), "concurrency: '0' is wrong"),
        (("-", "--order", "--ahead-bytes", "big"), "ahead-bytes: 'big' is wrong"),
        (("-", "--order", "--idle", "soon"), "idle: 'soon' is wrong"),
        (("--cancel", "x"), "id: 'x' is wrong"),
    ],
)
async def test_wrong_use_is_told_before_anything_is_begun(
    arguments: tuple[str, ...],
    complaint: str,
    gateway: RunningGateway,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status 2 and one line."""
    assert await execute_at(gateway, "warm", *arguments) == 2
    assert complaint in capsys.readouterr().err
    assert not gateway.store.warmer.reports()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"key", "it names no bucket or no key"),
        (b"s3://bucket/\xff", "it is not UTF-8"),
        (b"s3://bucket/" + b"k" * (KEY_BYTES_MAX + 1), "its key has 1025 bytes"),
        (b"s3://bucket/a\0s3://bucket/b", "it holds a NUL"),
        (b'{"key": "a",', "Input data was truncated"),
        (b'{"bucket": "a/b", "key": "k"}', "'a/b' is no name of a bucket"),
    ],
)
async def test_a_wrong_line_ends_the_job(
    line: bytes, complaint: str, gateway: RunningGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is wrong with it: status 2, its number, and nothing of the list is waited for any more."""
    stock(gateway)
    path = tmp_path / "list"
    path.write_bytes(b"s3://bucket/data/k0\n\n" + line + b"\n")

    status = await execute_at(gateway, "warm", "--from", os.fspath(path))

    assert status == 2
    assert f"list: line 3 is no name: {complaint}" in capsys.readouterr().err
    assert gateway.store.warmer.reports()[0].phase is WarmPhase.CANCELLED


# --- a list that comes slowly ----------------------------------------------------------------------------------------


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[IO[bytes]]:
    """Make standard input a pipe; give its other end."""
    reading, writing = os.pipe()
    with open(reading) as stdin, open(writing, "wb", buffering=0) as pipe:  # noqa: PTH123  # they are descriptors
        monkeypatch.setattr(sys, "stdin", stdin)
        yield pipe


def has_wanted(gateway: RunningGateway, count: int) -> bool:
    """Say whether so many names have been asked for."""
    return len(gateway.store.warm.wanted) == count


@pytest.mark.parametrize("more", [(), ("--order",)])
async def test_names_are_warmed_as_they_come(
    more: tuple[str, ...], gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that is a little ahead of its reads, and waits for them, has its order warmed."""
    stock(gateway)
    with piped(monkeypatch) as pipe:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(execute_at(gateway, "warm", "s3://bucket", "--from", "-", *more))
            for number in range(3):
                pipe.write(b"data/k%d\n" % number)
                await until(partial(has_wanted, gateway, number + 1))
            pipe.close()

    assert running.result() == 0
    assert [wanted.name.key for wanted in gateway.store.warm.wanted] == ["data/k0", "data/k1", "data/k2"]


async def test_a_gateway_that_ends_is_told_while_the_list_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1, without another line of the list."""
    async with running_gateway(str(tmp_path / "log")) as gateway:
        stock(gateway)
        with piped(monkeypatch) as pipe:
            async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
                running = tasks.create_task(execute_at(gateway, "warm", "s3://bucket", "--from", "-"))
                pipe.write(b"data/k0\n")
                await until(partial(has_wanted, gateway, 1))
                await gateway.server.stop(600.0)

    assert running.result() == 1
    assert "does not answer" in capsys.readouterr().err


async def test_the_job_is_held_again_when_something_between_has_cut_the_request(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the list goes on."""
    stock(gateway)
    begun: list[str] = []
    hold = GatewayClient.hold

    def noted(client: GatewayClient, path: str) -> HeldAnswer:
        begun.append(path)
        return hold(client, path)

    monkeypatch.setattr(GatewayClient, "hold", noted)
    monkeypatch.setattr(HeldAnswer, "is_open", lambda _: False)
    with piped(monkeypatch) as pipe:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(execute_at(gateway, "warm", "s3://bucket", "--from", "-"))
            for number in range(2):
                pipe.write(b"data/k%d\n" % number)
                await until(partial(has_wanted, gateway, number + 1))
            pipe.close()

    assert running.result() == 0
    assert begun[:2] == ["/-/warm/1/hold"] * 2


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_client_sees_whether_what_it_holds_still_stands(
    is_tls: bool,  # pytest passes by name
    tmp_path: Path,
    tls_files: tuple[Path, Path],
    tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without waiting for what comes; it is gone with its gateway, whose stop does not wait for who holds a job."""
    monkeypatch.setenv("SSL_CERT_FILE", os.fspath(tls_files[0]))
    tls = tls_contexts[0] if is_tls else None
    async with running_gateway(str(tmp_path / "log"), tls=tls) as gateway:
        gateway.store.warmer.start(WarmRequest(WarmKind.LIST, hold_s=60.0))
        endpoint = f"{gateway.scheme}://{gateway.host}"
        client = GatewayClient(endpoint, ACCESS_KEY, SECRET_KEY, SystemClock().wall_s)

        held = await in_thread(client.hold, "/-/warm/1/hold")
        stood = held.is_open()
        async with asyncio.timeout(50):
            await gateway.server.stop(600.0)
        await until(lambda: not held.is_open())
        held.close()

    assert stood


async def test_an_interruption_leaves_the_job_what_it_was_given(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1; the job is named, and fails when it has fetched that."""
    stock(gateway)

    def interrupted(_given: WarmList, _wait_s: float) -> tuple[WarmEntry, ...]:
        if gateway.store.warm.wanted:
            raise KeyboardInterrupt
        return (WarmEntry("bucket", "data/k0"),)

    monkeypatch.setattr(WarmList, "piece", interrupted)
    monkeypatch.setattr(warm_command, "HOLD_S", 5)

    with piped(monkeypatch):
        status = await execute_at(gateway, "warm", "s3://bucket", "--from", "-")
    report = await gateway.store.warmer.wait(1, 60.0)

    assert status == 1
    assert "warm-up 1 fetches what it was given" in capsys.readouterr().out
    assert (report.phase, report.error) == (WarmPhase.FAILED, "the list was not given to its end")


async def test_a_job_that_is_not_known_any_more_is_told(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a restart of the gateway; not by the words of an S3 error."""
    assert await execute_at(gateway, "warm", "--status", "7") == 1
    assert "the gateway knows no such warm-up" in capsys.readouterr().err


# --- the verbs -------------------------------------------------------------------------------------------------------


async def test_a_list_is_given_by_verbs(gateway: RunningGateway) -> None:
    """A piece that is sent again is taken once; one that does not follow is refused with the reason."""
    stock(gateway)
    started = await ask(gateway, "POST", "/-/warm?mode=list&concurrency=3")
    job = msgspec.json.decode(started.body, type=WarmReport)
    piece = msgspec.json.encode(
        [{"bucket": "bucket", "key": "data/k0"}, {"bucket": "bucket", "key": "data/k1"}]
    )

    first = await ask(gateway, "POST", f"/-/warm/{job.job_id}?at=0&last=0", body=piece)
    again = await ask(gateway, "POST", f"/-/warm/{job.job_id}?at=0&last=0", body=piece)
    early = await ask(gateway, "POST", f"/-/warm/{job.job_id}?at=5&last=0", body=piece)
    last = await ask(gateway, "POST", f"/-/warm/{job.job_id}?at=2&last=1")
    ended = await ask(gateway, "GET", f"/-/warm/{job.job_id}?wait=10")

    assert [msgspec.json.decode(answer.body, type=WarmFed).next_at for answer in (first, again, last)] == [
        2,
        2,
        2,
    ]
    assert early.status == 409
    assert b"has 2 names" in early.body
    report = msgspec.json.decode(ended.body, type=WarmReport)
    assert (report.phase, report.results, report.is_counted) == (WarmPhase.DONE, {"brought": 2}, True)
    jobs = msgspec.json.decode((await ask(gateway, "GET", "/-/warm")).body, type=WarmJobs).jobs
    assert [one.job_id for one in jobs] == [job.job_id]


async def test_a_job_fails_soon_when_whoever_held_it_has_gone(gateway: RunningGateway) -> None:
    """What was given before is brought; a list that has ended needs nobody."""
    stock(gateway)
    await ask(gateway, "POST", "/-/warm?mode=list&hold=5")
    holding = await gateway.connect()
    await holding.send(gateway.signed("GET", "/-/warm/1/hold"))
    status, _ = await holding.head()
    piece = msgspec.json.encode([WarmEntry("bucket", "data/k0")])
    await ask(gateway, "POST", "/-/warm/1?at=0&last=0", body=piece)

    await holding.close()
    report = await gateway.store.warmer.wait(1, 50.0)

    assert status == 200
    assert (report.phase, report.results) == (WarmPhase.FAILED, {"brought": 1})


async def test_a_hold_ends_with_the_list(gateway: RunningGateway) -> None:
    """With the report of the job, behind blanks; a hold of a job that takes no names ends at once."""
    stock(gateway)
    await ask(gateway, "POST", "/-/warm?mode=list&hold=60")
    holding = await gateway.connect()
    await holding.send(gateway.signed("GET", "/-/warm/1/hold", {"connection": "close"}))
    await holding.head()

    await ask(gateway, "POST", "/-/warm/1?at=0&last=1", body=b"[]")
    told = await holding.reader.read()

    assert b'"job_id":1' in told
    assert told.endswith(b"0\r\n\r\n")


async def test_an_order_begins_with_the_bounds_that_were_asked_for(gateway: RunningGateway) -> None:
    """No further ahead of the reads than that."""
    stock(gateway, 9)
    await ask(gateway, "POST", "/-/warm?mode=order&ahead=2&ahead-bytes=100000&idle=60")
    piece = msgspec.json.encode([WarmEntry("bucket", f"data/k{n}") for n in range(9)])

    await ask(gateway, "POST", "/-/warm/1?at=0&last=1", body=piece)
    await until(lambda: len(gateway.store.warm.wanted) == 2)
    gateway.store.warmer.note_read(ObjectName("bucket", "data/k0"))
    await until(lambda: len(gateway.store.warm.wanted) == 3)

    ended = await ask(gateway, "DELETE", "/-/warm/1")
    assert msgspec.json.decode(ended.body, type=WarmReport).phase is WarmPhase.CANCELLED


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("POST", "/-/warm", b"", 400),
        ("POST", "/-/warm?mode=fast", b"", 400),
        ("POST", "/-/warm?bucket=b&concurrency=9999", b"", 400),
        ("POST", "/-/warm?mode=list&hold=9999", b"", 400),
        ("GET", "/-/warm/x/hold", b"", 400),
        ("GET", "/-/warm/7/hold", b"", 404),
        ("POST", "/-/warm/1/hold", b"", 400),
        ("POST", "/-/warm/1?at=0", b'{"no": "list"}', 400),
        ("POST", "/-/warm/1?at=0", b'[{"bucket": "bucket", "key": ""}]', 400),
        ("POST", "/-/warm/1?at=0", b'[{"bucket": "a/b", "key": "k"}]', 400),
        (
            "POST",
            "/-/warm/1?at=0",
            msgspec.json.encode([{"bucket": "bucket", "key": "k" * (KEY_BYTES_MAX + 1)}]),
            400,
        ),
        ("POST", "/-/warm/1?at=0", msgspec.json.encode([{"bucket": "bucket", "key": "k"}] * 1001), 400),
        ("POST", "/-/warm/1", b"[]", 400),
        ("POST", "/-/warm/7?at=0", b"[]", 404),
        ("GET", "/-/warm/7", b"", 404),
        ("DELETE", "/-/warm", b"", 405),
    ],
)
async def test_a_verb_that_is_wrong_is_refused(
    method: str, target: str, body: bytes, status: int, gateway: RunningGateway
) -> None:
    """Before anything is done."""
    await ask(gateway, "POST", "/-/warm?mode=list")

    assert (await ask(gateway, method, target, body=body)).status == status
