"""OffsetCommits that are stored as they come: those of one turn of the event loop are appended and answered together.

They are answered once they are committed. All others go to `commits`, one after the other. A test holds both to the
same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from logstore.env import Clock
from replication.broker.handlers.commits import CHANGED_AT_ONCE, expire_ms
from replication.coordinators.groups.batches import Commit
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.offsets.state import NewOffset
from replication.errors import ErrorCode, ProtocolError
from replication.model.cluster import TopicPartition
from replication.model.metadata import Metadata
from replication.network.turn import Gathered, TurnHandler
from replication.network.work import Encoded, Work
from replication.protocol import apis, bounds
from replication.protocol.apis import ApiKey
from replication.protocol.framing import Frame
from replication.protocol.small_messages import offset_commit_response, one_offset_committed

REMEMBERED, REMEMBERED_BYTES = 4096, 512  # requests; and how long they are at most

# Version, correlation id, the answer to it with one error for all, and what is to be committed.
_Asked: TypeAlias = tuple[int, int, Callable[[ErrorCode], bytes], Commit]
# Version, group, generation, member, retention in ms, and the partition.
_Known: TypeAlias = tuple[int, str, int, str, int, TopicPartition]


class SmallCommitHandler:
    def __init__(self, metadata: Metadata, groups: GroupCoordinator, clock: Clock) -> None:
        self._metadata = metadata
        self._groups = groups
        self._clock = clock
        self._known: dict[bytes, _Known] = {}

    def turns(self) -> Mapping[ApiKey, TurnHandler]:
        return {ApiKey.OFFSET_COMMIT: self.commit}

    def commit(self, requests: Sequence[Gathered]) -> None:
        """Store and answer all of them, or have others do it."""
        now_ms = self._clock.now_ms()
        asked: list[tuple[Gathered, _Asked]] = []
        commits: list[Commit] = []
        kept: dict[int, Work] = {}
        for request in requests:
            one = self._read_one(request.frame, now_ms) or self._read(request.frame, now_ms)
            if one is None:
                request.asker.dispatch(request)
            else:
                asked.append((request, one))
                commits.append(one[-1])

        def told(place: int, error: ErrorCode) -> None:
            request, one = asked[place]
            request.asker.answer_kept(kept[place], Encoded((one[2](error),)))

        stored = self._groups.commit_each(commits, told)
        for place, is_stored in enumerate(stored):
            request, (version, correlation_id, answer, _) = asked[place]
            if is_stored:
                request.asker.answer(request, answer(ErrorCode.NONE))
            elif is_stored is None:
                kept[place] = request.asker.keep(request, version, correlation_id)
            else:
                request.asker.dispatch(request)

    def _read_one(self, frame: Frame, now_ms: int) -> _Asked | None:
        """A commit of one partition. Consumers commit for the same ones again and again: they are decoded once."""
        split = apis.split_commit(bytes(frame)) if len(frame) <= REMEMBERED_BYTES else None
        known = None if split is None else self._known.get(split[0])
        if split is None or known is None:
            found = apis.decode_commit_one(memoryview(frame)) if len(frame) <= bounds.SHORT_BYTES else None
            if found is None:
                return None
            version, correlation_id, one = found
            known = version, *one[:4], TopicPartition(one[4], one[5])
            offset, leader_epoch, text = one[6:]
            if split is not None and not text:
                if len(self._known) >= REMEMBERED:
                    self._known.clear()
                self._known[split[0]] = known
        else:
            _, correlation_id, offset, leader_epoch = split
            text = ""
        version, group_id, generation, member_id, retention_ms, tp = known
        topic = self._metadata.topic(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            return None
        new = NewOffset(offset, leader_epoch, text, now_ms, expire_ms(now_ms, retention_ms))
        answer = partial(one_offset_committed, version, correlation_id, *tp)
        return version, correlation_id, answer, Commit(group_id, member_id, generation, None, {tp: new})

    def _read(self, frame: Frame, now_ms: int) -> _Asked | None:
        """A commit of few partitions, all of which there are, each once."""
        try:
            _, version, correlation_id, _, body = bounds.decode_short(memoryview(frame))
        except (bounds.LongRequest, ProtocolError):
            return None
        group_id, generation, member_id, instance_id, retention_ms, topics = body
        until_ms, count = expire_ms(now_ms, retention_ms), 0
        offsets: dict[TopicPartition, NewOffset] = {}
        for name, rows in topics:
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
        answer = partial(offset_commit_response, version, correlation_id, topics)
        return version, correlation_id, answer, Commit(group_id, member_id, generation, instance_id, offsets)
