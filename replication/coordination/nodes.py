"""Paths and contents of the tree, as Kafka 0.9 has them: its tools read our nodes, and we read what they write.

What we write is byte for byte what Kafka 0.9 writes, where it has an order; keys that are new (`rack`, `lost_writes`,
`broker_epoch`, `original_replicas`, /pylog) stand where its tools ignore them. What we read may have any order, and
keys that we do not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from replication.coordination.tree import CoordinationError, Node
from replication.model.cluster import (
    Assignment,
    BrokerId,
    BrokerInfo,
    LeaderAndIsr,
    Offline,
    Reassignment,
    TopicPartition,
)

BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
BROKER_ID_SEQUENCE = "/brokers/seqid"  # the version of this node makes broker ids
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
REASSIGNMENT = "/admin/reassign_partitions"
DELETED_TOPICS = "/admin/delete_topics"
TOPIC_CONFIGS = "/config/topics"
CONFIG_CHANGES = "/config/changes"
ISR_CHANGES = "/isr_change_notification"
CLUSTER_ID = "/cluster/id"
TOPIC_IDS = "/pylog/topic_ids"
GROUP_PARTITIONS = (
    "/pylog/group_partitions"  # by how many partitions groups are spread, whatever is added later
)
INCARNATIONS = (
    "/pylog/incarnations"  # per broker: written at each registration, so its version names one life
)
# Per broker, while it has any: the replicas that it cannot serve or write. Of the session of its registration, and made
# with that, so that nobody sees the broker without it.
PLACEMENTS = "/pylog/placements"  # written with each placement of replicas: its version tells of the others
OFFLINE_REPLICAS = "/pylog/offline_replicas"

CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES}/config_change_"
ISR_CHANGE_PREFIX = f"{ISR_CHANGES}/isr_change_"

# What the first broker of a cluster makes. Kafka's tools expect all but those of pylog.
PERSISTENT_PATHS = (
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    TOPIC_CONFIGS,
    "/config/clients",
    DELETED_TOPICS,
    BROKER_ID_SEQUENCE,
    ISR_CHANGES,
    "/consumers",
    TOPIC_IDS,
    PLACEMENTS,
    INCARNATIONS,
    OFFLINE_REPLICAS,
)


class MalformedNodeError(CoordinationError):
    """A node holds what cannot be understood."""

    path: str
    reason: str

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"cannot understand {path}: {reason}; correct the node, or remove it", path=path, reason=reason
        )


@dataclass(frozen=True, slots=True)
class ControllerNode:
    """Who is the controller, and since when."""

    broker: BrokerId
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class GroupPartitions:
    """The offsets topic of this id was made with so many partitions."""

    topic_id: str
    partitions: int


# --------------------------------------------------------------------- paths


def broker_path(broker: BrokerId) -> str:
    """/brokers/ids/[id]."""
    return f"{BROKER_IDS}/{broker}"


def incarnation_path(broker: BrokerId) -> str:
    """/pylog/incarnations/[id]."""
    return f"{INCARNATIONS}/{broker}"


def offline_path(broker: BrokerId) -> str:
    """/pylog/offline_replicas/[id]."""
    return f"{OFFLINE_REPLICAS}/{broker}"


def topic_path(topic: str) -> str:
    """/brokers/topics/[topic]."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """/brokers/topics/[topic]/partitions."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(tp: TopicPartition) -> str:
    """/brokers/topics/[topic]/partitions/[p]."""
    return f"{partitions_path(tp.topic)}/{tp.partition}"


def state_path(tp: TopicPartition) -> str:
    """/brokers/topics/[topic]/partitions/[p]/state."""
    return f"{partition_path(tp)}/state"


def topic_config_path(topic: str) -> str:
    """/config/topics/[topic]."""
    return f"{TOPIC_CONFIGS}/{topic}"


def topic_id_path(topic: str) -> str:
    """/pylog/topic_ids/[topic]."""
    return f"{TOPIC_IDS}/{topic}"


# ------------------------------------------------------------------ contents


def encode_broker(broker: BrokerInfo, now_ms: int) -> bytes:
    """The registration of a broker, in the life that its epoch names."""
    value: dict[str, Any] = {
        "jmx_port": -1,
        "timestamp": str(now_ms),
        "endpoints": [f"PLAINTEXT://{broker.host}:{broker.port}"],
        "host": broker.host,
        "version": 2 if broker.rack is None else 3,
        "port": broker.port,
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    if broker.lost_writes:
        value["lost_writes"] = True
    value["broker_epoch"] = broker.epoch
    return _encode(value)


def decode_broker(broker: BrokerId, node: Node) -> BrokerInfo:
    """The broker, in the life that this node stands for.

    What an earlier version of this code wrote says no epoch: there it is the node's creation.
    """
    at = _Reader(broker_path(broker), node.data)
    return BrokerInfo(
        id=broker,
        epoch=at.number("broker_epoch") if "broker_epoch" in at.value else node.creation,
        host=at.text("host"),
        port=at.number("port"),
        rack=at.value.get("rack"),
        lost_writes=at.value.get("lost_writes") is True,
    )


def registered_ms(data: bytes) -> int:
    """When a broker was registered, as its registration says."""
    text = str(_Reader(BROKER_IDS, data).value.get("timestamp", "0"))
    return int(text) if text.isdecimal() else 0


def encode_offline(offline: Offline) -> bytes:
    """/pylog/offline_replicas/[id]. It names no life of the broker: it is of the session of its registration."""
    topics: dict[str, dict[str, str]] = {}
    for tp, reason in sorted(offline.partitions.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = reason
    return _encode({"version": 1, "all": offline.everything, "partitions": topics})


def decode_offline(broker: BrokerId, data: bytes) -> Offline:
    """/pylog/offline_replicas/[id]."""
    at = _Reader(offline_path(broker), data)
    everything = at.value.get("all")
    if everything is not None and not isinstance(everything, str):
        raise at.error(f"all must be a text or null, and is {everything!r:.60}")
    found: dict[TopicPartition, str] = {}
    for topic, rows in at.typed("partitions", dict).items():
        if not isinstance(rows, dict) or not all(number.isdecimal() for number in rows):
            raise at.error(f"partitions of {topic} must have numbers for names, and are {rows!r:.60}")
        found.update((TopicPartition(topic, int(number)), str(reason)) for number, reason in rows.items())
    return Offline(everything, found)


def encode_controller(broker: BrokerId, now_ms: int) -> bytes:
    """/controller."""
    return _encode({"version": 1, "brokerid": broker, "timestamp": str(now_ms)})


def decode_controller(data: bytes) -> ControllerNode:
    """/controller."""
    at = _Reader(CONTROLLER, data)
    timestamp = at.value.get("timestamp", "0")
    return ControllerNode(at.number("brokerid"), int(timestamp) if str(timestamp).isdecimal() else 0)


def decode_controller_epoch(data: bytes) -> int:
    """/controller_epoch is a bare integer."""
    if not data.isdigit():
        raise MalformedNodeError(CONTROLLER_EPOCH, f"{data[:40]!r} is no number")
    return int(data)


def encode_cluster_id(cluster_id: str) -> bytes:
    """/cluster/id, as Kafka 0.10 has it."""
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """/cluster/id."""
    return _Reader(CLUSTER_ID, data).text("id")


def encode_group_partitions(found: GroupPartitions) -> bytes:
    """By how many partitions groups are spread, and in which topic."""
    return _encode({"version": 1, "topic_id": found.topic_id, "partitions": found.partitions})


def decode_group_partitions(data: bytes) -> GroupPartitions:
    """The same back."""
    at = _Reader(GROUP_PARTITIONS, data)
    return GroupPartitions(at.text("topic_id"), at.number("partitions"))


def encode_topic(partitions: Mapping[int, Assignment]) -> bytes:
    """The assigned replicas per partition, the last partition first as Kafka writes them while they are few."""
    replicas = {str(partition): partitions[partition] for partition in sorted(partitions, reverse=True)}
    return _encode({"version": 1, "partitions": replicas})


def decode_topic(topic: str, data: bytes) -> dict[int, Assignment]:
    """The assigned replicas per partition, in order."""
    at = _Reader(topic_path(topic), data)
    found = at.typed("partitions", dict)
    if not all(name.isdecimal() for name in found):
        raise at.error("a partition is no number")
    return {int(name): at.numbers(found[name], f"partition {name}") for name in sorted(found, key=int)}


def encode_state(state: LeaderAndIsr) -> bytes:
    """A partition's state. Its version is the node's."""
    return _encode(
        {
            "controller_epoch": state.controller_epoch,
            "leader": state.leader,
            "version": 1,
            "leader_epoch": state.leader_epoch,
            "isr": state.isr,
        }
    )


def decode_state(tp: TopicPartition, node: Node) -> LeaderAndIsr:
    """A partition's state."""
    at = _Reader(state_path(tp), node.data)
    return LeaderAndIsr(
        leader=at.number("leader"),
        leader_epoch=at.number("leader_epoch"),
        isr=at.numbers(at.value.get("isr"), "isr"),
        controller_epoch=at.number("controller_epoch"),
        version=node.version,
    )


def encode_config(config: Mapping[str, str]) -> bytes:
    """The settings of one topic that are not the cluster's."""
    return _encode({"version": 1, "config": dict(sorted(config.items()))})


def settings_of(topic: str, node: Node | None) -> dict[str, str]:
    """The settings that the node of a topic's settings has, if it is there."""
    return decode_config(topic, node.data) if node is not None and node.data else {}


def decode_config(topic: str, data: bytes) -> dict[str, str]:
    """The settings of one topic; values are text, whatever JSON made of them."""
    at = _Reader(topic_config_path(topic), data)
    return {key: str(value) for key, value in at.typed("config", dict).items()}


def encode_config_change(topic: str) -> bytes:
    """The news that a topic's settings have changed."""
    return _encode({"version": 1, "entity_type": "topics", "entity_name": topic})


def decode_config_change(path: str, data: bytes) -> str | None:
    """The topic whose settings have changed; None if it is about something else (clients)."""
    at = _Reader(path, data)
    return at.text("entity_name") if at.value.get("entity_type") == "topics" else None


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """A list of partitions: /admin/preferred_replica_election, and a leader's news of its ISRs."""
    rows = [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]
    return _encode({"version": 1, "partitions": rows})


def decode_partitions(path: str, data: bytes) -> tuple[TopicPartition, ...]:
    """A list of partitions."""
    return tuple(tp for tp, _ in _rows(path, data))


def encode_reassignment(plans: Mapping[TopicPartition, Reassignment]) -> bytes:
    """/admin/reassign_partitions."""
    rows = []
    for tp, plan in plans.items():
        row: dict[str, Any] = {"topic": tp.topic, "partition": tp.partition, "replicas": plan.target}
        if plan.original is not None:
            row["original_replicas"] = plan.original
        rows.append(row)
    return _encode({"version": 1, "partitions": rows})


def decode_reassignment(data: bytes) -> dict[TopicPartition, Reassignment]:
    """/admin/reassign_partitions."""
    at = _Reader(REASSIGNMENT, data)
    plans = {}
    for tp, row in _rows(REASSIGNMENT, data):
        target = at.numbers(row.get("replicas"), f"replicas of {tp}")
        original = row.get("original_replicas")
        plans[tp] = Reassignment(
            target, None if original is None else at.numbers(original, f"original replicas of {tp}")
        )
    return plans


def _rows(path: str, data: bytes) -> list[tuple[TopicPartition, dict[str, Any]]]:
    rows = _Reader(path, data).typed("partitions", list)
    found = []
    for row in rows:
        at = _Reader.of(path, row)
        found.append((TopicPartition(at.text("topic"), at.number("partition")), at.value))
    return found


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class _Reader:
    """Takes typed values out of a JSON object, or says which node is at fault."""

    __slots__ = ("path", "value")

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        try:
            self.value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self.error(f"it is not JSON ({error})") from None
        self._require_object()

    @classmethod
    def of(cls, path: str, value: Any) -> _Reader:
        made = cls.__new__(cls)
        made.path, made.value = path, value
        made._require_object()
        return made

    def _require_object(self) -> None:
        if not isinstance(self.value, dict):
            raise self.error("it is not a JSON object")

    def error(self, reason: str) -> MalformedNodeError:
        return MalformedNodeError(self.path, reason)

    def typed(self, key: str, kind: type) -> Any:
        found = self.value.get(key)
        if type(found) is not kind:
            raise self.error(f"{key} must be a JSON {kind.__name__}, and is {found!r:.60}")
        return found

    def number(self, key: str) -> int:
        found: int = self.typed(key, int)
        return found

    def text(self, key: str) -> str:
        found: str = self.typed(key, str)
        return found

    def numbers(self, found: Any, what: str) -> tuple[int, ...]:
        if not isinstance(found, list) or not all(type(number) is int for number in found):
            raise self.error(f"{what} must be a list of numbers, and is {found!r:.60}")
        return tuple(found)
