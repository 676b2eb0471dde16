"""The client and three brokers: nothing is lost, doubled or out of order when leaders die, stand still or move."""

import asyncio
import re
import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from pyspark.sql.datasource import GreaterThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable

from datasource.connector.options import read_options
from datasource.connector.reader import PushingBatchReader, StreamReader
from datasource.connector.source import PylogDataSource
from datasource.errors import DataLossError
from datasource.schema import COLUMNS, spark_schema
from datasource.topics.cluster import ClusterTopics
from logstore import OffsetRange
from logstore.errors import InvalidRequestError, OffsetOutOfRangeError, RecordTooLargeError, UnknownTopicError
from replication.client import consumer as consumers
from replication.client import kafka_client, local_replicas, producing
from replication.client.fetching import EARLIEST, LATEST, TruncatedError
from replication.client.groups import Committed
from replication.client.kafka_client import KafkaClient
from replication.client.local_replicas import local_replica
from replication.coordinators.binary import partition_of
from replication.errors import KafkaError
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition
from replication.protocol.messages import Isolation
from replication.tools.groups import planned
from replication.tools.offset_resets import Place, Reset
from tests.integration.cluster.conftest import running
from tests.support.repeats import only_long, times


@pytest.fixture
def client(cluster):
    with KafkaClient(cluster.running.bootstrap, timeout_ms=40_000) as opened:
        yield opened


def rows(begin, count, partition=0):
    values = [f"{n}" for n in range(begin, begin + count)]
    return pa.table({"value": values, "partition": pa.array([partition] * count, pa.int32())})


def read(client, topic, partition=0):
    extent = client.extents(topic)[partition]
    return [v.decode() for b in client.read(topic, partition, extent.start, extent.end) for v in b["value"].to_pylist()]


@pytest.mark.parametrize("fault", ["kill", "pause"][: times(1, 2)])
def test_appends_through_a_failover_are_there_once_and_in_order(cluster, client, fault):
    topic = cluster.create((1, 2, 3), (2, 3, 1))
    stop, sent = threading.Event(), []

    def append():
        while not stop.is_set():
            for partition in (0, 1):
                client.append(topic, rows(len(sent), 20, partition))
            sent.extend(range(len(sent), len(sent) + 20))

    appending = threading.Thread(target=append)
    appending.start()
    try:
        for broker in (1, 2) if fault == "kill" else (1,):
            before = len(sent)
            cluster.until(lambda before=before: len(sent) > before + 40)
            getattr(cluster.running, fault)(broker)
            before = len(sent)
            cluster.until(lambda before=before: len(sent) > before + 40, timeout_s=60)
            if fault == "kill":
                cluster.running.restart(broker)
            else:
                cluster.running.resume(broker)
                cluster.running.wait_until_known()
    finally:
        stop.set()
        appending.join(60)
    assert not appending.is_alive()
    for partition in (0, 1):
        assert read(client, topic, partition) == [str(n) for n in sent]


def test_a_reader_goes_on_at_the_next_leader(cluster, client):
    topic = cluster.create((1, 2, 3))
    client.append(topic, rows(0, 5000))
    extent = client.extents(topic)[0]
    reading = client.read(topic, 0, extent.start, extent.end, fetch_bytes=1)
    found = [v for _ in range(1) for v in next(reading)["value"].to_pylist()]
    cluster.running.kill(cluster.state(topic).leader)
    found += [v for b in reading for v in b["value"].to_pylist()]
    assert [v.decode() for v in found] == [str(n) for n in range(5000)]


def test_offsets_are_found_by_time_and_at_both_ends(cluster, client):
    topic = cluster.create((1, 2, 3))
    times = [1700000000000 + 1000 * n for n in range(10)]
    client.append(topic, rows(0, 10).append_column("timestamp", pa.array(times)))
    tp = TopicPartition(topic, 0)
    assert [client.offsets({tp: at})[tp].offset for at in (EARLIEST, LATEST, times[3], times[3] + 1, 10**30)] == [
        0, 10, 3, 4, -1,
    ]  # fmt: skip


@pytest.mark.parametrize("ms", [-1, -2, -3, -4, -(10**30)])
def test_a_moment_before_1970_is_no_code_of_list_offsets(cluster, client, ms):
    topic = cluster.create((1, 2, 3))
    undated = pa.array([-1, 0, 1_700_000_000_000], pa.int64())
    client.append(topic, rows(0, 3).append_column("timestamp", undated))
    assert client.offsets({TopicPartition(topic, 0): ms})[topic, 0].offset == 0
    assert [row["new_offset"] for row in planned(client, "g", Reset(Place.TIME, ms), [topic])] == [0]
    options = {"kafka.bootstrap.servers": cluster.running.bootstrap, "subscribe": topic}
    reader = PushingBatchReader(read_options(options, streaming=False), spark_schema(COLUMNS))
    moment = datetime.fromtimestamp(max(ms, -(10**9)) / 1000, UTC)
    list(reader.pushFilters([GreaterThanOrEqual(("timestamp",), moment)]))
    assert [(r.start, r.end) for task in reader.partitions() for r in task.ranges] == [(0, 3)]


def test_records_that_were_deleted_are_an_error_and_not_a_gap(cluster, client):
    topic = cluster.create((1, 2, 3))
    client.append(topic, rows(0, 10))
    cluster.administer("delete_records", [Position(topic, 0, 4)])
    with pytest.raises(OffsetOutOfRangeError, match="which holds offsets 4 to 10"):
        list(client.read(topic, 0, 2, 10))
    assert read(client, topic) == [str(n) for n in range(4, 10)]


def test_what_a_topic_does_not_take_is_told_before_anything_is_sent(cluster, client):
    topic = cluster.create((1, 2, 3), max_message_bytes=2000)
    with pytest.raises(RecordTooLargeError, match="2,000"):
        client.append(topic, pa.table({"value": [b"x" * 3000]}))
    client.append(topic, pa.table({"value": [b"x" * 1000] * 50}))  # in batches that the topic takes
    assert client.extents(topic)[0][:2] == (0, 50)
    with pytest.raises(UnknownTopicError, match="did you mean"):
        client.append(f"{topic}x", rows(0, 1))


def test_a_topic_without_enough_replicas_refuses_with_the_reason(cluster, monkeypatch, caplog):
    """A producer that waits for them says so before the time of the call is over."""
    monkeypatch.setattr(producing, "SAYS_AFTER_S", 1.0)
    topic = cluster.create((1, 2, 3), min_insync_replicas=3)
    cluster.running.kill(3)
    client = KafkaClient(cluster.running.bootstrap, timeout_ms=3000)
    with client, pytest.raises(KafkaError, match=r"(?i)not enough replicas"):
        client.append(topic, rows(0, 5))
    (said,) = (each.message for each in caplog.records if each.name == producing.__name__)
    assert re.match(rf"still trying to append to {topic}-0: .*enough replicas", said, re.IGNORECASE)


def is_refused(client, topic, value):
    try:
        client.append(topic, pa.table({"value": [value]}))
    except RecordTooLargeError:
        return True
    return False


def test_a_batch_that_is_too_large_is_split_and_a_record_that_is_fails_alone(cluster, client):
    topic = cluster.create((1, 2, 3))
    with client.producer(linger_ms=0) as producer:
        producer.send(topic, rows(0, 1)).result(20)
        entry = ConfigEntry("max.message.bytes", "3000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        cluster.administer("incremental_alter_configs", [resource])
        cluster.until(lambda: is_refused(client, topic, "p" * 4000))  # the leader hears of the setting a moment later
        before = len(read(client, topic))
        sent = [
            producer.send(topic, pa.table({"value": [f"{n}-{'x' * 100}"] * (400 if n % 3 == 0 else 2)}))
            for n in range(12)
        ]
        large = producer.send(topic, pa.table({"value": ["y" * 5000]}))
        behind = [producer.send(topic, pa.table({"value": [f"{n}-"] * 40})) for n in range(12, 20)]
    with pytest.raises(RecordTooLargeError):
        large.result(0)
    values = read(client, topic)
    assert len(values) == before + 4 * 400 + 8 * 2 + 8 * 40
    numbers = [int(value.split("-")[0]) for value in values[before:]]
    assert numbers == sorted(numbers)
    for number, each in enumerate([*sent, *behind]):
        ((_, extent),) = each.result(0).items()
        assert {v.split("-")[0] for v in values[extent.start : extent.end]} == {str(number)}


def test_a_task_of_spark_knows_of_a_topic_that_was_made_again(cluster, client):
    """The client is the process's: it has seen the former one, which had more partitions."""
    topic, words = cluster.create((1,), (2,), (3,)), {"partitioner": "murmur3", "compression": None}
    data = pa.table({"key": [b"%d" % n for n in range(30)], "value": [b""] * 30})
    assert len(ClusterTopics(client).append(topic, data, **words, transaction=None)) == 3
    cluster.administer("delete_topics", [topic], operation_timeout=20)
    cluster.until(lambda: topic not in cluster.running.describe().topics)
    cluster.create((1,), name=topic)
    appended = ClusterTopics(client).append(topic, data, **words, transaction=None)
    assert appended == {0: OffsetRange(0, 30)}


def test_threads_share_a_client(cluster, client):
    topic, appended = cluster.create((1, 2, 3), (2, 3, 1)), []

    def append(thread):
        for _ in range(5):
            values = [f"{thread}-{n}" for n in range(300)]
            appended.append(client.append(topic, pa.table({"value": values})))

    threads = [threading.Thread(target=append, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(appended) == 40
    assert sum(e.end - e.start for e in client.extents(topic).values()) == 40 * 300


def test_a_client_that_is_closed_says_so(cluster):
    client = KafkaClient(cluster.running.bootstrap)
    client.close()
    with pytest.raises(InvalidRequestError, match="is closed"):
        client.topics()


def test_a_column_that_is_not_there_is_told(cluster, client):
    topic = cluster.create((1, 2, 3))
    with pytest.raises(InvalidRequestError, match="no column 'valu'; did you mean 'value'"):
        list(client.read(topic, 0, 0, 3, columns=["valu"]))


def test_committed_offsets_survive_the_broker_that_keeps_them(cluster, client):
    """Every client of Kafka reads a stored commit, whichever broker coordinates the group then."""
    topic = cluster.create((1, 2, 3), (2, 3, 1), (3, 1, 2))
    tps = [TopicPartition(topic, n) for n in range(3)]
    group = f"of-{topic}"
    client.commit(group, {tp: Committed(10 + tp.partition, metadata="mine") for tp in tps})
    keeper = cluster.state(OFFSETS_TOPIC, partition_of(group, len(client.topic(OFFSETS_TOPIC).leaders))).leader
    cluster.running.pause(keeper)  # it holds its connections, and answers nothing
    client.commit(group, {tps[1]: Committed(20)})
    assert client.committed(group)[tps[1]].offset == 20
    client.commit(group, {tps[1]: Committed(5)})
    other = Consumer({"bootstrap.servers": cluster.running.bootstrap, "group.id": group, "log_level": 0})
    found = other.committed([Position(*tp) for tp in tps], timeout=20)
    assert [each.offset for each in found] == [10, 5, 12]
    assert client.committed(group, tps[:1]) == {tps[0]: Committed(10, metadata="mine")}
    other.subscribe([topic])
    cluster.until(lambda: other.poll(0.2) or other.assignment())
    with pytest.raises(KafkaError, match="it has members"):
        client.commit(group, {tps[0]: Committed(1)})
    other.close()


def network_is_out(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("read over the network")

    monkeypatch.setattr(kafka_client, "fetch_of_epoch", refuse)


def test_a_leader_on_this_machine_is_read_by_its_files(cluster, client, monkeypatch):
    topic = cluster.create((1, 2, 3))
    client.append(topic, rows(0, 3000))
    wanted = pa.Table.from_batches(client.read(topic, 0, 7, 2990))
    assert wanted.num_rows == 2983
    network_is_out(monkeypatch)
    assert pa.Table.from_batches(client.read(topic, 0, 7, 2990, short_circuit=True)) == wanted
    columns = ["value", "timestamp"]
    found = pa.Table.from_batches(client.read(topic, 0, 7, 2990, columns=columns, short_circuit=True))
    assert found == wanted.select(columns)
    assert list(client.read(topic, 0, 5, 5, short_circuit=True)) == []
    with pytest.raises(AssertionError, match="over the network"):
        list(client.read(topic, 0, 7, 2990))


@only_long("brokers that restart")
def test_files_that_fail_are_left_for_the_network_at_the_next_record(cluster, client):
    topic = cluster.create((1, 2, 3))
    for begin in range(0, 40, 10):
        values = [f"{n}".ljust(60_000, ".") for n in range(begin, begin + 10)]
        client.append(topic, pa.table({"value": values}))
    leader = cluster.state(topic).leader
    reading = client.read(topic, 0, 0, 40, short_circuit=True)
    found = next(reading)["value"].to_pylist()
    assert 0 < len(found) < 40
    cluster.running.kill(leader)
    (log,) = (cluster.running.directory / f"broker-{leader}" / f"{topic}-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[-100] ^= 1
    log.write_bytes(data)
    found += [v for batch in reading for v in batch["value"].to_pylist()]
    assert [int(v.decode().rstrip(".")) for v in found] == list(range(40))


def test_only_what_its_leader_calls_committed_is_read_from_files(cluster, client):
    """A leader that was deposed has records of its own at offsets where the next one has others."""
    topic = cluster.create((1, 2, 3))
    client.append(topic, rows(0, 10))
    deposed = cluster.state(topic).leader
    cluster.running.pause(deposed)
    cluster.until(lambda: cluster.state(topic).leader != deposed)
    client.append(topic, rows(10, 10))
    found = [v.decode() for b in client.read(topic, 0, 0, 20, short_circuit=True) for v in b["value"].to_pylist()]
    assert found == [str(n) for n in range(20)]
    replica = replica_that_shows(client, topic, 20)
    assert f"broker-{deposed}" not in str(replica.directory)
    assert replica_that_shows(client, topic, 21) is None


def replica_that_shows(client, topic, end):
    tp = TopicPartition(topic, 0)
    return client.run(lambda cluster: local_replica(cluster, tp, end, Isolation.READ_COMMITTED))


@pytest.mark.parametrize(
    ("host", "is_here"),
    [("127.0.0.1", True), ("localhost", True), ("192.0.2.1", False), ("no.such.host.invalid", False)],
)
def test_a_machine_knows_its_own_addresses(host, is_here):
    assert asyncio.run(local_replicas.is_this_machine(host)) is is_here


def taken(consumer, count):
    values = []
    while len(values) < count:
        if (found := consumer.poll()) is not None:
            values += [value.decode() for value in found["value"].to_pylist()]
    return values


@only_long("brokers that restart")
def test_a_log_that_an_unclean_election_has_cut_is_data_loss(tmp_path, monkeypatch):
    """Records 10 to 19 were committed at broker 1 alone; broker 2 leads without them, and gives their offsets away."""
    with running(2, tmp_path) as cluster, KafkaClient(cluster.running.bootstrap) as client:
        topic = cluster.create((1, 2), unclean_leader_election_enable="true")
        over = {"kafka.bootstrap.servers": cluster.running.bootstrap, "subscribe": topic}
        options = {**over, "startingOffsets": "earliest", "columns": "offset,value"}
        reader = StreamReader(read_options(options, streaming=True), PylogDataSource(options).schema())

        def plan(reader, start):
            end = reader.latestOffset(start, ReadAllAvailable())
            planned = reader.partitions(start, end)
            return end, [
                v.decode() for task in planned for rows in reader.read(task) for v in rows["value"].to_pylist()
            ]

        client.append(topic, rows(0, 10))
        cluster.running.kill(2)
        client.append(topic, rows(10, 5))
        client.append(topic, rows(15, 5))
        before = client.extents(topic)[0]
        done, values = plan(reader, reader.initialOffset())
        assert values == [str(n) for n in range(20)]
        member = client.consumer(topic, "g", auto_offset_reset="earliest", enable_auto_commit=False)
        assert taken(member, 20) == [str(n) for n in range(20)]
        member.commit()
        tp = TopicPartition(topic, 0)
        assert client.committed("g")[tp] == Committed(20, before.leader_epoch)
        ahead = client.read(topic, 0, 0, 20, fetch_bytes=1, leader_epoch=before.leader_epoch)
        assert next(ahead)["value"][0].as_py() == b"0"  # perhaps it has fetched up to 15 by now, and no further
        cluster.running.kill(1)
        cluster.running.restart(2)
        cluster.until(lambda: cluster.states(topic)[0][0] == 2)
        client.append(topic, rows(100, 25))  # its producer goes on where its last batch is gone

        after = client.extents(topic)[0]
        assert (after.end, after.leader_epoch > before.leader_epoch) == (35, True)
        assert client.epoch_ends({tp: before.leader_epoch}) == {tp: 10}
        with pytest.raises(DataLossError, match=rf"{topic}-0 \[10, 20\) was read, and is cut from the log"):
            reader.latestOffset(done, ReadAllAvailable())
        with pytest.raises(DataLossError, match=rf"{topic}-0 \[10, 20\) is lost: cut from the log"):
            reader.partitions(reader.initialOffset(), done)
        with pytest.raises(TruncatedError, match=r"from offset 1[0-5] on"):
            list(ahead)
        with pytest.raises(TruncatedError, match=rf"{topic}-0 \[10, 20\) was read, and is cut") as cut:
            taken(member, 1)
        member.seek(cut.value.tp, cut.value.start)
        assert taken(member, 25) == [str(n) for n in range(100, 125)]
        monkeypatch.setattr(consumers, "CLOSE_S", 0.1)  # nobody keeps its group any more
        options["failOnDataLoss"] = "false"
        reader = StreamReader(read_options(options, streaming=True), PylogDataSource(options).schema())
        done, values = plan(reader, done)
        assert values == []
        done, values = plan(reader, done)
        assert values == [str(n) for n in range(100, 125)]
