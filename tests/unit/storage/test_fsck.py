"""A check finds what endangers acknowledged bytes, tells it from what does not, and changes nothing."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from storage import keys
from storage.errors import DamagedError, LockedError
from storage.family import Family, IndexWrite
from storage.filesystem import PosixFilesystem
from storage.findings import PROBLEMS_MAX, Report, Severity
from storage.fsck import check
from storage.index import RocksIndex
from storage.layered_index import RocksCopies
from storage.layout import INDEX_DIRECTORY
from storage.records import FORMAT, ObjectState, OriginUploadOpened, encode
from storage.recovery import RecoveryParts, recover
from storage.rows import (
    APPLIED_SEQUENCE,
    INSTANCE_ID,
    decode_dirty,
    decode_object,
    decode_overlay,
    decode_part,
    decode_segment,
    origin_upload_key,
)
from storage.segments import segment_path
from storage.types import Location
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.index import FakeIndex
from tests.fakes.ledger_harness import BUCKET, ORIGIN, Ledger, all_rows, location_of, opened_ledger
from tests.fakes.ledger_load import RandomLoad


class FakeCopies:
    """`IndexCopies` over a FakeIndex; None is one that cannot be opened."""

    def __init__(self, index: FakeIndex | None) -> None:
        self._index = index

    def open_read_only(self) -> FakeIndex:
        """Give a copy of the index."""
        if self._index is None:
            raise DamagedError("there is no index")
        return self._index.kill_clone()

    def open_scratch(self) -> FakeIndex:
        """Give an empty index."""
        return FakeIndex()


async def loaded() -> Ledger:
    """Make a directory with dirty and clean objects, a delete, an upload, in the journal and in segments; nobody has it open."""
    async with opened_ledger() as ledger:
        ledger.put_now("tiny", b"in the journal", is_tiny=True)
        ledger.put_now("large", b"in a segment", is_tiny=False)
        ledger.put_now("empty", b"", is_tiny=True)
        ledger.delete_now("deleted")
        ledger.flush_now(ledger.put_now("clean", b"cached bytes", is_tiny=False))
        upload_id = ledger.create_upload_now("upload")
        ledger.part_now(upload_id, 1, b"a part", is_tiny=False)
        await ledger.fill("filled", b"filled bytes")
    ledger.recovered.lock.close()
    return ledger


def report_of(ledger: Ledger, *, verify_clean: bool = False) -> Report:
    """Check what a killed process leaves."""
    return check(ledger.filesystem, FakeCopies(ledger.index), verify_clean=verify_clean)


def texts(report: Report) -> list[tuple[Severity, str]]:
    """Give the problems as text."""
    return [(problem.severity, f"{problem.where}: {problem.what}") for problem in report.problems]


def flip(ledger: Ledger, place: Location) -> None:
    """Damage the first byte of a location in a segment."""
    data = bytearray(ledger.filesystem.contents(segment_path(place.segment_id)))
    data[place.offset] ^= 1
    ledger.filesystem.replace_contents(segment_path(place.segment_id), data)


# --- sound directories -------------------------------------------------------------------------------------------------


async def test_check_when_all_is_well() -> None:
    """A sound directory has no problem, and all that is in it is counted."""
    ledger = await loaded()

    report = report_of(ledger, verify_clean=True)

    assert texts(report) == []
    assert report.exit_code == 0
    counts = report.counts
    assert (counts.dirty_puts, counts.dirty_deletes, counts.quarantined) == (3, 1, 0)
    assert (counts.dirty_bytes, counts.open_uploads, counts.parts, counts.part_bytes) == (26, 1, 1, 6)
    assert (counts.clean_objects, counts.clean_bytes) == (2, 24)
    assert counts.verified_bytes == 26 + 6 + 24
    assert counts.replayed == 0


async def test_check_changes_nothing() -> None:
    """No call that changes a file is made."""
    ledger = await loaded()
    calls = ledger.filesystem.changing_calls
    batches = ledger.index.writes_total

    report_of(ledger, verify_clean=True)

    assert ledger.filesystem.changing_calls == calls
    assert ledger.index.writes_total == batches


@pytest.mark.parametrize("seed", range(6))
async def test_check_of_any_load_after_any_crash(seed: int) -> None:
    """Whatever was done, compacted or not, and however it was cut short: nothing acknowledged is in danger."""
    draws = random.Random(seed)
    async with opened_ledger() as ledger:
        load = RandomLoad(ledger, draws)
        load.run(60)
        if draws.random() < 0.7:
            ledger.rotate_now()
            assert await ledger.compaction().compact()
            ledger.unlink_removed()
        load.run(20)
    batches = ledger.index.batches_after_checkpoint
    for index in (None, ledger.index.clone_at(draws.randint(0, batches)), ledger.index.kill_clone()):
        disk = ledger.filesystem.crash_clone(draws, draws.choice([0, 0.5, 1]))

        report = check(disk, FakeCopies(index))

        assert [problem for problem in report.problems if problem.severity is Severity.CRITICAL] == []
        dirty = len(all_rows(ledger.index, Family.DIRTY))
        assert report.counts.dirty_puts + report.counts.dirty_deletes == dirty


async def test_check_when_a_gateway_runs() -> None:
    """It must be stopped first."""
    async with opened_ledger() as ledger:
        with pytest.raises(LockedError):
            check(ledger.filesystem, FakeCopies(ledger.index))


def test_check_when_the_directory_is_none_of_ours() -> None:
    """It is said, and not even a lock file is made."""
    disk = FakeFilesystem()

    report = check(disk, FakeCopies(None))

    assert texts(report) == [
        (Severity.NOTE, "FORMAT: is missing: this is no cache directory, or one that was never used")
    ]
    assert disk.list_directory("") == []


# --- the journal -------------------------------------------------------------------------------------------------------


async def test_check_when_the_tail_is_torn() -> None:
    """What a crash leaves behind the last group is a note."""
    ledger = await loaded()
    path = f"journal/{ledger.recovered.journal.segment_id:016x}.log"
    data = ledger.filesystem.contents(path)
    ledger.filesystem.replace_contents(path, data + b"torn")

    report = report_of(ledger)

    what = f"4 bytes from {len(data)} on are of a group that was never acknowledged (no frame header)"
    assert texts(report) == [(Severity.NOTE, f"{path}: {what}; the next start cuts them off")]
    assert report.exit_code == 1


async def test_check_when_a_group_is_damaged() -> None:
    """The file, the place and what is sound before it are told; the rows are checked all the same."""
    ledger = await loaded()
    path = f"journal/{ledger.recovered.journal.segment_id:016x}.log"
    data = bytearray(ledger.filesystem.contents(path))
    at = data.index(b"in the journal")
    data[at] ^= 1
    ledger.filesystem.replace_contents(path, data)

    report = report_of(ledger)

    assert report.exit_code == 2
    found = [text for severity, text in texts(report) if severity is Severity.CRITICAL]
    assert f"a frame with a wrong checksum at offset {at - 56}" in found[0]
    assert found[1].startswith(f"{path}: a frame with a wrong checksum at offset {at - 56} of {len(data)}")
    assert found[1].endswith("sound up to sequence 2")
    assert found[2].startswith(f"s3://{BUCKET}/tiny (change 3): bytes [0, 14): {path} at {at}: ")
    assert len(found) == 3


async def test_check_when_format_is_missing() -> None:
    """A journal without FORMAT refuses the start."""
    ledger = await loaded()
    ledger.filesystem.unlink("FORMAT")

    report = report_of(ledger)

    assert texts(report) == [(Severity.CRITICAL, "FORMAT: is missing beside a journal")]


async def test_check_when_files_are_left_from_a_compaction() -> None:
    """They are notes: the next start removes them."""
    async with opened_ledger() as ledger:
        ledger.put_now("key", b"body", is_tiny=True)
        ledger.rotate_now()
        path = ledger.recovered.journal.sealed[0].path
        assert await ledger.compaction().compact()
    ledger.recovered.lock.close()

    report = report_of(ledger)

    assert texts(report) == [(Severity.NOTE, f"{path}: does not count any more; the next start removes it")]


# --- the index ---------------------------------------------------------------------------------------------------------


async def test_check_when_the_index_lags() -> None:
    """What the next start applies is checked as if it were applied."""
    ledger = await loaded()

    report = check(ledger.filesystem, FakeCopies(ledger.index.checkpoint_clone()))

    assert (report.counts.dirty_puts, report.counts.parts) == (3, 1)
    assert report.counts.replayed == ledger.applier.applied_sequence - 2
    assert report.criticals == 0


async def test_check_when_the_index_is_lost() -> None:
    """All that is dirty is found by the journal; the clean objects are lost, which is a note."""
    ledger = await loaded()

    report = check(ledger.filesystem, FakeCopies(None))

    assert (report.counts.dirty_puts, report.counts.dirty_deletes, report.counts.parts) == (3, 1, 1)
    assert report.counts.clean_objects == 0
    assert report.exit_code == 1
    assert texts(report)[0] == (
        Severity.NOTE,
        "index: there is no index; the next start rebuilds it, without clean objects",
    )


async def test_check_when_the_index_is_ahead() -> None:
    """A part of the journal is gone: the next start would refuse."""
    ledger = await loaded()
    ledger.index.write([IndexWrite(Family.META, APPLIED_SEQUENCE, (99).to_bytes(8))])

    report = report_of(ledger)

    assert report.exit_code == 2
    assert "index: has applied sequence 99, the journal ends at 10: a part of the journal is missing" in [
        text for _, text in texts(report)
    ]


async def test_check_when_the_journal_is_gone() -> None:
    """The truth about what is dirty is lost, although the index remembers it."""
    ledger = await loaded()
    for name in ledger.filesystem.list_directory("journal"):
        ledger.filesystem.unlink(f"journal/{name}")

    report = report_of(ledger)

    assert report.exit_code == 2
    told = [text for _, text in texts(report)]
    assert any(text.startswith("journal: is missing") for text in told)
    assert any(text.startswith("index: has applied sequence 10, the journal ends at 0") for text in told)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (INSTANCE_ID, b"another", "it is of another instance, or was never finished"),
        (INSTANCE_ID, None, "it is of another instance, or was never finished"),
        (APPLIED_SEQUENCE, (1).to_bytes(8), "it has applied 1, behind the journal's checkpoint 3"),
    ],
)
async def test_check_when_the_index_does_not_fit(key: bytes, value: bytes | None, why: str) -> None:
    """It is told that the next start rebuilds it."""
    async with opened_ledger() as ledger:
        ledger.put_now("key", b"body", is_tiny=True)
        ledger.rotate_now()
        assert await ledger.compaction().compact()
        ledger.unlink_removed()
    ledger.recovered.lock.close()
    ledger.index.write([IndexWrite(Family.META, key, value)])

    report = report_of(ledger)

    assert texts(report) == [
        (Severity.NOTE, f"index: {why}; the next start rebuilds it, without clean objects")
    ]
    assert report.counts.dirty_puts == 1


# --- bytes -------------------------------------------------------------------------------------------------------------


async def test_check_when_a_dirty_byte_is_wrong() -> None:
    """The object, its bytes and their place are named."""
    ledger = await loaded()
    place = location_of(ledger, "large")
    flip(ledger, place)

    report = report_of(ledger)

    where = f"{segment_path(place.segment_id)} at {place.offset}"
    assert texts(report) == [
        (
            Severity.CRITICAL,
            f"s3://{BUCKET}/large (change 4): bytes [0, 12): {where}: 12 bytes with a wrong checksum",
        )
    ]


async def test_check_when_a_segment_with_dirty_bytes_is_gone() -> None:
    """Every object and part in it is named; a clean one in it is a note."""
    ledger = await loaded()
    segment_id = location_of(ledger, "large").segment_id
    ledger.filesystem.unlink(segment_path(segment_id))

    report = report_of(ledger)

    missing = f"segment {segment_id:x} is missing"
    upload_id = next(iter(ledger.upload_parts))
    assert sorted(texts(report)) == sorted(
        [
            (Severity.CRITICAL, f"s3://{BUCKET}/large (change 4): bytes [0, 12): {missing}"),
            (Severity.CRITICAL, f"part 1 of upload {upload_id}: bytes [0, 6): {missing}"),
            (Severity.NOTE, f"s3://{BUCKET}/clean: bytes [0, 12): {missing}"),
        ]
    )


async def test_check_when_a_clean_byte_is_wrong() -> None:
    """It is found on demand only, and is a note: the gateway fetches it again."""
    ledger = await loaded()
    flip(ledger, location_of(ledger, "filled"))

    reports = [report_of(ledger), report_of(ledger, verify_clean=True)]

    assert [report.exit_code for report in reports] == [0, 1]
    assert "12 bytes with a wrong checksum" in reports[1].problems[0].what


async def test_check_when_a_segment_is_cut() -> None:
    """A file that is too short is found without reading."""
    ledger = await loaded()
    path = segment_path(location_of(ledger, "filled").segment_id)
    ledger.filesystem.replace_contents(path, b"short")

    report = report_of(ledger)

    assert texts(report) == [
        (Severity.NOTE, f"s3://{BUCKET}/filled: bytes [0, 12): {path} ends at 5, within [0, 12)")
    ]


# --- rows --------------------------------------------------------------------------------------------------------------


def change_object(ledger: Ledger, key: str, **fields: object) -> IndexWrite:
    """Make another object row."""
    place = keys.object_key(BUCKET, key)
    record = decode_object(ledger.index.get(Family.OBJECTS, place) or b"")
    return IndexWrite(Family.OBJECTS, place, encode(msgspec.structs.replace(record, **fields)))


def change_segment(ledger: Ledger, **fields: object) -> IndexWrite:
    """Make another row of the segment with dirty bytes."""
    place = keys.segment_key(location_of(ledger, "large").segment_id)
    row = decode_segment(ledger.index.get(Family.SEGMENTS, place) or b"")
    return IndexWrite(Family.SEGMENTS, place, encode(msgspec.structs.replace(row, **fields)))


def change_overlay(ledger: Ledger, **fields: object) -> IndexWrite:
    """Make another overlay row."""
    place = keys.object_key(BUCKET, "large")
    row = decode_overlay(ledger.index.get(Family.OVERLAY, place) or b"")
    return IndexWrite(Family.OVERLAY, place, encode(msgspec.structs.replace(row, **fields)))


def change_dirty(ledger: Ledger, **fields: object) -> IndexWrite:
    """Make another row of the flush queue."""
    place = keys.dirty_key(4)
    row = decode_dirty(ledger.index.get(Family.DIRTY, place) or b"")
    return IndexWrite(Family.DIRTY, place, encode(msgspec.structs.replace(row, **fields)))


def change_part(ledger: Ledger, **fields: object) -> IndexWrite:
    """Make another row of the part."""
    ((place, value),) = all_rows(ledger.index, Family.PARTS)
    return IndexWrite(Family.PARTS, place, encode(msgspec.structs.replace(decode_part(value), **fields)))


def drop_resident(ledger: Ledger, key: str) -> IndexWrite:
    """Lose the way back to an object."""
    place = location_of(ledger, key)
    return IndexWrite(Family.RESIDENTS, keys.resident_key(place.segment_id, place.offset), None)


LARGE = keys.object_key(BUCKET, "large")
Damage = Callable[[Ledger], IndexWrite]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda _: IndexWrite(Family.OVERLAY, LARGE, None), "listings show nothing instead"),
        (lambda ledger: change_overlay(ledger, sequence=3), "listings show change 3 instead"),
        (lambda ledger: change_overlay(ledger, version_id=1), "listings show another version of it"),
        (lambda _: IndexWrite(Family.DIRTY, keys.dirty_key(4), None), "change 4 is shown, and will never be"),
        (lambda _: IndexWrite(Family.DIRTY, keys.dirty_key(4), b"\xc1"), "the row cannot be read"),
        (lambda _: IndexWrite(Family.OBJECTS, LARGE, None), "its version is not in the index"),
        (lambda ledger: change_object(ledger, "large", version_id=1), "s version is not in the index"),
        (
            lambda ledger: change_object(ledger, "large", state=ObjectState.CLEAN),
            "its version is CLEAN, not DIRTY",
        ),
        (lambda ledger: change_dirty(ledger, quarantine_reason="no"), "is DIRTY, not QUARANTINED"),
        (lambda ledger: change_dirty(ledger, size=13), "its version has 12 bytes, not 13"),
        (lambda ledger: change_dirty(ledger, sequence=77), "stands under the sequence 4"),
        (lambda ledger: change_object(ledger, "large", size=20), "bytes from 12 of 20 are nowhere"),
        (lambda ledger: change_object(ledger, "large", extents=()), "bytes from 0 of 12 are nowhere"),
        (
            lambda ledger: change_object(ledger, "filled", state=ObjectState.DIRTY),
            "it is DIRTY, and will never be flushed",
        ),
        (
            lambda ledger: IndexWrite(
                Family.OBJECTS,
                keys.object_key(BUCKET, "deleted"),
                ledger.index.get(Family.OBJECTS, keys.object_key(BUCKET, "filled")),
            ),
            "an object row stands under a delete",
        ),
        (
            lambda ledger: IndexWrite(Family.UPLOADS, keys.upload_key(next(iter(ledger.upload_parts))), None),
            "its upload is not open",
        ),
        (lambda ledger: change_part(ledger, number=2), "the row says 2"),
        (lambda ledger: change_part(ledger, size=7), "bytes from 6 of 7 are nowhere"),
        (lambda ledger: drop_resident(ledger, "large"), "does not know it at"),
        (lambda ledger: change_segment(ledger, dirty_bytes=0), "30 live and 0 dirty bytes are counted"),
    ],
)
async def test_check_when_rows_of_dirty_state_contradict_each_other(damage: Damage, text: str) -> None:
    """Whatever would lose acknowledged bytes, or never flush them, is critical."""
    ledger = await loaded()
    ledger.index.write([damage(ledger)])

    report = report_of(ledger)

    assert report.exit_code == 2
    assert any(text in line for severity, line in texts(report) if severity is Severity.CRITICAL)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda ledger: change_segment(ledger, live_bytes=31), "31 live and 18 dirty bytes are counted"),
        (lambda ledger: drop_resident(ledger, "filled"), "does not know it at"),
        (
            lambda _: IndexWrite(Family.OBJECTS, keys.object_key(BUCKET, "filled"), b"\xc1"),
            "the row cannot be read",
        ),
        (
            lambda ledger: IndexWrite(
                Family.SEGMENTS, keys.segment_key(999), encode(decode_segment(_any_segment(ledger, 999)))
            ),
            "has a row and no file",
        ),
    ],
)
async def test_check_when_rows_of_clean_state_contradict_each_other(damage: Damage, text: str) -> None:
    """What costs cached bytes at most is a note."""
    ledger = await loaded()
    ledger.index.write([damage(ledger)])

    report = report_of(ledger)

    assert report.exit_code == 1
    assert any(text in line for _, line in texts(report))


@pytest.mark.parametrize(
    ("change", "noted"),
    [
        (list, []),
        (
            lambda: [IndexWrite(Family.META, origin_upload_key("theirs"), None)],
            ["its upload theirs at the origin is not known by itself"],
        ),
        (
            lambda: [IndexWrite(Family.META, origin_upload_key("other"), b"\xc1")],
            ["the row cannot be read: "],
        ),
    ],
    ids=["sound", "not known", "unreadable"],
)
async def test_check_when_uploads_are_open_at_the_origin(
    change: Callable[[], list[IndexWrite]], noted: list[str]
) -> None:
    """Each is counted; one that would be forgotten at the origin, were the upload aborted now, is noted."""
    ledger = await loaded()
    (upload_id,) = ledger.upload_parts
    ledger.commit_now(OriginUploadOpened(FORMAT, "theirs", BUCKET, "key", upload_id))
    ledger.commit_now(OriginUploadOpened(FORMAT, "left", BUCKET, "key"))
    ledger.index.write(change())

    report = report_of(ledger)

    found = [line for _, line in texts(report)]
    assert len(found) == len(noted)
    assert all(text in line for text, line in zip(noted, found, strict=True))
    assert report.counts.origin_uploads == (1 if "not known" in "".join(found) else 2)
    assert report.exit_code == bool(noted)


def _any_segment(ledger: Ledger, segment_id: int) -> bytes:
    row = decode_segment(all_rows(ledger.index, Family.SEGMENTS)[0][1])
    return encode(msgspec.structs.replace(row, segment_id=segment_id, live_bytes=0, dirty_bytes=0))


async def test_check_when_segments_are_left_over() -> None:
    """A segment that no row names, and what is no segment, are notes."""
    ledger = await loaded()
    for name in (f"{0xABC:016x}.seg", "stray"):
        ledger.filesystem.create(f"segments/{name}").close()

    report = report_of(ledger)

    assert texts(report) == [
        (Severity.NOTE, "segment abc: no row names it; the next start removes it"),
        (Severity.NOTE, "segments/stray: not a segment"),
    ]


# --- progress and text -------------------------------------------------------------------------------------------------


async def test_check_tells_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """It rises to the end, and the end is told."""
    ledger = await loaded()
    told: list[tuple[int, int]] = []
    monkeypatch.setattr("storage.fsck.PROGRESS_STEP_BYTES", 1)

    check(
        ledger.filesystem, FakeCopies(ledger.index), progress=lambda done, total: told.append((done, total))
    )

    assert told == sorted(told)
    assert len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1]
    assert len(told) > 5


def test_report_when_there_are_many_problems() -> None:
    """All are counted, a bounded number is kept."""
    report = Report()
    for n in range(PROBLEMS_MAX + 5):
        report.note(f"segment {n}", "is odd")

    lines = list(report.lines())

    assert len(report.problems) == PROBLEMS_MAX
    assert lines[0] == "note: segment 0: is odd"
    assert "... and 5 more" in lines
    assert lines[-1] == f"sound: all dirty bytes are there; {PROBLEMS_MAX + 5} notes"


def test_report_when_something_is_critical() -> None:
    """The verdict says so last."""
    report = Report()
    report.critical("s3://b/k", "is gone")

    lines = list(report.lines())

    assert lines[0] == "critical: s3://b/k: is gone"
    assert "dirty puts: 0" in lines
    assert lines[-1] == "DAMAGED: 1 critical problems, 0 notes; keep a copy before anything else"


# --- a real directory --------------------------------------------------------------------------------------------------


class RocksHome:
    """Where a real index lives."""

    def __init__(self, path: str) -> None:
        self._path = path

    def open(self) -> RocksIndex:
        """Open it."""
        return RocksIndex.open(self._path)

    def destroy(self) -> None:
        """Remove it."""
        RocksIndex.destroy(self._path)


def test_check_of_a_real_directory(tmp_path: Path) -> None:
    """RocksDB, which likes to write when it opens, leaves no trace either; what is not flushed of its log is read."""
    index_path = str(tmp_path / INDEX_DIRECTORY)
    disk = PosixFilesystem(str(tmp_path))
    recover(RecoveryParts(disk, RocksHome(index_path), ORIGIN, bytes(16))).release()
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in _files(tmp_path)}

    with RocksCopies(index_path) as copies:
        report = check(disk, copies, verify_clean=True)

    assert texts(report) == []
    assert report.counts.journal_files == 1
    assert report.counts.replayed == 0
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in _files(tmp_path)} == before


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())
