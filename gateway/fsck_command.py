"""`forebay fsck`: check a cache directory that no gateway has open, say what a repair would do, or do it.

What was found and done goes to standard output, as lines or as one JSON document; how far it is to standard error.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from gateway.build import RepairRequest, check_directory, repair_directory
from gateway.readable import readable
from gateway.settings import Settings
from storage.clock import SystemClock
from storage.errors import LockedError
from storage.layout import LOCK_PATH


@dataclass(frozen=True, slots=True)
class FsckRequest:
    """What the command line asks for."""

    should_repair: bool = False
    is_dry: bool = False
    should_refetch: bool = False
    verify_clean: bool = False
    is_json: bool = False

    def wrong_use(self) -> str:
        """Say what does not go together; "" where all does."""
        if self.should_refetch and not self.should_repair:
            return "--refetch goes with --repair"
        return ""


def add_fsck_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's own flags."""
    flags = (
        ("--verify-clean", "read what is also at the origin, too; a repair always does"),
        (
            "--repair",
            "repair what is damaged; nothing that was acknowledged is removed, nothing is sent to the origin",
        ),
        ("--dry-run", "say what a repair would do, and do nothing"),
        ("--refetch", "with --repair: fetch damaged clean blocks from the origin at once"),
        ("--json", "answer one JSON document"),
    )
    for flag, text in flags:
        parser.add_argument(flag, action="store_true", help=text)


def run_fsck(wanted: FsckRequest, settings: Settings, say: Callable[[str], None]) -> int:
    """Check or repair; give the exit status: 0 sound or repaired whole, 1 something acknowledged is damaged or lost, or was."""
    try:
        return _run(wanted, settings, say)
    except LockedError as error:
        lock = f"{settings.cache_dir}/{LOCK_PATH}"
        raise LockedError(
            f"{error}: a gateway, or another fsck, has it open, and `fuser {lock}` names the process. The lock goes with "
            "the process, however that ends; the file LOCK need not be removed. Nothing was read or changed"
        ) from error


def _run(wanted: FsckRequest, settings: Settings, say: Callable[[str], None]) -> int:
    if wanted.should_repair or wanted.is_dry:
        return _repair(wanted, settings, say)
    report = check_directory(settings, verify_clean=wanted.verify_clean, progress=_show_progress)
    _end_progress()
    # Notes are of what a start repairs or drops by itself.
    status = 1 if report.criticals or report.standing else 0
    if wanted.is_json:
        _say_json({"exit_status": status, **report.document()}, say)
        return status
    for line in report.lines():
        say(line)
    if report.criticals:
        say("`forebay fsck --dry-run` says what a repair would do")
    return status


def _repair(wanted: FsckRequest, settings: Settings, say: Callable[[str], None]) -> int:
    clock = SystemClock()
    request = RepairRequest(
        label=datetime.fromtimestamp(clock.wall_s(), UTC).strftime("%Y-%m-%dT%H-%M-%SZ"),
        random=random.Random(int(clock.wall_s())),  # noqa: S311 - jitter of retries, nothing secret
        say=_silent if wanted.is_json else say,
        progress=_show_progress,
        is_dry=wanted.is_dry,
        should_refetch=wanted.should_refetch,
    )
    outcome = repair_directory(settings, request)
    _end_progress()
    if wanted.is_json:
        _say_json(outcome.document(), say)
        return outcome.exit_code
    for problem in outcome.report.problems:
        say(f"{problem.severity.name.lower()}: {problem.where}: {problem.what}")
    for line in outcome.lines():
        say(line)
    return outcome.exit_code


def _silent(_line: str) -> None:
    """Say nothing: the document says it."""


def _say_json(document: dict[str, object], say: Callable[[str], None]) -> None:
    say(msgspec.json.format(msgspec.json.encode(document)).decode())


def _show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{readable(done)} of {readable(total)} checked ")
        sys.stderr.flush()


def _end_progress() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\n")
