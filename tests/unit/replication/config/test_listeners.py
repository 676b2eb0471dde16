"""The listeners that Kafka's settings describe; each contradiction is one line."""

import json
from dataclasses import fields

import pytest

from logstore.errors import InvalidConfigError
from replication.broker.process import unguarded
from replication.config.broker import BrokerConfig
from replication.config.rights import ACL_AUTHORIZER
from replication.coordination import nodes
from replication.coordination.node_json import MalformedNodeError
from replication.coordination.tree import Node
from replication.model.cluster import BrokerInfo
from replication.model.listeners import Endpoint, Listener, SecurityProtocol
from replication.model.metadata import BrokerAddress, Metadata

TWO = {
    "listeners": "INSIDE://0.0.0.0:0,OUTSIDE://[::1]:9093",
    "advertised.listeners": "OUTSIDE://kafka.example:9443,INSIDE://10.0.0.1:9092",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL",
    "inter.broker.listener.name": "INSIDE",
}
INSIDE = Listener("INSIDE", SecurityProtocol.PLAINTEXT, Endpoint("10.0.0.1", 9092))
OUTSIDE = Listener("OUTSIDE", SecurityProtocol.SASL_SSL, Endpoint("kafka.example", 9443))


def test_others_are_told_the_brokers_own_listener_first():
    listening = BrokerConfig.from_properties(TWO).listening
    assert [str(each) for each in listening.bound] == ["INSIDE://0.0.0.0:0", "OUTSIDE://[::1]:9093"]
    assert listening.told({"INSIDE": 40_000}) == (INSIDE, OUTSIDE)
    assert not listening.is_plain


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "PLAINTEXT"),
        ({"listeners": "SSL://h:1"}, "SSL"),  # the only one
        ({"listeners": "SSL://h:1,PLAINTEXT://h:2"}, "PLAINTEXT"),
        ({"listeners": "SSL://h:1,PLAINTEXT://h:2", "security.inter.broker.protocol": "SSL"}, "SSL"),
        ({"listeners": "SSL://h:1,PLAINTEXT://h:2", "inter.broker.listener.name": "SSL"}, "SSL"),
    ],
)
def test_brokers_meet_at_the_listener_that_is_named(given, name):
    assert BrokerConfig.from_properties(given).listening.inter_broker == name


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"listeners": "EXT://h:1"}, "no security protocol defined for listener EXT"),
        ({"listeners": "SSL://h:1,SSL://h:2"}, "a different name: SSL"),
        ({"listeners": "SSL://h:1,PLAINTEXT://h:1"}, "a different port, and 1 is given twice"),
        ({"listeners": "SSL://0.0.0.0:1,PLAINTEXT://h:1", "advertised.listeners": "SSL://h:1"}, "a different port"),
        ({"listeners": "SSL://h:1,SASL_SSL://h:2"}, "one of SSL, SASL_SSL"),
        ({"inter.broker.listener.name": "X"}, "add X:PROTOCOL to listener.security.protocol.map"),
        ({"inter.broker.listener.name": "SSL"}, "inter.broker.listener.name=SSL: brokers meet"),
        ({"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "SSL"}, "only one of"),
        ({"security.inter.broker.protocol": "TLS"}, "one of PLAINTEXT, SSL"),
        ({"listener.security.protocol.map": "A:B"}, "'A:B' is not NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A:SSL,A:SSL"}, "A is given twice"),
        ({"advertised.listeners": "SSL://h:1"}, "SSL is none of the listeners: PLAINTEXT"),
        ({"listener.name.ext.ssl.client.auth": "none"}, "no listener of this name; there are plaintext"),
        ({"listener.name.plaintext.ssl.client.auth": "maybe"}, "listener.name.plaintext: ssl.client.auth='maybe'"),
        ({"listener.name.plaintext.ssl.client.outh": "none"}, "did you mean 'ssl.client.auth'"),
        ({"listener.name.plaintext.num.partitions": "3"}, "unknown setting of a listener 'num.partitions'"),
        ({"listener.name.plaintext.ssl.keystore.password": "s3cret"}, "ssl.key.password"),
    ],
)
def test_contradictions_are_refused_with_one_line(given, says):
    with pytest.raises(InvalidConfigError, match=r"^[^\n]*$") as caught:
        BrokerConfig.from_properties(given)
    assert says in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_setting_of_one_listener_counts_before_that_of_all():
    own = {"ssl.client.auth": "required", "listener.name.outside.ssl.client.auth": "requested"}
    config = BrokerConfig.from_properties(TWO | own)
    assert config.of_listener("OUTSIDE").ssl_client_auth == "requested"
    assert config.of_listener("INSIDE").ssl_client_auth == "required"


def test_no_secret_is_in_a_repr():
    secrets = [f for f in fields(BrokerConfig) if f.metadata.get("is_sensitive")]
    assert {"ssl.keystore.key", "ssl.key.password", "plain.sasl.jaas.config"} <= {f.metadata["key"] for f in secrets}
    config = BrokerConfig.from_properties({f.metadata["key"]: "s3cret" for f in secrets})
    assert "s3cret" not in repr(config) + repr(config.of_listener("PLAINTEXT"))


def test_a_registration_carries_all_endpoints_as_kafka_writes_them():
    info = BrokerInfo(1, 5, "10.0.0.1", 9092, listeners=(INSIDE, OUTSIDE))
    value = json.loads(nodes.encode_broker(info, 7))
    assert value["endpoints"] == ["INSIDE://10.0.0.1:9092", "OUTSIDE://kafka.example:9443"]
    assert value["listener_security_protocol_map"] == {"INSIDE": "PLAINTEXT", "OUTSIDE": "SASL_SSL"}
    assert (value["host"], value["port"], value["version"]) == ("10.0.0.1", 9092, 4)
    assert nodes.decode_broker(1, Node(nodes.encode_broker(info, 7), 0, 5)) == info


def test_a_registration_without_a_plaintext_listener_has_no_host_as_in_kafka():
    info = BrokerInfo(1, 5, "kafka.example", 9443, listeners=(OUTSIDE,))
    value = json.loads(nodes.encode_broker(info, 7))
    assert (value["host"], value["port"]) == (None, -1)
    assert nodes.decode_broker(1, Node(nodes.encode_broker(info, 7), 0, 5)) == info


@pytest.mark.parametrize("endpoints", [[], ["INSIDE://h"], ["OTHER://h:1"], [5], "INSIDE://h:1"])
def test_a_registration_with_endpoints_that_are_none_is_malformed(endpoints):
    value = json.loads(nodes.encode_broker(BrokerInfo(1, 5, "h", 1, listeners=(INSIDE,)), 7)) | {"endpoints": endpoints}
    with pytest.raises(MalformedNodeError, match="endpoints"):
        nodes.decode_broker(1, Node(json.dumps(value).encode(), 0, 5))


def test_clients_are_told_of_brokers_with_the_listener_that_they_ask():
    both = BrokerAddress(1, "10.0.0.1", 9092, "rack", (INSIDE, OUTSIDE))
    inside = BrokerAddress(2, "10.0.0.2", 9092, None, (INSIDE._replace(endpoint=Endpoint("10.0.0.2", 9092)),))
    metadata = Metadata()
    metadata.update(1, [both, inside], ())
    assert {b: (a.host, a.port) for b, a in metadata.brokers_at("INSIDE").items()} == {
        1: ("10.0.0.1", 9092),
        2: ("10.0.0.2", 9092),
    }
    assert {b: (a.host, a.port, a.rack) for b, a in metadata.brokers_at("OUTSIDE").items()} == {
        1: ("kafka.example", 9443, "rack")
    }
    metadata.update(1, [inside], ())
    assert not metadata.brokers_at("OUTSIDE")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, []),
        ({"listeners": "PLAINTEXT://localhost:1"}, []),
        ({"listeners": "PLAINTEXT://[::]:1", "advertised.listeners": "PLAINTEXT://h:1"}, ["PLAINTEXT"]),
        (TWO, ["INSIDE"]),
        (TWO | {"authorizer.class.name": ACL_AUTHORIZER}, []),
    ],
)
def test_listeners_at_which_everybody_on_the_network_may_do_everything_are_known(given, names):
    assert [each.name for each in unguarded(BrokerConfig.from_properties(given))] == names
