"""The table of what is relayed."""

import pytest

from gateway.operations.table import OPERATIONS
from gateway.s3.effects import EFFECTS, REFUSED, unknown_effect
from gateway.s3.routes import ROUTES, Level, Operation
from storage.effects import Changes, Needs

LEVELS = {row.operation: row.level for row in ROUTES}
METHODS = {row.operation: row.method for row in ROUTES}
OTHERS = {Operation.UNKNOWN, Operation.OPTIONS_OBJECT}
ASKED_BY_POST = {Operation.SELECT_OBJECT_CONTENT}


def test_each_operation_has_one_place() -> None:
    """Every operation that a request can ask for is answered here, or relayed, or refused with a reason."""
    places = (set(OPERATIONS), set(EFFECTS), set(REFUSED), OTHERS)

    assert sum(len(place) for place in places) == len(set(Operation))
    assert set[Operation]().union(*places) == set(Operation)
    assert all(REFUSED.values())


@pytest.mark.parametrize("operation", sorted(EFFECTS))
def test_effect_fits_its_request(operation: Operation) -> None:
    """A read changes nothing; what has a key needs and changes that; configuration needs no object at the origin."""
    effect, level = EFFECTS[operation], LEVELS[operation]
    is_read = METHODS[operation] in {"GET", "HEAD"} or operation in ASKED_BY_POST

    assert effect.is_read == is_read
    assert not (effect.is_repeatable and METHODS[operation] == "POST" and not is_read)
    if level is Level.OBJECT:
        assert effect.needs is Needs.KEY
        assert effect.changes in {Changes.NOTHING, Changes.KEY}
    else:
        assert effect.needs is not Needs.KEY
        assert effect.changes is not Changes.KEY


def test_what_depends_on_all_objects_flushes_all() -> None:
    """Versions are listed, and facts of the bucket changed, over what was acknowledged; nothing else waits for a bucket."""
    needing = {operation for operation, effect in EFFECTS.items() if effect.needs is Needs.BUCKET}
    changing = {operation for operation, effect in EFFECTS.items() if effect.changes is Changes.FACTS}

    assert changing == {
        Operation.DELETE_BUCKET_ENCRYPTION,
        Operation.PUT_BUCKET_ENCRYPTION,
        Operation.PUT_BUCKET_VERSIONING,
        Operation.PUT_OBJECT_LOCK_CONFIGURATION,
    }
    assert needing - changing <= {Operation.LIST_OBJECT_VERSIONS}


@pytest.mark.parametrize(
    ("method", "level", "needs", "changes"),
    [
        ("GET", Level.SERVICE, Needs.NOTHING, Changes.NOTHING),
        ("HEAD", Level.BUCKET, Needs.BUCKET, Changes.NOTHING),
        ("GET", Level.OBJECT, Needs.KEY, Changes.NOTHING),
        ("PUT", Level.BUCKET, Needs.BUCKET, Changes.OBJECTS),
        ("POST", Level.OBJECT, Needs.BUCKET, Changes.OBJECTS),
        ("DELETE", Level.OBJECT, Needs.BUCKET, Changes.OBJECTS),
        ("PATCH", Level.OBJECT, Needs.BUCKET, Changes.OBJECTS),
    ],
)
def test_unknown_effect_is_the_most_careful_one(
    method: str, level: Level, needs: Needs, changes: Changes
) -> None:
    """What nobody here has heard of needs and changes all that a request of its kind could."""
    effect = unknown_effect(method, level)

    assert effect is not None
    assert (effect.needs, effect.changes) == (needs, changes)
    assert effect.is_repeatable == effect.is_read


def test_unknown_effect_when_a_write_names_no_bucket() -> None:
    """Nothing says what it would change."""
    assert unknown_effect("PUT", Level.SERVICE) is None
