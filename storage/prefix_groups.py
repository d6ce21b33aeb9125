"""Which extents are learnt about together: those of one bucket and the first components of their keys.

At most GROUPS_MAX groups live at a time. A prefix with many subdirectories is one group with all of them; the group that was read
least lately makes place for a new one, and what it had learnt goes to the rest. Extents keep the number of their group, which
says forever what became of it. Pure.
"""

from typing import Final

from storage.reuse import ReuseMonitor
from storage.types import ObjectName

GROUPS_MAX: Final = 16
DEPTH: Final = 2
"""So many directories below the bucket tell groups apart."""

CHILDREN_MAX: Final = 8
"""A prefix with more subdirectories that are read is one group."""

NUMBERS: Final = 64
"""Group numbers, 0 being the rest; they come round again, long after the groups that had them before."""

_PARENTS_MAX: Final = 4096


class Group:
    """One prefix group.

    Attributes:
        missed_at: The clock of missed bytes when it was read last.
        gap_bytes: The longest that the others missed between two of its reads, slowly forgotten.
        runs: How often reads of it came after those of another group, or of what was not here.
        is_released: Whether it is not read any more, as far as anyone can tell.
    """

    __slots__ = (
        "gap_bytes",
        "is_released",
        "missed_at",
        "monitor",
        "number",
        "prefix",
        "read_at",
        "runs",
    )

    def __init__(self, number: int, prefix: tuple[str, ...]) -> None:
        self.number = number
        self.prefix = prefix
        self.monitor = ReuseMonitor()
        self.runs = 0
        self.missed_at = 0
        self.gap_bytes = 0.0
        self.is_released = False
        self.read_at = 0

    def __repr__(self) -> str:
        return f"<Group {self.number} {'/'.join(self.prefix)}: {self.runs} runs of reads>"


class PrefixGroups:
    """The groups that live, and what has become of the others."""

    def __init__(self) -> None:
        self.rest = Group(0, ())
        # By number; several numbers may mean one group.
        self.by_number: list[Group] = [self.rest] * NUMBERS
        self._by_prefix: dict[tuple[str, ...], Group] = {}
        self._children: dict[tuple[str, ...], set[str]] = {}
        self._next_number = 0

    def live(self) -> list[Group]:
        """Give the groups, the rest included where it was read."""
        groups = list(self._by_prefix.values())
        return [self.rest, *groups] if self.rest.runs or not groups else groups

    def of(self, name: ObjectName, now: int) -> Group:
        """Give the group of an object that is read at `now`, making one for a new prefix."""
        prefix = self._prefix(name)
        group = self._by_prefix.get(prefix)
        return self._make(prefix, now) if group is None else group

    def find(self, name: ObjectName) -> Group:
        """Give the group that an object nobody reads now would be of, the rest where there is none; no group is made or merged for it."""
        prefix: tuple[str, ...] = (name.bucket,)
        for part in name.key.split("/", DEPTH)[:-1]:
            children = self._children.get(prefix, ())
            if len(children) > CHILDREN_MAX:
                break
            prefix = (*prefix, part)
        return self._by_prefix.get(prefix, self.rest)

    def _prefix(self, name: ObjectName) -> tuple[str, ...]:
        parts = name.key.split("/", DEPTH)[:-1]
        prefix: tuple[str, ...] = (name.bucket,)
        for part in parts:
            children = self._children.get(prefix)
            if children is not None and part not in children:
                if len(children) >= CHILDREN_MAX:
                    self._collapse(prefix)
                    return prefix
                children.add(part)
            elif children is None:
                self._see_parent(prefix, part)
            elif len(children) > CHILDREN_MAX:
                return prefix
            prefix = (*prefix, part)
        return prefix

    def _see_parent(self, prefix: tuple[str, ...], child: str) -> None:
        if len(self._children) >= _PARENTS_MAX:
            self._children.clear()
        self._children[prefix] = {child}

    def _collapse(self, prefix: tuple[str, ...]) -> None:
        """Take a prefix with too many subdirectories as one from here on."""
        children = self._children[prefix]
        # One more than is allowed is the mark; no directory's name holds a slash.
        children.update(f"/{n}" for n in range(CHILDREN_MAX + 1 - len(children)))
        below = [p for p in self._by_prefix if len(p) > len(prefix) and p[: len(prefix)] == prefix]
        if below and prefix not in self._by_prefix:
            self._by_prefix[prefix] = self._new_group(prefix)
        for merged in below:
            self._merge(merged, self._by_prefix[prefix])

    def _make(self, prefix: tuple[str, ...], now: int) -> Group:
        if len(self._by_prefix) >= GROUPS_MAX - 1:
            oldest = min(self._by_prefix.values(), key=lambda group: group.read_at)
            self._merge(oldest.prefix, self.rest)
        group = self._by_prefix[prefix] = self._new_group(prefix)
        group.read_at = now
        return group

    def _new_group(self, prefix: tuple[str, ...]) -> Group:
        taken = {id(group) for group in self._by_prefix.values()}
        for _ in range(NUMBERS):
            self._next_number = self._next_number % (NUMBERS - 1) + 1
            if id(self.by_number[self._next_number]) not in taken or (
                self.by_number[self._next_number].number != self._next_number
            ):
                break
        group = self.by_number[self._next_number] = Group(self._next_number, prefix)
        return group

    def _merge(self, prefix: tuple[str, ...], into: Group) -> None:
        group = self._by_prefix.pop(prefix)
        into.monitor.merge(group.monitor)
        into.runs += group.runs
        into.missed_at = max(into.missed_at, group.missed_at)
        into.read_at = max(into.read_at, group.read_at)
        self.by_number = [into if one is group else one for one in self.by_number]
