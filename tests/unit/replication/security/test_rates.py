"""Rates and tokens beside a ring of samples that is written down as Kafka's words say."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.config import INT32_MAX
from replication.security import rates
from replication.security.rates import NOTHING_TAKEN, Tokens, Window

windows = st.builds(Window, st.integers(1, 12), st.sampled_from([100, 1000, 3000]))
takings = st.lists(st.tuples(st.integers(0, 15_000), st.integers(0, 10**7)), max_size=60)  # a pause, an amount
limits = st.sampled_from([1, 10, 1000, 123_457, 10**6, 0.5])


class Ring:
    """Samples in a ring with one to spare: full ones make way, old ones are emptied where they stand."""

    def __init__(self, window):
        self.samples, self.length_ms = window
        self.slots = []  # start, last, value
        self.at = 0

    def take(self, value, now_ms):
        if not self.slots:
            self.slots.append([now_ms, now_ms, 0.0])
        if now_ms - self.slots[self.at][0] >= self.length_ms:
            self.at = (self.at + 1) % (self.samples + 1)
            if self.at == len(self.slots):
                self.slots.append(None)
            self.slots[self.at] = [now_ms, now_ms, 0.0]
        self.slots[self.at][1] = now_ms
        self.slots[self.at][2] += value

    def wait_ms(self, limit, now_ms):
        for slot in self.slots:
            if now_ms - slot[1] >= self.samples * self.length_ms:
                slot[:] = [now_ms, now_ms, 0.0]
        total, oldest = sum(slot[2] for slot in self.slots), min(slot[0] for slot in self.slots)
        span_ms = now_ms - oldest
        if span_ms // self.length_ms < self.samples - 1:
            span_ms += (self.samples - 1 - span_ms // self.length_ms) * self.length_ms
        span_ms = max(span_ms, 1)
        rate = total / (span_ms / 1000)
        return min(INT32_MAX, math.floor((rate - limit) / limit * span_ms + 0.5)) if rate > limit else 0


@given(windows, takings, limits)
def test_a_rate_is_that_of_the_ring(window, takings, limit):
    rate, ring, now_ms = NOTHING_TAKEN, Ring(window), 1_000_000
    for pause_ms, amount in takings:
        now_ms += pause_ms
        rate = rates.take(rate, amount, now_ms, window)
        ring.take(amount, now_ms)
        assert rates.wait_ms(rate, limit, now_ms, window) == ring.wait_ms(limit, now_ms)
        assert len(rate) <= window.samples + 1


@given(takings, limits, st.integers(1, 10**6))
def test_who_waits_when_told_takes_little_over_a_long_time(takings, limit, amount):
    """Bursts at the edges of windows may come to twice the limit, as at a Kafka."""
    window = Window(11, 1000)
    rate, now_ms, begin_ms, total, most = NOTHING_TAKEN, 0, 0, 0, 0
    for pause_ms, other in (*takings, (0, amount)) * 3:
        chunk = min(other, int(limit * 10) or 1)
        now_ms += pause_ms
        rate = rates.take(rate, chunk, now_ms, window)
        total, most = total + chunk, max(most, chunk)
        now_ms += rates.wait_ms(rate, limit, now_ms, window)
    assert total <= 2 * limit * ((now_ms - begin_ms) / 1000 + 11) + most


@given(windows, takings, st.integers(1, 10**6))
def test_what_is_given_back_was_never_taken(window, takings, amount):
    rate, now_ms = NOTHING_TAKEN, 0
    for pause_ms, other in takings:
        now_ms += pause_ms
        rate = rates.take(rate, other, now_ms, window)
    after = rates.take(rates.take(rate, amount, now_ms, window), -amount, now_ms, window)
    assert rates.taken(after, now_ms, window) == rates.taken(rate, now_ms, window)


def test_a_burst_of_a_whole_window_is_free_after_a_silence_and_one_byte_more_is_not():
    window = Window(11, 1000)
    assert rates.wait_ms(rates.take(NOTHING_TAKEN, 10_000, 0, window), 1000, 0, window) == 0
    assert rates.wait_ms(rates.take(NOTHING_TAKEN, 10_001, 0, window), 1000, 0, window) == 1
    assert rates.wait_ms(rates.take(NOTHING_TAKEN, 20_000, 0, window), 1000, 0, window) == 10_000


def test_a_rate_is_forgotten_when_its_window_is_over():
    window = Window(3, 1000)
    rate = rates.take(NOTHING_TAKEN, 50, 0, window)
    assert rates.taken(rate, 2999, window) == 50
    assert rates.taken(rate, 3000, window) == 0
    assert rates.wait_ms(rate, 1, 3000, window) == 0
    rate = rates.take(rate, 1, 999, window)  # the same sample, whose age is that of what it was given last
    assert rates.taken(rate, 3998, window) == 51
    assert rates.taken(rate, 3999, window) == 0
    later = rates.take(rates.take(rates.take(NOTHING_TAKEN, 1, 0, window), 2, 1000, window), 4, 1900, window)
    assert rates.taken(later, 4500, window) == 6


@pytest.mark.parametrize("limit", [1e-300, 1e-9])
def test_a_wait_is_a_number_that_the_protocol_has(limit):
    window = Window(11, 1000)
    assert rates.wait_ms(rates.take(NOTHING_TAKEN, 10**9, 0, window), limit, 0, window) == INT32_MAX
    assert rates.refill_ms(Tokens(-(10.0**9), 0), limit) == INT32_MAX


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 50)), max_size=40), st.sampled_from([0.1, 1, 5, 50]))
def test_tokens_come_back_by_the_limit_and_no_more_than_a_windows_worth(takings, limit):
    window, now_ms, tokens, taken, begun = Window(11, 1000), 0, None, 0, False
    for pause_ms, amount in takings:
        now_ms += pause_ms
        tokens = rates.refill(tokens, limit, now_ms, window)
        assert tokens.left <= limit * 11 + 1e-9
        if tokens.left >= 0:
            tokens, taken, begun = Tokens(tokens.left - amount, now_ms), taken + amount, True
            assert rates.refill_ms(tokens, limit) == max(0, math.floor(-tokens.left / limit * 1000 + 0.5))
    if begun:
        assert taken <= limit * (now_ms / 1000 + 11) + 50


def test_a_bucket_is_full_at_first_and_refuses_only_when_it_is_empty():
    window = Window(11, 1000)
    tokens = rates.refill(None, 2, 0, window)
    assert tokens.left == 22
    assert rates.refill_ms(Tokens(1, 0), 2) == 0
    tokens = Tokens(tokens.left - 30, 0)
    assert rates.refill_ms(tokens, 2) == 4000
    assert rates.refill(tokens, 2, 4000, window).left == 0
