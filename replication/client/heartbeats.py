"""Heartbeats: what a member of a group asks a coordinator that assigns partitions (KIP-848).

The wire names topics by id, a member by name: ids are looked up as assignments bring them, and a partition whose topic
is not known yet is assigned by the heartbeat after it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from replication.client.cluster import Cluster, metadata_request
from replication.client.consumer_membership import Answered, Heartbeat
from replication.client.coordinators import group_key
from replication.client.membership import Tps
from replication.errors import ErrorCode, UnsupportedVersionError, code_in
from replication.model.cluster import TopicPartition, rows_by_topic, topic_id_of, topic_uuid
from replication.protocol.apis import ApiKey

LEAVING, LEAVING_FOR_A_WHILE = -1, -2  # epochs
SOON_MS, SOON_TIMES = 250, 40
_WITH_PATTERNS, _TOPICS_BY_ID = 1, 12  # first versions
_TOLD = ("topic_partitions", "rack_id", "subscribed_topic_names", "subscribed_topic_regex", "server_assignor")
_AS_BEFORE = {"rebalance_timeout": -1, **dict.fromkeys(_TOLD)}


def pattern_of(topics: Iterable[str]) -> str | None:
    """The regular expression among these, which begins with ^ as no topic does; None: there is none."""
    return next((topic for topic in topics if topic.startswith("^")), None)


class MemberSettings(Protocol):
    """The settings of a member that a coordinator needs."""

    @property
    def group_id(self) -> str: ...
    @property
    def group_instance_id(self) -> str | None: ...
    @property
    def group_remote_assignor(self) -> str | None: ...
    @property
    def max_poll_interval_ms(self) -> int: ...
    @property
    def rack(self) -> str: ...


class Heartbeats:
    """Belongs to one event loop. Every call raises as `Coordinators.call` does."""

    _API = ApiKey.CONSUMER_GROUP_HEARTBEAT
    _INSTEAD = "group_protocol='classic' does without it"

    def __init__(self, cluster: Cluster, settings: MemberSettings, topics: tuple[str, ...]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._pattern = pattern_of(topics)
        self._topics = topics if self._pattern is None else ()
        self._names: dict[str, str] = {}  # by id
        self._ids: dict[str, str] = {}
        self._assigned: Mapping[str, Iterable[int]] = {}  # by id
        self._is_resolved = True
        self.interval_ms = 0  # that the coordinator asks for

    async def ask(self, member_id: str, beat: Heartbeat) -> Answered:
        """Send a heartbeat; return the outcome.

        Raises: UnsupportedVersionError: the brokers do not serve such groups.
        """
        request = _AS_BEFORE | {"member_id": member_id, "member_epoch": beat.epoch}
        if beat.is_whole:
            request |= {
                "rebalance_timeout": self._settings.max_poll_interval_ms,
                "rack_id": self._settings.rack or None,
                "subscribed_topic_names": self._topics,
                "subscribed_topic_regex": self._pattern,
                "server_assignor": self._settings.group_remote_assignor,
            }
        if beat.owned is not None:
            request["topic_partitions"] = self._by_id(beat.owned)
        try:
            answer = await self._call(request, 0 if self._pattern is None else _WITH_PATTERNS)
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"{error}; {self._INSTEAD}") from None
        if (code := code_in(answer)) is not ErrorCode.NONE:
            message = answer.error_message or ""
            if code is ErrorCode.UNSUPPORTED_VERSION:
                message = f"{message or 'too old a Kafka'}; {self._INSTEAD}"
            return Answered(beat, code, message=message)
        self.interval_ms = round(answer.heartbeat_interval.total_seconds() * 1000)
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            self._assigned, self._is_resolved = {topic_id_of(row.topic_id): row.partitions for row in rows}, False
        assigned = None if self._is_resolved else await self._resolved()
        return Answered(beat, code, answer.member_epoch, assigned)

    async def leave(self, member_id: str, *, for_a_while: bool) -> None:
        """Leave the group. `for_a_while`: the partitions stay those of the member's instance id until its session ends.

        The coordinator may not know the member any more.
        """
        epoch = LEAVING_FOR_A_WHILE if for_a_while else LEAVING
        await self._call(_AS_BEFORE | {"member_id": member_id, "member_epoch": epoch}, 0)

    async def _call(self, request: dict[str, Any], version_min: int) -> Any:
        who = {"group_id": self._settings.group_id, "instance_id": self._settings.group_instance_id}
        group = group_key(self._settings.group_id)
        return await self._cluster.coordinators.call(group, self._API, who | request, code_in, version_min=version_min)

    async def _resolved(self) -> Tps:
        """The assigned partitions of topics that are known by now."""
        unknown = self._assigned.keys() - self._names.keys()
        if unknown:
            request = metadata_request(())
            request["topics"] = [{"topic_id": topic_uuid(each), "name": None} for each in sorted(unknown)]
            answer = await self._cluster.call_any(ApiKey.METADATA, request, version_min=_TOPICS_BY_ID)
            known = (row for row in answer.topics if code_in(row) is ErrorCode.NONE)
            self._names |= {topic_id_of(row.topic_id): row.name for row in known}
        self._is_resolved = self._assigned.keys() <= self._names.keys()
        self._ids |= {self._names[each]: each for each in self._assigned if each in self._names}
        return frozenset(
            TopicPartition(self._names[each], number)
            for each, numbers in self._assigned.items()
            for number in numbers
            if each in self._names
        )

    def _by_id(self, tps: Tps) -> list[dict[str, Any]]:
        topics = rows_by_topic((tp, tp.partition) for tp in sorted(tps))
        return [{"topic_id": topic_uuid(self._ids[topic]), "partitions": each} for topic, each in topics.items()]


class ShareHeartbeats(Heartbeats):
    """Those of a member of a share group (KIP-932): what only other groups have is left out of its requests.

    A coordinator has to store a new group's partitions before it assigns them: a member asks soon again, some times.
    """

    _API = ApiKey.SHARE_GROUP_HEARTBEAT
    _INSTEAD = "share groups need Kafka 4.1 or later, and its feature share.version"

    def __init__(self, cluster: Cluster, settings: MemberSettings, topics: tuple[str, ...]) -> None:
        super().__init__(cluster, settings, topics)
        self._soon = SOON_TIMES

    async def ask(self, member_id: str, beat: Heartbeat) -> Answered:
        """Forward to `Heartbeats.ask`."""
        answered = await super().ask(member_id, beat)
        if not self._assigned and self._soon:
            self._soon -= 1
            self.interval_ms = min(self.interval_ms, SOON_MS)
        return answered
