"""Warm-up jobs: bring what will be read into the cache, behind all other work, for whoever asked and may have left since.

A job is a task of its own with a number. It makes a row of objects, and a few workers bring them:

    PREFIX  pages of a listing, one after the other; a second walk over them goes ahead and only counts, so that it is known early
            how much there is, and nothing but one page is held of either
    LIST    names as they were handed over, packed until their turn (`warm_jobs.Backlog`)
    ORDER   the same, at the pace of the reads (`warm_order.OrderWindow`)

What fails for a reason that passes is tried again: as long as it takes for want of a turn at the origin (up to PATIENCE_S), since to
wait is what the lowest priority means; a few times where the origin fails. Whatever else fails counts, and the job goes on.

Jobs live in memory: they go on over a re-opening of the cache directory and end with the process. One that is begun again skips what
is here. A job that has ended stays known until newer ones push it out.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from storage.asks import Ask, Intent
from storage.clock import Clock
from storage.errors import (
    EngineClosedError,
    NoSuchKeyError,
    OriginSuspendedError,
    OriginThrottledError,
    OverloadedError,
    StorageError,
    WarmConflictError,
)
from storage.listing import ListQuery, ListResult
from storage.stats import Stats
from storage.types import ObjectName
from storage.warm_job import Hold, WarmItem, WarmJob
from storage.warm_jobs import (
    WarmEntry,
    WarmFed,
    WarmKind,
    WarmPhase,
    WarmReport,
    WarmRequest,
    WarmResult,
)
from storage.warm_order import OrderWindow
from storage.warm_source import Brought, Wanted

RUNNING_MAX: Final = 8
ENDED_MAX: Final = 32

PATIENCE_S: Final = 600.0
ATTEMPTS_MAX: Final = 5
RETRY_S: Final = 0.5
"""Doubled after each attempt, up to RETRY_S_MAX."""
RETRY_S_MAX: Final = 15.0

AHEAD_PART: Final = 4
"""An ORDER job goes ahead by this part of what the cache can hold at most: what is fetched for it pushes out what stays."""

LOOK_AGAIN_S: Final = 1.0
"""An ORDER job looks at its window again at the latest after so long."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Source(Protocol):
    """Who brings objects: `warm_source.WarmSource`."""

    @property
    def room_bytes(self) -> int:
        """What the cache can hold of clean bytes."""
        ...

    async def shown(self, name: ObjectName) -> ObjectName:
        """Give the name that a name under a published target is read under."""
        ...

    async def page(self, query: ListQuery) -> ListResult:
        """Give one page of a listing."""
        ...

    async def bring(self, wanted: Wanted) -> Brought:
        """Bring an object."""
        ...


class _IdleError(Exception):
    """Nobody reads what an ORDER job has listed."""


class Warmer:
    """Runs warm-up jobs; owns their tasks.

    Attributes:
        follows_reads: Whether any job wants to hear of reads.
    """

    def __init__(self, source: Source, clock: Clock, stats: Stats) -> None:
        self._source = source
        self._clock = clock
        self._stats = stats
        self._jobs: dict[int, WarmJob] = {}
        self._ordered: list[WarmJob] = []
        self._next_id = 1
        self._is_closed = False

    @property
    def follows_reads(self) -> bool:
        """Whether any job wants to hear of reads."""
        return bool(self._ordered)

    def note_read(self, name: ObjectName) -> None:
        """Tell jobs that follow the reads of one; synchronous and quick."""
        for job in self._ordered:
            if job.window is not None and job.window.read(name, self._clock.monotonic_s()):
                job.news.set()

    # --- jobs --------------------------------------------------------------------------------------------------------

    def start(self, request: WarmRequest) -> WarmReport:
        """Begin a job; `wait` tells how far it is, `feed` gives it its list.

        Raises:
            OverloadedError: Too many are under way.
            EngineClosedError: The gateway is stopping.
        """
        if self._is_closed:
            raise EngineClosedError("the gateway is stopping", retry_after_s=5.0)
        if sum(not job.done.is_set() for job in self._jobs.values()) >= RUNNING_MAX:
            raise OverloadedError(f"{RUNNING_MAX} warm-ups are under way already", retry_after_s=5.0)
        self._forget_old()
        now_s = self._clock.monotonic_s()
        job = WarmJob(self._next_id, request, now_s, now_s, room_bytes=self._source.room_bytes)
        self._next_id += 1
        if request.kind is WarmKind.ORDER:
            job.window = OrderWindow(
                ahead_objects=request.ahead_objects,
                ahead_bytes=min(request.ahead_bytes, max(1, job.room_bytes // AHEAD_PART)),
                idle_s=request.idle_s,
                now_s=now_s,
            )
            self._ordered.append(job)
        self._jobs[job.job_id] = job
        self._stats.warm_jobs += 1
        job.task = asyncio.get_running_loop().create_task(self._run(job), name=f"warm-{job.job_id}")
        job.task.add_done_callback(partial(self._ended, job))
        return self._report(job)

    def feed(self, job_id: int, at: int, entries: Sequence[WarmEntry], *, is_last: bool) -> WarmFed:
        """Give a job the next piece of its list; it may be sent again when the answer was lost.

        Args:
            job_id: A LIST or ORDER job.
            at: How many names were given before.
            entries: At most FEED_ENTRIES_MAX.
            is_last: Nothing follows.

        Raises:
            NoSuchKeyError: There is no such job.
            WarmConflictError: It has ended, has no list, its list has ended, or `at` is not where it stands.
        """
        job = self._find(job_id)
        job.heard_at_s = self._clock.monotonic_s()
        backlog = job.backlog
        if job.request.kind is WarmKind.PREFIX:
            raise WarmConflictError(f"warm-up {job_id} is of a prefix, and takes no list")
        if at + len(entries) == backlog.count and backlog.is_whole is is_last:
            return WarmFed(backlog.count)  # sent again
        if job.phase is not WarmPhase.RUNNING or backlog.is_whole or not job.takes_names:
            raise WarmConflictError(f"warm-up {job_id} takes no more names: {job.error or job.phase.value}")
        if at != backlog.count:
            raise WarmConflictError(f"warm-up {job_id} has {backlog.count} names, the next ones are not {at}")
        if backlog.is_full and entries:
            return WarmFed(backlog.count)
        backlog.append(tuple(entries), is_last=is_last)
        job.tally.known_objects = backlog.count
        job.tally.is_counted = backlog.is_whole
        job.news.set()
        if is_last:
            job.released.set()
        return WarmFed(backlog.count)

    def hold(self, job_id: int) -> Hold:
        """Hold a job for a client that gives it its list, until the hold is released.

        Raises:
            NoSuchKeyError: There is no such job.
        """
        return Hold(self._find(job_id), self._clock)

    def release_holds(self) -> None:
        """Have all holds end, since the gateway is stopping."""
        for job in self._jobs.values():
            job.released.set()

    async def wait(self, job_id: int, timeout_s: float) -> WarmReport:
        """Wait for the end of a job at most so long, and say how far it is.

        Raises:
            NoSuchKeyError: There is no such job, or it ended long ago.
        """
        job = self._find(job_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await job.done.wait()
        return self._report(job)

    def reports(self) -> tuple[WarmReport, ...]:
        """Say of all jobs that run, or ended lately, how far they are; oldest first."""
        return tuple(self._report(job) for job in self._jobs.values())

    def running(self) -> tuple[WarmReport, ...]:
        """Say of the jobs that run how far they are."""
        return tuple(report for report in self.reports() if not report.is_over)

    async def cancel(self, job_id: int) -> WarmReport:
        """End a job; what it brought stays. One that has ended stays as it is.

        Raises:
            NoSuchKeyError: There is no such job.
        """
        job = self._find(job_id)
        if job.task is not None and not job.task.done():
            job.end(WarmPhase.CANCELLED)
            job.task.cancel()
            await job.done.wait()
        return self._report(job)

    async def close(self) -> None:
        """End all jobs and begin no more."""
        self._is_closed = True
        tasks = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _find(self, job_id: int) -> WarmJob:
        job = self._jobs.get(job_id)
        if job is None:
            raise NoSuchKeyError(f"there is no warm-up {job_id}")
        return job

    def _forget_old(self) -> None:
        ended = [job_id for job_id, job in self._jobs.items() if job.done.is_set()]
        for job_id in ended[: max(0, len(ended) - ENDED_MAX + 1)]:
            del self._jobs[job_id]

    def _report(self, job: WarmJob) -> WarmReport:
        tally, window = job.tally, job.window
        if job.phase is WarmPhase.RUNNING:
            job.room_bytes = self._source.room_bytes
        return WarmReport(
            job.job_id,
            job.request.kind,
            job.place,
            job.phase,
            known_objects=max(tally.known_objects, tally.results.total()),
            known_bytes=max(tally.known_bytes, tally.warm_bytes),
            is_counted=tally.is_counted,
            results=dict(tally.results),
            brought_bytes=tally.brought_bytes,
            warm_bytes=tally.warm_bytes,
            room_bytes=job.room_bytes,
            elapsed_s=(job.ended_s or self._clock.monotonic_s()) - job.started_s,
            position=0 if window is None else window.position,
            ahead_bytes=0 if window is None else window.ahead_bytes,
            failures=dict(tally.failures),
            examples=tuple(tally.examples),
            error=job.error,
        )

    # --- running -----------------------------------------------------------------------------------------------------

    async def _run(self, job: WarmJob) -> None:
        """Do the work, and keep what it failed with for whoever asks."""
        try:
            await self._work(job)
            job.end(WarmPhase.DONE)
        except* _IdleError:
            job.end(WarmPhase.IDLE)
        except* StorageError as errors:
            error = _first(errors)
            log.warning("warm-up %d of %s: %s", job.job_id, job.place, error)
            job.end(WarmPhase.FAILED, str(error))

    async def _work(self, job: WarmJob) -> None:
        """Bring all items; where a list or its readers stop coming, those that were begun."""
        queue: asyncio.Queue[WarmItem | None] = asyncio.Queue(1 if job.window else job.request.concurrency)
        end: WarmConflictError | _IdleError | None = None
        async with asyncio.TaskGroup() as tasks:
            for number in range(job.request.concurrency):
                tasks.create_task(self._bring_all(job, queue), name=f"warm-{job.job_id}-{number}")
            try:
                async for item in self._items(job, tasks):
                    await queue.put(item)
            except (WarmConflictError, _IdleError) as error:
                end = error
            job.take_no_more()
            for _ in range(job.request.concurrency):
                await queue.put(None)
        if end is not None:
            raise end

    def _ended(self, job: WarmJob, task: asyncio.Task[None]) -> None:
        job.ended_s = self._clock.monotonic_s()
        job.take_no_more()
        self._stats.warm_jobs -= 1
        if job in self._ordered:
            self._ordered.remove(job)
        if task.cancelled():
            job.end(WarmPhase.CANCELLED, "the gateway was stopped")
        elif (error := task.exception()) is not None:
            job.end(WarmPhase.FAILED, "a bug; see the log")
            log.error("warm-up %d of %s failed", job.job_id, job.place, exc_info=error)
        job.done.set()

    # --- which objects -----------------------------------------------------------------------------------------------

    def _items(self, job: WarmJob, tasks: asyncio.TaskGroup) -> AsyncIterator[WarmItem]:
        if job.request.kind is WarmKind.PREFIX:
            return self._listed(job, tasks)
        return self._given(job) if job.window is None else self._ordered_items(job, job.window)

    async def _listed(self, job: WarmJob, tasks: asyncio.TaskGroup) -> AsyncIterator[WarmItem]:
        """Yield what lies under the prefix, while another walk counts it."""
        bucket = job.request.bucket
        first = await self._page(job, None)
        tasks.create_task(self._count(job, first), name=f"warm-{job.job_id}-count")
        async for page in self._pages(job, first):
            for listed in page.entries:
                name = await self._source.shown(ObjectName(bucket, listed.key))
                yield WarmItem(name, listed=listed)

    async def _count(self, job: WarmJob, first: ListResult) -> None:
        async for page in self._pages(job, first):
            job.tally.known_objects += len(page.entries)
            job.tally.known_bytes += sum(entry.size for entry in page.entries)
        job.tally.is_counted = True

    async def _pages(self, job: WarmJob, page: ListResult) -> AsyncIterator[ListResult]:
        yield page
        while page.is_truncated:
            page = await self._page(job, page)
            yield page

    async def _page(self, job: WarmJob, before: ListResult | None) -> ListResult:
        query = ListQuery(job.request.bucket, job.request.prefix)
        if before is not None:
            assert before.next_position is not None, "a truncated page says where to go on"
            query = replace(query, after=before.next_position, generation=before.generation)
        return await self._patiently(lambda: self._source.page(query))

    async def _given(self, job: WarmJob) -> AsyncIterator[WarmItem]:
        """Yield the names of the list, as far as it has been given, and wait for more."""
        while await self._has_names(job):
            for entry in job.backlog.take():
                yield await self._item(entry)

    async def _has_names(self, job: WarmJob) -> bool:
        """Wait for names; False at the end of the list.

        Raises:
            WarmConflictError: The list was not given to its end.
        """
        while job.backlog.is_empty:
            if job.backlog.is_whole:
                return False
            job.news.clear()
            # A hold that begins or ends is news too: the time is asked for anew.
            with suppress(TimeoutError):
                async with asyncio.timeout(job.patience_s(self._clock.monotonic_s())):
                    await job.news.wait()
            if not job.news.is_set():
                raise _broken_off()
        return True

    async def _item(self, entry: WarmEntry, index: int = 0) -> WarmItem:
        return WarmItem(
            await self._source.shown(ObjectName(entry.bucket, entry.key)), entry.range, index=index
        )

    async def _ordered_items(self, job: WarmJob, window: OrderWindow[WarmItem]) -> AsyncIterator[WarmItem]:
        """Yield the names of the order as the reads come nearer to them."""
        backlog = job.backlog
        while True:
            while window.wants_names and not backlog.is_empty:
                for entry in backlog.take():
                    item = await self._item(entry, window.loaded)
                    window.load(item.name, item)
            passed = window.passed
            issued = window.next()
            if window.passed > passed:
                self._count_result(job, WarmResult.PASSED, window.passed - passed)
            if issued is not None:
                yield issued[1]
                continue
            if backlog.is_empty and window.issued == window.loaded:
                if backlog.is_whole:
                    return
                if job.patience_s(self._clock.monotonic_s()) == 0.0:
                    raise _broken_off()
            await self._news(job, window)

    async def _news(self, job: WarmJob, window: OrderWindow[WarmItem]) -> None:
        """Wait for a read or for names.

        Raises:
            _IdleError: None has come for too long.
        """
        now_s = self._clock.monotonic_s()
        if job.holds and job.backlog.is_empty and window.position == window.loaded:
            # All that was given has been read, and its client is there: it is slow, and the readers are not gone.
            window.wait_for_names(now_s)
        left_s = window.idle_left_s(now_s)
        if not left_s:
            raise _IdleError
        job.news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, LOOK_AGAIN_S)):
                await job.news.wait()

    # --- one object --------------------------------------------------------------------------------------------------

    async def _bring_all(self, job: WarmJob, queue: "asyncio.Queue[WarmItem | None]") -> None:
        while (item := await queue.get()) is not None:
            try:
                brought = await self._patiently(partial(self._bring, job, item))
            except StorageError as error:
                job.tally.fail(str(item.name), error)
                self._stats.warm_objects[WarmResult.FAILED] += 1
                continue
            self._count_brought(job, item, brought)

    async def _bring(self, job: WarmJob, item: WarmItem) -> Brought:
        room = self._source.room_bytes
        if job.window is None:
            # What an order has read of may go again; of all others every byte is to be there at the end.
            room = max(0, room - job.tally.warm_bytes - job.claimed_bytes)
        size = 0 if item.listed is None else item.listed.size
        is_metadata = job.request.metadata_only
        job.claimed_bytes += size
        try:
            return await self._source.bring(
                Wanted(
                    item.name,
                    item.range,
                    item.listed,
                    metadata_only=is_metadata,
                    room=room,
                    ask=Ask(
                        Intent.WARM_UP if job.window is None else Intent.NEXT,
                        partial(_is_wanted, job.window, item.index),
                    ),
                )
            )
        finally:
            job.claimed_bytes -= size

    def _count_brought(self, job: WarmJob, item: WarmItem, brought: Brought) -> None:
        tally = job.tally
        self._count_result(job, brought.result)
        tally.brought_bytes += brought.fetched
        self._stats.warm_bytes += brought.fetched
        if brought.result in {WarmResult.UNFIT, WarmResult.PASSED} or job.request.metadata_only:
            return
        tally.warm_bytes += brought.size
        if job.window is not None:
            job.window.sized(item.index, brought.size)
            job.news.set()

    def _count_result(self, job: WarmJob, result: WarmResult, count: int = 1) -> None:
        job.tally.results[result] += count
        self._stats.warm_objects[result] += count

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Do what may fail for a reason that passes.

        Raises:
            StorageError: It does not pass, or not soon.
        """
        until_s = self._clock.monotonic_s() + PATIENCE_S
        attempts, wait_s = 1, RETRY_S
        while True:
            try:
                return await call()
            except StorageError as error:
                is_turn = isinstance(error, OverloadedError | OriginThrottledError)
                has_time = self._clock.monotonic_s() < until_s and (is_turn or attempts < ATTEMPTS_MAX)
                # Whether a refusal will be lifted is not waited for, object by object.
                if not error.retryable or isinstance(error, OriginSuspendedError) or not has_time:
                    raise
                attempts += not is_turn
                pause_s = max(wait_s, min(error.retry_after_s or 0.0, RETRY_S_MAX))
            await self._clock.sleep(pause_s)
            wait_s = min(RETRY_S_MAX, 2 * wait_s)


def _broken_off() -> WarmConflictError:
    return WarmConflictError("the list was not given to its end")


def _is_wanted(window: OrderWindow[WarmItem] | None, index: int) -> bool:
    return window is None or not window.is_behind(index)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Give the first error of a group that is none itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
