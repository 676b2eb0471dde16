"""Every setting of a broker is used by something, or is the default of a topic setting, which act elsewhere."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from logstore.config import LogConfig
from logstore.errors import InvalidConfigError
from logstore.maintenance.compaction import KEY_MAP_BYTES
from replication.config import unsupported
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfig
from replication.config.properties import properties_of
from replication.coordination.zookeeper_tree import CONNECT_S
from replication.model.listeners import parse_address
from replication.network.server import BACKLOG
from replication.protocol import apis
from replication.protocol.apis import ApiKey

SOURCES = "\n".join(
    path.read_text()
    for path in (Path(__file__).parents[2] / "replication").rglob("*.py")
    if path.parent.name != "config"
)
OWN = """
    @property
    def listening:
        self.listeners
        self.advertised_listeners
        self.listener_security_protocol_map
        self.inter_broker_listener_name
        self.security_inter_broker_protocol
    def only_pem_is_taken: self.ssl_keystore_type, self.ssl_truststore_type
    def has_nearest_reads: self.replica_selector_class
    def has_authorizer: self.authorizer_class_name
    def super_principals: self.super_users
"""


# Defaults of groups' settings, and their bounds, which `GroupConfigs` finds by their names.
OF_GROUPS = {
    "_".join(("group", kind, *end, rest)): each.name
    for each in fields(GroupConfig)
    for kind, _, rest in [each.name.partition("_")]
    for end in ((), ("min",), ("max",))
}


@pytest.mark.parametrize("setting", fields(BrokerConfig), ids=lambda f: f.metadata["key"])
def test_a_setting_is_used(setting):
    if topic := setting.metadata.get("topic"):
        assert topic in {f.metadata["key"] for f in fields(LogConfig)}
    elif setting.name in OF_GROUPS:
        assert f".{OF_GROUPS[setting.name]}" in SOURCES
    else:
        assert f".{setting.name}" in SOURCES + OWN


def test_defaults_of_topics_reach_them_and_give_way_to_their_own():
    broker = BrokerConfig.from_properties({"log.retention.ms": "1000", "min.insync.replicas": "2"})
    assert broker.log_config({}).retention_ms == 1000
    assert broker.log_config({"retention.ms": "5"}).retention_ms == 5
    assert broker.log_config({}).min_insync_replicas == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_of_a_time_counts(given, expected):
    assert BrokerConfig.from_properties(given).log_retention_ms == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num.partition": "3"}, "did you mean 'num.partitions'"),
        ({"num.partitions": "0"}, "must be between 1"),
        ({"auto.create.topics.enable": "yes"}, "true or false"),
        ({"listeners": "SSL:/h:1"}, "PLAINTEXT://"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://i:2"}, "PLAINTEXT://"),
        ({"listeners": "PLAINTEXT://::1:9092"}, r"PLAINTEXT://\[::1\]"),
        ({"listeners": "PLAINTEXT://[::1:9092"}, r"PLAINTEXT://\[::1\]"),
        ({"listeners": "PLAINTEXT://h:70000"}, "PLAINTEXT://"),
        ({"log.dirs": "/a,/b"}, "one directory"),
        ({"log.dirs": ""}, "one directory"),
        ({"log.retention.hours": "two"}, "a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_hint(given, says):
    with pytest.raises(InvalidConfigError, match=says):
        BrokerConfig.from_properties(given)


def test_a_file_of_properties():
    text = "# a comment\n\nbroker.id = 3\nzookeeper.connect=h:2181/kafka\n"
    assert properties_of(text) == {"broker.id": "3", "zookeeper.connect": "h:2181/kafka"}
    assert BrokerConfig.from_properties(properties_of(text)).coordination == "zookeeper:h:2181/kafka"
    for wrong in ("broker.id", "a=1\na=2", "a=1\\\n  2\nMIIEsecret"):
        with pytest.raises(InvalidConfigError, match=r"server.properties, line \d") as caught:
            properties_of(wrong)
        assert "secret" not in str(caught.value)
    assert properties_of("a=b\\\\\nc=d\\\\\\\n e") == {"a": "b\\", "c": "d\\e"}
    assert properties_of("key=-----BEGIN A----- \\\n  bytes \\\n  -----END A-----\nb=2") == {
        "key": "-----BEGIN A----- bytes -----END A-----",
        "b": "2",
    }
    with pytest.raises(InvalidConfigError, match="nothing follows"):
        properties_of("a=1\\")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]"])
def test_what_stands_for_every_address_is_for_listening_and_is_told_to_nobody(host):
    hint = r"set advertised.listeners=PLAINTEXT://HOST:PORT"
    here = {"listeners": f"PLAINTEXT://{host}:9092"}
    for wrong in (here, {"advertised.listeners": f"PLAINTEXT://{host}:9092"}):
        with pytest.raises(InvalidConfigError, match=hint):
            BrokerConfig.from_properties(wrong)
    config = BrokerConfig.from_properties({**here, "advertised.listeners": "PLAINTEXT://kafka.example:9093"})
    assert config.listening.bound[0].endpoint == (host.strip("[]"), 9092)
    assert config.listening.told({})[0].endpoint == ("kafka.example", 9093)


def test_a_free_port_is_for_listening_and_is_told_to_nobody():
    with pytest.raises(InvalidConfigError, match="no client can connect to port 0"):
        BrokerConfig.from_properties({"advertised.listeners": "PLAINTEXT://kafka.example:0"})
    config = BrokerConfig.from_properties({"listeners": "PLAINTEXT://127.0.0.1:0"})
    assert config.listening.told({"PLAINTEXT": 40_001})[0].endpoint == ("127.0.0.1", 40_001)


@pytest.mark.parametrize("text", ["127.0.0.1:9092", "kafka.example:1", "[::1]:65535", "[fe80::1%eth0]:9092"])
def test_an_address_is_written_as_it_is_read(text):
    name, address = parse_address(f"PLAINTEXT://{text}")
    assert (name, str(address)) == ("PLAINTEXT", text)
    assert "[" not in address.host


# The keys of config/server.properties of Kafka 2.8, and some that many add to it.
KAFKA = """
broker.id=0
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.flush.interval.messages=10000
log.flush.interval.ms=1000
log.retention.hours=168
log.retention.bytes=1073741824
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
listeners=PLAINTEXT://localhost:9092
advertised.listeners=PLAINTEXT://localhost:9092
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL
inter.broker.listener.name=PLAINTEXT
control.plane.listener.name=CONTROLLER
inter.broker.protocol.version=2.8
log.message.format.version=2.8
log.flush.scheduler.interval.ms=3000
replica.socket.receive.buffer.bytes=65536
log.cleaner.threads=1
log.preallocate=false
process.roles=broker
node.id=1
controller.quorum.voters=1@localhost:9093
ssl.keystore.location=/var/private/ssl/server.keystore.pem
ssl.keystore.password=secret
authorizer.class.name=kafka.security.authorizer.AclAuthorizer
"""
ABSENT = {
    "num.network.threads": "one event loop",
    "replica.socket.receive.buffer.bytes": "the system",
    "zookeeper.connection.timeout.ms": "zookeeper.session.timeout.ms",
    "control.plane.listener.name": "inter.broker.listener.name",
    "inter.broker.protocol.version": "broker by broker",
    "log.message.format.version": "one format",
    "log.flush.scheduler.interval.ms": "flush.ms",
    "log.cleaner.threads": "one log at a time",
    "log.preallocate": "grow",
    "process.roles": "broker.id",
    "node.id": "broker.id",
    "controller.quorum.voters": "broker.id",
    "ssl.keystore.password": "ssl.key.password",
}


def test_a_file_of_kafka_is_taken_but_for_lines_that_are_named_at_once():
    given = properties_of(KAFKA)
    with pytest.raises(InvalidConfigError, match=r"no setting 'num\.network\.threads' here") as caught:
        BrokerConfig.from_properties(given)
    named = str(caught.value)
    assert all(key in named for key in ABSENT)
    assert "\n" not in named
    config = BrokerConfig.from_properties({key: given[key] for key in given.keys() - ABSENT.keys()})
    assert config.num_recovery_threads_per_data_dir == 1
    assert config.socket_send_buffer_bytes == config.socket_receive_buffer_bytes == 102_400
    assert config.coordination == "zookeeper:localhost:2181"
    assert config.has_authorizer


@pytest.mark.parametrize("key", ABSENT)
def test_a_setting_of_kafka_that_is_not_here_is_refused_with_the_reason_and_no_guess(key):
    with pytest.raises(InvalidConfigError, match=ABSENT[key]) as caught:
        BrokerConfig.from_properties({key: "1"})
    assert "did you mean" not in str(caught.value)


def test_no_setting_that_is_here_is_said_to_be_absent():
    assert [f.metadata["key"] for f in fields(BrokerConfig) if unsupported.reason(f.metadata["key"])] == []


# A setting of Kafka, a part of the sentence about it, and the APIs that would make that untrue.
CLAIMS = [
    ("group.share.assignment.interval.ms", "targets are made at once", None),
    ("group.streams.max.size", "and share groups", "STREAMS_GROUP"),
    ("client.telemetry.max.bytes", "Prometheus", "TELEMETRY"),
    ("delegation.token.max.lifetime.ms", "no delegation tokens", "DELEGATION"),
    ("num.replica.alter.log.dirs.threads", "one thread", "ALTER_REPLICA_LOG_DIRS"),
    ("socket.listen.backlog.size", f"{BACKLOG} connections may wait", None),
    ("zookeeper.connection.timeout.ms", f"waits {CONNECT_S} s for ZooKeeper", None),
    ("log.cleaner.dedupe.buffer.size", f"{KEY_MAP_BYTES >> 20} MiB for the keys", None),
]


@pytest.mark.parametrize(("key", "claim", "api"), CLAIMS)
def test_what_is_said_of_a_setting_that_is_not_here_is_true(key, claim, api):
    assert claim in unsupported.reason(key)
    assert not [known.name for known in set(ApiKey) - apis._ASKED if api and api in known.name]


def test_a_sentence_names_settings_that_there_are():
    here = {f.metadata["key"] for f in fields(BrokerConfig)} | {f.metadata["key"] for f in fields(LogConfig)}
    here |= {"zookeeper.connect", "coordination"}
    named = {name for why, _ in unsupported._ABSENT for name in re.findall(r"[a-z]+(?:\.[a-z]+)+", why)}
    assert named <= here


def test_whoever_reads_that_copies_are_slowed_down_by_settings_finds_them():
    why = unsupported.reason("replication.quota.window.num")
    assert all(f.metadata["key"] in why for f in fields(BrokerConfig) if "throttled_rate" in f.name)
