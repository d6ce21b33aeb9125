"""The command line: `forebay serve`, `demo`, `fsck`, and what speaks to a running gateway.

Exit status: 0 done; 1 not done, with the reason on standard error; 2 wrong use or wrong settings.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn

from gateway import app, demo
from gateway.client import GatewayClient, GatewayError
from gateway.fsck_command import FsckRequest, add_fsck_flags, readable, run_fsck
from gateway.setting_rows import TABLE
from gateway.settings import Settings, SettingsError, load
from gateway.tls import CertificateError
from storage.clock import SystemClock
from storage.errors import StorageError
from storage.requests import BarrierReport, PendingLine, StatusReport

DONE: Final = 0
NOT_DONE: Final = 1
WRONG_USE: Final = 2

WAIT_STEP_S: Final = 5
"""A barrier is asked about this often."""

_PLACE: Final = re.compile(r"s3://(?P<bucket>[^/]+)(?:/(?P<key>.*))?", re.DOTALL)

Command = Callable[[argparse.Namespace, Settings], int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments, os.environ))


def execute(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one command; give its exit status. Expected failures become one line on standard error."""
    parsed = _parser().parse_args(arguments)
    try:
        settings = load(_config_text(parsed.config), environment, _flags(parsed))
        command: Command = parsed.command
        return command(parsed, settings)
    except SettingsError as error:
        return _complain(str(error), WRONG_USE)
    except (GatewayError, CertificateError, StorageError, OSError) as error:
        return _complain(str(error), NOT_DONE)
    except KeyboardInterrupt:
        return _complain("interrupted", NOT_DONE)


def _serve(parsed: argparse.Namespace, settings: Settings) -> int:
    settings.check_serving()
    app.run(settings, should_drain=parsed.drain)
    return DONE


def _demo(_parsed: argparse.Namespace, settings: Settings) -> int:
    demo.run(settings, write=_say)
    return DONE


def _fsck(parsed: argparse.Namespace, settings: Settings) -> int:
    if not settings.cache_dir:
        raise SettingsError("cache_dir: not set; use --cache-dir or FOREBAY_CACHE_DIR; allowed: a directory")
    wanted = FsckRequest(
        should_repair=parsed.repair,
        is_dry=parsed.dry_run,
        should_refetch=parsed.refetch,
        verify_clean=parsed.verify_clean,
        is_json=parsed.json,
    )
    wrong = wanted.wrong_use()
    if wrong:
        return _complain(wrong, WRONG_USE)
    return run_fsck(wanted, settings, _say)


def _status(_parsed: argparse.Namespace, settings: Settings) -> int:
    for line in status_lines(_client(settings).ask(StatusReport, "GET", "/-/status")):
        _say(line)
    return DONE


def _flush(parsed: argparse.Namespace, settings: Settings) -> int:
    client = _client(settings)
    bucket, prefix = _place(parsed.place)
    report = client.ask(BarrierReport, "POST", "/-/flush", {"bucket": bucket, "prefix": prefix})
    if not parsed.wait:
        _say(f"barrier {report.barrier_id}: {report.remaining} changes to flush")
        return DONE
    path, parameters = f"/-/flush/{report.barrier_id}", {"wait": str(WAIT_STEP_S)}
    # Lines that are blocked come only once all that is left will not get there without help.
    while not (report.is_reached or report.blocked):
        report = client.ask(BarrierReport, "GET", path, parameters)
        sys.stderr.write(f"\r{report.total - report.remaining} of {report.total} flushed ")
        sys.stderr.flush()
    sys.stderr.write(f"\r{report.total - report.remaining} of {report.total} flushed\n")
    for line in report.blocked:
        _say(pending_line(line))
    return DONE if report.is_reached else NOT_DONE


def _retry(parsed: argparse.Namespace, settings: Settings) -> int:
    bucket, prefix = _place(parsed.place)
    answer = _client(settings).call("POST", "/-/retry", {"bucket": bucket, "prefix": prefix})
    _say(answer.decode().strip())
    return DONE


def _discard(parsed: argparse.Namespace, settings: Settings) -> int:
    bucket, key = _place(parsed.place)
    if not key:
        return _complain("discard takes one object: s3://BUCKET/KEY", WRONG_USE)
    if not parsed.yes:
        return _complain(f"{parsed.place} would be lost for good: say --yes", WRONG_USE)
    answer = _client(settings).call("POST", "/-/discard", {"bucket": bucket, "key": key})
    _say(answer.decode().strip())
    return DONE


def status_lines(report: StatusReport) -> list[str]:
    """Write a status for people."""
    used = f"{readable(report.cache_used_bytes)} of {readable(report.cache_capacity_bytes)}"
    pending = f"{report.pending_objects} pending, {readable(report.pending_bytes)}"
    state = "draining" if report.is_draining else "serving" if report.is_writable else "read-only"
    lines = [
        f"{state}{f': {report.failure}' if report.failure else ''}",
        f"origin      {report.origin}, {report.origin_requests} requests, {report.origin_throttled} throttled",
        f"cache       {used}, {readable(report.cache_dirty_bytes)} dirty",
        f"hit ratio   {report.hit_ratio_requests:.1%} of requests, {report.hit_ratio_bytes:.1%} of bytes (5 minutes)",
        f"write-back  {pending}, oldest {report.oldest_pending_s:.1f} s, {report.open_uploads} open uploads",
        f"instance    {report.instance_id}, epoch {report.epoch}",
        scrub_line(report),
    ]
    lines += [f"suspended   {bucket}: {reason}" for bucket, reason in report.suspended_buckets]
    lines += [pending_line(line) for line in report.quarantined]
    return lines


def scrub_line(report: StatusReport) -> str:
    """Write how far the scrub is, and what it found."""
    if not report.scrub_bytes_per_s:
        return "scrub       off"
    done = "no round done yet"
    if report.scrub_done_at_s:
        done = f"last whole round {datetime.fromtimestamp(report.scrub_done_at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    total = max(1, report.cache_used_bytes)
    share = min(1.0, report.scrub_round_bytes / total)
    damaged = f"{report.scrub_damaged_clean} clean and {report.scrub_damaged_dirty} dirty blocks damaged"
    return f"scrub       {share:.0%} of this round, {done}, {damaged}"


def pending_line(line: PendingLine) -> str:
    """Write one change that is not at the origin."""
    what = "delete" if line.is_tombstone else readable(line.size)
    return f"{line.state:<11} s3://{line.bucket}/{line.key} ({what}, {line.attempts} attempts): {line.reason}"


def _client(settings: Settings) -> GatewayClient:
    keys = settings.client_keys
    if not keys:
        raise SettingsError(
            "access_key: not set; use FOREBAY_ACCESS_KEY and FOREBAY_SECRET_KEY; allowed: an admin's key"
        )
    key = next((key for key in keys if key.is_admin), keys[0])
    return GatewayClient(settings.endpoint, key.access_key, key.secret_key, SystemClock().wall_s)


def _place(text: str) -> tuple[str, str]:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise SettingsError(f"{text!r} is no place; allowed: s3://BUCKET or s3://BUCKET/PREFIX")
    return match["bucket"], match["key"] or ""


def _config_text(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"config ({path}): cannot be read: {error}; allowed: a TOML file") from error


def _flags(parsed: argparse.Namespace) -> dict[str, str]:
    """Give the settings that were given as flags, as text."""
    given = vars(parsed)
    return {row.name: given[row.name] for row in TABLE if given.get(row.name) is not None}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="forebay", description="An S3-compatible caching proxy gateway.")
    parser.add_argument("--version", action="version", version=f"forebay {version('forebay')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = _add(commands, "serve", _serve, "run the gateway")
    serve.add_argument(
        "--drain", action="store_true", help="at the stop, flush everything to the origin first"
    )
    _add(commands, "demo", _demo, "run the gateway over a throw-away S3 server on this machine")
    _add(commands, "status", _status, "show how a running gateway is")
    flush = _add(commands, "flush", _flush, "flush what is acknowledged under a prefix")
    flush.add_argument("place", metavar="s3://BUCKET/PREFIX")
    flush.add_argument(
        "--wait", action="store_true", help="return when it is at the origin, or list what is not"
    )
    retry = _add(commands, "retry", _retry, "send again what the origin refused")
    retry.add_argument("place", metavar="s3://BUCKET/PREFIX")
    discard = _add(commands, "discard", _discard, "give up what the origin refused of one object; it is lost")
    discard.add_argument("place", metavar="s3://BUCKET/KEY")
    discard.add_argument("--yes", action="store_true", help="yes, lose it")
    add_fsck_flags(
        _add(commands, "fsck", _fsck, "check a cache directory that no gateway has open, or repair it")
    )
    return parser


def _add(
    commands: "argparse._SubParsersAction[_Parser]", name: str, command: Command, summary: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(command=command)
    parser.add_argument("--config", metavar="FILE", help="a TOML file with settings")
    settings = parser.add_argument_group(
        "settings", "from the config file, then FOREBAY_* variables, then these flags"
    )
    for row in TABLE:
        if row.flag:
            text = f"{row.description}; {row.allowed} (default: {row.default or 'none'}; {row.variable})"
            settings.add_argument(row.flag, dest=row.name, metavar="VALUE", help=text.replace("%", "%%"))
    return parser


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage of forty flags before it."""

    def error(self, message: str) -> NoReturn:
        """Write the line and exit."""
        self.exit(WRONG_USE, f"{self.prog}: {message}; see {self.prog} --help\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _complain(message: str, status: int) -> int:
    sys.stderr.write(f"forebay: {message}\n")
    return status
