"""How a stream waits when nothing is new: not at once, not for long, and not past a record."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from datasource.connector import reader as readers
from datasource.connector.idle import AT_ONCE_MS, PAUSE_MS_MAX, WAIT_MS, pause_ms
from logstore.env import Clock, Env
from tests.support.memory_target import MemoryTarget, stream_reader

AT_ONCE = False, 0, 1, 0  # nothing new, no time, one look, no question


class Time(Clock):
    """Passes when somebody sleeps; `then` happens in the sleep that comes to its time."""

    def __init__(self):
        self.ms, self.pauses, self.then = 1_000, [], {}

    def monotonic_ms(self):
        return int(self.ms)

    def sleep_ms(self, duration_ms):
        self.ms += duration_ms
        self.pauses.append(duration_ms)
        for when in [when for when in self.then if when <= self.ms]:
            self.then.pop(when)()


class Slow(MemoryTarget):
    """Each question for its ends takes this long; looks at all of it are counted."""

    def __init__(self, time):
        super().__init__()
        self.time, self.asked_ms, self.asked, self.looks = time, 0, 0, 0

    def settled(self, look):
        self.looks += 1
        return look()

    def next_offsets(self, topic, partitions):
        self.asked += 1
        self.time.ms += self.asked_ms
        return super().next_offsets(topic, partitions)


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr(readers, "SYSTEM", Env(clock=time))
    return time


@pytest.fixture
def target(time):
    target = Slow(time)
    target.create("t", 30)
    return target


class Idling:
    """A query at the end of its topic, which Spark asks each `every_ms`."""

    def __init__(self, target, time, *, every_ms=10, available_now=False, **options):
        self.reader = stream_reader(target, subscribe="t", startingOffsets="earliest", **options)
        self.limit = self.reader.getDefaultReadLimit()
        self.time, self.target, self.every_ms = time, target, every_ms
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self.end = self.reader.latestOffset(self.reader.initialOffset(), self.limit)

    def ask(self):
        """Return whether there was something, the time that the answer took, the looks and the questions for it."""
        self.time.ms += self.every_ms
        begun_ms, looks, asked = self.time.ms, self.target.looks, self.target.asked
        end = self.reader.latestOffset(self.end, self.limit)
        is_new, self.end = end != self.end, end
        return is_new, self.time.ms - begun_ms, self.target.looks - looks, self.target.asked - asked


@pytest.mark.parametrize("options", [{}, {"maxOffsetsPerTrigger": "5000"}], ids=["no limit", "a limit"])
def test_spark_that_asks_on_and_on_waits_but_for_the_first_time(target, time, options):
    query = Idling(target, time, **options)
    assert isinstance(query.limit, ReadAllAvailable) == (not options)
    assert query.ask() == AT_ONCE  # as processAllAvailable() and trigger(once=True) need it
    for _ in range(3):
        is_new, took_ms, looks, asked = query.ask()
        assert not is_new
        assert took_ms == WAIT_MS
        assert looks == 1
        assert asked > 3


def test_a_record_ends_the_wait(target, time):
    query = Idling(target, time)
    query.ask()
    query.ask()
    time.then[time.ms + 10 + 40] = lambda: target.grow("t", 31)
    is_new, took_ms, looks, _ = query.ask()
    assert is_new
    assert 40 <= took_ms <= 40 + pause_ms(0)
    assert looks == 2
    assert query.ask() == AT_ONCE


def test_what_cannot_be_asked_is_looked_at(target, time):
    query = Idling(target, time, failOnDataLoss="false")
    query.ask()
    query.ask()
    time.then[time.ms + 10 + 40] = target.content.clear
    query.ask()
    assert query.end["offsets"] == {}


def test_a_trigger_with_an_interval_and_available_now_do_not_wait(target, time):
    for query in (Idling(target, time, every_ms=AT_ONCE_MS + 1), Idling(target, time, available_now=True)):
        for _ in range(3):
            assert query.ask() == AT_ONCE


def test_dear_questions_are_rarer_and_the_wait_ends_in_time(target, time):
    query = Idling(target, time)
    query.ask()
    target.asked_ms = 2
    query.ask()
    _, took_ms, _, asked = query.ask()
    assert asked <= 1 + WAIT_MS / pause_ms(2)
    assert took_ms <= WAIT_MS + 2
    target.asked_ms = WAIT_MS
    _, took_ms, _, asked = query.ask()
    assert took_ms <= WAIT_MS + pause_ms(0)
    assert asked == 1
    assert pause_ms(1_000) == PAUSE_MS_MAX
