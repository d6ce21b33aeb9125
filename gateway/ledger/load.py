"""Concurrent clients that write under one prefix, and one book that they write down each request and each answer in.

The requests of one key follow each other, since each key belongs to one client (`client.py`).
"""

import threading
from collections.abc import Callable

from gateway.ledger.book import Book
from gateway.ledger.client import Client, LoadSettings, Numbers, Tally
from gateway.ledger.history import Histories
from gateway.s3_endpoint import S3Endpoint
from storage.clock import Clock


class Load:
    """All clients over one book.

    Args:
        book: Open; the load appends to it.
        histories: What stands in it already.
        connect: Makes a connection, one a client.
        clock: For the time of attempts, and to leave keys alone.
    """

    def __init__(
        self,
        settings: LoadSettings,
        book: Book,
        histories: Histories,
        connect: Callable[[], S3Endpoint],
        clock: Clock,
    ) -> None:
        numbers = Numbers(histories.last_number)
        self._clients = [
            Client(
                settings,
                number,
                book=book,
                known=histories.keys,
                numbers=numbers,
                endpoint=connect(),
                clock=clock,
            )
            for number in range(settings.clients)
        ]

    def run(self, stop: threading.Event) -> Tally:
        """Write with all clients until `stop` is set; what is under way then is waited for.

        Raises:
            OSError: The book's disk failed; nothing is sent that is not in it.
        """
        failures: list[OSError] = []
        threads = [
            threading.Thread(target=_guarded, args=(client, stop, failures), name=f"client-{client.number}")
            for client in self._clients
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return self.tally()

    def tally(self) -> Tally:
        """Give the counts up to now."""
        total = Tally()
        for client in self._clients:
            total.add(client.tally)
        return total


def _guarded(client: Client, stop: threading.Event, failures: list[OSError]) -> None:
    """Run a client; a book that cannot be written ends all of them."""
    try:
        client.run(stop)
    except OSError as error:
        failures.append(error)
        stop.set()
