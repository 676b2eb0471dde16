"""Stores stay open between tasks, and are the right ones."""

import pickle
import shutil
from functools import partial

import pyarrow as pa
import pytest

import logstore
from datasource.connector.reader import StreamReader
from datasource.connector.source import PylogDataSource
from datasource.connector.writer import merged
from datasource.topics import directory as topics
from datasource.topics.interface import Batch, PartitionRange, TransactionSettings
from logstore import InvalidConfigError, NotAStoreError, ReadOnlyStoreError, UnknownTopicError
from logstore.env import Clock, Env
from tests.support.ddl import schema
from tests.support.inside import close_stores, open_stores

ROWS = pa.table({"value": ["c"]})


@pytest.fixture(autouse=True)
def no_open_stores():
    close_stores()  # those of other files
    yield
    close_stores()


@pytest.fixture
def path(tmp_path):
    with logstore.open(tmp_path / "log") as store:
        store.create_topic("t", partitions=2)
        store.append("t", pa.table({"value": ["a", "b"], "partition": pa.array([0, 1], pa.int32())}))
    return str(tmp_path / "log")


def source(path, **options):
    return PylogDataSource({"path": path, **options})


def rows_of(reader, tasks):
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def test_a_store_is_opened_once(path):
    topics.DirectoryTopics(path)
    first = dict(open_stores())
    topics.DirectoryTopics(path)
    assert open_stores() == first
    topics.WritableDirectory(path)
    assert len(open_stores()) == 2


def open_many(directory):
    for i in range(topics.OPEN_STORES_MAX + 2):
        with logstore.open(directory / str(i)) as store:
            store.create_topic("t")
        topics.DirectoryTopics(str(directory / str(i)))


def test_few_stores_stay_open(tmp_path):
    open_many(tmp_path)
    assert len(open_stores()) == topics.OPEN_STORES_MAX


def test_a_store_in_use_stays_open(path, tmp_path):
    """By another thread, perhaps: Sail runs many tasks in one process."""
    reader = topics.DirectoryTopics(path)
    settings = TransactionSettings(driver="unknown", timeout_ms=1000, decision_topic="")
    writer = topics.WritableDirectory(path).transactions(settings)
    open_many(tmp_path)
    assert [info.name for info in reader.topics()] == ["t"]
    with writer.begun(Batch(name="job", batch_id=1, run="run"), (0, 0)) as part:
        topics.WritableDirectory(path).append("t", ROWS, partitioner="murmur3", compression=None, transaction=part)
        prepared = part.prepare()
    writer.commit([prepared], origin="")
    assert len(open_stores()) == topics.OPEN_STORES_MAX


def test_a_directory_that_was_replaced_is_opened_anew(path):
    assert topics.DirectoryTopics(path).offsets("t")[0].end == 1
    shutil.rmtree(path)
    with logstore.open(path) as store:
        store.create_topic("other")
    with pytest.raises(UnknownTopicError):
        topics.DirectoryTopics(path).topic("t")


def test_a_directory_without_a_log_is_not_made_one(tmp_path):
    for opened in (topics.DirectoryTopics, topics.WritableDirectory):
        with pytest.raises(NotAStoreError, match="create a topic there first"):
            opened(str(tmp_path / "no"))
    assert not (tmp_path / "no").exists()


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("x")
    for open_it in (topics.DirectoryTopics, topics.WritableDirectory):
        with pytest.raises(NotAStoreError, match="file is a file; option 'path' takes the directory"):
            open_it(str(tmp_path / "file"))


def test_reading_never_writes(path):
    with pytest.raises(ReadOnlyStoreError):
        topics.DirectoryTopics(path)._store.append("t", pa.table({"value": ["x"]}))


def test_a_reader_travels_with_its_tasks(path):
    made = source(path, subscribe="t", minPartitions="2")
    reader = pickle.loads(pickle.dumps(made.reader(made.schema())))
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    assert [(r["partition"], r["value"]) for r in rows_of(reader, tasks)] == [(0, b"a"), (1, b"b")]


def test_a_stream_reader_works_on_a_real_log(path):
    made = source(path, subscribe="t", startingOffsets="earliest", maxBytesPerTrigger="1")
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert [r["value"] for r in rows_of(reader, reader.partitions(start, end))] == [b"a", b"b"]


def test_a_refused_stream_reader_says_why_whatever_it_is_asked_first(path):
    made = source(path, subscribe="t", endingOffsets="latest")
    reader = made.streamReader(schema("value binary"))
    for question in (reader.initialOffset, reader.latestOffset, lambda: reader.partitions({}, {})):
        with pytest.raises(InvalidConfigError, match="a stream has no end"):
            question()


def test_a_task_reports_what_it_appended(path):
    writer = pickle.loads(pickle.dumps(source(path, topic="t").writer(schema("value string"), False)))
    batch = pa.record_batch({"value": ["x", "y"], "partition": pa.array([0, 1], pa.int32())})
    message = pickle.loads(pickle.dumps(writer.write(iter([batch, batch]))))
    assert message.ranges == (PartitionRange("t", 0, 1, 3), PartitionRange("t", 1, 1, 3))
    writer.commit([message])


def test_a_failed_plain_write_is_told_with_what_it_left(path, caplog):
    writer = source(path, topic="t", exactlyOnce="false").writer(schema("value string, partition int"), False)
    writer.write(iter([pa.record_batch({"value": ["x"], "partition": pa.array([1], pa.int32())})]))
    writer.abort([None])
    assert "left in the log since it began: t-1 [1, 2)" in caplog.text


def test_a_write_without_rows_is_fine(path):
    writer = source(path, topic="t").writer(schema("value string"), False)
    assert writer.write(iter([])).ranges == ()


def test_ranges_that_touch_are_one():
    ranges = [
        PartitionRange("t", 0, 3, 5),
        PartitionRange("t", 0, 0, 3),
        PartitionRange("t", 1, 5, 6),
        PartitionRange("t", 0, 6, 7),
    ]
    assert merged(ranges) == [
        PartitionRange("t", 0, 0, 5),
        PartitionRange("t", 0, 6, 7),
        PartitionRange("t", 1, 5, 6),
    ]


class Later(Clock):
    """It calls `act` in the first pause; the pauses are counted, and no other time passes."""

    def __init__(self, act=lambda: None):
        self.ms, self.act, self.pauses = 0, act, 0

    def monotonic_ms(self):
        return self.ms

    def sleep_ms(self, duration_ms):
        self.ms += duration_ms
        self.pauses += 1
        if self.pauses == 1:
            self.act()


def waited(monkeypatch, path, act, ends=None, isolation="read_committed"):
    """Whether a wait of a second for more than is there was ended by `act`, and after how long."""
    source, clock = topics.DirectoryTopics(path, isolation), Later(act)
    ends = ends or {"t": {p: extent.end for p, extent in source.offsets("t").items()}}
    monkeypatch.setattr(topics, "SYSTEM", Env(clock=clock))
    return source.wait_for_more(ends, 1_000), clock.ms


def test_a_wait_ends_with_the_first_record_of_another_process(monkeypatch, path):
    with logstore.open(path) as store:
        append = partial(store.append, "t", pa.table({"value": ["c"], "partition": pa.array([1], pa.int32())}))
        assert waited(monkeypatch, path, append) == (True, topics.pause_ms(2))
        assert waited(monkeypatch, path, lambda: None) == (False, 1_000)
        assert waited(monkeypatch, path, lambda: None, {"t": {0: 1, 1: 1}}) == (True, 0)  # it came before
        assert waited(monkeypatch, path, partial(store.delete_topic, "t")) == (True, topics.pause_ms(2))
        assert waited(monkeypatch, path, lambda: None, {"t": {0: 1}}) == (True, 0)


def test_a_wait_for_committed_records_goes_on_while_they_are_not(monkeypatch, path):
    with logstore.open(path) as store:
        transaction = store.transactions.begin("name", 1, run="run")
        store.append("t", pa.table({"value": ["c"]}), transaction=transaction)
        prepared = transaction.prepare()
        assert waited(monkeypatch, path, lambda: None) == (False, 1_000)
        assert waited(monkeypatch, path, lambda: None, isolation="read_uncommitted") == (False, 1_000)
        commit = partial(store.transactions.commit, [prepared], origin="run")
        assert waited(monkeypatch, path, commit) == (True, topics.pause_ms(2))


def test_many_partitions_are_looked_at_less_often():
    assert topics.pause_ms(3) == topics.PAUSE_MS_MIN
    assert topics.PAUSE_MS_MIN < topics.pause_ms(100) < topics.pause_ms(10_000) == topics.PAUSE_MS_MAX
