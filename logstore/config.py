"""LogConfig: the settings of one topic, as Kafka names them.

One frozen field per setting, named as Kafka's key with `_` for a dot. Unit and help stand beside the field, so that
the checks, the `--help` pages and docs/configuration.md come from one place. Kafka's limits are kept; an unknown key or
a bad value is an InvalidConfigError that says what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import Field as DataclassField
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from logstore.errors import InvalidConfigError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

Part = Literal["key", "value"]  # of a record
Isolation = Literal["read_committed", "read_uncommitted"]  # of readers

COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
CLEANUP_POLICIES = frozenset({"delete", "compact"})
# Confluent's, by their names without Strategy: which subject has the schema of a topic's keys or values.
STRATEGY = "Strategy"
SUBJECT_NAME_STRATEGIES = ("TopicName", "RecordName", "TopicRecordName")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_REPLICA = re.compile(r"\*|[0-9]+:[0-9]+")

_Class = TypeVar("_Class", bound="DataclassInstance")
_Value = TypeVar("_Value")


def setting(default: Any, help_text: str, **bounds: Any) -> Any:
    """A field of a settings class, with metadata for `settings_from`. One that `is_sensitive` is shown in no repr."""
    return field(default=default, metadata={"help": help_text, **bounds}, repr=not bounds.get("is_sensitive", False))


def keyed(cls: type[_Class]) -> type[_Class]:
    """Note at each setting of the class its key, Kafka's name: that of the field, with dots."""
    for each in fields(cls):
        each.metadata = MappingProxyType({"key": each.name.replace("_", "."), **each.metadata})
    return cls


class Listed(frozenset[str]):
    """The values of a list setting, each once. Their order says nothing, and is kept for who reads them again."""

    order: tuple[str, ...]

    def __new__(cls, values: Iterable[str]) -> Self:
        order = tuple(dict.fromkeys(values))
        made = super().__new__(cls, order)
        made.order = order
        return made


@keyed
@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of one topic.

    A stand-alone store keeps everything by default: retention_ms is -1 here and 168 hours in a broker.
    """

    cleanup_policy: frozenset[str] = setting(
        frozenset({"delete"}),
        "Old records: delete whole segments, compact to the last record of each key, or both. Empty: all stay.",
        members=CLEANUP_POLICIES,
    )
    compression_type: str = setting(
        "producer",
        "Codec of stored batches; 'producer' keeps what the writer chose (none, unless it asks for one).",
        choices=COMPRESSION_TYPES,
    )
    delete_retention_ms: int = setting(86_400_000, "How long compaction keeps tombstones.", minimum=0)
    errors_deadletterqueue_group_enable: bool = setting(
        False, "May brokers write dead letters of share groups to this topic?"
    )
    file_delete_delay_ms: int = setting(60_000, "How long a deleted file stays for open readers.", minimum=0)
    flush_messages: int = setting(INT64_MAX, "fsync after this many records; 1 makes every append durable.", minimum=1)
    flush_ms: int = setting(
        INT64_MAX,
        "fsync at an append when the last fsync is this long ago; brokers also without an append, up to a second "
        "later.",
        minimum=0,
    )
    follower_replication_throttled_replicas: frozenset[str] = setting(
        frozenset(),
        "Followers that copy no faster than the follower.replication.throttled.rate of their brokers.",
        each=_REPLICA,
        form="partition:broker, separated by commas; or * for all",
    )
    index_interval_bytes: int = setting(4096, "Bytes of log between two index entries.", minimum=0, maximum=INT32_MAX)
    key_schema_validation: bool = setting(
        False,
        "Refuse records whose key is not null and bears no id of a schema of the topic's subject of keys.",
        alias="confluent.key.schema.validation",
    )
    key_subject_name_strategy: str = setting(
        "TopicName",
        "The subject of a key's schema, for key.schema.validation.",
        choices=SUBJECT_NAME_STRATEGIES,
        suffix=STRATEGY,
        alias="confluent.key.subject.name.strategy",
    )
    leader_replication_throttled_replicas: frozenset[str] = setting(
        frozenset(),
        "Leaders from which followers copy no faster than the leader.replication.throttled.rate of their brokers.",
        each=_REPLICA,
        form="partition:broker, separated by commas; or * for all",
    )
    max_message_bytes: int = setting(1_048_588, "Largest batch, as stored.", minimum=0, maximum=INT32_MAX)
    message_timestamp_after_max_ms: int = setting(
        INT64_MAX, "Records dated further into the future than this are refused (CreateTime only).", minimum=0
    )
    message_timestamp_before_max_ms: int = setting(
        INT64_MAX, "Records dated further into the past than this are refused (CreateTime only).", minimum=0
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Timestamp of a record: the writer's (CreateTime) or the time of the append (LogAppendTime).",
        choices=TIMESTAMP_TYPES,
    )
    max_compaction_lag_ms: int = setting(
        INT64_MAX,
        "Compact at the latest when a record waits this long, whatever min.cleanable.dirty.ratio says.",
        minimum=1,
    )
    min_compaction_lag_ms: int = setting(0, "How long a record stays before compaction may remove it.", minimum=0)
    min_cleanable_dirty_ratio: float = setting(
        0.5, "Compact once this part of the log is dirty.", minimum=0.0, maximum=1.0
    )
    min_insync_replicas: int = setting(1, "In-sync replicas that acks=all needs.", minimum=1, maximum=INT32_MAX)
    remote_storage_enable: bool = setting(
        False, "Retention and compaction wait until segments are tiered, by `pylog jobs tiering`."
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, "How long a log remembers a producer that is idle and has no open transaction.", minimum=1
    )
    retention_bytes: int = setting(-1, "Delete old segments of a partition above this size; -1: never.", minimum=-1)
    retention_ms: int = setting(-1, "Delete segments older than this; -1: never.", minimum=-1)
    segment_bytes: int = setting(1_073_741_824, "A segment file is closed at this size.", minimum=14, maximum=INT32_MAX)
    segment_index_bytes: int = setting(
        10_485_760, "A segment is closed when its index has this size.", minimum=12, maximum=INT32_MAX
    )
    segment_jitter_ms: int = setting(
        0, "Random time, below this and below segment.ms, by which a segment is closed earlier.", minimum=0
    )
    segment_ms: int = setting(604_800_000, "A segment is closed at this age, even if it is not full.", minimum=1)
    unclean_leader_election_enable: bool = setting(
        False, "May a replica that is not in sync become leader (data may be lost)?"
    )
    value_schema_validation: bool = setting(
        False,
        "Refuse records whose value is not null and bears no id of a schema of the topic's subject of values.",
        alias="confluent.value.schema.validation",
    )
    value_subject_name_strategy: str = setting(
        "TopicName",
        "The subject of a value's schema, for value.schema.validation.",
        choices=SUBJECT_NAME_STRATEGIES,
        suffix=STRATEGY,
        alias="confluent.value.subject.name.strategy",
    )

    def __repr__(self) -> str:
        """The settings that differ from the defaults."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return f"LogConfig({', '.join(f'{name}={format_value(value)}' for name, value in own.items())})"

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that may be appended, in bytes, header included."""
        return min(self.max_message_bytes, self.segment_bytes)

    @property
    def is_compacted(self) -> bool:
        """True if only the last record of each key must be kept: offsets may have no record; else a gap is damage."""
        return "compact" in self.cleanup_policy

    @property
    def bounds_times(self) -> bool:
        """True if the timestamps of appended records may not be any."""
        before_ms, after_ms = self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms
        return self.message_timestamp_type == "CreateTime" and not before_ms == after_ms == INT64_MAX

    def timestamps_at(self, now_ms: int) -> range | None:
        """The timestamps that appended records may have now; None: any."""
        if not self.bounds_times:
            return None
        return range(now_ms - self.message_timestamp_before_max_ms, now_ms + self.message_timestamp_after_max_ms + 1)

    @property
    def validates_schemas(self) -> bool:
        """True if each value, or key, must bear the id of a registered schema."""
        return self.value_schema_validation or self.key_schema_validation

    @property
    def validated_parts(self) -> tuple[tuple[Part, str], ...]:
        """The parts of a record that must bear the id of a schema, each with the strategy that names its subject."""
        asked: tuple[tuple[bool, Part, str], ...] = (
            (self.value_schema_validation, "value", self.value_subject_name_strategy),
            (self.key_schema_validation, "key", self.key_subject_name_strategy),
        )
        return tuple((part, strategy) for is_asked, part, strategy in asked if is_asked)

    @property
    def segment_ms_max(self) -> int:
        """The age at which a segment is closed: only then may it be compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def expires(self) -> bool:
        return self.is_compacted or self.retention_ms >= 0 or self.retention_bytes >= 0

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> Self:
        """Return the defaults with these settings, keys and values as Kafka writes them.

        Raises: InvalidConfigError: an unknown key, or a value that the setting does not allow.
        """
        return settings_from(cls(), by_own_names(properties), "topic setting")

    def check(self) -> None:
        """Raise InvalidConfigError if settings contradict each other."""
        low, high = self.min_compaction_lag_ms, self.max_compaction_lag_ms
        if low > high:
            raise InvalidConfigError(
                f"min.compaction.lag.ms={low} is above max.compaction.lag.ms={high}: compaction would have to remove "
                "a record that it may not remove yet; lower the one, or raise the other",
                key="min.compaction.lag.ms",
            )

    def to_properties(self) -> dict[str, str]:
        return dict(sorted((f.metadata["key"], format_value(getattr(self, f.name))) for f in fields(self)))


_ALIASES: Mapping[str, str] = {
    f.metadata["alias"]: f.metadata["key"] for f in fields(LogConfig) if "alias" in f.metadata
}


def own_name(key: str) -> str:
    """Return the key of a topic setting that may be named as Confluent's brokers name it."""
    return _ALIASES.get(key, key)


def by_own_names(properties: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return topic settings by their own keys. Raises: InvalidConfigError: one is given by both of its names."""
    found: dict[str, _Value] = {}
    for key, value in properties.items():
        if (own := own_name(key)) in found:
            raise InvalidConfigError(f"{own} is given twice: {key} is another name of it", key=key)
        found[own] = value
    return found


def settings_from(base: _Class, properties: Mapping[str, Any], kind: str) -> _Class:
    """Return `base`, whose fields are made by `setting`, with these settings, checked.

    Raises: InvalidConfigError: a key that is no `kind`, or a value that the setting does not allow.
    """
    known = {f.metadata["key"]: f for f in fields(base)}
    values = {}
    for key, text in properties.items():
        if key not in known:
            raise InvalidConfigError(f"unknown {kind} {key!r}{did_you_mean(key, known)}", key=key)
        values[known[key].name] = _parse(known[key], text)
    return replace(base, **values)


def canonical_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings as they are stored: checked, as text, sorted by key."""
    config = LogConfig.from_properties(properties).to_properties()
    return {key: config[key] for key in sorted(by_own_names(properties))}


def without_class(value: str, suffix: str) -> str:
    """Return a value that may be given as the name of a Java class, with this suffix, too."""
    return value.rpartition(".")[2].removesuffix(suffix)


def _parse(setting: DataclassField[Any], value: Any) -> Any:
    """`value` (text, or already of the right type) as the field's type, within its bounds."""
    key, default = setting.metadata["key"], setting.default
    text = setting_text(key, value).strip()
    try:
        parsed: Any = _convert(text, default)
    except ValueError:
        kind = {bool: "true or false", int: "a whole number", float: "a number"}.get(type(default), "text")
        raise InvalidConfigError(f"{key}={text!r}: this setting takes {kind}", key=key, value=text) from None
    if "suffix" in setting.metadata:
        parsed = without_class(parsed, setting.metadata["suffix"])
    _check(setting, parsed, text)
    return parsed


def _convert(text: str, default: Any) -> Any:
    match default:
        case bool():
            if text.lower() not in ("true", "false"):
                raise ValueError(text)
            return text.lower() == "true"
        case int():
            return int(text)
        case float():
            return float(text)
        case frozenset():
            return Listed(part.strip() for part in text.split(",") if part.strip())
        case _:
            return text


def _check(setting: DataclassField[Any], value: Any, text: str) -> None:
    rule, key = setting.metadata, setting.metadata["key"]
    if "choices" in rule and value not in rule["choices"]:
        raise InvalidConfigError(
            f"{key}={text!r}: one of {', '.join(filter(None, rule['choices']))}", key=key, value=text
        )
    if "members" in rule and not value <= rule["members"]:
        allowed = ", ".join(sorted(rule["members"]))
        raise InvalidConfigError(f"{key}={text!r}: any of {allowed}, separated by commas", key=key, value=text)
    if "each" in rule and not all(rule["each"].fullmatch(part) for part in value):
        raise InvalidConfigError(f"{key}={text!r}: {rule['form']}", key=key, value=text)
    low, high = rule.get("minimum"), rule.get("maximum", INT64_MAX)
    if low is not None and not low <= value <= high:
        raise InvalidConfigError(f"{key}={text}: must be between {low} and {high}", key=key, value=text)


def names_replica(listed: frozenset[str], partition: int, broker: int) -> bool:
    """Return whether a list of throttled replicas has this one."""
    return bool(listed) and ("*" in listed or f"{partition}:{broker}" in listed)


def setting_text(key: str, value: Any) -> str:
    """Return a setting's value as Kafka writes it; a timedelta as milliseconds.

    Raises: InvalidConfigError: a timedelta, and the setting is no length of time.
    """
    if isinstance(value, timedelta) and not key.endswith(".ms"):
        raise InvalidConfigError(f"{key}={value}: only settings whose names end in .ms take a timedelta", key=key)
    return format_value(value)


def format_value(value: Any) -> str:
    match value:
        case timedelta():
            return str(value // timedelta(milliseconds=1))
        case bool():
            return "true" if value else "false"
        case Listed():
            return ",".join(value.order)
        case frozenset() | set():
            return ",".join(sorted(value))
        case list() | tuple():
            return ",".join(value)
        case _:
            return str(value)
