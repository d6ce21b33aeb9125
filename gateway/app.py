"""The composition root: makes everything from settings, starts it in order, stops it in the reverse order.

    start   descriptors -> engine (recovery) -> its background work -> listening sockets -> announced
    stop    no new connections -> what runs ends, for shutdown_grace_s -> [drain] -> engine closed -> log written -> threads

A stop loses nothing: what is acknowledged is in the journal, and the next start flushes it. `--drain` waits for that
flush before the engine closes. A failure of the engine's background work stops the server in the same order.
"""

import asyncio
import ctypes
import gc
import hashlib
import logging
import random
import resource
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import uvloop

from gateway.access_log import AccessLog
from gateway.admin import Admin, MetricsServer
from gateway.body import Intake, MemoryBudget
from gateway.build import OwnStores, Surroundings, build_engine
from gateway.context import ObjectStore, OperatorStore
from gateway.idle_settings import idle_settings
from gateway.reload import Reload, ReloadParts
from gateway.s3.auth import Credential, CredentialsInForce
from gateway.server import S3Server, ServerParts
from gateway.settings import ClientKey, Settings
from gateway.telemetry import Exporter, RequestStats
from gateway.tls import server_context
from storage.authority import Authority
from storage.clock import SystemClock
from storage.policy import PoliciesInForce
from storage.requests import BarrierReport
from storage.workers import ThreadWorkers

WORKER_THREADS: Final = 8
"""Cold reads, hashing, syncs: more than cores, since most wait for a disk."""

STALLED_RECEIVE_S: Final = 60.0
"""A client that sends nothing for so long in the middle of a body loses its connection."""

DRAIN_S_MAX: Final = 24 * 3600.0

_M_ARENA_MAX: Final = -8
"""glibc's name for the number of its heaps, as mallopt(3) takes it."""

HEAPS: Final = 2

COLLECT_AFTER: Final = (2000, 20, 20)
"""A look for garbage in cycles comes after so many new objects (gc.set_threshold). CPython's 700 are fewer than a few dozen requests
hold at a time, and looked through 30 times as often in a storm of misses."""

SWITCH_S: Final = 0.001
"""A thread that runs Python lets the event loop go on after so long. With CPython's 5 ms, one with 20 ms of work to do held a request of
four system calls up for 5.1 ms (p99, 23 ms at most); with this for 1.1 ms (4.2 ms)."""

ACCESS_LOG_OFF: Final = "off"

_log = logging.getLogger(__name__)


class Engine(OperatorStore, Protocol):
    """The engine with its life: opened by `OpenEngine`, run, drained, closed."""

    def own_store(self, authority: Authority) -> ObjectStore:
        """Give the store as a client key sees it that has an authority of its own at the origin."""
        ...

    async def run(self) -> None:
        """Do the background work until closed."""
        ...

    async def drain(self, timeout_s: float) -> BarrierReport:
        """Take no more writes and flush all, for at most so long; say what is left."""
        ...

    async def close(self) -> None:
        """End the background work and let go of the directory."""
        ...


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a started gateway is reached."""

    endpoint: str
    metrics: str


Reread = Callable[[], Settings]
"""Reads the settings again from where they came; raises SettingsError. Blocks."""

OpenEngine = Callable[[Settings, Surroundings], Awaitable[Engine]]
Announce = Callable[[Listening], None]


def run(
    settings: Settings,
    *,
    should_drain: bool = False,
    announce: Announce | None = None,
    open_engine: OpenEngine | None = None,
    reread: Reread | None = None,
) -> None:
    """Serve until a signal ends it.

    Args:
        settings: Checked for serving.
        should_drain: Flush everything before the end.
        announce: Told where the gateway listens, once it does.
        open_engine: Makes the engine; `build_engine` unless a test says otherwise.
        reread: Reads the settings again, at a SIGHUP; without it they stay.

    Raises:
        StorageError: The cache directory cannot be opened.
        CertificateError: The certificate cannot be used.
        OSError: An address cannot be listened on.
    """
    _start_logging(settings)
    # Of the whole process, so not in `serve`, which may be one of several things in its process.
    _share_heaps()
    sys.setswitchinterval(SWITCH_S)

    def started(listening: Listening) -> None:
        _spare_collections()
        (announce or _announce)(listening)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            serve(
                settings,
                stop=None,
                should_drain=should_drain,
                announce=started,
                open_engine=open_engine or build_engine,
                reread=reread,
            )
        )


async def serve(
    settings: Settings,
    *,
    stop: asyncio.Event | None,
    should_drain: bool,
    announce: Announce,
    open_engine: OpenEngine,
    reread: Reread | None = None,
) -> None:
    """Serve until `stop` is set, or with None until SIGTERM or SIGINT; see `run`."""
    # Before anything that takes long: the signal would end the process.
    hangup = _set_on_hangup() if stop is None and reread is not None else asyncio.Event()
    context = None
    if settings.tls_cert:
        context = server_context(Path(settings.tls_cert), Path(settings.tls_key))
    _raise_descriptor_limit()
    seed = settings.seed if settings.seed is not None else random.Random().getrandbits(53)
    _log.info("seed %d", seed)
    for idle in idle_settings(settings):
        _log.warning("%s", idle)
    surroundings = Surroundings(
        SystemClock(),
        random.Random(seed),
        ThreadWorkers("forebay", WORKER_THREADS),
        PoliciesInForce(settings.policy_table()),
    )
    try:
        engine = await open_engine(settings, surroundings)
        gateway = Gateway(settings, surroundings, engine, context, reread or (lambda: settings))
        await gateway.serve(stop or _stop_on_signals(), hangup, should_drain=should_drain, announce=announce)
    finally:
        surroundings.workers.close()


class Gateway:
    """The server over one engine, with what belongs to it. Owns the engine from here on."""

    def __init__(
        self,
        settings: Settings,
        surroundings: Surroundings,
        engine: Engine,
        context: ssl.SSLContext | None,
        reread: Reread,
    ) -> None:
        self._settings: Final = settings
        self._engine: Final = engine
        self._context: Final = context
        self._stats: Final = RequestStats()
        target = "" if settings.access_log == ACCESS_LOG_OFF else settings.access_log
        # A thread of its own: a log on a slow disk must not hold up cold reads.
        self._log_workers: Final = ThreadWorkers("access-log", 1)
        self._access_log: Final = AccessLog(target, self._log_workers, self._stats)
        exporter = Exporter(engine.stats, self._stats, surroundings.clock)
        self._metrics: Final = MetricsServer(exporter) if settings.metrics_listen else None
        credentials = _credentials(settings)
        self._reload: Final = Reload(
            ReloadParts(
                started=settings,
                reread=reread,
                policies=surroundings.policies,
                credentials=credentials,
                make_credentials=_credentials,
                context=context,
                workers=surroundings.workers,
                stats=self._stats,
            )
        )
        has_own_port = settings.metrics_listen is not None
        self._server: Final = S3Server(
            ServerParts(
                store=engine,
                own_stores=OwnStores(engine.own_store, settings.read_permit_ttl),
                own_paths=Admin(engine, exporter, has_own_port=has_own_port, live=self._reload),
                credentials=credentials,
                domains=settings.domains,
                region=settings.origin_region,
                clock=surroundings.clock,
                random=surroundings.random,
                workers=surroundings.workers,
                intake=Intake(MemoryBudget(settings.body_memory), surroundings.workers, STALLED_RECEIVE_S),
                access_log=self._access_log,
                stats=self._stats,
                connections_max=settings.connections_max,
                stalled_send_s=settings.stalled_send_s,
            )
        )

    async def serve(
        self, stop: asyncio.Event, hangup: asyncio.Event, *, should_drain: bool, announce: Announce
    ) -> None:
        """Serve until `stop` is set or the engine's background work fails, which is raised; reload at each `hangup`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._engine.run())
                logging_task = tasks.create_task(self._access_log.run())
                reload_task = tasks.create_task(self._reload.run(hangup))
                try:
                    announce(await self._listen())
                    await stop.wait()
                    _log.info("stopping")
                finally:
                    reload_task.cancel()
                    await self._stop_serving()
                    logging_task.cancel()
                if should_drain:
                    await self._drain()
                await self._engine.close()
        except ExceptionGroup as failures:
            # Nearly always there is one, which then is an error like any other: an address in use, a broken disk.
            if len(failures.exceptions) == 1:
                raise failures.exceptions[0] from None
            raise
        finally:
            # Closing is allowed twice; on the way of an error this is the first time.
            await self._engine.close()
            await self._access_log.flush()
            self._log_workers.close()

    async def _listen(self) -> Listening:
        settings = self._settings
        host, port = await self._server.listen(settings.listen.host, settings.listen.port, self._context)
        scheme = "http" if self._context is None else "https"
        endpoint = f"{scheme}://{_authority(host, port)}"
        if self._metrics is None or settings.metrics_listen is None:
            return Listening(endpoint, f"{endpoint}/metrics")
        address = await self._metrics.listen(settings.metrics_listen.host, settings.metrics_listen.port)
        return Listening(endpoint, f"http://{_authority(*address)}/metrics")

    async def _stop_serving(self) -> None:
        await self._server.stop(self._settings.shutdown_grace_s)
        if self._metrics is not None:
            await self._metrics.stop()

    async def _drain(self) -> None:
        _log.info("draining")
        report = await self._engine.drain(DRAIN_S_MAX)
        if not report.is_reached:
            _log.warning("%d changes are not at the origin; the next start goes on", report.remaining)


def _credentials(settings: Settings) -> CredentialsInForce:
    return CredentialsInForce(
        {key.access_key: _credential(key) for key in settings.client_keys}, settings.anonymous
    )


def _credential(key: ClientKey) -> Credential:
    # Kept with uploads and pending writes, where the key itself does not belong.
    credential_id = hashlib.sha256(key.access_key.encode()).hexdigest()[:16]
    return Credential(
        key.access_key,
        key.secret_key,
        credential_id,
        is_admin=key.is_admin,
        access=key.access,
        origin=key.origin,
    )


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _stop_on_signals() -> asyncio.Event:
    """Give an event that the first SIGTERM or SIGINT sets; the second one ends the process at once."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def begin_to_stop() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            # The journal makes an end at any moment safe.
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin_to_stop)
    return stop


def _set_on_hangup() -> asyncio.Event:
    """Give an event that each SIGHUP sets."""
    hangup = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
    return hangup


def _raise_descriptor_limit() -> None:
    """Allow as many open files as the system lets us: two a connection, one a segment."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _share_heaps() -> None:
    """Have the C library's threads share two heaps.

    glibc would make eight a processor, and bodies pass through all of them, each keeping what it once grew to. Measured
    with 16 clients that upload 64 MiB each: a tenth less at the peak, no more processor time. (Buffers mapped one by one
    would go back at once, but cost 40 % more processor time in page faults.) Other C libraries have no mallopt.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, HEAPS)


def _spare_collections() -> None:
    """Have garbage collections look at what comes from here on alone; what the start has made stays.

    Each full one holds the event loop, and so every request. Measured with 4,000 misses: three of 100 ms before, two of 3 ms now; all
    together 3.7 % of the processor time before, 0.1 % now.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _start_logging(settings: Settings) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def _announce(listening: Listening) -> None:
    _log.info("listening on %s, metrics on %s", listening.endpoint, listening.metrics)
