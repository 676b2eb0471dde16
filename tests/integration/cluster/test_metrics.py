"""The Prometheus page of real brokers: parsed by Prometheus' own parser, with what clients have done in it."""

import http.client
import socket

import pytest
from confluent_kafka import Consumer
from prometheus_client.parser import text_string_to_metric_families

from replication.broker import metrics
from replication.broker.metrics import LABEL_CHARS_MAX
from replication.protocol.apis import ApiKey
from tests.integration.cluster.conftest import running
from tests.integration.cluster.test_giants import Client
from tests.support.in_process import brokers_in_process

pytestmark = pytest.mark.slow
OFFSETS = "kafka_consumergroup_current_offset"


@pytest.fixture(scope="module")
def ports():
    return free_ports(2)


def free_ports(count):
    free = [socket.socket() for _ in range(count)]
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
    with running([1], tmp_path, **{"metrics.port": ports[0], "auto.create.topics.enable": "false"}) as cluster:
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
        assert found[("kafka_server_brokertopicmetrics_bytesout_total",)] > 0
        assert found[("kafka_server_brokertopicmetrics_replicationbytesout_total",)] == 0
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


GROUPS, LONG = 30, 30_000


def test_groups_do_not_make_the_page_large(ports, tmp_path, monkeypatch):
    """Clients choose their names and how many there are; what is left out is told."""
    with brokers_in_process(
        tmp_path,
        (1,),
        metrics_port=ports[1],
        offsets_topic_num_partitions=1,
        offsets_topic_replication_factor=1,
    ) as brokers:
        names = [f"{number:03}" + "g" * LONG for number in range(GROUPS)]
        with Client(brokers.brokers[1].endpoint.port) as client:
            topic = {
                "name": "t", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": (),
            }  # fmt: skip
            client.call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
            client.call(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": names[:1]})
            for name in names:
                commit(client, name)
        page = get(ports[1])[1]
        assert "000g" in page
        assert "029g" in page
        assert len(page) < GROUPS * 8 * LABEL_CHARS_MAX + 50_000, "their names are cut"
        assert samples(ports[1])["pylog_consumergroups_left_out",] == 0
        for limit, most, shown in (("GROUPS_MAX", 20, 20), ("GROUP_OFFSETS_MAX", 20, 10)):  # two offsets each
            with monkeypatch.context() as patch:
                patch.setattr(metrics, limit, most)
                found = samples(ports[1])
            groups = {dict(labels)["consumergroup"] for name, *labels in found if name == OFFSETS}
            assert (len(groups), found["pylog_consumergroups_left_out",]) == (shown, GROUPS - shown)


def commit(client, group):
    rows = [
        {"partition_index": n, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
        for n in range(2)
    ]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "t", "partitions": rows}],
    }
    while client.call(ApiKey.OFFSET_COMMIT, 9, body).topics[0].partitions[0].error_code:
        pass  # it is being loaded
