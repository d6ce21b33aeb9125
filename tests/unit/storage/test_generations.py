"""Watches of keys and listings, and the writes that overtake them."""

from storage.generations import Generations
from storage.types import ObjectName

K, OTHER, ELSEWHERE = ObjectName("b", "k"), ObjectName("b", "other"), ObjectName("c", "k")


def test_write_overtakes_the_watches_of_its_key_and_listing_when_it_happens() -> None:
    """A bump reaches the key's watches and the bucket listing's, and no others."""
    generations = Generations()
    watches = [generations.watch(K), generations.watch(K), generations.watch_bucket("b")]
    others = [generations.watch(OTHER), generations.watch(ELSEWHERE), generations.watch_bucket("c")]

    generations.bump(K)

    assert [watch.is_current for watch in watches] == [False, False, False]
    assert [watch.is_current for watch in others] == [True, True, True]


def test_watch_is_current_when_it_began_after_the_write() -> None:
    """A later question sees the later state."""
    generations = Generations()
    old = generations.watch(K)
    generations.bump(K)

    new = generations.watch(K)

    assert (old.is_current, new.is_current) == (False, True)
    generations.bump(K)
    assert not new.is_current


def test_watch_begun_during_a_write_is_overtaken_when_the_write_ends() -> None:
    """An answer given while a write is under way may show either state."""
    generations = Generations()
    before = generations.watch(K)

    with generations.writing(K):
        during = generations.watch(K)
        assert (before.is_current, during.is_current) == (False, True)

    assert not during.is_current


def test_key_is_bumped_when_a_write_fails() -> None:
    """However a write ends, its end counts."""
    generations = Generations()

    writing = generations.writing(K)
    writing.__enter__()
    watch = generations.watch(K)

    is_swallowed = writing.__exit__(RuntimeError, RuntimeError("failed"), None)

    assert not watch.is_current
    assert not is_swallowed


def test_all_watches_of_a_bucket_are_overtaken_when_it_changes_as_a_whole() -> None:
    """bump_bucket reaches each key and the listing."""
    generations = Generations()
    watches = [generations.watch(K), generations.watch(OTHER), generations.watch_bucket("b")]
    other = generations.watch(ELSEWHERE)

    generations.bump_bucket("b")

    assert [watch.is_current for watch in watches] == [False, False, False]
    assert other.is_current


def test_nothing_is_remembered_when_all_watches_are_closed_or_overtaken() -> None:
    """Memory is that of outstanding watches, not of keys ever written."""
    generations = Generations()
    for number in range(100):
        name = ObjectName("b", str(number))
        watch = generations.watch(name)
        generations.bump(name)
        watch.close()
        with generations.watch(name), generations.watch_bucket("b"):
            assert len(generations) == 2

    assert repr(generations) == "<Generations: 0 watches>"
    assert not generations._keys
    assert not generations._buckets


def test_watch_stays_as_it_is_when_closed() -> None:
    """Closing twice is allowed, closes nobody else's, and what comes later does not count."""
    generations = Generations()
    closed, open_ = generations.watch(K), generations.watch(K)

    closed.close()
    closed.close()
    generations.bump(K)

    assert (closed.is_current, open_.is_current) == (True, False)
    assert repr(open_) == "<Watch of s3://b/k: overtaken>"
