"""Has a key been written since I asked the origin about it?

Each key has a generation, and so has each bucket's listing. A counter for every key ever written would grow without bound, so
the question is turned round: whoever asks the origin holds a `Watch`, and a write marks the watches that are out as overtaken.
Only outstanding watches take memory.

An answer of the origin (validation, HEAD, 404, fill, listing) is stored only if its watch is still current. A write bumps when
it starts and when it ends: an answer given between the two may show the state before or after it. All calls are synchronous
and of the event loop's thread; look at `is_current` in the same step as the decision that rests on it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from enum import Enum, auto
from typing import Self

from storage.types import NULL_VERSION, ObjectName

_Place = tuple[str, str]
"""A key and the origin's id of a version, "" for the newest."""


class _Side(Enum):
    """What a watch without a name may be of."""

    ORIGIN = auto()


class Watch:
    """One question to the origin that is outstanding; close it, or use it as a context manager."""

    __slots__ = ("_is_current", "_watchers")

    def __init__(self, watchers: "_Watchers") -> None:
        self._watchers = watchers
        self._is_current = True
        watchers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Watch of {self._watchers.subject}: {'current' if self._is_current else 'overtaken'}>"

    @property
    def is_current(self) -> bool:
        """Whether nothing was written since the watch began; once False it stays so."""
        return self._is_current

    def close(self) -> None:
        """End the watch; it stays as current as it is. Closing twice is allowed."""
        self._watchers.discard(self)

    def _overtake(self) -> None:
        self._is_current = False


class Generations:
    """The outstanding watches of keys and of listings, and the writes that overtake them."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[_Place, _Watchers]] = {}
        self._buckets: dict[str, _Watchers] = {}
        self._prefixes: dict[str, dict[str, _Watchers]] = {}
        self._origins: dict[str, _Watchers] = {}

    def __len__(self) -> int:
        return sum(len(w) for w in self._all())

    def __repr__(self) -> str:
        return f"<Generations: {len(self)} watches>"

    def watch(self, name: ObjectName) -> Watch:
        """Begin to watch a key, or one version of it; call before the origin is asked."""
        place = (name.key, name.version_id)
        known = self._keys.get(name.bucket, {}).get(place)
        return Watch(known or _Watchers(self, name.bucket, place))

    def watch_bucket(self, bucket: str) -> Watch:
        """Begin to watch a bucket's listing: a write to any of its keys overtakes it."""
        return Watch(self._buckets.get(bucket) or _Watchers(self, bucket, None))

    def watch_prefix(self, bucket: str, prefix: str) -> Watch:
        """Begin to watch the listing of a prefix: a write to a key under it overtakes it."""
        known = self._prefixes.get(bucket, {}).get(prefix)
        return Watch(known or _Watchers(self, bucket, prefix))

    def watch_origin(self, bucket: str) -> Watch:
        """Begin to watch what the origin has of a bucket beside the overlay: a write that is only laid over it overtakes nothing."""
        return Watch(self._origins.get(bucket) or _Watchers(self, bucket, _Side.ORIGIN))

    def bump(self, name: ObjectName) -> None:
        """Overtake the watches of a key, of its version `null` that it may have overwritten, and of the listings that have it.

        With a version id those of that version too. A write makes and changes no other.
        """
        self._bump_known(name)
        of_origin = self._origins.get(name.bucket)
        if of_origin is not None:
            of_origin.overtake()

    def _bump_known(self, name: ObjectName) -> None:
        of_bucket = self._keys.get(name.bucket)
        if of_bucket:
            for version_id in {"", NULL_VERSION, name.version_id}:
                of_key = of_bucket.get((name.key, version_id))
                if of_key is not None:
                    of_key.overtake()
        of_listing = self._buckets.get(name.bucket)
        if of_listing is not None:
            of_listing.overtake()
        of_prefixes = self._prefixes.get(name.bucket)
        if of_prefixes:
            for prefix in [prefix for prefix in of_prefixes if name.key.startswith(prefix)]:
                of_prefixes[prefix].overtake()

    def bump_bucket(self, bucket: str) -> None:
        """Overtake all watches in a bucket: it was made, deleted, or changed as a whole."""
        of_prefixes = tuple(self._prefixes.get(bucket, {}).values())
        of_bucket = (self._buckets.get(bucket), self._origins.get(bucket))
        for watchers in (*self._keys.get(bucket, {}).values(), *of_prefixes, *of_bucket):
            if watchers is not None:
                watchers.overtake()

    def writing(self, name: ObjectName) -> AbstractContextManager[None]:
        """Bump a key when the block begins and when it ends, however it ends."""
        return _Around(self.bump, name)

    def laying_over(self, name: ObjectName) -> AbstractContextManager[None]:
        """As `writing`, for a write that the overlay has when the block has ended, and that is not at the origin before that."""
        return _Around(self._bump_known, name)

    def _all(self) -> Iterator["_Watchers"]:
        yield from self._buckets.values()
        yield from self._origins.values()
        for keys in self._keys.values():
            yield from keys.values()
        for prefixes in self._prefixes.values():
            yield from prefixes.values()

    def _keep(self, watchers: "_Watchers") -> None:
        if watchers.place is None:
            self._buckets[watchers.bucket] = watchers
        elif isinstance(watchers.place, _Side):
            self._origins[watchers.bucket] = watchers
        elif isinstance(watchers.place, str):
            self._prefixes.setdefault(watchers.bucket, {})[watchers.place] = watchers
        else:
            self._keys.setdefault(watchers.bucket, {})[watchers.place] = watchers

    def _drop(self, watchers: "_Watchers") -> None:
        if watchers.place is None:
            self._buckets.pop(watchers.bucket, None)
            return
        if isinstance(watchers.place, _Side):
            self._origins.pop(watchers.bucket, None)
            return
        if isinstance(watchers.place, str):
            prefixes = self._prefixes.get(watchers.bucket, {})
            prefixes.pop(watchers.place, None)
            if not prefixes:
                self._prefixes.pop(watchers.bucket, None)
            return
        keys = self._keys.get(watchers.bucket, {})
        keys.pop(watchers.place, None)
        if not keys:
            self._keys.pop(watchers.bucket, None)


class _Watchers:
    """The current watches of one key, version, prefix or bucket; known to its owner only while there are any.

    `place` is a key and version, or a prefix; None for the bucket; ORIGIN for what the origin has of it.
    """

    __slots__ = ("_owner", "_watches", "bucket", "place")

    def __init__(self, owner: Generations, bucket: str, place: _Place | str | _Side | None) -> None:
        self._owner = owner
        self._watches: set[Watch] = set()
        self.bucket = bucket
        self.place = place

    def __len__(self) -> int:
        return len(self._watches)

    @property
    def subject(self) -> str:
        if isinstance(self.place, str):
            return f"{ObjectName(self.bucket, self.place)}*"
        if isinstance(self.place, _Side):
            return f"{self.bucket} at the origin"
        return str(ObjectName(self.bucket, *(self.place or ("",))))

    def add(self, watch: Watch) -> None:
        if not self._watches:
            self._owner._keep(self)  # noqa: SLF001  the two classes are one structure
        self._watches.add(watch)

    def discard(self, watch: Watch) -> None:
        if watch in self._watches:
            self._watches.discard(watch)
            if not self._watches:
                self._owner._drop(self)  # noqa: SLF001  the two classes are one structure

    def overtake(self) -> None:
        for watch in self._watches:
            watch._overtake()  # noqa: SLF001  only a write may overtake
        self._watches.clear()
        self._owner._drop(self)  # noqa: SLF001  the two classes are one structure


class _Around:
    """Does one step with a name when the block begins and when it ends."""

    __slots__ = ("_name", "_step")

    def __init__(self, step: Callable[[ObjectName], None], name: ObjectName) -> None:
        self._step = step
        self._name = name

    def __enter__(self) -> None:
        self._step(self._name)

    def __exit__(self, *_: object) -> None:
        self._step(self._name)
