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

    __slots__ = ("begun", "due_ms", "ended", "sessions", "settled", "stored", "timer")

    def __init__(self, group: AnyGroup) -> None:
        self.settled: AnyGroup = group
        self.sessions: dict[str, int] = {}  # when they end now, of the members that were heard
        self.stored: dict[TopicPartition, tuple[NewOffset, int]] = {}  # with its place in the log
        self.begun: dict[int, tuple[TopicPartition, ...]] = {}  # commits in flight, by their numbers
        self.ended: set[int] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.due_ms = 0

    @property
    def group(self) -> AnyGroup:
        if self.sessions or self.stored or self.begun or self.ended:
            stored = {tp: Committed(*new, position) for tp, (new, position) in self.stored.items()}
            if isinstance(self.settled, Group):
                self.settled = with_deferred(self.settled, self.sessions, stored, self.begun, self.ended)
            else:
                offsets = with_commits(self.settled.offsets, stored, self.begun, self.ended)
                deadlines_ms = {**self.settled.deadlines_ms, **self.sessions}
                self.settled = replace(self.settled, offsets=offsets, deadlines_ms=deadlines_ms)
            self.sessions, self.stored, self.begun, self.ended = {}, {}, {}, set()
        return self.settled

    def add_heartbeat(self, member_id: str, end_ms: int) -> bool:
        """Defer a heartbeat of a member whose session ends then; return whether that is before the timer goes off."""
        self.sessions[member_id] = end_ms
        return self.timer is None or end_ms < self.due_ms

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
