"""The settings of members of share groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from logstore.errors import InvalidConfigError, did_you_mean
from replication.client.heartbeats import pattern_of

_OF_GROUP = "it is a setting of the group on the brokers, {}"
SHARE_HINTS = {
    "auto_offset_reset": _OF_GROUP.format("share.auto.offset.reset"),
    "isolation_level": _OF_GROUP.format("share.isolation.level"),
    "session_timeout_ms": _OF_GROUP.format("share.session.timeout.ms"),
    "heartbeat_interval_ms": _OF_GROUP.format("share.heartbeat.interval.ms"),
    "record_lock_duration_ms": _OF_GROUP.format("share.record.lock.duration.ms"),
    "enable_auto_commit": "share_acknowledgement_mode='explicit' leaves acknowledging to the program",
    "auto_commit_interval_ms": "acknowledgements are sent with each poll",
    "group_instance_id": "share groups have no static members",
    "group_protocol": "a share group has a protocol of its own",
    "group_remote_assignor": "the coordinator decides it",
    "assignor": "the coordinator assigns the partitions",
    "on_assign": "members of a share group read the same partitions, and nothing moves between them",
    "on_revoke": "members of a share group read the same partitions, and nothing moves between them",
    "schema": "poll, and decode the values",
    "typed": "poll, and decode the values",
}
_WORDS = {
    "share_acknowledgement_mode": ("implicit", "explicit"),
    "share_acquire_mode": ("batch_optimized", "record_limit"),
}
_LEAST = {
    "max_poll_records": 1,
    "max_poll_interval_ms": 1,
    "fetch_max_wait_ms": 0,
    "fetch_min_bytes": 0,
    "fetch_max_bytes": 1,
    "metadata_max_age_ms": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConsumerSettings:
    """How a member of a share group (KIP-932) reads; the names are Kafka's.

    share_acknowledgement_mode: with implicit, records are accepted by the next poll, `commit` or `close`; with
    explicit, the program calls `acknowledge` for each before the next poll. share_acquire_mode: with batch_optimized,
    brokers give out whole batches, so that a poll may return more than max_poll_records; with record_limit, never
    more, from one broker at a time. A member that does not poll for max_poll_interval_ms leaves the group until its
    next poll.
    """

    group_id: str
    share_acknowledgement_mode: Literal["implicit", "explicit"] = "implicit"
    share_acquire_mode: Literal["batch_optimized", "record_limit"] = "batch_optimized"
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 * 1024 * 1024
    metadata_max_age_ms: int = 300_000
    rack: str = ""

    def __post_init__(self) -> None:
        """Raises: InvalidConfigError."""
        if not self.group_id:
            raise InvalidConfigError("group_id='': a share group needs a name", option="group_id")
        for name, known in _WORDS.items():
            if (given := getattr(self, name)) not in known:
                raise InvalidConfigError(f"{name}={given!r}{did_you_mean(given, known)}", option=name)
        for name, least in _LEAST.items():
            if (number := getattr(self, name)) < least:
                raise InvalidConfigError(f"{name}={number}: at least {least}", option=name)

    @property
    def group_instance_id(self) -> None:
        """Share groups have no static members."""

    @property
    def group_remote_assignor(self) -> None:
        """The coordinator of a share group decides it."""


def share_subscription(topics: Iterable[str]) -> tuple[str, ...]:
    """The topics of a member. Raises: InvalidConfigError."""
    found = tuple(sorted(set(topics)))
    if (pattern := pattern_of(found)) is not None:
        raise InvalidConfigError(f"topic {pattern!r}: members of a share group name topics, no regular expressions")
    if not found:
        raise InvalidConfigError("a member of a share group needs a topic")
    return found
