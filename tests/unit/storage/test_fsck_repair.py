"""A repair puts a damaged directory in order, removes nothing that was acknowledged, and can be cut short anywhere."""

import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from storage import keys
from storage.errors import DamagedError, DiskFailedError, FormatError, LockedError
from storage.family import Family, IndexWrite
from storage.fsck import check
from storage.journal_format import HEADER_BYTES, JournalHeader, encode_header, journal_path
from storage.journal_reader import JournalGroup, JournalReader
from storage.journal_scan import scan
from storage.origin.wire import OriginObject
from storage.records import (
    DirtyEntry,
    ObjectRecord,
    ObjectState,
    PartSize,
    UploadCompleted,
    UploadCreated,
    UploadRecord,
    Validated,
    encode,
)
from storage.recovered_changes import Looked
from storage.rows import decode_dirty, decode_object
from storage.segments import segment_path
from tests.fakes.filesystem import FakeFilesystem, Halted, Operation
from tests.fakes.index import FakeIndex
from tests.fakes.ledger_harness import (
    BUCKET,
    Ledger,
    all_rows,
    check_accounts,
    dirty_state,
    location_of,
    opened_ledger,
    read_body,
)
from tests.fakes.ledger_load import RandomLoad
from tests.fakes.repairing import Directory, RepairIndexHome

SEEDS = int(os.environ.get("FOREBAY_TEST_SEEDS", "24"))


async def loaded() -> Ledger:
    """Make a directory with dirty and clean objects, a delete and an upload, in the journal and in segments."""
    async with opened_ledger() as ledger:
        ledger.put_now("tiny", b"in the journal", is_tiny=True)
        ledger.put_now("large", b"in a segment", is_tiny=False)
        ledger.delete_now("deleted")
        ledger.flush_now(ledger.put_now("clean", b"cached bytes", is_tiny=False))
        ledger.put_now("other", b"another tiny one", is_tiny=True)
        upload_id = ledger.create_upload_now("upload")
        ledger.part_now(upload_id, 1, b"a part", is_tiny=True)
        await ledger.fill("filled", b"filled bytes")
        ledger.put_now("last", b"the last one", is_tiny=True)
    ledger.recovered.lock.close()
    return ledger


def entries_of(directory: Directory) -> dict[str, DirtyEntry]:
    """Start, and give what is dirty by key."""
    recovered = directory.start()
    recovered.release()
    return {entry.key: entry for entry in recovered.dirty}


def bodies_of(directory: Directory) -> dict[str, bytes | str]:
    """Read all dirty bodies after a start."""
    index = directory.home.open()
    found: dict[str, bytes | str] = {}
    for _, value in all_rows(index, Family.DIRTY):
        entry = decode_dirty(value)
        row = index.get(Family.OBJECTS, keys.object_key(entry.bucket, entry.key))
        if row is not None and not entry.is_tombstone:
            found[entry.key] = read_body(directory.filesystem, decode_object(row).extents)
    return found


# --- nothing to do -----------------------------------------------------------------------------------------------------


async def test_repair_of_a_sound_directory_changes_nothing() -> None:
    """There is no step, and no file is touched."""
    directory = Directory.of(await loaded())
    calls = directory.filesystem.changing_calls

    outcome = directory.repair(origin={})

    assert (outcome.steps, outcome.exit_code, outcome.lines()) == ([], 0, ["sound: nothing to repair"])
    assert directory.filesystem.changing_calls == calls
    assert directory.looked == []


async def test_repair_is_refused_when_a_gateway_has_the_directory() -> None:
    """The lock is taken first."""
    directory = Directory.of(await loaded())
    lock = directory.filesystem.lock("LOCK")

    with pytest.raises(LockedError):
        directory.repair()
    lock.close()


def test_repair_of_what_is_no_cache_directory_makes_nothing() -> None:
    """It is said, and not even a lock file is made."""
    directory = Directory(FakeFilesystem(), RepairIndexHome(None))

    outcome = directory.repair()

    assert outcome.exit_code == 0
    assert outcome.report.notes == 1
    assert directory.filesystem.list_directory("") == []


# --- the journal -------------------------------------------------------------------------------------------------------


async def test_nothing_is_in_doubt_when_the_index_has_what_the_journal_lost() -> None:
    """A bit in a record in the middle of the journal: the index has applied it, so all is as it was, clean rows too."""
    ledger = await loaded()
    directory = Directory.of(ledger)
    path, at = directory.find(b"in the journal")
    directory.flip(path, at - 20)  # in the frame's header
    before = dirty_state(ledger.filesystem, ledger.index)
    with pytest.raises(DamagedError):
        directory.clone().start()

    outcome = directory.repair(origin={})

    assert (outcome.exit_code, outcome.recovered) == (0, [])
    recovered = directory.start()
    assert dirty_state(directory.filesystem, recovered.index) == before
    check_accounts(recovered.index)
    assert recovered.index.get(Family.OBJECTS, keys.object_key(BUCKET, "filled")) is not None
    assert [kept.path for kept in outcome.aside] == [path]
    assert directory.filesystem.contents(outcome.aside[0].place)[: at - 20] != b""


async def test_a_body_that_was_hit_is_named_and_all_others_are_whole() -> None:
    """The change stays, quarantined as recovered; its bytes are not served as right."""
    directory = Directory.of(await loaded())
    path, at = directory.find(b"in the journal")
    directory.flip(path, at)

    outcome = directory.repair(origin={})

    entries, bodies = entries_of(directory), bodies_of(directory)
    assert outcome.exit_code == 1
    assert outcome.lost.lines == [
        f"s3://{BUCKET}/tiny: bytes [0, 14): {path} at {at}: 14 bytes with a wrong checksum"
    ]
    assert entries["tiny"].quarantine_reason.startswith("recovered: bytes [0, 14): ")
    assert entries["tiny"].quarantine_reason.endswith("; the origin does not have the object")
    assert [key for key, entry in entries.items() if entry.quarantine_reason] == ["tiny"]
    assert "is wrong at" in str(bodies.pop("tiny"))
    assert bodies == {"large": b"in a segment", "other": b"another tiny one", "last": b"the last one"}


async def test_what_is_around_a_hole_is_quarantined_when_the_index_is_lost_too() -> None:
    """What the lost record was nobody knows: what came before may be replaced, what follows may build on it."""
    directory = Directory.of(await loaded(), has_index=False)
    path, at = directory.find(b"another tiny one")
    directory.flip(path, at)

    outcome = directory.repair(origin={})

    entries = entries_of(directory)
    assert outcome.exit_code == 1
    assert outcome.lost.lines == ["change 8 of the journal cannot be read: what they were is not known"]
    assert entries["large"].quarantine_reason == (
        "recovered: change 8 of the journal cannot be read and may have replaced it; the origin does not have the object"
    )
    assert entries["last"].quarantine_reason.startswith(
        "recovered: it follows change 8 of the journal, which"
    )
    assert "other" not in entries
    assert bodies_of(directory) == {
        "tiny": b"in the journal",
        "large": b"in a segment",
        "last": b"the last one",
    }
    again = directory.repair(origin={})
    assert ([step for step in again.steps if not step.startswith("compare")], again.exit_code) == ([], 1)


async def test_what_the_origin_has_is_clean_when_it_was_in_doubt() -> None:
    """ETag, size and description are those of the change; a delete is at the origin where there is no object."""
    ledger = await loaded()
    directory = Directory.of(ledger, has_index=False)
    path, at = directory.find(b"another tiny one")
    directory.flip(path, at)
    value = ledger.index.get(Family.OBJECTS, keys.object_key(BUCKET, "large"))
    record = decode_object(value or b"")
    same = OriginObject(record.size, record.etag, 1, record.headers, record.user_metadata)
    other = OriginObject(14, "another", 1)

    outcome = directory.repair(origin={"large": Looked(same), "tiny": Looked(other)})

    entries = entries_of(directory)
    assert outcome.settled == [f"s3://{BUCKET}/large", f"s3://{BUCKET}/deleted"]
    assert sorted(entries) == ["last", "tiny"]
    assert entries["tiny"].quarantine_reason.endswith("; the origin has 14 bytes with ETag another")


async def test_comparison_is_left_out_when_the_origin_gives_no_answer() -> None:
    """All that is local is repaired, and the lines say that nothing was compared."""
    directory = Directory.of(await loaded(), has_index=False)
    path, at = directory.find(b"another tiny one")
    directory.flip(path, at)

    outcome = directory.repair(look=lambda names: [Looked(error="no connection")] * len(names))

    entries = entries_of(directory)
    assert outcome.steps[0] == (
        "compare 4 changes in doubt with the origin: 4 times it gave no answer (no connection); those are not compared"
    )
    assert all("; the origin was not asked (no connection)" in e.quarantine_reason for e in entries.values())
    assert sorted(entries) == ["deleted", "large", "last", "tiny"]


async def test_changes_that_only_the_index_knows_are_quarantined() -> None:
    """The journal's end was cut off: the index is ahead of it, and names them."""
    directory = Directory.of(await loaded())
    path, at = directory.find(b"the last one")
    directory.cut(path, at - 56)
    with pytest.raises(DamagedError, match="a part of the journal is missing"):
        directory.clone().start()

    outcome = directory.repair(origin={})

    entries = entries_of(directory)
    assert [key for key, entry in entries.items() if entry.quarantine_reason] == ["last"]
    # Its bytes were in the part that is gone.
    assert outcome.lost.lines[0].startswith(f"s3://{BUCKET}/last: bytes [0, 12): {path} ends at")
    assert bodies_of(directory)["tiny"] == b"in the journal"


async def test_changes_are_known_from_the_index_when_the_journal_is_gone() -> None:
    """All of them are in doubt; the bytes in segments are whole."""
    directory = Directory.of(await loaded())
    for path in directory.journal_paths():
        directory.filesystem.unlink(path)

    outcome = directory.repair(origin={})

    entries = entries_of(directory)
    assert outcome.exit_code == 1
    assert entries["large"].quarantine_reason.startswith(
        "recovered: the journal lost change 4; the index has it"
    )
    assert sorted(entries) == ["large", "last", "other", "tiny"]
    assert outcome.settled == [f"s3://{BUCKET}/deleted"]
    assert bodies_of(directory)["large"] == b"in a segment"


async def test_a_start_succeeds_when_journal_and_index_are_gone() -> None:
    """Nothing is known any more; the segments are kept aside, since bodies of lost changes are in them."""
    ledger = await loaded()
    directory = Directory.of(ledger, has_index=False)
    for path in directory.journal_paths():
        directory.filesystem.unlink(path)
    segment_id = location_of(ledger, "large").segment_id

    outcome = directory.repair(origin={})

    assert entries_of(directory) == {}
    assert outcome.lost.lines == ["journal and index are both gone: what was dirty is not known any more"]
    assert segment_path(segment_id) in [kept.path for kept in outcome.aside]
    kept = next(kept for kept in outcome.aside if kept.path == segment_path(segment_id))
    assert b"in a segment" in directory.filesystem.contents(kept.place)


@pytest.mark.parametrize("at", [0, 9, 20, 30, 45, 55, 57, 63])
@pytest.mark.parametrize("has_index", [True, False])
async def test_all_is_read_when_only_a_header_was_hit(at: int, has_index: bool) -> None:
    """Its checksum is the frames' seed, stored and computable: whichever was hit, all frames read back."""
    ledger = await loaded()
    directory = Directory.of(ledger, has_index=has_index)
    before = dirty_state(ledger.filesystem, ledger.index)
    path = directory.journal_paths()[-1]
    directory.flip(path, at)

    outcome = directory.repair(origin={})

    recovered = directory.start()
    assert (outcome.exit_code, outcome.recovered) == (0, [])
    assert dirty_state(directory.filesystem, recovered.index) == before


async def in_two_files() -> tuple[Ledger, FakeIndex]:
    """Make a directory with two journal files; with it, an index that lacks what is in the second."""
    async with opened_ledger() as ledger:
        ledger.put_now("first", b"the first body", is_tiny=True)
    ledger.recovered.lock.close()
    lagging = ledger.index.kill_clone()
    ledger = await Ledger.start(ledger.filesystem, ledger.index)
    ledger.put_now("second", b"in a segment", is_tiny=False)
    await ledger.stop()
    ledger.recovered.lock.close()
    return ledger, lagging


def zero(directory: Directory, path: str, size_bytes: int) -> None:
    """Lose the beginning of a file, as with a bad sector."""
    directory.change(path, lambda data: data.__setitem__(slice(0, size_bytes), bytes(size_bytes)))


@pytest.mark.parametrize("has_index", [True, False])
async def test_what_may_be_lost_is_told_when_the_last_file_says_nothing(has_index: bool) -> None:
    """Its header is gone and no index has its changes: the body of one is kept aside, where a start would remove it."""
    ledger, lagging = await in_two_files()
    directory = Directory.of(ledger, has_index=has_index)
    directory.home.index = lagging if has_index else None
    zero(directory, directory.journal_paths()[-1], 64)
    segment_id = location_of(ledger, "second").segment_id

    outcome = directory.repair(origin={})

    entries = entries_of(directory)
    kept = next(kept for kept in outcome.aside if kept.path == segment_path(segment_id))
    assert outcome.exit_code == 1
    assert outcome.lost.lines[0].endswith(" on of the journal cannot be read: what they were is not known")
    assert entries["first"].quarantine_reason.startswith("recovered: changes from ")
    assert b"in a segment" in directory.filesystem.contents(kept.place)
    again = directory.repair(origin={})
    assert ([step for step in again.steps if not step.startswith("compare")], again.exit_code) == ([], 1)


async def test_what_may_be_lost_is_told_when_a_file_is_of_another_instance() -> None:
    """It may stand where one of ours was."""
    directory = Directory.of(await loaded(), has_index=False)
    strange = journal_path(1 << 40)
    directory.filesystem.create(strange).close()
    directory.filesystem.replace_contents(strange, encode_header(JournalHeader(1 << 40, b"x" * 16, 99)))

    outcome = directory.repair(origin={})

    assert outcome.exit_code == 1
    assert strange in [kept.path for kept in outcome.aside]
    assert entries_of(directory)["large"].quarantine_reason.startswith("recovered: changes from ")


@pytest.mark.parametrize("has_index", [True, False])
async def test_a_repair_goes_on_when_the_only_journal_file_says_nothing(has_index: bool) -> None:
    """With a whole index all that was dirty is there, in doubt, with its bytes; without one, that all is lost is told."""
    directory = Directory.of(await loaded(), has_index=has_index)
    zero(directory, directory.journal_paths()[0], 64)

    outcome = directory.repair(origin={})

    entries = entries_of(directory)
    assert outcome.exit_code == 1
    assert sorted(entries) == (["large", "last", "other", "tiny"] if has_index else [])
    assert all(entry.quarantine_reason.startswith("recovered: ") for entry in entries.values())
    assert bodies_of(directory).get("last") == (b"the last one" if has_index else None)


async def test_what_is_clean_is_dropped_when_a_lost_change_may_have_replaced_it() -> None:
    """The index has the version before, the journal lost the next one and its flush: not even that it is stale is known."""
    async with opened_ledger() as ledger:
        ledger.flush_now(ledger.put_now("clean", b"superseded", is_tiny=False))
        lagging = ledger.index.kill_clone()
        path = Directory.of(ledger).journal_paths()[-1]
        start = len(ledger.filesystem.contents(path))
        ledger.flush_now(ledger.put_now("clean", b"the newer body", is_tiny=False))
        stop = len(ledger.filesystem.contents(path))
        ledger.put_now("last", b"the last one", is_tiny=True)
    ledger.recovered.lock.close()
    directory = Directory.of(ledger)
    directory.home.index = lagging
    directory.change(path, lambda data: data.__setitem__(slice(start, stop), bytes(stop - start)))
    segment = segment_path(location_of(ledger, "clean").segment_id)

    outcome = directory.repair(origin={})

    recovered = directory.start()
    kept = next(kept for kept in outcome.aside if kept.path == segment)
    assert recovered.index.get(Family.OBJECTS, keys.object_key(BUCKET, "clean")) is None
    assert [entry.key for entry in recovered.dirty] == ["last"]
    assert b"the newer body" in directory.filesystem.contents(kept.place)
    check_accounts(recovered.index)
    recovered.release()
    again = directory.repair(origin={})
    assert ([step for step in again.steps if not step.startswith("compare")], again.exit_code) == ([], 1)


@pytest.mark.parametrize("has_index", [True, False])
async def test_a_compacted_file_is_salvaged(has_index: bool) -> None:
    """With the index all is known; without it what reads back of the file is, and is in doubt."""
    async with opened_ledger() as ledger:
        for number in range(3):
            ledger.put_now(f"key-{number}", b"body %d" % number, is_tiny=True)
        ledger.rotate_now()
        assert await ledger.compaction().compact()
        ledger.unlink_removed()
    ledger.recovered.lock.close()
    directory = Directory.of(ledger, has_index=has_index)
    path = directory.journal_paths()[-1]
    directory.flip(path, directory.filesystem.contents(path).index(b"key-1"))

    outcome = directory.repair(origin={})

    entries = entries_of(directory)
    reasons = {entry.quarantine_reason.partition(";")[0] for entry in entries.values()}
    assert outcome.exit_code == (0 if has_index else 1)
    if has_index:
        assert (sorted(entries), reasons) == (["key-0", "key-1", "key-2"], {""})
    else:
        assert all(reason.startswith("recovered: ") for reason in reasons)


async def test_changes_that_cannot_be_applied_are_left_out_and_named() -> None:
    """A record of no known kind, and a Complete without its parts: the start refuses; after the repair it does not."""
    async with opened_ledger() as ledger:
        ledger.put_now("before", b"body", is_tiny=True)
        index = ledger.index.kill_clone()
        sequence = ledger.commit_door._next_sequence
        entry = DirtyEntry(1, 0, BUCKET, "joined", 0, 77, 3, "credential", 3.0)
        record = ObjectRecord(
            1, 77, 3, "etag", 9, ObjectState.DIRTY, None, Validated(), parts=(PartSize(1, 3, "etag"),)
        )
        upload = UploadRecord(1, "upload", BUCKET, "joined", 1.0, "credential")
        completed = UploadCompleted(
            1, "upload", record, replace(entry, sequence=sequence + 2), completed_at_s=5.0
        )
        written = [b"\x92\xa7unknown\x01", encode(UploadCreated(1, upload)), encode(completed)]
        ledger.recovered.journal.begin_group(0)
        ledger.recovered.journal.append(sequence, written, [])
    ledger.recovered.lock.close()
    directory = Directory(ledger.filesystem.kill_clone(), RepairIndexHome(index))
    with pytest.raises(DamagedError):
        directory.clone().start()

    outcome = directory.repair(origin={})

    assert outcome.exit_code == 1
    assert outcome.lost.lines[0].startswith(f"change {sequence} is of no known kind")
    assert outcome.lost.lines[1].startswith(f"s3://{BUCKET}/joined: change {sequence + 2} cannot be applied")
    assert list(entries_of(directory)) == ["before"]
    assert entries_of(directory)["before"].quarantine_reason == ""


async def test_a_complete_is_named_when_the_upload_it_builds_on_is_lost() -> None:
    """The hole is before it: its own record reads back, and says which object is lost."""
    async with opened_ledger() as ledger:
        upload_id = ledger.create_upload_now("joined")
        part = ledger.part_now(upload_id, 1, b"a part", is_tiny=False)
        complete = ledger.complete_now(upload_id, "joined", [1])
    ledger.recovered.lock.close()
    directory = Directory.of(ledger, has_index=False)
    directory.flip(*directory.find(b"a=b"))

    outcome = directory.repair(origin={})

    assert outcome.lost.lines[1:] == [
        f"part 1 of upload {upload_id}: change {part} cannot be applied: its upload is not known",
        f"s3://{BUCKET}/joined: change {complete} cannot be applied: its upload is not known",
    ]
    assert [kept.path.partition("/")[0] for kept in outcome.aside] == ["segments", "journal", "index"]


async def test_repair_of_a_torn_tail_leaves_it_to_the_start() -> None:
    """It was never acknowledged."""
    directory = Directory.of(await loaded())
    path = directory.journal_paths()[-1]
    directory.change(path, lambda data: data.extend(b"torn"))

    outcome = directory.repair(origin={})

    assert (outcome.steps, outcome.exit_code) == ([], 0)
    assert len(entries_of(directory)) == 5


async def test_format_is_written_anew_when_it_is_damaged() -> None:
    """The journal says whose directory it is, the settings for which origin; the damaged file is kept."""
    directory = Directory.of(await loaded())
    directory.change("FORMAT", lambda data: data.__setitem__(slice(0, 6), b"\xff\xfe\xfd\xfc\xfb\xfa"))

    outcome = directory.repair(origin={})

    assert outcome.exit_code == 0
    assert [kept.path for kept in outcome.aside] == ["FORMAT"]
    assert len(entries_of(directory)) == 5


async def test_format_of_a_newer_program_is_refused() -> None:
    """Nothing is changed that this program does not understand."""
    directory = Directory.of(await loaded())
    text = directory.filesystem.contents("FORMAT").replace(b"format = 1", b"format = 9")
    directory.filesystem.replace_contents("FORMAT", text)

    with pytest.raises(FormatError):
        directory.repair(origin={})


# --- the index ---------------------------------------------------------------------------------------------------------


async def test_index_is_rebuilt_when_it_is_lost() -> None:
    """The dirty state returns, the clean rows are dropped."""
    ledger = await loaded()
    directory = Directory.of(ledger, has_index=False)

    outcome = directory.repair(origin={})

    recovered = directory.start()
    assert outcome.steps == ["rebuild the index from the journal: there is no index"]
    assert (outcome.exit_code, outcome.recovered) == (0, [])
    assert dirty_state(directory.filesystem, recovered.index) == dirty_state(ledger.filesystem, ledger.index)
    assert recovered.index.get(Family.OBJECTS, keys.object_key(BUCKET, "filled")) is None


@pytest.mark.parametrize(
    ("family", "key"),
    [
        (Family.OBJECTS, keys.object_key(BUCKET, "large")),
        (Family.OVERLAY, keys.object_key(BUCKET, "tiny")),
        (Family.DIRTY, keys.dirty_key(4)),
        (Family.META, b"instance_id"),
    ],
)
async def test_index_is_rebuilt_when_it_contradicts_itself_or_the_journal(family: Family, key: bytes) -> None:
    """The journal is the truth; the index that was there is kept aside."""
    ledger = await loaded()
    directory = Directory.of(ledger)
    before = dirty_state(ledger.filesystem, ledger.index)
    index = directory.home.open()
    assert index.get(family, key) is not None
    index.write([IndexWrite(family, key, None)])

    outcome = directory.repair(origin={})

    recovered = directory.start()
    assert (outcome.exit_code, outcome.recovered) == (0, [])
    assert dirty_state(directory.filesystem, recovered.index) == before
    assert directory.home.kept == ["quarantine/now/index"]


async def test_index_is_rebuilt_when_it_forgot_a_change_altogether() -> None:
    """It agrees with itself, but not with the journal."""
    ledger = await loaded()
    directory = Directory.of(ledger)
    index = directory.home.open()
    index.write(
        [
            IndexWrite(Family.DIRTY, keys.dirty_key(5), None),
            IndexWrite(Family.OVERLAY, keys.object_key(BUCKET, "deleted"), None),
        ]
    )

    outcome = directory.repair(origin={})

    assert "it contradicts the journal over change 5" in outcome.steps[0]
    assert "deleted" in entries_of(directory)


class FailingReads(RepairIndexHome):
    """Lets so many-th read of the directory's index fail, once."""

    def __init__(self, index: FakeIndex | None, nth: int) -> None:
        super().__init__(index)
        self.reads_left = nth

    def open_read_only(self) -> FakeIndex:
        """Give a copy that counts its reads."""
        index = super().open_read_only()
        get, scan = index.get, index.scan

        def count() -> None:
            self.reads_left -= 1
            if self.reads_left == 0:
                raise DiskFailedError("index read failed")

        def counted_get(family: Family, key: bytes, /) -> bytes | None:
            count()
            return get(family, key)

        def counted_scan(
            family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
        ) -> list[tuple[bytes, bytes]]:
            count()
            return scan(family, start, stop, limit, reverse=reverse)

        index.get, index.scan = counted_get, counted_scan  # type: ignore[method-assign] # a fault
        return index


async def test_an_index_is_not_set_aside_when_the_disk_refuses_a_read_of_it() -> None:
    """The index may be good, and may be the only one that knows a change: the repair ends, and is repeated."""
    damaged = Directory.of(await loaded())
    hit_a_record(damaged)
    refusals = 0
    for nth in range(1, 500, 3):
        failing = Directory(damaged.filesystem.kill_clone(), home := FailingReads(damaged.home.index, nth))
        try:
            failing.repair(origin={})
        except DiskFailedError:
            refusals += 1

        assert home.kept == [], f"read {nth}"
        if home.reads_left > 0:
            break
    assert refusals > 20


async def test_a_change_that_only_an_index_that_contradicts_itself_knows_is_quarantined() -> None:
    """The index is rebuilt, but what it says of the journal's hole is not thrown away; all that is dirty is in doubt."""
    directory = Directory.of(await loaded())
    hit_a_record(directory)
    index = directory.home.open()
    index.write([IndexWrite(Family.OVERLAY, keys.object_key(BUCKET, "tiny"), None)])

    outcome = directory.repair(origin={})

    entries = entries_of(directory)
    assert outcome.exit_code == 1
    assert directory.home.kept == ["quarantine/now/index"]
    assert sorted(entries) == ["large", "last", "other", "tiny"]
    assert all(entry.quarantine_reason.startswith("recovered: ") for entry in entries.values())
    assert bodies_of(directory)["other"] == b"another tiny one"
    again = directory.repair(origin={})
    assert ([step for step in again.steps if not step.startswith("compare")], again.exit_code) == ([], 1)


async def test_an_index_that_lags_is_left_to_the_start() -> None:
    """The journal goes on from where it is."""
    ledger = await loaded()
    directory = Directory.of(ledger)
    directory.home.index = ledger.index.checkpoint_clone()

    outcome = directory.repair(origin={})

    assert (outcome.steps, outcome.exit_code) == ([], 0)
    assert len(entries_of(directory)) == 5


# --- bytes in segments -------------------------------------------------------------------------------------------------


async def test_a_damaged_clean_block_is_dropped() -> None:
    """The row stays, the bytes are a miss."""
    ledger = await loaded()
    directory = Directory.of(ledger)
    place = location_of(ledger, "filled")
    directory.flip(segment_path(place.segment_id), place.offset)

    outcome = directory.repair(origin={})

    recovered = directory.start()
    row = recovered.index.get(Family.OBJECTS, keys.object_key(BUCKET, "filled"))
    assert (outcome.exit_code, outcome.dropped_clean) == (0, 1)
    assert decode_object(row or b"").extents == ()
    check_accounts(recovered.index)
    recovered.release()
    assert directory.repair(origin={}).steps == []


async def test_a_damaged_dirty_block_is_quarantined_and_named() -> None:
    """It is not sent; the second run finds it as it is, and changes nothing."""
    ledger = await loaded()
    directory = Directory.of(ledger)
    place = location_of(ledger, "large")
    directory.flip(segment_path(place.segment_id), place.offset)

    outcome = directory.repair(origin={})
    entries = entries_of(directory)
    again = directory.repair(origin={})

    assert outcome.exit_code == again.exit_code == 1
    assert entries["large"].quarantine_reason.startswith("recovered: bytes [0, 12): ")
    assert outcome.lost.lines == again.lost.lines
    assert again.steps == ["compare 1 changes in doubt with the origin"]


async def test_a_damaged_dirty_block_is_clean_when_the_origin_has_it() -> None:
    """The flush had arrived, only its confirmation had not: nothing is lost."""
    ledger = await loaded()
    directory = Directory.of(ledger)
    place = location_of(ledger, "large")
    directory.flip(segment_path(place.segment_id), place.offset)
    record = decode_object(ledger.index.get(Family.OBJECTS, keys.object_key(BUCKET, "large")) or b"")
    same = OriginObject(record.size, record.etag, 1, record.headers, record.user_metadata)

    outcome = directory.repair(origin={"large": Looked(same)})

    assert (outcome.exit_code, outcome.settled) == (0, [f"s3://{BUCKET}/large"])
    assert "large" not in entries_of(directory)


async def test_a_segment_that_is_gone_is_named_object_by_object() -> None:
    """Dirty objects and parts in it are lost, clean ones a miss."""
    async with opened_ledger() as ledger:
        ledger.put_now("large", b"in a segment", is_tiny=False)
        ledger.flush_now(ledger.put_now("clean", b"cached bytes", is_tiny=False))
        ledger.part_now(ledger.create_upload_now("upload"), 3, b"a part", is_tiny=False)
    ledger.recovered.lock.close()
    directory = Directory.of(ledger)
    segment_id = location_of(ledger, "large").segment_id
    directory.filesystem.unlink(segment_path(segment_id))

    outcome = directory.repair(origin={})

    missing = f"segment {segment_id:x} is missing"
    upload_id = next(iter(ledger.upload_parts))
    assert sorted(outcome.lost.lines) == [
        f"part 3 of upload {upload_id} of s3://{BUCKET}/upload: bytes [0, 6): {missing}",
        f"s3://{BUCKET}/large: bytes [0, 12): {missing}",
    ]
    assert outcome.dropped_clean == 1
    assert list(entries_of(directory)) == ["large"]


# --- dry runs and interruptions ----------------------------------------------------------------------------------------

Damage = Callable[[Directory], None]


def hit_a_record(directory: Directory) -> None:
    """Damage a frame's header in the middle of the journal."""
    path, at = directory.find(b"another tiny one")
    directory.flip(path, at - 20)


def lose_the_index(directory: Directory) -> None:
    """Lose the index, and damage a frame."""
    hit_a_record(directory)
    directory.home.index = None


def lose_the_journal(directory: Directory) -> None:
    """Lose all journal files."""
    for path in directory.journal_paths():
        directory.filesystem.unlink(path)
    directory.filesystem.sync_directory("journal")


def break_everything_a_little(directory: Directory) -> None:
    """FORMAT, a journal header, a record, and a segment."""
    directory.change("FORMAT", lambda data: data.__setitem__(slice(0, 6), b"\xff\xfe\xfd\xfc\xfb\xfa"))
    hit_a_record(directory)
    directory.flip(directory.journal_paths()[-1], 60)
    for name in directory.filesystem.list_directory("segments"):
        directory.flip(f"segments/{name}", 0)


DAMAGES = (hit_a_record, lose_the_index, lose_the_journal, break_everything_a_little)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_dry_run_changes_nothing_and_says_what_would_be(damage: Damage) -> None:
    """The same steps, in the conditional."""
    directory = Directory.of(await loaded())
    damage(directory)
    calls, index = directory.filesystem.changing_calls, directory.home.index

    outcome = directory.repair(origin={}, is_dry=True)

    assert directory.filesystem.changing_calls == calls
    assert directory.home.index is index
    assert outcome.steps
    assert all(step.startswith("would: ") for step in outcome.steps)
    done = directory.repair(origin={})
    assert outcome.lost.lines == done.lost.lines
    assert outcome.recovered == done.recovered


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
async def test_an_interrupted_repair_is_repeated_and_loses_nothing(damage: Damage) -> None:
    """After a kill, or a power cut, at any call to the disk, the next repair ends where the first one would have."""
    ledger = await loaded()
    draws = random.Random(7)
    damaged = Directory.of(ledger)
    damage(damaged)
    whole = damaged.clone()
    whole.repair(origin={})
    entries, bodies = entries_of(whole), bodies_of(whole)
    cut_points = 0
    for nth in range(1, 200):
        halted = damaged.clone()
        halted.filesystem.halt_at(nth)
        try:
            halted.repair(origin={})
        except Halted:
            cut_points += 1
        else:
            break
        power = Directory(halted.filesystem.crash_clone(draws, draws.choice([0, 0.5])), halted.home)
        for left in (halted.clone(), power):
            left.repair(origin={})

            assert {k: e.quarantine_reason for k, e in entries_of(left).items()} == {
                k: e.quarantine_reason for k, e in entries.items()
            }, f"cut at call {nth}"
            assert bodies_of(left).keys() == bodies.keys()
            for key, body in bodies_of(left).items():
                assert body == bodies[key] or (isinstance(body, str) and isinstance(bodies[key], str))
    assert cut_points > 10


READS = (Operation.OPEN_READER, Operation.PREAD, Operation.LIST_DIRECTORY)


@pytest.mark.slow
async def test_no_byte_is_dropped_whichever_read_fails_once() -> None:
    """It raises, or it tells of damage: either way the next repair has every change with its bytes."""
    ledger = await loaded()
    damaged = Directory.of(ledger)
    hit_a_record(damaged)
    refusals = 0
    for nth in range(1, 1000):
        failing = damaged.clone()
        failing.filesystem.fail(*READS, nth=nth)
        try:
            failing.repair(origin={})
        except DiskFailedError:
            refusals += 1
        has_struck = failing.filesystem.heal()
        left = failing.clone()
        left.repair(origin={})

        assert sorted(entries_of(left)) == ["deleted", "large", "last", "other", "tiny"], f"read {nth}"
        assert bodies_of(left) == {
            "tiny": b"in the journal",
            "large": b"in a segment",
            "other": b"another tiny one",
            "last": b"the last one",
        }, f"read {nth}"
        if not has_struck:
            break
    assert refusals > 10


async def test_a_start_refuses_while_a_repair_is_unfinished() -> None:
    """Of the old journal any number of files may be gone by then."""
    directory = Directory.of(await loaded())
    hit_a_record(directory)
    refused = 0
    for nth in range(1, 200):
        halted = directory.clone()
        halted.filesystem.halt_at(nth)
        try:
            halted.repair(origin={})
        except Halted:
            pass
        else:
            break
        left = halted.clone()
        names = left.filesystem.list_directory("journal")
        if any(name.endswith(".repair") for name in names):
            refused += 1
            with pytest.raises(DamagedError, match="a repair was cut short"):
                left.start()
            assert left.repair(is_dry=True).steps[0].startswith("would: finish a repair that was cut short")
    assert refused > 2


# --- what was lost stays told ---


async def lose_the_middle() -> Directory:
    """Make a directory whose first repair has a loss to name."""
    directory = Directory.of(await loaded(), has_index=False)
    hit_a_record(directory)
    return directory


def reports_of(directory: Directory) -> list[str]:
    """Name the reports that are kept aside."""
    filesystem = directory.filesystem
    places = [f"quarantine/{name}" for name in filesystem.list_directory("quarantine")]
    return [place for place in places if "losses.json" in filesystem.list_directory(place)]


async def test_a_loss_is_told_by_every_later_run_until_its_report_is_removed() -> None:
    """A check, a dry run and a repair name what the first repair lost, none calls it sound, and it is written down once."""
    directory = await lose_the_middle()
    lost = directory.repair(origin={}).lost.lines

    runs = [
        directory.repair(origin={}, is_dry=True),
        directory.repair(origin={}),
        directory.repair(origin={}),
    ]
    report = check(directory.filesystem, directory.home)

    (place,) = reports_of(directory)
    for outcome in runs:
        assert [losses.lines for losses in outcome.standing] == [tuple(lost)]
        assert outcome.exit_code == 1
        assert outcome.lines()[0] == f"lost before: {lost[0]} (told by {place})"
        assert outcome.lines()[-1].startswith("NOT ALL THERE: earlier repairs found 1 losses")
        assert outcome.document()["lost_before"] == [{"place": place, "lost": lost, "lost_total": 1}]
    assert (report.criticals, report.exit_code) == (0, 2)
    assert list(report.lines())[-1].endswith(f"remove {place}")
    recovered = directory.start()
    recovered.release()
    assert [losses.total for losses in recovered.losses] == [1]
    for name in directory.filesystem.list_directory(place):
        directory.filesystem.unlink(f"{place}/{name}")
    assert directory.repair(origin={}).exit_code == 0


async def test_a_report_that_does_not_read_back_stands() -> None:
    """Nothing says that nothing was lost."""
    directory = await lose_the_middle()
    directory.repair(origin={})
    (place,) = reports_of(directory)
    directory.cut(f"{place}/losses.json", 20)

    outcome = directory.repair(origin={})

    assert outcome.exit_code == 1
    assert f"{place}/losses.json, which names what was lost, cannot be read" in outcome.lines()[0]


@pytest.mark.slow
async def test_no_loss_is_forgotten_wherever_the_repair_was_cut_short() -> None:
    """The report is there before the damage is gone: after a kill or a power cut, the next run tells the loss, found or read."""
    damaged = await lose_the_middle()
    lost = damaged.clone().repair(origin={}).lost.lines
    draws = random.Random(3)
    cut_points = 0
    for nth in range(1, 200):
        halted = damaged.clone()
        halted.filesystem.halt_at(nth)
        try:
            halted.repair(origin={})
        except Halted:
            cut_points += 1
        else:
            break
        power = Directory(halted.filesystem.crash_clone(draws, draws.choice([0, 0.5])), halted.home)
        for left in (halted, power):
            after = left.clone().repair(origin={})
            told = [*after.lost.lines, *(line for losses in after.standing for line in losses.lines)]
            assert set(lost) <= set(told), f"cut at call {nth}"
            assert after.exit_code == 1
    assert cut_points > 10


# --- any load, any damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(SEEDS // 2))
async def test_any_load_is_stated_anew_as_it_was(seed: int) -> None:
    """With a sound index a damaged journal costs nothing, whatever was in it; compacted or not."""
    draws = random.Random(seed)
    async with opened_ledger() as ledger:
        load = RandomLoad(ledger, draws)
        load.run(50)
        if draws.random() < 0.5:
            await ledger.compaction().compact()
            ledger.unlink_removed()
        load.run(20)
    ledger.recovered.lock.close()
    directory = Directory.of(ledger)
    before = dirty_state(ledger.filesystem, ledger.index)
    path = draws.choice(directory.journal_paths())
    directory.flip(path, draws.randrange(64))

    outcome = directory.repair(origin={})

    recovered = directory.start()
    assert (outcome.exit_code, outcome.recovered) == (0, [])
    assert dirty_state(directory.filesystem, recovered.index) == before
    check_accounts(recovered.index)
    recovered.release()
    # The file that was written says the same without the index.
    rebuilt = Directory(directory.filesystem.kill_clone(), RepairIndexHome(None)).start()
    assert dirty_state(directory.filesystem, rebuilt.index) == before


@dataclass(frozen=True)
class WrittenFile:
    """A plain journal file as it was before damage: where its frames lie, and the last sequence of each."""

    path: str
    data: bytes
    first_sequence: int
    frames: tuple[tuple[int, int, int], ...]


def written_files(filesystem: FakeFilesystem) -> list[WrittenFile]:
    """Read the plain files of a sound journal, oldest first."""
    files = []
    for file in scan(filesystem).files:
        with JournalReader(filesystem, file.path) as reader:
            groups = [group for group in reader.groups() if isinstance(group, JournalGroup)]
        frames = tuple((group.offset, group.end_offset, group.last_sequence) for group in groups)
        if not file.header.is_compacted:
            data = filesystem.contents(file.path)
            files.append(WrittenFile(file.path, data, file.header.first_sequence, frames))
    return files


def told_up_to(written: list[WrittenFile], directory: Directory) -> int:
    """Say up to which sequence a journal without an index must tell of each change.

    Nobody can tell a tail that rotted, or was cut off with the files behind it, from one that was never written.
    """
    paths = directory.journal_paths()
    for file in reversed(written):
        data = directory.filesystem.contents(file.path) if file.path in paths else b""
        intact = [last for at, end, last in file.frames if data[at:end] == file.data[at:end]]
        if intact:
            return intact[-1]
        if file.path in paths and (len(data) != HEADER_BYTES or data == file.data[:HEADER_BYTES]):
            return file.first_sequence - 1
    return 0


def is_in_hole(sequence: int, lost: list[str]) -> bool:
    """Say whether one of the holes that were named has a sequence."""
    for line in lost:
        hole = re.match(r"changes? (?:from )?(\d+)(?: to (\d+))?( on)? of the journal cannot be read", line)
        if hole is None:
            continue
        first, last, is_open = hole.groups()
        if int(first) <= sequence and (is_open or sequence <= int(last or first)):
            return True
    return any(line.startswith("journal and index are both gone") for line in lost)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_damage_is_repaired_and_what_is_lost_is_named(seed: int) -> None:
    """A start succeeds; a dirty object is there, whole or quarantined, or named, or lies in a hole that is named."""
    draws = random.Random(1000 + seed)
    async with opened_ledger() as ledger:
        load = RandomLoad(ledger, draws)
        load.run(30)
        if draws.random() < 0.5:
            ledger.rotate_now()
        if draws.random() < 0.3:
            await ledger.compaction().compact()
            ledger.unlink_removed()
        load.run(30)
    ledger.recovered.lock.close()
    has_index = draws.random() < 0.5
    directory = Directory.of(ledger, has_index=has_index)
    written = written_files(directory.filesystem)
    for _ in range(draws.randint(1, 3)):
        hurt(directory, draws)
    known = 1 << 60 if has_index else told_up_to(written, directory)
    before = {
        decode_dirty(value).key: decode_dirty(value) for _, value in all_rows(ledger.index, Family.DIRTY)
    }

    outcome = directory.repair(origin={})

    entries = entries_of(directory)
    for key, entry in before.items():
        found = entries.get(key)
        place = f"s3://{BUCKET}/{key}"
        is_told = any(line.startswith(f"{place}: ") for line in outcome.lost.lines)
        if found is None or found.version_id != entry.version_id:
            is_lost = is_told or is_in_hole(entry.sequence, outcome.lost.lines)
            is_untold = entry.sequence > known
            assert is_lost or is_untold or place in outcome.settled, f"{key} vanished: {entry}"
            assert not is_lost or outcome.exit_code == 1
    for key, body in bodies_of(directory).items():
        if isinstance(body, str):
            assert entries[key].quarantine_reason.startswith("recovered: "), f"{key} would be flushed"
    again = directory.repair(origin={})
    assert [step for step in again.steps if not step.startswith("compare")] == []


def hurt(directory: Directory, draws: random.Random) -> None:
    """Do one thing to a journal file or a segment: lose it, cut it, flip a bit, or lose sectors, often those of the header."""
    paths = directory.journal_paths()
    paths += [f"segments/{name}" for name in directory.filesystem.list_directory("segments")]
    if not paths:
        return
    path = draws.choice(paths)
    size = len(directory.filesystem.contents(path))
    match draws.randrange(6):
        case 0:
            directory.filesystem.unlink(path)
        case 1:
            directory.cut(path, draws.randrange(size + 1))
        case 2 | 3 if size:
            start = draws.choice((0, draws.randrange(size) // 512 * 512))
            length = min(draws.choice((64, 512, 4096)), size - start)
            directory.change(path, lambda data: data.__setitem__(slice(start, start + length), bytes(length)))
        case _ if size:
            directory.flip(path, draws.randrange(size))
        case _:
            pass


async def test_a_repair_whose_index_write_fails_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half brought up, the index is behind the journal: the next repair, or start, rebuilds it."""
    monkeypatch.setattr("storage.fsck_repair.DELTA_ROWS", 3)
    ledger = await loaded()
    damaged = Directory.of(ledger)
    hit_a_record(damaged)
    before = dirty_state(ledger.filesystem, ledger.index)
    failures = 0
    for nth in range(1, 50):
        failing = damaged.clone()
        failing.home.fail_write_at = nth
        try:
            failing.repair(origin={})
        except DiskFailedError:
            failures += 1
        else:
            break
        failing.home.fail_write_at = 0
        started, repaired = failing.clone(), failing.clone()

        recovered = started.start()
        outcome = repaired.repair(origin={})

        assert dirty_state(started.filesystem, recovered.index) == before
        check_accounts(recovered.index)
        assert (outcome.exit_code, outcome.recovered) == (0, [])
        assert dirty_state(repaired.filesystem, repaired.start().index) == before
    assert failures > 3
