"""A session is over after a timeout of silence that others could have broken, and never before."""

import hypothesis.strategies as st
from hypothesis import given

from replication.coordination.leases import Leases, Pulse

TIMEOUT_MS = 1000


def test_silence_for_the_timeout_ends_a_session():
    leases = Leases()
    over = [leases.look([Pulse(1, 0, TIMEOUT_MS)], now_ms) for now_ms in range(0, 1201, 100)]
    assert over == [()] * 10 + [(1,)] * 3


def test_who_counts_lives():
    leases = Leases()
    assert not any(leases.look([Pulse(1, now_ms // 900, TIMEOUT_MS)], now_ms) for now_ms in range(0, 9000, 100))


def test_a_long_time_without_a_look_counts_for_a_quarter_of_the_timeout():
    leases = Leases()
    leases.look([Pulse(1, 0, TIMEOUT_MS)], 0)
    assert leases.look([Pulse(1, 0, TIMEOUT_MS)], 60_000) == ()
    assert leases.look([Pulse(1, 0, TIMEOUT_MS)], 120_000) == ()


def test_who_comes_new_begins_to_count_now():
    assert Leases().look([Pulse(1, 0, TIMEOUT_MS)], 10**9) == ()


@given(st.lists(st.tuples(st.integers(1, 2000), st.booleans()), max_size=60), st.integers(1, 5000))
def test_no_session_is_over_before_its_timeout_has_passed(looks, timeout_ms):
    leases = Leases()
    now_ms = beat = last_beat_ms = 0
    leases.look([Pulse(1, 0, timeout_ms)], 0)
    for pause_ms, counts in looks:
        now_ms += pause_ms
        if counts:
            beat, last_beat_ms = beat + 1, now_ms
        if leases.look([Pulse(1, beat, timeout_ms)], now_ms):
            assert now_ms - last_beat_ms >= timeout_ms
