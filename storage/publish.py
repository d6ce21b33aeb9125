"""What a published target is: names under it are names under its source, and a manifest at the origin says which source.

A *target* is a bucket and prefix that a policy names (`published = true`). While nothing is published there (generation 0), it
is a prefix like any other, but read-only. A *manifest* under it, the object `.forebay-published`, names the source that it
shows and the generation, which counts the switches. Writing that one object is the switch: whoever reads the manifest after
it, here or at another gateway, sees the new source whole, and nobody sees a part of it.

Names. Only the prefix differs between a name under a target and the name that is read for it, so both sort alike: a page of
the source, mapped name by name, is the page of the target. The manifest's own name means itself, in a GET; no listing of the
target shows it, nor an object of that name under the source.

Generations. They only grow: the next one is the origin's own plus one, and the manifest is written on the condition that the
origin still holds the one that was read, so of two gateways that publish at once one is refused. A manifest carries the
generations before it with their sources. That is what lets a listing that began under one of them go on, at any gateway,
with a token that carries nothing but a number: a client cannot make up one that opens another prefix to it.

A listing that begins above targets, and is not cut off before them by its delimiter, is made of stretches: what lies before
a target, the target, what lies behind it. A page is of one stretch, so that it, too, is of one generation.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from storage.errors import PublishRefusedError
from storage.listing import ListEntry, ListQuery, ListResult, Position
from storage.policy import ANY_BUCKET, Freshness, FreshnessMode, Policy
from storage.types import KEY_BYTES_MAX, ObjectName

MANIFEST_NAME: Final = ".forebay-published"
"""The manifest's key behind the target's prefix."""

_MANIFEST_END: Final = "/" + MANIFEST_NAME

MANIFEST_FORMAT: Final = 1

MANIFEST_BYTES_MAX: Final = 256 * 1024
"""A manifest of ours is far shorter, its sources as long as keys may be."""

GENERATION_MAX: Final = 2**53 - 1
"""The largest whole number that every reader of JSON reads as it was written (RFC 8259 section 6)."""

PAST_MAX: Final = 64
"""So many generations before the present one a manifest names; a token of an older one has to start over."""

UNPUBLISHED: Final = 0
"""The generation of a target where nothing was published yet."""


class Past(msgspec.Struct, frozen=True):
    """A generation before the present one. `publication` is as in its manifest."""

    generation: int
    source: str
    publication: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """What a target shows; JSON under MANIFEST_NAME at the origin.

    Attributes:
        source: The prefix whose objects the target shows, in the same bucket.
        generation: Counts the switches of the target, from 1.
        digest: `sha256:` and the digest of the source's key list at the switch, as `KeyDigest` makes it.
        keys: How long that list was.
        publication: Drawn for each publish, so that its gateway knows its own manifest again.
        published_at_s: Wall time.
        past: The generations before it, newest first, at most PAST_MAX.
    """

    format: int
    source: str
    generation: int
    digest: str = ""
    keys: int = 0
    publication: str = ""
    published_at_s: float = 0.0
    past: tuple[Past, ...] = ()

    def source_of(self, generation: int) -> str | None:
        """Give the source of this generation or of one before it; None where it is not known any more."""
        if generation == self.generation:
            return self.source
        return next((past.source for past in self.past if past.generation == generation), None)

    def comes_of(self, made: "Manifest") -> bool:
        """Whether this is the manifest that was made, or one that has followed it."""
        wanted = (made.publication, made.source)
        return wanted in {
            (self.publication, self.source),
            *((past.publication, past.source) for past in self.past),
        }


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A prefix that is published as a whole; ends with `/`."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def manifest(self) -> ObjectName:
        """The name of its manifest."""
        return ObjectName(self.bucket, self.prefix + MANIFEST_NAME)

    def covers(self, name: ObjectName) -> bool:
        """Whether an object's name lies under the target."""
        return name.bucket == self.bucket and name.key.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a target shows at some moment. `source` is "" where nothing is published."""

    target: Target
    source: str = ""
    generation: int = UNPUBLISHED

    def read_name(self, name: ObjectName) -> ObjectName:
        """Give the name that is read for one under the target."""
        if not self.source:
            return name
        return ObjectName(name.bucket, moved(name.key, self.target.prefix, self.source))


@dataclass(frozen=True, slots=True)
class View:
    """How a name under a target is read: which name, and of which generation it is."""

    name: ObjectName
    generation: int

    @property
    def is_possible(self) -> bool:
        """Whether the name is short enough to be an object's; a source's prefix may be longer than the target's."""
        return len(self.name.key.encode()) <= KEY_BYTES_MAX


def seen_through(view: View | None, name: ObjectName) -> ObjectName:
    """Give the name, of the same version, that a name is read under; `view` is that of its object."""
    return name if view is None else view.name.at_version(name.version_id)


class Targets:
    """The published targets of a table of policies, whatever policies stand before theirs."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        """Find them.

        Raises:
            ValueError: One names no bucket or no prefix of whole names, lies within another, or is called immutable.
        """
        self._policies: dict[Target, Policy] = {}
        self._by_bucket: dict[str, list[Target]] = {}
        for policy in policies:
            if policy.published:
                self._policies[_target_of(policy)] = policy
        for target in sorted(self._policies):
            of_bucket = self._by_bucket.setdefault(target.bucket, [])
            # Sorted, a target comes right behind the one that it lies within, or behind others that do.
            if of_bucket and target.prefix.startswith(of_bucket[-1].prefix):
                raise ValueError(f"the published target {target} lies within {of_bucket[-1]}")
            of_bucket.append(target)

    def of_bucket(self, bucket: str) -> Sequence[Target]:
        """Give a bucket's targets in the order of their keys."""
        return self._by_bucket.get(bucket, ())

    def find(self, name: ObjectName) -> Target | None:
        """Give the target that a name lies under."""
        for target in self._by_bucket.get(name.bucket, ()):
            if name.key.startswith(target.prefix):
                return target
        return None

    def freshness(self, target: Target) -> Freshness:
        """Say how long a manifest is believed: as the policy of its target says, not at all where it is a target no more."""
        policy = self._policies.get(target)
        return Freshness(FreshnessMode.ALWAYS) if policy is None else policy.freshness

    def __contains__(self, target: object) -> bool:
        return target in self._policies


def _target_of(policy: Policy) -> Target:
    if policy.bucket == ANY_BUCKET:
        raise ValueError("a published target names its bucket")
    if not policy.prefix.endswith("/"):
        raise ValueError(f"the prefix {policy.prefix!r} of a published target does not end with /")
    if policy.freshness.mode is FreshnessMode.IMMUTABLE:
        raise ValueError(
            f"the published target s3://{policy.bucket}/{policy.prefix} is immutable, but its manifest changes; "
            "give it a freshness of its own"
        )
    return Target(policy.bucket, policy.prefix)


def check_places(source: str, target: Target, targets: Targets) -> None:
    """Refuse what cannot be published.

    Raises:
        PublishRefusedError: No policy names the target, or source and target, or source and another one, overlap.
    """
    if target not in targets:
        raise PublishRefusedError(f"{target} is no published target: no policy for it says published = true")
    if not source.endswith("/"):
        raise PublishRefusedError(f"the source {source!r} does not end with /")
    for other in targets.of_bucket(target.bucket):
        if overlap(source, other.prefix):
            raise PublishRefusedError(
                f"the source {source!r} and the target {other} lie one within the other"
            )


def is_manifest_name(key: str) -> bool:
    """Whether a key is one that a target's manifest has, be there such a target or not yet."""
    return key == MANIFEST_NAME or key.endswith(_MANIFEST_END)


def overlap(one: str, other: str) -> bool:
    """Whether one of two prefixes lies within the other."""
    return one.startswith(other) or other.startswith(one)


# --- the manifest --------------------------------------------------------------------------------------------------------


class KeyDigest:
    """The digest of a list of keys: SHA-256 over each key without the source's prefix, in UTF-8, and a zero byte.

    Attributes:
        keys: So many were added.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self.keys = 0

    def add(self, key: str) -> None:
        """Take the next key, in the origin's order; the manifest of an earlier use as a target does not count."""
        if key == self._source + MANIFEST_NAME:
            return
        self._hash.update(key.removeprefix(self._source).encode() + b"\0")
        self.keys += 1

    def text(self) -> str:
        """Give the digest of all keys so far."""
        return f"sha256:{self._hash.hexdigest()}"


def next_manifest(
    before: Manifest | None,
    source: str,
    digest: KeyDigest,
    *,
    generation_min: int,
    publication: str,
    now_s: float,
) -> Manifest:
    """Make the manifest that follows the origin's own, None without one; its generation is at least `generation_min`."""
    past: tuple[Past, ...] = ()
    if before is not None:
        past = (Past(before.generation, before.source, before.publication), *before.past)[:PAST_MAX]
    return Manifest(
        format=MANIFEST_FORMAT,
        source=source,
        generation=max(generation_min, 1 if before is None else before.generation + 1),
        digest=digest.text(),
        keys=digest.keys,
        publication=publication,
        published_at_s=now_s,
        past=past,
    )


_decoder: Final = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """Give the manifest's bytes: indented JSON, for people read it too."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(data: bytes, target: Target) -> Manifest:
    """Read the manifest of a target.

    Raises:
        ValueError: It is none, or one of a newer format, or its source overlaps the target.
    """
    try:
        manifest = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"{target.manifest} is no manifest: {error}") from error
    if manifest.format != MANIFEST_FORMAT:
        raise ValueError(f"{target.manifest} is of format {manifest.format}, known is {MANIFEST_FORMAT}")
    for source in (manifest.source, *(past.source for past in manifest.past)):
        if not source.endswith("/") or overlap(source, target.prefix):
            raise ValueError(f"{target.manifest} names the source {source!r}, which cannot be one")
    for generation in (manifest.generation, *(past.generation for past in manifest.past)):
        if not 1 <= generation <= GENERATION_MAX:
            raise ValueError(f"{target.manifest} names the generation {generation}, which cannot be one")
    return manifest


# --- names and listings --------------------------------------------------------------------------------------------------


def moved(name: str, old: str, new: str) -> str:
    """Put another prefix in the place of one."""
    assert name.startswith(old), f"{name!r} does not lie under {old!r}"
    return new + name[len(old) :]


def source_query(query: ListQuery, pointer: Pointer) -> ListQuery | None:
    """Give the listing of the source that stands for one within the target; None where nothing of it is left."""
    target = pointer.target.prefix
    after = query.after
    if after.name.startswith(target):
        after = Position(moved(after.name, target, pointer.source), after.is_prefix)
    elif is_behind(after, target):
        return None
    else:
        after = Position()
    prefix = moved(query.prefix, target, pointer.source)
    if max(len(prefix.encode()), len(after.name.encode())) > KEY_BYTES_MAX:
        # No key of the source is so long; the origin would refuse the question.
        return None
    return msgspec.structs.replace(query, prefix=prefix, after=after)


def target_result(result: ListResult, pointer: Pointer) -> ListResult:
    """Name what a listing of the source gave as the target does."""
    source, target = pointer.source, pointer.target.prefix
    at = result.next_position
    return msgspec.structs.replace(
        result,
        entries=tuple(
            msgspec.structs.replace(entry, key=moved(entry.key, source, target))
            for entry in result.entries
            if entry.key != source + MANIFEST_NAME
        ),
        prefixes=tuple(moved(prefix, source, target) for prefix in result.prefixes),
        next_position=None if at is None else Position(moved(at.name, source, target), at.is_prefix),
    )


def is_behind(at: Position, prefix: str) -> bool:
    """Whether a place in a listing is behind all keys with a prefix."""
    if at.is_prefix and prefix.startswith(at.name):
        return True
    return at.name > prefix and not at.name.startswith(prefix)


def runs_through(query: ListQuery, target: Target) -> bool:
    """Whether a listing that begins above a target shows its keys, and not only a common prefix above them."""
    if not target.prefix.startswith(query.prefix):
        return False
    rest = target.prefix[len(query.prefix) :]
    return not (query.delimiter and query.delimiter in rest)


def before_target(result: ListResult, target: Target) -> ListResult:
    """Give what of a page lies before a target; that more follows, if anything does lie there."""
    entries = tuple(entry for entry in result.entries if entry.key < target.prefix)
    prefixes = tuple(prefix for prefix in result.prefixes if prefix < target.prefix)
    return continued(msgspec.structs.replace(result, entries=entries, prefixes=prefixes))


def continued(result: ListResult) -> ListResult:
    """Say of a page that more follows behind its last line; one without lines says nothing."""
    at = _last_position(result.entries, result.prefixes)
    return msgspec.structs.replace(result, is_truncated=at is not None, next_position=at)


def _last_position(entries: Sequence[ListEntry], prefixes: Sequence[str]) -> Position | None:
    key = entries[-1].key if entries else ""
    group = prefixes[-1] if prefixes else ""
    if not key and not group:
        return None
    return Position(group, is_prefix=True) if group > key else Position(key)
