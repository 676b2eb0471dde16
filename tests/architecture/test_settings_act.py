"""Every topic setting acts: for each there is a test here that fails if the setting is ignored.

The few that wait for a later part are listed in docs/generate.py with what they wait for.
"""

import itertools
import sys
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest

import logstore
from logstore.config import LogConfig
from logstore.dump import BatchLine, OffsetEntryLine, dump
from logstore.env import Env, OsFiles

WEEK_MS = 7 * 24 * 3600 * 1000

# setting -> the test that fails without it.
ACTS = {
    "cleanup.policy": "test_a_compacted_topic_needs_keys",
    "compression.type": "test_batches_are_stored_with_the_codec_of_the_topic",
    "file.delete.delay.ms": "test_files_of_a_deleted_topic_stay_for_the_delay",
    "flush.messages": "test_so_many_records_are_fsynced",
    "flush.ms": "test_an_append_so_long_after_the_last_fsync_is_fsynced",
    "index.interval.bytes": "test_index_entries_are_so_far_apart",
    "max.message.bytes": "test_a_larger_record_is_refused",
    "message.timestamp.type": "test_records_have_the_time_of_the_append",
    "segment.bytes": "test_a_segment_ends_at_its_size",
    "segment.index.bytes": "test_a_segment_ends_when_its_index_is_full",
    "segment.jitter.ms": "test_jitter_ends_segments_earlier_and_not_all_at_once",
    "segment.ms": "test_a_segment_ends_at_its_age",
}


def test_every_setting_has_its_test_or_its_reason(not_yet):
    keys = {setting.metadata["key"] for setting in fields(LogConfig)}
    assert keys == set(ACTS) | set(not_yet)
    assert [name for name in ACTS.values() if not hasattr(sys.modules[__name__], name)] == []
    # Compaction waits, but its demand for keys does not.
    assert set(ACTS) & set(not_yet) == {"cleanup.policy"}


class Clock:
    """Stands still until it is moved."""

    def __init__(self):
        self.time_ms = 1_700_000_000_000

    def now_ms(self):
        return self.time_ms

    def monotonic_ms(self):
        return self.time_ms

    def sleep_ms(self, duration_ms):
        self.time_ms += int(duration_ms)


class CountingFiles(OsFiles):
    """The real files, counting the fsyncs of .log files."""

    log_fsyncs = 0

    def fsync(self, path):
        self.log_fsyncs += str(path).endswith(".log")
        super().fsync(path)


@pytest.fixture
def env():
    return Env(clock=Clock(), files=CountingFiles())


@pytest.fixture
def topic(tmp_path, env):
    """Make topic `t` with these settings; gives the store."""
    stores = []

    def make(**settings):
        stores.append(logstore.open(tmp_path / f"store{len(stores)}", env=env))
        stores[-1].create_topic(
            "t", config={name.replace("_", "."): value for name, value in settings.items()}
        )
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def append(store, *values, **columns):
    store.append("t", pa.table({"value": pa.array(values, pa.binary()), **columns}))


def append_at(store, *times_ms):
    """One append, and so one batch, per timestamp."""
    for time_ms in times_ms:
        append(store, b"v", timestamp=pa.array([time_ms], pa.int64()))


def segments(store):
    return [segment.base_offset for segment in store.log("t", 0).segments()]


def lines(store, suffix, kind):
    found = [dump(path) for path in sorted((store.path / "t-0").glob(f"*{suffix}"))]
    return [line for file in found for line in file if isinstance(line, kind)]


def test_a_compacted_topic_needs_keys(topic):
    append(topic(), b"v")
    with pytest.raises(logstore.InvalidRecordError, match="key"):
        append(topic(cleanup_policy="compact"), b"v")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_stored_with_the_codec_of_the_topic(topic, codec):
    store = topic(compression_type=codec)
    append(store, b"v" * 100)
    assert [line.header.codec.name.lower() for line in lines(store, ".log", BatchLine)] == [codec]


def test_files_of_a_deleted_topic_stay_for_the_delay(topic, env):
    store = topic(file_delete_delay_ms="5000")
    append(store, b"v")
    store.delete_topic("t")
    assert list(store.path.glob("t-0*.deleted/*.log"))
    env.clock.time_ms += 4999
    store.create_topic("other")
    assert list(store.path.glob("t-0*.deleted/*.log"))
    env.clock.time_ms += 1
    store.create_topic("another")
    assert not list(store.path.glob("t-0*.deleted"))


def test_so_many_records_are_fsynced(topic, env):
    store = topic(flush_messages="3")
    append(store, b"1", b"2")
    assert env.files.log_fsyncs == 0
    append(store, b"3")
    assert env.files.log_fsyncs == 1


def test_an_append_so_long_after_the_last_fsync_is_fsynced(topic, env):
    store = topic(flush_ms="1000")
    append(store, b"1")
    before = env.files.log_fsyncs
    env.clock.time_ms += 999
    append(store, b"2")
    assert env.files.log_fsyncs == before
    env.clock.time_ms += 1
    append(store, b"3")
    assert env.files.log_fsyncs == before + 1


def test_index_entries_are_so_far_apart(topic):
    near, far = topic(index_interval_bytes="0"), topic(index_interval_bytes="400")
    for store in (near, far):
        for _ in range(20):
            append(store, b"v" * 100)
    assert len(lines(near, ".index", OffsetEntryLine)) > len(lines(far, ".index", OffsetEntryLine)) > 0
    positions = [line.position for line in lines(far, ".index", OffsetEntryLine)]
    assert all(b - a > 400 for a, b in itertools.pairwise(positions))


def test_a_larger_record_is_refused(topic):
    store = topic(max_message_bytes="500")
    append(store, b"v" * 400)
    with pytest.raises(logstore.RecordTooLargeError):
        append(store, b"v" * 500)


def test_records_have_the_time_of_the_append(topic, env):
    store = topic(message_timestamp_type="LogAppendTime")
    append_at(store, 1)
    records = store.read("t", partition=0).read_all()
    assert records["timestamp"].cast(pa.int64()).to_pylist() == [env.clock.time_ms]
    assert records["timestampType"].to_pylist() == [1]


def test_a_segment_ends_at_its_size(topic):
    store = topic(segment_bytes="500")
    for _ in range(4):
        append(store, b"v" * 150)
    assert segments(store) == [0, 2]


def test_a_segment_ends_when_its_index_is_full(topic):
    # Room for 3 entries of 12 bytes; every batch but a segment's first brings one.
    store = topic(index_interval_bytes="0", segment_index_bytes="36")
    for _ in range(12):
        append(store, b"v")
    assert len(segments(store)) > 2
    sizes = [path.stat().st_size for path in (store.path / "t-0").glob("*.timeindex")]
    assert all(size <= 36 for size in sizes)


def test_a_segment_ends_at_its_age(topic):
    store = topic(segment_ms="1000")
    append_at(store, 10_000, 11_000, 11_001, 12_001, 12_002)
    assert segments(store) == [0, 2, 4]


def test_jitter_ends_segments_earlier_and_not_all_at_once(topic):
    steps = range(0, 60_000, 100)
    plain, jittered = topic(segment_ms="3000"), topic(segment_ms="3000", segment_jitter_ms="2000")
    append_at(plain, *steps)
    append_at(jittered, *steps)
    lengths = [{b - a for a, b in itertools.pairwise(s)} for s in map(segments, (plain, jittered))]
    assert len(lengths[0]) == 1
    assert len(lengths[1]) > 3
    assert max(lengths[1]) <= max(lengths[0])
    assert min(lengths[1]) >= 10


@pytest.fixture(scope="module")
def not_yet():
    import importlib.util

    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("generate", root / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.NOT_YET
