"""`forebay verify`, and what else the commands show, over a gateway whose engine says what a test wants, and a real origin."""

import hashlib
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from gateway.cli import execute
from storage.acknowledgements import AcknowledgedLine
from storage.requests import PendingLine
from tests.fakes.engine import FakeStore
from tests.fakes.gateway import ACCESS_KEY, SECRET_KEY, RunningGateway, in_thread
from tests.fakes.origin_server import FakeOrigin


@pytest.fixture
async def origin() -> AsyncIterator[FakeOrigin]:
    """An origin that checks signatures, with one bucket."""
    async with FakeOrigin() as running:
        running.keys = {"origin-key": "origin-secret"}
        running.store.create_bucket("bucket")
        yield running


async def run(gateway: RunningGateway, origin: FakeOrigin, *arguments: str) -> int:
    """Run a command with the settings that an operator of both has."""
    environment = {
        "FOREBAY_ACCESS_KEY": ACCESS_KEY,
        "FOREBAY_SECRET_KEY": SECRET_KEY,
        "FOREBAY_ENDPOINT": f"http://{gateway.host}",
        "FOREBAY_ORIGIN": origin.url,
        "FOREBAY_ORIGIN_ACCESS_KEY": "origin-key",
        "FOREBAY_ORIGIN_SECRET_KEY": "origin-secret",
    }
    return await in_thread(execute, arguments, environment)


def written(origin: FakeOrigin, key: str, body: bytes, **headers: str) -> AcknowledgedLine:
    """Put an object at the origin, and give what a gateway would say of it."""
    origin.store.put("bucket", key, body, **headers)
    etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
    meta = tuple(
        (name.removeprefix("x_amz_meta_"), value) for name, value in headers.items() if "_meta_" in name
    )
    return AcknowledgedLine(key, size=len(body), etag=etag, origin_etag=etag, user_metadata=meta)


async def test_a_complete_origin_is_proven(
    gateway: RunningGateway, origin: FakeOrigin, capsys: pytest.CaptureFixture[str]
) -> None:
    """All acknowledged keys are there, over several pages; what others wrote is counted and does not matter."""
    gateway.store.acknowledged_lines = tuple(
        written(origin, f"p/{number}", bytes([number]) * number, x_amz_meta_a="1") for number in range(7)
    )
    origin.store.put("bucket", "p/theirs", b"x")
    written(origin, "q", b"outside")

    shallow = await run(gateway, origin, "verify", "s3://bucket/p/")
    deep = await run(gateway, origin, "verify", "s3://bucket/p/", "--deep", "--bytes")

    summary = (
        "7 of 7 acknowledged keys are at the origin (1 others there are not on record here: passed through, or by other writers): "
        "the origin alone is complete\n"
    )
    assert (shallow, deep) == (0, 0)
    assert capsys.readouterr().out == 2 * summary


async def test_what_the_origin_lacks_is_listed(
    gateway: RunningGateway, origin: FakeOrigin, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dirty, quarantined, missing and different keys have a line each, and the exit status is 1."""
    good = written(origin, "a", b"good")
    dirty = AcknowledgedLine("b", size=3, etag="e", state="queued")
    refused = AcknowledgedLine("c", size=3, etag="e", state="quarantined", reason="403 AccessDenied")
    missing = AcknowledgedLine("d", size=3, etag="e", origin_etag="e")
    changed = replace(written(origin, "e", b"theirs"), size=4)
    deleted = AcknowledgedLine("f", state="held", is_tombstone=True)
    gateway.store.acknowledged_lines = (good, dirty, refused, missing, changed, deleted)

    status = await run(gateway, origin, "verify", "s3://bucket")

    lines = capsys.readouterr().out.splitlines()
    assert status == 1
    assert [line.split(":")[0] for line in lines[:-1]] == [
        "dirty       s3",
        "quarantined s3",
        "missing     s3",
        "different   s3",
        "dirty       s3",
    ]
    assert lines[1].endswith("s3://bucket/c: 3 bytes, quarantined: 403 AccessDenied")
    assert lines[4].endswith("s3://bucket/f: delete, held")
    assert lines[-1].startswith("1 of 6 acknowledged keys are at the origin")
    assert lines[-1].endswith("2 dirty, 1 quarantined, 1 missing, 1 different")


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "verdict"), [("--deep", "metadata"), ("--bytes", "bytes")])
async def test_what_a_listing_does_not_show_is_found_inside(
    gateway: RunningGateway, origin: FakeOrigin, capsys: pytest.CaptureFixture[str], flag: str, verdict: str
) -> None:
    """Other metadata with --deep, other bytes under the same ETag with --bytes; without, neither."""
    line = written(origin, "k", b"body", x_amz_meta_a="1")
    stored = origin.store.buckets["bucket"].objects["k"]
    stored = type(stored)(b"bodY", stored.etag, stored.at_s, {}, stored.checksums)
    origin.store.buckets["bucket"].objects["k"] = stored
    gateway.store.acknowledged_lines = (line,)

    shallow = await run(gateway, origin, "verify", "s3://bucket/k")
    inside = await run(gateway, origin, "verify", "s3://bucket/k", flag)

    assert (shallow, inside) == (0, 1)
    assert f"{verdict:<11} s3://bucket/k: " in capsys.readouterr().out


async def test_a_key_that_is_flushed_during_the_run_is_no_difference(
    gateway: RunningGateway,
    origin: FakeOrigin,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the two sides' answers of two moments differ in is asked for once more."""
    old = written(origin, "k", b"old")
    new = written(origin, "k", b"newer")
    gateway.store.acknowledged_lines = (old,)
    monkeypatch.setattr(FakeStore, "acknowledged_of", lambda _store, _name: new)

    status = await run(gateway, origin, "verify", "s3://bucket/")

    assert status == 0
    assert "the origin alone is complete" in capsys.readouterr().out


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_key_that_the_gateway_forgets_during_the_run_is_a_finding(
    gateway: RunningGateway,
    origin: FakeOrigin,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_replaced: bool,
) -> None:
    """A read that finds the loss drops the row between the two sides' answers: the run says so, and does not end with 0."""
    gateway.store.acknowledged_lines = (written(origin, "k", b"body"), written(origin, "l", b"body"))
    origin.store._delete("bucket", "k")
    if is_replaced:
        origin.store.put("bucket", "k", b"theirs")
    monkeypatch.setattr(FakeStore, "acknowledged_of", lambda _store, _name: None)

    status = await run(gateway, origin, "verify", "s3://bucket/")

    lines = capsys.readouterr().out.splitlines()
    assert status == 1
    assert lines[0].startswith("gone        s3://bucket/k: ")
    assert lines[0].endswith("; the gateway has forgotten it meanwhile")
    assert lines[1].endswith(": 1 gone")


async def test_verify_never_asks_the_gateway_for_objects(gateway: RunningGateway, origin: FakeOrigin) -> None:
    """Nothing cached can stand in for the origin: listings, heads and bytes are all the origin's own."""
    gateway.store.acknowledged_lines = (written(origin, "k", b"body"),)

    await run(gateway, origin, "verify", "s3://bucket/", "--deep", "--bytes")

    assert gateway.store.opened == []
    assert "list_objects" not in gateway.store.calls
    assert origin.requests_of("ListObjectsV2") == 1
    assert origin.requests_of("GetObject") == 1


async def test_verify_fails_in_one_line_when_the_origin_does_not_answer(
    gateway: RunningGateway, origin: FakeOrigin, capsys: pytest.CaptureFixture[str]
) -> None:
    """An origin that refuses us proves nothing."""
    origin.keys = {"other": "key"}

    status = await run(gateway, origin, "verify", "s3://bucket/")

    error = capsys.readouterr().err
    assert status == 1
    assert error.count("\n") == 1
    assert "does not list bucket: 403 InvalidAccessKeyId" in error


# --- pending and quarantine --------------------------------------------------------------------------------------------


def waiting(sequence: int, state: str) -> PendingLine:
    """A change of a state."""
    return PendingLine(sequence, "bucket", f"k{sequence:04}", 1024, False, 1.0, 2, state, "why")


async def test_pending_shows_every_page_with_ages(
    gateway: RunningGateway, origin: FakeOrigin, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than one page of changes, oldest first, and their sum."""
    gateway.store.lines = tuple(waiting(number, "queued") for number in range(1, 1502))

    status = await run(gateway, origin, "pending", "s3://bucket/k")

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert len(lines) == 1502
    assert lines[0].endswith(" d  queued      s3://bucket/k0001 (1.0 KiB, 2 attempts): why")
    assert lines[-1] == "1501 changes not at the origin yet, 1.5 MiB"


async def test_quarantine_shows_what_was_refused_in_all_buckets(
    gateway: RunningGateway, origin: FakeOrigin, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing else of what is pending."""
    gateway.store.lines = (
        waiting(1, "queued"),
        waiting(2, "quarantined"),
        replace(waiting(3, "quarantined"), bucket="x"),
    )

    status = await run(gateway, origin, "status", "--quarantine")

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert [line.split()[3] for line in lines[:-1]] == ["s3://bucket/k0002", "s3://x/k0003"]
    assert lines[-1] == "2 changes quarantined, 2.0 KiB"


async def test_a_prefix_is_discarded_only_when_it_is_confirmed_and_lists_first(
    gateway: RunningGateway, origin: FakeOrigin, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hundred lines are shown, the rest is counted; each key is given up by itself."""
    gateway.store.lines = tuple(waiting(number, "quarantined") for number in range(1, 121))

    unconfirmed = await run(gateway, origin, "discard", "s3://bucket/k", "--prefix")
    asked = capsys.readouterr()
    calls = list(gateway.store.calls)
    confirmed = await run(gateway, origin, "discard", "s3://bucket/k", "--prefix", "--yes")

    assert (unconfirmed, confirmed) == (2, 0)
    assert calls == []
    assert len(asked.out.splitlines()) == 101
    assert "and 20 more" in asked.out
    assert "these 120 changes would be lost" in asked.err
    assert gateway.store.calls == 120 * ["discard_quarantined"]
    assert "120 changes discarded, 120.0 KiB lost" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [("s3://bucket/k0002",), ("s3://bucket/k", "--prefix")])
async def test_what_was_written_since_it_was_listed_stays_when_it_is_discarded(
    gateway: RunningGateway,
    origin: FakeOrigin,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
) -> None:
    """The gateway is told which change was listed; a key that has another by now keeps it, and the command says so with status 1."""
    gateway.store.lines = (waiting(2, "quarantined"),)
    gateway.store.rewritten = {"k0002"}

    status = await run(gateway, origin, "discard", *flags, "--yes")

    said = capsys.readouterr()
    assert status == 1
    assert gateway.store.discarded == [("k0002", 2)]
    assert "quarantined s3://bucket/k0002" in said.out
    assert "0 changes discarded, 0 B lost" in said.out
    assert "1 of those listed were not discarded" in said.err
