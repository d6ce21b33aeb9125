"""The access log: complete, bounded, and never in the way."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import pytest

from gateway import access_log
from gateway.access_log import AccessEntry, AccessLog
from gateway.telemetry import RequestStats
from tests.fakes.gateway import until

P = ParamSpec("P")
T = TypeVar("T")


class InlineWorkers:
    """Runs calls at once, after `gate` opened."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.calls = 0

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.calls += 1
        await self.gate.wait()
        return call(*args, **kwargs)

    def close(self) -> None:
        return


def entry(key: str) -> AccessEntry:
    """Make an entry for a key."""
    return AccessEntry(
        time=1.5,
        request_id="ID",
        remote="127.0.0.1:1",
        method="GET",
        operation="GetObject",
        bucket="bucket",
        key=key,
        status=200,
        code="",
        cache="HIT",
        bytes_in=0,
        bytes_out=5,
        origin_s=0.0,
        duration_s=0.001,
    )


async def test_each_entry_is_a_line_when_it_is_written(tmp_path: Path) -> None:
    """A key with line breaks and quotes stays one line, and later flushes append."""
    target = tmp_path / "log"
    log = AccessLog(str(target), InlineWorkers(), RequestStats())

    log.record(entry('a\n"b'))
    await log.flush()
    log.record(entry("c"))
    await log.flush()

    lines = target.read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=AccessEntry).key for line in lines] == ['a\n"b', "c"]


async def test_lines_are_written_early_when_there_are_many(tmp_path: Path) -> None:
    """A full buffer does not wait for its second to pass."""
    target = tmp_path / "log"
    log = AccessLog(str(target), InlineWorkers(), RequestStats())
    running = asyncio.get_running_loop().create_task(log.run())

    for number in range(400):
        log.record(entry(str(number)))
    async with asyncio.timeout(0.5):
        await until(target.exists)
    running.cancel()

    assert len(target.read_bytes().splitlines()) == 400


async def test_entries_are_dropped_and_counted_when_the_disk_is_too_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer has a bound; what does not fit is counted and never waited for."""
    monkeypatch.setattr(access_log, "BUFFER_BYTES_MAX", 1000)
    workers, stats = InlineWorkers(), RequestStats()
    log = AccessLog(str(tmp_path / "log"), workers, stats)
    size = len(msgspec.json.encode(entry("k"))) + 1

    for _ in range(20):
        log.record(entry("k"))
    await log.flush()
    log.record(entry("after"))
    await log.flush()

    kept = -(-1000 // size)
    assert stats.access_log_dropped == 20 - kept
    assert len((tmp_path / "log").read_bytes().splitlines()) == kept + 1


async def test_lines_are_counted_as_lost_when_a_write_fails(tmp_path: Path) -> None:
    """A log that cannot be written counts its lines, and works again once it can."""
    stats = RequestStats()
    target = tmp_path / "missing" / "log"
    log = AccessLog(str(target), InlineWorkers(), stats)

    log.record(entry("lost"))
    await log.flush()
    target.parent.mkdir()
    log.record(entry("kept"))
    await log.flush()

    assert stats.access_log_dropped == 1
    assert b'"key":"kept"' in target.read_bytes()


async def test_nothing_is_kept_when_the_log_is_off() -> None:
    """Without a target an entry costs nothing."""
    workers = InlineWorkers()
    log = AccessLog("", workers, RequestStats())

    log.record(entry("k"))
    await log.flush()
    await log.run()

    assert workers.calls == 0


async def test_lines_go_to_standard_output_when_the_target_is_a_dash(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A dash is standard output."""
    log = AccessLog("-", InlineWorkers(), RequestStats())

    log.record(entry("shown"))
    await log.flush()

    assert '"key":"shown"' in capfd.readouterr().out
