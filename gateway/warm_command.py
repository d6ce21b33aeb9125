"""`forebay warm`: begin a warm-up in a running gateway, give it its list, and show how far it is.

Exit status, beside 1 and 2 as everywhere: 0 the job has ended and enough is warm; 3 it has ended, and less is warm than `--fail-under`
asks for, or, without that, something failed. The job runs in the gateway: when the command is interrupted it goes on.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

import msgspec

from gateway.client import GatewayClient, GatewayError
from gateway.s3.ranges import parse_range
from gateway.setting_values import parse_duration, parse_size
from gateway.settings import SettingsError
from gateway.warm_progress import Progress, end_lines, job_line, room_line
from storage.types import RangeSpec
from storage.warm_jobs import (
    FEED_ENTRIES_MAX,
    WarmEntry,
    WarmFed,
    WarmJobs,
    WarmKind,
    WarmPhase,
    WarmReport,
    WarmResult,
)

DONE: Final = 0
NOT_DONE: Final = 1
TOO_COLD: Final = 3

STEP_S: Final = 1
PLAIN_EVERY_S: Final = 10.0
"""A line of progress, where it does not go to a terminal."""

STANDARD_INPUT: Final = "-"

Write = Callable[[str], None]
SplitPlace = Callable[[str], tuple[str, str]]


def add_warm_flags(parser: argparse.ArgumentParser) -> None:
    """Add what `forebay warm` takes beside the settings."""
    parser.add_argument(
        "place", metavar="s3://BUCKET/PREFIX", nargs="?", help="all under it; or the bucket of a list; or -"
    )
    parser.add_argument(
        "--from",
        dest="list_file",
        metavar="FILE",
        help="a list: keys, s3:// addresses or JSON objects with key and range, one a line; - is standard input",
    )
    parser.add_argument(
        "--order", action="store_true", help="the list is the order of the reads: warm a window ahead of them"
    )
    parser.add_argument("--ahead", metavar="N", help="--order: objects ahead of the reads (default: 1000)")
    parser.add_argument("--ahead-bytes", metavar="SIZE", help="--order: bytes ahead (default: 1GiB)")
    parser.add_argument(
        "--idle", metavar="DURATION", help="--order: end when nothing is read for so long (default: 10m)"
    )
    parser.add_argument(
        "--metadata-only", action="store_true", help="what HEAD answers, and no bytes of objects"
    )
    parser.add_argument("--concurrency", metavar="N", help="objects at a time (default: 16)")
    parser.add_argument(
        "--fail-under", metavar="PERCENT", help="status 3 unless so many of 100 objects are warm at the end"
    )
    parser.add_argument("--detach", action="store_true", help="begin, say the job's number, and return")
    parser.add_argument(
        "--status", metavar="ID", nargs="?", const="", help="show one job until it ends, or all as they are"
    )
    parser.add_argument("--cancel", metavar="ID", help="end a job; what it fetched stays")


def run_warm(parsed: argparse.Namespace, client: GatewayClient, split: SplitPlace, write: Write) -> int:
    """Do what was asked for; give the exit status.

    Args:
        parsed: As `add_warm_flags` says.
        client: Speaks to the gateway.
        split: Takes an s3:// address apart; raises SettingsError.
        write: Writes a line for people.
    """
    fail_under = _percent(parsed.fail_under)
    if parsed.cancel is not None:
        report = client.ask(WarmReport, "DELETE", f"/-/warm/{_id(parsed.cancel)}")
        write(job_line(report))
        return DONE
    if parsed.status == "":
        for report in client.ask(WarmJobs, "GET", "/-/warm").jobs:
            write(job_line(report))
        return DONE
    if parsed.status is not None:
        return _follow(_Job(client, _id(parsed.status), write), fail_under, write)
    return _begin(parsed, client, split, write, fail_under)


def _begin(
    parsed: argparse.Namespace,
    client: GatewayClient,
    split: SplitPlace,
    write: Write,
    fail_under: float | None,
) -> int:
    wanted, list_file = _wanted(parsed, split), _list_file(parsed)
    with _lines(list_file) as lines:
        started = client.ask(WarmReport, "POST", "/-/warm", wanted)
        job = _Job(client, started.job_id, write)
        if lines is not None:
            bucket = split(parsed.place)[0] if parsed.place and parsed.place != STANDARD_INPUT else ""
            job.feed(read_entries(lines, bucket, split))
    if parsed.detach:
        write(f"warm-up {started.job_id} runs; forebay warm --status {started.job_id} shows how far it is")
        return DONE
    return _follow(job, fail_under, write)


def _wanted(parsed: argparse.Namespace, split: SplitPlace) -> dict[str, str]:
    """Make the parameters of a new job.

    Raises:
        SettingsError: The flags contradict each other, or one is wrong.
    """
    has_list = _list_file(parsed) is not None
    kind = WarmKind.ORDER if parsed.order else WarmKind.LIST if has_list else WarmKind.PREFIX
    if parsed.order and not has_list:
        raise SettingsError("order: there is no list; allowed: --order with --from FILE, or -")
    place = "" if parsed.place in {None, STANDARD_INPUT} else parsed.place
    if not place and not has_list:
        raise SettingsError("place: nothing to warm; allowed: s3://BUCKET/PREFIX, --from FILE, or -")
    wanted = {"mode": kind.value, "metadata-only": "1" if parsed.metadata_only else "0"}
    if place:
        bucket, prefix = split(place)
        if has_list and prefix:
            raise SettingsError(f"place: {place!r} has a prefix; allowed with a list: s3://BUCKET")
        if not has_list:
            wanted |= {"bucket": bucket, "prefix": prefix}
    numbers = {"concurrency": parsed.concurrency, "ahead": parsed.ahead}
    wanted |= {name: str(_whole(name, text)) for name, text in numbers.items() if text is not None}
    if parsed.ahead_bytes is not None:
        wanted["ahead-bytes"] = str(_size(parsed.ahead_bytes))
    if parsed.idle is not None:
        wanted["idle"] = str(_duration(parsed.idle))
    return wanted


def _list_file(parsed: argparse.Namespace) -> str | None:
    if parsed.list_file is not None:
        return str(parsed.list_file)
    return STANDARD_INPUT if parsed.place == STANDARD_INPUT else None


@contextmanager
def _lines(list_file: str | None) -> Iterator[TextIO | None]:
    """Open the list before the job is begun: one that is not there begins none."""
    if list_file is None:
        yield None
    elif list_file == STANDARD_INPUT:
        yield sys.stdin
    else:
        with Path(list_file).open(encoding="utf-8", newline="\n") as file:
            yield file


class _Line(msgspec.Struct, frozen=True):
    """A line that is JSON."""

    key: str
    bucket: str = ""
    range: str = ""


def read_entries(lines: Iterable[str], bucket: str, split: SplitPlace) -> Iterator[WarmEntry]:
    """Read a list; empty lines are passed over.

    Args:
        lines: A key, an s3:// address, or a JSON object with `key` and perhaps `bucket` and `range` (as the header's value,
            `bytes=0-1023`) each. A key that begins with { or s3:// stands in the second or third form.
        bucket: Of the lines that name none; "" where each has to.
        split: Takes an s3:// address apart.

    Raises:
        SettingsError: A line is none of these, and which.
    """
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\n").removesuffix("\r")
        if text:
            try:
                yield _entry(text, bucket, split)
            except (SettingsError, msgspec.DecodeError) as error:
                raise SettingsError(f"list: line {number} is no name: {error}") from error


def _entry(text: str, bucket: str, split: SplitPlace) -> WarmEntry:
    line = msgspec.json.decode(text, type=_Line) if text.startswith("{") else _Line(text)
    named, key = line.bucket or bucket, line.key
    if key.startswith("s3://") and not line.bucket:
        named, key = split(key)
    if not named or not key:
        raise SettingsError(
            "it names no bucket or no key; allowed: a key with s3://BUCKET given, s3://BUCKET/KEY"
        )
    return WarmEntry(named, key, _range(line.range))


def _range(text: str) -> RangeSpec | None:
    if not text:
        return None
    spec = parse_range(text)
    if spec is None:
        raise SettingsError(f"range {text!r} is none; allowed: bytes=FIRST-LAST")
    return spec


class _Job:
    """One job as its client sees it: fed, asked about, shown."""

    def __init__(self, client: GatewayClient, job_id: int, write: Write) -> None:
        self._client = client
        self.job_id = job_id
        self._write = write
        self._progress = Progress()
        self._is_terminal = sys.stdout.isatty()
        self._told_s = float("-inf")
        self._has_told_room = False
        self._width = 0

    def feed(self, entries: Iterator[WarmEntry]) -> None:
        """Give the job its list, at its pace; a wrong line, or an interruption, ends the job."""
        at = 0
        try:
            for piece, is_last in _pieces(entries):
                while not self._feed(at, piece, is_last=is_last):
                    if self.look().is_over:
                        return
                at += len(piece)
        except (SettingsError, UnicodeDecodeError, KeyboardInterrupt) as error:
            self._client.call("DELETE", f"/-/warm/{self.job_id}")
            if isinstance(error, UnicodeDecodeError):
                raise SettingsError(f"list: it is no UTF-8: {error}") from error
            raise

    def _feed(self, at: int, piece: tuple[WarmEntry, ...], *, is_last: bool) -> bool:
        parameters = {"at": str(at), "last": "1" if is_last else "0"}
        path, document = f"/-/warm/{self.job_id}", msgspec.json.encode(piece)
        try:
            fed = self._client.ask(WarmFed, "POST", path, parameters, document)
        except GatewayError:
            if self._ask(0).is_over:
                return False  # it was ended by somebody else, or nobody reads what it lists
            raise
        return fed.next_at == at + len(piece)

    def look(self) -> WarmReport:
        """Wait a moment for the end of the job, and show how far it is."""
        report = self._ask(STEP_S)
        self._show(report)
        return report

    def _ask(self, wait_s: int) -> WarmReport:
        return self._client.ask(WarmReport, "GET", f"/-/warm/{self.job_id}", {"wait": str(wait_s)})

    def _show(self, report: WarmReport) -> None:
        room = "" if self._has_told_room or not report.is_counted else room_line(report)
        if room:
            self._has_told_room = True
            self.end_line()
            self._write(f"warning: {room}")
        line = self._progress.line(report)
        if self._is_terminal:
            sys.stdout.write(f"\r{line:<{self._width}}")
            sys.stdout.flush()
            self._width = len(line)
        elif report.elapsed_s - self._told_s >= PLAIN_EVERY_S or report.is_over:
            self._told_s = report.elapsed_s
            self._write(line)

    def end_line(self) -> None:
        """End the line of progress on a terminal."""
        if self._width:
            sys.stdout.write("\n")
            self._width = 0


def _pieces(entries: Iterator[WarmEntry]) -> Iterator[tuple[tuple[WarmEntry, ...], bool]]:
    """Cut a list into pieces, and say of each whether it is the last; there is one at least."""
    piece: list[WarmEntry] = []
    for entry in entries:
        if len(piece) == FEED_ENTRIES_MAX:
            yield tuple(piece), False
            piece = []
        piece.append(entry)
    yield tuple(piece), True


def _follow(job: _Job, fail_under: float | None, write: Write) -> int:
    """Show a job until it has ended."""
    try:
        while not (report := job.look()).is_over:
            pass
    except KeyboardInterrupt:
        job.end_line()
        write(f"warm-up {job.job_id} goes on; forebay warm --cancel {job.job_id} ends it")
        return NOT_DONE
    job.end_line()
    return _told(report, fail_under, write)


def _told(report: WarmReport, fail_under: float | None, write: Write) -> int:
    for line in end_lines(report):
        write(line)
    if report.phase is WarmPhase.FAILED:
        sys.stderr.write(f"forebay: warm-up {report.job_id} failed: {report.error}\n")
        return NOT_DONE
    if report.phase is WarmPhase.CANCELLED:
        sys.stderr.write(f"forebay: warm-up {report.job_id} was cancelled\n")
        return NOT_DONE
    if fail_under is None:
        return TOO_COLD if report.results.get(WarmResult.FAILED, 0) else DONE
    return DONE if report.percent_warm >= fail_under else TOO_COLD


def _id(text: str) -> int:
    return _whole("id", text)


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:18]) > 0):
        raise SettingsError(f"{name}: {text!r} is wrong; allowed: a whole number from 1")
    return int(text)


def _percent(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise SettingsError(f"fail-under: {text!r} is wrong; allowed: 0 to 100")
    return value


def _size(text: str) -> int:
    try:
        return max(1, parse_size(text))
    except ValueError as error:
        raise SettingsError(f"ahead-bytes: {text!r} is wrong; allowed: a size such as 1GiB") from error


def _duration(text: str) -> int:
    try:
        return max(1, round(parse_duration(text)))
    except ValueError as error:
        raise SettingsError(f"idle: {text!r} is wrong; allowed: a duration such as 60s or 2h") from error
