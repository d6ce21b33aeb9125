"""The file of a ledger."""

from pathlib import Path

import msgspec
import pytest

from gateway.ledger.book import Book, lines_of
from gateway.ledger.entries import FORMAT, Acknowledged, Attempt, Begun, LedgerError

PLACE = "s3://bucket/p"
ATTEMPT = Attempt(1, "k", "put", 1.0, "sha", 3, "etag")


def test_a_ledger_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Lines of two runs stand behind one beginning."""
    path = str(tmp_path / "ledger")
    for number in (1, 2):
        book = Book.open(path, place=PLACE, seed=number)
        book.append(Acknowledged(number, "k"))
        book.close()

    assert list(lines_of(path)) == [Begun(FORMAT, PLACE, 1), Acknowledged(1, "k"), Acknowledged(2, "k")]


def test_a_torn_last_line_is_passed_over_and_cut(tmp_path: Path) -> None:
    """A power cut leaves at most the start of a line that nothing depends on."""
    path = tmp_path / "ledger"
    book = Book.open(str(path), place=PLACE, seed=1)
    book.append(ATTEMPT)
    book.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"line":"acknow')

    read = list(lines_of(str(path)))
    Book.open(str(path), place=PLACE, seed=1).close()

    assert read == [Begun(FORMAT, PLACE, 1), ATTEMPT]
    assert path.read_bytes() == whole


def test_a_damaged_line_is_refused_with_its_number(tmp_path: Path) -> None:
    """A ledger that was changed proves nothing."""
    path = tmp_path / "ledger"
    Book.open(str(path), place=PLACE, seed=1).close()
    path.write_bytes(path.read_bytes() + b"garbage\n")

    with pytest.raises(LedgerError, match="line 2"):
        list(lines_of(str(path)))


def test_any_byte_that_changed_is_found(tmp_path: Path) -> None:
    """So is a line that is missing, doubled or moved; but for the last lines, whose absence expects less than is there."""
    path = tmp_path / "ledger"
    book = Book.open(str(path), place=PLACE, seed=1)
    book.append(ATTEMPT)
    book.append(Acknowledged(1, "k", "etag"))
    book.append(ATTEMPT)
    book.close()
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole) - 1)]
    moved = [
        lines[0] + b"".join(lines[2:]),
        b"".join([lines[0], lines[1], *lines[1:]]),
        b"".join([lines[0], lines[2], lines[1], lines[3]]),
    ]

    for changed in (*flipped, *moved):
        path.write_bytes(changed)
        with pytest.raises(LedgerError):
            list(lines_of(str(path)))


def test_a_book_of_before_the_checksums_is_read_and_gone_on_with(tmp_path: Path) -> None:
    """Its lines have none, and count; behind a line with one, a line without is refused."""
    path = tmp_path / "ledger"
    old = b"".join(msgspec.json.encode(line) + b"\n" for line in (Begun(FORMAT, PLACE, 1), ATTEMPT))
    path.write_bytes(old)

    book = Book.open(str(path), place=PLACE, seed=1)
    book.append(Acknowledged(1, "k", "etag"))
    book.close()

    assert list(lines_of(str(path))) == [Begun(FORMAT, PLACE, 1), ATTEMPT, Acknowledged(1, "k", "etag")]
    path.write_bytes(path.read_bytes() + old.splitlines(keepends=True)[1])
    with pytest.raises(LedgerError, match="it has no checksum"):
        list(lines_of(str(path)))


def test_a_ledger_is_of_one_prefix(tmp_path: Path) -> None:
    """A load or check of another one is refused."""
    path = str(tmp_path / "ledger")
    Book.open(path, place=PLACE, seed=1).close()

    with pytest.raises(LedgerError, match="not of s3://bucket/other"):
        Book.open(path, place="s3://bucket/other", seed=1)


def test_a_ledger_is_of_one_process_at_a_time(tmp_path: Path) -> None:
    """A check during the load would read half of it."""
    path = str(tmp_path / "ledger")
    book = Book.open(path, place=PLACE, seed=1)

    with pytest.raises(LedgerError, match="in use"):
        Book.open(path, place=PLACE, seed=1)

    book.close()
    Book.open(path, place=PLACE, seed=1).close()


def test_a_sync_covers_what_was_written_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for an older line is served by the sync of a newer one."""
    book = Book.open(str(tmp_path / "ledger"), place=PLACE, seed=1)
    synced: list[int] = []
    monkeypatch.setattr("os.fdatasync", synced.append)
    first, second = book.append(ATTEMPT), book.append(ATTEMPT)

    book.sync(second)
    book.sync(first)

    assert len(synced) == 1
    book.close()
