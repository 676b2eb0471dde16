"""GroupSettings: the limits for members of groups and for committed offsets; `Limits` has those of each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits. Names and defaults as in BrokerConfig."""

    group_initial_rebalance_delay_ms: int = 3000
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: str = "uniform,range"  # the first one is the default
    group_share_session_timeout_ms: int = 45_000
    group_share_max_size: int = 200
    group_consumer_migration_policy: str = "bidirectional"
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    # The join of a new member, which cannot send heartbeats, may wait for this long, as in Kafka.
    new_member_join_timeout_ms: int = 300_000


class Limits:
    """The limits of each group: those of the broker, and what the group was given of its own."""

    def __init__(self, config: BrokerConfig, group_config: Callable[[str], GroupConfig]) -> None:
        self._all = config.part(GroupSettings, offsets_retention_ms=config.offsets_retention_minutes * 60_000)
        self._group_config = group_config

    def of(self, group_id: str) -> GroupSettings:
        own, all_of_them = self._group_config(group_id), self._all
        consumer_ms, share_ms = own.consumer_session_timeout_ms, own.share_session_timeout_ms
        known = all_of_them.group_consumer_session_timeout_ms, all_of_them.group_share_session_timeout_ms
        if (consumer_ms, share_ms) == known:
            return all_of_them
        return replace(
            all_of_them, group_consumer_session_timeout_ms=consumer_ms, group_share_session_timeout_ms=share_ms
        )
