"""Producers where no broker of ours is: librdkafka's mock cluster, and batches by hand."""

import asyncio
import gc
import threading

import pyarrow as pa
import pytest
from confluent_kafka import Producer as Other

from logstore.errors import InvalidConfigError, InvalidRecordError, PylogError
from logstore.records.arrow import decode
from logstore.records.batch import ProducerStamp, header_at
from logstore.records.compression import Codec
from logstore.records.encoding import encode
from logstore.records.rows import Rows
from replication.client.cluster import Cluster
from replication.client.kafka_client import KafkaClient
from replication.client.metadata import Extent
from replication.client.partition_queue import halves
from replication.client.producer import AsyncProducer, ProducerSettings, _Promise, _Shares
from replication.errors import ErrorCode, KafkaError


@pytest.fixture(scope="module")
def bootstrap():
    """A broker that nobody here wrote, as long as this producer lives, with a topic of one partition."""
    other = Other({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0})
    broker = next(iter(other.list_topics(timeout=20).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    del other


@pytest.fixture
def client(bootstrap):
    with KafkaClient(bootstrap, timeout_ms=20_000) as opened:
        opened.topic_made = lambda name: make(bootstrap, name)
        yield opened


def make(bootstrap, name):
    other = Other({"bootstrap.servers": bootstrap, "log_level": 0})
    other.produce(name, b"first", partition=0)
    assert other.flush(20) == 0
    return name


def rows(*values, partition=0):
    return pa.table({"value": list(values), "partition": pa.array([partition] * len(values), pa.int32())})


def read(client, topic):
    extent = client.extents(topic)[0]
    found = client.read(topic, 0, extent.start + 1, extent.end)
    return [value.decode() for batch in found for value in batch["value"].to_pylist()]


def test_small_sends_become_one_batch_and_each_knows_its_offsets(client):
    topic = client.topic_made("together")
    heard = []
    with client.producer(linger_ms=60_000) as producer:
        sent = [producer.send(topic, rows(f"{n}a", f"{n}b")) for n in range(50)]
        sent[7].add_done_callback(lambda done: heard.append(done.result()))
    assert [each.result(0) for each in sent] == [{0: Extent(1 + 2 * n, 3 + 2 * n)} for n in range(50)]
    assert read(client, topic) == [f"{n}{c}" for n in range(50) for c in "ab"]
    assert client.sample(topic, 0, 1, 101, max_bytes=1).offsets == 100  # one batch
    assert heard == [sent[7].result()]


def test_tables_of_different_columns_go_together(client):
    topic = client.topic_made("columns")
    headers = pa.array([[("h", b"x")], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    place = pa.array([0, 0], pa.int32())
    tables = [
        pa.table({"value": ["a", None], "partition": place}),
        pa.table({"value": pa.array([b"b", b"c"], pa.large_binary()), "headers": headers, "partition": place}),
        pa.record_batch({"key": ["k", None], "value": ["d", "e"], "timestamp": [5, 6], "partition": place}),
    ]
    with client.producer(linger_ms=200) as producer:
        for table in tables:
            producer.send(topic, table)
    (found,) = client.read(topic, 0, 1, 7)
    assert found["value"].to_pylist() == [b"a", None, b"b", b"c", b"d", b"e"]
    assert found["key"].to_pylist() == [None, None, None, None, b"k", None]
    assert found["headers"].to_pylist()[2] == [{"key": "h", "value": b"x"}]
    assert found["headers"].to_pylist().count(None) == 5
    assert found["timestamp"].cast(pa.int64()).to_pylist()[4:] == [5, 6]


@pytest.mark.parametrize("acks", [0, 1])
def test_weaker_acks_append_as_well(client, acks):
    topic = client.topic_made(f"acks-{acks}")
    with client.producer(acks=acks, linger_ms=0) as producer:
        sent = [producer.send(topic, rows(f"{n}")) for n in range(5)]
    assert [each.result(0) for each in sent] == [{0: Extent(1 + n, 2 + n)} if acks else {} for n in range(5)]
    while len(found := read(client, topic)) < 5:  # nobody said when
        pass
    assert found == [f"{n}" for n in range(5)]


def test_in_an_event_loop(bootstrap, client):
    topic = client.topic_made("loop")

    async def produce():
        settings = ProducerSettings(compression_type="zstd")
        async with Cluster(bootstrap) as cluster, AsyncProducer(cluster, settings) as producer:
            sent = [await producer.send(topic, rows(f"{n}")) for n in range(3)]
            assert await sent[0] == {0: Extent(1, 2)}
            big = await producer.send(topic, rows(*["x" * 100] * 20_000))
        return big.result(), await asyncio.gather(*sent)

    big, small = asyncio.run(produce())
    assert big == {0: Extent(4, 20_004)}
    assert small[2] == {0: Extent(3, 4)}
    assert len(read(client, topic)) == 20_003


def test_what_no_topic_takes_is_refused_at_once(client):
    topic = client.topic_made("refused")
    with client.producer() as producer:
        with pytest.raises(InvalidRecordError, match="'valu'"):
            producer.send(topic, pa.table({"valu": ["x"]}))
        assert producer.send(topic, rows()).result(1) == {}
    with pytest.raises(InvalidConfigError, match="acks='most'"):
        client.producer(acks="most")
    with pytest.raises(InvalidConfigError, match="buffer_bytes=0"):
        client.producer(buffer_bytes=0)


@pytest.mark.parametrize("what", ["sender", "request", "encoder"])
def test_a_producer_that_dies_fails_all_that_wait(client, monkeypatch, what):
    topic = client.topic_made(f"dies-{what}")
    gate = threading.Event()

    async def broken(*_, **__):
        await asyncio.to_thread(slip)

    def slip(*_, **__):
        gate.wait(10)
        raise RuntimeError("a slip")

    with client.producer(linger_ms=0) as producer:
        producer.send(topic, rows("ok")).result(10)
        if what == "encoder":
            monkeypatch.setattr("logstore.records.encoding.encode", slip)
        else:
            monkeypatch.setattr(Cluster, "leader" if what == "sender" else "call_leader", broken)
        sent = [producer.send(topic, rows(*["x"] * (5000 if n == 0 else 1))) for n in range(5)]
        gate.set()
        for each in sent:
            with pytest.raises(KafkaError, match="the producer failed: RuntimeError"):
                each.result(10)
        with pytest.raises(KafkaError, match="the producer failed"):
            producer.send(topic, rows("later"))


def test_what_waits_is_bounded_in_bytes(client, monkeypatch):
    topic = client.topic_made("bounded")
    gate, call = asyncio.Event(), Cluster.call_leader  # wakes in the order of the waits

    asked = []

    async def held(*arguments, **options):
        asked.append(arguments)
        await gate.wait()
        return await call(*arguments, **options)

    monkeypatch.setattr(Cluster, "call_leader", held)
    sent = []
    with client.producer(linger_ms=0, buffer_bytes=1000) as producer:
        one = rows("x" * 400)

        def send():
            sent.extend(producer.send(topic, one) for _ in range(10))

        sending = threading.Thread(target=send)
        sending.start()
        sending.join(0.5)
        assert sending.is_alive()
        assert len(sent) == 2
        assert len(asked) == 1  # a broker that knows no batch of this producer takes any first one
        client.run(lambda cluster: opened(gate))
        sending.join(20)
    assert [each.result(0) for each in sent] == [{0: Extent(1 + n, 2 + n)} for n in range(10)]


async def opened(gate):
    gate.set()


def test_a_closed_producer_answers_what_was_not_sent(client):
    topic = client.topic_made("closed")
    producer = client.producer(linger_ms=60_000)
    waits = producer.send(topic, rows("x"))
    producer.close()
    with pytest.raises(PylogError, match="closed"):
        waits.result(1)
    with pytest.raises(PylogError, match="closed"):
        producer.send(topic, rows("y"))


def test_a_producer_that_was_closed_is_let_go(client):
    def living():
        gc.collect()
        return sum(type(each) is AsyncProducer for each in gc.get_objects())  # a proxy may be of nothing

    before = living()
    for _ in range(5):
        with client.producer() as producer:
            producer.flush()
    del producer
    assert living() == before


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_halves_have_the_records_in_their_order_with_their_sequence_numbers(codec):
    headers = pa.array(
        [[("h", b"1")], [], None] * 5, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    table = pa.table(
        {
            "key": [None if n % 2 else f"k{n}" for n in range(15)],
            "value": [f"{'v' * 50 * n}" for n in range(15)],
            "headers": headers,
            "timestamp": list(range(15)),
        }
    )
    stamp = ProducerStamp(7, 3, 2**31 - 5)
    (data,) = encode(Rows(table, now_ms=0), codec=codec, batch_bytes=10**6, batch_bytes_max=10**6, producer=stamp)
    columns = ["key", "value", "headers", "timestamp"]
    (at, one), (following, two) = halves(data)
    assert (at, following) == (0, 7)
    heads = [header_at(half) for half in (one, two)]
    assert [(h.count, h.base_sequence, h.producer_id, h.producer_epoch, h.codec) for h in heads] == [
        (7, 2**31 - 5, 7, 3, codec), (8, 2, 7, 3, codec),
    ]  # fmt: skip
    found = [decode(half, start=0, end=100, columns=columns).to_pylist() for half in (one, two)]
    assert found[0] + found[1] == decode(data, start=0, end=100, columns=columns).to_pylist()


def test_a_send_hears_nothing_of_a_partition_in_which_it_has_no_rows():
    async def outcomes():
        sends = [_Promise(1) for _ in range(3)]
        # The second one's row is in partition 1, and between the others here there is nothing of it.
        _Shares(0, [1, 1, 2], sends).answered(0, 2, KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too late"))
        assert [send.done.done() for send in sends] == [True, False, True]
        _Shares(1, [0, 1, 1], sends).answered(0, 1, 7)
        assert sends[1].done.result() == {1: Extent(7, 8)}
        assert all(send.done.exception() for send in (sends[0], sends[2]))

    asyncio.run(outcomes())
