"""Start and stop of the whole gateway, over an engine in memory."""

import asyncio
import dataclasses
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway import app
from gateway.app import Engine, Listening
from gateway.build import Surroundings
from gateway.client import GatewayClient
from gateway.setting_values import Address
from gateway.settings import Settings, load
from storage.clock import SystemClock
from storage.errors import LockedError
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import in_thread, pause
from tests.fakes.scripted_body import Gate


def settings(tmp_path: Path, **changes: object) -> Settings:
    """Settings of a gateway on any free port."""
    flags = {"listen": "127.0.0.1:0", "origin": "http://origin.test", "cache-dir": str(tmp_path)}
    environment = {"FOREBAY_ACCESS_KEY": "key", "FOREBAY_SECRET_KEY": "secret"}
    loaded = load(None, environment, flags)
    return dataclasses.replace(
        loaded,
        access_log=str(tmp_path / "access.log"),
        shutdown_grace_s=2.0,
        **changes,  # type: ignore[arg-type]  # each test names fields of its own
    )


class Serving:
    """Runs `app.serve` until the block ends."""

    def __init__(self, chosen: Settings, engine: FakeEngine, *, should_drain: bool = False) -> None:
        self._settings = chosen
        self._should_drain = should_drain
        self.engine = engine
        self.stop = asyncio.Event()
        self.listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        self.task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        await app.serve(
            self._settings,
            stop=self.stop,
            should_drain=self._should_drain,
            announce=self.listening.set_result,
            open_engine=opening(self.engine),
        )

    async def client(self) -> GatewayClient:
        async with asyncio.timeout(5):
            return GatewayClient((await self.listening).endpoint, "key", "secret", SystemClock().wall_s)


def opening(engine: FakeEngine) -> Callable[[Settings, Surroundings], Awaitable[Engine]]:
    """Open the engine that is there already."""

    async def open_engine(_settings: Settings, _surroundings: Surroundings) -> Engine:
        return engine

    return open_engine


async def test_everything_stops_in_order_when_it_is_told_to(tmp_path: Path) -> None:
    """The engine runs, serves, and is closed; the log holds every request that was answered."""
    engine = FakeEngine()
    engine.put("bucket", "key", b"abc")
    serving = Serving(settings(tmp_path), engine)
    client = await serving.client()

    body = await in_thread(client.call, "GET", "/bucket/key")
    serving.stop.set()
    await serving.task

    assert body == b"abc"
    assert engine.calls[0] == "run"
    assert "drain" not in engine.calls
    assert engine.calls[-1] == "close"
    assert b'"operation":"GetObject"' in (tmp_path / "access.log").read_bytes()


async def test_the_engine_is_drained_before_it_closes_when_asked(tmp_path: Path) -> None:
    """--drain flushes after the last request and before the end."""
    engine = FakeEngine()
    serving = Serving(settings(tmp_path), engine, should_drain=True)
    await serving.client()

    serving.stop.set()
    await serving.task

    assert engine.calls == ["run", "drain", "close", "close"]


async def test_a_running_request_is_answered_when_the_stop_comes(tmp_path: Path) -> None:
    """What runs when the stop comes gets its answer before the engine closes."""
    engine = FakeEngine()
    engine.put("bucket", "key", b"abc")
    gate = engine.gates["open_object"] = Gate()
    serving = Serving(settings(tmp_path), engine)
    client = await serving.client()
    asking = asyncio.get_running_loop().create_task(in_thread(client.call, "GET", "/bucket/key"))
    await gate.reached.wait()

    serving.stop.set()
    await pause(0.05)
    gate.opened.set()
    body = await asking
    await serving.task

    assert body == b"abc"
    assert engine.calls.index("close") > engine.calls.index("open_object")


async def test_the_gateway_stops_when_the_engine_breaks(tmp_path: Path) -> None:
    """A failure of the background work ends the service with that failure, in order."""
    engine = FakeEngine()
    serving = Serving(settings(tmp_path), engine)
    await serving.client()

    engine.broken.set()
    with pytest.raises(RuntimeError, match="background work failed"):
        await serving.task

    assert engine.calls[-1] == "close"


async def test_the_engine_is_closed_when_the_address_is_taken(tmp_path: Path) -> None:
    """A start that fails half-way lets go of what it has."""
    first = Serving(settings(tmp_path), FakeEngine())
    await first.client()
    port = int((await first.listening).endpoint.rpartition(":")[2])
    second = Serving(settings(tmp_path, listen=Address("127.0.0.1", port)), FakeEngine())

    with pytest.raises(OSError, match="in use"):
        await second.task
    first.stop.set()
    await first.task

    assert second.engine.calls[-1] == "close"


async def test_metrics_move_when_they_have_an_address(tmp_path: Path) -> None:
    """With metrics_listen the exporter is on its own port only."""
    serving = Serving(settings(tmp_path, metrics_listen=Address("127.0.0.1", 0)), FakeEngine())
    await serving.client()
    listening = await serving.listening

    scraped = await in_thread(
        GatewayClient(listening.metrics[: -len("/metrics")], "", "", SystemClock().wall_s).call,
        "GET",
        "/metrics",
    )
    serving.stop.set()
    await serving.task

    assert b"forebay_connections" in scraped
    assert not listening.metrics.startswith(listening.endpoint)


async def test_descriptors_are_plenty_when_the_gateway_runs(tmp_path: Path) -> None:
    """The soft limit of open files is raised to the hard one."""
    serving = Serving(settings(tmp_path), FakeEngine())
    await serving.client()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    serving.stop.set()
    await serving.task

    assert soft == hard


async def test_nothing_is_left_when_the_engine_does_not_open(tmp_path: Path) -> None:
    """A directory in use ends the start with its own error."""

    async def refuse(_settings: Settings, _surroundings: Surroundings) -> Engine:
        raise LockedError("in use")

    with pytest.raises(LockedError):
        await app.serve(
            settings(tmp_path),
            stop=asyncio.Event(),
            should_drain=False,
            announce=lambda _: None,
            open_engine=refuse,
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_ends_in_order_when_a_signal_comes(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM and SIGINT stop the gateway with status 0, after the engine was closed. What the start made is no garbage collection's."""
    program = textwrap.dedent(
        f"""
        import gc, sys
        from gateway import app
        from gateway.settings import load
        from tests.fakes.engine import FakeEngine

        engine = FakeEngine()
        async def open_engine(settings, surroundings):
            return engine
        settings = load(None, {{"FOREBAY_ACCESS_KEY": "k", "FOREBAY_SECRET_KEY": "s"}},
                        {{"listen": "127.0.0.1:0", "origin": "http://o.test", "cache-dir": {str(tmp_path)!r}}})
        def announce(listening):
            print("up", gc.get_freeze_count() > 1000 > len(gc.get_objects()), flush=True)
        app.run(settings, announce=announce, open_engine=open_engine)
        print(engine.calls)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path.cwd(),
    )
    assert process.stdout is not None

    up = process.stdout.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)

    assert (up, process.returncode) == ("up True\n", 0), err
    assert out == "['run', 'close', 'close']\n"
    assert "seed" in err
