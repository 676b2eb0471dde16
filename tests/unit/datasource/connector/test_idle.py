"""How a stream waits when nothing is new: not at first, never for long, and not past a record."""

import pytest

from datasource.connector import reader as readers
from datasource.connector.idle import AT_ONCE_MS, SHARE, WAIT_MS_MAX, WAIT_MS_MIN, Idle
from datasource.connector.reader import LOOK_EACH_MS
from logstore.env import Clock, Env
from tests.support.memory_target import MemoryTarget, stream_reader

POLLING_MS = 10
LONG_MS = SHARE * WAIT_MS_MAX


class Time(Clock):
    """Passes when somebody waits; `then` happens when its time has come."""

    def __init__(self):
        self.ms, self.then = 1_000, {}

    def monotonic_ms(self):
        return self.ms

    def sleep_ms(self, duration_ms):
        until = self.ms + duration_ms
        while due := [ms for ms in self.then if ms <= until]:
            self.ms = max(self.ms, min(due))
            self.then.pop(min(due))()
        self.ms = until


class Waiting(MemoryTarget):
    """It waits by the clock of the test, looks every millisecond, and counts both."""

    def __init__(self, time):
        super().__init__()
        self.time, self.looks, self.waits = time, 0, []

    def settled(self, look):
        self.looks += 1
        return look()

    def wait_for_more(self, ends, wait_ms):
        self.waits.append(wait_ms)
        for _ in range(wait_ms):
            if super().wait_for_more(ends, 0):
                return True
            self.time.sleep_ms(1)
        return False


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr(readers, "SYSTEM", Env(clock=time))
    return time


@pytest.fixture
def target(time):
    target = Waiting(time)
    target.create("t", 30)
    return target


class Query:
    """It has read its topic up to the end, and Spark asks it again and again."""

    def __init__(self, target, *, every_ms=POLLING_MS, available_now=False, **options):
        self.reader = stream_reader(target, subscribePattern="t.*", startingOffsets="earliest", **options)
        self.limit, self.target, self.every_ms = self.reader.getDefaultReadLimit(), target, every_ms
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self.end = self.reader.latestOffset(self.reader.initialOffset(), self.limit)

    def ask(self):
        """Return how long it takes until the answer, and whether there is something."""
        self.target.time.sleep_ms(self.every_ms)
        begun_ms, before = self.target.time.ms, self.end
        self.end = self.reader.latestOffset(before, self.limit)
        self.reader.reportLatestOffset()
        return self.target.time.ms - begun_ms, self.end != before

    def idle(self, for_ms=LONG_MS + 500):
        until = self.target.time.ms + for_ms
        while self.target.time.ms < until:
            assert not self.ask()[1]
        return self


OPTIONS = [{}, {"maxOffsetsPerTrigger": "5000"}, {"minOffsetsPerTrigger": "1"}]


@pytest.mark.parametrize("options", OPTIONS, ids=["no limit", "a maximum", "a minimum"])
def test_a_stream_that_idles_is_asked_and_looks_a_few_times_a_second(target, options):
    query = Query(target, **options).idle()
    target.looks, target.waits = 0, []
    query.idle(for_ms=10_000)
    assert len(target.waits) <= 10_000 / WAIT_MS_MAX
    assert target.looks <= 10_000 / LOOK_EACH_MS


def test_the_first_questions_after_a_batch_are_answered_at_once(target):
    query = Query(target)
    assert query.ask() == (0, False)  # as trigger(once=True) and processAllAvailable() need it
    while target.time.ms < 1_000 + SHARE * WAIT_MS_MIN:
        assert query.ask() == (0, False)
    query.idle()
    target.grow("t", 31)
    assert query.ask() == (0, True)
    assert query.ask() == (0, False)


def test_a_wait_is_a_small_part_of_the_time_without_a_batch(target):
    query, begun_ms = Query(target), target.time.ms
    for _ in range(300):
        took_ms, _ = query.ask()
        assert took_ms <= min(WAIT_MS_MAX, (target.time.ms - begun_ms) / SHARE)
    assert took_ms == WAIT_MS_MAX


@pytest.mark.parametrize("options", OPTIONS, ids=["no limit", "a maximum", "a minimum"])
def test_a_record_ends_the_wait(target, options):
    query = Query(target, **options).idle()
    target.time.then[target.time.ms + POLLING_MS + 40] = lambda: target.grow("t", 31)
    took_ms, is_new = query.ask()
    assert is_new
    assert took_ms <= 41
    assert query.end["offsets"] == {"t": {"0": 31}}


def test_a_record_between_two_questions_is_found_at_once(target):
    query = Query(target).idle()
    target.time.then[target.time.ms + POLLING_MS // 2] = lambda: target.grow("t", 31)
    assert query.ask() == (0, True)


def test_records_that_wait_for_others_do_not_end_a_wait(target):
    query = Query(target, minOffsetsPerTrigger="10", maxTriggerDelay="1h").idle()
    target.grow("t", 31)
    query.ask()
    for _ in range(3):
        assert query.ask() == (WAIT_MS_MAX, False)
    target.time.then[target.time.ms + POLLING_MS + 40] = lambda: target.grow("t", 40)
    took_ms, is_new = query.ask()
    assert is_new
    assert took_ms <= 41


@pytest.mark.parametrize("change", ["a partition", "a topic"])
def test_what_is_new_beside_the_known_partitions_is_found_by_the_next_look(target, change):
    query = Query(target).idle()
    target.grow("t", 30, 1) if change == "a partition" else target.create("t2", 1)
    until = target.time.ms + LOOK_EACH_MS + WAIT_MS_MAX + 3 * POLLING_MS
    while not query.ask()[1]:
        assert target.time.ms < until


def test_a_topic_that_is_deleted_during_the_wait_is_told(target):
    query = Query(target, failOnDataLoss="false").idle()
    target.time.then[target.time.ms + POLLING_MS + 40] = target.content.clear
    took_ms, _ = query.ask()
    assert took_ms <= 41
    assert query.end["offsets"] == {}


def test_a_trigger_with_an_interval_and_available_now_do_not_wait(target):
    for query in (Query(target, every_ms=AT_ONCE_MS + 1), Query(target, available_now=True)):
        for _ in range(300):
            assert query.ask() == (0, False)


@pytest.mark.parametrize("count", [2, 3])
def test_of_several_sources_of_a_query_one_waits(count):
    sources, now_ms, rounds = [Idle() for _ in range(count)], 0, []
    for _ in range(1_000):
        now_ms += POLLING_MS
        begun_ms = now_ms
        for source in sources:
            now_ms += source.wait_ms(now_ms)
            source.answered(now_ms, with_nothing=True)
        rounds.append(now_ms - begun_ms)
    assert WAIT_MS_MAX / 2 < max(rounds[500:]) <= 1.3 * WAIT_MS_MAX


def test_another_source_that_has_batches_is_not_held_up():
    idle, now_ms, waited = Idle(), 0, []
    for _ in range(100):  # a batch of another source each half second
        for _ in range(20):
            now_ms += POLLING_MS
            waited.append(idle.wait_ms(now_ms))
            now_ms += waited[-1]
            idle.answered(now_ms, with_nothing=True)
        now_ms += 300
    assert max(waited) <= 20
