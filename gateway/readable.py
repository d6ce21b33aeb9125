"""Sizes and times as people read them. Pure text."""

from datetime import UTC, datetime

from storage.types import GIB, KIB, MIB


def readable(size_bytes: int) -> str:
    """Write a size with a unit."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def readable_time(wall_s: float) -> str:
    """Write a wall time to the second, in UTC."""
    return f"{datetime.fromtimestamp(wall_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
