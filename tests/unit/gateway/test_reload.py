"""What a reload takes over, what it refuses, and what needs a restart."""

import asyncio
import logging
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.admin import ReloadReport
from gateway.grants import NOTHING, Access, parse_grant
from gateway.reload import Reload, ReloadParts
from gateway.s3.auth import Credential, CredentialsInForce
from gateway.settings import Settings, load
from gateway.telemetry import RequestStats
from gateway.tls import read_pair, server_context
from storage.policy import PoliciesInForce
from storage.types import ObjectName, WriteMode
from tests.fakes.certificate import make_certificate
from tests.fakes.workers import InlineWorkers

CONFIG = 'origin = "http://origin"\ncache_dir = "/cache"\naccess_key = "a"\nsecret_key = "s"\n'
POLICY = '[[policies]]\nmatch = "s3://b/*"\n'
NAME = ObjectName("b", "k")


def credentials_of(settings: Settings) -> CredentialsInForce:
    """Make what the server asks for."""
    keys = settings.client_keys
    return CredentialsInForce(
        {key.access_key: Credential(key.access_key, key.secret_key, "id", access=key.access) for key in keys},
        settings.anonymous,
    )


class Bench:
    """A reload over a config text that a test changes."""

    def __init__(self, text: str, *, context: ssl.SSLContext | None = None, workers: Any = None) -> None:
        self.text = text
        started = load(text, {}, {})
        self.stats = RequestStats()
        self.policies = PoliciesInForce(started.policy_table())
        self.credentials = credentials_of(started)
        self.reload = Reload(
            ReloadParts(
                started=started,
                reread=lambda: load(self.text, {}, {}),
                policies=self.policies,
                credentials=self.credentials,
                make_credentials=credentials_of,
                context=context,
                workers=workers or InlineWorkers(),
                stats=self.stats,
            )
        )

    async def with_text(self, text: str) -> ReloadReport:
        """Reload with another text."""
        self.text = text
        return await self.reload.reload()


async def test_policies_and_keys_are_taken_over_and_the_rest_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Policies, the default policy and keys count at once; other settings stay, and are named each time until a restart."""
    bench = Bench(CONFIG + POLICY)
    keys = '[[keys]]\naccess_key = "b"\nsecret_key = "t"\n'

    report = await bench.with_text(
        CONFIG.replace('"s"', '"new"') + 'cache_size = "20GiB"\nflush_delay = "3s"\nendpoint = "http://x"\n'
        + POLICY + 'write = "through"\n' + keys
    )  # fmt: skip
    again = await bench.reload.reload()

    assert report == ReloadReport(
        is_taken=True,
        changed=("flush_delay", "secret_key", "keys", "policies"),
        needs_restart=("cache_size",),
    )
    assert again == ReloadReport(is_taken=True, needs_restart=("cache_size",))
    assert bench.policies().find(NAME).write is WriteMode.THROUGH
    assert bench.policies().find(ObjectName("other", "k")).flush_delay_s == 3
    assert {key: one.secret_key for key, one in bench.credentials.by_access_key.items()} == {
        "a": "new",
        "b": "t",
    }
    assert bench.reload.settings.cache_size == 10 * 2**30
    assert bench.stats.settings_reloads == {"taken": 2, "refused": 0}
    assert "settings that need a restart: cache_size" in caplog.text


async def test_rights_are_taken_over_with_the_next_request() -> None:
    """A list that is given, changed or taken away counts at once, for keys and for requests without a signature."""
    key = '[[keys]]\naccess_key = "b"\nsecret_key = "t"\n'
    open_to_all = '[[keys]]\nanonymous = true\ngrants = ["read s3://b"]\n'
    bench = Bench(CONFIG + key)

    given = await bench.with_text(CONFIG + key + 'grants = ["read s3://b/in/*"]\n' + open_to_all)
    held, anonymous = bench.credentials.by_access_key["b"].access, bench.credentials.anonymous
    taken = await bench.with_text(CONFIG + key + "grants = []\n")

    assert given.changed == ("keys", "anonymous")
    assert held == Access((parse_grant("read s3://b/in/*"),))
    assert anonymous == Access((parse_grant("read s3://b"),))
    assert taken.changed == ("keys", "anonymous")
    assert bench.credentials.by_access_key["b"].access == bench.credentials.anonymous == NOTHING


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CONFIG + POLICY + 'write = "behind"\n', "write (config file, line 7, [[policies]] number 1): 'behind' is wrong"),
        (CONFIG + "[[policies", "config file: not TOML: "),
        ('origin = "http://origin"\naccess_key = "a"\nsecret_key = "s"\n', "cache_dir: not set"),
        ('origin = "http://origin"\ncache_dir = "/cache"\n', "access_key: not set"),
    ],
)  # fmt: skip
async def test_wrong_settings_are_refused_with_one_line_and_the_old_ones_stay(
    text: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of a wrong file is taken over; the reason is in the log, in the status and in the answer."""
    bench = Bench(CONFIG + POLICY)

    with caplog.at_level(logging.INFO):
        report = await bench.with_text(text)

    assert not report.is_taken
    assert report.reason.startswith(reason)
    assert bench.reload.failure == report.reason
    assert bench.policies().find(NAME).write is WriteMode.BACK
    assert list(bench.credentials.by_access_key) == ["a"]
    assert bench.stats.settings_reloads == {"taken": 0, "refused": 1}
    (line,) = caplog.messages
    assert line == f"settings are not reloaded, those in force stay: {report.reason}"
    assert "\n" not in line

    assert (await bench.with_text(CONFIG)).is_taken
    assert bench.reload.failure == ""


async def test_settings_that_lost_all_keys_are_refused() -> None:
    """A file that was cut short before its [[keys]] locks nobody out; keys may go one by one, or others come in their place."""
    keys = "".join(f'[[keys]]\naccess_key = "{name}"\nsecret_key = "t"\n' for name in "bc")
    bench = Bench(CONFIG + keys)

    cut = await bench.with_text(CONFIG)

    assert cut.reason.startswith("keys: all 2 that are in force are gone; allowed: ")
    assert set(bench.credentials.by_access_key) == {"a", "b", "c"}
    assert (await bench.with_text(CONFIG + keys[: len(keys) // 2])).is_taken
    assert (await bench.with_text(CONFIG.replace('access_key = "a"', 'access_key = "d"'))).is_taken
    assert set(bench.credentials.by_access_key) == {"d"}


async def test_a_certificate_is_exchanged_only_as_a_pair(tmp_path: Path) -> None:
    """A pair that does not belong together is refused whole, policies too; one that does is used from then on."""
    certificate, key = make_certificate(tmp_path)
    context = server_context(certificate, key)
    other = tmp_path / "other"
    other.mkdir()
    make_certificate(other)
    tls = f'tls_cert = "{certificate}"\ntls_key = "{key}"\n'
    bench = Bench(CONFIG + tls, context=context)
    before = await bench.reload.reload()

    shutil.copy(other / "cert.pem", certificate)
    refused = await bench.with_text(CONFIG + 'write = "through"\n' + tls)
    write = bench.policies().find(NAME).write
    shutil.copy(other / "key.pem", key)
    taken = await bench.reload.reload()
    off = await bench.with_text(CONFIG)

    assert before == ReloadReport(is_taken=True)
    assert (refused.is_taken, write) == (False, WriteMode.BACK)
    assert refused.reason.startswith(f"tls_cert {certificate}, tls_key {key}: ")
    assert taken == ReloadReport(is_taken=True, changed=("write", "the certificate"))
    assert off.needs_restart == ("tls_cert", "tls_key")
    assert read_pair(certificate, key).chain == (other / "cert.pem").read_bytes()


async def test_what_nobody_foresaw_in_a_file_ends_no_gateway(caplog: pytest.LogCaptureFixture) -> None:
    """A file that breaks its reader is refused like one that is wrong."""
    bench = Bench(CONFIG)

    report = await bench.with_text("a = " + "[" * 100_000)

    assert not report.is_taken
    assert report.reason.startswith("RecursionError: ")
    assert "settings cannot be read" in caplog.text


class Held:
    """Workers whose calls have run, and whose first answer is held back."""

    def __init__(self) -> None:
        self.calls = 0
        self.opened = asyncio.Event()

    async def run(self, call: Callable[[], Any], /) -> Any:
        """Run `call` now; answer the first one later."""
        self.calls += 1
        is_first = self.calls == 1
        result = call()
        if is_first:
            await self.opened.wait()
        return result


async def test_an_older_reading_does_not_replace_a_newer_one() -> None:
    """Of two reloads at once the one that began last counts, whichever ends first."""
    workers = Held()
    bench = Bench(CONFIG, workers=workers)
    slow = asyncio.get_running_loop().create_task(bench.with_text(CONFIG + 'write = "around"\n'))
    while not workers.calls:  # noqa: ASYNC110  # one turn of the loop
        await asyncio.sleep(0)  # noqa: TID251  # one turn of the loop

    quick = await bench.with_text(CONFIG + 'write = "through"\n')
    workers.opened.set()

    assert await slow == quick
    assert bench.policies().find(NAME).write is WriteMode.THROUGH
