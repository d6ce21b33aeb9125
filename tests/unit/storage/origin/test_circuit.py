from hypothesis import given, strategies as st

from storage.origin.circuit import AWAY_AFTER, PROBE_S_MAX, PROBE_S_MIN, Circuit


def opened(now_s: float = 10.0) -> Circuit:
    """Give a circuit that has just opened."""
    circuit = Circuit()
    results = [circuit.failed(now_s, sent_at_s=now_s - 2.0) for _ in range(AWAY_AFTER)]
    assert results == [False] * (AWAY_AFTER - 1) + [True]
    return circuit


def test_circuit_opens_after_failures_in_a_row() -> None:
    """So many attempts without an answer, and the origin counts as away."""
    circuit = opened(10.0)

    assert circuit.is_open
    assert circuit.away_s(13.0) == 3.0
    assert not circuit.may_pass(10.1)


def test_answer_in_between_keeps_it_closed() -> None:
    """One answer proves that the origin is there."""
    circuit = Circuit()
    for _ in range(AWAY_AFTER - 1):
        circuit.failed(10.0, sent_at_s=8.0)

    circuit.answered()
    for _ in range(AWAY_AFTER - 1):
        circuit.failed(20.0, sent_at_s=8.0)

    assert not circuit.is_open


def test_failures_of_one_moment_are_left_to_retries() -> None:
    """Connections that die together when a server restarts are no outage."""
    circuit = Circuit()

    for _ in range(100):
        circuit.failed(10.1, sent_at_s=10.0)

    assert not circuit.is_open


def test_one_probe_at_a_time_at_growing_intervals() -> None:
    """While it is open a single request goes when its time has come; each failure doubles the time to the next."""
    circuit = opened(0.0)
    now_s, waits = 0.0, []

    for _ in range(8):
        begun_s = now_s
        while not circuit.may_pass(now_s):
            now_s += 0.25
        waits.append(now_s - begun_s)
        assert circuit.passed()
        assert not circuit.may_pass(now_s + 1000.0)
        circuit.failed(now_s, sent_at_s=now_s, is_probe=True)

    assert waits == [PROBE_S_MIN, 1.0, 2.0, 4.0, PROBE_S_MAX, PROBE_S_MAX, PROBE_S_MAX, PROBE_S_MAX]


def test_probe_that_is_given_up_is_replaced_at_once() -> None:
    """A client that leaves while its request probes does not keep the origin away."""
    circuit = opened(0.0)
    circuit.passed()

    circuit.gave_up()

    assert circuit.may_pass(PROBE_S_MIN)


def test_answer_closes_it() -> None:
    """With the first answer all may pass, and the next outage is probed as soon as the first was."""
    circuit = opened(0.0)
    circuit.passed()

    assert circuit.answered()
    assert circuit.may_pass(0.0)
    assert not circuit.answered()


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["fail", "probe", "late"])), max_size=60))
def test_never_two_probes_at_once(steps: list[tuple[float, str]]) -> None:
    """Whatever fails late, no second request goes while a probe is out."""
    circuit, now_s, probes = opened(0.0), 0.0, 0

    for step_s, what in steps:
        now_s += step_s
        if what == "late":
            circuit.failed(now_s, sent_at_s=0.0)
        elif what == "fail" and probes:
            circuit.failed(now_s, sent_at_s=now_s, is_probe=True)
            probes -= 1
        elif circuit.may_pass(now_s):
            circuit.passed()
            probes += 1

        assert probes <= 1
