"""The APIs of groups of the consumer protocol (KIP-848): heartbeats of members, and descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.consumer.state import LEAVING_FOR_A_WHILE, TYPE, ConsumerGroup, Current
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.parts.state import JOINING
from replication.coordinators.groups.pieces import NO_PIECES, Piece, Pieces
from replication.coordinators.groups.topic_patterns import ClusterTopics, TopicPatterns
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import topic_id_of
from replication.model.features import CONSUMER_GROUPS
from replication.model.metadata import Metadata
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.security.access import Operation, Resource

IDS_ARE_OF_CLIENTS_FROM = 1  # ConsumerGroupHeartbeat: members choose their ids
OF_CLASSIC, OF_THIS_PROTOCOL = 0, 1  # types of members
UNASKED = 0  # the coordinator numbers requests


class ConsumerGroupHandlers:
    def __init__(
        self,
        config: BrokerConfig,
        group_config: Callable[[str], GroupConfig],
        groups: GroupCoordinator,
        metadata: Metadata,
        topics: ClusterTopics,
        level: FeatureLevel,
    ) -> None:
        self._config = config
        self._group_config = group_config
        self._groups = groups
        self._metadata = metadata
        self._level = level
        self._patterns = TopicPatterns(metadata)
        self._topics = topics

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self.heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self.describe,
        }

    async def heartbeat(self, context: Work, body: requests.ConsumerGroupHeartbeatRequest) -> Response:
        """ConsumerGroupHeartbeat: answered once all that it tells of is stored."""
        context.park()
        try:
            heard = await self._hear(context, body)
        except KafkaError as error:
            heard = Heard(error=error.code, message=error.message)
        return told(heard, body.member_epoch, self._group_config(body.group_id).consumer_heartbeat_interval_ms)

    async def _hear(self, context: Work, body: requests.ConsumerGroupHeartbeatRequest) -> Heard:
        """Raises: KafkaError."""
        self._level.need(CONSUMER_GROUPS)
        self._check(context.version, body)
        member_id = body.member_id or self._groups.member_id(context.client_id or "member")
        timeout_ms = round(body.rebalance_timeout.total_seconds() * 1000)
        matched = await self._matched(context, body)
        heartbeat = ConsumerHeartbeat(
            request=UNASKED,
            member_id=member_id,
            epoch=body.member_epoch,
            instance_id=body.instance_id,
            rack_id=body.rack_id,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            rebalance_timeout_ms=timeout_ms,
            topics=body.subscribed_topic_names,
            regex=body.subscribed_topic_regex,
            assignor=body.server_assignor,
            owned=None if body.topic_partitions is None else _pieces(body.topic_partitions),
            matched=matched,
            known=self._topics,
            known_at=self._topics.known_at,
        )
        return await self._groups.ask_consumer(heartbeat, body.group_id)

    async def _matched(self, context: Work, body: requests.ConsumerGroupHeartbeatRequest) -> tuple[str, ...] | None:
        """Return the topics of the member's regular expression that it may see; None: it has none."""
        pattern = body.subscribed_topic_regex
        if pattern is None and body.member_epoch > 0:
            group = self._groups.group(body.group_id)
            member = group.members.get(body.member_id) if isinstance(group, ConsumerGroup) else None
            pattern = member.regex if member is not None else None
        if not pattern:
            return None
        found = await self._patterns.matched(pattern)
        hidden = await context.hidden_of_many(Operation.DESCRIBE, Resource.TOPIC, found)
        return tuple(name for name in found if name not in hidden) if hidden else found

    def _check(self, version: int, body: requests.ConsumerGroupHeartbeatRequest) -> None:
        """Raises: KafkaError: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, in the words of Kafka."""
        epoch = body.member_epoch
        assignors = self._config.group_consumer_assignors.split(",")
        is_given = version >= IDS_ARE_OF_CLIENTS_FROM or epoch != JOINING
        no_topics = body.subscribed_topic_names is None and body.subscribed_topic_regex is None
        rules = (
            (is_given and not body.member_id.strip(), "MemberId can't be empty."),
            (not body.group_id.strip(), "GroupId can't be empty."),
            (body.instance_id is not None and not body.instance_id.strip(), "InstanceId can't be empty."),
            (body.rack_id is not None and not body.rack_id.strip(), "RackId can't be empty."),
            (
                epoch == JOINING and body.rebalance_timeout.total_seconds() < 0,
                "RebalanceTimeoutMs must be provided in first request.",
            ),
            (
                epoch == JOINING and (body.topic_partitions is None or len(body.topic_partitions) > 0),
                "TopicPartitions must be empty when (re-)joining.",
            ),
            (
                epoch == JOINING and no_topics,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            ),
            (epoch == LEAVING_FOR_A_WHILE and body.instance_id is None, "InstanceId can't be null."),
            (epoch < LEAVING_FOR_A_WHILE, "MemberEpoch is invalid."),
        )
        check_rules(rules)
        if body.server_assignor is not None and body.server_assignor not in assignors:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {body.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
            )

    # ----------------------------------------------------------- administration

    def describe(self, context: Work, body: requests.ConsumerGroupDescribeRequest) -> Response:
        """ConsumerGroupDescribe: a group of another type is none."""
        return described(context, body, self._described)

    def _described(self, context: Work, group_id: str) -> dict[str, Any]:
        self._level.need(CONSUMER_GROUPS)
        group = group_of(self._groups, group_id, ConsumerGroup, TYPE)
        assigned = (current.assigned for current in group.currents.values())
        check_shown(context, (*assigned, *group.targets.values()), self._metadata)
        assignor = group.assignor(self._config.group_consumer_assignors.split(",")[0])
        return described_group(group, assignor, self._member)

    def _member(self, group: ConsumerGroup, member_id: str) -> Response:
        member, current = group.members[member_id], group.currents.get(member_id, Current())
        return {
            "member_id": member_id,
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "member_epoch": current.epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": member.topics,
            "subscribed_topic_regex": member.regex or "",
            "assignment": {"topic_partitions": named(current.assigned, self._metadata)},
            "target_assignment": {"topic_partitions": named(group.targets.get(member_id, NO_PIECES), self._metadata)},
            "member_type": OF_THIS_PROTOCOL if member.classic is None else OF_CLASSIC,
        }


def _pieces(rows: Iterable[requests.TopicPartitions]) -> Pieces:
    return frozenset(Piece(topic_id_of(row.topic_id), number) for row in rows for number in row.partitions)
