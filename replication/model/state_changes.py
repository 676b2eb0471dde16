"""The lines of `state-change.log`: every change of a partition, a replica, and who was told.

Wording and layout are Kafka 0.9's, so that its readers (people, and tools that merge such logs) know them::

    [2026-11-21 03:16:27,564] TRACE Controller 3 epoch 1 elected leader 2 for … (state.change.logger)

Functions return a `StateChange` or its message; `format_line` and `parse_line` go to a line and back. Pure: who
writes the file adds the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from replication.model.cluster import BrokerId, LeaderAndIsr, Offline, Replica, TopicPartition

LOGGER_NAME = "state.change.logger"

_LINE = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] (?P<level>[A-Z]+) (?P<message>.*) \((?P<logger>\S+)\)$"
)
_PARTITION = re.compile(r"\[(?P<topic>[A-Za-z0-9._-]+),(?P<number>\d+)\]")
_METADATA_PARTITION = re.compile(r"for partition (?P<topic>[A-Za-z0-9._-]+)-(?P<number>\d+)$")


@dataclass(frozen=True, slots=True)
class StateChange:
    """One line without its time."""

    level: str
    message: str


class StateChangeLine(NamedTuple):
    """One line of the file; `tp` is the partition that it is about, if it names one."""

    time_ms: int
    level: str
    message: str
    tp: TopicPartition | None


def format_line(time_ms: int, change: StateChange) -> str:
    """The line as it stands in the file (UTC), without the line break."""
    at = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"[{at:%Y-%m-%d %H:%M:%S},{time_ms % 1000:03d}] {change.level} {change.message} ({LOGGER_NAME})"


def parse_line(line: str) -> StateChangeLine | None:
    """The line taken apart; None if it is none (the rest of a stack trace, half a line)."""
    found = _LINE.match(line.rstrip("\n"))
    if found is None:
        return None
    at = datetime.strptime(found["time"] + "000", "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
    about = _PARTITION.search(found["message"]) or _METADATA_PARTITION.search(found["message"])
    tp = TopicPartition(about["topic"], int(about["number"])) if about else None
    return StateChangeLine(round(at.timestamp() * 1000), found["level"], found["message"], tp)


def named(tp: TopicPartition) -> str:
    """`[topic,0]`, as the lines name a partition."""
    return f"[{tp.topic},{tp.partition}]"


class ControllerLines(NamedTuple):
    """What a controller writes in one of its terms."""

    broker: BrokerId
    epoch: int

    def _trace(self, text: str) -> StateChange:
        return StateChange("TRACE", f"Controller {self.broker} epoch {self.epoch} {text}")

    def _error(self, text: str) -> StateChange:
        return StateChange("ERROR", f"Controller {self.broker} epoch {self.epoch} {text}")

    def partition_changed(self, tp: TopicPartition, before: str, after: str) -> StateChange:
        """A partition is in another state, without a leader."""
        return self._trace(f"changed partition {named(tp)} state from {before} to {after}")

    def partition_online(self, tp: TopicPartition, before: str, leader: BrokerId) -> StateChange:
        """A partition has a leader, perhaps another one."""
        return self._trace(
            f"changed partition {named(tp)} from {before} to OnlinePartition with leader {leader}"
        )

    def replica_changed(self, replica: Replica, before: str, after: str) -> StateChange:
        """A replica is in another state."""
        return self._trace(
            f"changed state of replica {replica.broker} for partition {named(replica.tp)} from {before} to {after}"
        )

    def election_started(self, tp: TopicPartition) -> StateChange:
        """A leader is being looked for."""
        return self._trace(f"started leader election for partition {named(tp)}")

    def leader_elected(self, tp: TopicPartition, leader: BrokerId) -> StateChange:
        """A leader was found and written."""
        return self._trace(f"elected leader {leader} for Offline partition {named(tp)}")

    def election_failed(self, tp: TopicPartition, reason: str) -> StateChange:
        """No leader was found."""
        return self._error(
            f"encountered error while electing leader for partition {named(tp)} due to: {reason}"
        )

    def data_may_be_lost(self, tp: TopicPartition, leader: BrokerId, isr: Iterable[BrokerId]) -> StateChange:
        """The leader was not known to have everything."""
        members = ",".join(map(str, isr)) or "none"
        return StateChange(
            "WARN",
            f"Controller {self.broker} epoch {self.epoch} elected leader {leader} for partition {named(tp)} though "
            f"no broker in ISR {members} has all its data. There's potential data loss.",
        )

    def replicas_offline(self, broker: BrokerId, offline: Offline | None) -> StateChange:
        """A broker says which replicas it cannot serve or write now."""
        if offline is None:
            return self._trace(f"learned that no replica of broker {broker} is offline any more")
        some = [f"{named(tp)} ({reason})" for tp, reason in sorted(offline.partitions.items())]
        rows = some if offline.everything is None else [f"all ({offline.everything})", *some]
        return self._trace(f"learned that these replicas of broker {broker} are offline: {', '.join(rows)}")

    def reassignment_started(
        self, tp: TopicPartition, before: Iterable[BrokerId], target: Iterable[BrokerId]
    ) -> StateChange:
        """A partition is to have other replicas."""
        return self._trace(
            f"started reassigning partition {named(tp)} from replicas {_ids(before)} to {_ids(target)}"
        )

    def reassignment_done(self, tp: TopicPartition, target: Iterable[BrokerId]) -> StateChange:
        """It has them, and no others."""
        return self._trace(f"reassigned partition {named(tp)} to replicas {_ids(target)}")

    def reassignment_refused(
        self, tp: TopicPartition, target: Iterable[BrokerId], reason: str
    ) -> StateChange:
        """It cannot have them."""
        return self._error(f"does not reassign partition {named(tp)} to replicas {_ids(target)}: {reason}")

    def telling_leadership(self, tp: TopicPartition, state: LeaderAndIsr, receiver: BrokerId) -> StateChange:
        """A LeaderAndIsr request goes out."""
        role = "leader" if state.leader == receiver else "follower"
        return self._trace(
            f"sending become-{role} LeaderAndIsr request {state} to broker {receiver} for partition {named(tp)}"
        )

    def telling_metadata(self, tp: TopicPartition, state: LeaderAndIsr, receiver: BrokerId) -> StateChange:
        """An UpdateMetadata request goes out."""
        return self._trace(f"sending UpdateMetadata request {state} to broker {receiver} for partition {tp}")


class RequestLines(NamedTuple):
    """What a broker writes about a request of a controller."""

    broker: BrokerId
    controller: BrokerId
    controller_epoch: int
    correlation_id: int

    def _from(self) -> str:
        return f"from controller {self.controller} epoch {self.controller_epoch}"

    def received(
        self, tp: TopicPartition, state: LeaderAndIsr, replicas: tuple[BrokerId, ...]
    ) -> StateChange:
        """One partition of a LeaderAndIsr request."""
        return StateChange(
            "TRACE",
            f"Broker {self.broker} received LeaderAndIsr request {_info(state, replicas)} correlation id "
            f"{self.correlation_id} {self._from()} for partition {named(tp)}",
        )

    def ignored_controller(self, known_epoch: int) -> StateChange:
        """A whole request of a former controller."""
        return StateChange(
            "WARN",
            f"Broker {self.broker} ignoring request from controller {self.controller} with correlation id "
            f"{self.correlation_id} since its controller epoch {self.controller_epoch} is old. "
            f"Latest known controller epoch is {known_epoch}",
        )

    def ignored(self, tp: TopicPartition, leader_epoch: int, known_epoch: int) -> StateChange:
        """One partition of a request, of a former leader epoch or of the one that is known."""
        return StateChange(
            "WARN",
            f"Broker {self.broker} ignoring LeaderAndIsr request from controller {self.controller} with correlation "
            f"id {self.correlation_id} epoch {self.controller_epoch} for partition {named(tp)} since its associated "
            f"leader epoch {leader_epoch} is old. Current leader epoch is {known_epoch}",
        )

    def not_mine(self, tp: TopicPartition, replicas: tuple[BrokerId, ...]) -> StateChange:
        """One partition of a request, which this broker has no replica of."""
        return StateChange(
            "WARN",
            f"Broker {self.broker} ignoring LeaderAndIsr request from controller {self.controller} with correlation "
            f"id {self.correlation_id} epoch {self.controller_epoch} for partition {named(tp)} as itself is not in "
            f"assigned replica list {_ids(replicas)}",
        )

    def handling(self, tp: TopicPartition, role: str) -> StateChange:
        """`role` (leader or follower) is being taken."""
        return StateChange(
            "TRACE",
            f"Broker {self.broker} handling LeaderAndIsr request correlationId {self.correlation_id} {self._from()} "
            f"starting the become-{role} transition for partition {named(tp)}",
        )

    def completed(self, tp: TopicPartition, role: str) -> StateChange:
        """`role` (leader or follower) was taken."""
        return StateChange(
            "TRACE",
            f"Broker {self.broker} completed LeaderAndIsr request correlationId {self.correlation_id} {self._from()} "
            f"for the become-{role} transition for partition {named(tp)}",
        )

    def cached(self, tp: TopicPartition, state: LeaderAndIsr, replicas: tuple[BrokerId, ...]) -> StateChange:
        """One partition of an UpdateMetadata request."""
        return StateChange(
            "TRACE",
            f"Broker {self.broker} cached leader info {_info(state, replicas)} for partition {named(tp)} in response "
            f"to UpdateMetadata request sent by controller {self.controller} epoch {self.controller_epoch} with "
            f"correlation id {self.correlation_id}",
        )

    def stopping(self, tp: TopicPartition, *, delete: bool, done: bool) -> StateChange:
        """One partition of a StopReplica request, before and after."""
        verb = "finished handling" if done else "handling"
        return StateChange(
            "TRACE",
            f"Broker {self.broker} {verb} stop replica (delete={str(delete).lower()}) for partition {named(tp)}",
        )


def _ids(brokers: Iterable[BrokerId]) -> str:
    return ",".join(map(str, brokers)) or "none"


def _info(state: LeaderAndIsr, replicas: tuple[BrokerId, ...]) -> str:
    assigned = ",".join(map(str, replicas))
    return f"(LeaderAndIsrInfo:{state},ReplicationFactor:{len(replicas)}),AllReplicas:{assigned})"
