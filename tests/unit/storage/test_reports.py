"""Pages of the flush queue: how many rows one step of the event loop looks at."""

from collections.abc import Callable
from functools import cache

import msgspec
import pytest

from storage import keys
from storage.dirty_rows import DirtyRows
from storage.family import Family, IndexWrite
from storage.flush import FlushPlanner
from storage.flush_events import DirtyAdded, FlushSettings, Scope
from storage.records import encode
from storage.reports import pending_page, quarantined_lines, quarantined_page
from storage.requests import PendingPage
from storage.state import State
from tests.fakes.index import FakeIndex
from tests.fakes.records import BUCKET, entry

ROWS = 5_000


class Queue(FakeIndex):
    """A flush queue of so many changes, the last so many of them quarantined; notes the rows that are read."""

    def __init__(self, count: int, refused: int) -> None:
        super().__init__()
        self.read = 0
        self.planner = FlushPlanner(FlushSettings())
        rows = []
        for number in range(1, count + 1):
            reason = "refused" if number > count - refused else ""
            row = msgspec.structs.replace(
                entry(f"k{number:05}", number, sequence=number), quarantine_reason=reason
            )
            rows.append(IndexWrite(Family.DIRTY, keys.dirty_key(number), encode(row)))
            self.planner.handle(DirtyAdded(row, 0.0), 0.0)
        self.write(rows)
        self.rows = DirtyRows(self, State())

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Scan."""
        found = super().scan(family, start, stop, limit, reverse=reverse)
        self.read += len(found)
        return found

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Read one row."""
        self.read += 1
        return super().get(family, key)

    def pages(self, ask: Callable[[int], PendingPage]) -> tuple[list[int], int]:
        """Ask page by page; give all sequences, and the most rows that one page read."""
        found: list[int] = []
        most = after = 0
        while True:
            self.read = 0
            page = ask(after)
            most = max(most, self.read)
            found += [line.sequence for line in page.lines]
            if not page.next_after:
                return found, most
            assert page.next_after > after
            after = page.next_after


@cache
def queue_of(refused: int) -> Queue:
    """Give a queue of ROWS changes, one for all tests: nothing here changes it, and to plan so many takes half a second."""
    return Queue(ROWS, refused)


@pytest.mark.parametrize(
    ("scope", "wanted"),
    [
        (Scope(), list(range(1, ROWS + 1))),
        (Scope(BUCKET, "none"), []),
        (Scope(BUCKET, "k04999"), [4999]),
    ],
)
def test_a_page_of_pending_looks_at_few_rows_when_none_is_in_scope(scope: Scope, wanted: list[int]) -> None:
    """Two thousand rows a step, whatever is asked for; all pages together have each change once, in order."""
    queue = queue_of(0)

    found, most = queue.pages(lambda after: pending_page(queue, queue.planner, scope, 1000, after))

    assert found == wanted
    assert most <= 2000


@pytest.mark.slow
@pytest.mark.parametrize("refused", [0, 3, 1500, 4000])
@pytest.mark.parametrize("prefix", ["", "k04999", "none"])
def test_a_page_of_the_quarantine_looks_at_few_rows_when_all_is_pending(refused: int, prefix: str) -> None:
    """Few refused changes are read by themselves, many by pages of the queue: two thousand rows a step."""
    queue = queue_of(refused)
    scope = Scope(BUCKET, prefix)

    found, most = queue.pages(
        lambda after: quarantined_page(queue, queue.rows, queue.planner, scope, 1000, after)
    )

    assert found == [
        number for number in range(ROWS - refused + 1, ROWS + 1) if f"k{number:05}".startswith(prefix)
    ]
    assert most <= min(2000, refused)


@pytest.mark.slow
def test_a_status_reads_as_many_refused_changes_as_it_shows() -> None:
    """The oldest of them, and no others."""
    queue = queue_of(4000)
    queue.read = 0

    lines = quarantined_lines(queue.rows, queue.planner, 10)

    assert [line.sequence for line in lines] == list(range(1001, 1011))
    assert queue.read == 10
