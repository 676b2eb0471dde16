"""The node of a broker's registration, as Kafka has it: its endpoints, and keys of our own that its tools ignore."""

from __future__ import annotations

from typing import Any

from replication.coordination.node_json import NodeReader, encode_json
from replication.coordination.tree import Node
from replication.model.cluster import BrokerId, BrokerInfo
from replication.model.features import NO_LEVELS, PYLOG_VERSION, Levels
from replication.model.listeners import Endpoint, Listener, SecurityProtocol, parse_address

BROKER_IDS = "/brokers/ids"

# The keys that this release writes, or leaves out: it keeps all others.
_OF_BROKER = frozenset(
    (
        *("jmx_port", "timestamp", "endpoints", "host", "version", "port", "rack", "lost_writes", "broker_epoch"),
        *("features", "listener_security_protocol_map"),
    )
)


def broker_path(broker: BrokerId) -> str:
    return f"{BROKER_IDS}/{broker}"


def encode_broker(broker: BrokerInfo, now_ms: int, former: bytes | None = None) -> bytes:
    plain = next((each.endpoint for each in broker.endpoints if each.protocol is SecurityProtocol.PLAINTEXT), None)
    value: dict[str, Any] = {
        "jmx_port": -1,
        "timestamp": str(now_ms),
        "endpoints": [f"{each.name}://{each.endpoint.host}:{each.endpoint.port}" for each in broker.endpoints],
        "host": None if plain is None else plain.host,
        "version": 2 if broker.rack is None else 3,
        "port": -1 if plain is None else plain.port,
    }
    if broker.listeners:  # as Kafka 1.0 has it
        value["listener_security_protocol_map"] = {each.name: each.protocol.name for each in broker.listeners}
        value["endpoints"] = [str(each) for each in broker.listeners]
        value["version"] = 4
    if broker.rack is not None:
        value["rack"] = broker.rack
    if broker.lost_writes:
        value["lost_writes"] = True
    value["broker_epoch"] = str(broker.epoch)  # the tools of Kafka 0.9 read no number above 31 bits
    if broker.levels != NO_LEVELS:
        first, last = broker.levels
        value["features"] = {PYLOG_VERSION: {"min_version": first, "max_version": last}}  # as Kafka 2.7 writes them
    return encode_json(value, former, _OF_BROKER)


def decode_broker(broker: BrokerId, node: Node) -> BrokerInfo:
    """Return the broker as this registration describes it.

    Registrations by earlier versions of this code have no epoch: there it is the creation number of the node.
    """
    at = NodeReader(broker_path(broker), node.data)
    listeners = _listeners(at)
    own = listeners[0].endpoint if listeners else Endpoint(at.text("host"), at.number("port"))
    return BrokerInfo(
        id=broker,
        epoch=_epoch(at) if "broker_epoch" in at.value else node.creation,
        host=own.host,
        port=own.port,
        rack=at.value.get("rack"),
        lost_writes=at.value.get("lost_writes") is True,
        levels=_levels(at),
        listeners=listeners,
    )


def _listeners(at: NodeReader) -> tuple[Listener, ...]:
    """Return the listeners of a registration that describes each; () for one with PLAINTEXT alone."""
    if "listener_security_protocol_map" not in at.value:
        return ()
    protocols = at.typed("listener_security_protocol_map", dict)
    found = []
    for text in at.typed("endpoints", list):
        address = parse_address(text) if isinstance(text, str) else None
        protocol = "" if address is None else str(protocols.get(address[0]))
        if address is None or protocol not in SecurityProtocol.__members__:
            raise at.error(f"endpoints must be NAME://HOST:PORT with a protocol each, and one is {text!r:.60}")
        found.append(Listener(address[0], SecurityProtocol[protocol], address[1]))
    if not found:
        raise at.error("endpoints must name an address at least")
    return tuple(found)


def _levels(at: NodeReader) -> Levels:
    features = at.value.get("features")
    if features is None or (isinstance(features, dict) and PYLOG_VERSION not in features):
        return NO_LEVELS
    row = NodeReader(at.path, NodeReader(at.path, features).value[PYLOG_VERSION])
    return Levels(row.number("min_version"), row.number("max_version"))


def _epoch(at: NodeReader) -> int:
    """The epoch, a text; a number in registrations by earlier versions."""
    found = at.value["broker_epoch"]
    return int(found) if isinstance(found, str) and found.isdecimal() else at.number("broker_epoch")


def registered_ms(data: bytes) -> int:
    text = str(NodeReader(BROKER_IDS, data).value.get("timestamp", "0"))
    return int(text) if text.isdecimal() else 0
