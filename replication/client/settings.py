"""The settings of topics (those that decide what may be sent, and its own), brokers, producers and consumers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from logstore.config import setting_text
from logstore.errors import InvalidConfigError, did_you_mean
from replication.client.assignors import ASSIGNORS
from replication.client.cluster import UNKNOWN_TOPIC_S, Cluster
from replication.errors import ErrorCode, UnsupportedVersionError, raise_for_code
from replication.protocol.apis import ApiKey

TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
# DescribeConfigs: where a value is from.
_OF_THE_TOPIC, _OF_THE_BROKER, _OF_ALL_BROKERS, _OF_FILE, _OF_THE_GROUP = 1, 2, 3, 4, 8
SOURCES = {
    _OF_THE_TOPIC: "DYNAMIC_TOPIC_CONFIG",
    _OF_THE_BROKER: "DYNAMIC_BROKER_CONFIG",
    _OF_ALL_BROKERS: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    _OF_FILE: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    _OF_THE_GROUP: "DYNAMIC_GROUP_CONFIG",
}
_OWN = {
    TOPIC_RESOURCE: {_OF_THE_TOPIC},
    BROKER_RESOURCE: {_OF_THE_BROKER, _OF_ALL_BROKERS, _OF_FILE},
    GROUP_RESOURCE: {_OF_THE_GROUP},
}
MAX_MESSAGE_BYTES = 1_048_588  # Kafka's default of max.message.bytes

Settings = TypeVar("Settings")
_NO_HINTS: Mapping[str, str] = MappingProxyType({})
# Kafka's names where ours are others, or what to do instead.
_HINTS = {
    "batch_size": "here it is batch_bytes",
    "bootstrap_servers": "the client has them: KafkaClient('HOST:PORT')",
    "buffer_memory": "here it is buffer_bytes",
    "client_id": "the client has it: KafkaClient(…, client_id=…)",
    "client_rack": "here it is rack, of consumers",
    "enable_idempotence": "producers are idempotent with acks='all'",
    "partition_assignment_strategy": "here it is assignor",
    "partitioner_class": "here it is partitioner",
}


# The settings of the classic protocol; with the other one:
_INSTEAD = {
    "assignor": "the coordinator assigns partitions, by group_remote_assignor",
    "session_timeout_ms": "the brokers decide it, by group.consumer.session.timeout.ms",
    "heartbeat_interval_ms": "the brokers decide it, by group.consumer.heartbeat.interval.ms",
}


class ClassicSettings(NamedTuple):
    """The settings that only a member of the classic protocol has, with their defaults."""

    assignor: str = "cooperative-sticky"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a member of a group reads; the names are Kafka's.

    group_protocol: classic, or consumer (KIP-848): the coordinator assigns partitions, by group_remote_assignor
    (uniform or range; None: the coordinator's first one), and decides about session and heartbeats. With classic the
    members divide the partitions by `assignor`, one that all members of the group know: cooperative-sticky, range or
    roundrobin; session_timeout_ms and heartbeat_interval_ms are theirs, too. None: the default of ClassicSettings.

    group_instance_id: a member that comes back within the time of its session gets its partitions again. A member that
    does not poll for max_poll_interval_ms loses its partitions. auto_offset_reset: where to begin without a valid
    offset; none: an error. rack: that of the machine (client.rack), so that brokers may name a near replica to read.
    """

    group_id: str
    group_protocol: Literal["classic", "consumer"] = "classic"
    group_remote_assignor: str | None = None
    assignor: str | None = None
    group_instance_id: str | None = None
    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None
    max_poll_interval_ms: int = 300_000
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    auto_offset_reset: Literal["earliest", "latest", "none"] = "latest"
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    metadata_max_age_ms: int = 300_000
    rack: str = ""

    def __post_init__(self) -> None:
        """Raises: InvalidConfigError."""
        _check_word("group_protocol", self.group_protocol, ("classic", "consumer"))
        _check_word("auto_offset_reset", self.auto_offset_reset, ("earliest", "latest", "none"))
        _check_word("isolation_level", self.isolation_level, ("read_committed", "read_uncommitted"))
        if self.group_protocol == "classic":
            self._check_classic(self.classic)
            return
        for name in ClassicSettings._fields:
            if getattr(self, name) is not None:
                raise InvalidConfigError(
                    f"{name} cannot be set with group_protocol='consumer': {_INSTEAD[name]}", option=name
                )

    @property
    def classic(self) -> ClassicSettings:
        """The settings of a member of the classic protocol."""
        given = {name: getattr(self, name) for name in ClassicSettings._fields}
        return ClassicSettings(**{name: value for name, value in given.items() if value is not None})

    def _check_classic(self, classic: ClassicSettings) -> None:
        _check_word("assignor", classic.assignor, tuple(ASSIGNORS))
        if self.group_remote_assignor is not None:
            raise InvalidConfigError(
                "group_remote_assignor cannot be set with group_protocol='classic': members divide, by assignor",
                option="group_remote_assignor",
            )
        if not 0 < classic.heartbeat_interval_ms < classic.session_timeout_ms:
            raise InvalidConfigError(
                f"heartbeat_interval_ms={classic.heartbeat_interval_ms}: below session_timeout_ms",
                option="heartbeat_interval_ms",
            )


def _check_word(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise InvalidConfigError(f"{name}={given!r}{did_you_mean(given, known)}", option=name)


class TopicSettings(NamedTuple):
    """The largest batch that the topic takes, and whether records need keys."""

    batch_bytes_max: int = MAX_MESSAGE_BYTES
    is_compacted: bool = False


async def topic_settings(cluster: Cluster, topic: str) -> TopicSettings:
    """The settings of a topic; Kafka's defaults where they may not be seen.

    Raises: UnreachableError.
    """
    rows = (await _describe(cluster, [topic], ["max.message.bytes", "cleanup.policy"])).get(topic, ())
    values = {row.name: row.value for row in rows}
    return TopicSettings(
        int(values.get("max.message.bytes") or MAX_MESSAGE_BYTES),
        "compact" in (values.get("cleanup.policy") or "").split(","),
    )


async def topic_overrides(cluster: Cluster, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """The topics' own settings; topics whose settings the user may not describe are left out.

    Raises: UnreachableError.
    """
    return {
        topic: {row.name: row.value for row in rows if row.config_source == _OF_THE_TOPIC}
        for topic, rows in (await _describe(cluster, topics, None)).items()
    }


async def _describe(cluster: Cluster, topics: Sequence[str], keys: Sequence[str] | None) -> dict[str, Sequence[Any]]:
    """The settings of the topics, but of those that may not be seen or are gone.

    A broker may not know a new topic yet: brokers are asked again for some seconds.
    """
    patience = cluster.backoff(UNKNOWN_TOPIC_S)
    while True:
        try:
            answer = await cluster.call_any(ApiKey.DESCRIBE_CONFIGS, _request(TOPIC_RESOURCE, topics, keys))
        except UnsupportedVersionError:
            return {}
        codes = {result.error_code.value for result in answer.results}
        if ErrorCode.UNKNOWN_TOPIC_OR_PARTITION not in codes or patience.is_over:
            seen = (result for result in answer.results if result.error_code.value == ErrorCode.NONE)
            return {result.resource_name: result.configs for result in seen}
        await patience.wait()


def _request(kind: int, names: Iterable[str], keys: Sequence[str] | None) -> dict[str, Any]:
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys} for name in names]
    return {"resources": resources, "include_synonyms": False, "include_documentation": False}


class Setting(NamedTuple):
    """A setting as a broker shows it. `value` is None if it is a secret; `source` is Kafka's word for where it is from.

    `is_own`: it was given for this topic, or to this broker, and is no default.
    """

    value: str | None
    source: str
    is_own: bool
    is_read_only: bool


async def describe_settings(cluster: Cluster, kind: int, names: Sequence[str]) -> dict[str, dict[str, Setting]]:
    """All settings of these topics, groups, or brokers (by their ids), by name; of "", what all brokers were given.

    Raises: KafkaError: one of them is not known; UnreachableError.
    """
    shares = [[name] for name in names] if kind == BROKER_RESOURCE else [names]
    answers = [await _ask_one_that_knows(cluster, (kind, share[0]), _request(kind, share, None)) for share in shares]
    found = {}
    for result in (result for answer in answers for result in answer.results):
        raise_for_code(result, result.error_message or result.resource_name)
        found[result.resource_name] = {row.name: _setting(kind, row) for row in result.configs}
    return found


async def groups_with_settings(cluster: Cluster) -> list[str]:
    """The groups that were given settings. Raises: UnsupportedVersionError: no broker tells; UnreachableError."""
    answer = await cluster.call_informed(ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": [GROUP_RESOURCE]})
    raise_for_code(answer, "groups with settings")
    return sorted(row.resource_name for row in answer.config_resources if row.resource_type == GROUP_RESOURCE)


async def _ask_one_that_knows(cluster: Cluster, resource: tuple[int, str], request: Any) -> Any:
    broker = _speaks_for(*resource)
    if broker is not None:
        return await cluster.call(broker, ApiKey.DESCRIBE_CONFIGS, request)
    return await cluster.call_informed(ApiKey.DESCRIBE_CONFIGS, request)


def _speaks_for(kind: int, name: str) -> int | None:
    """The only broker that answers for this resource: a Kafka's broker refuses what is about another one."""
    return int(name) if kind == BROKER_RESOURCE and name.isdecimal() else None


def _setting(kind: int, row: Any) -> Setting:
    source = SOURCES.get(row.config_source, "UNKNOWN")
    is_own = row.config_source in _OWN[kind]
    return Setting(None if row.is_sensitive else row.value, source, is_own, row.read_only)


async def alter_settings(
    cluster: Cluster,
    resource: tuple[int, str],
    given: Mapping[str, Any],
    deleted: Collection[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set these settings of a topic, a group, a broker or (named "") all brokers, and delete others: all, or nothing.

    All brokers that answer know it then, but for one that takes longer than seconds to learn of it.

    Raises: KafkaError: no such topic, broker or setting, or a value out of range; UnreachableError.
    """
    kind, name = resource
    wanted = {key: setting_text(key, value) for key, value in given.items()}
    configs = [{"name": key, "config_operation": 0, "value": value} for key, value in wanted.items()]
    configs += [{"name": key, "config_operation": 1, "value": None} for key in deleted]
    change = {"resource_type": kind, "resource_name": name, "configs": configs}
    request = {"resources": [change], "validate_only": validate_only}
    broker, api = _speaks_for(kind, name), ApiKey.INCREMENTAL_ALTER_CONFIGS
    asked = cluster.call_any(api, request) if broker is None else cluster.call(broker, api, request)
    (answer,) = (await asked).responses
    raise_for_code(answer, answer.error_message or repr(name))
    if not validate_only:
        await _until_shown(cluster, resource, {**wanted, **dict.fromkeys(deleted)})


async def _until_shown(cluster: Cluster, resource: tuple[int, str], wanted: Mapping[str, str | None]) -> None:
    """Wait, for some seconds, until each broker that answers shows these settings; None: deleted."""
    kind, name = resource
    broker = _speaks_for(kind, name)
    of_brokers = _OF_ALL_BROKERS if broker is None else _OF_THE_BROKER
    source = {TOPIC_RESOURCE: _OF_THE_TOPIC, GROUP_RESOURCE: _OF_THE_GROUP}.get(kind, of_brokers)

    def shows(answer: Any) -> bool:
        (result,) = answer.results
        own = {row.name: row for row in result.configs if row.config_source == source}
        return all(
            own[key].is_sensitive or own[key].value == value if key in own else value is None
            for key, value in wanted.items()
        )

    request = _request(kind, [name], list(wanted))
    await cluster.until_all(ApiKey.DESCRIBE_CONFIGS, request, shows, of=None if broker is None else [broker])


def settings_of(
    kind: type[Settings], given: Mapping[str, Any], what: str, hints: Mapping[str, str] = _NO_HINTS
) -> Settings:
    """These settings of `what` as a `kind`, which is a dataclass; `hints` say what to do instead of others.

    Raises: InvalidConfigError: an unknown name.
    """
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for name in given.keys() - known:
        ours = name.replace(".", "_")
        instead = hints.get(ours) or _HINTS.get(ours)
        hint = f"; {instead}" if instead else did_you_mean(ours, known)
        raise InvalidConfigError(f"unknown setting {name!r} of {what}{hint}", option=name)
    return kind(**given)
