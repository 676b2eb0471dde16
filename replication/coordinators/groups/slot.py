"""Slot: a group of a coordinator, and the heartbeats and commits that are noted beside it until another event."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from replication.coordinators.groups.classic.standing import caught_up
from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.offsets.state import Committed, NewOffset
from replication.model.cluster import TopicPartition


class Slot:
    """`standing` is the group as it was after its last event, `group` with what was noted since."""

    __slots__ = ("begun", "due_ms", "ended", "heard", "standing", "stored", "timer")

    def __init__(self, group: Group) -> None:
        self.standing = group
        self.heard: dict[str, int] = {}
        self.stored: dict[TopicPartition, tuple[NewOffset, int]] = {}  # with its place in the log
        self.begun: dict[int, tuple[TopicPartition, ...]] = {}  # commits in flight, by their numbers
        self.ended: set[int] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.due_ms = 0

    @property
    def group(self) -> Group:
        if self.heard or self.stored or self.begun or self.ended:
            stored = {tp: Committed(*new, position) for tp, (new, position) in self.stored.items()}
            self.standing = caught_up(self.standing, self.heard, stored, self.begun, self.ended)
            self.heard, self.stored, self.begun, self.ended = {}, {}, {}, set()
        return self.standing

    def note_heard(self, member_id: str, now_ms: int) -> bool:
        """Note a heartbeat of the member; return whether its session ends before the timer goes off."""
        self.heard[member_id] = now_ms
        due_ms = now_ms + self.standing.members[member_id].session_timeout_ms
        return self.timer is None or due_ms < self.due_ms

    def note_stored(self, offsets: Mapping[TopicPartition, NewOffset], position: int) -> None:
        stored = self.stored
        for tp, new in offsets.items():
            stored[tp] = new, position

    def end_commit(self, number: int) -> tuple[TopicPartition, ...]:
        """Return the partitions whose topics have not gone since it began."""
        begun = self.begun.pop(number, None)
        if begun is not None:
            return begun
        self.ended.add(number)
        return self.standing.offsets.in_flight[number]

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
