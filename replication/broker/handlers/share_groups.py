"""The APIs of share groups (KIP-932): heartbeats of members, and descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replication.broker.feature_level import FeatureLevel
from replication.broker.handlers.assignments import by_id, check_shown, named
from replication.broker.handlers.operations import NOT_ASKED, granted
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfig
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.parts.state import JOINING, LEAVING
from replication.coordinators.groups.share.events import ShareHeartbeat
from replication.coordinators.groups.share.state import Current, ShareGroup
from replication.coordinators.groups.topic_patterns import ClusterTopics
from replication.errors import NONE, ErrorCode, KafkaError
from replication.model.features import SHARE_GROUPS
from replication.model.metadata import Metadata
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows
from replication.security.access import Resource


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
            if heard.error:
                raise KafkaError(heard.error, heard.message or "")
        except KafkaError as error:
            return {
                "error_code": error.code,
                "error_message": error.message or None,
                "member_epoch": 0,
                "heartbeat_interval": 0,
            }
        pause_ms = self._group_config(body.group_id).share_heartbeat_interval_ms
        return {
            "error_code": NONE,
            "member_id": heard.member_id,
            "member_epoch": heard.epoch,
            "heartbeat_interval": 0 if body.member_epoch == LEAVING else pause_ms,
            "assignment": None if heard.assigned is None else {"topic_partitions": by_id(heard.assigned)},
        }

    # ----------------------------------------------------------- administration

    def describe(self, context: Work, body: requests.ShareGroupDescribeRequest) -> Response:
        """ShareGroupDescribe: a group of another type is none."""

        def row(group_id: str) -> Response:
            allowed = granted(context, Resource.GROUP, group_id) if body.include_authorized_operations else NOT_ASKED
            try:
                found = self._described(context, group_id)
            except KafkaError as error:
                blank = {"group_state": "", "group_epoch": 0, "assignment_epoch": 0, "assignor_name": "", "members": ()}
                found = {
                    "group_id": group_id,
                    "error_code": error.code,
                    "error_message": error.message or None,
                    **blank,
                }
            return {**found, "authorized_operations": allowed}

        asked = dict.fromkeys(body.group_ids)
        return {"groups": Rows(len(asked), map(row, asked))}

    def _group(self, group_id: str) -> ShareGroup:
        """Raises: KafkaError: GROUP_ID_NOT_FOUND: none, or one of another type; as `GroupCoordinator.group`."""
        self._level.need(SHARE_GROUPS)
        group = self._groups.group(group_id)
        if not isinstance(group, ShareGroup):
            said = "not found" if group is None else "is not a share group"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {said}.")
        return group

    def _described(self, context: Work, group_id: str) -> dict[str, Any]:
        group = self._group(group_id)
        check_shown(context, (current.assigned for current in group.currents.values()), self._metadata)
        return {
            "error_code": NONE,
            "error_message": None,
            "group_id": group_id,
            "group_state": group.phase,
            "group_epoch": group.epoch,
            "assignment_epoch": group.target_epoch,
            "assignor_name": self._config.group_share_assignors,
            "members": Rows(len(group.members), (self._member(group, name) for name in group.members)),
        }

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
    for is_broken, message in rules:
        if is_broken:
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
