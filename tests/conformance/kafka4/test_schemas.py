"""Schemas on a real Kafka: those of a registry's topic are read, and nothing is written there."""

import pytest
from confluent_kafka import Producer

from logstore import ReadOnlyStoreError
from logstore.schemas.registry import schema_of
from logstore.schemas.subjects import TOPIC
from replication.client.kafka_client import KafkaClient
from tests.support.repeats import only_long
from tests.unit.logstore.schemas.test_subjects import CONFLUENT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]


def test_the_schemas_of_a_registry_are_read_and_nothing_is_written_there(one_broker):
    with KafkaClient(one_broker.bootstrap) as client:
        with pytest.raises(ReadOnlyStoreError, match=r"broker \d+ of the cluster at .* does not check what is written"):
            client.schemas.register("orders-value", schema_of("AVRO", '"string"'))
        assert TOPIC not in client.topics()
        client.create_topic(TOPIC, cleanup_policy="compact")
        producer = Producer({"bootstrap.servers": one_broker.bootstrap, "acks": "all"})
        for key, value in CONFLUENT:
            producer.produce(TOPIC, key=key, value=value)
        assert producer.flush(30) == 0
        assert [(entry.version, entry.id) for entry in client.schemas.versions("orders-value")] == [(1, 1), (2, 4)]
        assert client.schemas.level() == "FULL"
        with pytest.raises(ReadOnlyStoreError, match=r"written by another registry.*schema\.registry\.url"):
            client.schemas.register("orders-key", schema_of("AVRO", '"string"'))
        client.delete_topic(TOPIC)
