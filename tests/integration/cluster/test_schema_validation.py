"""`value.schema.validation` on real brokers: what Confluent's serializers write is taken, and others refused."""

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.schema_registry import RegisteredSchema, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from logstore.schemas.registry import schema_of
from logstore.schemas.subjects import TOPIC
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from tests.integration.cluster.conftest import running
from tests.support.repeats import only_long

pytestmark = pytest.mark.slow

ORDER = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "user", "type": "string"}]}"""
LATER = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "user", "type": "string"}, {"name": "n", "type": "int", "default": 0}]}"""


BY_TOPIC = {"subject.name.strategy": topic_subject_name_strategy}


class LogRegistry:
    """The schemas in the log as Confluent's serializer asks a registry for them."""

    def __init__(self, schemas):
        self._schemas = schemas

    def register_schema_full_response(self, subject, schema, normalize_schemas=False):
        found = self._schemas.register(subject, schema_of("AVRO", schema.schema_str))
        return RegisteredSchema(schema_id=found.id, schema=schema, subject=subject, version=found.version, guid=None)

    def config(self):
        return {}


def producer_of(cluster, **settings):
    return Producer({"bootstrap.servers": cluster.running.bootstrap, "log_level": 0, **settings})


class Sent:
    """The fate of each record, in their order: None, or the error."""

    def __init__(self, producer):
        self.producer, self.errors = producer, {}

    def send(self, topic, value, *, number, **options):
        def delivered(error, message):
            self.errors[number] = error and error.code()

        self.producer.produce(topic, value, on_delivery=delivered, **options)

    def all(self):
        assert self.producer.flush(60) == 0
        return [error for _, error in sorted(self.errors.items())]


@pytest.mark.parametrize("codec", ["none", "zstd", "gzip", "lz4", "snappy"])
def test_records_of_confluents_serializer_are_taken_from_the_first_on(cluster, client, codec):
    """Each schema is registered by the serializer, a moment before its first record, on brokers that do not know it."""
    topic = cluster.create([1, 2], [2, 3], [3, 1], confluent_value_schema_validation="true")
    context = SerializationContext(topic, MessageField.VALUE)
    sent = Sent(producer_of(cluster, **{"compression.type": codec, "enable.idempotence": True}))
    for start, text in ((0, ORDER), (30, LATER)):
        serialize = AvroSerializer(LogRegistry(client.schemas), text, conf=BY_TOPIC)
        for number in range(start, start + 30):
            value = serialize({"user": f"user {number}", "n": 1}, context)
            sent.send(topic, value, number=number, partition=number % 3)
            sent.producer.poll(0)
    assert sent.all() == [None] * 60
    sent = Sent(sent.producer)
    for partition in range(3):
        sent.send(topic, b"text", number=2 * partition, partition=partition)
        assert sent.producer.flush(60) == 0
        sent.send(topic, value, number=2 * partition + 1, partition=partition)  # the producer can go on
    assert sent.all() == [ClientError.INVALID_RECORD, None] * 3


def test_a_transaction_with_a_refused_record_can_only_be_aborted(cluster, client):
    """The next one goes on; librdkafka first aborts one itself, as it does for any refused record."""
    topic = cluster.create([1, 2], value_schema_validation="true")
    value = b"\0" + client.schemas.register(f"{topic}-value", schema_of("AVRO", '"string"')).id.to_bytes(4, "big")
    producer = producer_of(cluster, **{"transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    sent = Sent(producer)
    sent.send(topic, value, number=0)
    assert sent.all() == [None]
    sent.send(topic, b"text", number=1)
    assert sent.all() == [None, ClientError.INVALID_RECORD]
    with pytest.raises(KafkaException, match="must be aborted"):
        producer.commit_transaction(60)
    producer.abort_transaction(60)
    for _ in range(2):
        producer.begin_transaction()
        sent.send(topic, value + b"\2a", number=2)
        try:
            producer.commit_transaction(60)
        except KafkaException:
            producer.abort_transaction(60)
        else:
            break
    found = [v for rows in client.read(topic, 0, 0, client.extents(topic)[0].end) for v in rows["value"].to_pylist()]
    assert found == [value + b"\2a"]


def test_topics_commands_take_and_show_the_setting(cluster, client, pylog, name):
    pylog("topics", "create", name, "--config", "confluent.value.schema.validation=true").ok()
    long = "io.confluent.kafka.serializers.subject.RecordNameStrategy"
    pylog("topics", "alter", name, "--config", f"confluent.value.subject.name.strategy={long}").ok()
    (row,) = pylog("topics", "describe", name, "--output", "json").ok().json
    assert row["config"] == {"value.schema.validation": "true", "value.subject.name.strategy": "RecordName"}
    mine = pylog("topics", "alter", name, "--config", "value.subject.name.strategy=com.acme.Mine").failed()
    assert "one of TopicName, RecordName, TopicRecordName" in mine
    twice = ("--config", "value.schema.validation=true", "--config", "confluent.value.schema.validation=true")
    assert "given" in pylog("topics", "create", f"{name}-2", *twice).failed()
    schema_id = client.schemas.register("shop.Order", schema_of("AVRO", ORDER)).id
    client.append(name, [{"value": b"\0" + schema_id.to_bytes(4, "big") + b"\2a"}])
    pylog("topics", "alter", name, "--delete-config", "confluent.value.schema.validation").ok()
    (row,) = pylog("topics", "describe", name, "--output", "json").ok().json
    assert "value.schema.validation" not in row["config"]


@pytest.mark.timeout(300)
@only_long("a cluster of its own; without processes it is always tested")
def test_the_leader_of_schemas_is_killed_while_new_schemas_are_used():
    with running() as cluster, KafkaClient(cluster.running.bootstrap) as client:
        topic = cluster.create([1, 2, 3], value_schema_validation="true")
        first = client.schemas.register(f"{topic}-value", schema_of("AVRO", '"string"')).id
        sent = Sent(producer_of(cluster, **{"enable.idempotence": True}))
        for number in range(200):
            if number == 50:
                leader = cluster.running.describe().leadership[TopicPartition(TOPIC, 0)].leader
                cluster.running.kill(leader)
            if number == 100:
                last = client.schemas.register(f"{topic}-value", schema_of("AVRO", '["null", "string"]')).id
            value = (last if number >= 100 else first).to_bytes(4, "big")
            sent.send(topic, b"\0" + value + b"\2" + str(number).encode(), number=number)
            sent.producer.poll(0.01)
        assert sent.all() == [None] * 200
        end = client.extents(topic)[0].end
        values = [v for rows in client.read(topic, 0, 0, end) for v in rows["value"].to_pylist()]
        assert [int(value[6:]) for value in values] == list(range(200))
