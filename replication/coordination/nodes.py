"""Paths and contents of the nodes, as Kafka 0.9 has them: its tools read ours, and we read theirs.

Every write is byte for byte what Kafka 0.9 writes, where that has an order. New keys (`rack`, `lost_writes`,
`broker_epoch`, `features`, `original_replicas`, `unclean`) and the nodes below /pylog are ones that its tools ignore.
Reads take keys in any order. Unknown keys are those of a later release: a write keeps them where it is given the
`former` content of the node.

From feature level 1 on, two nodes are ones that the release before feature levels cannot read, so that it neither
starts nor becomes the controller: the text that it finds instead tells what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from replication.coordination import broker_node
from replication.coordination.node_json import MalformedNodeError, NodeReader, decode_json, encode_json, with_unknown
from replication.coordination.tree import Node
from replication.model.cluster import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    Assignment,
    BrokerId,
    Election,
    LeaderAndIsr,
    Offline,
    Reassignment,
    TopicPartition,
)
from replication.model.features import PYLOG_VERSION, Finalized

# Registrations of brokers: see `broker_node`.
BROKER_IDS, broker_path = broker_node.BROKER_IDS, broker_node.broker_path
encode_broker, decode_broker, registered_ms = (
    broker_node.encode_broker,
    broker_node.decode_broker,
    broker_node.registered_ms,
)
TOPICS = "/brokers/topics"
BROKER_ID_SEQUENCE = "/brokers/seqid"  # Kafka derives generated broker ids from its version
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
ELECTION = "/admin/preferred_replica_election"
REASSIGNMENT = "/admin/reassign_partitions"
DELETED_TOPICS = "/admin/delete_topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
GROUP_CONFIGS = "/config/groups"
USER_CONFIGS = "/config/users"
ALL_BROKERS = "<default>"  # the node there with what all brokers were given
CONFIG_CHANGES = "/config/changes"
ISR_CHANGES = "/isr_change_notification"
CLUSTER_ID = "/cluster/id"
TOPIC_IDS = "/pylog/topic_ids"
# The number of partitions over which the names of an internal topic are spread, whatever is added later.
PARTITION_COUNTS: Mapping[str, str] = {
    OFFSETS_TOPIC: "/pylog/group_partitions",
    TRANSACTIONS_TOPIC: "/pylog/transaction_partitions",
    SHARE_STATE_TOPIC: "/pylog/share_state_partitions",
}
# The finalized level: see `coordination.features`. Empty: level 0.
FEATURES = "/pylog/features"
# A secret by which brokers know each other; made by the first broker of the release that asks for it.
BROKER_SECRET = "/pylog/broker_secret"
SECRET_BYTES = 32
# Written at each registration: its version shows whether a broker has registered since.
REGISTRATIONS = "/pylog/registrations"
# Per broker: written at each registration, so its version identifies one life.
INCARNATIONS = "/pylog/incarnations"
# Written before replicas are placed: its version shows whether another broker has placed some since.
PLACEMENTS = "/pylog/placements"
# Written in the step that deletes a topic: see `coordination.topic_nodes`.
DELETIONS = "/pylog/deletions"
# Per broker, while it has any: see `coordination.offline`.
OFFLINE_REPLICAS = "/pylog/offline_replicas"

CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES}/config_change_"
ISR_CHANGE_PREFIX = f"{ISR_CHANGES}/isr_change_"

# Created by the first broker of a cluster. Kafka's tools expect all but those below /pylog.
PERSISTENT_PATHS = (
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    USER_CONFIGS,
    "/config/clients",
    DELETED_TOPICS,
    BROKER_ID_SEQUENCE,
    ISR_CHANGES,
    "/consumers",
    TOPIC_IDS,
    PLACEMENTS,
    DELETIONS,
    INCARNATIONS,
    OFFLINE_REPLICAS,
    FEATURES,
    REGISTRATIONS,
)

# The value that the release before feature levels finds and shows from level 1 on.
_TOO_OLD = "needs a later release, do not touch"

# The keys of each kind of node that this release writes, or leaves out: it keeps all others.
_OF_STATE = frozenset(("controller_epoch", "leader", "version", "leader_epoch", "isr"))
_OF_LIST = frozenset(("version", "partitions"))
_OF_PLAN = frozenset(("topic", "partition", "replicas", "original_replicas"))
_OF_CONFIG = frozenset(("version", "config"))
_OF_FEATURES = frozenset(("version", "epoch", "features"))


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """How many partitions the internal topic of this id was created with."""

    topic_id: str
    partitions: int


# --------------------------------------------------------------------- paths


def incarnation_path(broker: BrokerId) -> str:
    return f"{INCARNATIONS}/{broker}"


def offline_path(broker: BrokerId) -> str:
    return f"{OFFLINE_REPLICAS}/{broker}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(tp: TopicPartition) -> str:
    return f"{partitions_path(tp.topic)}/{tp.partition}"


def state_path(tp: TopicPartition) -> str:
    return f"{partition_path(tp)}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def topic_id_path(topic: str) -> str:
    return f"{TOPIC_IDS}/{topic}"


def deletion_path(topic: str) -> str:
    return f"{DELETED_TOPICS}/{topic}"


def all_of_topic(topic: str) -> list[str]:
    """The nodes of a topic beside its partitions; the mark of its deletion comes last."""
    return [topic_path(topic), topic_config_path(topic), topic_id_path(topic), deletion_path(topic)]


# ------------------------------------------------------------------ contents


def encode_secret(secret: bytes) -> bytes:
    return encode_json({"version": 1, "secret": secret.hex()})


def decode_secret(data: bytes) -> bytes:
    at = NodeReader(BROKER_SECRET, data)
    try:
        found = bytes.fromhex(at.text("secret"))
    except ValueError:
        raise at.error("secret must be hexadecimal") from None  # it is not shown
    if len(found) < SECRET_BYTES:
        raise at.error("secret is too short")
    return found


def encode_offline(offline: Offline) -> bytes:
    topics: dict[str, dict[str, str]] = {}
    for tp, reason in sorted(offline.partitions.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = reason
    return encode_json({"version": 1, "all": offline.everything, "partitions": topics})


def decode_offline(broker: BrokerId, data: bytes) -> Offline:
    at = NodeReader(offline_path(broker), data)
    everything = at.value.get("all")
    if everything is not None and not isinstance(everything, str):
        raise at.error(f"all must be a text or null, and is {everything!r:.60}")
    found: dict[TopicPartition, str] = {}
    for topic, rows in at.typed("partitions", dict).items():
        if not isinstance(rows, dict) or not all(number.isdecimal() for number in rows):
            raise at.error(f"partitions of {topic} must be named by numbers, and are {rows!r:.60}")
        found.update((TopicPartition(topic, int(number)), str(reason)) for number, reason in rows.items())
    return Offline(everything, found)


def encode_controller(broker: BrokerId, now_ms: int) -> bytes:
    return encode_json({"version": 1, "brokerid": broker, "timestamp": str(now_ms)})


def decode_controller(data: bytes) -> BrokerId:
    return NodeReader(CONTROLLER, data).number("brokerid")


def encode_controller_epoch(epoch: int, level: int) -> bytes:
    """A number, as Kafka writes it; from level 1 on, with words behind it."""
    return b"%d" % epoch if level == 0 else f"{epoch} {_TOO_OLD}".encode()


def decode_controller_epoch(data: bytes) -> int:
    number = data.removesuffix(f" {_TOO_OLD}".encode())
    if not number.isdigit():
        raise MalformedNodeError(CONTROLLER_EPOCH, f"{data[:40]!r} is not a number")
    return int(number)


def encode_cluster_id(cluster_id: str, level: int = 0, former: bytes | None = None) -> bytes:
    """Encode the node as Kafka 0.10 does; from level 1 on, under another key."""
    if level == 0:
        return encode_json({"version": "1", "id": cluster_id})
    return encode_json({"version": "1", "id": [_TOO_OLD], "cluster_id": cluster_id}, former)


def decode_cluster_id(data: bytes) -> str:
    at = NodeReader(CLUSTER_ID, data)
    return at.text("cluster_id" if "cluster_id" in at.value else "id")


def encode_features(finalized: Finalized, former: bytes | None = None) -> bytes:
    """`former` may name other features: they stay."""
    others = decode_json(former).get("features") or {}
    features = {**others, PYLOG_VERSION: finalized.level}
    return encode_json({"version": 1, "epoch": finalized.epoch, "features": features}, former, _OF_FEATURES)


def decode_features(data: bytes) -> Finalized:
    if not data:
        return Finalized()
    at = NodeReader(FEATURES, data)
    return Finalized(NodeReader(FEATURES, at.value.get("features")).number(PYLOG_VERSION), at.number("epoch"))


def encode_partition_count(found: PartitionCount) -> bytes:
    return encode_json({"version": 1, "topic_id": found.topic_id, "partitions": found.partitions})


def decode_partition_count(path: str, data: bytes) -> PartitionCount:
    at = NodeReader(path, data)
    return PartitionCount(at.text("topic_id"), at.number("partitions"))


def encode_topic(partitions: Mapping[int, Assignment], former: bytes | None = None) -> bytes:
    """The assigned replicas per partition, the last partition first, as Kafka writes them while they are few."""
    replicas = {str(partition): partitions[partition] for partition in sorted(partitions, reverse=True)}
    return encode_json({"version": 1, "partitions": replicas}, former, _OF_LIST)


def decode_topic(topic: str, data: bytes) -> dict[int, Assignment]:
    at = NodeReader(topic_path(topic), data)
    found = at.typed("partitions", dict)
    if not all(name.isdecimal() for name in found):
        raise at.error("a partition is not a number")
    return {int(name): at.numbers(found[name], f"partition {name}") for name in sorted(found, key=int)}


def encode_state(state: LeaderAndIsr, former: bytes | None = None) -> bytes:
    """The version of the state is that of the node, and not part of its content."""
    known = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": state.isr,
    }
    return encode_json({**known, **dict(state.unknown)} if state.unknown else known, former, _OF_STATE)


def decode_state(tp: TopicPartition, node: Node) -> LeaderAndIsr:
    at = NodeReader(state_path(tp), node.data)
    return LeaderAndIsr(
        leader=at.number("leader"),
        leader_epoch=at.number("leader_epoch"),
        isr=at.numbers(at.value.get("isr"), "isr"),
        controller_epoch=at.number("controller_epoch"),
        version=node.version,
        unknown=() if at.value.keys() <= _OF_STATE else tuple(with_unknown({}, at.value, _OF_STATE).items()),
    )


def encode_config(config: Mapping[str, str], former: bytes | None = None) -> bytes:
    return encode_json({"version": 1, "config": dict(sorted(config.items()))}, former, _OF_CONFIG)


def topic_of_config(path: str) -> str | None:
    """Return the topic whose settings the node has; None for those of brokers."""
    folder, _, name = path.rpartition("/")
    return name if folder == TOPIC_CONFIGS else None


def broker_config_path(broker: str) -> str:
    return f"{BROKER_CONFIGS}/{broker or ALL_BROKERS}"


def group_config_path(group_id: str) -> str:
    """Return the node of a group's settings; a group may have a name that no node can have."""
    return f"{GROUP_CONFIGS}/{quote(group_id, safe='').replace('.', '%2E')}"


def group_of_config(path: str) -> str:
    return unquote(path.rpartition("/")[2])


def user_config_path(username: str) -> str:
    """Return the node of a user's settings, named as Kafka names it, but for names that no path can have."""
    name = quote(username, safe="").replace("~", "%7E")
    return f"{USER_CONFIGS}/{name.replace('.', '%2E') if name in ('.', '..') else name}"


def user_of_config(path: str) -> str:
    return unquote(path.rpartition("/")[2])


def settings_at(path: str, node: Node | None) -> dict[str, str]:
    """Return the settings in a config node; every value as text, whatever JSON type it has."""
    if node is None or not node.data:
        return {}
    at = NodeReader(path, node.data)
    return {key: str(value) for key, value in at.typed("config", dict).items()}


def encode_config_change(config_path: str) -> bytes:
    """A notice that the settings in this node, of a topic or of brokers, have changed."""
    _, _, kind, name = config_path.split("/")
    return encode_json({"version": 1, "entity_type": kind, "entity_name": name})


def decode_config_change(path: str, data: bytes) -> str | None:
    """Return the node whose settings changed, in either of Kafka's forms; None for a notice about clients."""
    at = NodeReader(path, data)
    if "entity_path" in at.value:
        kind, _, name = at.text("entity_path").partition("/")
    else:
        kind, name = at.value.get("entity_type"), at.text("entity_name")
    if kind == "users" and "/" in name:
        return None  # of a client id of the user, which has quotas, and is no user
    return f"/config/{kind}/{name}" if kind in ("topics", "brokers", "groups", "users") else None


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """A list of partitions: for the ISR notices of leaders."""
    return encode_json({"version": 1, "partitions": _named(partitions)})


def decode_partitions(path: str, data: bytes) -> tuple[TopicPartition, ...]:
    return tuple(tp for tp, _ in _rows(path, data))


def encode_election(election: Election) -> bytes:
    """Encode the node as Kafka does; `unclean` only if requested. Readers that ignore it elect preferred replicas."""
    flag = {"unclean": True} if election.is_unclean else {}
    return encode_json({"version": 1, "partitions": _named(election.partitions), **flag})


def decode_election(data: bytes) -> Election:
    at = NodeReader(ELECTION, data)
    return Election(decode_partitions(ELECTION, data), is_unclean=at.value.get("unclean") is True)


def encode_reassignment(plans: Mapping[TopicPartition, Reassignment], former: bytes | None = None) -> bytes:
    known = dict(_rows(REASSIGNMENT, former)) if former is not None else {}
    rows = []
    for tp, plan in plans.items():
        row: dict[str, Any] = {"topic": tp.topic, "partition": tp.partition, "replicas": plan.target}
        if plan.original is not None:
            row["original_replicas"] = plan.original
        rows.append(with_unknown(row, known.get(tp, {}), _OF_PLAN))
    return encode_json({"version": 1, "partitions": rows}, former, _OF_LIST)


def decode_reassignment(data: bytes) -> dict[TopicPartition, Reassignment]:
    at = NodeReader(REASSIGNMENT, data)
    plans = {}
    for tp, row in _rows(REASSIGNMENT, data):
        target = at.numbers(row.get("replicas"), f"replicas of {tp}")
        original = row.get("original_replicas")
        plans[tp] = Reassignment(
            target, None if original is None else at.numbers(original, f"original replicas of {tp}")
        )
    return plans


def _named(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]


def _rows(path: str, data: bytes) -> list[tuple[TopicPartition, dict[str, Any]]]:
    rows = NodeReader(path, data).typed("partitions", list)
    found = []
    for row in rows:
        at = NodeReader(path, row)
        found.append((TopicPartition(at.text("topic"), at.number("partition")), at.value))
    return found
