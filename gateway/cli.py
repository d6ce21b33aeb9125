"""The command line: `forebay serve`, `demo`, `fsck`, and what speaks to a running gateway.

Exit status: 0 done; 1 not done, with the reason on standard error; 2 wrong use or wrong settings; 3 a warm-up ended with less
warm than was asked for.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn

from gateway import app, demo, proof_commands
from gateway.admin import Changed, ExplainedObject, ReloadReport
from gateway.client import GatewayClient, GatewayError
from gateway.explain import PolicyExplanation, explain, explanation_lines
from gateway.fsck_command import FsckRequest, add_fsck_flags, run_fsck
from gateway.ledger.entries import LedgerError
from gateway.object_lines import object_lines
from gateway.proof_commands import Place
from gateway.readable import readable, readable_time
from gateway.s3_endpoint import EndpointError
from gateway.setting_rows import TABLE
from gateway.settings import Settings, SettingsError, load
from gateway.tls import CertificateError
from gateway.warm_command import add_warm_flags, run_warm
from gateway.warm_progress import job_line
from storage.clock import SystemClock
from storage.errors import StorageError
from storage.requests import BarrierReport, PendingLine, PublishReport, StatusReport
from storage.types import ObjectName
from storage.words import in_words

DONE: Final = 0
NOT_DONE: Final = 1
WRONG_USE: Final = 2

WAIT_STEP_S: Final = 5
"""A barrier is asked about this often."""

PUBLISH_STEP_S: Final = 1

_PLACE: Final = re.compile(r"s3://(?P<bucket>[^/]+)(?:/(?P<key>.*))?", re.DOTALL)

Command = Callable[[argparse.Namespace, Settings], int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments, os.environ))


def execute(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one command; give its exit status. Expected failures become one line on standard error."""
    parsed = _parser().parse_args(arguments)
    try:
        begun = _config_text(parsed.config)

        def read_again() -> Settings:
            return load(_config_file_text(parsed.config, begun), environment, _flags(parsed))

        parsed.read_settings = read_again
        command: Command = parsed.command
        return command(parsed, load(begun, environment, _flags(parsed)))
    except SettingsError as error:
        return _complain(str(error), WRONG_USE)
    except (GatewayError, EndpointError, LedgerError, CertificateError, StorageError, OSError) as error:
        return _complain(str(error), NOT_DONE)
    except KeyboardInterrupt:
        return _complain("interrupted", NOT_DONE)


def _serve(parsed: argparse.Namespace, settings: Settings) -> int:
    settings.check_serving()
    app.run(settings, should_drain=parsed.drain, reread=parsed.read_settings)
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


def _status(parsed: argparse.Namespace, settings: Settings) -> int:
    if parsed.quarantine:
        return _show_pending(_client(settings), "quarantine", None, "quarantined")
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


def _pending(parsed: argparse.Namespace, settings: Settings) -> int:
    return _show_pending(_client(settings), "pending", Place(*_place(parsed.place)), "not at the origin yet")


def _show_pending(client: GatewayClient, verb: str, place: Place | None, what: str) -> int:
    """Write every line of a verb, and how many there were."""
    now_s, count, size = SystemClock().wall_s(), 0, 0
    for line in proof_commands.pending(client, verb, place):
        _say(f"{proof_commands.age(line, now_s):>8}  {pending_line(line)}")
        count, size = count + 1, size + line.size
    _say(f"{count} changes {what}, {readable(size)}")
    return DONE


def _publish(parsed: argparse.Namespace, settings: Settings) -> int:
    (bucket, source), (target_bucket, target) = _place(parsed.place), _place(parsed.target)
    if bucket != target_bucket:
        return _complain("source and target are prefixes of one bucket", WRONG_USE)
    client = _client(settings)
    wanted = {"bucket": bucket, "source": source, "target": target, "copy": "1" if parsed.copy else "0"}
    report = client.ask(PublishReport, "POST", "/-/publish", wanted)
    path, parameters = f"/-/publish/{report.publish_id}", {"wait": str(PUBLISH_STEP_S)}
    while not report.is_over:
        sys.stderr.write(f"\r{report.phase:<9} {report.done} of {report.total or '?'} ")
        sys.stderr.flush()
        report = client.ask(PublishReport, "GET", path, parameters)
    sys.stderr.write("\n")
    for line in publish_lines(report):
        _say(line)
    return _complain(report.error, NOT_DONE) if report.error else DONE


def publish_lines(report: PublishReport) -> list[str]:
    """Write for people how a publish ended."""
    source, target = (f"s3://{report.bucket}/{prefix}" for prefix in (report.source, report.target))
    if report.error:
        return [f"not copied  {line}" for line in report.failures]
    if report.is_copy:
        extra = f"; {report.extra} other objects lie there" if report.extra else ""
        return [f"{report.keys} objects copied from {source} to {target}{extra}"]
    return [
        f"{target} shows {source}: generation {report.generation}, {report.keys} objects, {report.digest}"
    ]


def _warm(parsed: argparse.Namespace, settings: Settings) -> int:
    return run_warm(parsed, _client(settings), _place, _say)


def _retry(parsed: argparse.Namespace, settings: Settings) -> int:
    bucket, key = _place(parsed.place)
    is_one_key = bool(key) and not key.endswith("/") and not parsed.prefix
    parameters = {"bucket": bucket, "key" if is_one_key else "prefix": key}
    changed = _client(settings).ask(Changed, "POST", "/-/retry", parameters).changed
    where = "of" if is_one_key else "under"
    _say(f"{changed} refused changes {where} {parsed.place} go back to the flush queue")
    return DONE


def _discard(parsed: argparse.Namespace, settings: Settings) -> int:
    place, client = Place(*_place(parsed.place)), _client(settings)
    if not place.prefix and not parsed.prefix:
        return _complain(
            "discard takes one object, s3://BUCKET/KEY, or --prefix for all under one", WRONG_USE
        )
    refused = proof_commands.quarantined(client, place, is_prefix=parsed.prefix)
    for line in refused[: proof_commands.SHOWN_MAX]:
        _say(pending_line(line))
    if len(refused) > proof_commands.SHOWN_MAX:
        _say(f"and {len(refused) - proof_commands.SHOWN_MAX} more")
    if not refused:
        return _complain(f"nothing that the origin refused is at {place}; nothing was discarded", NOT_DONE)
    if not parsed.yes:
        return _complain(f"these {len(refused)} changes would be lost for good: say --yes", WRONG_USE)
    count, size = proof_commands.discard(client, refused)
    _say(f"{count} changes discarded, {readable(size)} lost; the origin holds what it held before them")
    if count < len(refused):
        left = len(refused) - count
        return _complain(
            f"{left} of those listed were not discarded: they were replaced, sent or retried since", NOT_DONE
        )
    return DONE


def _reload(_parsed: argparse.Namespace, settings: Settings) -> int:
    report = _client(settings).ask(ReloadReport, "POST", "/-/reload")
    if not report.is_taken:
        return _complain(f"not reloaded: {report.reason}", NOT_DONE)
    _say(f"reloaded; changed: {', '.join(report.changed) or 'nothing'}")
    if report.needs_restart:
        _say(f"needs a restart: {', '.join(report.needs_restart)}")
    for warning in report.warnings:
        _say(f"warning: {warning}")
    return DONE


def _explain(parsed: argparse.Namespace, settings: Settings) -> int:
    bucket, key = _place(parsed.place)
    if parsed.offline:
        told = explain(settings, ObjectName(bucket, key), None, "only a running gateway knows")
    else:
        told = _client(settings).ask(PolicyExplanation, "GET", "/-/policy", {"bucket": bucket, "key": key})
    for line in explanation_lines(told):
        _say(line)
    return DONE


def _explain_object(parsed: argparse.Namespace, settings: Settings) -> int:
    bucket, key = _place(parsed.place)
    if not key:
        return _complain(
            "explain takes one object, s3://BUCKET/KEY; forebay policy explain takes a bucket", WRONG_USE
        )
    told = _client(settings).ask(ExplainedObject, "GET", "/-/object", {"bucket": bucket, "key": key})
    lines = object_lines(told.object)
    if told.policy is not None:
        lines += explanation_lines(told.policy)[1:]
    for line in lines:
        _say(line)
    return DONE


def _ledger(parsed: argparse.Namespace, settings: Settings) -> int:
    place = Place(*_place(parsed.place))
    return DONE if proof_commands.ledger(parsed, place, settings, _say) else NOT_DONE


def _verify(parsed: argparse.Namespace, settings: Settings) -> int:
    place = Place(*_place(parsed.place))
    is_complete = proof_commands.verify(parsed, place, _client(settings), settings, _say)
    return DONE if is_complete else NOT_DONE


def status_lines(report: StatusReport) -> list[str]:
    """Write a status for people."""
    used = f"{readable(report.cache_used_bytes)} of {readable(report.cache_capacity_bytes)}"
    pending = f"{report.pending_objects} pending, {readable(report.pending_bytes)}"
    uploads = f"{report.open_uploads} open uploads"
    if report.open_upload_bytes:
        uploads += (
            f" of {readable(report.open_upload_bytes)}, {readable(report.early_bytes)} at the origin already"
        )
    state = "draining" if report.is_draining else "serving" if report.is_writable else "read-only"
    lines = [
        f"{state}{f': {report.failure}' if report.failure else ''}",
        f"origin      {report.origin}, {report.origin_requests} requests, {report.origin_throttled} throttled",
        f"cache       {used}, {readable(report.cache_dirty_bytes)} dirty",
        f"hit ratio   {report.hit_ratio_requests:.1%} of requests, {report.hit_ratio_bytes:.1%} of bytes (5 minutes)",
        f"write-back  {pending}, oldest {report.oldest_pending_s:.1f} s, {uploads}",
        f"instance    {report.instance_id}, epoch {report.epoch}",
        scrub_line(report),
    ]
    if report.settings_failure:
        lines.append(f"settings    not reloaded: {report.settings_failure}")
    if report.reopenings:
        lines.append(f"re-opened   {report.reopenings} times since the start, after failures of the disk")
    if report.lost_before:
        lines.append(
            f"lost        {report.lost_before} times, named by `forebay fsck` and in quarantine/*/losses.json"
        )
    lines += [f"degraded    {reason}" for reason in report.degraded]
    lines += [job_line(job) for job in report.warm_jobs]
    lines += [f"unreadable  {name}: {reason}" for name, reason in report.unreadable]
    lines += [f"suspended   {bucket}: {reason}" for bucket, reason in report.suspended_buckets]
    lines += [
        f"unguarded   {bucket}: the origin ignores conditions of writes, so on_conflict = quarantine can miss another writer"
        for bucket in report.ignoring_conditions
    ]
    lines += [
        f"published   s3://{one.bucket}/{one.target} shows {one.source}, generation {one.generation}"
        for one in report.pointers
    ]
    lines += [
        f"hidden      s3://{bucket}/{key} is acknowledged and lies under a published target"
        for bucket, key in report.hidden
    ]
    lines += [pending_line(line) for line in report.quarantined]
    return lines


def scrub_line(report: StatusReport) -> str:
    """Write how far the scrub is, and what it found."""
    if not report.scrub_bytes_per_s:
        return "scrub       off"
    done = "no round done yet"
    if report.scrub_done_at_s:
        done = f"last whole round {readable_time(report.scrub_done_at_s)}"
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
        why = in_words(error) if isinstance(error, OSError) else "it is no UTF-8"
        raise SettingsError(f"config ({path}): cannot be read: {why}; allowed: a TOML file") from error


def _config_file_text(path: str | None, begun: str | None) -> str | None:
    """Read the file again. A pipe, which a start may read once, has no end that a running gateway could wait for.

    One that is empty, and was not when the gateway began with the text `begun`, is being written or was cut by a full disk: it says
    nothing, least of all that there are no keys and no policies any more.
    """
    if path is not None and Path(path).exists() and not Path(path).is_file():
        raise SettingsError(f"config ({path}): cannot be read again; allowed: a file")
    text = _config_text(path)
    if text is not None and not text.strip() and (begun or "").strip():
        raise SettingsError(
            f"config ({path}): is empty; allowed: the settings, or a comment if there are none"
        )
    return text


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
    status = _add(commands, "status", _status, "show how a running gateway is")
    status.add_argument(
        "--quarantine", action="store_true", help="list all that the origin refused, with reasons and ages"
    )
    pending = _add(commands, "pending", _pending, "list what is acknowledged and not at the origin yet")
    pending.add_argument("place", metavar="s3://BUCKET/PREFIX")
    flush = _add(commands, "flush", _flush, "flush what is acknowledged under a prefix")
    flush.add_argument("place", metavar="s3://BUCKET/PREFIX")
    flush.add_argument(
        "--wait", action="store_true", help="return when it is at the origin, or list what is not"
    )
    publish = _add(commands, "publish", _publish, "show a prefix under a published target, all at once")
    publish.add_argument("place", metavar="s3://BUCKET/SOURCE/")
    publish.add_argument("--as", dest="target", metavar="s3://BUCKET/TARGET/", required=True)
    publish.add_argument(
        "--copy", action="store_true", help="make real objects at the target instead, one by one"
    )
    add_warm_flags(
        _add(commands, "warm", _warm, "bring into the cache what will be read: a prefix, or a list of keys")
    )
    retry = _add(commands, "retry", _retry, "send again what the origin refused")
    retry.add_argument("place", metavar="s3://BUCKET/KEY")
    retry.add_argument(
        "--prefix",
        action="store_true",
        help="all that begin so, as for a place that ends with / or is a bucket",
    )
    discard = _add(commands, "discard", _discard, "give up what the origin refused; it is lost")
    discard.add_argument("place", metavar="s3://BUCKET/KEY")
    discard.add_argument("--prefix", action="store_true", help="all under s3://BUCKET/PREFIX, not one object")
    discard.add_argument("--yes", action="store_true", help="yes, lose it")
    _add(commands, "reload", _reload, "have a running gateway read its settings again, as SIGHUP does")
    policy = _add(commands, "policy", _explain, "say which policy applies to an object, and why")
    policy.add_argument("verb", choices=["explain"])
    policy.add_argument("place", metavar="s3://BUCKET/KEY")
    policy.add_argument(
        "--offline", action="store_true", help="answer from the settings, without a running gateway"
    )
    explained = _add(
        commands, "explain", _explain_object, "say what is cached of an object, and why not more"
    )
    explained.add_argument("place", metavar="s3://BUCKET/KEY")
    _add_proofs(commands)
    add_fsck_flags(
        _add(commands, "fsck", _fsck, "check a cache directory that no gateway has open, or repair it")
    )
    return parser


def _add_proofs(commands: "argparse._SubParsersAction[_Parser]") -> None:
    """Add the commands that prove what the gateway promises."""
    verify = _add(commands, "verify", _verify, "prove that the origin alone holds what is acknowledged")
    verify.add_argument("place", metavar="s3://BUCKET/PREFIX")
    verify.add_argument(
        "--deep", action="store_true", help="compare headers and metadata too, by a HEAD each"
    )
    verify.add_argument("--bytes", action="store_true", help="read every object from the origin and hash it")
    ledger = _add(
        commands,
        "ledger",
        _ledger,
        "write a load and a record of what was acknowledged, or check that record",
    )
    ledger.add_argument("action", choices=("write", "check"))
    ledger.add_argument("place", metavar="s3://BUCKET/PREFIX")
    ledger.add_argument("--ledger", metavar="FILE", help="the record; keep it on another machine or disk")
    ledger.add_argument("--seconds", metavar="N", default="60s", help="write: for how long (default: 60s)")
    ledger.add_argument("--clients", metavar="N", default="8", help="write: how many at once (default: 8)")
    ledger.add_argument(
        "--max-size", metavar="SIZE", default="1MiB", help="write: largest body (default: 1MiB)"
    )
    ledger.add_argument(
        "--at-origin", action="store_true", help="check: ask the origin itself, after a flush"
    )


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
