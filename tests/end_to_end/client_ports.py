"""What the scenarios of the table ask of a client, and where it is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client is sent: a bucket at an endpoint, the keys for it, and a directory of its own."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str
    bucket: str
    directory: Path

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self.endpoint.removeprefix("http://")


class Objects(Protocol):
    """What clients of objects do, one scenario's verbs after the other."""

    def put(self, key: str, body: bytes) -> None:
        """Store an object, in parts where it is large."""
        ...

    def get(self, key: str) -> bytes:
        """Give an object."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Give the keys below a prefix, in any order."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the bucket."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object."""
        ...


class Ranges(Protocol):
    """A client that reads parts of objects."""

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Give the bytes from `start` up to `stop`."""
        ...


class Syncing(Protocol):
    """A client that makes one tree like another."""

    def sync_up(self, tree: Path, prefix: str) -> int:
        """Make what is below a prefix like a tree of files; give how many objects were sent."""
        ...

    def sync_down(self, prefix: str, tree: Path) -> int:
        """Make a tree of files like what is below a prefix; give how many objects came."""
        ...


class Columns(Protocol):
    """A client that keeps tables in objects."""

    def write_table(self, key: str, columns: Mapping[str, list[int]]) -> None:
        """Write a Parquet file."""
        ...

    def read_column(self, key: str, name: str, at_least: int) -> list[int]:
        """Give the values of a column of one that are not less than a bound."""
        ...
