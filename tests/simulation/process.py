"""One process of a simulated gateway: the whole engine over the fakes, with rarer duties."""

import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, ClassVar, Final, cast

from storage.engine import Engine
from storage.engine_parts import EngineParts, EngineSettings, EngineWorkers
from storage.filesystem import Filesystem
from storage.flush_events import FlushSettings
from storage.life import Life
from storage.origin.admission import Limiter
from storage.origin.client import OriginClient
from storage.origin.endpoint import OriginSettings
from storage.origin.facts import FactsSource
from storage.origin.limiter import LimiterSettings
from storage.policy import Policy, PolicyTable
from storage.recovery import IndexHome
from storage.upkeep import Duty, Upkeep
from tests.simulation.loop import QueueWorkers, VirtualClock
from tests.simulation.network import SimCredentials, SimQuestions, SimTransport
from tests.simulation.origin import SimOrigin

if TYPE_CHECKING:
    from storage.origin.control import ControlLane

FLUSH: Final = FlushSettings(concurrency=3, deletes_max=4)
ORIGIN: Final = OriginSettings(endpoint_url="http://origin")


class SimLife(Life):
    """A life with rarer duties: what comes every quarter of a second would take all of the time of an outage of hours."""

    def upkeep(self, count_levels: Callable[[], None]) -> Upkeep:
        """Give the duties."""
        components = self.components

        async def count() -> None:
            count_levels()

        return Upkeep(
            self.parts.clock,
            (
                Duty("reserve ids", 20.0, self.reserve_ids),
                Duty("count levels", 40.0, count, needs_writes=False),
                Duty("checkpoint", 30.0, components.applier.checkpoint),
                Duty(
                    "expire uploads", 900.0, lambda: components.uploads.expire(upload_ttl_s=7 * 24 * 3600.0)
                ),
                Duty("compact the journal", 100.0, components.compaction.compact),
            ),
            lambda: not components.state.failure,
        )


class SimEngine(Engine):
    """An engine of such lives."""

    life_type: ClassVar[type[Life]] = SimLife


def make_parts(
    origin: SimOrigin,
    transport: SimTransport,
    *,
    clock: VirtualClock,
    draws: random.Random,
    at_call: Callable[[], None],
    directory: tuple[Filesystem, IndexHome],
    policy: Policy,
    cache_bytes: int,
) -> EngineParts:
    """Give an engine's adapters: all fakes, but for what turns calls into requests and answers into values."""
    limiter = Limiter(LimiterSettings(), clock)
    credentials = SimCredentials(origin)
    client = OriginClient(ORIGIN, limiter=limiter, credentials=credentials, clock=clock, rng=draws)
    client._caller._transport = transport
    table = PolicyTable(default=policy)
    filesystem, index_home = directory
    settings = EngineSettings(
        origin=ORIGIN.endpoint_url,
        cache_bytes=cache_bytes,
        dirty_bytes_limit=cache_bytes // 2,
        dirty_wait_s=5.0,
        flush=FLUSH,
    )
    return EngineParts(
        settings=settings,
        filesystem=filesystem,
        index_home=index_home,
        origin=client,
        control=cast("ControlLane", None),  # nothing here lists or deletes buckets
        facts=FactsSource(SimQuestions(origin), clock),
        limiter=limiter,
        clock=clock,
        rng=draws,
        workers=EngineWorkers(*(QueueWorkers(draws, at_call) for _ in range(3))),
        policies=lambda: table,
        object_checksums=lambda _declared, _size: lambda _upload, _parts: (),
        adapters=AsyncExitStack(),
        eviction=settings.new_policy(),
    )
