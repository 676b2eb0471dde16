"""A member of a group where no broker of ours is: librdkafka's mock cluster."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer as Other

from logstore.errors import InvalidConfigError, InvalidRequestError
from replication.client import groups
from replication.client.cluster import Cluster, UnreachableError
from replication.client.consumer import AsyncConsumer, ConsumerSettings
from replication.client.kafka_client import KafkaClient
from replication.client.settings import ClassicSettings
from replication.errors import KafkaError


@pytest.fixture(scope="module")
def bootstrap():
    """A broker that nobody here wrote, with a topic of 101 records, as long as this producer lives."""
    other = Other({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0})
    broker = next(iter(other.list_topics(timeout=20).brokers.values()))
    other.produce("t", b"first", partition=0)
    assert other.flush(20) == 0
    address = f"{broker.host}:{broker.port}"
    with KafkaClient(address) as client:
        client.append("t", pa.table({"value": [f"{n}" for n in range(100)]}))
    yield address
    del other


SETTINGS = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 100}


async def read(consumer, count):
    """So many values, and the errors that were raised meanwhile."""
    values, errors, end = [], [], time.monotonic() + 30
    while len(values) < count:
        assert time.monotonic() < end, errors
        try:
            rows = await consumer.poll(500)
        except (UnreachableError, KafkaError) as error:
            errors.append(error)
        else:
            values += rows["value"].to_pylist() if rows is not None else []
    return values, errors


def test_a_poll_that_fails_is_made_good_by_the_next(bootstrap, monkeypatch):
    async def consume():
        told = []

        async def on_assign(tps):
            told.append(len(tps))

        settings = ConsumerSettings(group_id="again", **SETTINGS)
        async with AsyncConsumer(bootstrap, ["t"], settings, on_assign=on_assign) as consumer:
            for owner, name in ((groups, "committed"), (Cluster, "leader")):
                monkeypatch.setattr(owner, name, fails_once(getattr(owner, name)))
            values, errors = await read(consumer, 101)
            assert len(set(values)) == 101
            assert [str(error) for error in errors] == ["not now", "not now"]
            assert told == [len(consumer.assignment)]
            assert await consumer.poll(50) is None
        with pytest.raises(InvalidRequestError, match="closed"):
            await consumer.poll()

    asyncio.run(consume())


def fails_once(call):
    failures = iter([UnreachableError("not now")])

    async def wrapped(*arguments, **options):
        if (failure := next(failures, None)) is not None:
            raise failure
        return await call(*arguments, **options)

    return wrapped


def test_a_slip_between_polls_is_told(bootstrap, monkeypatch):
    async def consume():
        async with AsyncConsumer(bootstrap, ["t"], ConsumerSettings(group_id="slip", **SETTINGS)) as consumer:
            monkeypatch.setattr("replication.client.member_requests.encode_subscription", lambda _: 1 / 0)
            with pytest.raises(KafkaError, match="the consumer failed: ZeroDivisionError"):
                await consumer.poll(10_000)

    asyncio.run(consume())


@pytest.mark.parametrize("wait_s", [0.0, 0.05, 0.5])
def test_a_poll_that_waits_ends_when_its_client_is_closed(bootstrap, wait_s):
    with KafkaClient(bootstrap) as client:
        consumer = client.consumer("t", f"closed-{wait_s}", auto_offset_reset="latest")
        with ThreadPoolExecutor(1) as pool:
            polling = pool.submit(consumer.poll, 60_000)
            time.sleep(wait_s)
            client.close()
            with pytest.raises(InvalidRequestError, match="is closed"):
                polling.result(20)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("auto_ofset_reset", "did you mean 'auto_offset_reset'"),
        ("session.timeout.ms", "did you mean 'session_timeout_ms'"),
        ("partition.assignment.strategy", "here it is assignor"),
    ],
)
def test_a_setting_that_is_not_there_is_told_with_the_one_that_is(bootstrap, name, hint):
    with KafkaClient(bootstrap) as client:
        with pytest.raises(InvalidConfigError, match=f"unknown setting '{name}' of a consumer; {hint}"):
            client.consumer("t", "g", **{name: 5})
        with pytest.raises(InvalidConfigError, match=r"of a producer; here it is batch_bytes"):
            client.producer(**{"batch.size": 5})


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(InvalidConfigError, match="did you mean 'range'"):
        ConsumerSettings(group_id="g", assignor="rang")
    with pytest.raises(InvalidConfigError, match="below session_timeout_ms"):
        ConsumerSettings(group_id="g", heartbeat_interval_ms=50_000)
    with pytest.raises(InvalidConfigError, match=r"group_protocol='consumr'; did you mean 'consumer'\?"):
        ConsumerSettings(group_id="g", group_protocol="consumr")


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("session_timeout_ms", 45_000, "by group.consumer.session.timeout.ms"),
        ("heartbeat_interval_ms", 3_000, "by group.consumer.heartbeat.interval.ms"),
        ("assignor", "range", "by group_remote_assignor"),
    ],
)
def test_a_setting_of_the_other_group_protocol_is_refused(name, value, instead):
    ConsumerSettings(group_id="g", **{name: value})
    with pytest.raises(
        InvalidConfigError, match=rf"^{name} cannot be set with group_protocol='consumer': .*{instead}$"
    ):
        ConsumerSettings(group_id="g", group_protocol="consumer", **{name: value})
    classic = ConsumerSettings(group_id="g")
    assert replace(classic, group_protocol="consumer").group_protocol == "consumer"
    assert replace(classic, session_timeout_ms=9_000).classic == ClassicSettings(session_timeout_ms=9_000)
    with pytest.raises(InvalidConfigError, match=r"^group_remote_assignor cannot be set with group_protocol='classic'"):
        ConsumerSettings(group_id="g", group_remote_assignor="range")


def test_a_regular_expression_stands_alone_in_a_group_of_the_consumer_protocol(bootstrap):
    with KafkaClient(bootstrap) as client:
        with pytest.raises(InvalidConfigError, match=r"topic '\^t': a regular expression .* group_protocol='consumer'"):
            client.consumer("^t", "g")
        with pytest.raises(InvalidConfigError, match="stands alone"):
            client.consumer(["^t", "u"], "g", group_protocol="consumer")
