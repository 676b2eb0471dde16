"""BrokerConfig: the settings of one broker, as Kafka names them in server.properties.

Built like `logstore.config.LogConfig`: help and limits stand beside each field, and conf/server.properties is
generated from them. `BrokerConfig.from_properties` refuses unknown keys, with a hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

from logstore.config import INT32_MAX, INT64_MAX, LogConfig, keyed, setting, settings_from
from logstore.errors import InvalidConfigError
from replication.config import listeners, unsupported
from replication.config.listener_settings import OF_BROKERS, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, ListenerSettings
from replication.config.listeners import PROTOCOL_MAP, Listeners
from replication.config.properties import HOUR_MS, without_aliases
from replication.config.rights import RightsSettings
from replication.model.listeners import PORT_MAX, SecurityProtocol

_Part = TypeVar("_Part")

LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"  # Kafka's, as the next
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

_TOPIC_SETTINGS = {f.metadata["key"]: f for f in fields(LogConfig)}


def _topic_default(topic: str, note: str = "", *, default: Any = None) -> Any:
    """The setting of a broker that is the default of a topic's: with its limits and, unless given here, its default."""
    found = _TOPIC_SETTINGS[topic]
    limits = {name: value for name, value in found.metadata.items() if name not in ("key", "help")}
    text = f"Default of the topic setting {topic}{'; ' if note else ''}{note}."
    return setting(found.default if default is None else default, text, topic=topic, is_live=True, **limits)


def _of_groups(default: int, text: str, minimum: int = 1, maximum: int = INT32_MAX) -> Any:
    """The setting of a broker that is the default of a group's."""
    return setting(default, f"{text} Default of the setting of a group.", minimum=minimum, maximum=maximum)


def _least(default: int, key: str, minimum: int = 1, maximum: int = INT32_MAX) -> Any:
    return setting(default, f"Least {key} of a group.", minimum=minimum, maximum=maximum)


def _most(default: int, key: str, minimum: int = 1, maximum: int = INT32_MAX) -> Any:
    return setting(default, f"Largest {key} of a group.", minimum=minimum, maximum=maximum)


class _Given(RightsSettings):
    """The keys that stood in the properties, and those of single listeners. Neither is a setting itself."""

    __slots__ = ("given", "overrides")
    given: frozenset[str]
    overrides: Mapping[str, Mapping[str, str]]  # name of a listener, in small letters -> key -> value


@keyed
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(_Given):
    # ------------------------------------------------------------ identity and network
    broker_id: int = setting(
        0, "Number of this broker; no other broker of the cluster may have it.", minimum=0, maximum=INT32_MAX
    )
    broker_rack: str = setting("", "Rack of this broker; replicas of a partition are spread over racks.")
    replica_selector_class: str = setting(
        LEADER_SELECTOR,
        "Replicas that serve consumers: leaders, or a follower in the consumer's rack (client.rack). Set it on all "
        "brokers.",
        choices=(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    )
    listeners: str = setting(
        "PLAINTEXT://127.0.0.1:9092",
        "Addresses to listen on, NAME://HOST:PORT, separated by commas; port 0 takes a free one. With 0.0.0.0 or [::], "
        "which are every address of the machine, advertised.listeners is needed.",
    )
    advertised_listeners: str = setting("", "Addresses that clients and other brokers use; empty: as listeners.")
    listener_security_protocol_map: str = setting(
        PROTOCOL_MAP, f"NAME:PROTOCOL of each listener: {', '.join(SecurityProtocol.__members__)}."
    )
    inter_broker_listener_name: str = setting("", "Listener through which brokers meet; empty: that of the protocol.")
    security_inter_broker_protocol: str = setting(
        "",
        "Protocol, and thus listener, of brokers among themselves; empty: PLAINTEXT, or the only listener.",
        choices=("", *SecurityProtocol.__members__),
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        OF_BROKERS,
        f"How brokers log in to each other. {OF_BROKERS}: they prove that they read the same coordination store.",
        choices=(OF_BROKERS, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512),
    )
    log_dirs: str = setting("pylog-data", "Directory of the logs (one).")
    coordination: str = setting(
        "",
        "Coordination store of the cluster: sqlite:PATH (brokers of one host) or zookeeper:HOST:PORT/CHROOT. "
        "Empty: a file in log.dirs, for a broker alone. zookeeper.connect works, too.",
    )
    coordination_copy_dir: str = setting(
        "",
        "Directory for a second copy of a SQLite coordination store, on another disk, for this cluster only; the first "
        "copy is always beside the store.",
    )
    coordination_copy_interval_ms: int = setting(
        60_000, "Least time between two copies of a SQLite coordination store, which only a change causes.", minimum=100
    )
    zookeeper_session_timeout_ms: int = setting(
        6000, "Session timeout: a silent broker counts as dead after this time, with SQLite, too.", minimum=500
    )
    metrics_port: int = setting(
        -1, "Port of the Prometheus endpoint; 0: a free one; -1: none.", minimum=-1, maximum=PORT_MAX
    )
    num_io_threads: int = setting(4, "Threads that read and write logs, half of them each.", minimum=1)
    num_recovery_threads_per_data_dir: int = setting(
        1, "Threads that open and recover logs at the start; a slow disk gains from more.", minimum=1
    )
    queued_max_requests: int = setting(500, "Requests in progress; further ones wait in their sockets.", minimum=1)
    queued_max_request_bytes: int = setting(536_870_912, "Bytes of requests above 64 KiB in progress.", minimum=1)
    socket_request_max_bytes: int = setting(104_857_600, "Largest request.", minimum=1, maximum=INT32_MAX)
    socket_send_buffer_bytes: int = setting(
        -1, "SO_SNDBUF of clients; -1: the system decides.", minimum=-1, maximum=INT32_MAX
    )
    socket_receive_buffer_bytes: int = setting(
        -1, "SO_RCVBUF of clients; -1: the system decides.", minimum=-1, maximum=INT32_MAX
    )
    connection_failed_authentication_delay_ms: int = setting(
        100, "How long the answer to a login that failed waits; the connection is closed behind it.", minimum=0
    )
    connections_max_idle_ms: int = setting(600_000, "Idle time after which the broker closes a connection.", minimum=1)
    fetch_max_bytes: int = setting(57_671_680, "Bytes in the answer to one fetch.", minimum=1024, maximum=INT32_MAX)

    # ------------------------------------------------------------ topics
    auto_create_topics_enable: bool = setting(True, "Create a topic when a client first asks for it?")
    num_partitions: int = setting(1, "Partitions of a topic created without a number.", minimum=1)
    default_replication_factor: int = setting(1, "Replicas of a topic created without a number.", minimum=1)
    max_broker_partitions: int = setting(
        20_000,
        "Replicas that a broker may have; topics, partitions and reassignments that would exceed it are refused.",
        minimum=1,
    )
    max_request_partition_size_limit: int = setting(
        2000, "Partitions in the answer to one DescribeTopicPartitions.", minimum=1, maximum=INT32_MAX
    )
    delete_topic_enable: bool = setting(True, "May topics be deleted?")
    produce_base_offset_strict: bool = setting(
        False,
        "Refuse a produced batch whose base offset is not 0, as Kafka does? Older clients of pylog send such batches; "
        "the next release always refuses them.",
    )

    # ------------------------------------------------------------ replication
    num_replica_fetchers: int = setting(1, "Connections of a follower to one leader broker.", minimum=1)
    replica_fetch_max_bytes: int = setting(
        1_048_576, "Bytes per partition of one fetch of a follower.", minimum=1, maximum=INT32_MAX
    )
    replica_fetch_response_max_bytes: int = setting(
        10_485_760, "Bytes of one fetch of a follower.", minimum=1, maximum=INT32_MAX
    )
    replica_fetch_min_bytes: int = setting(1, "Bytes that a leader waits for before it answers a follower.", minimum=0)
    replica_fetch_wait_max_ms: int = setting(
        500, "Time after which a leader answers a follower anyway; without records, up to four times that.", minimum=0
    )
    replica_fetch_backoff_ms: int = setting(1000, "Pause of a follower after a failed fetch.", minimum=0)
    replica_socket_timeout_ms: int = setting(30_000, "How long brokers wait for each other's answers.", minimum=1)
    replica_lag_time_max_ms: int = setting(
        10_000, "A follower that has not caught up for so long leaves the ISR.", minimum=1
    )
    replica_lag_max_messages: int = setting(
        -1, "A follower that is behind by more records leaves the ISR, too; -1: never.", minimum=-1
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5000, "Time between two checkpoints of the high watermarks.", minimum=1
    )

    leader_replication_throttled_rate: int = setting(
        INT64_MAX,
        "Bytes per second to followers that are not in sync, for the leader.replication.throttled.replicas of topics.",
        minimum=1,
        is_live=True,
    )
    follower_replication_throttled_rate: int = setting(
        INT64_MAX,
        "Bytes per second from leaders, for the follower.replication.throttled.replicas that are not in sync.",
        minimum=1,
        is_live=True,
    )

    # ------------------------------------------------------------ controller
    controlled_shutdown_enable: bool = setting(True, "Hand leadership over before stopping?")
    controlled_shutdown_max_retries: int = setting(3, "Tries to hand leadership over.", minimum=1)
    controlled_shutdown_retry_backoff_ms: int = setting(5000, "Pause between tries to hand over.", minimum=0)
    auto_leader_rebalance_enable: bool = setting(True, "Move leadership back to preferred replicas?")
    leader_imbalance_check_interval_seconds: int = setting(300, "Time between two checks of the leaders.", minimum=1)
    leader_imbalance_per_broker_percentage: int = setting(
        10, "Share of a broker's preferred leaderships that may be elsewhere.", minimum=0, maximum=100
    )

    # ------------------------------------------------------------ groups
    group_initial_rebalance_delay_ms: int = setting(3000, "How long a new group waits for more members.", minimum=0)
    group_min_session_timeout_ms: int = setting(6000, "Shortest session timeout of a member.", minimum=1)
    group_max_session_timeout_ms: int = setting(1_800_000, "Longest session timeout of a member.", minimum=1)
    group_max_size: int = setting(INT32_MAX, "Members of one group.", minimum=1, maximum=INT32_MAX)
    group_consumer_heartbeat_interval_ms: int = _of_groups(
        5000, "How often members of the consumer protocol send heartbeats."
    )
    group_consumer_min_heartbeat_interval_ms: int = _least(5000, "consumer.heartbeat.interval.ms")
    group_consumer_max_heartbeat_interval_ms: int = _most(15_000, "consumer.heartbeat.interval.ms")
    group_consumer_session_timeout_ms: int = _of_groups(
        45_000, "After how long a silence a member of the consumer protocol is expelled."
    )
    group_consumer_min_session_timeout_ms: int = _least(45_000, "consumer.session.timeout.ms")
    group_consumer_max_session_timeout_ms: int = _most(60_000, "consumer.session.timeout.ms")
    group_consumer_max_size: int = setting(
        INT32_MAX, "Members of one group of the consumer protocol.", minimum=1, maximum=INT32_MAX
    )
    group_consumer_assignors: str = setting(
        "uniform,range",
        "Assignors that groups of the consumer protocol may ask for; the first one is the default.",
        choices=("uniform,range", "range,uniform", "uniform", "range"),
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "Which groups with members change their protocol: a classic one that a member of the consumer protocol joins "
        "(upgrade), one of the consumer protocol whose last such member leaves (downgrade), both or none.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    group_share_heartbeat_interval_ms: int = _of_groups(5000, "How often members of share groups send heartbeats.")
    group_share_min_heartbeat_interval_ms: int = _least(5000, "share.heartbeat.interval.ms")
    group_share_max_heartbeat_interval_ms: int = _most(15_000, "share.heartbeat.interval.ms")
    group_share_session_timeout_ms: int = _of_groups(
        45_000, "After how long a silence a member of a share group is expelled."
    )
    group_share_min_session_timeout_ms: int = _least(45_000, "share.session.timeout.ms")
    group_share_max_session_timeout_ms: int = _most(60_000, "share.session.timeout.ms")
    group_share_max_size: int = setting(200, "Members of one share group.", minimum=1, maximum=1000)
    group_share_assignors: str = setting("simple", "Assignor of share groups.", choices=("simple",))
    group_share_record_lock_duration_ms: int = _of_groups(
        30_000, "How long a member of a share group has a record for itself.", 1000, HOUR_MS
    )
    group_share_min_record_lock_duration_ms: int = _least(15_000, "share.record.lock.duration.ms", 1000, 30_000)
    group_share_max_record_lock_duration_ms: int = _most(60_000, "share.record.lock.duration.ms", 30_000, HOUR_MS)
    group_share_delivery_count_limit: int = _of_groups(
        5, "How often a share group is given a record before the record is given up.", 2, 10
    )
    group_share_min_delivery_count_limit: int = _least(2, "share.delivery.count.limit", 2, 5)
    group_share_max_delivery_count_limit: int = _most(10, "share.delivery.count.limit", 5, 25)
    group_share_partition_max_record_locks: int = _of_groups(
        2000, "Records of a partition that the members of a share group have at once.", 100, 10_000
    )
    group_share_min_partition_max_record_locks: int = _least(100, "share.partition.max.record.locks", 100, 2000)
    group_share_max_partition_max_record_locks: int = _most(4000, "share.partition.max.record.locks", 2000, 10_000)
    errors_deadletterqueue_auto_create_topics_enable: bool = setting(
        False, "Create the topic for dead letters of a share group when the first is written?"
    )
    errors_deadletterqueue_topic_name_prefix: str = setting(
        "dlq.", "How the name of a topic for dead letters of share groups begins; empty: any name is allowed."
    )
    offset_metadata_max_bytes: int = setting(4096, "Bytes of metadata beside a committed offset.", minimum=0)
    offsets_commit_timeout_ms: int = setting(5000, "How long an offset commit waits for the ISR.", minimum=1)
    offsets_retention_minutes: int = setting(10_080, "How long an empty group's offsets are kept.", minimum=1)
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Time between two searches for expired offsets.", minimum=1
    )
    offsets_topic_num_partitions: int = setting(50, "Partitions of __consumer_offsets when it is created.", minimum=1)
    offsets_topic_replication_factor: int = setting(
        3, "Replicas of __consumer_offsets (fewer if there are fewer brokers).", minimum=1
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600, "segment.bytes of __consumer_offsets.", minimum=1, maximum=INT32_MAX
    )

    # ------------------------------------------------------------ transactions
    transaction_max_timeout_ms: int = setting(
        900_000, "Longest timeout of a transaction.", minimum=1, maximum=INT32_MAX
    )
    transactional_id_expiration_ms: int = setting(
        7 * 24 * HOUR_MS, "How long an unused transactional id stays.", minimum=1
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, "Time between two searches for transactions that are older than their timeout.", minimum=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        HOUR_MS, "Time between two searches for expired transactional ids.", minimum=1
    )
    transaction_partition_verification_enable: bool = setting(
        True, "Ask the coordinator before a partition accepts the first batch of a transaction?", is_live=True
    )
    transaction_two_phase_commit_enable: bool = setting(
        False,
        "Serve transactions that have no timeout (KIP-939)? Exactly-once writes from Spark then outlast any outage.",
    )
    transaction_state_log_num_partitions: int = setting(
        50, "Partitions of __transaction_state when it is created.", minimum=1
    )
    transaction_state_log_replication_factor: int = setting(
        3, "Replicas of __transaction_state (fewer if there are fewer brokers).", minimum=1
    )
    transaction_state_log_min_isr: int = setting(
        2, "min.insync.replicas of __transaction_state (at most its replicas).", minimum=1
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600, "segment.bytes of __transaction_state.", minimum=1, maximum=INT32_MAX
    )

    # ------------------------------------------------------------ share groups
    group_share_max_share_sessions: int = setting(
        2000, "Share sessions of this broker; a member that would open one more waits.", minimum=1, maximum=INT32_MAX
    )
    share_coordinator_state_topic_num_partitions: int = setting(
        50, "Partitions of __share_group_state when it is created.", minimum=1
    )
    share_coordinator_state_topic_replication_factor: int = setting(
        3, "Replicas of __share_group_state (fewer if there are fewer brokers).", minimum=1
    )
    share_coordinator_state_topic_min_isr: int = setting(
        2, "min.insync.replicas of __share_group_state (at most its replicas).", minimum=1
    )
    share_coordinator_state_topic_segment_bytes: int = setting(
        104_857_600, "segment.bytes of __share_group_state.", minimum=1, maximum=INT32_MAX
    )
    share_coordinator_state_topic_prune_interval_ms: int = setting(
        300_000, "Time between two deletions of records of __share_group_state that say nothing more.", minimum=1
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = setting(
        300_000, "Age from which the state of a shared partition is written again, so that the log can end.", minimum=1
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        500, "Updates of a shared partition between two snapshots of its state.", minimum=0, maximum=500
    )
    share_coordinator_write_timeout_ms: int = setting(
        5000, "How long a write of the state of a shared partition waits for the ISR.", minimum=1, maximum=INT32_MAX
    )

    # ------------------------------------------------------------ logs: defaults of topics, and maintenance
    log_retention_ms: int = _topic_default(
        "retention.ms", "also as log.retention.minutes or .hours", default=168 * HOUR_MS
    )
    log_retention_bytes: int = _topic_default("retention.bytes")
    log_retention_check_interval_ms: int = setting(300_000, "Time between two checks of retention.", minimum=1)
    log_cleaner_enable: bool = setting(True, "Compact the topics with cleanup.policy=compact?")
    log_cleaner_backoff_ms: int = setting(
        15_000, "Pause between two searches for topics to compact.", minimum=0, is_live=True
    )
    log_scrub_interval_ms: int = setting(
        7 * 24 * HOUR_MS,
        "Every byte of every log is read and checked once in this time, in the background; 0 or -1: never.",
        minimum=-1,
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "Time between two checkpoints of the recovery points, each after an fsync of the logs.", minimum=1
    )
    log_segment_bytes: int = _topic_default("segment.bytes")
    log_roll_ms: int = _topic_default("segment.ms", "also as log.roll.hours")
    log_roll_jitter_ms: int = _topic_default("segment.jitter.ms")
    log_segment_delete_delay_ms: int = _topic_default("file.delete.delay.ms")
    log_index_interval_bytes: int = _topic_default("index.interval.bytes")
    log_index_size_max_bytes: int = _topic_default("segment.index.bytes")
    log_flush_interval_messages: int = _topic_default("flush.messages")
    log_flush_interval_ms: int = _topic_default("flush.ms")
    log_cleanup_policy: frozenset[str] = _topic_default("cleanup.policy")
    log_cleaner_delete_retention_ms: int = _topic_default("delete.retention.ms")
    log_cleaner_min_cleanable_ratio: float = _topic_default("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _topic_default("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _topic_default("max.compaction.lag.ms")
    log_message_timestamp_type: str = _topic_default("message.timestamp.type")
    log_message_timestamp_before_max_ms: int = _topic_default("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = _topic_default("message.timestamp.after.max.ms")
    compression_type: str = _topic_default("compression.type")
    message_max_bytes: int = _topic_default("max.message.bytes")
    min_insync_replicas: int = _topic_default("min.insync.replicas")
    unclean_leader_election_enable: bool = _topic_default("unclean.leader.election.enable")
    producer_id_expiration_ms: int = _topic_default("producer.id.expiration.ms")

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> Self:
        """Return the settings; keys and values are those of server.properties.

        Raises: InvalidConfigError: an unknown key, or a value that the setting does not allow.
        """
        given, overrides = listeners.split_overrides(without_aliases(properties))
        known = {f.metadata["key"]: f for f in fields(cls)}
        names = (*given, *(key for each in overrides.values() for key in each))
        if (line := unsupported.refusal(key for key in names if key not in known)) is not None:
            raise InvalidConfigError(line)
        config = settings_from(cls(), given, "broker setting")
        object.__setattr__(config, "given", frozenset(given))
        object.__setattr__(config, "overrides", overrides)
        config._check_listeners()
        config.check_rights()
        if "," in config.log_dirs or not config.log_dirs:
            raise InvalidConfigError(f"log.dirs={config.log_dirs!r}: one directory", key="log.dirs")
        return config

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", frozenset())
        object.__setattr__(self, "overrides", {})

    @property
    def has_nearest_reads(self) -> bool:
        return self.replica_selector_class == RACK_AWARE_SELECTOR

    @property
    def listening(self) -> Listeners:
        """Where this broker listens. Raises: InvalidConfigError."""
        return listeners.listeners_of(
            self.listeners,
            self.advertised_listeners,
            self.listener_security_protocol_map,
            self.inter_broker_listener_name,
            self.security_inter_broker_protocol,
        )

    def of_listener(self, name: str) -> ListenerSettings:
        """Return the settings of TLS and SASL as this listener has them. Raises: InvalidConfigError."""
        own = ListenerSettings(**{f.name: getattr(self, f.name) for f in fields(ListenerSettings)})
        return listeners.overridden(own, name.lower(), self.overrides.get(name.lower(), {}))

    def _check_listeners(self) -> None:
        names = {each.name.lower(): each.name for each in self.listening.bound}
        for name, given in self.overrides.items():
            if name not in names:
                key = f"{listeners.PREFIX}{name}.{next(iter(given))}"
                raise InvalidConfigError(
                    f"{key}: there is no listener of this name; there are {', '.join(names)}, in small letters here",
                    key=key,
                )
            self.of_listener(name)

    def part(self, kind: type[_Part], **others: Any) -> _Part:
        """Return a `kind` of settings: those of its fields that are settings of the broker, and `others`."""
        own = {f.name for f in fields(self)}
        return kind(**{f.name: getattr(self, f.name) for f in fields(kind) if f.name in own}, **others)  # type: ignore[arg-type]

    def log_config(self, overrides: Mapping[str, Any]) -> LogConfig:
        """Return the settings of a topic with these overrides. Raises: InvalidConfigError."""
        defaults = {f.metadata["topic"]: getattr(self, f.name) for f in fields(self) if "topic" in f.metadata}
        return LogConfig.from_properties({**defaults, **overrides})
