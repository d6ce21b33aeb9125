"""A gateway over an origin that fails all the time, under the load of a ledger, killed again and again.

`LedgerRun.round` is one kill: load, SIGKILL at a drawn moment, `forebay fsck`, a start under load, the load's end, a check of every key.
`LedgerRun.finish` drains and checks the origin alone. Each raises or returns violations, and says the seed that repeats it: the draws
are the same, the interleaving is the machine's.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from gateway import proof_commands
from gateway.ledger.book import Book, lines_of
from gateway.ledger.check import CheckReport
from gateway.ledger.client import LoadSettings, Tally
from gateway.ledger.history import Histories
from gateway.ledger.load import Load
from gateway.proof_commands import Place
from gateway.settings import Settings, load
from storage.clock import SystemClock
from storage.types import MIB
from tests.end_to_end.origins import FakeOriginProcess
from tests.end_to_end.processes import GatewayProcess

PLACE: Final = Place("data", "ledger/")
ORIGIN_LATENCY_S: Final = 0.15
FAULT_EVERY_S: Final = 0.25
FSCK_OK: Final = 0

FAULTS: Final[tuple[dict[str, str | float], ...]] = (
    {"status": 503, "code": "SlowDown"},
    {"status": 500, "code": "InternalError"},
    {"status": 500, "code": "InternalError", "is_processed": True},
    {"drop": "before"},
    {"drop": "after"},
    {"delay_s": 0.4},
    {"delay_s": 0.4, "drop": "after"},
)
"""What befalls a request of the origin: refused, slow, cut before it is done, or done with its answer lost."""

OPERATIONS: Final = (
    "PutObject",
    "DeleteObject*",
    "CopyObject",
    "CreateMultipartUpload",
    "UploadPart",
    "CompleteMultipartUpload",
    "HeadObject",
    "*",
)


class FaultsAllTheTime:
    """A thread that gives the origin a new fault every moment; of the kinds that pass, so that nothing is quarantined."""

    def __init__(self, origin: FakeOriginProcess, seed: int) -> None:
        self._origin = origin
        self._random = random.Random(f"faults {seed}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.given = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._origin.clear_faults()

    def _run(self) -> None:
        while not self._stop.wait(FAULT_EVERY_S):
            fault = dict(self._random.choice(FAULTS))
            if self._random.random() < 0.2:
                # An error document inside a 200, as S3 sends it for what takes long.
                fault = {"error_in_200": "InternalError", "operation": "CompleteMultipartUpload"}
            fault.setdefault("operation", self._random.choice(OPERATIONS))
            # One rule at a time: what piled up while the gateway was down would only make the check slow.
            self._origin.clear_faults()
            self._origin.add_fault(**fault, times=self._random.randrange(1, 4))
            self.given += 1


@dataclass(slots=True)
class LedgerRun:
    """One gateway, one origin, one ledger; see the module.

    Attributes:
        pending: How many changes were not at the origin when the gateway was ready again, of each kill.
        starts: Seconds that each start took.
    """

    running: GatewayProcess
    origin: FakeOriginProcess
    ledger_path: Path
    seed: int
    size_max: int = 6 * MIB
    clients: int = 6
    keys_a_client: int = 15
    load_s: tuple[float, float] = (0.4, 1.2)
    tally: Tally = field(default_factory=Tally)
    pending: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        """The gateway's, as a command sees them."""
        return load(None, self.running.environment, {})

    def round(self, kill: int) -> CheckReport:
        """Load, kill, check the directory, start, check every key."""
        draws = random.Random(f"{self.seed}/{kill}")
        with self._loading(kill):
            time.sleep(draws.uniform(*self.load_s))
            self.running.kill()
            status, said, _ = self.running.execute("fsck")
            assert status == FSCK_OK, f"fsck between kill {kill} and the start (seed {self.seed}):\n{said}"
            self.running.start()
            self.starts.append(self.running.started_s)
            self.pending.append(int(self.running.metric("forebay_writeback_pending_objects")))
            time.sleep(draws.uniform(0.0, 0.3))
        return self.check()

    @contextmanager
    def _loading(self, kill: int) -> Iterator[None]:
        settings = self.settings
        how = LoadSettings(
            PLACE.bucket,
            PLACE.prefix,
            clients=self.clients,
            seed=self.seed * 10_000 + kill,
            keys_a_client=self.keys_a_client,
            size_max=self.size_max,
        )
        path = str(self.ledger_path)
        book = Book.open(path, place=str(PLACE), seed=self.seed)
        clients = Load(
            how,
            book,
            Histories(lines_of(path)),
            lambda: proof_commands.gateway_endpoint(settings),
            SystemClock(),
        )
        stop = threading.Event()
        thread = threading.Thread(target=clients.run, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            book.close()
            self.tally.add(clients.tally())

    def check(self) -> CheckReport:
        """Hold every key at the gateway against the ledger."""
        settings = self.settings
        return proof_commands.check_ledger(
            str(self.ledger_path), PLACE, lambda: proof_commands.gateway_endpoint(settings)
        )

    def check_origin(self) -> CheckReport:
        """Hold every key at the origin alone against the ledger."""
        settings = self.settings
        ring = proof_commands.origin_keys(settings)
        return proof_commands.check_ledger(
            str(self.ledger_path),
            PLACE,
            lambda: proof_commands.origin_endpoint(settings, ring),
            is_origin=True,
        )


def shown(report: CheckReport, seed: int) -> str:
    """Write what is wrong, with what repeats it."""
    lines = [line for violation in report.violations[:10] for line in violation.lines()]
    return "\n".join([f"seed {seed}: {report.summary()}", *lines])
