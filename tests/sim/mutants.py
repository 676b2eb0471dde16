"""Bugs that are put into the product, and that the laws must find."""

from __future__ import annotations

import enum
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from logstore.log.holes import SegmentCopy
from logstore.log.producers import state
from replication.coordinators.groups import coordinator
from replication.coordinators.groups.classic import commits
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.coordinators.transactions.machine import events
from replication.coordinators.transactions.machine import step as transactions
from replication.coordinators.transactions.machine.state import DECIDED, Transaction
from replication.errors import ErrorCode
from replication.replica import requests, second_copy
from replication.replica.leader.leader import Leader
from replication.replica.leader.rows import Row
from replication.replica.leader.sessions import FetchSession
from replication.replica.leader.writers import Writers
from replication.replica.machine import follower, isr, leadership
from replication.replica.storage.log_dir import ReplicaLogDir


class Mutant(enum.Enum):
    TRUNCATE_TO_HW = "a follower cuts its log at its high watermark"
    COMMITTED_ISR_ONLY = "the high watermark does not wait for an ISR that is being written"
    NO_CONTROLLER_EPOCH_CHECK = "writes and requests of a former controller count"
    CUT_IN_THE_DARK = "a follower whose cut failed asks where no epoch ends, and cuts there"
    CUT_UNASKED = "a damaged replica is cut on the word that it is out of the ISR"
    NOT_FILLED = "what is damaged waits for a leader that shows all that is behind it, for ever"
    NO_RECOVERY = "a broker opens its logs after a crash as it does after a clean end"
    WAITS_OUTLIVE_ROLES = "an append that waits is answered by a later leadership, though its records were cut"
    POWER_CUT_UNNOTICED = "a broker takes a failure of the power for one of its process"
    STANDING_COUNTS = "a follower that stands at the log's end is said to have what is appended behind it"
    ACKED_TWICE = "of the batches of one turn, one is acknowledged twice, and another one not"
    APPENDED_TWICE = "a batch that an idempotent producer repeats is appended again"
    SESSION_FORGETS = "a fetch session forgets a partition that is written to between two requests"
    NO_QUESTION = "a leader takes the first batch of a transaction without asking the coordinator"
    TOLD_BEFORE_STORED = "a decision is told, and markers are written, before it is stored"
    FENCED_ENDS = "a producer that was fenced ends the transaction of the one that took its place"
    ABORTED_OFFSETS = "the offsets of a transaction count, whatever its marker says"
    ANY_GENERATION = "a group takes offsets from members that it has left behind"


def _follow_from_hw(leader: int, leader_epoch: int, **known: Any) -> follower.Step:
    """Cut at the high watermark, then fetch."""
    state, _ = right_follow(leader, leader_epoch, **known)
    state = state._replace(phase=follower.Phase.TRUNCATING, asked=-1, is_asking=False)
    return state, (follower.TruncateTo(state.high_watermark),)


right_follow, right_judge = follower.follow, leadership.judge_request
right_append, right_woken = Leader.append, FetchSession.woken
right_leave, right_init = Leader.leave, Leader.__init__
right_append_state, right_appended_state = TransactionCoordinator._append, TransactionCoordinator._appended
right_end_refusal = transactions._end_refusal
right_ended = GroupCoordinator.transaction_ended
right_open = ReplicaLogDir._open_or_mend


def _judge_any_controller(**given: Any) -> Any:
    return right_judge(**{**given, "known_controller_epoch": given["controller_epoch"]})


def _write_failed(state: follower.FollowerState, event: follower.WriteFailed) -> follower.Step:
    return state._replace(is_asking=False, is_paused=True), (follower.Pause(),)


async def _shown(*_: Any) -> None:
    """Without a look."""


def _open_as_clean(self: ReplicaLogDir, tp: Any, config: Any, point: int, *, is_clean: bool) -> Any:
    return right_open(self, tp, config, point, is_clean=True)


def _leave(self: Leader) -> None:
    waits, self._waits = self._waits, type(self._waits)()
    right_leave(self)
    self.replica.waits = waits


def _init(self: Leader, replica: Any, *args: Any) -> None:
    right_init(self, replica, *args)
    if (waits := getattr(replica, "waits", None)) is not None:
        self._waits = waits


def _stands_at_the_end(self: Row) -> isr.Fetched:
    reader, end = self.reader, self.leader.replica.end
    return isr.Fetched(reader.replica_id, end, reader.asked_ms, reader.replica_epoch)


def _kept(self: state.ProducerState, batch: Any) -> None:
    """None is a repetition."""


def _follows(producer: state.ProducerState, batch: Any) -> None:
    """Whatever its number."""


def _append(self: Leader, appends: Any, **how: Any) -> Any:
    found = right_append(self, appends, **how)
    return found[:1] * len(found) if None not in found else found


def _woken(self: FetchSession, row: Row) -> None:
    if self.wake is not None:
        right_woken(self, row)


def _writes_any(state: Any, *_: Any) -> bool:
    return True


def _append_hastily(self: TransactionCoordinator, term: Any, slot: Any, append: events.Append) -> None:
    right_append_state(self, term, slot, append)
    if append.stored.phase in DECIDED:
        self._post(term, slot, events.Stored(append))


def _appended_later(self: TransactionCoordinator, term: Any, slot: Any, append: events.Append, written: Any) -> None:
    if append.stored.phase not in DECIDED:
        right_appended_state(self, term, slot, append, written)


def _end_refusal(t: Transaction, event: events.End, *, is_repeated: bool) -> Any:
    return right_end_refusal(t, replace(event, producer_epoch=t.producer_epoch), is_repeated=is_repeated)


def _commits(self: GroupCoordinator, partition: int, producer_id: int, *, commits: bool) -> None:
    right_ended(self, partition, producer_id, commits=True)


def _may_commit(*_: Any, **__: Any) -> ErrorCode:
    return ErrorCode.NONE


def _patch(owner: Any, name: str, wrong: Any) -> Any:
    @contextmanager
    def patched() -> Any:
        right = owner.__dict__[name]
        setattr(owner, name, wrong)
        try:
            yield
        finally:
            setattr(owner, name, right)

    return patched


@contextmanager
def _waits_outlive_roles() -> Any:
    with _patch(Leader, "leave", _leave)(), _patch(Leader, "__init__", _init)():
        yield


@contextmanager
def _appended_twice() -> Any:
    with _patch(state.ProducerState, "kept", _kept)(), _patch(state, "_check", _follows)():
        yield


@contextmanager
def _any_generation() -> Any:
    with _patch(commits, "may_commit", _may_commit)(), _patch(coordinator, "may_commit", _may_commit)():
        yield


@contextmanager
def _told_before_stored() -> Any:
    owner = TransactionCoordinator
    with _patch(owner, "_append", _append_hastily)(), _patch(owner, "_appended", _appended_later)():
        yield


@contextmanager
def _standing_counts() -> Any:
    with _patch(Row, "event", property(_stands_at_the_end))():
        yield


PATCHES = {
    Mutant.TRUNCATE_TO_HW: _patch(follower, "follow", _follow_from_hw),
    Mutant.COMMITTED_ISR_ONLY: _patch(isr.Leading, "maximal_isr", property(lambda state: state.isr)),
    Mutant.NO_CONTROLLER_EPOCH_CHECK: _patch(requests, "judge_request", _judge_any_controller),
    Mutant.CUT_IN_THE_DARK: _patch(follower, "_write_failed", _write_failed),
    Mutant.CUT_UNASKED: _patch(second_copy, "read", _shown),
    Mutant.NOT_FILLED: _patch(SegmentCopy, "put", SegmentCopy.drop),
    Mutant.NO_RECOVERY: _patch(ReplicaLogDir, "_open_or_mend", _open_as_clean),
    Mutant.WAITS_OUTLIVE_ROLES: _waits_outlive_roles,
    Mutant.POWER_CUT_UNNOTICED: _patch(ReplicaLogDir, "_boot", lambda self: "this one"),
    Mutant.STANDING_COUNTS: _standing_counts,
    Mutant.ACKED_TWICE: _patch(Leader, "append", _append),
    Mutant.APPENDED_TWICE: _appended_twice,
    Mutant.SESSION_FORGETS: _patch(FetchSession, "woken", _woken),
    Mutant.NO_QUESTION: _patch(Writers, "holds", _writes_any),
    Mutant.TOLD_BEFORE_STORED: _told_before_stored,
    Mutant.FENCED_ENDS: _patch(transactions, "_end_refusal", _end_refusal),
    Mutant.ABORTED_OFFSETS: _patch(GroupCoordinator, "transaction_ended", _commits),
    Mutant.ANY_GENERATION: _any_generation,
}
