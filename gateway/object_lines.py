"""What `forebay explain` says of an object, for people. Pure text."""

from typing import Final

from gateway.readable import readable, readable_time
from storage.explained import ObjectReport

RANGES_SHOWN_MAX: Final = 5

_STATES: Final = {
    "unknown": "nothing is known of it here: a read asks the origin",
    "absent": "absent: the origin has said that there is none",
    "clean": "clean: the origin has it too",
    "dirty": "dirty: acknowledged, and not at the origin yet",
    "quarantined": "quarantined: acknowledged, and refused by the origin",
    "deleted": "deleted: acknowledged, and not at the origin yet",
}


def object_lines(report: ObjectReport) -> list[str]:
    """Write what is known of an object: is it here, how much, since when, and why not."""
    lines = [report.place]
    if report.read_as:
        lines.append(_line("read as", report.read_as))
    lines.append(_line("state", _STATES[report.state]))
    if report.acknowledged_at_s:
        how = f", its flush is {report.pending}" if report.pending else ""
        lines.append(_line("acknowledged", f"{_moment(report.acknowledged_at_s, report.now_s)}{how}"))
    if report.version_id:
        lines += _version_lines(report)
    if report.state == "absent":
        lines += _freshness_lines(report)
    if report.why_missing:
        lines.append(_line("why not cached", report.why_missing))
    if report.last_answer is not None:
        last = report.last_answer
        why = f", {last.reason}" if last.reason else ""
        lines.append(_line("last not a hit", f"{last.result.value}{why}, {_moment(last.at_s, report.now_s)}"))
    return lines


def _version_lines(report: ObjectReport) -> list[str]:
    ids = [f"etag {report.etag}"]
    if report.origin_etag not in {"", report.etag}:
        ids.append(f"{report.origin_etag} at the origin")
    if report.origin_version_id:
        ids.append(f"version {report.origin_version_id}")
    lines = [
        _line("version", f"{', '.join(ids)}, {readable_time(report.last_modified_s)}"),
        _line("cached", _cached(report)),
    ]
    if report.pinned_bytes or report.why_not_pinned:
        lines.append(_line("pinned", _pinned(report)))
    return [*lines, *_freshness_lines(report)]


def _freshness_lines(report: ObjectReport) -> list[str]:
    lines = []
    if report.confirmed_at_s:
        lines.append(_line("confirmed", _moment(report.confirmed_at_s, report.now_s)))
    until = f", until {readable_time(report.fresh_until_s)}" if report.fresh_until_s else ""
    fresh = "yes" if report.is_fresh else "no, the origin is asked before it is served"
    lines.append(_line("fresh", f"{fresh}{until}: {report.why_fresh}"))
    if report.covers_until_s:
        end = "without end" if report.covers_until_s < 0 else f"until {readable_time(report.covers_until_s)}"
        lines.append(
            _line("while origin fails", f"served as STALE {end}" if report.state == "clean" else "served")
        )
    return lines


def _cached(report: ObjectReport) -> str:
    share = f"{readable(report.cached_bytes)} of {readable(report.size)}"
    fetched = ", being fetched" if report.is_being_fetched else ""
    if report.cached_bytes == report.size:
        return f"all of it, {readable(report.size)}"
    if not report.ranges:
        return f"its metadata only, 0 of {readable(report.size)}{fetched}"
    shown = ", ".join(f"{start}-{stop - 1}" for start, stop in report.ranges[:RANGES_SHOWN_MAX])
    more = report.range_count - min(RANGES_SHOWN_MAX, len(report.ranges))
    return f"{share}: bytes {shown}{f' and {more} more ranges' if more > 0 else ''}{fetched}"


def _pinned(report: ObjectReport) -> str:
    why = f": {report.why_not_pinned}" if report.why_not_pinned else ""
    return f"{readable(report.pinned_bytes)} of what is cached{why}"


def _line(name: str, text: str) -> str:
    return f"{name:<20} {text}"


def _moment(at_s: float, now_s: float) -> str:
    return f"{readable_time(at_s)}, {max(0.0, now_s - at_s):.0f} s ago"
