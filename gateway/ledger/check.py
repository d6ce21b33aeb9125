"""Read every key of a ledger at one endpoint and hold it against what was acknowledged.

The load must have stopped. Each key is read whole by GET; then the prefix is listed, which must show the keys that are there, with
their sizes and ETags, and none that nobody attempted.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final, TypeVar

from gateway.ledger.entries import ATTEMPT_METADATA, Seen
from gateway.ledger.history import Found, Histories, KeyHistory, judge
from gateway.s3_endpoint import Answer, EndpointError, S3Endpoint

T = TypeVar("T")

READERS: Final = 8

TRIES_MAX: Final = 20
"""So often is a key asked for that is answered 5xx or not at all: a gateway that has just started asks its origin first."""

TRY_WAIT_S: Final = 0.5
_BATCH_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class Violation:
    """What must not be: a key, what is wrong with it, its history."""

    key: str
    what: str
    history: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Write it for people."""
        return [f"{self.key}: {self.what}", *(f"    {line}" for line in self.history)]


@dataclass(slots=True)
class CheckReport:
    """What a check found.

    Attributes:
        keys: Read.
        present: Of them, there.
        uncertain: Of them, with more than one state allowed.
        seen: What settles those; to be written into the ledger where the endpoint is the gateway.
    """

    keys: int = 0
    present: int = 0
    uncertain: int = 0
    bytes_read: int = 0
    seen: list[Seen] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def summary(self) -> str:
        """Write one line."""
        return (
            f"{self.keys} keys, {self.present} there, {self.bytes_read} bytes compared, "
            f"{self.uncertain} with a request that had no answer, {len(self.violations)} violations"
        )


def check(
    histories: Histories,
    bucket: str,
    prefix: str,
    connect: Callable[[], S3Endpoint],
    *,
    compares_etag: bool = True,
    tell: Callable[[str], None] = lambda _line: None,
) -> CheckReport:
    """Compare all keys of a ledger with what an endpoint shows; `tell` hears once that it does not answer and is asked again.

    Raises:
        EndpointError: The endpoint does not answer, or answers what is neither an object nor its absence.
    """
    report = CheckReport()
    report.violations += [Violation(one.key, f"BROKEN: {one.what}") for one in histories.broken]
    there: dict[str, Found] = {}
    patience = Patience(tell)
    for key, history, found in _read_all(histories, bucket, connect, patience):
        _add(report, key, history, found, compares_etag=compares_etag)
        if found is not None:
            there[key] = found
    listed = _listed(connect(), bucket, prefix, patience)
    for key in sorted({*there, *listed}):
        what = _listing_difference(there.get(key), listed.get(key), is_known=key in histories.keys)
        if what:
            report.violations.append(Violation(key, what, _history(histories.keys.get(key))))
    return report


def _listed(
    endpoint: S3Endpoint, bucket: str, prefix: str, patience: "Patience"
) -> dict[str, tuple[int, str]]:
    try:
        return patience.ask(
            lambda: {one.key: (one.size, one.etag) for one in endpoint.listing(bucket, prefix)}
        )
    finally:
        endpoint.close()


def _read_all(
    histories: Histories, bucket: str, connect: Callable[[], S3Endpoint], patience: "Patience"
) -> Iterator[tuple[str, KeyHistory, Found | None]]:
    endpoints: SimpleQueue[S3Endpoint] = SimpleQueue()
    for _ in range(READERS):
        endpoints.put(connect())

    def read_one(key: str) -> Found | None:
        endpoint = endpoints.get()
        try:
            return patience.ask(lambda: _read_once(endpoint, bucket, key))
        finally:
            endpoints.put(endpoint)

    pairs = list(histories)
    try:
        with ThreadPoolExecutor(READERS) as readers:
            for start in range(0, len(pairs), _BATCH_KEYS):
                batch = pairs[start : start + _BATCH_KEYS]
                found = readers.map(read_one, [key for key, _ in batch])
                for (key, history), one in zip(batch, found, strict=True):
                    yield key, history, one
    finally:
        while not endpoints.empty():
            endpoints.get().close()


class Patience:
    """Asks again what was not answered, at most TRIES_MAX times; several threads share one, and its end."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._is_told = False
        self._reason = ""
        self._has_given_up = threading.Event()

    def ask(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer, or until the question of another thread was given up.

        Raises:
            EndpointError: The last one.
        """
        tries = 1
        while True:
            if self._has_given_up.is_set():
                raise EndpointError(self._reason)
            try:
                return ask()
            except EndpointError as error:
                if tries >= TRIES_MAX:
                    self._reason = str(error)
                    self._has_given_up.set()
                    raise
                self._say_once(error)
            # Whoever waits behind thousands of keys must not wait for each of them in vain.
            self._has_given_up.wait(TRY_WAIT_S)
            tries += 1

    def _say_once(self, error: EndpointError) -> None:
        with self._lock:
            is_first, self._is_told = not self._is_told, True
        if is_first:
            self._tell(f"{error}; asked again for up to {TRIES_MAX * TRY_WAIT_S:.0f} s")


def _read_once(endpoint: S3Endpoint, bucket: str, key: str) -> Found | None:
    """Read a whole object in bounded memory; None where it is absent.

    Raises:
        EndpointError: Neither.
    """
    head, pieces = endpoint.stream(bucket, key)
    if head.status != 200:
        code = Answer(head.status, head.headers, b"".join(pieces)).code
        if code == "NoSuchKey":
            return None
        raise EndpointError(f"{endpoint.url}: GET {key}: {head.status} {code}")
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return Found(digest.hexdigest(), size, head.etag, head.headers.get(ATTEMPT_METADATA, ""))


def _add(
    report: CheckReport, key: str, history: KeyHistory, found: Found | None, *, compares_etag: bool
) -> None:
    report.keys += 1
    report.present += found is not None
    report.bytes_read += 0 if found is None else found.size
    number, what = judge(history, found, compares_etag=compares_etag)
    if what:
        report.violations.append(Violation(key, what, _history(history)))
    elif not history.is_certain:
        report.uncertain += 1
        report.seen.append(Seen(number, key))


def _listing_difference(found: Found | None, listed: tuple[int, str] | None, *, is_known: bool) -> str:
    if listed is None:
        return "NOT LISTED: GET shows the key, LIST does not"
    if not is_known:
        return "UNKNOWN KEY: it is listed, and nobody attempted it"
    if found is None:
        return "LISTED: LIST shows the key, GET does not"
    if listed != (found.size, found.etag):
        return f"LISTED WRONG: {listed[0]} bytes, {listed[1]} instead of {found.size} bytes, {found.etag}"
    return ""


def _history(history: KeyHistory | None) -> tuple[str, ...]:
    return () if history is None else tuple(history.lines())
