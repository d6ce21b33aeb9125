"""Cold reads on their way: equal ones ask the origin once, and what a warm-up has asked for is joined by the clients that come.

    a client   ─> the same is asked for a client: join it
               ─> the same is asked for a warm-up, and has had its turn at the origin: join that; where it fails, ask oneself
               └> ask
    a warm-up  ─> the same is asked for a client, or another warm-up of its kind: join it
               └> ask behind all others; where a client has asked meanwhile, or it is wanted no more, nothing is sent (NotNeededError)

So no client waits in the line of the lowest priority, and what was sent for one is not asked for again. A question of a warm-up that
has had its turn is lent: `_Loan`. Where one more request has to follow, it is a client's if one waits for it; else the loan is at an
end, and who comes then asks.

What is asked is a stretch of an object, since a reader of another one need not wait for its bytes.
"""

from functools import partial
from typing import Final

from storage.asks import Ask
from storage.errors import NotNeededError, OriginUnavailableError, OverloadedError
from storage.holdings import Holdings
from storage.origin_reads import OriginReads, Told, late
from storage.singleflight import SingleFlight
from storage.types import BLOCK_BYTES, ObjectName, RangeSpec

Stretch = tuple[ObjectName, int]
"""An object, and the block in which what is wanted of it begins."""

Flights = SingleFlight[Stretch, Told | None]


class _Loan:
    """A question of a warm-up that clients may join; `clients` wait for it now."""

    __slots__ = ("clients", "flights")

    def __init__(self, flights: Flights) -> None:
        self.flights: Final = flights
        self.clients = 0


class ColdReads:
    """The cold reads of clients, or of those who ask ahead of them."""

    def __init__(self, reads: OriginReads, holdings: Holdings, clients: "ColdReads | None" = None) -> None:
        """Begin with none.

        Args:
            reads: Asks the origin.
            holdings: Says what is here.
            clients: Those ahead of which these are asked; None for clients' own.
        """
        self._reads = reads
        self._holdings = holdings
        self._clients = clients
        self._loans: dict[Stretch, _Loan] = {}
        self.flights: Final[Flights] = SingleFlight()

    def __repr__(self) -> str:
        return f"<ColdReads: {len(self._loans)} lent, {self.flights!r}>"

    def is_asking(self, stretch: Stretch) -> bool:
        """Whether the origin has been asked for a stretch, by these or ahead of them, and has not answered."""
        return stretch in self.flights or stretch in self._loans

    async def read(self, name: ObjectName, wanted: RangeSpec | None, ask: Ask) -> Told | None:
        """Give what the origin says of an object, and the fill that brings it; None where the row is to be read again.

        Raises:
            NotNeededError: Only of what is asked ahead of clients.
            StorageError: As `OriginReads.read`.
        """
        stretch, clients = stretch_of(name, wanted), self._clients
        if clients is None:
            loan = self._loans.get(stretch)
            if loan is not None and stretch in loan.flights:
                return await self._borrowed(loan, stretch)
            work = partial(self._reads.read, name, wanted)
        else:
            if stretch in clients.flights:
                return await self._of_clients(clients, stretch)
            work = partial(self._lent, clients, stretch, wanted, ask)
        is_late = stretch in self.flights
        told = await self.flights.run(stretch, work)
        return late(told) if is_late and told is not None else told

    async def close(self) -> None:
        """End the questions in flight."""
        await self.flights.close()

    # --- of clients --------------------------------------------------------------------------------------------------

    async def _borrowed(self, loan: _Loan, stretch: Stretch) -> Told | None:
        """Join a question of a warm-up; where it fails, there is nothing to tell, and the client looks again and asks itself."""
        loan.clients += 1
        try:
            told = await loan.flights.join(stretch)
        except (OriginUnavailableError, OverloadedError, NotNeededError):
            return None
        finally:
            loan.clients -= 1
        return None if told is None else late(told)

    def _is_served(self, stretch: Stretch) -> bool:
        """Whether a client's cold read has been asked for, by these or ahead of them, or has brought something."""
        record = self._holdings.record(stretch[0])
        return self.is_asking(stretch) or (record is not None and bool(record.extents))

    # --- ahead of clients --------------------------------------------------------------------------------------------

    async def _of_clients(self, clients: "ColdReads", stretch: Stretch) -> Told | None:
        """Join a question of a client; where the origin fails there is nothing to tell, and it is to be looked at again."""
        try:
            told = await clients.flights.join(stretch)
        except (OriginUnavailableError, OverloadedError):
            return None
        return None if told is None else late(told)

    async def _lent(
        self, clients: "ColdReads", stretch: Stretch, wanted: RangeSpec | None, ask: Ask
    ) -> Told | None:
        """Ask for a stretch, and lend the question to clients once it may go."""
        name, loan, loans = stretch[0], _Loan(self.flights), clients._loans  # noqa: SLF001  of the same class

        def lend() -> None:
            if loans.get(stretch) is loan:
                return  # sent again
            if clients._is_served(stretch) or not ask.is_wanted():  # noqa: SLF001  of the same class
                raise NotNeededError(f"{name} is asked for by a client, or passed")
            loans[stretch] = loan

        def end_loan() -> None:
            if loans.get(stretch) is loan:
                del loans[stretch]

        def follow_up() -> OriginReads:
            """Give who asks what is still to be asked: a client where one waits; else no client is to wait for it."""
            if loan.clients:
                return clients._reads  # noqa: SLF001  of the same class
            end_loan()
            return self._reads

        try:
            return await self._reads.read(name, wanted, lend, follow_up)
        finally:
            end_loan()


def stretch_of(name: ObjectName, wanted: RangeSpec | None) -> Stretch:
    """Name what readers of the same stretch wait for."""
    start = 0 if wanted is None or wanted.start is None else wanted.start
    return name, start // BLOCK_BYTES
