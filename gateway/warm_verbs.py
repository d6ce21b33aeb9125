"""The verbs of warm-ups: `/-/warm`. Which request is which stands at the head of `gateway/admin.py`."""

import asyncio
from typing import Final

import msgspec

from gateway.context import RequestBody, S3Response
from gateway.s3.errors import invalid_argument
from gateway.s3.request import S3Request, is_bucket_name
from gateway.verb_parameters import not_allowed, number, optional, optional_number, required, truth
from storage.types import KEY_BYTES_MAX, MIB, CacheResult
from storage.warm_job import Hold
from storage.warm_jobs import (
    AHEAD_BYTES,
    AHEAD_OBJECTS,
    CONCURRENCY,
    FEED_ENTRIES_MAX,
    IDLE_S,
    WarmEntry,
    WarmFed,
    WarmJobs,
    WarmKind,
    WarmRequest,
)
from storage.warmer import Warmer

PIECE_BYTES_MAX: Final = 8 * MIB
"""A piece of a list: FEED_ENTRIES_MAX keys, each of whose bytes JSON may write as six characters."""

BLANKS_EVERY_S: Final = 10.0
"""Well under the time that proxies wait for the next byte of an answer."""

_HOLD: Final = "/hold"

assert FEED_ENTRIES_MAX * 6 * KEY_BYTES_MAX < PIECE_BYTES_MAX, "a piece of the longest keys is taken"


class HeldBody:
    """`storage.requests.Body` of the answer to who holds a job: it tells nothing, and its connection is what counts.

    The first blank comes at once, so that the client knows that it holds the job. `close` lets go, and whoever answers calls it when the
    connection has broken, too.
    """

    result: Final = CacheResult.BYPASS

    def __init__(self, hold: Hold, warmer: Warmer, job_id: int) -> None:
        self._hold: Final = hold
        self._warmer: Final = warmer
        self._job_id: Final = job_id
        self._pieces_given = 0
        self._has_ended = False

    async def next_piece(self) -> bytes | None:
        """Give a blank from time to time, and the report when there is nothing to hold the job for."""
        self._pieces_given += 1
        if self._pieces_given == 1:
            return b" "
        if self._has_ended:
            return None
        try:
            async with asyncio.timeout(BLANKS_EVERY_S):
                await self._hold.ended()
        except TimeoutError:
            return b" "
        self._has_ended = True
        return msgspec.json.encode(await self._warmer.wait(self._job_id, 0)) + b"\n"

    async def close(self) -> None:
        """Let go of the job."""
        self._hold.release()


async def answer_warm(
    warmer: Warmer, request: S3Request, job: str, body: RequestBody, wait_s_max: float
) -> object:
    """Answer a verb about warm-ups: the whole answer of a hold, the document of all others.

    Args:
        warmer: Has the jobs.
        request: What is asked for.
        job: What the path names behind `/-/warm/`.
        body: May have a piece of a list.
        wait_s_max: How long an answer may be waited for.

    Raises:
        S3Error: InvalidArgument for a parameter or a list that is wrong, MethodNotAllowed for what is no verb.
        StorageError: As `Warmer` says.
    """
    match request.method, job:
        case "POST", "":
            return warmer.start(_wanted(request))
        case "GET", "":
            return WarmJobs(warmer.reports())
        case "POST", _:
            return await _feed(warmer, request, number("warm-up", job), body)
        case "GET", held if held.endswith(_HOLD):
            return _hold(warmer, number("warm-up", held.removesuffix(_HOLD)))
        case "GET", _:
            wait_s = min(wait_s_max, optional_number(request, "wait"))
            return await warmer.wait(number("warm-up", job), wait_s)
        case "DELETE", id_text if id_text:
            return await warmer.cancel(number("warm-up", id_text))
        case _:
            raise not_allowed(request)


def _hold(warmer: Warmer, job_id: int) -> S3Response:
    body = HeldBody(warmer.hold(job_id), warmer, job_id)
    # nginx passes an answer on as it comes only where this is said.
    headers = (("content-type", "application/json"), ("x-accel-buffering", "no"))
    return S3Response(200, headers, body, has_length=False)


def _wanted(request: S3Request) -> WarmRequest:
    mode = optional(request, "mode") or WarmKind.PREFIX.value
    if mode not in set(WarmKind):
        raise invalid_argument("mode", mode, f"mode is one of {', '.join(WarmKind)}.")
    kind = WarmKind(mode)
    try:
        return WarmRequest(
            kind,
            required(request, "bucket") if kind is WarmKind.PREFIX else "",
            optional(request, "prefix") if kind is WarmKind.PREFIX else "",
            metadata_only=truth(request, "metadata-only"),
            concurrency=optional_number(request, "concurrency", CONCURRENCY),
            ahead_objects=optional_number(request, "ahead", AHEAD_OBJECTS),
            ahead_bytes=optional_number(request, "ahead-bytes", AHEAD_BYTES),
            idle_s=float(optional_number(request, "idle", int(IDLE_S))),
            hold_s=float(optional_number(request, "hold")),
        )
    except ValueError as error:
        raise invalid_argument("warm", "", f"{error}.") from error


async def _feed(warmer: Warmer, request: S3Request, job_id: int, body: RequestBody) -> WarmFed:
    """Take a piece of a list: a JSON array of objects with `bucket`, `key` and perhaps `range`."""
    document = await body.read_small(PIECE_BYTES_MAX)
    try:
        entries = msgspec.json.decode(document or b"[]", type=tuple[WarmEntry, ...])
    except msgspec.DecodeError as error:
        raise invalid_argument("body", "", f"The list cannot be read: {error}.") from error
    if len(entries) > FEED_ENTRIES_MAX:
        raise invalid_argument("body", "", f"A piece has at most {FEED_ENTRIES_MAX} names.")
    for entry in entries:
        if not is_bucket_name(entry.bucket) or not 0 < len(entry.key.encode()) <= KEY_BYTES_MAX:
            raise invalid_argument(
                "body", entry.key, "A line names a bucket and a key of at most 1024 bytes."
            )
    at = number("at", required(request, "at"))
    return warmer.feed(job_id, at, entries, is_last=truth(request, "last"))
