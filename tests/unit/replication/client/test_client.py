"""The client where no broker of ours is: librdkafka's mock cluster, ports where no Kafka is, batches by hand."""

import socket
import threading
import time
import warnings

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from logstore.errors import InvalidConfigError, InvalidRequestError, OffsetOutOfRangeError, UnknownTopicError
from logstore.records.arrow import decode
from logstore.records.batch import TRANSACTIONAL, InvalidBatchError, Record, build
from logstore.records.marker import end_marker
from replication.client import attempts
from replication.client.addresses import addresses_of
from replication.client.cluster import UnreachableError
from replication.client.fetching import LATEST, committed
from replication.client.kafka_client import KafkaClient
from replication.client.metadata import PartitionLeader, TopicMetadata, newer
from replication.errors import KafkaError
from replication.model.cluster import TopicPartition
from replication.network.authentication import SILENT_S
from replication.protocol.messages import Aborted


@pytest.fixture(scope="module")
def mock():
    """Three brokers that nobody here wrote; as long as this producer lives."""
    producer = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "unused", "log_level": 0})
    metadata = producer.list_topics(timeout=20)
    return ",".join(f"{b.host}:{b.port}" for b in metadata.brokers.values()), producer


@pytest.fixture(scope="module")
def client(mock):
    with KafkaClient(mock[0], timeout_ms=20_000) as opened:
        yield opened


def table(count, begin=0):
    return pa.table(
        {
            "key": [f"k{n}" for n in range(begin, begin + count)],
            "value": [f"v{n}" for n in range(begin, begin + count)],
        }
    )


def read(client, topic, **options):
    return [
        value.decode()
        for partition, extent in client.extents(topic).items()
        for rows in client.read(topic, partition, extent.start, extent.end, **options)
        for value in rows["value"].to_pylist()
    ]


def test_what_is_appended_to_brokers_of_another_make_is_read_there(mock, client):
    producer = mock[1]
    producer.produce("made-by-writing", b"first", partition=0)  # the mock makes topics when they are written to
    assert producer.flush(20) == 0
    client.append("made-by-writing", table(5000))
    assert sorted(read(client, "made-by-writing")) == sorted(["first", *table(5000)["value"].to_pylist()])
    assert sum(e.end - e.start for e in client.extents("made-by-writing").values()) == 5001


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs_go_there_and_back(mock, client, codec):
    mock[1].produce(f"codec-{codec}", b"first", partition=0)
    assert mock[1].flush(20) == 0
    client.append(f"codec-{codec}", table(300), compression=codec)
    assert sorted(read(client, f"codec-{codec}")) == sorted(["first", *table(300)["value"].to_pylist()])


def test_reading_in_small_pieces_reads_everything_once(mock, client):
    mock[1].produce("small", b"first", partition=0)
    assert mock[1].flush(20) == 0
    for begin in range(0, 300, 30):
        client.append("small", table(30, begin))
    assert sorted(read(client, "small", fetch_bytes=1)) == sorted(["first", *table(300)["value"].to_pylist()])


def test_a_range_begins_and_ends_within_batches(mock, client):
    mock[1].produce("range", b"first", partition=0)
    assert mock[1].flush(20) == 0
    rows = pa.table({"value": [f"v{n}" for n in range(100)], "partition": pa.array([0] * 100, pa.int32())})
    extent = client.append("range", rows)[0]
    found = client.read("range", 0, extent.start + 10, extent.start + 13, columns=["offset", "value"])
    assert [batch.to_pylist() for batch in found] == [
        [{"offset": extent.start + n, "value": f"v{n}".encode()} for n in (10, 11, 12)]
    ]


def test_an_offset_that_is_not_there_is_an_error(mock, client):
    mock[1].produce("short", b"first", partition=0)
    assert mock[1].flush(20) == 0
    with pytest.raises(OffsetOutOfRangeError, match="offset 7 is outside short-0, which holds offsets 0 to 1"):
        list(client.read("short", 0, 7, 9))


def test_a_topic_that_is_not_there_is_told_at_once(client):
    begin = time.monotonic()
    with pytest.raises((UnknownTopicError, KafkaError)):
        client.offsets({TopicPartition("nowhere", 0): LATEST})
    assert time.monotonic() - begin < 15


def test_nobody_listening_is_told_with_every_address():
    client = KafkaClient("127.0.0.1:1,localhost:2", timeout_ms=300)
    with client, pytest.raises(UnreachableError) as caught:
        client.topics()
    assert "127.0.0.1:1: " in str(caught.value)
    assert "localhost:2: " in str(caught.value)
    assert "within 0.3 s" in str(caught.value)


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:1,localhost:2", "no-such-host.invalid:9092"])
def test_a_wrong_address_is_given_up_long_before_the_time_of_the_call(bootstrap, monkeypatch, caplog):
    # Attempts come after some 0.05, 0.15, 0.35, 0.75 and 1.55 s: three of them between the line and the end.
    monkeypatch.setattr(attempts, "SAYS_AFTER_S", 0.1)
    monkeypatch.setattr(attempts, "REFUSED_S", 1.0)
    with KafkaClient(bootstrap, timeout_ms=600_000) as client, pytest.raises(UnreachableError) as caught:
        client.topics()
    refused = str(caught.value).partition(": ")[2].partition(". Check")[0]
    assert [record.message for record in caplog.records] == [f"still trying {refused}"]


def test_a_cluster_that_was_reached_is_awaited_for_the_time_of_the_call(monkeypatch):
    """Its brokers may be restarted just now."""
    monkeypatch.setattr(attempts, "REFUSED_S", 0.2)
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0})
    (broker,) = producer.list_topics(timeout=20).brokers.values()
    with KafkaClient(f"{broker.host}:{broker.port}", timeout_ms=1_500) as client:
        assert client.topics() == {}
        del producer  # and its broker
        with pytest.raises(UnreachableError, match=r"within 1\.5 s"):
            client.topics()


@pytest.mark.parametrize(
    ("answer", "line"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a Kafka broker"), (b"", "closed"), (None, "did not answer")],
)
def test_something_else_on_the_port_is_told(answer, line):
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                if answer is not None:
                    connection.recv(1000)
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        timeout_ms = 400 if answer is None else 2_000  # on a busy machine, too, there is an answer before that
        client = KafkaClient(f"127.0.0.1:{server.getsockname()[1]}", timeout_ms=timeout_ms)
        with client, pytest.raises(UnreachableError, match=line):
            client.topics()
        server.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()


def test_addresses_are_host_and_port():
    assert addresses_of(" PLAINTEXT://a:1, b:2,[::1]:3 ") == [("a", 1), ("b", 2), ("::1", 3)]
    for text in ("a", "a:", "a:0", "a:65536", "a/b:1", ""):
        with pytest.raises(InvalidConfigError, match="servers"):
            addresses_of(text)


def test_a_leader_of_an_older_epoch_is_not_believed():
    def known(epoch, topic_id="i"):
        return TopicMetadata("t", topic_id, {0: PartitionLeader(1, epoch)})

    assert newer(known(5), known(4)) == known(5)
    assert newer(known(5), known(6)) == known(6)
    assert newer(known(5), known(0, "other")) == known(0, "other")  # created again
    assert newer(known(5), known(-1)) == known(-1)  # a broker that tells no epochs


def batch(values, offset, producer=None):
    rows = [Record(offset + n, 1, None, value.encode()) for n, value in enumerate(values)]
    if producer is None:
        return bytes(build(rows))
    return bytes(build(rows, attributes=TRANSACTIONAL, producer=(producer, 0, 0)))


def marker(producer, offset, *, commit):
    made = end_marker((producer, 0), commit=commit, coordinator_epoch=0, now_ms=1)
    made[:8] = offset.to_bytes(8, "big")
    return bytes(made)


def test_a_reader_of_committed_records_gets_none_of_an_aborted_transaction():
    data = memoryview(
        batch(["a0", "a1"], 0)
        + batch(["lost"], 2, producer=7)
        + batch(["kept"], 3, producer=8)
        + marker(7, 4, commit=False)
        + batch(["again"], 5, producer=7)  # a later transaction of the same producer
        + marker(8, 6, commit=True)
        + marker(7, 7, commit=True)
    )
    whole = decode(data, start=0, end=8)["value"].to_pylist()
    assert whole == [b"a0", b"a1", b"lost", b"kept", b"again"]
    parts = list(committed(data, [Aborted(7, 2)]))
    found = [value for part in parts for value in decode(part, start=0, end=8)["value"].to_pylist()]
    assert found == [b"a0", b"a1", b"kept", b"again"]
    assert list(committed(data, [])) == [data]


def test_a_batch_that_would_be_left_out_must_be_what_its_header_says():
    data = bytearray(batch(["lost"], 2, producer=7))
    data[-1] ^= 1
    with pytest.raises(InvalidBatchError):
        list(committed(memoryview(data), [Aborted(7, 2)]))


def test_a_client_whose_broker_is_silent_closes_and_leaves_no_connection():
    """A stopped broker: its system accepts, and nobody answers. By then it is asked in two ways."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        client = KafkaClient(f"127.0.0.1:{silent.getsockname()[1]}", timeout_ms=20_000)

        def ask():
            with pytest.raises(InvalidRequestError, match="is closed"):
                client.topics()

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(2 * SILENT_S)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            client.close()
        assert [str(each.message) for each in told if "unclosed" in str(each.message)] == []
        asking.join(10)
        assert not asking.is_alive()
