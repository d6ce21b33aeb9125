"""Carry out a publish: flush the source, list it, write the manifest, journal the pointer. Or copy it.

    flush everything under the source ─> read the origin's manifest ─> list the source at the origin
        ─> let writes at the target end that are under way ─> does anything lie there?
        ─> PUT the manifest, if the origin still holds the one that was read ─> PointerSet through the door ─> shown

The PUT is the switch. An attempt of it without an answer is looked for: if the origin holds the manifest of this publish, it
landed; if it still holds the one before, the PUT is sent again on the same condition, under which an attempt from before that
lands late does no harm; if it holds any other, somebody else published. What ends in between, by a crash or a disk that takes no
record, is found at the origin by whoever asks next.

A publish runs in a task of its own, with a number by which it is asked about, as a barrier is. One that has ended stays known
until newer ones push it out.
"""

import asyncio
import base64
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from storage.clock import Clock
from storage.errors import (
    EngineClosedError,
    NoSuchKeyError,
    OriginError,
    OriginSuspendedError,
    OriginUnavailableError,
    OverloadedError,
    PublishConflictError,
    PublishRefusedError,
    StorageError,
)
from storage.flush_events import BarrierBlocked, Scope
from storage.flush_waits import Barrier, FlushWaits
from storage.keyqueue import KeyQueue
from storage.lister import Lister
from storage.listing import ListQuery
from storage.origin.client import OriginClient
from storage.origin.documents import ListPage, PageRequest
from storage.origin.wire import OutgoingBody
from storage.passing import Passing
from storage.pointers import Found, Pointers
from storage.publish import (
    MANIFEST_NAME,
    KeyDigest,
    Manifest,
    Target,
    check_places,
    encode_manifest,
    moved,
    next_manifest,
)
from storage.requests import PublishReport
from storage.through import Through
from storage.types import KEY_BYTES_MAX, ObjectName

RUNNING_MAX: Final = 8
ENDED_MAX: Final = 64

COPIES_MAX: Final = 16
"""Copies of one publish that are at the origin at a time."""

FAILURES_SHOWN_MAX: Final = 100

WRITES_WAIT_S: Final = 60.0
"""So long a switch waits for writes at the target that began before its policy came into force."""

WRITE_ATTEMPTS_MAX: Final = 6
WRITE_RETRY_S: Final = 0.5
"""Doubled after each attempt to write the manifest that had no answer."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PublisherParts:
    """What the publisher works with; made once by the engine.

    Attributes:
        lister: Lists names as they are, not as targets show them.
        remaining: Counts the keys that a barrier waits for.
        draw_bits: Draws so many random bits.
    """

    pointers: Pointers
    lister: Lister
    origin: OriginClient
    passing: Passing
    through: Through
    queue: KeyQueue
    waits: FlushWaits
    remaining: Callable[[int], int]
    clock: Clock
    draw_bits: Callable[[int], int]


@dataclass(slots=True)
class _Job:
    """One publish under way, or ended lately."""

    publish_id: int
    source: str
    target: Target
    is_copy: bool
    phase: str = "flushing"
    barrier: Barrier | None = None
    total: int = 0
    count: int = 0
    generation: int = 0
    keys: int = 0
    digest: str = ""
    extra: int = 0
    error: str = ""
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, phase: str) -> None:
        self.phase, self.total, self.count = phase, 0, 0

    def fail(self, error: str) -> None:
        self.phase, self.error = "failed", error

    def note_failure(self, key: str, error: StorageError) -> None:
        self.failed += 1
        if len(self.failures) < FAILURES_SHOWN_MAX:
            self.failures.append(f"{key}: {error}")


class Publisher:
    """Publishes; owns the tasks that do."""

    def __init__(self, parts: PublisherParts) -> None:
        self._parts = parts
        self._jobs: dict[int, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_id = 1

    async def start(self, bucket: str, source: str, target_prefix: str, *, is_copy: bool) -> PublishReport:
        """Begin to publish, or to copy, what lies under a prefix; `wait` tells how far it is.

        Raises:
            PublishRefusedError: No policy names the target, or the prefixes overlap.
            PublishConflictError: Objects lie at a target where nothing was published yet, or it is published already and
                copies were asked for, or another publish of it is under way.
            OriginError: The origin fails or refused.
            OverloadedError: Too many are under way.
        """
        target = Target(bucket, target_prefix)
        check_places(source, target, self._parts.pointers.targets)
        await self._check_target(target, await self._read(target), is_copy=is_copy)
        running = [job for job in self._jobs.values() if not job.done.is_set()]
        if any(job.target == target for job in running):
            raise PublishConflictError(f"another publish of {target} is under way")
        if len(running) >= RUNNING_MAX:
            raise OverloadedError(f"{RUNNING_MAX} publishes are under way already", retry_after_s=5.0)
        self._forget_old()
        job = _Job(self._next_id, source, target, is_copy)
        self._next_id += 1
        self._jobs[job.publish_id] = job
        task = asyncio.get_running_loop().create_task(
            self._run(job, self._copy(job) if is_copy else self._publish(job)),
            name=f"publish-{job.publish_id}",
        )
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, job))
        return self._report(job)

    async def wait(self, publish_id: int, timeout_s: float) -> PublishReport:
        """Wait for a publish at most so long, and say how far it is.

        Raises:
            NoSuchKeyError: There is no such publish, or it ended long ago.
        """
        job = self._jobs.get(publish_id)
        if job is None:
            raise NoSuchKeyError(f"there is no publish {publish_id}")
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await job.done.wait()
        return self._report(job)

    async def close(self) -> None:
        """End what is under way; whether a switch that was sent happened shows at the next start."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def take_over(self, before: "Publisher") -> None:
        """Know the publishes of another one, which is closed, under their numbers."""
        self._jobs = dict(before._jobs)  # noqa: SLF001  of the same class
        self._next_id = before._next_id  # noqa: SLF001  as above

    def _report(self, job: _Job) -> PublishReport:
        total, done = job.total, job.count
        if job.phase == "flushing" and job.barrier is not None:
            total = job.barrier.total
            done = total - self._parts.remaining(job.barrier.barrier_id)
        return PublishReport(
            job.publish_id,
            job.target.bucket,
            job.source,
            job.target.prefix,
            job.is_copy,
            job.phase,
            total=total,
            done=done,
            generation=job.generation,
            keys=job.keys,
            digest=job.digest,
            extra=job.extra,
            error=job.error,
            failures=tuple(job.failures),
        )

    def _forget_old(self) -> None:
        ended = [publish_id for publish_id, job in self._jobs.items() if job.done.is_set()]
        for publish_id in ended[: max(0, len(ended) - ENDED_MAX + 1)]:
            del self._jobs[publish_id]

    async def _run(self, job: _Job, work: Coroutine[object, object, None]) -> None:
        """Do the work, and keep what it failed with for whoever asks."""
        try:
            await work
            job.phase = "done"
        except StorageError as error:
            log.warning("publish of %s as %s: %s", job.source, job.target, error)
            job.fail(str(error))

    def _ended(self, job: _Job, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            job.fail(
                "cut off by a stop or a re-opening; see at the target's manifest whether it was switched"
            )
        elif error is not None:
            job.fail("a bug; see the log")
            log.error("publish of %s as %s failed", job.source, job.target, exc_info=error)
        job.done.set()

    # --- steps of both -----------------------------------------------------------------------------------------------

    async def _read(self, target: Target) -> Found:
        found = await self._parts.pointers.read(target)
        assert found is not None, "asked without a known ETag"
        return found

    async def _check_target(self, target: Target, found: Found, *, is_copy: bool) -> None:
        """Refuse a target whose objects a publish would hide, or a copy mix with what is published."""
        if is_copy:
            if found.manifest is not None:
                raise PublishConflictError(
                    f"{target} is published already, generation {found.manifest.generation}: "
                    f"copies would lie behind it; delete {target.manifest} at the origin first"
                )
            return
        # Of whatever generation the target is: another gateway may have acknowledged a write before it knew of the target.
        page = await self._parts.lister.list(ListQuery(target.bucket, target.prefix, max_keys=2))
        for entry in page.entries:
            if entry.key != target.manifest.key:
                raise PublishConflictError(
                    f"s3://{target.bucket}/{entry.key} lies at the target, and would be hidden"
                )

    async def _check_last(self, job: _Job, found: Found) -> None:
        """Look once more, when nothing can come to the target through this gateway any more, just before the switch.

        Raises:
            PublishConflictError: Something came while the source was flushed and listed, or may still come.
            PublishRefusedError: The policies have changed meanwhile.
        """
        target = job.target
        check_places(job.source, target, self._parts.pointers.targets)
        try:
            async with asyncio.timeout(WRITES_WAIT_S):
                # Those behind them find the target read-only in their turn.
                await self._parts.queue.writes_left(target.bucket, target.prefix)
        except TimeoutError as error:
            raise PublishConflictError(
                f"writes at {target} do not end that began before it was one"
            ) from error
        await self._check_target(target, found, is_copy=False)

    async def _flush(self, job: _Job) -> None:
        """Bring all to the origin that is acknowledged under the source now."""
        waits = self._parts.waits
        job.barrier = barrier = waits.begin(Scope(job.target.bucket, job.source))
        try:
            await barrier.done.wait()
        finally:
            waits.drop(barrier)
        if barrier.outcome is None:
            raise EngineClosedError("the gateway is stopping", retry_after_s=5.0)
        if isinstance(barrier.outcome, BarrierBlocked):
            first = barrier.outcome.remaining[0]
            raise PublishConflictError(
                f"{barrier.outcome.count} changes under the source cannot be flushed, "
                f"the first of them {first.name}: {first.reason or first.state.value}"
            )

    async def _pages(self, bucket: str, prefix: str) -> AsyncIterator[ListPage]:
        """Yield the origin's own pages of a prefix."""
        token = start_after = ""
        while True:
            page = await self._parts.origin.list_objects_v2(
                PageRequest(bucket, prefix, start_after=start_after, token=token)
            )
            yield page
            if not page.is_truncated:
                return
            if not page.objects and not page.next_token:
                raise OriginUnavailableError(
                    "the origin's listing does not move on", status=0, code="BadAnswer"
                )
            token, start_after = page.next_token, page.objects[-1].key if page.objects else start_after

    # --- the switch --------------------------------------------------------------------------------------------------

    async def _publish(self, job: _Job) -> None:
        pointers = self._parts.pointers
        await self._flush(job)
        found = await self._read(job.target)
        await self._check_target(job.target, found, is_copy=False)
        digest = await self._digest(job)
        job.begin("switching")
        await self._check_last(job, found)
        now_s = self._parts.clock.wall_s()
        manifest = next_manifest(
            found.manifest,
            job.source,
            digest,
            generation_min=pointers.last_generation(job.target) + 1,
            # With the time, since two gateways may have been given the same seed.
            publication=f"{self._parts.draw_bits(64):016x}-{int(now_s * 1e6):x}",
            now_s=now_s,
        )
        begun = pointers.tick()
        written = await self._write(job.target, manifest, found.etag)
        await pointers.adopt(job.target, written, begun)
        job.generation = manifest.generation
        log.info("%s shows %s, generation %d", job.target, job.source, manifest.generation)

    async def _digest(self, job: _Job) -> KeyDigest:
        """List the source as the origin has it, which is what other gateways see.

        Raises:
            PublishConflictError: There is nothing.
            PublishRefusedError: A key would be too long at the target.
        """
        job.begin("listing")
        digest, source = KeyDigest(job.source), job.source
        async for page in self._pages(job.target.bucket, source):
            for listed in page.objects:
                if len(moved(listed.key, source, job.target.prefix).encode()) > KEY_BYTES_MAX:
                    raise PublishRefusedError(f"{listed.key!r} would be too long a key at the target")
                digest.add(listed.key)
            job.count = job.keys = digest.keys
        if not digest.keys:
            raise PublishConflictError(f"nothing lies under s3://{job.target.bucket}/{source}")
        job.digest = digest.text()
        return digest

    async def _write(self, target: Target, manifest: Manifest, before: str) -> Found:
        """Put the manifest in the place of the one with the ETag `before`, "" for none; give what the origin holds then.

        Raises:
            PublishConflictError: Another publish came between; nothing was switched by this one.
            OriginError: The origin refused; or it gave no answer, and whether it switched is unknown.
        """
        body, wait_s = _body(encode_manifest(manifest)), WRITE_RETRY_S
        async with self._parts.through.operation(target.manifest, is_own=True) as passed:
            for attempt in range(1, WRITE_ATTEMPTS_MAX + 1):
                try:
                    return Found(manifest, await self._put(target, body, before))
                except (OriginError, OverloadedError, NoSuchKeyError) as failure:
                    passed.is_unknown |= isinstance(failure, OriginError) and failure.outcome_unknown
                    found = await self._look(target, manifest, before)
                    if found is not None:
                        return found
                    is_final = not failure.retryable or isinstance(failure, OriginSuspendedError)
                    if is_final or attempt == WRITE_ATTEMPTS_MAX:
                        raise
                await self._parts.clock.sleep(wait_s)
                wait_s *= 2
        raise AssertionError("the last attempt returns or raises")

    async def _put(self, target: Target, body: OutgoingBody, before: str) -> str:
        """Write the manifest if the origin holds what was read of it; give its ETag."""
        answer = await self._parts.origin.put_object(
            target.manifest,
            (("content-type", "application/json"),),
            body,
            if_match=before,
            if_none_match="" if before else "*",
        )
        return answer.etag

    async def _look(self, target: Target, manifest: Manifest, before: str) -> Found | None:
        """Find out after a write that failed whether it landed; None where not, or where the origin does not say.

        Raises:
            PublishConflictError: The origin holds what somebody else wrote.
        """
        try:
            found = await self._read(target)
        except (OriginUnavailableError, OverloadedError):
            return None
        if found.manifest is not None and found.manifest.comes_of(manifest):
            return found
        if found.etag != before:
            raise PublishConflictError(f"another publish of {target} came between")
        return None

    # --- copies ------------------------------------------------------------------------------------------------------

    async def _copy(self, job: _Job) -> None:
        """Make objects at the target of those under the source, at the origin, key by key.

        Raises:
            PublishConflictError: There is nothing under the source, or some keys could not be copied.
        """
        bucket, target = job.target.bucket, job.target
        await self._flush(job)
        digest = await self._digest(job)
        job.begin("copying")
        job.total = digest.keys
        async for page in self._pages(bucket, job.source):
            for start in range(0, len(page.objects), COPIES_MAX):
                async with asyncio.TaskGroup() as group:
                    for listed in page.objects[start : start + COPIES_MAX]:
                        # That of an earlier use as a target would be the new target's pointer.
                        if listed.key != job.source + MANIFEST_NAME:
                            group.create_task(self._copy_one(job, listed.key))
        if job.failed:
            raise PublishConflictError(f"{job.failed} of {digest.keys} objects could not be copied")
        async for page in self._pages(bucket, target.prefix):
            job.extra += sum(listed.key != target.manifest.key for listed in page.objects)
        job.extra = max(0, job.extra - digest.keys)

    async def _copy_one(self, job: _Job, key: str) -> None:
        bucket = job.target.bucket
        try:
            await self._parts.passing.copy_object(
                ObjectName(bucket, key),
                ObjectName(bucket, moved(key, job.source, job.target.prefix)),
                (),
                is_own=True,
            )
        except StorageError as error:
            job.note_failure(key, error)
        job.count += 1


def _body(data: bytes) -> OutgoingBody:
    async def content() -> AsyncIterator[bytes]:
        yield data

    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return OutgoingBody(len(data), content, is_repeatable=True, md5=base64.b64encode(digest).decode())
