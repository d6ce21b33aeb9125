"""What the gateway says of the keys it has acknowledged, to who compares them with the origin. Pure values."""

import msgspec

from storage.types import Checksum


class AcknowledgedLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the gateway has acknowledged of one key, for who compares it with the origin.

    Attributes:
        state: "" where the origin has confirmed it, else where its flush stands.
        part_runs: Sizes of the parts of an upload, as (size, how many of them in a row); empty for a single PUT.
    """

    key: str
    size: int = 0
    etag: str = ""
    origin_etag: str = ""
    state: str = ""
    is_tombstone: bool = False
    acknowledged_at_s: float = 0.0
    reason: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    user_metadata: tuple[tuple[str, str], ...] = ()
    tags: str = ""
    checksums: tuple[Checksum, ...] = ()
    part_runs: tuple[tuple[int, int], ...] = ()


class AcknowledgedPage(msgspec.Struct, frozen=True):
    """Lines in the order of keys. `next_after` is the key to go on after, "" at the end."""

    lines: tuple[AcknowledgedLine, ...]
    next_after: str = ""
