"""One version of an object, open for reading."""

from storage.bodies import VersionBody
from storage.body_source import BodyParts
from storage.fills import Fill
from storage.holdings import Held
from storage.reasons import joined_reasons
from storage.types import ByteRange, CacheResult, ObjectName


class Opened:
    """`requests.OpenObject`: a version, pinned since its row was read, and the fill that its opening began."""

    __slots__ = ("_body", "_fill", "_held", "_name", "_parts", "_reason", "record", "result")

    def __init__(
        self,
        parts: BodyParts,
        name: ObjectName,
        held: Held,
        result: CacheResult,
        reason: str = "",
        fill: Fill | None = None,
    ) -> None:
        """Take over the pin of `held`, and the join of `fill`."""
        self._parts = parts
        self._name = name
        self._held: Held | None = held
        self._fill = fill
        self.record = held.record
        self.result = result
        self._reason = reason
        self._body: VersionBody | None = None

    @property
    def reason(self) -> str:
        """Say why the read was answered as it was, of the opening and of what was read since; see `storage/reasons.py`."""
        return joined_reasons(self._reason, "" if self._body is None else self._body.reason)

    def read(self, span: ByteRange, *, is_copied: bool = False) -> VersionBody:
        """Plan the bytes of `span`; see `requests.OpenObject.read`.

        Raises:
            ObjectChangedError: It is not the span that was opened for, or read before, and the version is gone.
        """
        held = self._held_for(span)
        fill, self._fill = self._fill, None
        body = self._body = VersionBody(
            self._parts,
            self._name,
            held,
            span,
            fill=fill,
            is_stale=self.result is CacheResult.STALE,
            is_copied=is_copied,
        )
        return body

    def _held_for(self, span: ByteRange) -> Held:
        """Give what was held since the opening, once; where that is not enough, look again."""
        held = self._held
        if held is not None and held.span.start <= span.start and span.stop <= held.span.stop:
            self._held = None
            return held
        return self._parts.holdings.hold(self._name, self.record, span)

    def take_fill(self) -> Fill | None:
        """Give the fill that the opening began or joined, if it has not been read from; whoever takes it leaves it."""
        fill, self._fill = self._fill, None
        return fill

    async def close(self) -> None:
        """Let go of the pin, and of a fill that nobody reads."""
        held, self._held = self._held, None
        if held is not None:
            held.pin.release()
        fill, self._fill = self._fill, None
        if fill is not None:
            fill.leave()


def joined(fill: Fill | None) -> Fill | None:
    """Join a fill for whoever opens; None where it has ended, and the index knows what it brought."""
    if fill is None or fill.is_finished:
        return None
    fill.join()
    return fill
