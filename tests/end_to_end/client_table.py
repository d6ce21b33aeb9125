"""Which client does which scenario through the gateway: the table of docs/s3-compatibility.md, which test_client_table.py checks."""

from enum import StrEnum
from typing import Final

from tests.end_to_end.client_programs import PROGRAMS


class Scenario(StrEnum):
    """What is asked of clients, as the table heads it."""

    SMALL = "small objects"
    """Put, get, list, copy and delete."""

    NAMES = "odd names"
    """Blanks, `+`, `%`, `&`, `=`, `#` and letters of other alphabets in keys."""

    LARGE = "multipart"
    """An object of 12 MiB and a bit, in parts, there and back."""

    RANGES = "ranges"
    """Parts of an object, at its edges and across its parts."""

    SYNC = "sync"
    """A tree there and back; the second time nothing is sent; what is removed is removed."""

    COLUMNS = "Parquet"
    """A table written, and a column of it read with a condition."""


_OBJECTS: Final = (Scenario.SMALL, Scenario.NAMES, Scenario.LARGE)
_OF_LIBRARIES: Final = (*_OBJECTS, Scenario.RANGES)

DOES: Final[dict[str, tuple[Scenario, ...]]] = {
    "boto3": _OF_LIBRARIES,
    "boto3 with aws-crt": _OBJECTS,
    "awscli": (*_OF_LIBRARIES, Scenario.SYNC),
    "s3cmd": (*_OBJECTS, Scenario.SYNC),
    "s5cmd": (*_OBJECTS, Scenario.SYNC),
    "rclone": (*_OF_LIBRARIES, Scenario.SYNC),
    "rclone mount": _OF_LIBRARIES,
    "minio-py": _OF_LIBRARIES,
    "s3fs": _OF_LIBRARIES,
    "pyarrow": (*_OF_LIBRARIES, Scenario.COLUMNS),
    "obstore": _OF_LIBRARIES,
    "polars": (Scenario.COLUMNS,),
    "DuckDB": (Scenario.COLUMNS,),
    "s3torchconnector": _OF_LIBRARIES,
}
"""What each client has words for; a scenario that is not here is not the client's."""

NOTES: Final[dict[str, str]] = {
    "DuckDB": "where its extension httpfs is installed beside it; it is no part of the package",
    "rclone mount": "where `/dev/fuse` and `fusermount3` are",
    "s3torchconnector": "its client, s3torchconnectorclient; where it is installed",
}

SLOW: Final = frozenset(
    {
        *(("awscli", scenario) for scenario in DOES["awscli"]),
        ("rclone", Scenario.NAMES),
        ("rclone", Scenario.SYNC),
        ("s3cmd", Scenario.LARGE),
        ("s3cmd", Scenario.NAMES),
        ("s3cmd", Scenario.SYNC),
        ("s5cmd", Scenario.NAMES),
        ("s5cmd", Scenario.SMALL),
    }
)
"""What starts a program many times; it runs with FOREBAY_TEST_LONG. `aws s3 sync` and `rclone sync` are in other tests too."""

assert set(DOES) == set(PROGRAMS), "every client has a line in the table"
