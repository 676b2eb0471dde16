"""The Prometheus page of real brokers: parsed by Prometheus' own parser, with what clients have done in it."""

import http.client
import socket
import struct

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from prometheus_client.parser import text_string_to_metric_families

from logstore.records.batch import Record, build
from replication.broker import metrics
from replication.broker.families import LABEL_CHARS_MAX
from replication.client.kafka_client import KafkaClient
from replication.coordination.tree import SessionEvent
from replication.protocol.apis import ApiKey, encode_request
from replication.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from tests.integration.cluster.conftest import running
from tests.integration.cluster.test_giants import Client
from tests.support import dashboards
from tests.support.in_process import brokers_in_process
from tests.support.repeats import only_long

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
    families = list(text_string_to_metric_families(page))
    assert [each.name for each in families if not each.documentation.endswith(".") or each.type == "unknown"] == []
    return {(sample.name, *sorted(sample.labels.items())): sample.value for each in families for sample in each.samples}


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

        with KafkaClient(cluster.running.bootstrap) as client, client.transaction("id") as transaction:
            transaction.append(topic, pa.table({"value": ["x"]}))
            found = samples(ports[0])
        consumer.close()
        do_wrong(cluster.running.bootstrap, topic)
        assert found[("pylog_open_transactions",)] == 1
        assert 0 < found[("pylog_oldest_open_transaction_seconds",)] < 60
        after = samples(ports[0])
        assert after[("pylog_open_transactions",)] == after[("pylog_oldest_open_transaction_seconds",)] == 0

        assert errors(after) == {
            ("UNKNOWN_TOPIC_OR_PARTITION", "Produce"): 2,
            ("OFFSET_OUT_OF_RANGE", "FetchConsumer"): 1,
            ("FETCH_SESSION_ID_NOT_FOUND", "FetchConsumer"): 1,
        }
        assert after["pylog_connections_misused_total",] == 2
        assert after["pylog_coordination_session",] == 1
        assert 0 <= after["pylog_loop_lag_seconds",] < 60

        at = (("partition", "0"), ("topic", topic))
        assert found[("kafka_server_brokertopicmetrics_messagesin_total",)] >= 10
        assert found[("kafka_server_brokertopicmetrics_bytesin_total",)] > 0
        assert found[("kafka_server_brokertopicmetrics_bytesout_total",)] > 0
        assert found[("kafka_server_brokertopicmetrics_replicationbytesout_total",)] == 0
        assert found[("kafka_server_replicamanager_underreplicatedpartitions",)] == 0
        assert found[("kafka_controller_kafkacontroller_activecontrollercount",)] == 1
        assert found[("kafka_controller_kafkacontroller_offlinepartitionscount",)] == 0
        assert found[("kafka_controller_kafkacontroller_globaltopiccount",)] == 3  # with two of Kafka
        assert found["kafka_topic_partition_current_offset", *at] == 11
        assert found["kafka_topic_partition_leader", *at] == 1
        assert found["kafka_consumergroup_current_offset", ("consumergroup", "readers"), *at] == 4
        assert found["kafka_consumergroup_lag", ("consumergroup", "readers"), *at] == 7
        assert found["kafka_consumergroup_members", ("consumergroup", "readers")] == 1
        assert found["kafka_network_requestmetrics_requests_total", ("request", "CreateTopics")] == 1
        assert found["pylog_request_seconds_bucket", ("le", "+Inf"), ("request", "CreateTopics")] == 1
        assert found[("pylog_disk_full",)] == found["kafka_server_replicamanager_offlinereplicacount",] == 0
        assert found[("pylog_disk_total_bytes",)] >= found[("pylog_disk_free_bytes",)] > 0
        assert found[("pylog_disk_log_bytes",)] > 0
        assert found["kafka_log_log_size", *at] > 0
        assert found[("kafka_server_socketservermetrics_connection_count",)] > 0
        assert found[("process_resident_memory_bytes",)] > 10_000_000
        assert found[("process_cpu_seconds_total",)] > 0
        assert 0 < found[("process_open_fds",)] < found[("process_max_fds",)]
        assert found[("kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent",)] > 0.9
        assert found[("pylog_offline_partitions",)] == found[("pylog_connections_refused_total",)] == 0
        assert dashboards.names() - {name for name, *_ in after} == set(), "conf/ names what the page does not have"
        assert get(ports[0], "/")[0] == 404


def do_wrong(bootstrap, topic):
    """Ask for what is not there, as clients may; and say what is no request."""
    port = int(bootstrap.rpartition(":")[2])
    rows = (ProducePartition(9, bytes(build([Record(0, 1_000, b"k", b"value")]))),)
    batch = (ProduceTopic(topic, rows),)
    far = (FetchTopic(topic, None, (FetchPartition(0, 10**9, 1),)),)
    with Client(port) as client:
        client.call(ApiKey.PRODUCE, 8, ProduceRequest(-1, 1000, batch))
        client.call(ApiKey.FETCH, 11, FetchRequest(0, 0, far))
        client.call(ApiKey.FETCH, 11, FetchRequest(0, 0, (), session_epoch=7))
        client.socket.sendall(
            b"".join(map(bytes, encode_request(ApiKey.PRODUCE, 8, 1, "", ProduceRequest(0, 1, batch))))
        )
        assert client.socket.recv(1) == b"", "with acks=0 the end of the connection tells"
    with Client(port) as client:
        client.socket.sendall(struct.pack(">ihhi", 8, 999, 0, 1))
        assert client.socket.recv(1) == b""


def errors(found):
    name = "kafka_network_requestmetrics_errors_total"
    return {tuple(dict(labels).values()): count for (metric, *labels), count in found.items() if metric == name}


GROUPS, LONG = 30, 30_000


@only_long("names of 30,000 bytes")
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
        lifecycle = brokers.brokers[1].lifecycle
        for event, is_connected in ((SessionEvent.SUSPENDED, 0), (SessionEvent.CONNECTED, 1)):
            brokers.do(come(lifecycle, event))
            assert samples(ports[1])["pylog_coordination_session",] == is_connected
        for limit, most, shown in (("GROUPS_MAX", 20, 20), ("GROUP_OFFSETS_MAX", 20, 10)):  # two offsets each
            with monkeypatch.context() as patch:
                patch.setattr(metrics, limit, most)
                found = samples(ports[1])
            groups = {dict(labels)["consumergroup"] for name, *labels in found if name == OFFSETS}
            assert (len(groups), found["pylog_consumergroups_left_out",]) == (shown, GROUPS - shown)


async def come(lifecycle, event):
    lifecycle._on_session(lifecycle._session, event)


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
