"""The flush queue's row of a write or delete, as the writer makes it. Pure."""

import msgspec

from storage import keys
from storage.conflict_rules import NO_BASE, Base
from storage.policy import Policy
from storage.records import FORMAT, DirtyEntry, ObjectRecord
from storage.types import ObjectName


def new_entry(
    name: ObjectName,
    record: ObjectRecord | None,
    policy: Policy,
    *,
    now_s: float,
    epoch: int,
    credential_id: str,
) -> DirtyEntry:
    """Make the flush queue's row of a write (`record`) or delete (None); the commit gives it its sequence."""
    return DirtyEntry(
        FORMAT,
        0,
        name.bucket,
        name.key,
        keys.slot(name.bucket, name.key),
        0 if record is None else record.version_id,
        0 if record is None else record.size,
        credential_id,
        now_s,
        flush_after_s=now_s + policy.flush_delay_s if policy.flush_delay_s else 0.0,
        deadline_s=now_s + policy.flush_deadline_s if policy.flush_deadline_s else 0.0,
        epoch=epoch,
    )


def on_base(entry: DirtyEntry, base: Base) -> DirtyEntry:
    """Note in the flush queue's row what the write is made on."""
    if base is NO_BASE:
        return entry
    return msgspec.structs.replace(entry, base_etag=base.etag, own_etags=base.own_etags)
