"""Columns over brokers: appended, read, and polled by a member of a group."""

import itertools
from decimal import Decimal

import pytest

from logstore import InvalidRecordError, InvalidRequestError
from logstore.schemas.declared import declared, register
from logstore.schemas.misfits import MisfitError
from logstore.schemas.registry import schema_of
from tests.support.commands import run_pylog

pytestmark = pytest.mark.slow

SCHEMA = "user string, amount decimal(10,2)"
ADA, BOB = {"user": "Ada", "amount": Decimal("12.50")}, {"user": "Bob", "amount": None}


def rows_of(batches):
    return [row for batch in batches for row in batch.to_pylist()]


def test_columns_are_appended_read_and_polled(cluster, client):
    topic = next(cluster.names)
    client.create_topic(topic, partitions=1)
    typing = {"schema": SCHEMA, "key_fields": "user"}
    client.append(topic, [ADA, BOB], **typing)
    assert rows_of(client.read(topic, 0, 0, 2, **typing)) == [ADA, BOB]
    assert rows_of(client.read(topic, 0, 0, 2, columns=["_offset", "user"], metadata=True, **typing)) == [
        {"_offset": 0, "user": "Ada"},
        {"_offset": 1, "user": "Bob"},
    ]
    assert rows_of(client.read(topic, 0, 0, 1, columns=["value"])) == [{"value": b'{"user":"Ada","amount":12.50}'}]
    with client.consumer(topic, f"{topic}-group", auto_offset_reset="earliest", **typing) as consumer:
        rows = (row for batch in consumer for row in batch.to_pylist())
        assert list(itertools.islice(rows, 2)) == [ADA, BOB]


def test_a_topics_own_columns_and_a_misfit_among_them(cluster, client):
    topic = next(cluster.names)
    client.create_topic(topic, partitions=1)
    register(client.schemas, declared(topic, schema=SCHEMA))
    client.append(topic, [ADA], typed=True)
    with pytest.raises(InvalidRecordError, match="the topic has no column 'usr'; did you mean 'user'"):
        client.append(topic, [{"usr": "x"}], typed=True)
    client.append(topic, {"value": b"{"})
    client.append(topic, [BOB], typed=True)
    with pytest.raises(MisfitError, match=rf"{topic}-0 at offset 1: value: not JSON"):
        rows_of(client.read(topic, 0, 0, 3, typed=True))
    assert rows_of(client.read(topic, 0, 0, 3, typed=True, mode="DROPMALFORMED")) == [ADA, BOB]
    settings = {"auto_offset_reset": "earliest", "typed": True, "mode": "PERMISSIVE"}
    with client.consumer(topic, f"{topic}-group", **settings) as consumer:
        found = list(itertools.islice((row for batch in consumer for row in batch.to_pylist()), 3))
    assert [row["_corrupt_record"] for row in found] == [None, "{", None]


ORDER = '{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "n", "type": "%s"}]}'


def test_a_topic_that_says_the_subject_of_its_records_and_one_that_does_not(cluster, client):
    topic, other = next(cluster.names), next(cluster.names)
    client.create_topic(topic, partitions=1, schema=ORDER % "int", subject_name_strategy="RecordName")
    client.create_topic(other, partitions=1)
    client.append(topic, [{"n": 1}], typed=True)
    client.schemas.register(f"{topic}-value", schema_of("AVRO", ORDER % "long"))
    client.append(other, [{"n": 2**40}], typed=True, value_subject="shop.Order")
    assert client.schemas.subjects() == ["shop.Order"]
    assert rows_of(client.read(topic, 0, 0, 1, typed=True)) == [{"n": 1}]
    assert rows_of(client.read(other, 0, 0, 1, typed=True, value_subject="shop.Order")) == [{"n": 2**40}]
    place = ["--bootstrap-server", cluster.running.bootstrap]
    assert run_pylog("consume", topic, "--typed", *place).ok().out == "n\n1\n"
    assert run_pylog("consume", other, "--typed", "--value-subject", "shop.Order", *place).ok().out == f"n\n{2**40}\n"
    assert "by --value-subject" in run_pylog("consume", other, "--typed", *place).failed()
    client.schemas.set_alias(f"{topic}-value", None)


def test_each_key_comes_once_with_its_last_value(cluster, client):
    topic = next(cluster.names)
    client.create_topic(topic, partitions=1, schema="n int", key_schema="user string")
    for n in range(3):
        client.append(topic, [{"user": user, "n": n} for user in ("Ada", "Bob", "Cyd")[n:]], typed=True)
    client.append(topic, [{"user": "Bob", "n": None}], typed=True)
    found = rows_of(client.read(topic, 0, 0, 7, view="latest", columns=["offset", "value"]))
    assert found == [{"offset": 0, "value": b'{"n":0}'}, {"offset": 5, "value": b'{"n":2}'}]
    assert rows_of(client.read(topic, 0, 0, 5, typed=True, view="latest")) == [
        {"user": "Ada", "n": 0},
        {"user": "Bob", "n": 1},
        {"user": "Cyd", "n": 1},
    ]
    for start, view, message in ((1, "latest", "start=1: .* from the beginning, 0"), (0, "last", "there is 'latest'")):
        with pytest.raises(InvalidRequestError, match=message):
            list(client.read(topic, 0, start, 7, view=view))
    place = ["--view", "latest", "--bootstrap-server", cluster.running.bootstrap]
    assert run_pylog("consume", topic, "--typed", *place).ok().out == "user\tn\nAda\t0\nCyd\t2\n"
    assert run_pylog("consume", topic, "--partition", 0, *place).ok().out == '{"n":0}\n{"n":2}\n'
    assert "leave --group out" in run_pylog("consume", topic, "--group", "g", *place).err


def test_lines_are_checked_and_printed_as_columns(cluster, client):
    topic = next(cluster.names)
    client.create_topic(topic, partitions=1)
    register(client.schemas, declared(topic, schema=SCHEMA))
    place = ["--typed", "--bootstrap-server", cluster.running.bootstrap]
    lines = '{"user": "Ada", "amount": 12.5}\n{"user": "Bob", "amount": "x"}\n'
    done = run_pylog("produce", topic, *place, input=lines)
    assert (done.code, done.err.splitlines()[-1]) == (
        1,
        'pylog: line 2: amount: "x" is no decimal(10,2); the lines before it were written, no later one',
    )
    assert run_pylog("consume", topic, *place).ok().out == "user\tamount\nAda\t12.50\n"
    in_group = ["--group", f"{topic}-group", "--from-beginning", "--max-messages", 1, "--output", "json"]
    assert run_pylog("consume", topic, *in_group, *place).ok().json == {"user": "Ada", "amount": 12.5}
