"""Make the storage engine that the settings describe: adapters first, then the engine over them.

Everything that touches the outside world is made here once: files, index, the origin's two lanes behind one limiter.
"""

import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.context import ObjectStore
from gateway.s3.checksums import completed_checksums
from gateway.setting_values import Addressing, OriginKeys
from gateway.settings import Settings
from storage.authority import Authority
from storage.clock import Clock, SystemClock
from storage.early_flush import EarlyFlushSettings
from storage.engine import Engine
from storage.engine_parts import EngineParts, EngineSettings, EngineWorkers
from storage.errors import DamagedError, FormatError
from storage.filesystem import PosixFilesystem
from storage.findings import Report
from storage.flush_events import FlushSettings
from storage.fsck import check
from storage.fsck_repair import RepairParts, repair
from storage.index import Index, RocksIndex
from storage.index_aside import RocksRepairHome
from storage.layered_index import RocksCopies
from storage.layout import INDEX_DIRECTORY, SEGMENTS_DIRECTORY, Layout, read_layout
from storage.life import disk_reserve_bytes
from storage.origin.admission import Limiter
from storage.origin.client import OriginClient
from storage.origin.control import ControlLane
from storage.origin.credentials import ChainCredentials, Credentials, CredentialSource, StaticCredentials
from storage.origin.endpoint import CONNECTIONS_MIN, OriginSettings
from storage.origin.facts import FactsSource
from storage.origin.limiter import LimiterSettings
from storage.origin_look import OriginLook
from storage.policy import PoliciesInForce
from storage.readahead import ReadaheadSettings
from storage.records import PartSize, UploadRecord
from storage.refetch import Refetching
from storage.repair_ids import spare_segment_id
from storage.repair_outcome import RepairOutcome
from storage.stats import Stats
from storage.types import Checksum
from storage.uploads import ObjectChecksums
from storage.workers import ThreadWorkers, Workers


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the process has one of."""

    clock: Clock
    random: random.Random
    workers: Workers
    policies: PoliciesInForce


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """What a command asks of a repair. `label` names the directory of what is kept aside."""

    label: str
    random: random.Random
    say: Callable[[str], None]
    progress: Callable[[int, int], None]
    is_dry: bool = False
    should_refetch: bool = False


@dataclass(frozen=True, slots=True)
class RocksIndexHome:
    """`recovery.IndexHome` in the cache directory."""

    path: str

    def open(self) -> RocksIndex:
        """Open or create the database."""
        return RocksIndex.open(self.path)

    def destroy(self) -> None:
        """Remove the database."""
        RocksIndex.destroy(self.path)


async def build_engine(settings: Settings, surroundings: Surroundings) -> Engine:
    """Open the engine that the settings describe: recovery included.

    Raises:
        FormatError, LockedError, DamagedError: The cache directory cannot be used as it is.
        DiskFullError: It does not fit on its volume.
    """
    await surroundings.workers.run(_make_directory, settings.cache_dir)
    adapters = AsyncExitStack()
    try:
        return await Engine.open(await _engine_parts(settings, surroundings, adapters))
    except BaseException:
        await adapters.aclose()
        raise


async def _engine_parts(
    settings: Settings, surroundings: Surroundings, adapters: AsyncExitStack
) -> EngineParts:
    clock, rng = surroundings.clock, surroundings.random
    limiter = Limiter(_limiter_settings(settings), clock)
    credentials = credential_source(settings)
    place = origin_settings(settings)
    origin = await adapters.enter_async_context(
        OriginClient(place, limiter=limiter, credentials=credentials, clock=clock, rng=rng)
    )
    control = await adapters.enter_async_context(
        ControlLane(place, limiter=limiter, credentials=credentials, regions=origin.regions)
    )
    stats = Stats()
    stats.origin, stats.limiter = origin.counters, limiter
    engine_settings = _engine_settings(settings)
    stats.eviction = policy = engine_settings.new_policy()
    return EngineParts(
        settings=engine_settings,
        filesystem=PosixFilesystem(settings.cache_dir),
        index_home=RocksIndexHome(str(Path(settings.cache_dir) / INDEX_DIRECTORY)),
        origin=origin,
        control=control,
        facts=FactsSource(control, clock),
        limiter=limiter,
        clock=clock,
        rng=rng,
        workers=EngineWorkers(ThreadWorkers("commit", 1), ThreadWorkers("index", 1), surroundings.workers),
        policies=surroundings.policies,
        object_checksums=object_checksums,
        adapters=adapters,
        eviction=policy,
        stats=stats,
    )


def _make_directory(path: str) -> None:
    Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)


def check_directory(
    settings: Settings, *, verify_clean: bool, progress: Callable[[int, int], None]
) -> Report:
    """Read the whole cache directory and report what is wrong with it. Changes nothing.

    Raises:
        LockedError: A gateway has the directory open.
        FormatError: A newer program wrote it.
        DiskFailedError: It cannot be read at all.
    """
    root = Path(settings.cache_dir)
    with RocksCopies(str(root / INDEX_DIRECTORY)) as copies:
        return check(PosixFilesystem(str(root)), copies, verify_clean=verify_clean, progress=progress)


def repair_directory(settings: Settings, request: RepairRequest) -> RepairOutcome:
    """Put a cache directory in order, or say what that would take; what is in doubt is compared with the origin.

    Raises:
        LockedError: A gateway has the directory open.
        FormatError: A newer program wrote it, or it belongs to another origin than the settings name.
        DamagedError: Nothing says whose directory it is.
        DiskFullError, DiskFailedError: The disk refused; it can be done again.
    """
    root, filesystem = Path(settings.cache_dir), PosixFilesystem(settings.cache_dir)
    layout = _known_layout(filesystem)
    if layout is not None and settings.origin not in {"", layout.origin}:
        raise FormatError(
            f"the cache directory belongs to the origin {layout.origin}, not to {settings.origin}; repeat this without "
            f"--origin (and without `origin` in the settings), or with --origin {layout.origin}"
        )
    origin = layout.origin if layout is not None else settings.origin
    asked = replace(settings, origin=origin)

    def open_client() -> OriginClient:
        clock = SystemClock()
        limiter = Limiter(_limiter_settings(asked), clock)
        credentials = credential_source(asked)
        return OriginClient(
            origin_settings(asked), limiter=limiter, credentials=credentials, clock=clock, rng=request.random
        )

    def take_segment_id(index: Index) -> int:
        return spare_segment_id(filesystem, index, 0 if layout is None else layout.node)

    with RocksCopies(str(root / INDEX_DIRECTORY)) as copies:
        return repair(
            RepairParts(
                filesystem,
                copies,
                RocksRepairHome(str(root)),
                origin,
                OriginLook(open_client) if origin else None,
                request.label,
                request.say,
                request.progress,
                Refetching(
                    filesystem,
                    open_client,
                    take_segment_id,
                    request.say,
                    room_bytes=_room_bytes(settings, filesystem),
                )
                if request.should_refetch
                else None,
            ),
            is_dry=request.is_dry,
        )


def _room_bytes(settings: Settings, filesystem: PosixFilesystem) -> int:
    """Say how many bytes segments may still take: up to the cache's size, and above the disk's reserve."""
    segments = Path(settings.cache_dir) / SEGMENTS_DIRECTORY
    used = sum(path.stat().st_size for path in segments.iterdir()) if segments.is_dir() else 0
    spare = filesystem.free_bytes() - disk_reserve_bytes(filesystem.total_bytes())
    return max(0, min(settings.cache_size - used, spare))


def _known_layout(filesystem: PosixFilesystem) -> Layout | None:
    """Read FORMAT; None where it is lost."""
    try:
        return read_layout(filesystem)
    except (FileNotFoundError, DamagedError):
        return None


def object_checksums(declared: tuple[Checksum, ...], size: int | None) -> ObjectChecksums:
    """Say how the checksums of a completed upload come about, and hold them against what the client declared."""

    def compute(upload: UploadRecord, parts: tuple[PartSize, ...]) -> tuple[Checksum, ...]:
        return completed_checksums(
            upload.checksum_algorithm,
            upload.checksum_type,
            [(part.size, part.checksums) for part in parts],
            declared=declared,
            size=size,
        )

    return compute


def _engine_settings(settings: Settings) -> EngineSettings:
    return EngineSettings(
        origin=settings.origin,
        cache_bytes=settings.cache_size,
        dirty_bytes_limit=settings.dirty_bytes_limit,
        pinned_bytes_limit=settings.pinned_bytes_limit,
        dirty_wait_s=settings.dirty_wait_s,
        upload_ttl_s=settings.upload_ttl,
        scrub_bytes_per_s=settings.scrub_bytes_per_s,
        flush=FlushSettings(
            concurrency=settings.flush_concurrency, origin_timeout_s=settings.origin_timeout_s
        ),
        early_flush=EarlyFlushSettings(bytes_min=settings.early_flush_bytes),
        readahead=ReadaheadSettings(memory_bytes=settings.readahead_memory),
    )


class OwnStores:
    """The stores of client keys that have credentials of their own at the origin; one for each set of credentials."""

    def __init__(self, make: Callable[[Authority], ObjectStore], believed_s: float) -> None:
        """Take what makes a store, and how long the origin's word on what may be read is good."""
        self._make = make
        self._believed_s = believed_s
        self._made: dict[OriginKeys, ObjectStore] = {}

    def __call__(self, keys: OriginKeys) -> ObjectStore:
        """Give the store of these credentials, made at the first call."""
        made = self._made.get(keys)
        if made is None:
            authority = Authority(f"own-{len(self._made) + 1}", own_credentials(keys), self._believed_s)
            made = self._made[keys] = self._make(authority)
        return made


def own_credentials(keys: OriginKeys) -> CredentialSource:
    """Make the source of a client key's own credentials at the origin."""
    if keys.profile:
        return ChainCredentials(keys.profile)
    return StaticCredentials(Credentials(keys.access_key, keys.secret_key, keys.session_token))


def origin_settings(settings: Settings) -> OriginSettings:
    """Say where the origin is, as its clients want to know it."""
    return OriginSettings(
        endpoint_url=settings.origin,
        region=settings.origin_region,
        is_virtual_hosted=_is_virtual_hosted(settings),
        answer_s=settings.origin_timeout_s,
        stall_s=settings.origin_timeout_s,
        # Whom the limiter lets through must not wait for a connection: that would count as the origin's time.
        connections_max=max(CONNECTIONS_MIN, settings.origin_concurrency),
    )


def _is_virtual_hosted(settings: Settings) -> bool:
    """AWS asks for virtual-host addressing; other origins mostly know paths only."""
    if settings.origin_addressing is Addressing.AUTO:
        return settings.origin.removeprefix("https://").endswith(".amazonaws.com")
    return settings.origin_addressing is Addressing.VIRTUAL


def _limiter_settings(settings: Settings) -> LimiterSettings:
    return LimiterSettings(
        concurrency_max=settings.origin_concurrency,
        bucket_concurrency_max=settings.origin_bucket_concurrency or None,
        requests_per_s=settings.origin_requests_per_s or None,
        bucket_requests_per_s=settings.origin_bucket_requests_per_s or None,
        flush_requests_per_s=settings.flush_requests_per_s or None,
        bytes_per_s=settings.origin_bytes_per_s or None,
        flush_bytes_per_s=settings.flush_bytes_per_s or None,
    )


def credential_source(settings: Settings) -> CredentialSource:
    """Make the source of the origin's keys: those of the settings, else the standard AWS chain."""
    if not settings.origin_access_key:
        return ChainCredentials()
    return StaticCredentials(
        Credentials(settings.origin_access_key, settings.origin_secret_key, settings.origin_session_token)
    )
