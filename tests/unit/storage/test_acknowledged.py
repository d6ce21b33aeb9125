"""Pages of what was acknowledged, over many rows: how much one step of the event loop reads."""

import msgspec

from storage import keys
from storage.acknowledged import acknowledged_page
from storage.acknowledgements import AcknowledgedPage
from storage.dirty_rows import DirtyRows
from storage.family import Family, IndexWrite
from storage.flush import FlushPlanner
from storage.flush_events import FlushSettings
from storage.records import ObjectState, OriginIdentity, PartSize, encode
from storage.state import State
from tests.fakes.index import FakeIndex
from tests.fakes.records import BUCKET, record

DATED = OriginIdentity("", 0, 5, "theirs", last_modified_s=9)


class CountingIndex(FakeIndex):
    """Notes how many rows and bytes each scan gave."""

    def __init__(self) -> None:
        super().__init__()
        self.rows_read = 0
        self.bytes_read = 0

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Scan."""
        found = super().scan(family, start, stop, limit, reverse=reverse)
        self.rows_read += len(found)
        self.bytes_read += sum(len(value) for _, value in found)
        return found


def filled(count: int, *, parts: int = 0, is_written_here: bool = True) -> CountingIndex:
    """An index with clean objects of so many parts each."""
    index = CountingIndex()
    sizes = tuple(PartSize(number, 5, "0" * 32) for number in range(1, parts + 1))
    row = record(1, size=5, state=ObjectState.CLEAN, origin=DATED, parts=sizes)
    value = encode(msgspec.structs.replace(row, is_written_here=is_written_here))
    index.write(
        [
            IndexWrite(Family.OBJECTS, keys.object_key(BUCKET, f"k{number:05}"), value)
            for number in range(count)
        ]
    )
    return index


def pages(index: CountingIndex, *, is_deep: bool) -> list[tuple[AcknowledgedPage, int, int]]:
    """All pages, each with the rows and bytes that were read for it."""
    told = []
    after = ""
    while True:
        index.rows_read = index.bytes_read = 0
        planner, rows = FlushPlanner(FlushSettings()), DirtyRows(index, State())
        page = acknowledged_page(index, rows, planner, (BUCKET, "", after), is_deep=is_deep)
        told.append((page, index.rows_read, index.bytes_read))
        if not page.next_after:
            return told
        assert page.next_after > after
        after = page.next_after


def test_a_page_describes_few_parts_when_objects_have_many() -> None:
    """A thousand parts, but for the last object's, and a bounded stretch of rows; all pages together have each key once."""
    told = pages(filled(300, parts=400), is_deep=True)

    assert [line.key for page, _, _ in told for line in page.lines] == [
        f"k{number:05}" for number in range(300)
    ]
    assert (
        max(sum(count for line in page.lines for _, count in line.part_runs) for page, _, _ in told) == 1200
    )
    assert max(read for _, _, read in told) < 1024 * 1024


def test_a_page_ends_after_some_bytes_when_rows_are_long_and_not_deep() -> None:
    """What is only stepped over is bounded too."""
    told = pages(filled(300, parts=400), is_deep=False)

    assert sum(len(page.lines) for page, _, _ in told) == 300
    assert max(read for _, _, read in told) < 1024 * 1024


def test_a_page_looks_at_few_rows_when_none_was_written_here() -> None:
    """Rows that are not told count as looked at: pages may be empty, and say where to go on."""
    told = pages(filled(1200, is_written_here=False), is_deep=False)

    assert [(len(page.lines), rows) for page, rows, _ in told] == [(0, 500), (0, 500), (0, 200)]
    assert [page.next_after for page, _, _ in told] == ["k00499", "k00999", ""]
