"""The APIs of consumer groups, for members and administrators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TypeVar

from replication.broker.handlers.operations import NOT_ASKED, granted
from replication.coordinators.groups.classic import events
from replication.coordinators.groups.classic.state import Group, Phase
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.kinds import type_of
from replication.coordinators.groups.messages import Body, Done
from replication.coordinators.groups.topic_patterns import ClusterTopics
from replication.errors import ErrorCode, KafkaError
from replication.network.steps import all_of, begin, in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows
from replication.protocol.small_messages import heartbeat_response
from replication.security.access import Operation, Resource, of_cluster

REBALANCES_FROM = 1  # JoinGroup: a rebalance has a time-out of its own
SKIPS_FROM = 9  # JoinGroup: a leader can be told to assign nothing
IDS_KNOWN_FROM = 4  # JoinGroup: a new member is given an id first, and joins with it
PROTOCOLS_NAMED_FROM = 5  # SyncGroup
SAYS_UNKNOWN_FROM = 6  # DescribeGroups
LEAVES_TOGETHER_FROM = 3  # LeaveGroup: several members, with an error each
LEAVING_AT_ONCE = 100  # members in one event for the group

Answer = TypeVar("Answer", bound=Body)


class GroupHandlers:
    def __init__(self, groups: GroupCoordinator, topics: ClusterTopics) -> None:
        self._groups = groups
        self._topics = topics

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: self.sync,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave,
            ApiKey.DESCRIBE_GROUPS: self.describe,
            ApiKey.LIST_GROUPS: self.list,
            ApiKey.DELETE_GROUPS: self.delete,
        }

    # ------------------------------------------------------------------ members

    async def _ask(self, group_id: str, kind: type[Answer], make: Callable[[int], events.Event]) -> Answer:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        answer = await self._groups.ask(group_id, make)
        assert isinstance(answer, kind), "every event has its kind of answer"
        return answer

    async def join(self, context: Work, body: requests.JoinGroupRequest) -> Response:
        """JoinGroup: answered when everybody has joined, or at once if it is refused."""
        rebalance_timeout = body.rebalance_timeout if context.version >= REBALANCES_FROM else body.session_timeout
        prefix = body.group_instance_id or context.client_id or "member"
        try:
            answer = await self._ask(
                body.group_id,
                events.Joined,
                lambda request: events.Join(
                    request=request,
                    member_id=body.member_id,
                    fresh_id=self._groups.member_id(prefix),
                    instance_id=body.group_instance_id,
                    client_id=context.client_id or "",
                    client_host=f"/{context.client_host}",
                    session_timeout_ms=_ms(body.session_timeout),
                    rebalance_timeout_ms=_ms(rebalance_timeout),
                    protocol_type=body.protocol_type,
                    protocols=tuple((each.name, each.metadata) for each in body.protocols),
                    needs_known_id=context.version >= IDS_KNOWN_FROM,
                    may_skip=context.version >= SKIPS_FROM,
                    known=self._topics,
                    known_at=self._topics.known_at,
                ),
            )
        except KafkaError as error:
            answer = events.Joined(error=error.code, member_id=body.member_id)
        return {
            "error_code": answer.error,
            "generation_id": answer.generation,
            "protocol_type": answer.protocol_type,
            "protocol_name": answer.protocol if answer.protocol or context.version >= 7 else "",
            "leader": answer.leader,
            "skip_assignment": answer.skips,
            "member_id": answer.member_id,
            "members": [
                {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
                for member_id, instance_id, metadata in answer.members
            ],
        }

    async def sync(self, context: Work, body: requests.SyncGroupRequest) -> Response:
        """SyncGroup: answered when the leader has assigned partitions."""
        try:
            if context.version >= PROTOCOLS_NAMED_FROM and None in (body.protocol_type, body.protocol_name):
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the protocol is to be named")
            answer = await self._ask(
                body.group_id,
                events.Synced,
                lambda request: events.Sync(
                    request=request,
                    member_id=body.member_id,
                    generation=body.generation_id,
                    instance_id=body.group_instance_id,
                    protocol_type=body.protocol_type,
                    protocol=body.protocol_name,
                    assignments={each.member_id: each.assignment for each in body.assignments},
                    known=self._topics,
                ),
            )
        except KafkaError as error:
            answer = events.Synced(error.code)
        return {
            "error_code": answer.error,
            "protocol_type": answer.protocol_type,
            "protocol_name": answer.protocol,
            "assignment": answer.assignment,
        }

    def heartbeat(self, context: Work, body: requests.HeartbeatRequest) -> Awaitable[Response] | bytes | Response:
        """Heartbeat: no error while the group is being loaded, since nobody is expelled before it is."""
        try:
            is_accepted = self._groups.hear(body.group_id, body.member_id, body.generation_id, body.group_instance_id)
        except KafkaError:
            is_accepted = False
        if is_accepted:
            return heartbeat_response(context.version, context.correlation_id, 0)
        return begin(self._heartbeat(body))

    async def _heartbeat(self, body: requests.HeartbeatRequest) -> Response:
        try:
            answer = await self._ask(
                body.group_id,
                Done,
                lambda request: events.Heartbeat(
                    request=request,
                    member_id=body.member_id,
                    generation=body.generation_id,
                    instance_id=body.group_instance_id,
                ),
            )
        except KafkaError as error:
            is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return {"error_code": ErrorCode.NONE if is_loading else error.code}
        return {"error_code": answer.error}

    async def leave(self, context: Work, body: requests.LeaveGroupRequest) -> Response:
        """LeaveGroup: of one member, or from version 3 on of several."""
        if context.version < LEAVES_TOGETHER_FROM:
            leaving: list[tuple[str, str | None]] = [(body.member_id, None)]
        else:
            leaving = [(each.member_id, each.group_instance_id) for each in body.members]
        members: list[Response] = []
        try:
            if not leaving:  # an error of the group is answered even so
                await self._leave(body.group_id, ())
            async for few in in_steps(leaving, LEAVING_AT_ONCE):
                members += await self._leave(body.group_id, tuple(few))
        except KafkaError as error:
            return {"error_code": error.code, "members": []}
        if context.version < LEAVES_TOGETHER_FROM:
            return {"error_code": members[0]["error_code"]}
        return {"error_code": ErrorCode.NONE, "members": members}

    async def _leave(self, group_id: str, few: tuple[tuple[str, str | None], ...]) -> list[Response]:
        answer = await self._ask(group_id, events.Left, lambda request: events.Leave(request, few))
        return [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": code}
            for (member_id, instance_id), code in zip(few, answer.errors, strict=True)
        ]

    # ----------------------------------------------------------- administration

    def describe(self, context: Work, body: requests.DescribeGroupsRequest) -> Response:
        """DescribeGroups: an unknown group, or one of another type, is a dead one, from 6 on with an error."""

        def row(group_id: str) -> Response:
            allowed = granted(context, Resource.GROUP, group_id) if body.include_authorized_operations else NOT_ASKED
            more: Response = {"authorized_operations": allowed}
            try:
                found = self._groups.group(group_id)
                group = found if isinstance(found, Group) else None
                if group is None and context.version >= SAYS_UNKNOWN_FROM:
                    said = f"Group {group_id} {'not found' if found is None else 'is not a classic group'}."
                    more = {**more, "error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": said}
                return {**described(group_id, group), **more}
            except KafkaError as error:
                return {**described(group_id, None), "error_code": error.code}

        asked = dict.fromkeys(body.groups)
        return {"groups": Rows(len(asked), map(row, asked))}

    def list(self, context: Work, body: requests.ListGroupsRequest) -> Response:
        """ListGroups: the groups of this broker, in these states, of these types (default: any)."""
        wanted = {state.casefold() for state in body.states_filter}
        types = {type_.casefold() for type_ in body.types_filter}
        try:
            groups = [group for group in self._groups.groups() if not types or type_of(group) in types]
        except KafkaError as error:
            return {"error_code": error.code, "groups": []}
        instead = of_cluster(Operation.DESCRIBE)
        hidden = context.hidden(Operation.DESCRIBE, Resource.GROUP, (group.id for group in groups), instead)
        rows = (
            {
                "group_id": group.id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.phase,
                "group_type": type_of(group),
            }
            for group in groups
            if (not wanted or group.phase.casefold() in wanted) and group.id not in hidden
        )
        return {"error_code": ErrorCode.NONE, "groups": rows}

    async def delete(self, context: Work, body: requests.DeleteGroupsRequest) -> Response:
        context.park()
        names = tuple(dict.fromkeys(body.groups_names))
        codes = await all_of(self._delete, names)
        return {"results": [{"group_id": name, "error_code": code} for name, code in zip(names, codes, strict=True)]}

    async def _delete(self, group_id: str) -> ErrorCode:
        try:
            # Administrators may have committed for a group without a name.
            answer = await self._groups.ask(group_id, lambda request: events.DeleteGroup(request, self._topics))
            assert isinstance(answer, Done), "every event has its kind of answer"
            return answer.error
        except KafkaError as error:
            return error.code


def described(group_id: str, group: Group | None) -> Response:
    """Return the row of DescribeGroups; metadata and assignments are shown in a stable group only."""
    if group is None:
        group = Group(id=group_id, phase=Phase.DEAD)
    is_stable = group.phase is Phase.STABLE
    protocol = group.protocol or "" if is_stable else ""
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group_id,
        "group_state": group.phase,
        "protocol_type": group.protocol_type or "",
        "protocol_data": protocol,
        "members": Rows(
            len(group.members),
            (
                {
                    "member_id": member.id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "member_metadata": member.metadata(protocol) if is_stable else b"",
                    "member_assignment": member.assignment if is_stable else b"",
                }
                for member in group.members.values()
            ),
        ),
    }


def _ms(time: timedelta) -> int:
    return round(time.total_seconds() * 1000)
