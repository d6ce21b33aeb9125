"""Which fills are on their way: who looks for one finds it here from the step in which readers may join it.

Most are shown from their beginning on, before the origin has answered, so that whoever comes meanwhile joins. One that waits for its
turn at the origin behind all else is shown when it has it. The table owns the tasks of all of them, shown or not.
"""

import asyncio

from storage.errors import EngineClosedError, StorageError
from storage.fills import Fill
from storage.openings import Opening


class FillTable:
    """The fills in progress, by version; owns their tasks."""

    def __init__(self) -> None:
        self._fills: dict[int, list[Fill]] = {}
        self._tasks: dict[Fill, asyncio.Task[None]] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """Count the fills in progress."""
        return len(self._tasks)

    def find(self, version_id: int, position: int) -> Fill | None:
        """Give a fill that a reader of this version should join at `position`.

        Not one that has ended: the index knows more.
        """
        for fill in self._fills.get(version_id, ()):
            if not fill.is_finished and fill.can_serve(position):
                return fill
        return None

    def next_start(self, version_id: int, position: int) -> int | None:
        """Say where the next fill of this version above `position` begins, so that a new one need not overlap it."""
        starts = [f.span.start for f in self._fills.get(version_id, ()) if f.span.start > position]
        return min(starts, default=None)

    def bringing(self, version_id: int, position: int) -> Fill | None:
        """Give a fill on its way that will bring the byte at `position`, however far it is from it yet."""
        for fill in self._fills.get(version_id, ()):
            if fill.is_kept and fill.span.start <= position < fill.span.stop and fill.is_on_its_way:
                return fill
        return None

    def has(self, version_id: int) -> bool:
        """Whether anything of the version is on its way."""
        return version_id in self._fills

    def give_up(self, fill: Fill) -> bool:
        """End a fill that nobody reads from before it is answered; False where somebody does, or it is."""
        if not fill.give_up():
            return False
        task = self._tasks.get(fill)
        if task is not None:
            task.cancel()  # before its first step too: nothing is asked then
        return True

    def start(
        self,
        version_id: int,
        fill: Fill,
        opening: Opening,
        *,
        is_shown: bool = True,
        is_answered: bool = False,
    ) -> None:
        """Run a fill; it can be found from this step on, before the origin has answered, or from `show` on.

        With `is_answered` its opening holds an answer already, which is closed whatever becomes of the fill.

        Raises:
            EngineClosedError: The owner has stopped; the fill is ended and `opening` is not entered.
        """
        if self._is_closed:
            fill.end()
            raise EngineClosedError("the gateway is stopping", retry_after_s=5.0)
        if is_answered:
            fill.answered()
        if is_shown:
            self.show(version_id, fill)
        task = asyncio.get_running_loop().create_task(fill.run(opening), name=f"fill-{version_id}")
        self._tasks[fill] = task
        task.add_done_callback(lambda ended: self._ended(version_id, fill, ended))

    def show(self, version_id: int, fill: Fill) -> None:
        """Let a fill that was started be found from this step on; once."""
        self._fills.setdefault(version_id, []).append(fill)
        fill.shown()

    def shows(self, version_id: int, fill: Fill) -> bool:
        """Whether a fill can be found."""
        return fill in self._fills.get(version_id, ())

    def _ended(self, version_id: int, fill: Fill, task: asyncio.Task[None]) -> None:
        del self._tasks[fill]
        fills = self._fills.get(version_id, [])
        if fill in fills:
            fills.remove(fill)
        if not fills:
            self._fills.pop(version_id, None)
        if not fill.is_finished:
            # Cancelled before its first step, so nothing of it ran.
            fill.failure = fill.cut
            fill.end()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            report = {"message": f"{fill!r} failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(report)

    async def close(self, cut: StorageError | None = None) -> None:
        """End all fills where they are and start no more; what is whole is kept, and who waits gets `cut`."""
        self._is_closed = True
        if cut is not None:
            for fill in self._tasks:
                fill.cut = cut
        tasks = tuple(self._tasks.values())
        for fill, task in self._tasks.items():
            if fill.has_answer:
                # Behind its first step, which enters its opening: an answer is closed by being left.
                task.get_loop().call_soon(task.cancel)
            else:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)
