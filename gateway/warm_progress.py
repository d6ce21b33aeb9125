"""What is told of a warm-up while it runs and when it has ended. Pure text."""

from collections import deque
from typing import Final

from gateway.readable import readable
from storage.warm_jobs import WarmKind, WarmPhase, WarmReport, WarmResult

RATE_S: Final = 15.0
"""Rates are of about so many seconds."""

REPORTS_MAX: Final = 64


class Progress:
    """Rate and time left of one job, from the reports on it as they come."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int, int]] = deque(maxlen=REPORTS_MAX)

    def line(self, report: WarmReport) -> str:
        """Say in one line how far a job is; each report counts once."""
        self._seen.append((report.elapsed_s, report.seen_objects, report.warm_bytes, report.brought_bytes))
        while len(self._seen) > 2 and self._seen[-1][0] - self._seen[0][0] > RATE_S:
            self._seen.popleft()
        parts = [objects_text(report)]
        if report.kind is WarmKind.ORDER:
            parts.append(f"reads at {report.position}, {readable(report.ahead_bytes)} ahead")
        elif report.known_bytes:
            of = f"{readable(report.known_bytes)}{'' if report.is_counted else '+'}"
            parts.append(f"{readable(report.warm_bytes)} of {of}")
        objects_per_s, _, fetched_per_s = self._rates()
        parts += [f"{objects_per_s:.0f} objects/s", f"{readable(int(fetched_per_s))}/s"]
        left_s = self.left_s(report)
        if left_s is not None:
            parts.append(f"ETA {duration_text(left_s)}")
        return ", ".join(parts)

    def left_s(self, report: WarmReport) -> float | None:
        """Estimate the seconds left, of the reports so far; None where nobody can tell."""
        if not report.is_counted or report.is_over or report.kind is WarmKind.ORDER:
            return None
        objects_per_s, bytes_per_s, _ = self._rates()
        left_objects = report.known_objects - report.seen_objects
        left_bytes = max(0, min(report.known_bytes, report.room_bytes) - report.warm_bytes)
        if not objects_per_s:
            return None
        by_bytes = left_bytes / bytes_per_s if bytes_per_s else 0.0
        return max(left_objects / objects_per_s, by_bytes) if left_objects else 0.0

    def _rates(self) -> tuple[float, float, float]:
        """Give objects, bytes that are warm, and bytes fetched a second."""
        first, last = self._seen[0], self._seen[-1]
        if len(self._seen) == 1:
            first = (0.0, 0, 0, 0)
        elapsed_s = last[0] - first[0]
        if elapsed_s <= 0:
            return 0.0, 0.0, 0.0
        return (
            (last[1] - first[1]) / elapsed_s,
            (last[2] - first[2]) / elapsed_s,
            (last[3] - first[3]) / elapsed_s,
        )


def objects_text(report: WarmReport) -> str:
    """Say how many objects a job is done with, of how many."""
    of = f"{report.known_objects}{'' if report.is_counted else '+'}"
    return f"{report.seen_objects} of {of} objects"


def room_line(report: WarmReport) -> str:
    """Say what will not fit; "" where all of it will, as far as it is known, and of an order, which never holds all."""
    over = report.known_bytes - report.room_bytes
    if over <= 0 or report.kind is WarmKind.ORDER:
        return ""
    return (
        f"{readable(report.known_bytes)} are known and the cache has room for {readable(report.room_bytes)}: "
        f"{readable(over)} will not fit"
    )


def job_line(report: WarmReport) -> str:
    """Say of one of several jobs what it is and how far."""
    return (
        f"warm-up {report.job_id:<3} {report.phase.value:<9} {report.place}: {objects_text(report)}, "
        f"{readable(report.brought_bytes)} fetched"
    )


def end_lines(report: WarmReport) -> list[str]:
    """Say how a job ended, and of its failures which kinds there were and the first by name."""
    results = {result: report.results.get(result, 0) for result in WarmResult}
    parts = [
        f"{results[WarmResult.BROUGHT]} fetched ({readable(report.brought_bytes)})",
        f"{results[WarmResult.SKIPPED]} were here",
    ]
    if results[WarmResult.UNFIT]:
        parts.append(f"{results[WarmResult.UNFIT]} did not fit")
    if results[WarmResult.PASSED]:
        parts.append(f"{results[WarmResult.PASSED]} were read first")
    if results[WarmResult.FAILED]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.failures.items()))
        parts.append(f"{results[WarmResult.FAILED]} failed ({kinds})")
    share = f"{report.warm_objects} of {report.known_objects} objects warm ({percent_text(report)})"
    lines = [f"{share}: {', '.join(parts)}"]
    if report.phase is WarmPhase.IDLE:
        lines.append(f"nobody reads the list any more; the reads had come to {report.position}")
    lines += [f"not warm    {example}" for example in report.examples]
    more = results[WarmResult.FAILED] - len(report.examples)
    return [*lines, f"not warm    and {more} more"] if more > 0 else lines


def percent_text(report: WarmReport) -> str:
    """Write the share that is warm; never rounded up to all."""
    hundredths = int(100 * report.percent_warm)
    return f"{hundredths // 100}.{hundredths % 100:02}%"


def duration_text(seconds: float) -> str:
    """Write a time as H:MM:SS, or M:SS under an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
