from dataclasses import dataclass

from hypothesis import given, strategies as st

from storage.origin.fair_queue import FLOWS_KEPT_MAX, FairQueue


@dataclass(eq=False)
class Ask:
    """A demand, as the queue sees one."""

    client: str
    number: int = 0
    bucket: str = "data"


def served(queue: FairQueue[Ask], count: int, bucket: str = "data") -> list[Ask]:
    """Serve so many of a bucket's line."""
    done = []
    for _ in range(count):
        head = queue.head(bucket)
        assert head is not None
        queue.take(head[2])
        done.append(head[2])
    return done


def test_single_request_goes_before_the_second_of_a_thousand() -> None:
    """A client with a thousand waiting requests holds up one with a single request by one at most."""
    queue: FairQueue[Ask] = FairQueue()
    for number in range(1000):
        queue.add(Ask("many", number))
    served(queue, 10)

    queue.add(Ask("single"))

    assert "single" in [ask.client for ask in served(queue, 2)]


def test_clients_take_turns_and_each_keeps_its_order() -> None:
    """Two that wait with many get equal shares, in the order in which each asked."""
    queue: FairQueue[Ask] = FairQueue()
    for client in ("a", "b"):
        for number in range(10):
            queue.add(Ask(client, number))

    order = served(queue, 20)

    assert [ask.number for ask in order if ask.client == "a"] == list(range(10))
    assert [ask.number for ask in order if ask.client == "b"] == list(range(10))
    assert sum(ask.client == "a" for ask in order[:10]) == 5


def test_who_asks_again_at_once_gains_nothing() -> None:
    """One request at a time, asked for anew as soon as it is served, gets no more than its turn."""
    queue: FairQueue[Ask] = FairQueue()
    for number in range(100):
        queue.add(Ask("many", number))
    queue.add(Ask("quick"))
    quick = 0

    for _ in range(100):
        (ask,) = served(queue, 1)
        if ask.client == "quick":
            quick += 1
            queue.add(Ask("quick"))

    assert 48 <= quick <= 52


def test_idle_time_is_not_saved_up() -> None:
    """A client that comes late does not take all turns that it might have had."""
    queue: FairQueue[Ask] = FairQueue()
    for number in range(200):
        queue.add(Ask("early", number))
    served(queue, 100)
    for number in range(100):
        queue.add(Ask("late", number))

    order = served(queue, 20)

    assert sum(ask.client == "late" for ask in order) in (10, 11)


def test_client_has_one_account_over_all_buckets() -> None:
    """Served in one line, a client is behind the others in the next one."""
    queue: FairQueue[Ask] = FairQueue()
    for number in range(5):
        queue.add(Ask("wide", number, bucket="one"))
    queue.add(Ask("wide", bucket="two"))
    queue.add(Ask("single", bucket="two"))
    served(queue, 3, "one")

    assert served(queue, 1, "two")[0].client == "single"


def test_accounts_are_swept_seldom_however_many_wait() -> None:
    """B56: with thousands of clients waiting a turn costs no look at all accounts; those that are done are forgotten all the same."""
    queue: FairQueue[Ask] = FairQueue()
    clients = 4 * FLOWS_KEPT_MAX
    for number in range(clients):
        queue.add(Ask(f"client-{number}"))
        queue.add(Ask(f"client-{number}"))
    sweeps, flows = 0, queue._flows

    for _ in range(2 * clients):
        served(queue, 1)
        sweeps, flows = sweeps + (queue._flows is not flows), queue._flows

    assert sweeps <= 4
    assert (len(queue), queue._flows) == (0, {})


def test_dropped_bucket_leaves_the_others() -> None:
    """What waited for one bucket is given back; the rest waits on."""
    queue: FairQueue[Ask] = FairQueue()
    gone, stays = Ask("a", bucket="one"), Ask("a", bucket="two")
    queue.add(gone)
    queue.add(stays)

    assert list(queue.drop_bucket("one")) == [gone]
    assert (len(queue), queue.buckets(), queue.waiting_of("a")) == (1, ("two",), 1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from(["x", "y"]), st.sampled_from(["add", "take", "leave"])
        ),
        max_size=200,
    )
)
def test_everybody_is_served_once(steps: list[tuple[str, str, str]]) -> None:
    """Whatever comes, goes and gives up, counts are right and each demand is served or gone exactly once."""
    queue: FairQueue[Ask] = FairQueue()
    waiting: list[Ask] = []

    for number, (client, bucket, what) in enumerate(steps):
        if what == "add":
            waiting.append(Ask(client, number, bucket))
            queue.add(waiting[-1])
        elif what == "leave" and waiting:
            queue.discard(waiting.pop(number % len(waiting)))
        elif (head := queue.head(bucket)) is not None:
            queue.take(head[2])
            waiting.remove(head[2])

        assert len(queue) == len(waiting)
        assert sum(queue.waiting_of(one) for one in "abc") == len(waiting)
    for bucket in queue.buckets():
        while (head := queue.head(bucket)) is not None:
            queue.take(head[2])
            waiting.remove(head[2])
    assert (waiting, len(queue)) == ([], 0)
