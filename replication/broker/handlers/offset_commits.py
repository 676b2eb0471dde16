"""OffsetCommit: the commits of one turn of the event loop are appended and answered together.

A commit that its group may store as it comes is one of a batch, and answered once that is committed. Every other one is
an event for its group, see `commits`. A test holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from logstore.env import Clock
from replication.broker.handlers.commits import CHANGED_AT_ONCE, CommitHandlers, expire_ms
from replication.coordinators.groups.batches import Commit
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.offsets.state import NewOffset
from replication.errors import NONE, ErrorCode
from replication.model.cluster import TopicPartition, topic_id_of
from replication.model.metadata import Metadata
from replication.network.pipeline import TurnHandler
from replication.network.work import Work
from replication.protocol.apis import ApiKey
from replication.protocol.small_messages import (
    CommitOne,
    OffsetCommitRequest,
    offset_commit_response,
    one_offset_committed,
)

_new = tuple.__new__  # of a value that has all its fields: a third of the time of its class


class OffsetCommitHandler:
    def __init__(self, metadata: Metadata, groups: GroupCoordinator, events: CommitHandlers, clock: Clock) -> None:
        self._metadata = metadata
        self._groups = groups
        self._events = events
        self._clock = clock

    def turns(self) -> Mapping[ApiKey, TurnHandler]:
        return {ApiKey.OFFSET_COMMIT: self.commit}

    def commit(self, works: Sequence[Work]) -> None:
        """Store and answer all of them."""
        now_ms = self._clock.now_ms()
        asked: list[Work] = []
        commits: list[Commit] = []
        for work in works:
            body: CommitOne | OffsetCommitRequest = work.body
            commit = self._one(body, now_ms) if isinstance(body, CommitOne) else self._simple(work, now_ms)
            if commit is None:
                work.reply(self._events.commit(work, work.body))
            else:
                asked.append(work)
                commits.append(commit)

        def settled(place: int, error: ErrorCode) -> None:
            _answer(asked[place], error)

        for work, is_stored in zip(asked, self._groups.commit_each(commits, settled), strict=True):
            if is_stored:
                _answer(work, NONE)
            elif is_stored is None:
                work.begin()
            else:
                work.reply(self._events.commit(work, work.body))

    def _simple(self, work: Work, now_ms: int) -> Commit | None:
        """Return the commit of few partitions, all of which there are, each once; None: it is another one."""
        if work.is_long:
            return None
        body: OffsetCommitRequest = work.body
        group_id, generation, member_id, instance_id, retention_ms, topics = body
        until_ms, count = expire_ms(now_ms, retention_ms), 0
        offsets: dict[TopicPartition, NewOffset] = {}
        for named, rows, topic_id in topics:
            name = named if topic_id is None else self._metadata.name_of(topic_id_of(topic_id)) or ""
            topic = self._metadata.topic(name)
            count += len(rows)
            if topic is None or count > CHANGED_AT_ONCE:
                return None
            for index, offset, leader_epoch, text in rows:
                if index not in topic.partitions:
                    return None
                new = NewOffset(offset, leader_epoch, text or "", now_ms, until_ms)
                offsets[TopicPartition(name, index)] = new
        if len(offsets) != count or not count:
            return None
        return Commit(group_id, member_id, generation, instance_id, offsets)

    def _one(self, body: CommitOne, now_ms: int) -> Commit | None:
        """Return the same of a request for one partition."""
        group_id, generation, member_id, retention_ms, tp, offset, leader_epoch = body
        topic = self._metadata.topic(tp[0])
        if topic is None or tp[1] not in topic.partitions:
            return None
        new = _new(NewOffset, (offset, leader_epoch, "", now_ms, expire_ms(now_ms, retention_ms)))
        commit: Commit = _new(Commit, (group_id, member_id, generation, None, {_new(TopicPartition, tp): new}))
        return commit


def _answer(work: Work, error: ErrorCode) -> None:
    body: CommitOne | OffsetCommitRequest = work.body
    if isinstance(body, CommitOne):
        data = one_offset_committed(work.version, work.correlation_id, body.tp, error)
    else:
        data = offset_commit_response(work.version, work.correlation_id, body.topics, error)
    work.origin.answer(work, data)
