"""What `forebay ledger`, `verify`, `pending` and `discard` do, given the settings and where to write."""

import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from gateway.admin import Changed
from gateway.build import credential_source, origin_settings
from gateway.client import GatewayClient
from gateway.ledger.book import Book, lines_of
from gateway.ledger.check import CheckReport, check
from gateway.ledger.client import LoadSettings, Tally
from gateway.ledger.entries import LedgerError
from gateway.ledger.history import Histories
from gateway.ledger.load import Load
from gateway.s3_endpoint import KeyRing, S3Endpoint
from gateway.setting_values import parse_duration, parse_size
from gateway.settings import Settings, SettingsError
from gateway.verify import Depth, Verifier, VerifyReport
from storage.clock import SystemClock
from storage.origin.credentials import Credentials
from storage.origin.endpoint import OriginSettings
from storage.requests import PendingLine, PendingPage

PROGRESS_S: Final = 5.0
SHOWN_MAX: Final = 100
"""Lines that a discard shows before it asks; the rest is counted."""

Write = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket and a prefix, as written on the command line."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


# --- forebay ledger ----------------------------------------------------------------------------------------------------


def ledger(parsed: Namespace, place: Place, settings: Settings, write: Write) -> bool:
    """Write a load with its ledger, or check one; True where nothing is wrong."""
    if not parsed.ledger:
        raise SettingsError(
            "ledger: --ledger FILE is missing; allowed: a file, best on another machine or disk"
        )
    if parsed.action == "write":
        return _ledger_write(parsed, place, settings, write)
    return _ledger_check(parsed, place, settings, write)


def _ledger_write(parsed: Namespace, place: Place, settings: Settings, write: Write) -> bool:
    clock = SystemClock()
    how = LoadSettings(
        place.bucket,
        place.prefix,
        clients=_number("clients", parsed.clients, 1, 1000),
        seed=1 if settings.seed is None else settings.seed,
        size_max=_size(parsed.max_size),
    )
    seconds = _duration(parsed.seconds)
    book = Book.open(parsed.ledger, place=str(place), seed=how.seed)
    try:
        load = Load(how, book, Histories(lines_of(parsed.ledger)), partial(gateway_endpoint, settings), clock)
        stop = threading.Event()
        with _EndedBySignals(stop):
            timer = threading.Thread(
                target=_tell, args=(load, stop, clock.monotonic_s() + seconds), daemon=True
            )
            timer.start()
            tally = load.run(stop)
            stop.set()
            timer.join()
    finally:
        book.close()
    write(tally_line(tally))
    return tally.acknowledged > 0


def _tell(load: Load, stop: threading.Event, until_s: float) -> None:
    """Say how far a load is, and end it when its time is over."""
    clock = SystemClock()
    while (left_s := until_s - clock.monotonic_s()) > 0:
        if stop.wait(min(PROGRESS_S, left_s)):
            return
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{tally_line(load.tally())} ")
            sys.stderr.flush()
    stop.set()


def tally_line(tally: Tally) -> str:
    """Write what a load did."""
    counts = ", ".join(f"{count} {what} {outcome}" for (what, outcome), count in sorted(tally.counts.items()))
    return (
        f"{tally.acknowledged} requests acknowledged with {tally.bytes_acknowledged} bytes, "
        f"{tally.unanswered} not: {counts or 'nothing was sent'}"
    )


class _EndedBySignals:
    """Set an event on SIGINT and SIGTERM, so that a load ends with its ledger whole."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._end)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._stop.set()


def _ledger_check(parsed: Namespace, place: Place, settings: Settings, write: Write) -> bool:
    connect = partial(gateway_endpoint, settings)
    if parsed.at_origin:
        connect = partial(origin_endpoint, settings, origin_keys(settings))
    report = check_ledger(parsed.ledger, place, connect, is_origin=parsed.at_origin)
    for violation in report.violations:
        for line in violation.lines():
            write(line)
    write(report.summary())
    return not report.violations


def check_ledger(
    path: str, place: Place, connect: Callable[[], S3Endpoint], *, is_origin: bool = False
) -> CheckReport:
    """Check a ledger at an endpoint, and write into it what settles requests that had no answer.

    The origin's word settles nothing: what it lacks may be on its way.

    Raises:
        LedgerError: The ledger is not there, in use, cannot be read, or is of another prefix.
        EndpointError: The endpoint does not answer.
    """
    if not Path(path).is_file():
        raise LedgerError(f"{path} is not there: a check needs the ledger of a load")
    book = Book.open(path, place=str(place), seed=0)
    try:
        histories = Histories(lines_of(path))
        report = check(
            histories,
            place.bucket,
            place.prefix,
            connect,
            compares_etag=not is_origin or _has_md5(histories),
            tell=_tell_error,
        )
        if not is_origin:
            for line in report.seen:
                book.append(line)
        return report
    finally:
        book.close()


def _tell_error(line: str) -> None:
    sys.stderr.write(f"forebay: {line}\n")
    sys.stderr.flush()


def _has_md5(histories: Histories) -> bool:
    """Whether the ETags that clients were told are those of the bytes; an origin that encrypts with keys has others."""
    return all(
        etag == history.attempts[number].etag
        for _, history in histories
        for number, etag in history.told.items()
        if etag and history.attempts[number].etag
    )


# --- forebay verify ----------------------------------------------------------------------------------------------------


def verify(parsed: Namespace, place: Place, client: GatewayClient, settings: Settings, write: Write) -> bool:
    """Compare what the gateway has acknowledged with the origin; True where the origin alone is complete."""
    ring = origin_keys(settings)
    depth = Depth(heads=parsed.deep, bytes=parsed.bytes)
    verifier = Verifier(client, lambda: origin_endpoint(settings, ring), (place.bucket, place.prefix), depth)
    report = VerifyReport()
    for finding in verifier.run(report, _show_verified):
        write(f"{finding.verdict.value:<11} s3://{place.bucket}/{finding.key}: {finding.detail}")
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    write(report.summary())
    return report.is_complete


def _show_verified(count: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{count} compared ")
        sys.stderr.flush()


# --- what is pending, what is quarantined ------------------------------------------------------------------------------


def pending(client: GatewayClient, verb: str, place: Place | None) -> Iterator[PendingLine]:
    """Give all lines of `/-/pending` or `/-/quarantine`, a page at a time in memory."""
    parameters = {} if place is None else {"bucket": place.bucket, "prefix": place.prefix}
    after = 0
    while True:
        page = client.ask(PendingPage, "GET", f"/-/{verb}", {**parameters, "after": str(after)})
        yield from page.lines
        if not page.next_after:
            return
        after = page.next_after


def quarantined(client: GatewayClient, place: Place, *, is_prefix: bool) -> list[PendingLine]:
    """List what the origin refused of one key, or of all under a prefix."""
    lines = pending(client, "quarantine", place)
    return [line for line in lines if is_prefix or line.key == place.prefix]


def discard(client: GatewayClient, lines: list[PendingLine]) -> tuple[int, int]:
    """Give up each of these changes; say how many were given up, and their bytes. A key that was written meanwhile keeps that write."""
    count = size = 0
    for line in lines:
        parameters = {"bucket": line.bucket, "key": line.key, "sequence": str(line.sequence)}
        changed = client.ask(Changed, "POST", "/-/discard", parameters).changed
        count, size = count + changed, size + line.size * changed
    return count, size


def age(line: PendingLine, now_s: float) -> str:
    """Write how long ago a change was acknowledged."""
    seconds = max(0.0, now_s - line.acknowledged_at_s)
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.1f} s"


# --- endpoints ---------------------------------------------------------------------------------------------------------


def gateway_endpoint(settings: Settings) -> S3Endpoint:
    """Make a connection to the gateway, with the first of the client keys.

    Raises:
        SettingsError: There is none.
    """
    if not settings.client_keys:
        raise SettingsError(
            "access_key: not set; use FOREBAY_ACCESS_KEY and FOREBAY_SECRET_KEY; allowed: a client's key"
        )
    key = settings.client_keys[0]
    credentials = Credentials(key.access_key, key.secret_key)
    return S3Endpoint(OriginSettings(settings.endpoint), lambda: credentials, SystemClock())


def origin_keys(settings: Settings) -> KeyRing:
    """Make the source of the origin's keys, which all connections share.

    Raises:
        SettingsError: The settings name no origin.
    """
    if not settings.origin:
        raise SettingsError("origin: not set; use --origin or FOREBAY_ORIGIN; allowed: http(s)://HOST[:PORT]")
    return KeyRing(credential_source(settings), SystemClock())


def origin_endpoint(settings: Settings, ring: KeyRing) -> S3Endpoint:
    """Make a connection to the origin itself."""
    return S3Endpoint(origin_settings(settings), ring, SystemClock())


def _number(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise SettingsError(f"{name}: {text!r} is wrong; allowed: {least} to {most}")
    return int(text)


def _size(text: str) -> int:
    try:
        return max(1, parse_size(text))
    except ValueError as error:
        raise SettingsError(f"max-size: {text!r} is wrong; allowed: a size such as 1MiB") from error


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise SettingsError(f"seconds: {text!r} is wrong; allowed: a duration such as 60s or 2h") from error
