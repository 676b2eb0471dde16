"""How much a replication quota lets through, and when."""

import pytest

from replication.replica.quota import WAIT_MS_MAX, ReplicationQuota

RATE = 1000


class Clock:
    def __init__(self):
        self.time_ms = 5_000

    def monotonic_ms(self):
        return self.time_ms


class Copying:
    """Copies batches of one size for so long, whenever it is let, as a leader and its follower do."""

    def __init__(self, rate=RATE):
        self.clock = Clock()
        self.rate = rate
        self.quota = ReplicationQuota(lambda: self.rate, self.clock)
        self.copied_bytes = 0

    def copy(self, batch_bytes, duration_ms):
        end_ms = self.clock.time_ms + duration_ms
        while self.clock.time_ms < end_ms:
            if self.quota.left_bytes():
                self.quota.charge(batch_bytes)
                self.copied_bytes += batch_bytes
            else:
                self.clock.time_ms += self.quota.wait_ms()


@pytest.mark.parametrize("batch_bytes", [1, 70, 999, 1000, 1001, 20_000])
def test_in_the_long_run_the_rate_is_kept_and_used_whatever_the_size_of_batches(batch_bytes):
    copying = Copying()
    copying.copy(batch_bytes, 100_000)
    assert 90 * RATE <= copying.copied_bytes <= 101 * RATE + batch_bytes


def test_what_was_not_used_is_not_saved_up_for_longer_than_a_second():
    copying = Copying()
    copying.clock.time_ms += 1_000_000
    copying.copy(10, 1)
    assert copying.copied_bytes <= RATE


def test_copying_begins_again_with_a_tenth_of_a_second_and_not_for_every_byte():
    copying = Copying()
    copying.quota.charge(RATE)
    assert copying.quota.left_bytes() == 0
    copying.clock.time_ms += 50
    assert copying.quota.left_bytes() == 0
    copying.clock.time_ms += copying.quota.wait_ms()
    assert copying.quota.left_bytes() == RATE / 10


def test_another_rate_counts_from_now_on_and_is_looked_for():
    copying = Copying(rate=1)
    copying.copy(50_000, 10)
    assert (copying.quota.left_bytes(), copying.quota.wait_ms()) == (0, WAIT_MS_MAX)
    copying.rate = 10_000_000
    copying.clock.time_ms += WAIT_MS_MAX
    assert copying.quota.left_bytes() >= 9_000_000


def test_what_was_copied_before_there_was_a_limit_does_not_count():
    copying = Copying(rate=2**63 - 1)
    copying.quota.charge(10_000_000)
    copying.clock.time_ms += 1
    copying.rate = RATE
    assert copying.quota.left_bytes() == RATE


def test_without_a_limit_nothing_waits():
    copying = Copying(rate=2**63 - 1)
    for _ in range(1000):
        copying.quota.charge(1 << 30)
    assert copying.quota.left_bytes() > 1 << 40
