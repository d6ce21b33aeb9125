"""`forebay warm` against a gateway over HTTP: lists, progress, exit statuses; and the verbs as any client may send them."""

import io
import os
import sys
from pathlib import Path

import msgspec
import pytest

from gateway.cli import _place
from gateway.settings import SettingsError
from gateway.warm_command import read_entries
from storage.errors import OriginRefusedError
from storage.types import KEY_BYTES_MAX, ObjectName, RangeSpec
from storage.warm_jobs import (
    FEED_ENTRIES_MAX,
    WarmEntry,
    WarmFed,
    WarmJobs,
    WarmPhase,
    WarmReport,
    WarmResult,
)
from storage.warm_source import Brought
from tests.fakes.gateway import RunningGateway, ask, execute_at, until
from tests.fakes.scripted_body import Gate


def stock(gateway: RunningGateway, count: int = 3) -> None:
    """Put objects into the store."""
    for number in range(count):
        gateway.store.put("bucket", f"data/k{number}", b"x" * 1000)


# --- lists -----------------------------------------------------------------------------------------------------------


def test_a_list_may_have_keys_addresses_and_objects() -> None:
    """One a line; empty lines are passed over, and nothing of a key is touched but its line's end."""
    lines = [
        "plain key \n",
        "\n",
        "s3://other/a/b\r\n",
        '{"key": "{odd", "range": "bytes=0-9"}\n',
        '{"key": "s3://other/k", "range": "bytes=-5"}\n',
        '{"bucket": "third", "key": "s3://odd"}',
    ]

    assert list(read_entries(lines, "bucket", _place)) == [
        WarmEntry("bucket", "plain key "),
        WarmEntry("other", "a/b"),
        WarmEntry("bucket", "{odd", RangeSpec(start=0, stop=10)),
        WarmEntry("other", "k", RangeSpec(suffix=5)),
        WarmEntry("third", "s3://odd"),
    ]


@pytest.mark.parametrize(
    "line",
    ["key", "s3://bucket", "s3://bucket/", '{"key": 1}', '{"key"', '{"key": "s3://b/k", "range": "0-9"}'],
)
def test_a_line_that_is_no_name_is_told_by_its_number(line: str) -> None:
    """A key needs a bucket, a range is written as in a header."""
    with pytest.raises(SettingsError, match="list: line 2 is no name"):
        list(read_entries(["s3://b/k\n", line], "", _place))


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
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces, of whatever buckets it names."""
    stock(gateway, 2)
    gateway.store.put("other", "k", b"x")
    lines = ["s3://other/k", *(f"s3://bucket/data/k{n % 2}" for n in range(FEED_ENTRIES_MAX + 5))]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))

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


@pytest.mark.parametrize("content", [b"s3://bucket/data/k0\nkey\n", b"s3://bucket/\xff\n"])
async def test_a_wrong_line_ends_the_job(content: bytes, gateway: RunningGateway, tmp_path: Path) -> None:
    """A list that is not what was meant is not warmed by half."""
    stock(gateway)
    path = tmp_path / "list"
    path.write_bytes(content)

    status = await execute_at(gateway, "warm", "--from", os.fspath(path))

    assert status == 2
    assert gateway.store.warmer.reports()[0].phase is WarmPhase.CANCELLED


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
        ("POST", "/-/warm/1?at=0", b'{"no": "list"}', 400),
        ("POST", "/-/warm/1?at=0", b'[{"bucket": "b", "key": ""}]', 400),
        (
            "POST",
            "/-/warm/1?at=0",
            msgspec.json.encode([{"bucket": "b", "key": "k" * (KEY_BYTES_MAX + 1)}]),
            400,
        ),
        ("POST", "/-/warm/1?at=0", msgspec.json.encode([{"bucket": "b", "key": "k"}] * 1001), 400),
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
