"""Writes of Spark are all or nothing, and a batch that comes again is there once."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import BinaryType, StructField, StructType

import datasource
import logstore
from datasource import lag
from datasource.connector.source import PylogDataSource
from logstore.errors import PylogError, TransactionAbortedError
from tests.support.inside import die
from tests.support.repeats import only_long

pytestmark = pytest.mark.spark


class Copy:
    """A query that copies topic `in` to topic `out`, in batches of at most four records."""

    def __init__(self, spark, topics, checkpoint: Path) -> None:
        self.spark, self.topics, self.checkpoint = spark, topics, checkpoint

    def frame(self, **options):
        options = self.topics.options | {"subscribe": "in", "startingOffsets": "earliest"} | options
        return self.spark.readStream.format("pylog").options(**options).load().select("key", "value")

    def start(self, frame=None, **options):
        frame = self.frame(maxOffsetsPerTrigger="4") if frame is None else frame
        writer = frame.writeStream.format("pylog").options(**self.topics.options)
        if "topic" not in frame.columns:
            writer = writer.option("topic", "out")
        return (
            writer.options(**options).option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()
        )

    def run(self, frame=None, **options):
        query = self.start(frame, **options)
        assert query.awaitTermination(120)
        return query

    def forget(self, number: int) -> None:
        """Pretend that the driver died between the sink's commit of this batch and its own."""
        for name in (str(number), f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def forget_offsets(self, number: int) -> None:
        """Pretend that the checkpoint is an older copy, from before this batch was planned."""
        self.forget(number)
        for name in (str(number), f".{number}.crc"):
            (self.checkpoint / "offsets" / name).unlink(missing_ok=True)


@pytest.fixture
def copy(spark, topics, tmp_path):
    topics.create("in", partitions=2)
    topics.create("out", partitions=3)
    return Copy(spark, topics, tmp_path / "checkpoint")


def refusal(act) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark wraps ours in several kinds
        act()
    return str(caught.value)


def seen(topics, topic="out"):
    return sorted(topics.values(topic))


def late(gate: Path):
    """A process that comes to task 1 waits before its first row."""

    def wait(batches):
        from pyspark import TaskContext

        while TaskContext.get().partitionId() == 1 and not gate.exists():
            time.sleep(0.05)
        yield from batches

    return wait


def tend_when_one_is_prepared_and_one_runs(topics, is_writing) -> None:
    """Do what others do all the time."""

    def is_reached() -> bool:
        attempts = store.transactions.state().attempts.values()
        done = {a.owner.holder for a in attempts if a.prepared}
        holders = Path(topics.path).glob("transactions/.holder-*")
        return bool(done and {f.name for f in holders if f.read_text().strip()} - done)

    with logstore.open(topics.path) as store:
        while not is_reached():
            assert is_writing()
            time.sleep(0.05)
        time.sleep(0.05)  # longer than the time limit
        assert store.transactions.complete_or_abort() == 0
    assert is_writing()


# --- batch writes


def test_a_batch_write_is_visible_when_it_is_done_and_not_before(spark, topics, write, tmp_path):
    topics.create("t", partitions=2)
    gate = tmp_path / "gate"

    def wait(batches):
        from pyspark import TaskContext

        yield from batches
        while TaskContext.get().partitionId() == 1 and not gate.exists():
            time.sleep(0.05)

    frame = spark.range(0, 4, 1, 2).selectExpr("string(id) value").mapInArrow(wait, "value string")

    def save():
        datasource.register(spark)
        write(frame, topic="t")

    writing = threading.Thread(target=save)
    writing.start()
    while len(topics.everything("t")) < 2:
        assert writing.is_alive()
        time.sleep(0.05)
    assert seen(topics, "t") == []
    gate.touch()
    writing.join()
    assert seen(topics, "t") == ["0", "1", "2", "3"]


@pytest.mark.directory
@only_long("a task that waits")
def test_a_batch_write_lives_while_one_of_its_tasks_runs(spark, topics, write, tmp_path):
    """One task is done, the other computes for long before its first row."""
    topics.create("t", partitions=2)
    gate = tmp_path / "gate"
    frame = spark.range(0, 4, 1, 2).selectExpr("string(id) value").mapInArrow(late(gate), "value string")

    def save():
        datasource.register(spark)
        write(frame, topic="t", **{"transaction.timeout.ms": "1"})

    writing = threading.Thread(target=save)
    writing.start()
    try:
        tend_when_one_is_prepared_and_one_runs(topics, writing.is_alive)
    finally:
        gate.touch()
        writing.join()
    assert seen(topics, "t") == ["0", "1", "2", "3"]


def test_a_batch_write_that_fails_leaves_nothing(spark, topics, write):
    topics.create("t", partitions=2)
    frame = spark.range(0, 10, 1, 2).selectExpr("string(id) value", "int(if(id = 9, 7, 0)) partition")
    assert "partition 7" in refusal(lambda: write(frame, topic="t"))
    assert seen(topics, "t") == []
    assert topics.open_transactions() == []
    write(frame.where("partition = 0"), topic="t")
    assert len(seen(topics, "t")) == 9


@only_long("tasks that are tried again")
def test_a_task_that_is_tried_again_is_there_once(spark, topics, write, tmp_path):
    """(T6) Its first attempt had written everything, and prepared nothing."""
    topics.create("t")
    marker = tmp_path / "failed-once"

    def fail_once(batches):
        yield from batches
        if not marker.exists():
            marker.touch()
            raise RuntimeError("the first attempt fails")

    frame = spark.range(3).selectExpr("string(id) value").coalesce(1).mapInArrow(fail_once, "value string")
    write(frame, topic="t")
    assert seen(topics, "t") == ["0", "1", "2"]
    assert topics.open_transactions() == []


@only_long("a task that waits")
@pytest.mark.directory
def test_a_speculated_task_is_there_once(topics, tmp_path):
    """(T6) Two attempts at once, in processes of their own. By Spark itself: test_speculation.py."""
    topics.create("t")
    source = PylogDataSource({"path": topics.path, "topic": "t"})
    writer = source.writer(StructType([StructField("value", BinaryType())]), overwrite=False)
    gate = tmp_path / "gate"
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        slow = processes.submit(attempt, pickle.dumps(writer), gate)
        while len(topics.everything("t")) < 20:
            assert not slow.done()
            time.sleep(0.05)
        fast = processes.submit(attempt, pickle.dumps(writer), None)
        writer.commit([fast.result()])
        assert len(seen(topics, "t")) == 21
        assert topics.open_transactions() == []
        gate.touch()
        with pytest.raises(TransactionAbortedError, match="was committed without it"):
            slow.result()
    assert len(topics.everything("t")) == 41
    assert len(seen(topics, "t")) == 21


def attempt(writer: bytes, gate: Path | None):
    """A task: rows enough to be appended, then, behind the gate, one more."""

    def batches():
        yield pa.RecordBatch.from_pydict({"value": [b"%d " % n + bytes(900_000) for n in range(20)]})
        while gate and not gate.exists():
            time.sleep(0.05)
        yield pa.RecordBatch.from_pydict({"value": [b"20 "]})

    return pickle.loads(writer).write(batches())


def test_plain_writes_are_still_there_for_who_wants_them(spark, topics, write):
    topics.create("t")
    write(spark.range(3).selectExpr("string(id) value"), topic="t", exactlyOnce="false")
    assert (seen(topics, "t"), topics.ends("t")) == (["0", "1", "2"], [3])


@pytest.mark.directory
@only_long("queries of its own")
def test_a_read_can_see_what_is_not_committed(topics, read):
    topics.create("t")
    with logstore.open(topics.path) as store, store.transaction() as transaction:
        store.append("t", pa.table({"value": ["x"]}), transaction=transaction)
        assert read(subscribe="t").count() == 0
        assert read(subscribe="t", isolation="read_uncommitted").count() == 1
    assert read(subscribe="t").count() == 1


# --- streams


@pytest.mark.directory
def test_a_batch_whose_commit_spark_forgot_is_there_once(copy, topics):
    """(T7, T8) Each batch is known by its query and number, in tasks and in the commit."""
    topics.append("in", [f"{n}" for n in range(10)])
    query = copy.run()
    before = topics.ends("out")
    with logstore.open(topics.path, mode="r") as store:
        assert store.transactions.last_batch(query.id) == query.lastProgress["batchId"] == 2
    copy.forget(2)
    copy.run()
    assert seen(topics) == sorted(f"{n}" for n in range(10))
    assert topics.ends("out") == before  # nothing was written again
    topics.append("in", ["more"])
    query = copy.run()
    assert "more" in seen(topics)
    assert lag(query.lastProgress)["offsetsBehindLatest"] == 0
    assert topics.open_transactions() == []


@only_long("queries of its own")
def test_a_replay_with_other_rows_of_the_same_input_keeps_the_first_ones(copy, topics):
    """A query that is not deterministic: its offset log says that the input is the same."""
    topics.append("in", ["a", "b"])
    copy.run(copy.frame().selectExpr("key", "cast(concat(string(value), uuid()) as binary) value"))
    first = seen(topics)
    copy.forget(0)
    copy.run(copy.frame().selectExpr("key", "cast(concat(string(value), uuid()) as binary) value"))
    assert seen(topics) == first


@only_long("queries of its own")
def test_a_checkpoint_restored_from_an_older_copy_is_refused_and_loses_nothing_silently(copy, topics, tmp_path):
    """(T9) Old batch numbers come with new content."""
    topics.append("in", ["a", "b", "c", "d"])
    copy.run()
    old = tmp_path / "old"
    shutil.copytree(copy.checkpoint, old)
    topics.append("in", ["e", "f", "g", "h"])
    copy.run()
    for content, text in (["i"], "another content"), (["j"] * 4, "another content"):
        shutil.rmtree(copy.checkpoint)
        shutil.copytree(old, copy.checkpoint)
        topics.append("in", content)
        assert text in refusal(lambda: copy.run(copy.frame()))
        assert topics.open_transactions() == []
        assert seen(topics) == list("abcdefgh")


@only_long("queries of its own")
def test_the_same_content_again_from_an_older_copy_is_there_once(copy, topics):
    """(T9) The same records under the same number: nothing to write, and the query goes on."""
    topics.append("in", ["a", "b", "c", "d"])
    copy.run()
    copy.forget_offsets(0)
    copy.run()
    topics.append("in", ["e"])
    copy.run()
    assert seen(topics) == list("abcde")


@only_long("queries of its own")
def test_an_older_batch_than_the_last_is_refused(copy, topics):
    """(T9)"""
    topics.append("in", [f"{n}" for n in range(8)])
    copy.run(txnId="copy")
    shutil.rmtree(copy.checkpoint)
    assert "older copy" in refusal(lambda: copy.run(txnId="copy"))
    assert len(seen(topics)) == 8
    copy.run()  # under another name, all of it comes again: that is what was asked for
    assert len(seen(topics)) == 16


@only_long("queries of its own")
def test_a_batch_over_several_topics_is_one(copy, topics):
    topics.create("other")
    topics.append("in", [f"{n}" for n in range(6)])
    frame = copy.frame().selectExpr("value", "if(string(value) < '3', 'out', 'other') topic")
    copy.run(frame)
    copy.forget(0)
    copy.run(frame)
    assert (seen(topics), seen(topics, "other")) == (["0", "1", "2"], ["3", "4", "5"])


def test_foreach_batch_names_its_writes(copy, topics, spark):
    """(T7)"""
    topics.append("in", [f"{n}" for n in range(6)])

    def save(frame, number):
        for name in ("first", "second"):
            frame = frame.select("value")
            writer = frame.write.format("pylog").mode("append").options(**topics.options)
            writer.option("topic", "out").option("txnId", name).option("txnVersion", number).save()

    def run():
        writer = copy.frame(maxOffsetsPerTrigger="4").writeStream.foreachBatch(save)
        query = writer.option("checkpointLocation", copy.checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run()
    copy.forget(1)
    run()
    assert seen(topics) == sorted([f"{n}" for n in range(6)] * 2)


@pytest.mark.directory
@only_long("a task that waits")
def test_a_micro_batch_lives_while_one_of_its_tasks_runs(copy, topics, tmp_path):
    """However long ago the others were done: here a moment is long."""
    topics.append("in", ["a", "b"], partition=pa.array([0, 1], pa.int32()))
    gate = tmp_path / "gate"
    frame = copy.frame(minPartitions=2).mapInArrow(late(gate), "key binary, value binary")
    query = copy.start(frame, **{"transaction.timeout.ms": "1"})
    try:
        tend_when_one_is_prepared_and_one_runs(topics, lambda: query.exception() is None)
    finally:
        gate.touch()
    assert query.awaitTermination(120)
    assert seen(topics) == ["a", "b"]


def in_the_middle(copy, topics, tmp_path):
    """A query whose first task is prepared while the second runs, and what ends the second."""
    before = topics.everything("out")
    topics.append("in", ["a", "b"], partition=pa.array([0, 1], pa.int32()))
    slow = tmp_path / "slow"
    slow.touch()

    def wait(batches):
        waits = False
        for batch in batches:
            waits |= b"b" in batch["value"].to_pylist()
            yield batch
        while waits and slow.exists():
            time.sleep(0.05)

    query = copy.start(copy.frame(minPartitions=2).mapInArrow(wait, "key binary, value binary"))
    while topics.everything("out") == before:
        assert query.exception() is None
        time.sleep(0.05)
    assert sorted(topics.everything("out")) == sorted([*before, "a"])
    return query, slow.unlink


@pytest.mark.directory
@only_long("queries of its own")
def test_a_query_that_is_stopped_in_the_middle_of_a_batch_keeps_nobody_waiting(copy, topics, tmp_path):
    """If Spark interrupts the abort, as it may on a busy machine, the next start ends what is open."""
    copied, aborted = [], False
    while not aborted:
        assert len(copied) < 10, "five stops in a row left a transaction open"
        query, let_go = in_the_middle(copy, topics, tmp_path)
        query.stop()
        let_go()
        deadline = time.monotonic() + 10
        while not (aborted := topics.open_transactions() == []) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert seen(topics) == sorted(copied)
        copy.run()
        copied += ["a", "b"]
        assert (seen(topics), topics.open_transactions()) == (sorted(copied), [])


@pytest.mark.directory
@only_long("queries of its own")
def test_a_stream_whose_sink_refuses_fails_and_goes_on_later(copy, topics):
    topics.append("in", ["a", "b"])
    with logstore.open(topics.path) as store:
        store.alter_topic("out", config={"cleanup.policy": "compact"})
    with pytest.raises(StreamingQueryException, match="no key"):
        copy.run()
    assert seen(topics) == []
    assert topics.open_transactions() == []
    with logstore.open(topics.path) as store:
        store.alter_topic("out", config={"cleanup.policy": None})
    copy.run()
    assert seen(topics) == ["a", "b"]


@pytest.mark.directory
def test_readers_go_on_when_the_writer_is_gone_for_good(copy, topics, read):
    """Any process ends transactions that can no longer be committed: here a Spark read that would have to wait."""
    topics.create("t")
    with logstore.open(topics.path) as store:
        dead = store.transaction("dead", batch_id=1)
        store.append("t", pa.table({"value": ["x"]}), transaction=dead)
        store.append("t", pa.table({"value": ["behind"]}))
        die(store)
        assert [bytes(r.value) for r in read(subscribe="t").collect()] == [b"behind"]
        with pytest.raises(PylogError):
            dead.commit()
