"""The SQLite file that a cluster agrees on is lost, damaged, replaced by an older one, and made again (decision 50)."""

import json
import shutil
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position

from logstore.cli import cli as pylog
from replication.local_cluster import LocalClusterError
from tests.support.repeats import only_long

from .conftest import running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

QUICK = {
    "coordination.copy.interval.ms": 200,
    "offsets.topic.num.partitions": 2,
    "default.replication.factor": 2,
}
STORE = "coordination.db"


def recover(directory, *options):
    """The command, and what it printed."""
    words = ["cluster", "recover-coordination", "--dir", directory, "--output", "json", *options]
    done = CliRunner().invoke(pylog, [str(word) for word in words], prog_name="pylog")
    rows = json.loads(done.stdout) if done.stdout.strip() else []
    return done.exit_code, {(row["topic"], row["partition"]): row for row in rows}, done.stderr


def remove_store(directory, *, copies=False):
    for path in directory.glob(f"{STORE}*"):
        if copies or ".copy" not in path.name:
            path.unlink()


def said(directory, broker):
    return (directory / f"broker-{broker}" / "broker" / "server.log").read_text()


def committed(bootstrap, topic, group="readers"):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        return consumer.committed([Position(topic, 0)], timeout=20)[0].offset
    finally:
        consumer.close()


def commit(bootstrap, topic, offset, group="readers"):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        consumer.commit(offsets=[Position(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


@contextmanager
def idempotent(cluster):
    """A producer that outlives the loss, and what it could not send."""
    errors = []
    settings = {"enable.idempotence": True, "log_level": 0, "message.timeout.ms": 120_000}
    producer = Producer({"bootstrap.servers": cluster.running.bootstrap, **settings})

    def send(topic, *values):
        for value in values:
            producer.produce(topic, value, partition=0, on_delivery=lambda e, m: errors.append(e) if e else None)
        assert producer.flush(60) == 0
        assert errors == []

    yield send


def epochs(cluster):
    return {tp: state.leader_epoch for tp, state in cluster.running.describe().leadership.items()}


def test_a_removed_file_is_noticed_and_made_again_from_the_copy_or_from_the_directories(tmp_path):
    """Deleted under running brokers; they go on and say so; then from the last copy, then without any copy."""
    with running(2, tmp_path, **QUICK) as cluster, idempotent(cluster) as send:
        topic = cluster.create((1, 2), retention_ms=-1)
        send(topic, b"0", b"1")
        commit(cluster.running.bootstrap, topic, 1)
        before = epochs(cluster)
        remove_store(tmp_path)
        cluster.until(
            lambda: all("was removed while brokers have it open" in said(tmp_path, broker) for broker in (1, 2))
        )
        send(topic, b"2")  # they go on
        commit(cluster.running.bootstrap, topic, 2)
        code, _, told = recover(tmp_path, "--yes")
        assert code == 1
        assert "is in use: stop all brokers" in told

        cluster.running.stop()
        with pytest.raises(LocalClusterError, match=r"is gone; .*copy is a copy of it: stop all .*recover-coord"):
            cluster.running.restart(1)
        assert not (tmp_path / STORE).exists()

        code, rows, told = recover(tmp_path)
        assert (code, "give --yes" in told, (tmp_path / STORE).exists()) == (1, True, False)
        assert (rows[topic, 0]["log_end"], rows[topic, 0]["note"]) == (3, "")
        assert recover(tmp_path, "--yes")[0] == 0
        cluster.running.restart(1, 2)
        send(topic, b"3")  # the same producer, with its sequence numbers
        assert cluster.values(topic, 4) == ["0", "1", "2", "3"]
        assert committed(cluster.running.bootstrap, topic) == 2
        after = epochs(cluster)
        assert all(after[tp] > epoch for tp, epoch in before.items())
        cluster.running.stop()
        remove_store(tmp_path, copies=True)
        code, rows, told = recover(tmp_path, "--yes")
        assert code == 0, told
        assert f"topic {topic}: its settings are lost; nothing of it is deleted" in told
        cluster.running.restart(1, 2)
        send(topic, b"4")
        assert cluster.values(topic, 5) == ["0", "1", "2", "3", "4"]
        assert committed(cluster.running.bootstrap, topic) == 2
        assert cluster.produce(topic, ["new"]) == []
        last = epochs(cluster)
        assert all(last[tp] > epoch for tp, epoch in after.items() if tp.topic == topic)
        cluster.until(lambda: sorted(cluster.state(topic).isr) == [1, 2])


@only_long("brokers that restart")
def test_an_older_copy_is_refused_by_brokers_and_leads_by_what_directories_know(tmp_path):
    """Put in place by hand it would have records cut; and a topic made since is not in it."""
    with running(2, tmp_path, **QUICK) as cluster:
        topic = cluster.create((1, 2))
        assert cluster.produce(topic, range(3)) == []
        copy = tmp_path / f"{STORE}.copy"
        cluster.until(lambda: copy.exists() and copied_state(copy, topic))
        old = tmp_path / "old.db"
        shutil.copy(copy, old)
        cluster.running.stop(1)  # another leads, and writes
        assert cluster.produce(topic, ["without 1"]) == []
        cluster.running.restart(1)
        later = cluster.create((2, 1))
        assert cluster.produce(later, ["later"]) == []
        known = cluster.state(topic).leader_epoch
        cluster.running.stop()
        remove_store(tmp_path, copies=True)
        shutil.copy(old, tmp_path / STORE)
        with pytest.raises(LocalClusterError, match=r"records of epoch .* is an older copy, .*recover-coordination"):
            cluster.running.restart(2)

        code, rows, told = recover(tmp_path, "--copy", old, "--yes")
        assert code == 0, told
        assert f"topic {later}: its settings are lost" in told
        assert f"topic {topic}:" not in told
        assert rows[topic, 0]["leader_epoch"] > known
        assert len(list(tmp_path.glob(f"{STORE}.lost-*"))) == 1
        cluster.running.restart(1, 2)
        assert cluster.values(topic, 4) == ["0", "1", "2", "without 1"]
        assert cluster.values(later, 1) == ["later"]
        assert cluster.produce(topic, ["on"]) == []


def copied_state(copy, topic):
    import sqlite3

    with sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True) as db:
        path = f"/brokers/topics/{topic}/partitions/0/state"
        return db.execute("SELECT 1 FROM node WHERE path = ?", (path,)).fetchone()


@only_long("brokers that restart")
def test_logs_that_diverged_and_topics_of_one_name_are_told_apart(tmp_path):
    """One broker has records of an older leader that nobody else has; then another topic of the name lies beside."""
    with running(2, tmp_path, **QUICK) as cluster:
        topic = cluster.create((1, 2))
        assert cluster.produce(topic, ["both"]) == []
        cluster.running.pause(2)
        cluster.until(lambda: cluster.state(topic).isr == (1,))
        with_one = {"acks": "1", "message.timeout.ms": 20_000}
        assert cluster.produce(topic, ["old", "old"], **with_one) == []
        cluster.running.kill(1, 2)
        remove_store(tmp_path, copies=True)
        # 2 leads in the epoch after that, as an unclean election would have it, and writes.
        hidden = tmp_path / "hidden"
        (tmp_path / "broker-1").rename(hidden)
        code, rows, told = recover(tmp_path, "--yes")
        assert (code, rows[topic, 0]["leader"]) == (0, 2), told
        cluster.running.restart(2)
        assert cluster.produce(topic, ["newer"]) == []
        cluster.running.stop()
        remove_store(tmp_path, copies=True)
        hidden.rename(tmp_path / "broker-1")

        code, rows, told = recover(tmp_path, "--dry-run")
        row = rows[topic, 0]
        assert (code, row["leader"], row["isr"]) == (0, 2, [2])
        assert "broker 1 has offsets 1 to 3 of an older leader, which are cut" in row["note"]
        assert not (tmp_path / STORE).exists()

        metadata = tmp_path / "broker-1" / f"{topic}-0" / "partition.metadata"
        text = metadata.read_text()
        (mine,) = [line for line in text.splitlines() if line.startswith("topic_id")]
        metadata.write_text(text.replace(mine, "topic_id: AAAAAAAAAAAAAAAAAAAAAA"))
        code, rows, told = recover(tmp_path, "--yes")
        assert code == 1
        assert f"--topic-id {topic}=ID" in told
        assert not (tmp_path / STORE).exists()
        code, rows, told = recover(tmp_path, "--yes", "--topic-id", f"{topic}={mine.split()[-1]}")
        assert (code, rows[topic, 0]["replicas"]) == (0, [2]), told
        cluster.running.restart(1, 2)
        assert cluster.values(topic, 2) == ["both", "newer"]


@only_long("a cluster of its own")
def test_a_new_store_is_not_taken_for_the_lost_one(tmp_path):
    """An empty one was made in its place: its broker says what to do; a copy keeps it from being made."""
    with running(1, tmp_path, **QUICK | {"default.replication.factor": 1}) as cluster:
        cluster.create((1,))
        cluster.until((tmp_path / f"{STORE}.copy").exists)
        cluster.running.stop()
        remove_store(tmp_path)
        (tmp_path / "broker-1").rename(tmp_path / "old")
        with pytest.raises(LocalClusterError, match="is a copy of it"):
            cluster.running.restart(1)
        remove_store(tmp_path, copies=True)
        cluster.running.restart(1)
        cluster.running.stop()
        shutil.rmtree(tmp_path / "broker-1")
        (tmp_path / "old").rename(tmp_path / "broker-1")
        with pytest.raises(LocalClusterError, match=r"the coordination store is of cluster .*recover-coordination"):
            cluster.running.restart(1)
        remove_store(tmp_path, copies=True)
        with pytest.raises(LocalClusterError, match=r"coordination.db: it is gone: stop all .*recover-coordination"):
            cluster.running.restart(1)
        assert not (tmp_path / STORE).exists()
