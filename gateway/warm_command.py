"""`forebay warm`: begin a warm-up in a running gateway, give it its list, and show how far it is.

Exit status, beside 1 and 2 as everywhere: 0 the job has ended and enough is warm; 3 it has ended, and less is warm than `--fail-under`
asks for, or, without that, something failed. The job runs in the gateway: when the command is interrupted it goes on, with as much of its
list as it was given. While it gives the list, the command holds the job by an open request, so that the gateway sees when it has gone.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from gateway.client import GatewayClient, GatewayError, HeldAnswer
from gateway.setting_values import parse_duration, parse_size
from gateway.settings import SettingsError
from gateway.warm_list import SplitPlace, WarmList
from gateway.warm_progress import Progress, end_lines, job_line, room_line
from storage.clock import SystemClock
from storage.warm_jobs import (
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

NOT_FOUND: Final = 404

STEP_S: Final = 1
PLAIN_EVERY_S: Final = 10.0
"""A line of progress, where it does not go to a terminal."""

HOLD_S: Final = 10
"""When the command has gone in the middle of its list, or a proxy has cut its request, the job waits so long for it to come back."""

STANDARD_INPUT: Final = "-"

Write = Callable[[str], None]


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

    Raises:
        SettingsError: Wrong use, or a line of the list is no name.
        GatewayError: The gateway does not answer, refuses, or knows the job no more.
    """
    try:
        return _run(parsed, client, split, write)
    except GatewayError as error:
        if error.status != NOT_FOUND:
            raise
        text = "the gateway knows no such warm-up: it ended long ago, or the gateway was started anew since"
        raise GatewayError(text, error.status) from error


def _run(parsed: argparse.Namespace, client: GatewayClient, split: SplitPlace, write: Write) -> int:
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
    with _opened(list_file) as descriptor:
        started = client.ask(WarmReport, "POST", "/-/warm", wanted)
        job = _Job(client, started.job_id, write, is_shown=not parsed.detach)
        if descriptor is not None:
            bucket = split(parsed.place)[0] if parsed.place and parsed.place != STANDARD_INPUT else ""
            try:
                job.feed(WarmList(descriptor, bucket, split, SystemClock()))
            except KeyboardInterrupt:
                job.end_line()
                write(
                    f"warm-up {job.job_id} fetches what it was given; forebay warm --cancel {job.job_id} ends it"
                )
                return NOT_DONE
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
    if has_list:
        wanted["hold"] = str(HOLD_S)
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
def _opened(list_file: str | None) -> Iterator[int | None]:
    """Open the list before the job is begun: one that is not there begins none."""
    if list_file is None:
        yield None
    elif list_file != STANDARD_INPUT:
        with Path(list_file).open("rb", buffering=0) as file:
            yield file.fileno()
    elif sys.stdin is None:
        raise SettingsError("list: standard input is closed; allowed: a list there, or --from FILE")
    else:
        yield sys.stdin.fileno()


class _Held:
    """The request that holds a job while its list is given; begun again where something between here and the gateway has cut it."""

    def __init__(self, client: GatewayClient, job_id: int) -> None:
        self._client = client
        self._path = f"/-/warm/{job_id}/hold"
        self._answer: HeldAnswer | None = None

    def keep(self) -> None:
        """See that the job is held.

        Raises:
            GatewayError: The gateway does not answer, or knows the job no more.
        """
        if self._answer is None or not self._answer.is_open():
            self.close()
            self._answer = self._client.hold(self._path)

    def close(self) -> None:
        """Let go."""
        if self._answer is not None:
            self._answer.close()
            self._answer = None


class _Job:
    """One job as its client sees it: fed, asked about, shown."""

    def __init__(self, client: GatewayClient, job_id: int, write: Write, *, is_shown: bool = True) -> None:
        self._client = client
        self.job_id = job_id
        self._is_shown = is_shown
        self._write = write
        self._progress = Progress()
        self._clock = SystemClock()
        self._looked_at_s = self._clock.monotonic_s()
        self._is_terminal = sys.stdout.isatty()
        self._told_s = float("-inf")
        self._has_told_room = False
        self._width = 0

    def feed(self, given: WarmList) -> None:
        """Give the job its list as it comes, and at the job's pace; a wrong line ends the job.

        Raises:
            SettingsError: A line is no name.
            GatewayError: The gateway does not answer, or refuses.
        """
        at = 0
        with closing(_Held(self._client, self.job_id)) as held:
            while True:
                held.keep()
                piece = self._next_piece(given)
                if (piece or given.has_ended) and not self._give(at, piece, held, is_last=given.has_ended):
                    return
                at += len(piece)
                if given.has_ended:
                    return
                if self._clock.monotonic_s() - self._looked_at_s >= STEP_S and self.look(0).is_over:
                    return

    def _next_piece(self, given: WarmList) -> tuple[WarmEntry, ...]:
        try:
            return given.piece(STEP_S)
        except SettingsError:
            with suppress(GatewayError):
                self._client.call("DELETE", f"/-/warm/{self.job_id}")
            raise

    def _give(self, at: int, piece: tuple[WarmEntry, ...], held: _Held, *, is_last: bool) -> bool:
        """Give a piece once the job has room for it; False where the job has ended."""
        while not self._feed(at, piece, is_last=is_last):
            held.keep()
            if self.look(STEP_S).is_over:
                return False
        return True

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

    def look(self, wait_s: int) -> WarmReport:
        """Wait a moment for the end of the job, and show how far it is."""
        report = self._ask(wait_s)
        self._looked_at_s = self._clock.monotonic_s()
        if self._is_shown:
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


def _follow(job: _Job, fail_under: float | None, write: Write) -> int:
    """Show a job until it has ended."""
    try:
        while not (report := job.look(STEP_S)).is_over:
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
