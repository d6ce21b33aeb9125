"""Reloads of a gateway that serves: connections and requests under way go on, new ones have what is new."""

import asyncio
import hashlib
import http.client
import json
import shutil
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from gateway import app
from gateway.admin import ReloadReport
from gateway.app import Engine, Listening
from gateway.build import Surroundings
from gateway.client import GatewayClient, GatewayError
from gateway.explain import PolicyExplanation
from gateway.settings import Settings, load
from storage.clock import SystemClock
from storage.origin.signing import EMPTY_SHA256, SigningIdentity, sign_headers
from storage.types import ObjectName, WriteMode
from tests.fakes.certificate import make_certificate
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import in_thread
from tests.fakes.scripted_body import Gate


class Serving:
    """Runs `app.serve` over a config file until it is told to stop."""

    def __init__(self, tmp_path: Path, text: str) -> None:
        self.config = tmp_path / "forebay.toml"
        self._base = (
            f'listen = "127.0.0.1:0"\norigin = "http://origin.test"\ncache_dir = "{tmp_path}"\naccess_log = "off"\n'
            'access_key = "key"\nsecret_key = "secret"\n'
        )
        self.write(text)
        self.engine = FakeEngine()
        self.surroundings: Surroundings | None = None
        self.stop = asyncio.Event()
        self.listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def write(self, text: str) -> None:
        """Write the config file anew."""
        self.config.write_text(self._base + text)

    def read(self) -> Settings:
        """Read it."""
        return load(self.config.read_text(), {}, {})

    async def _serve(self) -> None:
        await app.serve(
            self.read(),
            stop=self.stop,
            should_drain=False,
            announce=self.listening.set_result,
            open_engine=self._opening(),
            reread=self.read,
        )

    def _opening(self) -> Callable[[Settings, Surroundings], Awaitable[Engine]]:
        async def open_engine(_settings: Settings, surroundings: Surroundings) -> Engine:
            self.surroundings = surroundings
            return self.engine

        return open_engine

    async def client(self, access_key: str = "key", secret_key: str = "secret") -> GatewayClient:
        """Give a client of the gateway."""
        async with asyncio.timeout(5):
            listening = await asyncio.shield(self.listening)
        return GatewayClient(listening.endpoint, access_key, secret_key, SystemClock().wall_s)

    async def ended(self) -> None:
        """Stop, and wait for the end."""
        self.stop.set()
        await self.task


async def test_a_request_under_way_ends_with_its_key_and_new_ones_need_the_new_one(tmp_path: Path) -> None:
    """A key that is taken away refuses the next request, not the one that it began."""
    own = '[[keys]]\naccess_key = "trainer"\nsecret_key = "old"\n'
    serving = Serving(tmp_path, own)
    serving.engine.put("bucket", "key", b"abc")
    gate = serving.engine.gates["open_object"] = Gate()
    admin, trainer = await serving.client(), await serving.client("trainer", "old")
    under_way = asyncio.get_running_loop().create_task(in_thread(trainer.call, "GET", "/bucket/key"))
    await gate.reached.wait()

    serving.write(own.replace("old", "new") + '[[policies]]\nmatch = "s3://bucket/*"\nwrite = "through"\n')
    report = await in_thread(admin.ask, ReloadReport, "POST", "/-/reload")
    gate.opened.set()

    assert report == ReloadReport(is_taken=True, changed=("keys", "policies"))
    assert await under_way == b"abc"
    with pytest.raises(GatewayError, match="SignatureDoesNotMatch"):
        await in_thread(trainer.call, "GET", "/bucket/key")
    assert await in_thread((await serving.client("trainer", "new")).call, "GET", "/bucket/key") == b"abc"
    assert serving.surroundings is not None
    assert serving.surroundings.policies().find(ObjectName("bucket", "key")).write is WriteMode.THROUGH
    await serving.ended()


async def test_a_wrong_file_is_told_to_whoever_asks_and_shown_in_the_status(tmp_path: Path) -> None:
    """The answer and the status say it; the policy explained is the one that still holds."""
    policy = '[[policies]]\nmatch = "s3://bucket/*"\nwrite = "around"\n'
    serving = Serving(tmp_path, policy)
    serving.engine.make_bucket("bucket")
    client = await serving.client()

    serving.write(policy.replace("around", "never"))
    report = await in_thread(client.ask, ReloadReport, "POST", "/-/reload")
    status = json.loads(await in_thread(client.call, "GET", "/-/status"))
    where = {"bucket": "bucket", "key": "k"}
    told = await in_thread(client.ask, PolicyExplanation, "GET", "/-/policy", where)
    nowhere = await in_thread(client.ask, PolicyExplanation, "GET", "/-/policy", {"bucket": "none"})

    reason = (
        "write (config file, line 9, [[policies]] number 1): 'never' is wrong; allowed: back, through, around"
    )
    assert report == ReloadReport(is_taken=False, reason=reason)
    assert status["settings_failure"] == reason
    assert (told.number, told.line, told.values[0].value) == (1, 7, "around")
    assert told.writes == "around: acknowledged once the origin has it; no copy is kept"
    assert nowhere.number == 0
    await serving.ended()


def peer_digest(connection: http.client.HTTPSConnection) -> str:
    """Name the certificate that a connection was shown."""
    assert isinstance(connection.sock, ssl.SSLSocket)
    shown = connection.sock.getpeercert(binary_form=True)
    assert shown is not None
    return hashlib.sha256(shown).hexdigest()


def ask(connection: http.client.HTTPSConnection) -> int:
    """Send a request over a connection that stays open."""
    connection.request("GET", "/-/healthz")
    answer = connection.getresponse()
    answer.read()
    return answer.status


async def test_settings_that_do_nothing_are_told_at_the_start_and_at_a_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No error: they are taken, and the log and whoever asks for the reload hear of them."""
    serving = Serving(tmp_path, 'write = "around"\nflush_delay = "1s"\n')
    client = await serving.client()
    at_start = [r.getMessage() for r in caplog.records if "without effect" in r.getMessage()]
    caplog.clear()
    serving.write('[[policies]]\nbucket = "b"\nwrite = "through"\non_conflict = "quarantine"\n')

    report = await in_thread(client.ask, ReloadReport, "POST", "/-/reload")

    at_reload = [r.getMessage() for r in caplog.records if "without effect" in r.getMessage()]
    assert len(at_start) == 1
    assert at_start[0].startswith("flush_delay (config file, line 8): without effect: write is around")
    assert report.is_taken
    assert list(report.warnings) == at_reload
    assert len(at_reload) == 1
    assert at_reload[0].startswith(
        "on_conflict (config file, line 10, [[policies]] number 1): without effect"
    )
    await serving.ended()


async def test_a_connection_outlives_the_exchange_of_its_certificate(tmp_path: Path) -> None:
    """New connections are shown the new certificate; the old one goes on with its own, and nothing is refused between."""
    certificate, key = make_certificate(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    make_certificate(other)
    serving = Serving(tmp_path, f'tls_cert = "{certificate}"\ntls_key = "{key}"\n')
    async with asyncio.timeout(5):
        listening = await asyncio.shield(serving.listening)
    host = listening.endpoint.removeprefix("https://")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    kept, fresh = (http.client.HTTPSConnection(host, context=context, timeout=10) for _ in range(2))
    first = await in_thread(ask, kept)
    before = peer_digest(kept)

    for name in ("cert.pem", "key.pem"):
        shutil.copy(other / name, tmp_path / name)
    report = await in_thread(reloaded, host, context)
    statuses = (first, await in_thread(ask, kept), await in_thread(ask, fresh))
    after, unchanged = peer_digest(fresh), peer_digest(kept)
    for one in (kept, fresh):
        one.close()
    await serving.ended()

    assert report.changed == ("the certificate",)
    assert statuses == (200, 200, 200)
    assert unchanged == before
    assert after != before


def reloaded(host: str, context: ssl.SSLContext) -> ReloadReport:
    """Reload over TLS with a certificate that nobody signed."""
    identity = SigningIdentity("key", "secret", "us-east-1")
    headers = sign_headers(
        identity, "POST", "/-/reload", {"host": host}, EMPTY_SHA256, SystemClock().wall_s()
    )
    connection = http.client.HTTPSConnection(host, context=context, timeout=10)
    connection.request("POST", "/-/reload", headers={**headers, "content-length": "0"})
    report = msgspec.json.decode(connection.getresponse().read(), type=ReloadReport)
    connection.close()
    return report
