"""MemberRequests: what one member of a group asks the group's coordinator, and how a leader divides partitions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from logstore.errors import UnknownTopicError
from replication.client import membership
from replication.client.assignors import (
    ASSIGNORS,
    Member,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from replication.client.cluster import Cluster
from replication.client.coordinators import group_key
from replication.client.membership import Membership
from replication.client.settings import ConsumerSettings
from replication.errors import ErrorCode, code_in
from replication.protocol.apis import ApiKey

logger = logging.getLogger(__name__)

PROTOCOL_TYPE = "consumer"
# The last ones before flexible messages: nothing in later ones is needed, and not every broker reads them.
VERSIONS_MAX = {ApiKey.JOIN_GROUP: 5, ApiKey.SYNC_GROUP: 3, ApiKey.HEARTBEAT: 3, ApiKey.LEAVE_GROUP: 2}
JOIN_SPARE_MS = 5_000  # a join is answered when the slowest member's time to rejoin is over
REQUESTS = (membership.Join, membership.Divide, membership.Sync)  # effects of a membership


class MemberRequests:
    """Belongs to one event loop. Every call raises as `Coordinators.call` does."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, topics: tuple[str, ...]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._topics = topics
        self._counts: Mapping[str, int] = {}  # of partitions, as the group was divided

    async def answered(self, effect: membership.Effect, member: Membership) -> membership.Event:
        """Do what an effect of REQUESTS asks for; return the outcome."""
        match effect:
            case membership.Divide(members):
                return membership.Divided(await self._divide(members))
            case membership.Sync(assignments):
                return await self._sync(member, assignments)
            case _:
                return await self._join(member)

    async def heartbeat(self, member: Membership) -> ErrorCode:
        return code_in(await self._call(ApiKey.HEARTBEAT, _named(member)))

    async def leave(self, member_id: str) -> None:
        await self._call(ApiKey.LEAVE_GROUP, {"member_id": member_id})

    async def are_topics_changed(self) -> bool:
        """Return whether a topic has other partitions than when this member divided them."""
        return await self._partitions(self._counts) != self._counts

    async def _join(self, member: Membership) -> membership.Event:
        settings = self._settings
        subscription = Subscription(self._topics, tuple(member.owned), member.generation)
        answer = await self._call(
            ApiKey.JOIN_GROUP,
            {
                "session_timeout": settings.classic.session_timeout_ms,
                "rebalance_timeout": settings.max_poll_interval_ms,
                "member_id": member.id,
                "protocol_type": PROTOCOL_TYPE,
                "protocols": [{"name": settings.classic.assignor, "metadata": encode_subscription(subscription)}],
            },
            timeout_ms=settings.max_poll_interval_ms + JOIN_SPARE_MS,
        )
        members = tuple(
            (each.member_id, getattr(each, "group_instance_id", None), bytes(each.metadata)) for each in answer.members
        )
        return membership.Joined(code_in(answer), answer.member_id, answer.generation_id, answer.leader, members)

    async def _divide(self, members: Iterable[tuple[str, str | None, bytes]]) -> dict[str, bytes]:
        known = [Member(i, (n is None, n or i), decode_subscription(data)) for i, n, data in members]
        self._counts = await self._partitions({topic for each in known for topic in each.subscription.topics})
        divided = ASSIGNORS[self._settings.classic.assignor](known, {t: range(n) for t, n in self._counts.items()})
        return {member: encode_assignment(tps) for member, tps in divided.items()}

    async def _partitions(self, topics: Iterable[str]) -> dict[str, int]:
        counts = {}
        for topic in topics:
            try:
                counts[topic] = len((await self._cluster.topic(topic)).leaders)
            except UnknownTopicError as error:
                logger.warning("group=%s %s", self._settings.group_id, error)
                counts[topic] = 0
        return counts

    async def _sync(self, member: Membership, assignments: Mapping[str, bytes]) -> membership.Event:
        request = {
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": self._settings.classic.assignor,
            "assignments": [{"member_id": i, "assignment": data} for i, data in assignments.items()],
        }
        timeout_ms = self._settings.max_poll_interval_ms + JOIN_SPARE_MS
        answer = await self._call(ApiKey.SYNC_GROUP, _named(member) | request, timeout_ms=timeout_ms)
        error = code_in(answer)
        given = decode_assignment(answer.assignment) if error is ErrorCode.NONE else frozenset()
        return membership.Synced(error, given)

    async def _call(self, key: ApiKey, request: dict[str, Any], **bounds: Any) -> Any:
        who = {"group_id": self._settings.group_id, "group_instance_id": self._settings.group_instance_id}
        group = group_key(self._settings.group_id)
        bounds["version_max"] = VERSIONS_MAX[key]
        return await self._cluster.coordinators.call(group, key, who | request, code_in, **bounds)


def _named(member: Membership) -> dict[str, Any]:
    return {"generation_id": member.generation, "member_id": member.id}
