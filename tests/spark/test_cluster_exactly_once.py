"""Batches that Spark writes to a cluster are there once, whoever dies between two messages, and nothing stays open."""

from __future__ import annotations

import inspect
import itertools
import re
import time
import uuid
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa
import pytest

from datasource.connector.options import DECISION_TOPIC
from datasource.topics.interface import Batch, TransactionSettings
from datasource.topics.transactions.batches import ClusterTransactions
from datasource.topics.transactions.protocol import Brokers, Name
from datasource.topics.transactions.wire import ClusterBrokers
from logstore.errors import BatchConflictError, TransactionAbortedError
from replication.client.kafka_client import Isolation
from replication.client.transactions import Pair
from replication.errors import ErrorCode, KafkaError
from tests.spark.conftest import TopicsOfCluster
from tests.spark.test_exactly_once import Copy, in_the_middle, refusal
from tests.support.repeats import only_long, times

EVERY = times(11, 1)  # message behind which a driver dies
pytestmark = pytest.mark.spark


@pytest.fixture
def name():
    """The name of a query that nobody else has."""
    return uuid.uuid4().hex


def values(client, topic):
    return sorted(
        value.decode()
        for p, extent in client.extents(topic, isolation=Isolation.READ_COMMITTED).items()
        for rows in client.read(topic, p, extent.start, extent.end, columns=["value"])
        for value in rows["value"].to_pylist()
    )


def save(frame, over, **options):
    frame.write.format("pylog").options(**over, **options).mode("append").save()


def opened(client, name=""):
    """The open transactions of a name, except that of a state, which times out."""
    ids = [each.transactional_id for each in client.list_transactions(states=["Ongoing"])]
    return [id for id in ids if id.startswith("pylog-sink/task/") and name in id]


class Life:
    """One life of the program that writes batches under a name, each with two tasks."""

    def __init__(self, client, topic, name, run):
        self.client, self.topic, self.name, self.run = client, topic, name, run
        settings = TransactionSettings(driver=run, timeout_ms=60_000, decision_topic=DECISION_TOPIC)
        self.transactions = ClusterTransactions(client, settings)

    def task(self, number, partition, attempt=0):
        """The message of a task."""
        batch = Batch(name=self.name, batch_id=number, run=self.run)
        with self.transactions.begun(batch, (partition, attempt)) as part:
            rows = pa.table({"value": [f"{number}-{partition}-{n}" for n in range(3)]})
            part.append(self.topic, rows, partitioner="round_robin", compression=None)
            return part.prepare()

    def commit(self, prepared, origin=""):
        self.transactions.commit(prepared, origin=origin)

    def write(self, number):
        self.commit([self.task(number, partition) for partition in range(2)])


def rows(*batches):
    return sorted(f"{number}-{partition}-{n}" for number in batches for partition in range(2) for n in range(3))


# ------------------------------------------------------------------ the protocol


class Death(BaseException):
    """The process is gone: it says nothing any more."""


class Mortal:
    """Kills this process before, or after, message `number` of the world, in one act after the other."""

    def __init__(self, monkeypatch):
        self.number, self.is_dead, self.count = None, False, 0
        for method, _ in inspect.getmembers(Brokers, inspect.iscoroutinefunction):
            if method != "pause":
                monkeypatch.setattr(ClusterBrokers, method, self.wrap(getattr(ClusterBrokers, method)))

    def wrap(self, method):
        async def call(*args, **named):
            self.step()
            answer = await method(*args, **named)
            self.step()
            return answer

        return call

    def step(self):
        self.is_dead |= self.number == self.count
        self.count += 1
        if self.is_dead:
            raise Death

    def dies(self, number, act) -> bool:
        """Whether the process died before the act was done."""
        self.number, self.is_dead, self.count = number, False, 0
        try:
            act()
        except Death:
            return True
        finally:
            self.number, self.is_dead = None, False
        return False


def test_a_driver_may_die_between_any_two_messages(client, topic, name, monkeypatch):
    """Its successor finishes what was decided, and writes again what was not; then it dies itself at the next one."""
    mortal, lives = Mortal(monkeypatch), itertools.count()
    first = Life(client, topic, name, f"run-{next(lives)}")
    first.write(0)
    batch = 0
    for number in itertools.count(0, EVERY):
        batch += 1
        life = Life(client, topic, name, f"run-{next(lives)}")
        is_dead = mortal.dies(number, lambda life=life, batch=batch: life.write(batch))
        Life(client, topic, name, f"run-{next(lives)}").write(batch)
        assert values(client, topic) == rows(*range(batch + 1))
        assert opened(client, name) == []
        if not is_dead:
            break
    assert batch * EVERY > 30


def test_a_zombie_of_the_last_run_writes_nothing(client, topic, name):
    old, new = Life(client, topic, name, "old"), Life(client, topic, name, "new")
    prepared = old.task(0, 0)
    new.write(0)
    with pytest.raises(TransactionAbortedError, match="superseded"):
        old.task(0, 1)
    with pytest.raises(BatchConflictError, match="another content"):
        old.commit([prepared])
    with pytest.raises(TransactionAbortedError, match="superseded"):
        old.commit([replace(prepared, batch_id=1)])
    assert values(client, topic) == rows(0)
    assert opened(client, name) == []


@only_long("a task that waits")
def test_a_slow_attempt_that_is_not_among_the_winners_is_fenced(client, topic, name):
    """One has its id and has looked at the decisions, the other one has appended; they append when all is over."""
    life, row = Life(client, topic, name, "run"), pa.table({"value": ["x"]})

    def append(part):
        part.append(topic, row, partitioner="round_robin", compression=None)

    with ExitStack() as parts:
        slow, late = (
            parts.enter_context(life.transactions.begun(Batch(name=name, batch_id=0, run="run"), (p, 0)))
            for p in range(2)
        )
        slow._begin()
        append(late)
        life.commit([life.task(0, p, attempt=1) for p in range(2)])
        for part in (slow, late):
            with pytest.raises(KafkaError) as caught:
                append(part)
            assert caught.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    life.commit([life.task(0, p) for p in range(2)])  # the same again
    assert values(client, topic) == rows(0)
    assert opened(client, name) == []


@only_long("queries of its own")
def test_what_others_have_open_among_the_decisions_keeps_nobody_waiting(client, topic, name):
    life = Life(client, topic, name, "run")
    life.write(0)
    with client.transaction(f"of-{name}") as other:
        other.append(DECISION_TOPIC, pa.table({"key": [name], "value": ["{}"]}), partitioner="sticky")
        life.write(1)
        Life(client, topic, name, "next").write(2)
        assert values(client, topic) == rows(0, 1, 2)
        other.append(DECISION_TOPIC, pa.table({"key": ["other"], "value": ["{}"]}))


def test_what_an_operator_aborted_is_not_decided(client, topic, name):
    life = Life(client, topic, name, "run")
    prepared = [life.task(0, partition) for partition in range(2)]
    client.end_transaction(prepared[1].attempt.id, Pair(*prepared[1].attempt[1:]), commits=False)
    with pytest.raises(TransactionAbortedError, match=r"(Prepare|Complete)Abort"):
        life.commit(prepared)
    life.transactions.abort(Batch(name=name, batch_id=0, run="run"), reason="")
    assert (values(client, topic), opened(client, name)) == ([], [])


def test_a_decision_whose_transaction_was_aborted_stops_every_run(client, topic, name, monkeypatch):
    mortal, life = Mortal(monkeypatch), Life(client, topic, name, "run")
    prepared = [life.task(0, partition) for partition in range(2)]
    ended = ClusterBrokers.end

    async def end(self, attempts, *, commits):
        raise Death

    monkeypatch.setattr(ClusterBrokers, "end", end)
    with pytest.raises(Death):
        life.commit(prepared)
    monkeypatch.setattr(ClusterBrokers, "end", ended)
    client.end_transaction(prepared[1].attempt.id, Pair(*prepared[1].attempt[1:]), commits=False)
    for run in ("second", "third"):
        with pytest.raises(Exception, match=f"decided.*{topic}-[012] \\(.*compare") as caught:
            Life(client, topic, name, run).task(1, 0)
        assert "\n" not in str(caught.value)
    del mortal


def test_an_abort_without_messages_ends_what_the_same_driver_left(client, topic, name):
    life = Life(client, topic, name, "run")
    life.task(0, 0)
    stranger = ClusterTransactions(client, TransactionSettings(driver="x", timeout_ms=1, decision_topic=DECISION_TOPIC))
    stranger.abort(Batch(name=name, batch_id=0, run=""), reason="")
    assert len(opened(client, name)) == 1
    life.transactions.abort(Batch(name=name, batch_id=0, run=""), reason="")
    assert opened(client, name) == []
    with pytest.raises(TransactionAbortedError, match="superseded"):
        life.task(0, 1)


def test_what_a_driver_that_is_gone_left_is_released(client, topic):
    life = Life(client, topic, "", "run")
    life.name = life.transactions.claim(None, "run")
    assert re.fullmatch(r"~\d+", life.name)
    life.task(0, 0)
    assert len(opened(client, life.name)) == 1
    life.transactions.release(life.name)
    assert opened(client, life.name) == []


@only_long("queries of its own")
def test_a_write_without_rows_gives_its_name_back(client, topic):
    life = Life(client, topic, "", "run")
    life.name = life.transactions.claim(None, "run")
    with life.transactions.begun(Batch(name=life.name, batch_id=0, run="run"), (0, 0)) as part:
        nothing = part.prepare()
    life.commit([nothing])
    with pytest.raises(TransactionAbortedError, match="superseded"):
        life.task(0, 0)
    life.transactions.run(lambda world: Name(world, life.name, "another").take_over())


# -------------------------------------------------------------------- with Spark


def test_a_batch_write_is_there_once_in_all_its_topics(spark, cluster, client, over, topic, tmp_path):
    """(T6) One of its tasks fails when it has written everything, and is tried again."""
    other, marker = cluster.create((1, 2, 3)), tmp_path / "failed"

    def fail_once(batches):
        yield from batches
        from pyspark import TaskContext

        if TaskContext.get().partitionId() == 1 and not marker.exists():
            marker.touch()
            raise RuntimeError("the first attempt fails")

    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "concat('v', id) value", f"if(id % 2 = 0, '{topic}', '{other}') topic"
    )
    save(frame.mapInArrow(fail_once, "value string, topic string"), over)
    assert marker.exists()
    assert values(client, topic) == sorted(f"v{n}" for n in range(0, 1000, 2))
    assert values(client, other) == sorted(f"v{n}" for n in range(1, 1000, 2))
    assert opened(client) == []


@only_long("tasks that are tried again")
def test_a_batch_write_that_fails_leaves_nothing(spark, client, over, topic, name):
    frame = spark.range(0, 10, 1, 2).selectExpr("string(id) value", "int(if(id = 9, 7, 0)) partition")
    assert "partition 7" in refusal(lambda: save(frame, over, topic=topic))
    assert (values(client, topic), opened(client)) == ([], [])
    committed = client.extents(topic, isolation=Isolation.READ_COMMITTED)
    assert committed == client.extents(topic)  # nobody waits
    good = frame.where("partition = 0")
    for _ in range(2):
        save(good, over, topic=topic, txnId=name, txnVersion=1)
    assert len(values(client, topic)) == 9
    assert "another content" in refusal(lambda: save(good.limit(3), over, topic=topic, txnId=name, txnVersion=1))
    assert "older copy" in refusal(lambda: save(good, over, topic=topic, txnId=name, txnVersion=0))
    assert (len(values(client, topic)), opened(client)) == (9, [])


@pytest.fixture
def topics(cluster, tmp_path):
    made = TopicsOfCluster(cluster, tmp_path)
    made.create("in", partitions=2)
    made.create("out", partitions=3)
    yield made
    made.close()


@only_long("queries of its own")
def test_the_next_run_ends_what_an_interrupted_abort_left_open(spark, topics, tmp_path):
    """Spark's `stop` cancels the job and interrupts the query: in its abort, if the job has ended by then."""
    copy = Copy(spark, topics, tmp_path / "checkpoint")
    query, let_go = in_the_middle(copy, topics, tmp_path)
    spark.sparkContext.cancelJobGroup(query.runId)
    time.sleep(0.05)
    query.stop()
    let_go()
    assert values(topics.client, "out") == []
    copy.run()
    assert (values(topics.client, "out"), topics.open_transactions()) == (["a", "b"], [])


@only_long("queries of its own")
def test_a_batch_whose_commit_spark_forgot_is_there_once(spark, topics, tmp_path):
    """(T7, T8)"""
    topics.append("in", [f"{n}" for n in range(10)])
    copy = Copy(spark, topics, tmp_path / "checkpoint")
    copy.run()
    before = topics.ends("out")
    copy.forget(2)
    copy.run()
    assert values(topics.client, "out") == sorted(f"{n}" for n in range(10))
    assert topics.ends("out") == before  # nothing was written again
    assert topics.open_transactions() == []
