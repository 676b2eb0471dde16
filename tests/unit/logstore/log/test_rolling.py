"""When a log begins a new segment: size, age, jitter, full indexes, on demand."""

import math
import struct
from pathlib import Path

import pytest

from logstore.config import LogConfig
from tests.support.partition import appended, batch, make, reopen


def bases(log) -> list[int]:
    return [segment.base_offset for segment in log.segments()]


def test_a_segment_is_closed_at_its_size(root, env):
    size = len(batch(b"x"))
    log = make(root, env, segment_bytes=3 * size)
    appended(log, bytearray().join(batch(b"x") for _ in range(7)))
    assert bases(log) == [0, 3, 6]
    assert [segment.size_bytes for segment in log.segments()] == [3 * size, 3 * size, size]


def test_a_segment_is_closed_at_its_age_in_record_time(root, env):
    log = make(root, env, segment_ms=1_000)
    for timestamp in (5_000, 6_000, 6_001, 2_000, 7_002):
        appended(log, batch(b"x", timestamp=timestamp))
    assert bases(log) == [0, 2, 4]


def test_jitter_closes_segments_earlier_by_different_times_in_every_process_alike(root, env):
    settings = {"segment_ms": 10_000, "segment_jitter_ms": 9_000}
    found = []
    for name in ("a-0", "a-1", "a-2"):
        log = make(root, env, name=name, **settings)
        twin = reopen(log.directory, env, **settings)
        for number in range(40):
            appended((log, twin)[number % 2], batch(b"x", timestamp=500 * number))
        found.append(tuple(bases(log)))
        assert max(b - a for a, b in zip(bases(log), bases(log)[1:], strict=False)) <= 21
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"segment_ms": 10_000, "segment_jitter_ms": 10**9},
        {
            "segment_ms": 10**9,
            "segment_jitter_ms": 10**8,
            "max_compaction_lag_ms": 10_000,
            "cleanup_policy": frozenset({"compact"}),
        },
    ],
)
def test_jitter_above_the_age_of_a_segment_takes_at_most_that_age(root, env, settings):
    """Else an append would begin a segment each."""
    for name in ("a-0", "a-1", "a-2"):
        log = make(root, env, name=name, **settings)
        for _ in range(20):
            appended(log, batch(b"x", timestamp=5_000))
        assert bases(log) == [0]


def test_a_segment_is_closed_when_an_index_is_full(root, env):
    log = make(root, env, segment_index_bytes=36, index_interval_bytes=0)
    for number in range(12):
        appended(log, batch(b"x", timestamp=number))
    assert bases(log) == [0, 4, 8]
    assert all(env.files.stat(Path(s.path).with_suffix(".timeindex")).size <= 36 for s in log.segments())


def test_index_entries_are_an_interval_apart(root, env):
    log = make(root, env, index_interval_bytes=1_000)
    for _ in range(100):
        appended(log, batch(b"x" * 40, timestamp=1))
    size = len(batch(b"x" * 40))
    index = env.files.read_all(Path(log.segments()[0].path).with_suffix(".index"))
    step = math.floor(1_000 / size) + 1
    assert list(struct.iter_unpack(">ii", index)) == [(n, n * size) for n in range(step, 100, step)]


def test_a_roll_on_demand_begins_an_empty_segment_and_only_one(root, env):
    log = make(root, env)
    log.roll()
    assert log.segments() == ()
    appended(log, batch(b"a"))
    log.roll()
    log.roll()
    assert bases(log) == [0, 1]


def test_settings_may_change_while_a_log_is_open(root, env):
    log = make(root, env)
    appended(log, batch(b"a"))
    log.reconfigure(LogConfig(segment_bytes=len(batch(b"a"))))
    appended(log, batch(b"a"))
    assert bases(log) == [0, 1]
