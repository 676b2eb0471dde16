"""The lines of `state-change.log`: changes of partitions and replicas, and the requests that carry them.

Wording and layout are Kafka 0.9's, for people and tools that know its logs::

    [2026-11-21 03:16:27,564] TRACE Controller 3 epoch 1 elected leader 2 for … (state.change.logger)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from replication.model.cluster import BrokerId, LeaderAndIsr, Offline, Replica, TopicPartition, ids_of

LOGGER_NAME = "state.change.logger"


@dataclass(frozen=True, slots=True)
class StateChange:
    level: str
    message: str


def format_line(time_ms: int, change: StateChange) -> str:
    """Return the line as the file has it, in UTC and without the line break."""
    second, ms = divmod(time_ms, 1000)
    return f"[{_second(second)},{ms:03d}] {change.level} {change.message} ({LOGGER_NAME})"


@lru_cache(maxsize=2)
def _second(second: int) -> str:
    """Return this second as text; cached, since thousands of lines have the same one."""
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M:%S}"


def named(tp: TopicPartition) -> str:
    return f"[{tp.topic},{tp.partition}]"


class ControllerLines(NamedTuple):
    broker: BrokerId
    epoch: int

    def _line(self, text: str, level: str = "TRACE") -> StateChange:
        return StateChange(level, f"Controller {self.broker} epoch {self.epoch} {text}")

    def partition_changed(self, tp: TopicPartition, before: str, after: str) -> StateChange:
        return self._line(f"changed partition {named(tp)} state from {before} to {after}")

    def partition_online(self, tp: TopicPartition, before: str, leader: BrokerId) -> StateChange:
        return self._line(f"changed partition {named(tp)} from {before} to OnlinePartition with leader {leader}")

    def replica_changed(self, replica: Replica, before: str, after: str) -> StateChange:
        where = f"replica {replica.broker} for partition {named(replica.tp)}"
        return self._line(f"changed state of {where} from {before} to {after}")

    def election_started(self, tp: TopicPartition) -> StateChange:
        return self._line(f"started leader election for partition {named(tp)}")

    def leader_elected(self, tp: TopicPartition, leader: BrokerId) -> StateChange:
        return self._line(f"elected leader {leader} for Offline partition {named(tp)}")

    def election_failed(self, tp: TopicPartition, reason: str) -> StateChange:
        text = f"encountered error while electing leader for partition {named(tp)} due to: {reason}"
        return self._line(text, "ERROR")

    def data_may_be_lost(self, tp: TopicPartition, leader: BrokerId, isr: Iterable[BrokerId]) -> StateChange:
        text = (
            f"elected leader {leader} for partition {named(tp)} though no broker in ISR {ids_of(isr)} has all its "
            "data. There's potential data loss."
        )
        return self._line(text, "WARN")

    def replicas_offline(self, broker: BrokerId, offline: Offline | None) -> StateChange:
        if offline is None:
            return self._line(f"learned that no replica of broker {broker} is offline any more")
        some = [f"{named(tp)} ({reason})" for tp, reason in sorted(offline.partitions.items())]
        rows = some if offline.everything is None else [f"all ({offline.everything})", *some]
        return self._line(f"learned that these replicas of broker {broker} are offline: {', '.join(rows)}")

    def reassignment_started(
        self, tp: TopicPartition, before: Iterable[BrokerId], target: Iterable[BrokerId]
    ) -> StateChange:
        return self._line(
            f"started reassigning partition {named(tp)} from replicas {ids_of(before)} to {ids_of(target)}"
        )

    def reassignment_done(self, tp: TopicPartition, target: Iterable[BrokerId]) -> StateChange:
        return self._line(f"reassigned partition {named(tp)} to replicas {ids_of(target)}")

    def reassignment_refused(self, tp: TopicPartition, target: Iterable[BrokerId], reason: str) -> StateChange:
        text = f"does not reassign partition {named(tp)} to replicas {ids_of(target)}: {reason}"
        return self._line(text, "ERROR")

    def telling_leadership(self, tp: TopicPartition, state: LeaderAndIsr, receiver: BrokerId) -> StateChange:
        role = "leader" if state.leader == receiver else "follower"
        return self._line(
            f"sending become-{role} LeaderAndIsr request {state} to broker {receiver} for partition {named(tp)}"
        )

    def telling_metadata(self, tp: TopicPartition, state: LeaderAndIsr, receiver: BrokerId) -> StateChange:
        return self._line(f"sending UpdateMetadata request {state} to broker {receiver} for partition {tp}")


class RequestLines(NamedTuple):
    broker: BrokerId
    controller: BrokerId
    controller_epoch: int
    correlation_id: int

    def _line(self, text: str, level: str = "TRACE") -> StateChange:
        return StateChange(level, f"Broker {self.broker} {text}")

    def _ignoring(self, text: str) -> StateChange:
        return self._line(
            f"ignoring LeaderAndIsr request from controller {self.controller} with correlation id "
            f"{self.correlation_id} epoch {self.controller_epoch} for partition {text}",
            "WARN",
        )

    def _transition(self, verb: str, tp: TopicPartition, transition: str) -> StateChange:
        return self._line(
            f"{verb} LeaderAndIsr request correlationId {self.correlation_id} from controller {self.controller} epoch "
            f"{self.controller_epoch} {transition} transition for partition {named(tp)}"
        )

    def received(self, tp: TopicPartition, state: LeaderAndIsr, replicas: tuple[BrokerId, ...]) -> StateChange:
        return self._line(
            f"received LeaderAndIsr request {_info(state, replicas)} correlation id {self.correlation_id} "
            f"from controller {self.controller} epoch {self.controller_epoch} for partition {named(tp)}"
        )

    def ignored_controller(self, known_epoch: int) -> StateChange:
        return self._line(
            f"ignoring request from controller {self.controller} with correlation id {self.correlation_id} since its "
            f"controller epoch {self.controller_epoch} is old. Latest known controller epoch is {known_epoch}",
            "WARN",
        )

    def ignored_life(self) -> StateChange:
        """Names no broker epoch: that is a secret of the brokers."""
        return self._line(
            f"ignoring requests from controller {self.controller} epoch {self.controller_epoch} that name another "
            f"broker epoch than that of this life, first with correlation id {self.correlation_id}",
            "WARN",
        )

    def skipped(self, tp: TopicPartition, role: str, reason: str) -> StateChange:
        return self._line(
            f"skipped the become-{role} state change with correlation id {self.correlation_id} from controller "
            f"{self.controller} epoch {self.controller_epoch} for partition {named(tp)}: {reason}",
            "ERROR",
        )

    def ignored(self, tp: TopicPartition, leader_epoch: int, known_epoch: int) -> StateChange:
        why = f"since its associated leader epoch {leader_epoch} is old. Current leader epoch is {known_epoch}"
        return self._ignoring(f"{named(tp)} {why}")

    def not_mine(self, tp: TopicPartition, replicas: tuple[BrokerId, ...]) -> StateChange:
        return self._ignoring(f"{named(tp)} as itself is not in assigned replica list {ids_of(replicas)}")

    def other_topic(self, tp: TopicPartition, topic_id: str) -> StateChange:
        return self._ignoring(f"{named(tp)} since its replica here is not of the topic with the id {topic_id}")

    def handling(self, tp: TopicPartition, role: str) -> StateChange:
        return self._transition("handling", tp, f"starting the become-{role}")

    def completed(self, tp: TopicPartition, role: str) -> StateChange:
        return self._transition("completed", tp, f"for the become-{role}")

    def cached(self, tp: TopicPartition, state: LeaderAndIsr, replicas: tuple[BrokerId, ...]) -> StateChange:
        return self._line(
            f"cached leader info {_info(state, replicas)} for partition {named(tp)} in response to UpdateMetadata "
            f"request sent by controller {self.controller} epoch {self.controller_epoch} with correlation id "
            f"{self.correlation_id}"
        )

    def stopping(self, tp: TopicPartition, *, delete: bool, done: bool) -> StateChange:
        verb = "finished handling" if done else "handling"
        return self._line(f"{verb} stop replica (delete={str(delete).lower()}) for partition {named(tp)}")


def _info(state: LeaderAndIsr, replicas: tuple[BrokerId, ...]) -> str:
    assigned = ",".join(map(str, replicas))
    return f"(LeaderAndIsrInfo:{state},ReplicationFactor:{len(replicas)}),AllReplicas:{assigned})"
