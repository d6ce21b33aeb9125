"""The clients of the table by name, and how each is started."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.end_to_end import client_commands as commands, client_libraries as libraries
from tests.end_to_end.client_ports import Place

Client = Any
"""A class of these modules: what it has of the ports is what `client_table.DOES` says."""


@dataclass(frozen=True, slots=True)
class Program:
    """A client as the table names it.

    Attributes:
        package: The module whose absence skips its tests; "" for a command.
        start: Makes the client, as a context manager.
    """

    name: str
    package: str
    start: Callable[[Place], AbstractContextManager[Client]]


def _plain(make: Callable[[Place], Client]) -> Callable[[Place], AbstractContextManager[Client]]:
    @contextmanager
    def start(place: Place) -> Iterator[Client]:
        yield make(place)

    return start


PROGRAMS: Final = {
    one.name: one
    for one in (
        Program("boto3", "boto3", _plain(libraries.Boto3)),
        Program("boto3 with aws-crt", "awscrt", _plain(libraries.Boto3Crt)),
        Program("awscli", "awscli", _plain(commands.AwsCli)),
        Program("s3cmd", "", _plain(commands.S3cmd)),
        Program("s5cmd", "", _plain(commands.S5cmd)),
        Program("rclone", "", _plain(commands.Rclone)),
        Program("rclone mount", "", commands.mounted),
        Program("minio-py", "minio", _plain(libraries.MinioPy)),
        Program("s3fs", "s3fs", _plain(libraries.S3fs)),
        Program("pyarrow", "pyarrow", _plain(libraries.Pyarrow)),
        Program("obstore", "obstore", _plain(libraries.Obstore)),
        Program("polars", "polars", _plain(libraries.Polars)),
        Program("DuckDB", "duckdb", _plain(libraries.DuckDb)),
        Program("s3torchconnector", "s3torchconnectorclient", libraries.torch_connector),
    )
}
