"""A topic that Confluent's own serializer wrote, and one that pylog wrote: columns on each side, in three places.

The places are a real Kafka 4.4, pylog's brokers and a directory; the registry is a real one, too.
"""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import logstore
from logstore import ReadOnlyStoreError
from logstore.schemas.misfits import MisfitError
from logstore.schemas.registry import UnknownSchemaError, schema_of
from logstore.schemas.subjects import TOPIC, schema_record
from replication.client.kafka_client import KafkaClient
from replication.client.registry_settings import registry_of
from replication.client.schema_registry import RestSchemas
from replication.local_cluster import LocalCluster
from replication.tools.mirror import mirror
from tests.conformance.kafka4 import worlds
from tests.support.commands import run_pylog
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("a Kafka and a registry")]

FIRST = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "user", "type": "string"},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["TEA", "MILK"]}},
    {"name": "gone", "type": ["null", "int"], "default": null}]}"""
SECOND = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "user", "type": "string"},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["TEA", "MILK"]}},
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}]}"""
NOON = dt.datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)


def order(number, **more):
    row = {"user": f"user {number}", "amount": Decimal(number) / 4, "at": NOON, "kind": ("TEA", "MILK")[number % 2]}
    return row | more


WRITTEN = [*(order(n, gone=n) for n in range(100)), *(order(n, tags=["a", str(n)]) for n in range(100, 200))]
SEEN = [{"tags": [], **row} for row in WRITTEN]
for each in SEEN:
    each.pop("gone", None)


@pytest.fixture(scope="module")
def client_of_registry(registry):
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


def write(bootstrap, topic, client):
    """Send the rows by Confluent's serializer, the second half with a newer schema."""
    producer, context = Producer({"bootstrap.servers": bootstrap}), SerializationContext(topic, MessageField.VALUE)
    for text, rows in ((FIRST, WRITTEN[:100]), (SECOND, WRITTEN[100:])):
        serialize = AvroSerializer(client, text)
        for row in rows:
            producer.produce(topic, value=serialize(row, context), partition=0)
    assert producer.flush(60) == 0


def read_by_confluent(bootstrap, topic, client, count):
    deserialize, context = AvroDeserializer(client), SerializationContext(topic, MessageField.VALUE)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = []
    while len(found) < count:
        message = consumer.poll(60)
        assert message is not None, f"only {len(found)} of {count} records came"
        assert message.error() is None
        found.append(deserialize(message.value(), context))
    consumer.close()
    return found


def columns(client, topic):
    end = client.extents(topic)[0].end
    return pa.Table.from_batches(client.read(topic, 0, 0, end, typed=True)).to_pylist()


def rows_of(table):
    return [{name: row[name] for name in SEEN[0]} for row in table]


def test_a_kafka_is_read_and_written_as_confluents_clients_do(one_broker, registry, client_of_registry):
    settings = {"schema.registry.url": registry.url}
    with KafkaClient(one_broker.bootstrap, schema_registry=settings) as client:
        client.create_topic("avro-kafka")
        write(one_broker.bootstrap, "avro-kafka", client_of_registry)
        assert rows_of(columns(client, "avro-kafka")) == SEEN
        client.append("avro-kafka", pa.Table.from_pylist(SEEN), typed=True)
        found = read_by_confluent(one_broker.bootstrap, "avro-kafka", client_of_registry, 400)
    assert rows_of(found[200:]) == SEEN


def copy_schemas(client, registry, *subjects):
    """Write the registry's schemas as Confluent's registry keeps them."""
    rows = [schema_record(entry) for subject in subjects for entry in registry.versions(subject)]
    client.create_topic(TOPIC, cleanup_policy="compact")
    client.append(TOPIC, {"key": [row.key for row in rows], "value": [row.value for row in rows]})


def test_copies_on_brokers_and_in_a_directory_are_read_by_the_schemas_in_their_logs(
    one_broker, registry, client_of_registry, tmp_path
):
    with KafkaClient(one_broker.bootstrap) as client:
        client.create_topic("avro-copied")
        write(one_broker.bootstrap, "avro-copied", client_of_registry)
        copy_schemas(client, RestSchemas(registry_of({"schema.registry.url": registry.url})), "avro-copied-value")
        assert rows_of(columns(client, "avro-copied")) == SEEN
        with LocalCluster(1, tmp_path / "brokers") as cluster:
            for target in (cluster.bootstrap, str(tmp_path / "copy")):
                mirror(one_broker.bootstrap, target, topics=("avro-copied", TOPIC))
            with KafkaClient(cluster.bootstrap) as copied:
                assert rows_of(columns(copied, "avro-copied")) == SEEN
                with pytest.raises(ReadOnlyStoreError, match="another registry"):
                    copied.schemas.register("more-value", schema_of("AVRO", '"string"'))
        with logstore.open(tmp_path / "copy") as store:
            assert rows_of(store.read("avro-copied", typed=True).read_all().to_pylist()) == SEEN
            with pytest.raises(ReadOnlyStoreError, match="another registry"):
                store.schemas.register("more-value", schema_of("AVRO", '"string"'))
        client.delete_topic(TOPIC)


def typed_rows(place, topic):
    """The rows of a topic by its schemas, or, where these have other subjects, of declared columns."""
    typing = {"typed": True} if topic == "visits" else {"schema": worlds.COLUMNS, "value_format": "avro-confluent"}
    if isinstance(place, KafkaClient):
        batches = place.read(topic, 0, 0, place.extents(topic)[0].end, **typing)
        return pa.Table.from_batches(batches).to_pylist()
    return place.read(topic, **typing).read_all().to_pylist()


def test_logical_types_references_and_subjects_of_records_are_those_of_confluents_deserializer(
    one_broker, registry, client_of_registry, visits, tmp_path
):
    settings, topics = {"schema.registry.url": registry.url}, tuple(visits)
    with KafkaClient(one_broker.bootstrap, schema_registry=settings) as client:
        wanted = {}
        for topic in topics:
            count = len(worlds.VISITS if topic == "visits" else worlds.VISITS + worlds.NOTES)
            rows = read_by_confluent(one_broker.bootstrap, topic, client_of_registry, count)
            wanted[topic] = list(map(worlds.shown if topic == "visits" else worlds.named, rows))
            assert typed_rows(client, topic) == wanted[topic]
        with pytest.raises(UnknownSchemaError, match=r"'visits-by-record-value'.*value_subject"):
            list(client.read("visits-by-record", 0, 0, 1, typed=True))
        end, of_visits = len(worlds.VISITS + worlds.NOTES), {"typed": True, "value_subject": "shop.Visit"}
        with pytest.raises(MisfitError, match=r"at offset 30: value: .*shop\.Note"):
            list(client.read("visits-by-record", 0, 0, end, **of_visits))
        found = client.read("visits-by-record", 0, 0, end, **of_visits, mode="DROPMALFORMED")
        assert pa.Table.from_batches(found).to_pylist() == wanted["visits"]
        copy_schemas(client, RestSchemas(registry_of(settings)), *worlds.SUBJECTS)
        with LocalCluster(1, tmp_path / "brokers") as cluster:
            for target in (cluster.bootstrap, str(tmp_path / "copy")):
                mirror(one_broker.bootstrap, target, topics=(*topics, TOPIC))
            with KafkaClient(cluster.bootstrap) as copied:
                assert {topic: typed_rows(copied, topic) for topic in topics} == wanted
            for place in (("--bootstrap-server", cluster.bootstrap), ("--path", tmp_path / "copy")):
                ran = run_pylog("consume", "visits", "--typed", "--from-beginning", "--output", "json", *place).ok()
                assert [(row["fee"], row["lunch"], row["at_us"], row["place"]) for row in ran.json_lines] == [
                    (float(row["fee"]), row["lunch"], f"{row['at_us']:%Y-%m-%dT%H:%M:%S.%fZ}", row["place"])
                    for row in wanted["visits"]
                ]
        with logstore.open(tmp_path / "copy") as store:
            assert {topic: typed_rows(store, topic) for topic in topics} == wanted
        client.delete_topic(TOPIC)
