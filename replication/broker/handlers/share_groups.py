"""The APIs of share groups (KIP-932): heartbeats of members, and descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replication.broker.feature_level import FeatureLevel
from replication.broker.handlers.parted_groups import (
    check_rules,
    check_shown,
    described,
    described_group,
    group_of,
    named,
    told,
)
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfig
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.parts.state import JOINING, LEAVING
from replication.coordinators.groups.share.events import ShareHeartbeat
from replication.coordinators.groups.share.state import TYPE, Current, ShareGroup
from replication.coordinators.groups.topic_patterns import ClusterTopics
from replication.errors import KafkaError
from replication.model.features import SHARE_GROUPS
from replication.model.metadata import Metadata
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey


class ShareGroupHandlers:
    def __init__(
        self,
        config: BrokerConfig,
        group_config: Callable[[str], GroupConfig],
        groups: GroupCoordinator,
        metadata: Metadata,
        level: FeatureLevel,
    ) -> None:
        self._config = config
        self._group_config = group_config
        self._groups = groups
        self._metadata = metadata
        self._level = level
        self._topics = ClusterTopics(metadata)

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.SHARE_GROUP_HEARTBEAT: self.heartbeat,
            ApiKey.SHARE_GROUP_DESCRIBE: self.describe,
        }

    async def heartbeat(self, context: Work, body: requests.ShareGroupHeartbeatRequest) -> Response:
        """ShareGroupHeartbeat: answered once all that it tells of is stored."""
        context.park()
        try:
            heard = await self._hear(context, body)
        except KafkaError as error:
            heard = Heard(error=error.code, message=error.message)
        return told(heard, body.member_epoch, self._group_config(body.group_id).share_heartbeat_interval_ms)

    async def _hear(self, context: Work, body: requests.ShareGroupHeartbeatRequest) -> Heard:
        """Raises: KafkaError."""
        self._level.need(SHARE_GROUPS)
        _check(body)
        heard = await self._groups.ask(
            body.group_id,
            lambda request: ShareHeartbeat(
                request=request,
                member_id=body.member_id,
                epoch=body.member_epoch,
                rack_id=body.rack_id,
                client_id=context.client_id or "",
                client_host=f"/{context.client_host}",
                topics=body.subscribed_topic_names,
                known=self._topics,
            ),
        )
        assert isinstance(heard, Heard), "every event has its kind of answer"
        return heard

    # ----------------------------------------------------------- administration

    def describe(self, context: Work, body: requests.ShareGroupDescribeRequest) -> Response:
        """ShareGroupDescribe: a group of another type is none."""
        return described(context, body, self._described)

    def _described(self, context: Work, group_id: str) -> dict[str, Any]:
        self._level.need(SHARE_GROUPS)
        group = group_of(self._groups, group_id, ShareGroup, TYPE)
        check_shown(context, (current.assigned for current in group.currents.values()), self._metadata)
        return described_group(group, self._config.group_share_assignors, self._member)

    def _member(self, group: ShareGroup, member_id: str) -> Response:
        member, current = group.members[member_id], group.currents.get(member_id, Current())
        return {
            "member_id": member_id,
            "rack_id": member.rack_id,
            "member_epoch": current.epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": member.topics,
            "assignment": {"topic_partitions": named(current.assigned, self._metadata)},
        }


def _check(body: requests.ShareGroupHeartbeatRequest) -> None:
    """Raises: KafkaError: INVALID_REQUEST, in the words of Kafka."""
    epoch = body.member_epoch
    rules = (
        (not body.member_id.strip(), "MemberId can't be empty."),
        (not body.group_id.strip(), "GroupId can't be empty."),
        (body.rack_id is not None and not body.rack_id.strip(), "RackId can't be empty."),
        (epoch == JOINING and not body.subscribed_topic_names, "SubscribedTopicNames must be set in first request."),
        (epoch < LEAVING, "MemberEpoch is invalid."),
    )
    check_rules(rules)
