"""`forebay verify`: prove, object by object, that the origin alone holds what the gateway has acknowledged.

Two sources are read page by page and compared: what the running gateway says it has acknowledged (`/-/acknowledged`), and the
origin's own listing, asked by this process with the origin's keys and never through the gateway, so that nothing cached can stand in
for it (ADR 0016). What differs is asked for once more, on both sides, before it is called a difference: keys may be written and
flushed meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue
from typing import Final

import msgspec

from gateway.client import GatewayClient, GatewayError
from gateway.comparison import ByteProof, Finding, Verdict, find, find_in_head, pairs
from gateway.s3_endpoint import EndpointError, S3Endpoint
from storage.acknowledgements import AcknowledgedLine, AcknowledgedPage
from storage.origin.documents import ListedObject

READERS: Final = 8
BATCH_KEYS: Final = 500
ROUNDS_MAX: Final = 3
"""So often is a key asked for anew that changed between the two sides' answers."""

_AGAIN: Final = frozenset(
    {Verdict.MISSING, Verdict.DIFFERENT, Verdict.METADATA, Verdict.BYTES, Verdict.UNPROVEN}
)


@dataclass(frozen=True, slots=True)
class Depth:
    """How much of each object is compared: size and ETag always; headers by HEAD; bytes by their digests."""

    heads: bool = False
    bytes: bool = False

    @property
    def is_deep(self) -> bool:
        """Whether an object is asked for by itself."""
        return self.heads or self.bytes


@dataclass(slots=True)
class VerifyReport:
    """Counts of a whole run.

    Attributes:
        acknowledged: Keys that the gateway has acknowledged and knows of.
        origin_only: Objects at the origin that it has no record of: of other writers, or of writes that it passed through.
    """

    acknowledged: int = 0
    origin_only: int = 0
    counts: Counter[Verdict] = field(default_factory=Counter)

    @property
    def is_complete(self) -> bool:
        """Whether the origin alone has all of it."""
        return not self.counts.total()

    def summary(self) -> str:
        """Write the end of the report."""
        proven = self.acknowledged - self.counts.total()
        told = ", ".join(
            f"{self.counts[verdict]} {verdict.value}" for verdict in Verdict if self.counts[verdict]
        )
        end = told or "the origin alone is complete"
        return (
            f"{proven} of {self.acknowledged} acknowledged keys are at the origin "
            f"({self.origin_only} others there are not on record here: passed through, or by other writers): {end}"
        )


class Verifier:
    """Compares one prefix.

    Args:
        gateway: The running gateway.
        connect: Makes a connection to the origin.
        place: Bucket and prefix.
    """

    def __init__(
        self,
        gateway: GatewayClient,
        connect: Callable[[], S3Endpoint],
        place: tuple[str, str],
        depth: Depth,
    ) -> None:
        self._gateway: Final = gateway
        self._connect: Final = connect
        self._bucket, self._prefix = place
        self._depth: Final = depth
        self._origins: Final[SimpleQueue[S3Endpoint]] = SimpleQueue()

    def run(self, report: VerifyReport, progress: Callable[[int], None]) -> Iterator[Finding]:
        """Give what is not at the origin, in the order of keys, and count into `report`. Memory does not grow with the keys.

        Raises:
            GatewayError, EndpointError: A side does not answer.
        """
        lister = self._connect()
        for _ in range(READERS):
            self._origins.put(self._connect())
        open_keys = self._open_keys(report, lister, progress)
        try:
            with ThreadPoolExecutor(READERS) as readers:
                while batch := list(islice(open_keys, BATCH_KEYS)):
                    for finding in readers.map(lambda pair: self._judge(*pair), batch):
                        if finding is not None:
                            report.counts[finding.verdict] += 1
                            yield finding
        finally:
            lister.close()
            while not self._origins.empty():
                self._origins.get().close()

    def _open_keys(
        self, report: VerifyReport, lister: S3Endpoint, progress: Callable[[int], None]
    ) -> Iterator[tuple[AcknowledgedLine, ListedObject | None]]:
        """Give the acknowledged keys that the origin's listing alone does not settle, with what it lists of each."""
        for pair in pairs(self._lines(), lister.listing(self._bucket, self._prefix)):
            if pair.line is None:
                report.origin_only += 1
                continue
            report.acknowledged += 1
            if report.acknowledged % BATCH_KEYS == 0:
                progress(report.acknowledged)
            if self._depth.is_deep or find(pair.line, pair.listed) is not None:
                yield pair.line, pair.listed

    def _lines(self) -> Iterable[AcknowledgedLine]:
        after = ""
        while True:
            page = self._gateway.ask(AcknowledgedPage, "GET", "/-/acknowledged", self._parameters(after))
            yield from page.lines
            if not page.next_after:
                return
            assert page.next_after > after or not after, f"the pages of the gateway do not go on: {after!r}"
            after = page.next_after

    def _parameters(self, after: str) -> dict[str, str]:
        deep = "1" if self._depth.is_deep else "0"
        return {"bucket": self._bucket, "prefix": self._prefix, "after": after, "deep": deep}

    # --- one key -----------------------------------------------------------------------------------------------------

    def _judge(self, line: AcknowledgedLine, listed: ListedObject | None) -> Finding | None:
        finding = find(line, listed) or self._look_inside(line)
        for _ in range(ROUNDS_MAX):
            if finding is None or finding.verdict not in _AGAIN:
                return finding
            before = line
            now = self._acknowledged_now(line.key)
            if now is None:
                # A client's delete may have been flushed meanwhile. But a read may also have found at the origin what this run
                # found, so that the gateway forgot the version: what nobody can tell apart is not passed over.
                return Finding(
                    Verdict.GONE, line, f"{finding.detail}; the gateway has forgotten it meanwhile"
                )
            line = now
            finding = find(line, self._described(line.key)) or self._look_inside(line)
            if line.etag == before.etag and line.state == before.state:
                return finding
        return finding

    def _acknowledged_now(self, key: str) -> AcknowledgedLine | None:
        parameters = {"bucket": self._bucket, "key": key}
        answer = self._gateway.call("GET", "/-/acknowledged", parameters)
        try:
            return msgspec.json.decode(answer, type=AcknowledgedLine | None)
        except msgspec.DecodeError as error:
            raise GatewayError(f"GET /-/acknowledged: the answer cannot be read: {error}") from error

    def _described(self, key: str) -> ListedObject | None:
        """Ask the origin for one key, as its listing would show it."""
        origin = self._origins.get()
        try:
            answer = origin.call("HEAD", self._bucket, key)
        finally:
            self._origins.put(origin)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise EndpointError(f"{origin.url}: HEAD {key}: {answer.status}")
        return ListedObject(key, int(answer.headers.get("content-length", "0")), answer.etag, 0)

    def _look_inside(self, line: AcknowledgedLine) -> Finding | None:
        """Compare headers and bytes where that is asked for; None where the object is gone by now."""
        if not self._depth.is_deep:
            return None
        origin = self._origins.get()
        try:
            return self._look_at(origin, line)
        finally:
            self._origins.put(origin)

    def _look_at(self, origin: S3Endpoint, line: AcknowledgedLine) -> Finding | None:
        if not self._depth.bytes:
            answer = origin.call("HEAD", self._bucket, line.key)
            if answer.status == 404:
                return Finding(Verdict.MISSING, line, "the origin lists it and does not have it")
            if answer.status != 200:
                raise EndpointError(f"{origin.url}: HEAD {line.key}: {answer.status}")
            return find_in_head(line, answer.headers)
        head, pieces = origin.stream(self._bucket, line.key)
        proof = ByteProof(line)
        for piece in pieces:
            proof.add(piece)
        if head.status == 404:
            return Finding(Verdict.MISSING, line, "the origin lists it and does not have it")
        if head.status != 200:
            raise EndpointError(f"{origin.url}: GET {line.key}: {head.status}")
        return proof.finding(head.headers) or (
            find_in_head(line, head.headers) if self._depth.heads else None
        )
