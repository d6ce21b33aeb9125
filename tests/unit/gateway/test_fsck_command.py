"""`forebay fsck` as a command: what goes together, what it says and with which status, over a real directory."""

import json
from pathlib import Path

import pytest

from gateway.cli import execute
from gateway.fsck_command import FsckRequest
from gateway.readable import readable
from storage.filesystem import PosixFilesystem
from storage.index_aside import RocksRepairHome
from storage.recovery import RecoveryParts, recover

ORIGIN = "http://127.0.0.1:9"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make a cache directory that was used once."""
    home = RocksRepairHome(str(tmp_path))
    recover(RecoveryParts(PosixFilesystem(str(tmp_path)), home, ORIGIN, bytes(16))).release()
    return tmp_path


def run(directory: Path, *flags: str) -> int:
    """Run the command."""
    return execute(["fsck", "--cache-dir", str(directory), *flags], {})


def test_a_sound_directory_is_said_to_be_sound(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A check, a dry run and a repair all end with status 0 and leave nothing behind."""
    before = sorted(path.name for path in directory.iterdir())

    statuses = [run(directory), run(directory, "--dry-run"), run(directory, "--repair")]

    said = capsys.readouterr().out
    assert statuses == [0, 0, 0]
    assert said.count("sound: nothing to repair") == 2
    assert sorted(path.name for path in directory.iterdir()) == before


def test_index_is_rebuilt_and_kept_aside_when_it_is_broken(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says what was kept, where, and how large it is; the second run has nothing to do."""
    next(directory.glob("index/MANIFEST-*")).write_bytes(b"nothing of it")

    statuses = [run(directory, "--repair"), run(directory, "--repair")]

    said = capsys.readouterr().out
    assert statuses == [0, 0]
    assert "rebuild the index from the journal: " in said
    assert "kept aside: index -> quarantine/" in said
    assert "sound: nothing to repair" in said
    assert list(directory.glob("quarantine/*/index/MANIFEST-*"))


def test_everything_is_one_document_when_json_is_wanted(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check and a repair each write one, and nothing else."""
    run(directory, "--json")
    check = json.loads(capsys.readouterr().out)
    run(directory, "--repair", "--json")
    repaired = json.loads(capsys.readouterr().out)

    assert (check["exit_status"], check["problems"]) == (0, [])
    assert check["counts"]["journal_files"] == 1
    assert (repaired["exit_status"], repaired["lost"], repaired["kept_aside"]) == (0, [], [])


def test_lost_format_asks_for_the_origin(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody else can say where the pending writes belong."""
    (directory / "FORMAT").unlink()

    without = run(directory, "--repair")
    complaint = capsys.readouterr().err
    with_origin = run(directory, "--repair", "--origin", ORIGIN)

    assert (without, with_origin) == (1, 0)
    assert "--origin" in complaint
    assert ORIGIN in (directory / "FORMAT").read_text()


def test_another_origin_than_the_directory_s_is_refused(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is in doubt must not be compared with somebody else's objects."""
    status = run(directory, "--repair", "--origin", "http://elsewhere")

    assert status == 1
    complaint = capsys.readouterr().err
    assert "belongs to the origin http://127.0.0.1:9" in complaint
    assert complaint.endswith(f"or with --origin {ORIGIN}\n")


@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--repair",)])
def test_a_directory_in_use_is_refused_with_the_way_on(
    flags: tuple[str, ...], directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which process holds it, and that the lock file is not to be removed."""
    lock = PosixFilesystem(str(directory)).lock("LOCK")

    status = run(directory, *flags)
    lock.close()

    complaint = capsys.readouterr().err
    assert status == 1
    assert f"`fuser {directory}/LOCK` names the process" in complaint
    assert "the file LOCK need not be removed" in complaint


def test_a_journal_of_another_instance_is_refused_with_the_way_on(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody has the right FORMAT any more, the journal's own word is enough, for the origin that is named."""
    text = (directory / "FORMAT").read_text()
    (directory / "FORMAT").write_text(text.replace(bytes(16).hex(), (b"x" * 16).hex()))

    refused = run(directory, "--repair")
    complaint = capsys.readouterr().err
    (directory / "FORMAT").rename(directory / "FORMAT.away")
    (directory / "index").rename(directory / "index.away")
    repaired = run(directory, "--repair", "--origin", ORIGIN)

    assert (refused, repaired) == (1, 0)
    assert "files of two cache directories are mixed" in complaint
    assert "move FORMAT and index/ away and repeat this with --origin URL" in complaint
    assert (directory / "FORMAT").read_text() == text
    assert run(directory) == 0


def test_flags_that_do_not_go_together_are_wrong_use(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and status 2."""
    status = run(directory, "--refetch")

    assert status == 2
    assert capsys.readouterr().err == "forebay: --refetch goes with --repair\n"
    assert FsckRequest(should_repair=True, should_refetch=True).wrong_use() == ""


def test_sizes_are_readable() -> None:
    """A unit that fits."""
    assert [readable(n) for n in (5, 2048, 3 << 20, 1 << 30)] == ["5 B", "2.0 KiB", "3.0 MiB", "1.0 GiB"]
