"""What an engine is made of: its bounds, where its work runs, and the adapters that it stands on."""

import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from storage.clock import Clock
from storage.early_flush import EarlyFlushSettings
from storage.eviction import EvictionPolicy
from storage.filesystem import Filesystem
from storage.flush_events import FlushSettings
from storage.gittins_policy import GittinsPolicy
from storage.origin.admission import Limiter
from storage.origin.client import OriginClient
from storage.origin.control import ControlLane
from storage.origin.facts import FactsSource
from storage.policy import PolicyTable
from storage.readahead import ReadaheadSettings
from storage.recovery import IndexHome
from storage.segment_files import segment_bytes_of
from storage.segment_ranking import PINNED_SHARE_MAX
from storage.stats import Stats
from storage.types import Checksum
from storage.uploads import ObjectChecksums
from storage.workers import StartingWorkers, Workers

ROOM_SEGMENTS: Final = 4
"""So many segments are kept free, so that every stream can open one while reclaim goes on."""

OPEN_SEGMENTS: Final = 4
"""What is pinned leaves so many segments more to all that is open, or full and not pinned."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The bounds of an engine.

    Attributes:
        origin: The origin's endpoint; the cache directory belongs to it.
        cache_bytes: All segments together.
        dirty_bytes_limit: Above it new writes wait `dirty_wait_s`, then go through.
        pinned_bytes_limit: No more is pinned; `pinned_bytes_max` says what of that the cache can hold.
        upload_ttl_s: An open upload that is older is aborted.
        scrub_bytes_per_s: The pace of the background scrub; 0 is none.
    """

    origin: str
    cache_bytes: int
    dirty_bytes_limit: int
    pinned_bytes_limit: int = 0
    dirty_wait_s: float = 10.0
    upload_ttl_s: float = 7 * 24 * 3600.0
    scrub_bytes_per_s: int = 0
    flush: FlushSettings = field(default_factory=FlushSettings)
    early_flush: EarlyFlushSettings = field(default_factory=EarlyFlushSettings)
    readahead: ReadaheadSettings = field(default_factory=ReadaheadSettings)

    @property
    def segment_bytes(self) -> int:
        """The size of a segment: whole MiB, so that blocks fill it."""
        return segment_bytes_of(self.cache_bytes)

    def new_policy(self) -> GittinsPolicy:
        """Make the eviction policy for a cache of this size, which knows nothing yet."""
        return GittinsPolicy(
            capacity_bytes=self.cache_bytes,
            segment_bytes=self.segment_bytes,
            pinned_bytes_max=pinned_bytes_max(self),
        )


@dataclass(frozen=True, slots=True)
class EngineWorkers:
    """Where blocking work runs. `commit` and `index` have one thread each: they keep order."""

    commit: Workers
    index: StartingWorkers
    pool: Workers


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The adapters that an engine is made of, and its components that others may replace.

    Attributes:
        adapters: What the engine closes at its end: the origin's lanes.
        policies: Gives the table in force; a reload replaces it.
        object_checksums: What checksums a completed upload has; the S3 protocol's business, so it comes from the gateway.
    """

    settings: EngineSettings
    filesystem: Filesystem
    index_home: IndexHome
    origin: OriginClient
    control: ControlLane
    facts: FactsSource
    limiter: Limiter
    clock: Clock
    rng: random.Random
    workers: EngineWorkers
    policies: Callable[[], PolicyTable]
    object_checksums: Callable[[tuple[Checksum, ...], int | None], ObjectChecksums]
    adapters: AsyncExitStack
    eviction: EvictionPolicy
    stats: Stats = field(default_factory=Stats)


def room_bytes_min(settings: EngineSettings) -> int:
    """Say how much of the cache is kept free, so that streams find room while reclaim goes on."""
    return min(ROOM_SEGMENTS * settings.segment_bytes, settings.cache_bytes // 8)


def pinned_bytes_max(settings: EngineSettings) -> int:
    """Say how much may be pinned: no more than fits beside what is kept free, segments that are open, and dead bytes among pins."""
    spare_bytes = room_bytes_min(settings) + OPEN_SEGMENTS * settings.segment_bytes
    held_bytes = int(PINNED_SHARE_MAX * (settings.cache_bytes - spare_bytes))
    return max(0, min(settings.pinned_bytes_limit, held_bytes))
