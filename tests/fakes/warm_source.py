"""What warm-ups bring, from a store in memory."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from storage.clock import SystemClock
from storage.errors import NoSuchKeyError, StorageError
from storage.listing import ListQuery, ListResult
from storage.stats import Stats
from storage.types import MIB, ObjectName
from storage.warm_jobs import WarmResult
from storage.warm_source import Brought, Wanted
from storage.warmer import Warmer

if TYPE_CHECKING:
    from tests.fakes.scripted_body import Gate


class Store(Protocol):
    """What has the objects: `engine.FakeStore`."""

    stats: Stats

    def data(self, bucket: str, key: str) -> bytes | None:
        """Give an object's bytes; None where there is none."""
        ...

    async def list_objects(self, query: ListQuery, on_generation: Callable[[int | None], None]) -> ListResult:
        """List them."""
        ...


class FakeWarmSource:
    """Brings what the store has, and notes what was `wanted`; `results` says otherwise by key, and a `gate` holds all back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.gate: Gate | None = None
        self.wanted: list[Wanted] = []
        self.results: dict[str, Brought | StorageError] = {}
        self.warmer = Warmer(self, SystemClock(), store.stats)

    @property
    def room_bytes(self) -> int:
        """Have room."""
        return 1024 * MIB

    async def shown(self, name: ObjectName) -> ObjectName:
        """Give the name itself."""
        return name

    async def page(self, query: ListQuery) -> ListResult:
        """List the store."""
        return await self._store.list_objects(query, lambda _: None)

    async def bring(self, wanted: Wanted) -> Brought:
        """Bring it, or do what the test says."""
        if self.gate is not None:
            await self.gate.opened.wait()
        self.wanted.append(wanted)
        result = self.results.get(wanted.name.key)
        if isinstance(result, StorageError):
            raise result
        if result is not None:
            return result
        data = self._store.data(wanted.name.bucket, wanted.name.key)
        if data is None:
            raise NoSuchKeyError(str(wanted.name))
        return Brought(WarmResult.BROUGHT, len(data), len(data))
