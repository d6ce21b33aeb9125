"""Workers without threads: each call runs at once, in the event loop."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InlineWorkers:
    """`storage.workers.Workers` for tests that want one order of events."""

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` before anything else happens."""
        return call(*args, **kwargs)

    def close(self) -> None:
        """Nothing runs."""
