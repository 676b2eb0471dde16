"""OffsetCommits that are stored as they come: those of one turn of the event loop are appended and answered together.

All others go to `commits`, one after the other. A test holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from logstore.env import Clock
from replication.broker.handlers.commits import CHANGED_AT_ONCE, expire_ms
from replication.coordinators.groups.coordinator import Commit, GroupCoordinator
from replication.coordinators.groups.machine.state import Committed
from replication.errors import ProtocolError
from replication.model.cluster import TopicPartition
from replication.model.metadata import Metadata
from replication.network.turn import Gathered, TurnHandler
from replication.protocol import bounds
from replication.protocol.apis import ApiKey
from replication.protocol.framing import Frame
from replication.protocol.small_messages import CommitTopic, OffsetCommitRequest, offset_commit_response


class _Asked(NamedTuple):
    request: Gathered
    version: int
    correlation_id: int
    topics: Sequence[CommitTopic]
    commit: Commit


class SmallCommitHandler:
    def __init__(self, metadata: Metadata, groups: GroupCoordinator, clock: Clock) -> None:
        self._metadata = metadata
        self._groups = groups
        self._clock = clock

    def turns(self) -> Mapping[ApiKey, TurnHandler]:
        return {ApiKey.OFFSET_COMMIT: self.commit}

    def commit(self, requests: Sequence[Gathered]) -> None:
        """Store and answer all of them, or have others do it."""
        asked = list[_Asked]()
        for request in requests:
            one = self._read(request)
            if one is None:
                request.asker.dispatch(request)
            else:
                asked.append(one)
        stored = self._groups.commit_at_once([one.commit for one in asked])
        for (request, version, correlation_id, topics, _), is_stored in zip(asked, stored, strict=True):
            if is_stored:
                request.asker.answer(request, offset_commit_response(version, correlation_id, topics))
            else:
                request.asker.dispatch(request)

    def _read(self, request: Gathered) -> _Asked | None:
        try:
            _, version, correlation_id, _, body = bounds.decode_short(memoryview(request.frame))
        except (bounds.LongRequest, ProtocolError):
            return None
        commit = self._plain(body)
        return None if commit is None else _Asked(request, version, correlation_id, body.topics, commit)

    def _plain(self, body: OffsetCommitRequest) -> Commit | None:
        """Return a commit of few partitions, all of which there are, each once; None: it is another one."""
        group_id, generation, member_id, instance_id, retention_ms, topics = body
        now_ms, offsets, count = self._clock.now_ms(), dict[TopicPartition, Committed](), 0
        until_ms = expire_ms(now_ms, retention_ms)
        for name, rows in topics:
            topic = self._metadata.topic(name)
            count += len(rows)
            if topic is None or count > CHANGED_AT_ONCE:
                return None
            for partition, offset, leader_epoch, text in rows:
                if partition not in topic.partitions:
                    return None
                new = Committed(offset, leader_epoch, text or "", now_ms, until_ms)
                offsets[TopicPartition(name, partition)] = new
        if len(offsets) != count or not count:
            return None
        return Commit(group_id, member_id, generation, instance_id, offsets)
