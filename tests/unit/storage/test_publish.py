"""Published targets without I/O: which prefixes may be one, manifests, and names and listings from one side to the other."""

import hashlib

import msgspec
import pytest
from hypothesis import given, strategies as st

from storage.errors import PublishRefusedError
from storage.listing import ListEntry, ListQuery, ListResult, Position
from storage.policy import Freshness, FreshnessMode, Policy
from storage.publish import (
    PAST_MAX,
    KeyDigest,
    Manifest,
    Past,
    Pointer,
    Target,
    Targets,
    View,
    before_target,
    check_places,
    continued,
    decode_manifest,
    encode_manifest,
    is_behind,
    next_manifest,
    runs_through,
    source_query,
    target_result,
)
from storage.types import ObjectName

LIVE = Target("bucket", "data/live/")
POINTER = Pointer(LIVE, "staging/v7/", 3)
SECOND = Freshness(ttl_s=1.0)
MANIFEST = Manifest(
    1, "staging/v7/", 3, "sha256:00", 2, "ours", 5.5, (Past(2, "staging/v6/", "b"), Past(1, "staging/v5/"))
)


def published(prefix: str, bucket: str = "bucket", freshness: Freshness = SECOND) -> Policy:
    """Make the policy of a target."""
    return Policy(bucket=bucket, prefix=prefix, freshness=freshness, published=True)


def entry(key: str) -> ListEntry:
    """Make a line of a listing."""
    return ListEntry(key, 1, "etag", 0)


# --- targets -------------------------------------------------------------------------------------------------------------


def test_find_when_a_policy_before_it_matches_too() -> None:
    """A target is one whatever policies stand before its own: part of it must not be written to."""
    targets = Targets((Policy(prefix="data/live/hot/"), Policy(bucket="bucket"), published("data/live/")))

    assert targets.find(ObjectName("bucket", "data/live/hot/x")) == LIVE
    assert targets.find(ObjectName("bucket", "data/live/")) == LIVE
    assert targets.find(ObjectName("bucket", "data/live")) is None
    assert targets.find(ObjectName("bucket", "data/lives/x")) is None
    assert targets.find(ObjectName("other", "data/live/x")) is None


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ((published("data/live/", bucket="*"),), "names its bucket"),
        ((published("data/live"),), "does not end with /"),
        ((published(""),), "does not end with /"),
        ((published("a/", freshness=Freshness(FreshnessMode.IMMUTABLE)),), "immutable"),
        ((published("a/b/"), published("a/")), "lies within s3://bucket/a/"),
        ((published("a/"), published("a/!/"), published("a/b/")), "lies within s3://bucket/a/"),
    ],
)
def test_targets_when_a_policy_cannot_be_one(policies: tuple[Policy, ...], words: str) -> None:
    """What cannot be a target is refused with the reason when the policies are read."""
    with pytest.raises(ValueError, match=words):
        Targets(policies)


def test_targets_when_they_only_look_nested() -> None:
    """Prefixes of different buckets, and names that merely begin alike, are no matter."""
    targets = Targets((published("a/"), published("ab/"), published("a/", bucket="other")))

    assert [str(target) for target in targets.of_bucket("bucket")] == ["s3://bucket/a/", "s3://bucket/ab/"]
    assert targets.of_bucket("third") == ()


def test_freshness_when_the_target_is_one_no_more() -> None:
    """The manifest is believed for as long as its target's policy says, and not at all once there is no such policy."""
    targets = Targets((published("data/live/"),))

    assert targets.freshness(LIVE) == SECOND
    assert targets.freshness(Target("bucket", "gone/")).mode is FreshnessMode.ALWAYS


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("staging/", Target("bucket", "elsewhere/"), "is no published target"),
        ("staging", LIVE, "does not end with /"),
        ("", LIVE, "does not end with /"),
        ("data/live/", LIVE, "one within the other"),
        ("data/live/v7/", LIVE, "one within the other"),
        ("data/", LIVE, "one within the other"),
        ("data/other/v7/", LIVE, "one within the other"),
    ],
)
def test_check_places_when_they_cannot_be_published(source: str, target: Target, words: str) -> None:
    """Source and target are whole prefixes apart from each other, and the source is apart from every other target."""
    targets = Targets((published("data/live/"), published("data/other/")))

    with pytest.raises(PublishRefusedError, match=words):
        check_places(source, target, targets)


def test_check_places_when_all_is_well() -> None:
    """A source beside its target is let through, also one whose name begins as the target's does."""
    targets = Targets((published("data/live/"),))

    check_places("data/live-v7/", LIVE, targets)


# --- manifests -----------------------------------------------------------------------------------------------------------


def test_manifest_when_written_and_read() -> None:
    """A manifest reads as what was written; people can read it, too."""
    data = encode_manifest(MANIFEST)

    assert decode_manifest(data, LIVE) == MANIFEST
    assert b'\n  "source": "staging/v7/",\n  "generation": 3,\n' in data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"[]",
        b'{"format": 1, "source": "a/"}',
        b'{"format": 2, "source": "a/", "generation": 1}',
        b'{"format": 1, "source": "a", "generation": 1}',
        b'{"format": 1, "source": "", "generation": 1}',
        b'{"format": 1, "source": "a/", "generation": 0}',
        b'{"format": 1, "source": "a/", "generation": 1000000000000000000000000000000}',
        b'{"format": 1, "source": "a/", "generation": 9007199254740992}',
        b'{"format": 1, "source": "data/live/v7/", "generation": 1}',
        b'{"format": 1, "source": "data/", "generation": 1}',
        b'{"format": 1, "source": "a/", "generation": 2, "past": [{"generation": 1, "source": "data/"}]}',
    ],
)
def test_decode_manifest_when_it_is_none(data: bytes) -> None:
    """What is no manifest, of a newer format, or would show a target within itself is refused."""
    with pytest.raises(ValueError, match=r"data/live/\.forebay-published"):
        decode_manifest(data, LIVE)


def test_next_manifest_when_there_was_none() -> None:
    """The first generation is 1, with the digest of the keys below the source, each ended by a zero byte."""
    digest = KeyDigest("s/")
    for key in ("s/.forebay-published", "s/a", "s/dir/ü"):
        digest.add(key)

    made = next_manifest(None, "s/", digest, generation_min=1, publication="p", now_s=7.0)

    expected = hashlib.sha256("a\0dir/ü\0".encode()).hexdigest()
    assert made == Manifest(1, "s/", 1, f"sha256:{expected}", 2, "p", 7.0, ())


def test_next_manifest_when_there_was_one() -> None:
    """The next generation is the origin's plus one, and names those before it, newest first."""
    made = next_manifest(MANIFEST, "s/", KeyDigest("s/"), generation_min=1, publication="new", now_s=0.0)

    assert made.generation == 4
    assert made.past == (Past(3, "staging/v7/", "ours"), Past(2, "staging/v6/", "b"), Past(1, "staging/v5/"))
    assert [made.source_of(n) for n in (4, 3, 1, 0, 5)] == ["s/", "staging/v7/", "staging/v5/", None, None]
    assert made.comes_of(made)
    assert made.comes_of(MANIFEST)
    assert not MANIFEST.comes_of(made)
    assert not made.comes_of(msgspec.structs.replace(MANIFEST, source="another/"))


def test_next_manifest_when_the_one_before_was_removed() -> None:
    """A manifest that went missing does not begin again at generations that were shown already."""
    made = next_manifest(None, "s/", KeyDigest("s/"), generation_min=9, publication="p", now_s=0.0)

    assert (made.generation, made.past) == (9, ())


def test_past_when_it_grows_long() -> None:
    """A manifest forgets its oldest generations, so that it stays short."""
    manifest = MANIFEST
    for number in range(100):
        digest = KeyDigest("s/")
        manifest = next_manifest(
            manifest, f"s/{number}/", digest, generation_min=1, publication="", now_s=0.0
        )

    assert len(manifest.past) == PAST_MAX
    assert manifest.source_of(manifest.generation - PAST_MAX) is not None
    assert manifest.source_of(manifest.generation - PAST_MAX - 1) is None


# --- names ---------------------------------------------------------------------------------------------------------------


def test_read_name_when_published_and_not() -> None:
    """Only the prefix changes, whatever the rest looks like; without a source a name means itself."""
    name = ObjectName("bucket", "data/live//../data/live/x")

    assert POINTER.read_name(name) == ObjectName("bucket", "staging/v7//../data/live/x")
    assert Pointer(LIVE).read_name(name) == name


def test_view_when_the_name_would_be_too_long() -> None:
    """A name that no object of the source can have is known as such."""
    assert View(ObjectName("bucket", "k" * 1024), 1).is_possible
    assert not View(ObjectName("bucket", "k" * 1023 + "ü"), 1).is_possible


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (Position(), Position()),
        (Position("data/"), Position()),
        (Position("data/live/b"), Position("staging/v7/b")),
        (Position("data/live/b/", is_prefix=True), Position("staging/v7/b/", is_prefix=True)),
        (Position("data/live0"), None),
        (Position("data/live/", is_prefix=True), Position("staging/v7/", is_prefix=True)),
        (Position("data/", is_prefix=True), None),
    ],
)
def test_source_query_when_it_begins_somewhere(after: Position, expected: Position | None) -> None:
    """A start before the target is a start at its beginning, one behind it leaves nothing."""
    query = ListQuery("bucket", "data/live/x", "/", after, 7)

    made = source_query(query, POINTER)

    wanted = None if expected is None else ListQuery("bucket", "staging/v7/x", "/", expected, 7)
    assert made == wanted


def test_source_query_when_names_would_be_too_long() -> None:
    """Nothing is asked about names that the origin would refuse as too long."""
    assert source_query(ListQuery("bucket", "data/live/" + "x" * 1020), POINTER) is None


def test_target_result_when_the_source_was_a_target_once() -> None:
    """Keys, prefixes and position get the target's names; a manifest under the source does not show."""
    page = ListResult(
        (entry("staging/v7/.forebay-published"), entry("staging/v7/a")),
        ("staging/v7/b/",),
        True,
        Position("staging/v7/b/", is_prefix=True),
    )

    assert target_result(page, POINTER) == ListResult(
        (entry("data/live/a"),), ("data/live/b/",), True, Position("data/live/b/", is_prefix=True)
    )


@pytest.mark.parametrize(
    ("prefix", "delimiter", "expected"),
    [
        ("", "", True),
        ("data/l", "", True),
        ("data/live/", "", True),
        ("", "/", False),
        ("data/", "/", False),
        ("data", "/", False),
        ("data/live/x", "", False),
        ("other", "", False),
        ("data/", "z", True),
    ],
)
def test_runs_through_when_a_listing_begins_above(prefix: str, delimiter: str, expected: bool) -> None:
    """A listing shows a target's keys unless its delimiter cuts it off before them."""
    assert runs_through(ListQuery("bucket", prefix, delimiter), LIVE) is expected


def test_before_target_when_a_page_runs_into_it() -> None:
    """What lies at the target itself is left out, and more is said to follow."""
    page = ListResult(
        (entry("a"), entry("data/live/.forebay-published"), entry("z")), ("data/live/q",), False
    )

    assert before_target(page, LIVE) == ListResult((entry("a"),), (), True, Position("a"))
    assert before_target(ListResult((entry("z"),), (), False), LIVE) == ListResult((), (), False)


def test_continued_when_a_prefix_stands_last() -> None:
    """The position behind a page is its last key or its last common prefix, whichever is behind the other."""
    assert continued(ListResult((entry("a"),), ("b/",), False)).next_position == Position(
        "b/", is_prefix=True
    )
    assert continued(ListResult((entry("c"),), ("b/",), False)).next_position == Position("c")


@given(
    keys=st.lists(st.text(alphabet="ab/\U0010ffff.-", max_size=4), unique=True),
    prefix=st.text(alphabet="ab/", max_size=2),
    delimiter=st.sampled_from(["", "/", "b"]),
    after=st.text(alphabet="ab/", max_size=3),
    max_keys=st.integers(1, 4),
)
def test_mapping_when_compared_with_real_objects(
    keys: list[str], prefix: str, delimiter: str, after: str, max_keys: int
) -> None:
    """A page of the source, mapped, is the page that real objects at the target would give: keys, groups and order."""
    query = ListQuery("bucket", LIVE.prefix + prefix, delimiter, Position(LIVE.prefix + after), max_keys)

    wanted = source_query(query, POINTER)
    assert wanted is not None
    shown = target_result(listed([POINTER.source + key for key in keys], wanted), POINTER)

    assert shown == listed([LIVE.prefix + key for key in keys], query)


@given(at=st.text(alphabet="data/live0", max_size=12), is_prefix=st.booleans())
def test_is_behind_when_compared_with_keys(at: str, is_prefix: bool) -> None:
    """A place is behind a target exactly if it covers the target's keys, of which there may be any."""
    position = Position(at, is_prefix=is_prefix)

    expected = position.covers(LIVE.prefix + "\U0010ffff" * 8)

    assert is_behind(position, LIVE.prefix) is expected


def listed(keys: list[str], query: ListQuery) -> ListResult:
    """List keys by brute force."""
    lines: list[tuple[str, bool]] = []
    for key in sorted(keys):
        group = query.group_of(key) if key.startswith(query.prefix) else None
        line = (key, False) if group is None else (group, True)
        if key.startswith(query.prefix) and not query.after.covers(line[0]) and line not in lines:
            lines.append(line)
    page = lines[: query.max_keys]
    is_truncated = len(lines) > len(page)
    return ListResult(
        tuple(entry(name) for name, is_prefix in page if not is_prefix),
        tuple(name for name, is_prefix in page if is_prefix),
        is_truncated,
        Position(*page[-1]) if is_truncated else None,
    )
