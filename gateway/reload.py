"""Take over settings that changed, without a restart: policies, client keys and their rights, certificate. SIGHUP, or `POST /-/reload`.

    read again (file, variables, flags) ─> checked whole ─> taken over in one step of the event loop
                                              └─> refused with one line; what was in force stays

No connection is dropped and no request notices: a request that is under way has its key and policy already, a handshake its
certificate, and a write that waits for its flush the times that it was acknowledged with. What else changed in the settings
needs a restart; it is named, and stays as it was.
"""

import asyncio
import dataclasses
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.admin import ReloadReport
from gateway.idle_settings import idle_settings
from gateway.s3.auth import CredentialsInForce
from gateway.setting_rows import POLICY_TABLE, TABLE
from gateway.settings import Settings, SettingsError
from gateway.telemetry import RequestStats
from gateway.tls import CertificateError, CertificatePair, read_pair, use_pair
from storage.policy import PoliciesInForce
from storage.workers import Workers

_KEYS: Final = ("access_key", "secret_key")
_CERTIFICATE: Final = ("tls_cert", "tls_key")

_TAKEN_OVER: Final = frozenset({*(row.name for row in POLICY_TABLE), *_KEYS, *_CERTIFICATE})

_OF_CLIENTS: Final = frozenset({"endpoint"})
"""Read by client commands only, so nothing of it is in force here."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReloadParts:
    """What a reload works on; made once by `gateway/app.py`.

    Attributes:
        started: The settings that the gateway was started with.
        reread: Reads the settings again. Blocks.
        credentials: Keys and their rights; what the server asks.
        make_credentials: Makes them of settings.
        context: The listener's, None without TLS.
    """

    started: Settings
    reread: Callable[[], Settings]
    policies: PoliciesInForce
    credentials: CredentialsInForce
    make_credentials: Callable[[Settings], CredentialsInForce]
    context: ssl.SSLContext | None
    workers: Workers
    stats: RequestStats


class Reload:
    """The settings in force, and how they are exchanged.

    Attributes:
        settings: In force.
        failure: Why the last reload was refused; "" where it was not.
    """

    def __init__(self, parts: ReloadParts) -> None:
        self._parts = parts
        self._begun = 0
        self._ended = 0
        self._report = ReloadReport(is_taken=True)
        self._pair = None if parts.context is None else _pair_at_start(parts.started)
        self.settings = parts.started
        self.failure = ""

    async def run(self, asked: asyncio.Event) -> None:
        """Reload whenever the event is set, until cancelled."""
        while True:
            await asked.wait()
            asked.clear()
            await self.reload()

    async def reload(self) -> ReloadReport:
        """Read the settings again and take over what can be; never raises for what is wrong in them."""
        self._begun += 1
        number = self._begun
        read: tuple[Settings, CertificatePair | None] | None = None
        failure = ""
        try:
            read = await self._parts.workers.run(self._read)
        except (SettingsError, CertificateError) as error:
            failure = str(error)
        except Exception as error:
            # Whatever a file does to whoever reads it, it must not end a gateway that serves.
            log.exception("settings cannot be read")
            failure = " ".join(f"{type(error).__name__}: {error}".split())
        if number < self._ended:
            # One that began later has read newer files, and was faster.
            return self._report
        if read is None:
            return self._end(number, ReloadReport(is_taken=False, reason=failure))
        return self._end(number, self._take_over(*read))

    def _read(self) -> tuple[Settings, CertificatePair | None]:
        fresh = self._parts.reread()
        fresh.check_serving()
        self._refuse_lost_keys(fresh)
        is_used = self._parts.context is not None and fresh.tls_cert
        return fresh, read_pair(Path(fresh.tls_cert), Path(fresh.tls_key)) if is_used else None

    def _refuse_lost_keys(self, fresh: Settings) -> None:
        """Refuse settings without the [[keys]] that are in force and with no other key in their place: of a file cut short.

        Raises:
            SettingsError: They are.
        """
        before = {key.access_key for key in self.settings.client_keys}
        has_new = {key.access_key for key in fresh.client_keys} - before
        if self.settings.keys and not fresh.keys and not has_new:
            raise SettingsError(
                f"keys: all {len(self.settings.keys)} that are in force are gone; allowed: at least one of them or "
                "another, or a restart"
            )

    def _take_over(self, fresh: Settings, pair: CertificatePair | None) -> ReloadReport:
        parts, before = self._parts, self.settings
        try:
            has_new_pair = self._use(pair)
        except (OSError, ssl.SSLError, ValueError) as error:
            return ReloadReport(is_taken=False, reason=f"tls_cert, tls_key: {error}")
        after = dataclasses.replace(
            before,
            keys=fresh.keys,
            anonymous=fresh.anonymous,
            policies=fresh.policies,
            policy_lines=fresh.policy_lines,
            default_lines=fresh.default_lines,
            **{name: getattr(fresh, name) for name in _TAKEN_OVER},
        )
        parts.policies.table = after.policy_table()
        parts.credentials.use(parts.make_credentials(after))
        self.settings = after
        names = [row.name for row in TABLE if row.name in _TAKEN_OVER] + ["keys", "anonymous", "policies"]
        changed = [name for name in names if getattr(before, name) != getattr(after, name)]
        if has_new_pair and not {*_CERTIFICATE} & {*changed}:
            changed.append("the certificate")
        return ReloadReport(
            is_taken=True,
            changed=tuple(changed),
            needs_restart=self._needs_restart(fresh),
            warnings=tuple(str(idle) for idle in idle_settings(after)),
        )

    def _use(self, pair: CertificatePair | None) -> bool:
        """Let new connections have a pair; whether it is another one than before."""
        if pair is None or self._parts.context is None:
            return False
        use_pair(self._parts.context, pair)
        before, self._pair = self._pair, pair
        return pair != before

    def _needs_restart(self, fresh: Settings) -> tuple[str, ...]:
        started = self._parts.started
        names = [row.name for row in TABLE if row.name not in _TAKEN_OVER | _OF_CLIENTS]
        changed = [name for name in names if getattr(started, name) != getattr(fresh, name)]
        if bool(fresh.tls_cert) != (self._parts.context is not None):
            changed += _CERTIFICATE
        return tuple(changed)

    def _end(self, number: int, report: ReloadReport) -> ReloadReport:
        self._ended = max(self._ended, number)
        self._report = report
        self.failure = report.reason
        self._parts.stats.settings_reloads["taken" if report.is_taken else "refused"] += 1
        if not report.is_taken:
            log.error("settings are not reloaded, those in force stay: %s", report.reason)
            return report
        log.info("settings are reloaded; changed: %s", ", ".join(report.changed) or "nothing")
        if report.needs_restart:
            log.warning("settings that need a restart: %s", ", ".join(report.needs_restart))
        for warning in report.warnings:
            log.warning("%s", warning)
        return report


def _pair_at_start(started: Settings) -> CertificatePair | None:
    """Read what the listener began with; None where it has been replaced already by something that is no pair."""
    with suppress(CertificateError):
        return read_pair(Path(started.tls_cert), Path(started.tls_key))
    return None
