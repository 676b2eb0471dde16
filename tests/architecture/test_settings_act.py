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
from logstore.env import Env, OsFiles
from logstore.log.tiering import advance_tiered_offset
from logstore.records.batch import Record, build
from logstore.schemas.registry import schema_of
from logstore.tools.dump import dump
from tests.support.partition import appended

WEEK_MS = 7 * 24 * 3600 * 1000

# setting -> the test that fails without it.
ACTS = {
    "cleanup.policy": "test_the_policy_says_what_happens_to_old_records",
    "compression.type": "test_batches_are_stored_with_the_codec_of_the_topic",
    "delete.retention.ms": "test_tombstones_stay_for_so_long",
    "file.delete.delay.ms": "test_files_of_a_deleted_topic_stay_for_the_delay",
    "flush.messages": "test_so_many_records_are_fsynced",
    "flush.ms": "test_an_append_so_long_after_the_last_fsync_is_fsynced",
    "index.interval.bytes": "test_index_entries_are_so_far_apart",
    "key.schema.validation": "test_keys_and_values_bear_ids_of_their_subjects[key]",
    "key.subject.name.strategy": "test_the_strategy_names_the_subject_of_an_id[key]",
    "max.compaction.lag.ms": "test_after_this_lag_a_segment_is_closed_and_compacted",
    "max.message.bytes": "test_a_larger_record_is_refused",
    "message.timestamp.after.max.ms": "test_records_from_too_far_ahead_are_refused",
    "message.timestamp.before.max.ms": "test_records_from_too_long_ago_are_refused",
    "message.timestamp.type": "test_records_have_the_time_of_the_append",
    "min.cleanable.dirty.ratio": "test_compaction_waits_until_so_much_is_dirty",
    "min.compaction.lag.ms": "test_younger_segments_are_not_compacted",
    "producer.id.expiration.ms": "test_a_producer_that_is_silent_so_long_is_forgotten",
    "remote.storage.enable": "test_what_is_not_tiered_stays",
    "retention.bytes": "test_a_partition_keeps_about_so_many_bytes",
    "retention.ms": "test_segments_go_when_they_are_so_old",
    "segment.bytes": "test_a_segment_ends_at_its_size",
    "segment.index.bytes": "test_a_segment_ends_when_its_index_is_full",
    "segment.jitter.ms": "test_jitter_ends_segments_earlier_and_not_all_at_once",
    "segment.ms": "test_a_segment_ends_at_its_age",
    "value.schema.validation": "test_keys_and_values_bear_ids_of_their_subjects[value]",
    "value.subject.name.strategy": "test_the_strategy_names_the_subject_of_an_id[value]",
}


# Those that only brokers have a use for are tested there.
ACTS_IN_A_CLUSTER = {
    "errors.deadletterqueue.group.enable": "test_what_may_not_be_written_is_given_up_without_a_letter",
    "follower.replication.throttled.replicas": "test_a_throttled_replica_takes_its_time[follower]",
    "leader.replication.throttled.replicas": "test_a_throttled_replica_takes_its_time[leader]",
    "min.insync.replicas": "test_too_few_in_sync_replicas_refuse_acks_all_and_nothing_else",
    "unclean.leader.election.enable": "test_all_replicas_down_and_the_one_that_was_not_in_sync_comes_back_first",
}


def test_every_setting_has_its_test():
    keys = {setting.metadata["key"] for setting in fields(LogConfig)}
    assert keys == set(ACTS) | set(ACTS_IN_A_CLUSTER)
    assert [name for name in ACTS.values() if not hasattr(sys.modules[__name__], name.partition("[")[0])] == []
    files = ("test_replicas_down.py", "test_quotas.py", "test_share_letters.py")
    there = "".join((Path(__file__).parents[1] / "integration/cluster" / name).read_text() for name in files)
    assert [name for name in ACTS_IN_A_CLUSTER.values() if f"def {name.partition('[')[0]}(" not in there] == []


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
        stores[-1].create_topic("t", config={name.replace("_", "."): value for name, value in settings.items()})
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
    return [line for file in found for line in file if line.kind == kind]


def test_a_compacted_topic_needs_keys(topic):
    append(topic(), b"v")
    with pytest.raises(logstore.InvalidRecordError, match="key"):
        append(topic(cleanup_policy="compact"), b"v")


def append_keys(store, keys, value=b"v" * 100):
    """One append, and so one batch, per key."""
    for key in keys:
        values = pa.array([value], pa.binary())
        store.append("t", pa.table({"key": pa.array([key.encode()]), "value": values}))


def keys_of(store):
    return b"".join(store.read("t", partition=0).read_all()["key"].to_pylist()).decode()


def test_the_policy_says_what_happens_to_old_records(topic):
    settings = {"segment_bytes": "500", "retention_bytes": "1"}
    deleted, compacted, both = (
        topic(cleanup_policy=policy, **settings) for policy in ("delete", "compact", "compact,delete")
    )
    for store in (deleted, compacted, both):
        append_keys(store, "aabbccddeefg")
        store.compact("t", 0)
        store.expire("t", 0)
    assert keys_of(deleted) == "g" or keys_of(deleted) == "fg"
    assert keys_of(compacted) == "abcdefg"
    assert keys_of(both) == keys_of(deleted)


def test_tombstones_stay_for_so_long(topic, env):
    store = topic(
        cleanup_policy="compact",
        segment_bytes="500",
        delete_retention_ms="5000",
        min_cleanable_dirty_ratio="0",
    )

    def compact():
        append_keys(store, "xxxx")
        store.log("t", 0).roll()
        assert store.compact("t", 0).rounds == 1

    append_keys(store, "aab")
    append_keys(store, "a", value=None)
    compact()
    assert keys_of(store).replace("x", "") == "ba"
    env.clock.time_ms += 4999
    compact()
    assert keys_of(store).replace("x", "") == "ba"
    env.clock.time_ms += 1
    compact()
    assert keys_of(store).replace("x", "") == "b"


def test_compaction_waits_until_so_much_is_dirty(topic):
    store = topic(cleanup_policy="compact", segment_bytes="500", min_cleanable_dirty_ratio="0.7")
    append_keys(store, "abcdefgh")
    store.log("t", 0).roll()
    assert store.compact("t", 0).rounds == 1
    append_keys(store, "abcdefgh")
    store.log("t", 0).roll()
    assert "not above 0.7" in store.compact("t", 0).skipped
    store.alter_topic("t", config={"min.cleanable.dirty.ratio": "0.4"})
    assert store.compact("t", 0).rounds == 1


def test_younger_segments_are_not_compacted(topic, env):
    store = topic(cleanup_policy="compact", segment_bytes="500", min_compaction_lag_ms="1000")
    append_keys(store, "aaaa")
    env.clock.time_ms += 600
    append_keys(store, "aaaa")
    assert store.compact("t", 0).skipped == "nothing is dirty"
    env.clock.time_ms += 600
    assert store.compact("t", 0).rounds == 1
    assert 2 < len(keys_of(store)) < 8


def test_after_this_lag_a_segment_is_closed_and_compacted(topic, env):
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "1"}
    lagging, patient = topic(max_compaction_lag_ms="1000", **settings), topic(**settings)
    for store in (lagging, patient):
        append_keys(store, "aabb")
        store.compact("t", 0)
        assert keys_of(store) == "aabb"
    env.clock.time_ms += 1001
    for store in (lagging, patient):
        store.compact("t", 0)
    assert (keys_of(lagging), keys_of(patient)) == ("ab", "aabb")


def test_records_from_too_far_ahead_are_refused(topic, env):
    store = topic(message_timestamp_after_max_ms="1000")
    append_at(store, env.clock.time_ms + 1000, 0)
    with pytest.raises(logstore.InvalidRecordError, match=r"row 0 .* message.timestamp.after.max.ms"):
        append_at(store, env.clock.time_ms + 1001)


def test_records_from_too_long_ago_are_refused(topic, env):
    store = topic(message_timestamp_before_max_ms="1000")
    append_at(store, env.clock.time_ms - 1000, env.clock.time_ms + WEEK_MS)
    with pytest.raises(logstore.InvalidRecordError, match=r"row 0 .* message.timestamp.before.max.ms"):
        append_at(store, env.clock.time_ms - 1001)


def test_segments_go_when_they_are_so_old(topic, env):
    store = topic(segment_bytes="200", retention_ms="1000")
    append_at(store, *(env.clock.time_ms + late for late in (-700, -600, -500, -100)))
    env.clock.time_ms += 400
    assert not store.expire("t", 0).removed
    env.clock.time_ms += 1
    assert [segment.reason for segment in store.expire("t", 0).removed] == ["retention.ms"]
    env.clock.time_ms += 10_000
    store.expire("t", 0)
    assert store.offsets("t") == {0: logstore.OffsetRange(4, 4)}


def test_a_partition_keeps_about_so_many_bytes(topic):
    store = topic(segment_bytes="500", retention_bytes="1200")
    for _ in range(20):
        append(store, b"v" * 150)
    store.expire("t", 0)
    sizes = [segment.size_bytes for segment in store.log("t", 0).segments()]
    assert sum(sizes) >= 1200 > sum(sizes[1:])


def test_a_producer_that_is_silent_so_long_is_forgotten(topic, env):
    store = topic(producer_id_expiration_ms="1000")
    log = store.log("t", 0)

    def send():
        row = Record(0, 0, None, b"v")
        return appended(log, build([row], producer=(7, 0, 0))).is_duplicate

    assert [send(), send()] == [False, True]
    env.clock.time_ms += 1001
    assert not send()


def test_what_is_not_tiered_stays(topic):
    store = topic(segment_bytes="500", retention_bytes="0", remote_storage_enable="true")
    for _ in range(9):
        append(store, b"v" * 150)
    assert not store.expire("t", 0).removed
    advance_tiered_offset(store.log("t", 0), 5)
    assert store.expire("t", 0).log_start_after == 4
    assert segments(store)[0] == 4


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_stored_with_the_codec_of_the_topic(topic, codec):
    store = topic(compression_type=codec)
    append(store, b"v" * 100)
    assert [line.facts["compresscodec"] for line in lines(store, ".log", "batch")] == [codec]


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
    assert len(lines(near, ".index", "entry")) > len(lines(far, ".index", "entry")) > 0
    positions = [line.facts["position"] for line in lines(far, ".index", "entry")]
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


RECORD = schema_of("AVRO", '{"type": "record", "name": "shop.Order", "fields": []}')


def bearing(schema_id):
    return pa.array([b"\0" + schema_id.to_bytes(4, "big") + b"data"], pa.binary())


@pytest.mark.parametrize("part", ["key", "value"])
def test_keys_and_values_bear_ids_of_their_subjects(topic, part):
    store = topic(**{f"{part}_schema_validation": "true"})
    other = {"key": "value", "value": "key"}[part]
    store.schemas.register(f"t-{other}", schema_of("AVRO", '"int"'))
    assert store.schemas.register(f"t-{part}", schema_of("AVRO", '"string"')).id == 2
    for rows in ({part: bearing(1), other: bearing(2)}, {part: pa.array(["text"]), other: bearing(2)}):
        with pytest.raises(logstore.InvalidRecordError, match=f"row 0: its {part} "):
            store.append("t", rows)
    store.append("t", {part: bearing(2), other: pa.array(["text"])})
    store.append("t", {part: pa.array([None], pa.binary()), other: pa.array(["text"])})


@pytest.mark.parametrize("part", ["key", "value"])
def test_the_strategy_names_the_subject_of_an_id(topic, part):
    store = topic(**{f"{part}_schema_validation": "true", f"{part}_subject_name_strategy": "RecordName"})
    store.schemas.register(f"t-{part}", schema_of("AVRO", '"string"'))
    assert store.schemas.register("shop.Order", RECORD).id == 2
    with pytest.raises(logstore.InvalidRecordError, match="bears id 1"):
        store.append("t", {"value": bearing(2), part: bearing(1)})
    store.append("t", {"value": bearing(1), part: bearing(2)})
