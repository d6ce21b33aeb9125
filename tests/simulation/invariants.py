"""What must hold of an engine while it lives; each check tells the world what does not."""

import logging
from typing import TYPE_CHECKING, Final, Self

from storage import keys
from storage.engine import Engine
from storage.errors import StorageError
from storage.family import Family
from storage.flush_events import Confirmed, Event, Instruction
from storage.origin.wire import Describes
from storage.origin_uploads import OriginUpload, Owner
from storage.rows import Effects, decode_dirty, decode_object, read_extents
from storage.types import MIB, ObjectName, Priority
from tests.fakes.row_invariants import PAST_ALL_KEYS, check_rows
from tests.simulation.origin import DELETED

if TYPE_CHECKING:
    from tests.simulation.world import World

ROWS_EVERY: Final = 16
"""Every so many batches all rows are checked; each time would take most of the simulation's time."""

WINDOWS: Final = ((10.0, 50), (3600.0, 200))
"""In so many seconds at most so many requests that concern one key; some three times what any of the first seeds needs."""


class Invariants:
    """Watches one engine of a world."""

    def __init__(self, world: "World", engine: Engine) -> None:
        self._world = world
        self._engine = engine
        self._index = engine._recovered.index
        self._components = engine._components
        self._batches = 0

    def watch(self) -> None:
        """Look after each event of the planner and each batch of the index, and now."""
        planner = self._components.planner
        handle = planner.handle

        def watched(event: Event, now_s: float) -> list[Instruction]:
            instructions = handle(event, now_s)
            if self._world.engine is self._engine:
                try:
                    planner.check_invariants()
                except AssertionError as error:
                    self._world.violate(f"the planner contradicts itself: {error}")
                if isinstance(event, Confirmed):
                    self.check_known()
            return instructions

        planner.handle = watched  # type: ignore[method-assign]  # a look from outside
        self._watch_uploads()
        self._components.state.listeners.append(self._applied)
        self.check_rows()

    def _watch_uploads(self) -> None:
        """Note each upload of ours at the origin that the journal knows: by a start, or by a process that lives.

        What a killed process does until its tasks are cancelled nobody sees, its journal least of all. An upload that was opened
        and not journaled by then stays at the origin (`storage/origin_uploads.py`).
        """
        uploads = self._components.origin_uploads
        opened = uploads.open
        self._world.our_uploads.update(one.origin_upload_id for one in self._engine._recovered.origin_uploads)

        async def noted(
            name: ObjectName,
            described: Describes,
            checksum_headers: tuple[tuple[str, str], ...],
            owner: Owner,
            priority: Priority,
        ) -> OriginUpload:
            upload = await opened(name, described, checksum_headers, owner, priority)
            if self._world.is_up():
                self._world.our_uploads.add(upload.upload_id)
            return upload

        uploads.open = noted  # type: ignore[method-assign]  # a look from outside

    def check_known(self) -> None:
        """Every dirty row is one that the planner has."""
        planner = self._components.planner
        for _, value in self._index.scan(Family.DIRTY, b"", PAST_ALL_KEYS, 100):
            entry = decode_dirty(value)
            name = ObjectName(entry.bucket, entry.key)
            if planner.state_of(name) is None:
                self._world.violate(
                    f"change {entry.sequence} is dirty and the planner does not know it", name
                )

    def _applied(self, effects: Effects) -> None:
        if self._world.engine is not self._engine:
            return
        self._batches += 1
        self.check_known()
        again = {(entry.bucket, entry.key) for entry in (*effects.dirty_added, *effects.discarded)}
        for entry in effects.dirty_removed:
            if (entry.bucket, entry.key) not in again:
                self._check_flushed(ObjectName(entry.bucket, entry.key), is_put=not entry.is_tombstone)
        if self._batches % ROWS_EVERY == 0:
            self.check_rows()

    def check_rows(self) -> None:
        try:
            check_rows(self._index)
        except AssertionError as error:
            self._world.violate(f"the rows contradict each other: {error}")
        self._check_dirty_bytes()

    def _check_flushed(self, name: ObjectName, *, is_put: bool) -> None:
        """Clean means: the origin has this very state, and nothing under way can change that."""
        state = DELETED
        if is_put:
            row = self._index.get(Family.OBJECTS, keys.object_key(name.bucket, name.key))
            if row is None:
                return
            state = int(dict(decode_object(row).user_metadata)["op"])
        there = self._world.store.op_of(name.bucket, name.key)
        if there != state:
            self._world.violate(f"{state} is called flushed while the origin has {there}", name)
        for sent in self._world.origin.may_land(name.bucket, name.key):
            if sent.op != state:
                self._world.violate(
                    f"{state} is called flushed while {sent.operation} of {sent.op} may land", name
                )

    def _check_dirty_bytes(self) -> None:
        """The bytes of everything dirty are there."""
        index, segments = self._index, self._components.segments
        for _, value in index.scan(Family.DIRTY, b"", PAST_ALL_KEYS, 100):
            entry = decode_dirty(value)
            name = ObjectName(entry.bucket, entry.key)
            row = index.get(Family.OBJECTS, keys.object_key(name.bucket, name.key))
            if entry.is_tombstone or row is None:
                continue
            for extent in read_extents(index, decode_object(row)):
                try:
                    data = segments.read(extent.location, 0, min(extent.location.length, MIB))
                    is_right = segments.check_block(extent.location, 0, data)
                except StorageError as error:
                    self._world.violate(f"dirty bytes cannot be read: {error}", name)
                else:
                    if not is_right:
                        self._world.violate("dirty bytes are damaged", name)

    def check_quarantine(self) -> None:
        """What is dirty is pending or shown as quarantined, with a reason."""
        status = self._engine.status()
        dirty = len(self._index.scan(Family.DIRTY, b"", PAST_ALL_KEYS, 100))
        if status.pending_objects + len(status.quarantined) < dirty:
            self._world.violate(
                f"{dirty} are dirty, and {status.pending_objects} + {len(status.quarantined)} shown"
            )
        for line in status.quarantined:
            if not line.reason:
                self._world.violate("quarantined without a reason", ObjectName(line.bucket, line.key))

    # --- the end -------------------------------------------------------------------------------------------------------


def check_retries(world: "World") -> None:
    """No storm: the requests for one key are few in any ten seconds and in any hour, whatever the origin does."""
    for (bucket, key), times in world.origin.sent_at_s.items():
        for window_s, most in WINDOWS:
            for first, last in zip(times, times[most:], strict=False):
                if last - first < window_s:
                    world.violate(f"{most} requests in {last - first:.1f} s", ObjectName(bucket, key))
                    return


class Logs(logging.Handler):
    """Listens to the engine's log for what must never be said, and keeps it from everybody else."""

    def __init__(self, world: "World") -> None:
        super().__init__(logging.ERROR)
        self._world = world
        self._logger = logging.getLogger("storage")

    def emit(self, record: logging.LogRecord) -> None:
        """Take what nobody foresaw for a violation."""
        text = record.getMessage()
        if ("foresaw" in text or "dirty bytes" in text or record.levelno >= logging.CRITICAL) and (
            self._world.engine is not None
        ):
            error = record.exc_info[1] if record.exc_info else None
            self._world.violate(f"{text}: {error!r}")

    def __enter__(self) -> Self:
        self._before = (self._logger.propagate, self._logger.level)
        self._logger.propagate = False
        self._logger.setLevel(logging.ERROR)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate, level = self._before
        self._logger.setLevel(level)
