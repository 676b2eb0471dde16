"""Schemas of a real registry over its REST API: registered, found, judged and deleted as in a topic of ours."""

import json
import subprocess
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from logstore import InvalidRequestError
from logstore.schemas.choice import registered
from logstore.schemas.declared import declared, fields_of, register, schema_from
from logstore.schemas.layout import Layout
from logstore.schemas.registry import UnknownSchemaError
from logstore.schemas.subjects import Reference, Schema
from replication.client.kafka_client import KafkaClient
from replication.client.registry_settings import registry_of
from replication.client.schema_registry import RestSchemas
from replication.local_cluster import LocalCluster
from tests.support.kafka4 import java_program, serde_jars
from tests.support.repeats import only_long

PROGRAM = Path(__file__).parent / "clients" / "programs" / "AvroOrders.java"

pytestmark = [pytest.mark.slow, only_long("a JVM"), pytest.mark.timeout(600)]


@pytest.fixture
def schemas(registry):
    return RestSchemas(registry_of({"schema.registry.url": registry.url}))


def record(**fields):
    rows = [{"name": name, **(kind if isinstance(kind, dict) else {"type": kind})} for name, kind in fields.items()]
    return Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": rows}))


def test_a_schema_is_registered_and_found_by_subject_and_by_id(schemas):
    columns = schema_from("user string NOT NULL, amount decimal(10,2)", "json")
    first = schemas.register("rest-orders-value", columns)
    assert first.version == 1
    assert schemas.register("rest-orders-value", columns) == first == schemas.latest("rest-orders-value")
    assert schemas.register("rest-more-value", columns).id == first.id
    assert schemas.by_id(first.id).type == "JSON"
    assert fields_of(schemas.by_id(first.id)) == fields_of(columns)
    assert {"rest-orders-value", "rest-more-value"} <= set(schemas.subjects())


def test_versions_are_judged_by_the_level_and_deleted(schemas):
    assert schemas.register("rest-a", record(n="int")).version == 1
    schemas.set_level("backward", "rest-a")
    assert schemas.level("rest-a") == "BACKWARD"
    with pytest.raises(InvalidRequestError, match=r"the registry at .* refused it: .*ncompatible"):
        schemas.register("rest-a", record(n="int", m="string"))
    assert schemas.check("rest-a", record(n="int", m="string")) != []
    assert schemas.check("rest-a", record(n="int")) == schemas.check("rest-unknown", record(n="int")) == []
    second = schemas.register("rest-a", record(n="int", m={"type": "string", "default": ""}))
    assert [(each.version, each.is_deleted) for each in schemas.versions("rest-a")] == [(1, False), (2, False)]
    assert schemas.delete("rest-a", 1) == [1]
    assert schemas.versions("rest-a") == [second]
    assert schemas.delete("rest-a") == [2]
    with pytest.raises(UnknownSchemaError):
        schemas.latest("rest-a")
    assert sorted(schemas.delete("rest-a", permanently=True)) == [1, 2]


def test_a_schema_refers_to_another_one(schemas):
    schemas.register(
        "rest-part", Schema("AVRO", '{"type":"record","name":"Part","fields":[{"name":"x","type":"int"}]}')
    )
    whole = '{"type":"record","name":"Whole","fields":[{"name":"part","type":"Part"}]}'
    entry = schemas.register("rest-whole", Schema("AVRO", whole, (Reference("Part", "rest-part", 1),)))
    assert schemas.by_id(entry.id).references == (Reference("Part", "rest-part", 1),)


def test_a_registry_without_aliases_is_told_and_keeps_the_schema(schemas, caplog):
    order = '{"type":"record","name":"RestOrder","fields":[{"name":"x","type":"int"}]}'
    register(schemas, declared("rest-events", schema=order, subject_name_strategy="RecordName"))
    assert schemas.latest("RestOrder").schema.type == "AVRO"
    assert schemas.alias("rest-events-value") is None
    assert "has no aliases: each read and write of the topic names the subject RestOrder of its values" in caplog.text
    with pytest.raises(UnknownSchemaError):
        schemas.set_alias("rest-events-value", "rest-nope")


def test_what_is_not_there_is_told_in_one_line(schemas):
    for act in (
        lambda: schemas.latest("rest-nope"),
        lambda: schemas.by_id(987654),
        lambda: schemas.delete("rest-nope"),
    ):
        with pytest.raises(UnknownSchemaError, match=r"the registry at .* refused it: "):
            act()
    with pytest.raises(InvalidRequestError):
        schemas.register("rest-bad", Schema("AVRO", '{"type":"nope"}'))


ALIASED = """{"type": "record", "name": "Sale", "aliases": ["RestTrade"], "fields": [
    {"name": "buyer", "type": "string", "aliases": ["user"]}, {"name": "n", "type": "long", "aliases": ["count"]},
    {"name": "place", "type": {"type": "record", "name": "Shop", "aliases": ["Stall"], "fields": [
        {"name": "town", "type": "string", "aliases": ["city"]}]}}]}"""
TRADE = """{"type": "record", "name": "RestTrade", "fields": [
    {"name": "user", "type": "string"}, {"name": "count", "type": "int"},
    {"name": "place", "type": {"type": "record", "name": "Stall", "fields": [{"name": "city", "type": "string"}]}}]}"""


def test_aliases_mean_the_same_to_confluents_deserializer_to_a_registry_and_to_pylog(registry, schemas):
    at, topic = SerializationContext("rest-sales", MessageField.VALUE), "rest-sales"
    with SchemaRegistryClient({"url": registry.url}) as client:
        old = AvroSerializer(client, TRADE)({"user": "ada", "count": 7, "place": {"city": "Bonn"}}, at)
        schemas.set_level("BACKWARD", "rest-sales-value")
        assert schemas.check("rest-sales-value", Schema("AVRO", ALIASED)) == []
        new = AvroSerializer(client, ALIASED)({"buyer": "bob", "n": 2**40, "place": {"town": "Ulm"}}, at)
        theirs = [AvroDeserializer(client, ALIASED)(value, at) for value in (old, new)]
    assert [entry.version for entry in schemas.versions("rest-sales-value")] == [1, 2]
    format = registered(topic, schemas, Layout()).value
    parsed = format.decode(pa.array([old, new]))
    assert parsed.reasons == {}
    names = [field.name for field in format.fields]
    ours = [dict(zip(names, row, strict=True)) for row in zip(*(c.to_pylist() for c in parsed.columns), strict=True)]
    assert ours == theirs
    assert theirs[0] == {"buyer": "ada", "n": 7, "place": {"town": "Bonn"}}


def test_a_java_serializer_and_pylog_read_each_others_records(registry, tmp_path):
    """Apicurio's, with ids of four bytes, which is how Confluent's frame a value."""
    url, topic = registry.url.replace("ccompat/v7", "registry/v2"), "java-orders"
    settings = {"schema.registry.url": registry.url}
    with (
        LocalCluster(1, tmp_path / "brokers") as cluster,
        KafkaClient(cluster.bootstrap, schema_registry=settings) as client,
    ):
        client.create_topic(topic)
        command = java_program(PROGRAM, tmp_path, cluster.bootstrap, url, topic, libs=serde_jars())

        def run(*words):
            ran = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, check=False)
            assert ran.returncode == 0, ran.stderr
            return ran.stdout.splitlines()

        run("write", "60")
        rows = pa.Table.from_batches(client.read(topic, 0, 0, 60, typed=True))
        assert rows.to_pylist() == [
            {
                "user": f"user {n}",
                "n": None if n % 3 == 0 else n << 40,
                "amount": Decimal(n * 25 - 1000).scaleb(-2),
                "tags": [("tag", n)],
            }
            for n in range(60)
        ]
        client.append(topic, rows, typed=True)
        lines = run("read", "120")
    assert lines[:60] == lines[60:]
