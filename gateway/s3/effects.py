"""What becomes of each operation that the gateway does not answer itself: one table, relayed or refused. Pure.

Configuration is read and written without a flush: it depends on no object. What reads or changes an object needs it at the
origin as it was acknowledged; what reads or governs all objects of a bucket needs all of them there. A query name that the
gateway has never heard of may mean any of it, so it gets the most careful effect that its method and level allow.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.s3.routes import Level, Operation
from storage.effects import Changes, Effect, Needs

_CONFIGURATION_READ: Final = Effect(Needs.NOTHING, Changes.NOTHING, is_repeatable=True)
_CONFIGURATION_WRITE: Final = Effect(Needs.NOTHING, Changes.CONFIGURATION, is_repeatable=True)
_CONFIGURATION_POST: Final = Effect(Needs.NOTHING, Changes.CONFIGURATION)
_FACTS_WRITE: Final = Effect(Needs.BUCKET, Changes.FACTS, is_repeatable=True)
_BUCKET_READ: Final = Effect(Needs.BUCKET, Changes.NOTHING, is_repeatable=True)
_KEY_READ: Final = Effect(Needs.KEY, Changes.NOTHING, is_repeatable=True)
_KEY_WRITE: Final = Effect(Needs.KEY, Changes.KEY, is_repeatable=True)
_KEY_POST: Final = Effect(Needs.KEY, Changes.KEY)
_ANY_WRITE: Final = Effect(Needs.BUCKET, Changes.OBJECTS)

EFFECTS: Final[Mapping[Operation, Effect]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                Operation.GET_BUCKET_ABAC,
                Operation.GET_BUCKET_ACCELERATE_CONFIGURATION,
                Operation.GET_BUCKET_ACL,
                Operation.GET_BUCKET_ANALYTICS_CONFIGURATION,
                Operation.GET_BUCKET_CORS,
                Operation.GET_BUCKET_ENCRYPTION,
                Operation.GET_BUCKET_INTELLIGENT_TIERING_CONFIGURATION,
                Operation.GET_BUCKET_INVENTORY_CONFIGURATION,
                Operation.GET_BUCKET_LIFECYCLE_CONFIGURATION,
                Operation.GET_BUCKET_LOGGING,
                Operation.GET_BUCKET_METADATA_CONFIGURATION,
                Operation.GET_BUCKET_METADATA_TABLE_CONFIGURATION,
                Operation.GET_BUCKET_METRICS_CONFIGURATION,
                Operation.GET_BUCKET_NOTIFICATION_CONFIGURATION,
                Operation.GET_BUCKET_OWNERSHIP_CONTROLS,
                Operation.GET_BUCKET_POLICY,
                Operation.GET_BUCKET_POLICY_STATUS,
                Operation.GET_BUCKET_REPLICATION,
                Operation.GET_BUCKET_REQUEST_PAYMENT,
                Operation.GET_BUCKET_TAGGING,
                Operation.GET_BUCKET_VERSIONING,
                Operation.GET_BUCKET_WEBSITE,
                Operation.GET_OBJECT_LOCK_CONFIGURATION,
                Operation.GET_PUBLIC_ACCESS_BLOCK,
                Operation.LIST_BUCKET_ANALYTICS_CONFIGURATIONS,
                Operation.LIST_BUCKET_INTELLIGENT_TIERING_CONFIGURATIONS,
                Operation.LIST_BUCKET_INVENTORY_CONFIGURATIONS,
                Operation.LIST_BUCKET_METRICS_CONFIGURATIONS,
            ),
            _CONFIGURATION_READ,
        ),
        **dict.fromkeys(
            (
                Operation.DELETE_BUCKET_ANALYTICS_CONFIGURATION,
                Operation.DELETE_BUCKET_CORS,
                Operation.DELETE_BUCKET_INTELLIGENT_TIERING_CONFIGURATION,
                Operation.DELETE_BUCKET_INVENTORY_CONFIGURATION,
                Operation.DELETE_BUCKET_LIFECYCLE,
                Operation.DELETE_BUCKET_METADATA_CONFIGURATION,
                Operation.DELETE_BUCKET_METADATA_TABLE_CONFIGURATION,
                Operation.DELETE_BUCKET_METRICS_CONFIGURATION,
                Operation.DELETE_BUCKET_OWNERSHIP_CONTROLS,
                Operation.DELETE_BUCKET_POLICY,
                Operation.DELETE_BUCKET_REPLICATION,
                Operation.DELETE_BUCKET_TAGGING,
                Operation.DELETE_BUCKET_WEBSITE,
                Operation.DELETE_PUBLIC_ACCESS_BLOCK,
                Operation.PUT_BUCKET_ABAC,
                Operation.PUT_BUCKET_ACCELERATE_CONFIGURATION,
                Operation.PUT_BUCKET_ACL,
                Operation.PUT_BUCKET_ANALYTICS_CONFIGURATION,
                Operation.PUT_BUCKET_CORS,
                Operation.PUT_BUCKET_INTELLIGENT_TIERING_CONFIGURATION,
                Operation.PUT_BUCKET_INVENTORY_CONFIGURATION,
                Operation.PUT_BUCKET_LIFECYCLE_CONFIGURATION,
                Operation.PUT_BUCKET_LOGGING,
                Operation.PUT_BUCKET_METRICS_CONFIGURATION,
                Operation.PUT_BUCKET_NOTIFICATION_CONFIGURATION,
                Operation.PUT_BUCKET_OWNERSHIP_CONTROLS,
                Operation.PUT_BUCKET_POLICY,
                Operation.PUT_BUCKET_REPLICATION,
                Operation.PUT_BUCKET_REQUEST_PAYMENT,
                Operation.PUT_BUCKET_TAGGING,
                Operation.PUT_BUCKET_WEBSITE,
                Operation.PUT_PUBLIC_ACCESS_BLOCK,
                Operation.UPDATE_BUCKET_METADATA_ANNOTATION_TABLE_CONFIGURATION,
                Operation.UPDATE_BUCKET_METADATA_INVENTORY_TABLE_CONFIGURATION,
                Operation.UPDATE_BUCKET_METADATA_JOURNAL_TABLE_CONFIGURATION,
            ),
            _CONFIGURATION_WRITE,
        ),
        Operation.CREATE_BUCKET_METADATA_CONFIGURATION: _CONFIGURATION_POST,
        Operation.CREATE_BUCKET_METADATA_TABLE_CONFIGURATION: _CONFIGURATION_POST,
        Operation.DELETE_BUCKET_ENCRYPTION: _FACTS_WRITE,
        Operation.PUT_BUCKET_ENCRYPTION: _FACTS_WRITE,
        Operation.PUT_BUCKET_VERSIONING: _FACTS_WRITE,
        Operation.PUT_OBJECT_LOCK_CONFIGURATION: _FACTS_WRITE,
        Operation.LIST_OBJECT_VERSIONS: _BUCKET_READ,
        **dict.fromkeys(
            (
                Operation.GET_OBJECT_ACL,
                Operation.GET_OBJECT_ANNOTATION,
                Operation.GET_OBJECT_ATTRIBUTES,
                Operation.GET_OBJECT_LEGAL_HOLD,
                Operation.GET_OBJECT_RETENTION,
                Operation.GET_OBJECT_TAGGING,
                Operation.GET_OBJECT_TORRENT,
                Operation.LIST_OBJECT_ANNOTATIONS,
                Operation.SELECT_OBJECT_CONTENT,
            ),
            _KEY_READ,
        ),
        **dict.fromkeys(
            (
                Operation.DELETE_OBJECT_ANNOTATION,
                Operation.DELETE_OBJECT_TAGGING,
                Operation.PUT_OBJECT_ACL,
                Operation.PUT_OBJECT_ANNOTATION,
                Operation.PUT_OBJECT_LEGAL_HOLD,
                Operation.PUT_OBJECT_RETENTION,
                Operation.PUT_OBJECT_TAGGING,
                Operation.UPDATE_OBJECT_ENCRYPTION,
            ),
            _KEY_WRITE,
        ),
        Operation.RESTORE_OBJECT: _KEY_POST,
    }
)
"""The operations that are relayed, and what each needs and changes."""

ENCRYPTED_READ: Final = _KEY_READ
"""What GetObject and HeadObject need and change when they bring a key of the customer's (SSE-C)."""

REFUSED: Final[Mapping[Operation, str]] = MappingProxyType(
    {
        Operation.CREATE_SESSION: "It hands out keys of the origin's, which the gateway could not check.",
        Operation.RENAME_OBJECT: "It names two objects, of which the gateway would keep only one in step.",
    }
)
"""The operations that are answered 501, and why."""


def unknown_effect(method: str, level: Level) -> Effect | None:
    """Give the effect of an operation that nobody here has heard of: the most careful one for its method and level.

    A write to one object may take another one of the bucket for its source or its target, as a rename does. None for a write
    that names no bucket: nothing here says what it would change.
    """
    if method in {"GET", "HEAD"}:
        return {Level.SERVICE: _CONFIGURATION_READ, Level.BUCKET: _BUCKET_READ, Level.OBJECT: _KEY_READ}[
            level
        ]
    return None if level is Level.SERVICE else _ANY_WRITE
