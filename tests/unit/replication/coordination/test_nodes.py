"""Nodes are, byte for byte, what Kafka 0.9 was recorded to write; what others write is read, or named."""

import json

import pytest

from replication.coordination import nodes
from replication.coordination.node_json import MalformedNodeError
from replication.coordination.tree import Node
from replication.model.cluster import (
    NO_LEADER,
    BrokerInfo,
    Election,
    LeaderAndIsr,
    Offline,
    Reassignment,
    TopicPartition,
)

T0 = TopicPartition("first", 0)
STATE = b'{"controller_epoch":1,"leader":2,"version":1,"leader_epoch":0,"isr":[2,3]}'
BROKER = (
    b'{"jmx_port":-1,"timestamp":"1795231745954","endpoints":["PLAINTEXT://127.0.0.1:22001"],'
    b'"host":"127.0.0.1","version":2,"port":22001}'
)


def test_a_registration_is_that_of_kafka():
    info = BrokerInfo(1, 19, "127.0.0.1", 22001)
    assert nodes.encode_broker(info, 1795231745954) == BROKER[:-1] + b',"broker_epoch":"19"}'
    assert nodes.decode_broker(1, Node(BROKER, 0, 19)) == info  # of a version that wrote no epoch


def test_the_epoch_of_a_broker_is_the_one_that_it_wrote():
    info = BrokerInfo(1, 2**62 + 5, "h", 1)
    data = nodes.encode_broker(info, 7)
    assert nodes.decode_broker(1, Node(data, 0, 19)) == info
    as_a_number = data.replace(b'"%d"' % info.epoch, b"%d" % info.epoch)
    assert as_a_number != data
    assert nodes.decode_broker(1, Node(as_a_number, 0, 19)) == info  # of an earlier version
    with pytest.raises(MalformedNodeError, match="broker_epoch"):
        nodes.decode_broker(1, Node(data.replace(b'"%d"' % info.epoch, b'"many"'), 0, 19))


def test_the_tools_of_kafka_can_read_every_number_of_a_registration():
    numbers = []
    json.loads(nodes.encode_broker(BrokerInfo(1, 2**62 + 5, "h", 65535), 2**43), parse_int=numbers.append)
    assert max(map(int, numbers)) < 2**31


def test_rack_and_lost_writes_survive():
    info = BrokerInfo(1, 19, "h", 1, rack="r", lost_writes=True)
    data = nodes.encode_broker(info, 7)
    assert b'"version":3' in data
    assert nodes.decode_broker(1, Node(data, 0, 19)) == info


def test_a_registration_of_the_first_version_is_read():
    data = b'{"version":1,"host":"h","port":9092,"jmx_port":-1}'
    assert nodes.decode_broker(3, Node(data, 0, 5)) == BrokerInfo(3, 5, "h", 9092)


def test_a_state_is_that_of_kafka():
    state = LeaderAndIsr(2, 0, (2, 3), 1, version=4)
    assert nodes.encode_state(state) == STATE
    assert nodes.decode_state(T0, Node(STATE, 4, 9)) == state
    nobody = LeaderAndIsr(NO_LEADER, 3, (), 1, version=0)
    assert nodes.decode_state(T0, Node(nodes.encode_state(nobody), 0, 9)) == nobody


@pytest.mark.parametrize(
    ("encoded", "recorded"),
    [
        (
            nodes.encode_controller(1, 1795231745846),
            b'{"version":1,"brokerid":1,"timestamp":"1795231745846"}',
        ),
        (
            nodes.encode_topic({0: (3, 1), 1: (1, 2), 2: (2, 3)}),
            b'{"version":1,"partitions":{"2":[2,3],"1":[1,2],"0":[3,1]}}',
        ),
        (
            nodes.encode_config({"retention.ms": "60000", "cleanup.policy": "compact"}),
            b'{"version":1,"config":{"cleanup.policy":"compact","retention.ms":"60000"}}',
        ),
        (nodes.encode_config({}), b'{"version":1,"config":{}}'),
        (nodes.encode_config_change("/config/topics/t1"), b'{"version":1,"entity_type":"topics","entity_name":"t1"}'),
        (
            nodes.encode_election(Election((TopicPartition("n", 0),))),
            b'{"version":1,"partitions":[{"topic":"n","partition":0}]}',
        ),
        (
            nodes.encode_reassignment({TopicPartition("t", 1): Reassignment((4, 5))}),
            b'{"version":1,"partitions":[{"topic":"t","partition":1,"replicas":[4,5]}]}',
        ),
    ],
)
def test_what_is_written_is_what_kafka_was_recorded_to_write(encoded, recorded):
    assert encoded == recorded


def test_what_is_written_is_read_back():
    plan = {
        TopicPartition("t", 1): Reassignment((4, 5)),
        TopicPartition("u", 0): Reassignment((1,), (2, 3)),
    }
    assert nodes.decode_reassignment(nodes.encode_reassignment(plan)) == plan
    assert nodes.decode_partitions("/x", nodes.encode_partitions(plan)) == tuple(plan)
    for election in (Election(tuple(plan)), Election(tuple(plan), is_unclean=True)):
        assert nodes.decode_election(nodes.encode_election(election)) == election
    many = {partition: (partition, 1) for partition in range(12)}
    assert nodes.decode_topic("t", nodes.encode_topic(many)) == many
    assert nodes.settings_at("/t", Node(nodes.encode_config({"a": "ü"}), 0, 1)) == {"a": "ü"}
    for path in (nodes.topic_config_path("t"), nodes.broker_config_path("1"), nodes.broker_config_path("")):
        assert nodes.decode_config_change("/x", nodes.encode_config_change(path)) == path
    assert nodes.decode_controller(nodes.encode_controller(8, 5)) == 8
    assert nodes.decode_controller_epoch(b"29") == 29
    some = {TopicPartition("t", 1): "damaged at 7", TopicPartition("u", 10): "ü"}
    for offline in (Offline("disk full"), Offline(None, some), Offline("disk full", some)):
        assert nodes.decode_offline(3, nodes.encode_offline(offline)) == offline


def test_news_of_clients_is_of_no_topic():
    data = b'{"version":1,"entity_type":"clients","entity_name":"c"}'
    assert nodes.decode_config_change("/x", data) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"leader":2}',
        b'{"controller_epoch":1,"leader":true,"version":1,"leader_epoch":0,"isr":[2]}',
        b'{"controller_epoch":1,"leader":2,"version":1,"leader_epoch":"0","isr":[2]}',
        b'{"controller_epoch":1,"leader":2,"version":1,"leader_epoch":0,"isr":["2"]}',
    ],
)
def test_a_node_that_cannot_be_understood_is_named(data):
    with pytest.raises(MalformedNodeError, match="/brokers/topics/first/partitions/0/state"):
        nodes.decode_state(T0, Node(data, 0, 1))


@pytest.mark.parametrize(
    "decode",
    [
        lambda: nodes.decode_controller_epoch(b"one"),
        lambda: nodes.decode_topic("t", b'{"version":1,"partitions":{"x":[1]}}'),
        lambda: nodes.decode_topic("t", b'{"version":1,"partitions":[]}'),
        lambda: nodes.decode_offline(1, b'{"version":1,"all":7,"partitions":{}}'),
        lambda: nodes.decode_offline(1, b'{"version":1,"all":null,"partitions":{"t":{"x":"full"}}}'),
        lambda: nodes.decode_offline(1, b'{"version":1,"all":null}'),
        lambda: nodes.decode_partitions("/x", b'{"partitions":[7]}'),
        lambda: nodes.decode_reassignment(b'{"partitions":[{"topic":"t","partition":0}]}'),
    ],
)
def test_what_people_write_wrong_is_named(decode):
    with pytest.raises(MalformedNodeError, match="correct the node"):
        decode()


@pytest.mark.parametrize(
    ("user", "node"),
    [
        ("ada", "ada"),
        ("CN=Ada, O=A*B", "CN%3DAda%2C%20O%3DA%2AB"),
        ("a~b.c-d_e+f/g", "a%7Eb.c-d_e%2Bf%2Fg"),
        ("ü%", "%C3%BC%25"),
        ("..", "%2E%2E"),
        (".", "%2E"),
    ],
)
def test_nodes_of_users_have_kafkas_names_for_them(user, node):
    assert nodes.user_config_path(user) == f"/config/users/{node}"
    assert nodes.user_of_config(f"/config/users/{node}") == user
