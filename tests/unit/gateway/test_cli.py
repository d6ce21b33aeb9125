"""The command line: exit statuses, one-line errors, and what it says of a running gateway."""

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway import app
from gateway.cli import execute, pending_line, status_lines
from gateway.readable import readable
from gateway.settings import SettingsError
from storage.requests import BarrierReport, PendingLine, PointerLine
from storage.types import MIB
from tests.fakes.engine import FakeStore
from tests.fakes.gateway import ACCESS_KEY, RunningGateway, execute_at, in_thread, pause

LINE = PendingLine(
    sequence=9,
    bucket="bucket",
    key="key",
    size=2048,
    is_tombstone=False,
    acknowledged_at_s=1.0,
    attempts=3,
    state="quarantined",
    reason="403 AccessDenied",
)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve", "--listen", "nowhere"], "listen (--listen): 'nowhere' is wrong; allowed: HOST:PORT"),
        (["serve"], "origin: not set"),
        (["status"], "access_key: not set"),
        (["flush", "bucket"], "access_key: not set"),
        (["fsck"], "cache_dir: not set"),
        (["ledger", "write", "s3://b/p"], "ledger: --ledger FILE is missing"),
        (["ledger", "write", "s3://b/p", "--ledger", "f", "--clients", "0"], "clients: '0' is wrong"),
        (["ledger", "write", "s3://b/p", "--ledger", "f", "--max-size", "big"], "max-size: 'big' is wrong"),
        (["ledger", "write", "s3://b/p", "--ledger", "f", "--seconds", "soon"], "seconds: 'soon' is wrong"),
        (["ledger", "check", "s3://b/p", "--ledger", "f", "--at-origin"], "origin: not set"),
        (
            ["serve", "--config", "/does/not/exist"],
            "config (/does/not/exist): cannot be read: No such file or directory;",
        ),
    ],
)
def test_one_line_says_what_is_wrong_when_a_setting_is(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong or missing setting is named in one line, with status 2."""
    status = execute(arguments, {})

    error = capsys.readouterr().err
    assert status == 2
    assert error.startswith(f"forebay: {complaint}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [[], ["unknown"], ["serve", "--unknown"], ["serve", "--secret-key", "x"]]
)
def test_the_use_is_refused_when_it_is_wrong(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown commands and flags end with status 2 and one line; a secret is no flag."""
    with pytest.raises(SystemExit) as raised:
        execute(arguments, {})

    assert raised.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_pipe_is_refused_when_settings_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload of a config file that became a pipe is refused at once; it would wait for the pipe's end."""
    config = tmp_path / "forebay.toml"
    config.write_text(f'origin = "http://127.0.0.1:1"\ncache_dir = "{tmp_path}/cache"\n')
    told: dict[str, Any] = {}
    monkeypatch.setattr(app, "run", lambda _settings, **options: told.update(options))
    execute(["serve", "--config", str(config)], {"FOREBAY_ACCESS_KEY": "a", "FOREBAY_SECRET_KEY": "s"})

    config.unlink()
    os.mkfifo(config)

    with pytest.raises(SettingsError, match="cannot be read again; allowed: a file"):
        told["reread"]()


@pytest.mark.parametrize("text", ["", " \n\t\n"])
def test_an_empty_config_file_is_refused_when_settings_are_read_again(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is being written, or was cut by a full disk, takes away no key and no policy; what began empty may stay so."""
    config = tmp_path / "forebay.toml"
    told: dict[str, Any] = {}
    monkeypatch.setattr(app, "run", lambda _settings, **options: told.update(options))
    variables = {
        "FOREBAY_ACCESS_KEY": "a",
        "FOREBAY_SECRET_KEY": "s",
        "FOREBAY_ORIGIN": "http://127.0.0.1:1",
        "FOREBAY_CACHE_DIR": str(tmp_path / "cache"),
    }
    config.write_text(text)
    execute(["serve", "--config", str(config)], variables)
    assert [key.access_key for key in told["reread"]().client_keys] == ["a"]
    config.write_text('[[policies]]\nmatch = "s3://published/now/*"\npublished = true\n')
    execute(["serve", "--config", str(config)], variables)
    assert len(told["reread"]().policies) == 1

    config.write_text(text)

    with pytest.raises(SettingsError, match="is empty; allowed: the settings"):
        told["reread"]()


def test_the_config_file_is_read_when_it_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings come from the file, and a wrong one there is named."""
    config = tmp_path / "forebay.toml"
    config.write_text('cache_size = "tiny"\n')

    status = execute(["serve", "--config", str(config)], {})

    assert status == 2
    assert "cache_size (config file, line 1): 'tiny' is wrong" in capsys.readouterr().err


async def test_status_is_shown_when_a_gateway_runs(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status shows cache, ratio, backlog and what is quarantined."""
    gateway.store.lines = (LINE,)

    status = await execute_at(gateway, "status")

    shown = capsys.readouterr().out
    assert status == 0
    assert "3.0 MiB of 1.0 GiB, 1.0 MiB dirty" in shown
    assert "50.0% of requests, 25.0% of bytes" in shown
    assert "quarantined s3://bucket/key (2.0 KiB, 3 attempts): 403 AccessDenied" in shown


def test_a_policy_is_explained_from_the_file_when_no_gateway_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--offline needs no gateway and no key; it says that the bucket's facts are not known."""
    config = tmp_path / "forebay.toml"
    config.write_text('flush_delay = "5s"\n[[policies]]\nmatch = "s3://b/x/*"\nwrite = "around"\n')

    status = execute(["policy", "explain", "s3://b/x/1", "--config", str(config), "--offline"], {})

    shown = capsys.readouterr().out.splitlines()
    assert status == 0
    assert shown[:3] == [
        "s3://b/x/1",
        "policy               [[policies]] number 1, line 2: s3://b/x/*",
        "write                around       this table, line 4",
    ]
    assert "flush_delay          5s           the default" in shown
    assert any("only a running gateway knows" in line for line in shown)


def test_status_shows_why_the_settings_were_not_reloaded() -> None:
    """The last refusal stays in the status until a reload is taken."""
    report = replace(FakeStore().status(), settings_failure="write (config file, line 3): 'x' is wrong")

    assert "settings    not reloaded: write (config file, line 3): 'x' is wrong" in status_lines(report)
    assert not any(line.startswith("settings") for line in status_lines(FakeStore().status()))


PUBLISH = ("publish", "s3://bucket/staging/v7/", "--as", "s3://bucket/live/")


async def test_publish_ends_when_the_target_is_switched(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """A publish returns 0 with the generation, having shown how far it is."""
    status = await execute_at(gateway, *PUBLISH)

    shown = capsys.readouterr()
    assert status == 0
    assert shown.out == (
        "s3://bucket/live/ shows s3://bucket/staging/v7/: generation 3, 2 objects, sha256:00\n"
    )
    assert "flushing  0 of 2" in shown.err


async def test_publish_says_what_was_copied_and_what_not(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies end with their number, or with the keys that failed and status 1."""
    gateway.store.publish_end = {"phase": "done", "keys": 5, "extra": 1}
    copied = await execute_at(gateway, *PUBLISH, "--copy")
    gateway.store.publish_end = {"phase": "failed", "error": "1 of 5 failed", "failures": ("k: 403",)}
    failed = await execute_at(gateway, *PUBLISH, "--copy")

    shown = capsys.readouterr()
    assert (copied, failed) == (0, 1)
    assert shown.out == (
        "5 objects copied from s3://bucket/staging/v7/ to s3://bucket/live/; 1 other objects lie there\n"
        "not copied  k: 403\n"
    )
    assert shown.err.endswith("forebay: 1 of 5 failed\n")


async def test_publish_is_refused_when_the_buckets_differ(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Source and target are of one bucket."""
    status = await execute_at(gateway, "publish", "s3://bucket/a/", "--as", "s3://other/b/")

    assert status == 2
    assert "prefixes of one bucket" in capsys.readouterr().err


def test_status_lines_when_targets_are_published() -> None:
    """Status names each target with what it shows."""
    report = replace(FakeStore().status(), pointers=(PointerLine("bucket", "live/", "staging/v7/", 3),))

    assert "published   s3://bucket/live/ shows staging/v7/, generation 3" in status_lines(report)


def test_status_lines_when_writes_are_hidden_by_a_target() -> None:
    """The operator sees which acknowledged objects a published target hides."""
    report = replace(FakeStore().status(), hidden=(("bucket", "live/a"),))

    assert "hidden      s3://bucket/live/a is acknowledged and lies under a published target" in status_lines(
        report
    )


async def test_flush_waits_when_it_is_told_to(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """A waiting flush returns 0 once all is at the origin, showing how far it is."""
    status = await execute_at(gateway, "flush", "s3://bucket/prefix", "--wait")

    assert status == 0
    assert "2 of 2 flushed" in capsys.readouterr().err


async def test_flush_lists_what_is_blocked_when_it_cannot_get_there(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting flush ends with status 1 and the reasons when the rest cannot be flushed."""

    async def blocked(_store: FakeStore, barrier_id: int, timeout_s: float) -> BarrierReport:
        await pause(min(timeout_s, 0))
        return BarrierReport(barrier_id, is_reached=False, total=2, remaining=1, blocked=(LINE,))

    monkeypatch.setattr(FakeStore, "wait_barrier", blocked)

    status = await execute_at(gateway, "flush", "s3://bucket", "--wait")

    assert status == 1
    assert "403 AccessDenied" in capsys.readouterr().out


async def test_a_flush_begins_when_nobody_waits(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --wait the barrier is begun and named."""
    status = await execute_at(gateway, "flush", "s3://bucket")

    assert status == 0
    assert capsys.readouterr().out == "barrier 1: 2 changes to flush\n"


async def test_nothing_is_discarded_when_it_is_not_confirmed(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """What loses bytes asks for --yes, and for one object or a prefix in so many words."""
    gateway.store.lines = (LINE,)

    unconfirmed = await execute_at(gateway, "discard", "s3://bucket/key")
    whole = await execute_at(gateway, "discard", "s3://bucket", "--yes")
    confirmed = await execute_at(gateway, "discard", "s3://bucket/key", "--yes")
    nothing = await execute_at(gateway, "discard", "s3://bucket/ke", "--yes")
    retried = await execute_at(gateway, "retry", "s3://bucket/prefix")

    said = capsys.readouterr()
    assert (unconfirmed, whole, confirmed, nothing, retried) == (2, 2, 0, 1, 0)
    assert gateway.store.calls == ["discard_quarantined", "retry_quarantined"]
    assert "these 1 changes would be lost for good: say --yes" in said.err
    assert "1 changes discarded, 2.0 KiB lost" in said.out
    assert "nothing that the origin refused is at s3://bucket/ke; nothing was discarded" in said.err
    assert "3 refused changes of s3://bucket/prefix go back to the flush queue" in said.out


async def test_retry_is_of_one_object_unless_a_prefix_is_meant(gateway: RunningGateway) -> None:
    """A key is not taken for the beginning of others: h/1 is not h/14."""
    for arguments in (
        ("s3://bucket/h/1",),
        ("s3://bucket/h/1", "--prefix"),
        ("s3://bucket/h/",),
        ("s3://bucket",),
    ):
        await execute_at(gateway, "retry", *arguments)

    assert gateway.store.retried == [("h/1", True), ("h/1", False), ("h/", False), ("", False)]


async def test_the_reason_is_shown_when_the_gateway_refuses(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refusal is one line with the gateway's own words, and status 1."""
    environment = {
        "FOREBAY_ACCESS_KEY": ACCESS_KEY,
        "FOREBAY_SECRET_KEY": "wrong",
        "FOREBAY_ENDPOINT": f"http://{gateway.host}",
    }

    status = await in_thread(execute, ["status"], environment)

    error = capsys.readouterr().err
    assert status == 1
    assert "403 SignatureDoesNotMatch" in error
    assert error.count("\n") == 1


async def test_not_reachable_when_nothing_listens(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gateway that does not run is told in one line."""
    await gateway.server.stop(0.1)

    status = await execute_at(gateway, "status")

    assert status == 1
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")]
)
def test_a_size_is_readable(size: int, text: str) -> None:
    """Sizes have the unit that fits."""
    shown = readable(size)

    assert shown == text


def test_a_status_says_why_when_writes_are_refused() -> None:
    """A read-only engine shows its failure first."""
    store = FakeStore()
    store.is_writable = False

    lines = status_lines(store.status())

    assert lines[0] == "read-only: a sync failed"


def test_a_status_shows_what_the_disk_has_lost() -> None:
    """Unreadable objects are named with the reason, and re-openings counted."""
    report = replace(
        FakeStore().status(),
        unreadable=(("s3://bucket/key", "segment 2 is gone"),),
        reopenings=3,
        lost_before=2,
    )

    lines = status_lines(report)

    assert "unreadable  s3://bucket/key: segment 2 is gone" in lines
    assert "lost        2 times, named by `forebay fsck` and in quarantine/*/losses.json" in lines
    assert "re-opened   3 times since the start, after failures of the disk" in lines


def test_a_status_tells_how_much_of_open_uploads_is_at_the_origin() -> None:
    """An operator sees what a Complete would still have to send; nothing is said where nothing is open."""
    store = FakeStore()
    idle = store.status()
    busy = replace(idle, open_uploads=2, open_upload_bytes=96 * MIB, early_bytes=64 * MIB)

    assert any(
        line.endswith("2 open uploads of 96.0 MiB, 64.0 MiB at the origin already")
        for line in status_lines(busy)
    )
    assert any(line.endswith("0 open uploads") for line in status_lines(idle))


def test_a_delete_is_told_from_a_put_when_it_is_pending() -> None:
    """A tombstone has no size."""
    line = replace(LINE, is_tombstone=True)

    assert "(delete, 3 attempts)" in pending_line(line)


def test_a_status_names_buckets_whose_origin_ignores_conditions() -> None:
    """Where a policy cannot keep what it promises, the operator is told."""
    report = replace(FakeStore().status(), ignoring_conditions=("robots",))

    assert any(line.startswith("unguarded   robots: the origin ignores") for line in status_lines(report))


async def test_an_object_is_explained(gateway: RunningGateway, capsys: pytest.CaptureFixture[str]) -> None:
    """Known or not; a bucket alone is no object."""
    gateway.store.put("bucket", "key", b"12345")

    known = await execute_at(gateway, "explain", "s3://bucket/key")
    unknown = await execute_at(gateway, "explain", "s3://bucket/none")
    bucket = await execute_at(gateway, "explain", "s3://bucket")

    said = capsys.readouterr()
    assert (known, unknown, bucket) == (0, 0, 2)
    assert "all of it, 5 B" in said.out
    assert "s3://bucket/none\nstate                nothing is known of it here" in said.out
    assert "explain takes one object" in said.err
