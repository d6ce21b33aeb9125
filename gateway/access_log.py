"""One JSON line a request, written by a thread, never waited for by a request.

The event loop encodes each entry into a buffer. `run`, one task, hands the buffer to a worker thread once a second, or as soon
as 64 KiB have gathered; while the thread writes, a new buffer fills. Where the disk is slower than the requests for so long
that BUFFER_BYTES_MAX is reached, entries are dropped and counted: a log must not stop the service.

A failed write drops its bytes and counts them as lost; the next one is tried again, so a full disk that is cleared, or a log
file moved away and the directory put back, heals by itself.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from gateway.telemetry import RequestStats
from storage.workers import Workers

WRITE_BYTES: Final = 64 * 1024
"""So much is gathered before the thread is woken early."""

WRITE_EVERY_S: Final = 1.0
"""A line is in the file at most about this long after its request."""

BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Some 10,000 lines; past it entries are dropped."""

_log = logging.getLogger(__name__)


class AccessEntry(msgspec.Struct, frozen=True, gc=False):
    """One answered request.

    Attributes:
        time: Wall time of the request's head, seconds.
        access_key: Id of the key that signed; "" for an anonymous request, and for one whose signature was not good.
        cache: The value of x-cache, "" where the answer had none.
        bytes_in: Payload bytes received, without transfer framing.
        bytes_out: Body bytes sent, which may be fewer than announced where the connection broke.
        origin_s: Time spent in calls of the origin made for this request.
        limiter_s: Time that they waited for their turn before it.
        is_cut: The connection was ended before the answer was complete.
    """

    time: float
    request_id: str
    remote: str
    method: str
    operation: str
    bucket: str
    key: str
    status: int
    code: str
    cache: str
    bytes_in: int
    bytes_out: int
    origin_s: float
    duration_s: float
    access_key: str = ""
    is_cut: bool = False
    limiter_s: float = 0.0


class AccessLog:
    """Gathers entries and has them written to `target`: a file to append to, `-` for standard output, "" for nowhere."""

    def __init__(self, target: str, workers: Workers, stats: RequestStats) -> None:
        self._target: Final = target
        self._workers: Final = workers
        self._stats: Final = stats
        self._encoder: Final = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._lines = 0
        self._is_due = asyncio.Event()

    def record(self, entry: AccessEntry) -> None:
        """Take one entry; returns at once, whatever the disk does."""
        if not self._target:
            return
        if len(self._buffer) >= BUFFER_BYTES_MAX:
            self._stats.access_log_dropped += 1
            return
        self._encoder.encode_into(entry, self._buffer, -1)
        self._buffer += b"\n"
        self._lines += 1
        if len(self._buffer) >= WRITE_BYTES:
            self._is_due.set()

    async def run(self) -> None:
        """Write what gathers until cancelled; the owner then calls `flush` once more."""
        if not self._target:
            return
        while True:
            try:
                async with asyncio.timeout(WRITE_EVERY_S):
                    await self._is_due.wait()
            except TimeoutError:
                pass
            await self.flush()

    async def flush(self) -> None:
        """Have all that is gathered written; returns when the thread has done it or failed."""
        self._is_due.clear()
        if not self._buffer:
            return
        lines, data = self._lines, self._buffer
        self._lines, self._buffer = 0, bytearray()
        try:
            await self._workers.run(_append, self._target, data)
        except OSError as error:
            self._stats.access_log_dropped += lines
            _log.error("access log %s: %s; %d lines are lost", self._target, error.strerror, lines)


def _append(target: str, data: bytearray) -> None:
    # Opened for each write, once a second: a rotated log needs no signal.
    if target == "-":
        _write_all(sys.stdout.fileno(), data)
        return
    with Path(target).open("ab", buffering=0) as file:
        _write_all(file.fileno(), data)


def _write_all(fd: int, data: bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
