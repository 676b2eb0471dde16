"""The settings of groups, as Kafka names them: each with its default, and bounds, from the settings of the broker.

`GroupConfig` has the values of one group, `GroupConfigs` those of all groups that this broker knows of.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, fields, replace
from typing import Any

from logstore.config import INT32_MAX, keyed, setting, settings_from
from logstore.errors import InvalidConfigError, did_you_mean
from replication.config.broker import BrokerConfig

BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"\+?P(?:(?P<days>\d{1,9})D)?(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,12})(?:\.(?P<fraction>\d{1,9}))?S)?)?",
    re.IGNORECASE,
)
_MS_OF = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}
_ABSENT: tuple[tuple[str, str], ...] = (
    ("targets are made at once, for all that came together", "consumer.assignment. share.assignment."),
    ("assignors run where the group is kept", "consumer.assignor. share.assignor."),
    ("streams groups (KIP-1071) are not served", "streams."),
)


@keyed
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The settings of one group. Those of another type than the group's are of no use to it."""

    consumer_heartbeat_interval_ms: int = setting(
        5000, "How often members of the consumer protocol send heartbeats.", minimum=1, maximum=INT32_MAX
    )
    consumer_session_timeout_ms: int = setting(
        45_000, "After how long a silence a member of the consumer protocol is expelled.", minimum=1, maximum=INT32_MAX
    )
    errors_deadletterqueue_copy_record_enable: bool = setting(
        False, "Do the dead letters of a share group have key and value of their records, beside the headers?"
    )
    errors_deadletterqueue_topic_name: str = setting(
        "", "The topic for dead letters of records that a share group gives up; empty: it has none."
    )
    share_auto_offset_reset: str = setting(
        "latest",
        "Where a share group begins in a partition: earliest, latest, or by_duration:P… for records that are younger "
        "than this (ISO 8601).",
    )
    share_delivery_count_limit: int = setting(
        5, "How often the group is given a record before the record is given up.", minimum=2, maximum=INT32_MAX
    )
    share_heartbeat_interval_ms: int = setting(
        5000, "How often members of a share group send heartbeats.", minimum=1, maximum=INT32_MAX
    )
    share_isolation_level: str = setting(
        "read_uncommitted",
        "Whether a share group is given records of transactions that are open or were aborted.",
        choices=("read_committed", "read_uncommitted"),
    )
    share_partition_max_record_locks: int = setting(
        2000, "Records of a partition that the members have at once.", minimum=100, maximum=INT32_MAX
    )
    share_record_lock_duration_ms: int = setting(
        30_000, "How long a member has a record for itself.", minimum=1000, maximum=INT32_MAX
    )
    share_renew_acknowledge_enable: bool = setting(True, "May members hold a record for longer, by a renewal?")
    share_session_timeout_ms: int = setting(
        45_000, "After how long a silence a member of a share group is expelled.", minimum=1, maximum=INT32_MAX
    )

    def __post_init__(self) -> None:
        """Raises: InvalidConfigError."""
        _ = self.reset_ms
        if (topic := self.errors_deadletterqueue_topic_name).startswith("__"):
            key = "errors.deadletterqueue.topic.name"
            raise InvalidConfigError(f"{key}={topic!r}: must not begin with __", key=key, value=topic)

    @property
    def reset_ms(self) -> int | None:
        """How old the first record may be with by_duration; None: share.auto.offset.reset is earliest or latest."""
        value = self.share_auto_offset_reset
        if value in ("earliest", "latest"):
            return None
        found = _DURATION.fullmatch(value.removeprefix(BY_DURATION)) if value.startswith(BY_DURATION) else None
        if found is None or not any(found.groupdict().values()):
            raise InvalidConfigError(
                f"share.auto.offset.reset={value!r}: earliest, latest, or by_duration: and a duration such as PT1H30M",
                key="share.auto.offset.reset",
                value=value,
            )
        whole_ms = sum(int(found[unit] or 0) * factor for unit, factor in _MS_OF.items())
        return whole_ms + int((found["fraction"] or "0").ljust(9, "0")[:3])


SETTINGS_OF_GROUPS: Mapping[str, Field[Any]] = {f.metadata["key"]: f for f in fields(GroupConfig)}
_OF_BROKER = {f.name: f for f in fields(BrokerConfig)}


class GroupConfigs:
    """`default` is that of groups without settings. Belongs to the event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises: InvalidConfigError: a default of the broker's is out of the bounds that it gives to groups."""
        self._config = config
        self._given: dict[str, Mapping[str, str]] = {}
        self._known: dict[str, GroupConfig] = {}
        own = {
            each.name: getattr(config, broker.name)
            for each in SETTINGS_OF_GROUPS.values()
            if (broker := broker_setting(each)) is not None
        }
        self.default = replace(GroupConfig(), **own)
        self._check(self.default, dict.fromkeys(SETTINGS_OF_GROUPS, ""))

    def of(self, group_id: str) -> GroupConfig:
        """Return the settings of a group, whether or not there is such a group."""
        return self._known.get(group_id, self.default)

    def given(self, group_id: str) -> Mapping[str, str]:
        """Return the settings that the group was given, as text."""
        return self._given.get(group_id, {})

    def names(self) -> list[str]:
        """Return the groups that were given settings."""
        return sorted(self._given)

    def check(self, given: Mapping[str, str]) -> None:
        """Raises: InvalidConfigError: not a setting, or a value that this broker does not allow."""
        for key in given.keys() - SETTINGS_OF_GROUPS.keys():
            why = next((why for why, names in _ABSENT if key.startswith(tuple(names.split()))), None)
            hint = f": {why}" if why else did_you_mean(key, SETTINGS_OF_GROUPS)
            raise InvalidConfigError(f"unknown group setting {key!r}{hint}", key=key)
        self._check(settings_from(self.default, given, "group setting"), given)

    def change(self, group_id: str, given: Mapping[str, str]) -> None:
        """Have what the tree has of the group, each value within the bounds of this broker.

        Raises: InvalidConfigError: something else than `check` allowed is in the tree; the group keeps what it had.
        """
        if not given:
            self._given.pop(group_id, None)
            self._known.pop(group_id, None)
            return
        found = settings_from(self.default, given, "group setting")
        within = {f.name: self._clamped(f, getattr(found, f.name)) for f in SETTINGS_OF_GROUPS.values()}
        self._given[group_id], self._known[group_id] = given, replace(found, **within)

    def keep(self, names: Collection[str]) -> None:
        """Forget all groups but these."""
        for name in self._given.keys() - set(names):
            self.change(name, {})

    def _clamped(self, each: Field[Any], value: Any) -> Any:
        bounds = bounds_of(each)
        if bounds is None:
            return value
        low, high = (getattr(self._config, f.name) for f in bounds)
        return min(max(value, low), high)

    def _check(self, found: GroupConfig, given: Mapping[str, str]) -> None:
        """Raises: InvalidConfigError: a given value is out of bounds, or a session is too short."""
        for key in given.keys() & SETTINGS_OF_GROUPS.keys():
            each = SETTINGS_OF_GROUPS[key]
            bounds = bounds_of(each)
            value = getattr(found, each.name)
            if bounds is not None and self._clamped(each, value) != value:
                said = " and ".join(f"{getattr(self._config, f.name)} ({f.metadata['key']})" for f in bounds)
                raise InvalidConfigError(f"{key}={value}: must be between {said}", key=key)
        for kind in ("consumer", "share"):
            session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            is_given = session in given or heartbeat in given
            values = (getattr(found, key.replace(".", "_")) for key in (session, heartbeat))
            if is_given and next(values) <= next(values):
                raise InvalidConfigError(f"{session} must be greater than {heartbeat}", key=session)


def broker_setting(each: Field[Any]) -> Field[Any] | None:
    """Return the setting of a broker that is the default of a group's; None: it has none."""
    return _OF_BROKER.get(f"group_{each.name}")


def bounds_of(each: Field[Any]) -> tuple[Field[Any], Field[Any]] | None:
    """Return the settings of a broker that bound a group's; None: it has no such bounds."""
    kind, _, rest = each.name.partition("_")
    low, high = (_OF_BROKER.get(f"group_{kind}_{end}_{rest}") for end in ("min", "max"))
    return None if low is None or high is None else (low, high)
