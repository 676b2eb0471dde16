"""The Prometheus page of real brokers: parsed by Prometheus' own parser, with what clients have done in it."""

import http.client
import socket

import pytest
from confluent_kafka import Consumer
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cluster.conftest import running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ports():
    free = [socket.socket() for _ in range(2)]
    for each in free:
        each.bind(("127.0.0.1", 0))
    found = [each.getsockname()[1] for each in free]
    for each in free:
        each.close()
    return found


def get(port, path="/metrics"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(port):
    status, page = get(port)
    assert status == 200
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_the_page_tells_traffic_replicas_controller_and_lag(ports, tmp_path):
    with running(
        [1], tmp_path, **{"metrics.port": ports[0], "auto.create.topics.enable": "false"}
    ) as cluster:
        topic = cluster.create((1,), (1,))
        assert cluster.produce(topic, range(10)) == []
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.running.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        for _ in range(4):
            message = consumer.poll(20)
        consumer.commit(message=message, asynchronous=False)

        found = samples(ports[0])
        consumer.close()

        at = (("partition", "0"), ("topic", topic))
        assert found[("kafka_server_brokertopicmetrics_messagesin_total",)] >= 10
        assert found[("kafka_server_brokertopicmetrics_bytesin_total",)] > 0
        assert found[("kafka_server_replicamanager_underreplicatedpartitions",)] == 0
        assert found[("kafka_controller_kafkacontroller_activecontrollercount",)] == 1
        assert found[("kafka_controller_kafkacontroller_offlinepartitionscount",)] == 0
        assert found[("kafka_controller_kafkacontroller_globaltopiccount",)] == 2  # with __consumer_offsets
        assert found["kafka_topic_partition_current_offset", *at] == 10
        assert found["kafka_topic_partition_leader", *at] == 1
        assert found["kafka_consumergroup_current_offset", ("consumergroup", "readers"), *at] == 4
        assert found["kafka_consumergroup_lag", ("consumergroup", "readers"), *at] == 6
        assert found["kafka_consumergroup_members", ("consumergroup", "readers")] == 1
        assert found["kafka_network_requestmetrics_requests_total", ("request", "CreateTopics")] == 1
        assert found["pylog_request_seconds_bucket", ("le", "+Inf"), ("request", "CreateTopics")] == 1
        assert found[("pylog_disk_full",)] == found["kafka_server_replicamanager_offlinereplicacount",] == 0
        assert found[("pylog_disk_total_bytes",)] >= found[("pylog_disk_free_bytes",)] > 0
        assert found[("pylog_disk_log_bytes",)] > 0
        assert get(ports[0], "/")[0] == 404
