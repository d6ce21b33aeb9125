"""Workers without threads: each call runs at once, in the event loop."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InlineWorkers:
    """`storage.workers.Workers` for tests that want one order of events."""

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` before anything else happens."""
        return call(*args, **kwargs)

    def start(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Run `call` before anything else happens, too."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(call(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  it is for whoever awaits it
            done.set_exception(error)
        return done

    def close(self) -> None:
        """Nothing runs."""
