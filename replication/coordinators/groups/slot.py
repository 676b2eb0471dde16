"""Slot: a group of a coordinator, and the heartbeats and commits that are deferred until another event."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from replication.coordinators.groups.classic.deferred import with_commits, with_deferred
from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.kinds import AnyGroup
from replication.coordinators.groups.offsets.state import Committed, NewOffset
from replication.model.cluster import TopicPartition


class Slot:
    """`settled` is the group after its last event, `group` with the heartbeats and commits since then."""

    __slots__ = ("begun", "due_ms", "ended", "heartbeats", "settled", "stored", "timer")

    def __init__(self, group: AnyGroup) -> None:
        self.settled: AnyGroup = group
        self.heartbeats: dict[str, int] = {}
        self.stored: dict[TopicPartition, tuple[NewOffset, int]] = {}  # with its place in the log
        self.begun: dict[int, tuple[TopicPartition, ...]] = {}  # commits in flight, by their numbers
        self.ended: set[int] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.due_ms = 0

    @property
    def group(self) -> AnyGroup:
        if self.heartbeats or self.stored or self.begun or self.ended:
            stored = {tp: Committed(*new, position) for tp, (new, position) in self.stored.items()}
            if isinstance(self.settled, Group):
                self.settled = with_deferred(self.settled, self.heartbeats, stored, self.begun, self.ended)
            else:
                offsets = with_commits(self.settled.offsets, stored, self.begun, self.ended)
                self.settled = replace(self.settled, offsets=offsets)
            self.heartbeats, self.stored, self.begun, self.ended = {}, {}, {}, set()
        return self.settled

    def add_heartbeat(self, member_id: str, now_ms: int) -> bool:
        """Defer a heartbeat of a classic member; return whether its session ends before the timer goes off."""
        assert isinstance(self.settled, Group), "others change their group"
        self.heartbeats[member_id] = now_ms
        due_ms = now_ms + self.settled.members[member_id].session_timeout_ms
        return self.timer is None or due_ms < self.due_ms

    def add_stored(self, offsets: Mapping[TopicPartition, NewOffset], position: int) -> None:
        stored = self.stored
        for tp, new in offsets.items():
            stored[tp] = new, position

    def end_commit(self, number: int) -> tuple[TopicPartition, ...]:
        """Return the partitions whose topics have not gone since it began."""
        begun = self.begun.pop(number, None)
        if begun is not None:
            return begun
        self.ended.add(number)
        return self.settled.offsets.in_flight[number]

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
