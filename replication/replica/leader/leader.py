"""Leader: the role of a replica that leads. It drives `isr`, takes records, and serves fetches.

The role lasts until another broker leads, or the session ends: a controller may begin any number of leader epochs with
it meanwhile (`lead_on`), and no append is refused for that. Followers ask anew in each epoch.

Whoever comes after the role was left is told NOT_LEADER_OR_FOLLOWER. Belongs to the event loop. Appends that wait for
the log's queue go to it together.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from logstore.config import names_replica
from logstore.errors import DiskFullError
from logstore.log.validation import AppendInfo
from logstore.log.writer import Plain
from logstore.records.marker import Marker
from replication.errors import ErrorCode, InvalidRecordsError, code_of, is_disk_dead
from replication.model.cluster import Assignment, LeaderAndIsr
from replication.protocol.messages import FetchPartition, PartitionFetched
from replication.protocol.wire import Buffer
from replication.replica.leader import guard
from replication.replica.leader.log_starts import LogStarts
from replication.replica.leader.purgatory import CommitWait, PendingAppend, PendingProduce, PendingProduces
from replication.replica.leader.results import ALL_IN_SYNC, AppendResult, FetchTerms
from replication.replica.leader.standing import StandingFollowers
from replication.replica.leader.writers import Writers
from replication.replica.machine import isr
from replication.replica.storage.batch_cache import BatchCache
from replication.replica.storage.replica_log import ReplicaLog

logger = logging.getLogger(__name__)

NOT_LEADER = AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)

# What the event loop writes itself, if nothing stands in the way: more belongs to a thread.
PROMPT_BYTES_MAX = 32 * 1024
Outcome: TypeAlias = AppendInfo | Exception  # of an append


class Append(NamedTuple):
    """Records that a producer sent for one partition, on their way to the log; or a marker."""

    records: bytearray | memoryview
    acks: int
    request: PendingProduce | PendingAppend
    marker: Marker | None = None
    is_own: bool = False  # made by this broker, which nobody needs to look into


class _AppendGroup:
    """The appends that go to the log together. A job of its queue."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.appends: list[Append] = []
        self.outcomes: list[Outcome] = []
        self.offsets = (0, 0)

    def seal(self) -> None:
        self.leader.seal(self)

    def run(self) -> None:
        replica, epoch = self.leader.replica, self.leader.state.leader_epoch
        try:
            replica.host.keep_reserve()
            for is_marker, some in groupby(self.appends, lambda append: append.marker is not None):
                if is_marker:
                    self.outcomes += _append_markers(replica, [each.marker for each in some if each.marker], epoch)
                else:
                    self.outcomes += [_append(replica, append, epoch) for append in some]
        except Exception as error:  # noqa: BLE001  every one of them gets it
            self.outcomes += [error] * (len(self.appends) - len(self.outcomes))
        self.offsets = replica.offsets()

    def done(self) -> None:
        self.leader.appended(self)


def _append(replica: ReplicaLog, append: Append, leader_epoch: int) -> Outcome:
    records = append.records
    try:
        if not append.is_own:
            guard.check(records, replica.config, replica.host.clock.now_ms())
        if replica.host.is_sound():
            # Nobody else changes the files of a broker: to lock them and look costs as much as the append.
            done = replica.log.try_append_as_leader(records, leader_epoch=leader_epoch)
            if done is not None:
                return done
        return replica.log.append_as_leader(records, leader_epoch=leader_epoch)
    except Exception as error:  # noqa: BLE001  it becomes a code, or is logged, in the event loop
        return error


def _append_markers(replica: ReplicaLog, markers: Sequence[Marker], leader_epoch: int) -> Sequence[Outcome]:
    """One that is there already, or ends nothing, counts as written once all before the log's end is committed."""
    try:
        return replica.log.append_markers(markers, leader_epoch=leader_epoch, is_owner=replica.host.is_sound())
    except Exception as error:  # noqa: BLE001  as above
        return [error] * len(markers)


class Leader:
    def __init__(self, replica: ReplicaLog, stored: LeaderAndIsr, replicas: Assignment, high_watermark: int) -> None:
        self.replica = replica
        self.recent = BatchCache()
        self.starts = LogStarts()  # of the followers
        self.standing = StandingFollowers()
        self.writers = Writers()
        self._told: dict[int, int] = {}  # follower -> the high watermark that it was told last
        self._waits = PendingProduces()
        self._group: _AppendGroup | None = None
        self._is_advancing = False  # will, at the end of this turn
        self.is_over = False
        self._limits = isr.IsrSettings(
            replica.host.config.replica_lag_time_max_ms, replica.host.config.replica_lag_max_messages
        )
        self.state, effects = isr.lead(
            replica.host.broker,
            stored,
            replicas,
            log_end_offset=replica.end,
            high_watermark=high_watermark,
            now_ms=replica.host.clock.monotonic_ms(),
        )
        self._perform(effects)

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    def leave(self) -> None:
        self.is_over = True
        for wait in self._waits.all():
            wait.request.settle(self.replica.tp, NOT_LEADER)
        self.replica.wake_followers()
        self.replica.wake_consumers()
        self.starts.tell()

    def lead_on(self, stored: LeaderAndIsr, replicas: Assignment) -> None:
        """Begin another leader epoch. What waits to be committed waits on, for the followers of this one.

        Fetches in the former epoch are answered now: see `Reading.refusal`.
        """
        host = self.replica.host
        self.standing.clear()
        self.starts.clear()
        self.state, effects = isr.lead_on(
            self.state, stored, replicas, log_end_offset=self.replica.end, now_ms=host.clock.monotonic_ms()
        )
        self._perform(effects)
        self.replica.wake_followers()
        self.replica.wake_consumers()
        self.starts.tell()  # who has left is not waited for

    # ----------------------------------------------------------------- machine

    def step(self, event: isr.Event) -> None:
        if not self.is_over:
            self.state, effects = isr.step(self.state, event, self._limits)
            if effects:
                self._perform(effects)

    def tick(self, now_ms: int) -> None:
        if self._waits:
            self._waits.sweep()
        in_sync, lag_ms_max = self.state.isr, self._limits.replica_lag_time_max_ms
        if not self.standing.are_all(in_sync, now_ms - lag_ms_max // 2):  # else nobody is too slow
            self._note_standing()
            self.step(isr.Ticked(now_ms))

    def _note_standing(self) -> None:
        for event in self.standing.events(self.state.isr):
            self.step(event)

    def _perform(self, effects: tuple[isr.Effect, ...]) -> None:
        host, tp = self.replica.host, self.replica.tp
        for effect in effects:
            match effect:
                case isr.HighWatermarkMoved(high_watermark):
                    self._committed(high_watermark)
                case isr.WriteIsr():
                    host.isr.write(tp, self.state.leader_epoch, effect, self.step)
                case isr.RefreshLeadership():
                    host.counters.failed_isr_updates += 1
                    host.isr.refresh(tp, self.step)
                case isr.IsrChanged(before, after):
                    self._isr_changed(before, after)

    def _isr_changed(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        host, tp = self.replica.host, self.replica.tp
        logger.info("tp=%s epoch=%d isr=%s was=%s", tp, self.state.leader_epoch, after, before)
        host.counters.isr_shrinks += not set(before) <= set(after)
        host.counters.isr_expands += not set(after) <= set(before)
        host.isr.changed(tp)
        self.starts.tell()  # who has left is not waited for

    # ----------------------------------------------------------------- produce

    def append(
        self, records: bytearray | memoryview, acks: int, request: PendingProduce, *, is_own: bool = False
    ) -> None:
        """Append the records behind all that came before, stamped in place; settle `request` with what became of them.

        The event loop writes them where that takes less than to have a thread do it. `is_own`: this broker made them,
        and the guard passes them unseen.
        """
        replica = self.replica
        if acks == ALL_IN_SYNC and not self.has_enough_replicas():
            refused = AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS, error_message=self._too_few())
            request.settle(replica.tp, refused)
            return
        outcome = self._write(records, is_own=is_own)
        if outcome is None:  # it may take longer
            self.append_later(Append(records, acks, request, is_own=is_own))
        elif self.is_over:
            request.settle(replica.tp, NOT_LEADER)
        else:
            self._settle(records, acks, request, outcome, is_committed=self.commits_by_append())

    def append_each(self, batches: Sequence[Plain], *, is_own: bool = False) -> Sequence[AppendInfo | AppendResult]:
        """Append plain batches; return what became of the first ones. The others may take longer, and were not tried.

        The caller looks (see `Host.look`) before it acknowledges them. With acks=all they wait for the high watermark:
        `wait_for_commit`. `is_own` is as in `append`.
        """
        replica, disk = self.replica, self.replica.host.disk
        if not is_own:
            batches = self._that_pass(batches)
        if self._group or not batches or not replica.host.is_sound() or not disk.begin_write(replica.queue):
            return ()
        try:
            outcomes = replica.log.try_append_each(batches, leader_epoch=self.state.leader_epoch)
        finally:
            disk.end_write()
        if not outcomes:
            return ()
        self._written()
        if len(outcomes) == 1 and isinstance(outcomes[0], AppendInfo):
            self._note_appended(batches[0][0], outcomes[0])
            return [outcomes[0]]
        found = list[AppendInfo | AppendResult]()
        for (records, _), outcome in zip(batches, outcomes, strict=False):
            if isinstance(outcome, AppendInfo):
                self._note_appended(records, outcome)
                found.append(outcome)
            else:
                found.append(self._result(records, outcome))
        return found

    def _that_pass(self, batches: Sequence[Plain]) -> Sequence[Plain]:
        """Return the first ones that the guard passes at once."""
        terms = self._terms()
        for count, (records, _) in enumerate(batches):
            if not guard.passes(records, terms):
                return batches[:count]
        return batches

    def _terms(self) -> guard.Terms:
        return guard.terms_of(self.replica.config, self.replica.host.clock.now_ms())

    def has_enough_replicas(self) -> bool:
        return isr.has_enough_replicas(self.state, self.replica.log.config.min_insync_replicas)

    def wait_for_commit(self, info: AppendInfo, request: PendingProduce | PendingAppend) -> None:
        """Settle the request when these records are committed."""
        result = AppendResult(ErrorCode.NONE, info.first_offset, info.append_time_ms, self.replica.start)
        self._waits.add(CommitWait(info.next_offset, result, request))

    def commits_by_append(self) -> bool:
        """Is what is appended now committed by that, since no other replica is in sync, and nothing waits before it?"""
        return self.state.is_alone and not self._waits

    def _write(self, records: bytearray | memoryview, *, is_own: bool = False) -> Outcome | None:
        """Write them in the event loop. None: that may take longer, or is not its turn, and nothing was done."""
        replica, host = self.replica, self.replica.host
        outcome: Outcome | None = None
        if (
            self._group is None
            and len(records) <= PROMPT_BYTES_MAX
            and (is_own or guard.passes(records, self._terms()))
            and host.is_sound()
            and host.disk.begin_write(replica.queue)
        ):
            try:
                outcome = replica.log.try_append_as_leader(records, leader_epoch=self.state.leader_epoch)
            except Exception as error:  # noqa: BLE001  it becomes a code, or is logged
                outcome = error
            host.disk.end_write()
        if outcome is not None:
            host.look()
            self._written()
        return outcome

    def _written(self) -> None:
        """Behind a write of the event loop: note the log's end, and wake who waits for it at the end of the turn."""
        replica = self.replica
        replica.end = end = replica.log.files.view.tail.next_offset  # an append moves no start
        if self.is_over:
            return
        is_alone = self.commits_by_append()
        if is_alone:
            self.standing.clear()  # of followers out of sync
            self.state = isr.append_alone(self.state, max(end, self.state.log_end_offset))
        if not self._is_advancing and not (is_alone and not replica.followers and not replica.consumers):
            self._is_advancing = True  # at the end of this turn: more may come in it
            replica.host.disk.loop.call_soon(self._advance)

    def append_marker(self, marker: Marker, request: PendingProduce) -> None:
        """End a transaction behind all that came before; settle `request` when that is committed.

        From now on nobody writes in that transaction here.
        """
        self.writers.end(marker)
        if not self.has_enough_replicas():
            few = AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS, error_message=self._too_few())
            request.settle(self.replica.tp, few)
            return
        self.append_later(Append(bytearray(), ALL_IN_SYNC, request, marker))

    def append_later(self, append: Append) -> None:
        """Append it in a thread, behind all that came before."""
        if self.is_over:
            append.request.settle(self.replica.tp, NOT_LEADER)
            return
        if self._group is None:
            self._group = _AppendGroup(self)
            self.replica.host.disk.submit(self.replica.queue, self._group)
        self._group.appends.append(append)

    def seal(self, group: _AppendGroup) -> None:
        if self._group is group:
            self._group = None

    def appended(self, group: _AppendGroup) -> None:
        self.replica.host.look()
        self.replica.note(group.offsets)
        for (records, acks, request, *_), outcome in zip(group.appends, group.outcomes, strict=True):
            if self.is_over:
                self._result(records, outcome)
                request.settle(self.replica.tp, NOT_LEADER)
            else:
                self._settle(records, acks, request, outcome)
        self._advance()

    def _advance(self) -> None:
        self._is_advancing = False
        if not self.is_over:
            self.replica.wake_followers()
            if self.standing and self.replica.end > self.state.log_end_offset:
                self._note_standing()
                self.standing.clear()
            # Never less than before: where damage hides the end of the log, followers would cut theirs.
            self.step(isr.Appended(max(self.replica.end, self.state.log_end_offset)))
            self._committed(self.state.high_watermark)

    def _settle(
        self,
        records: Buffer,
        acks: int,
        request: PendingProduce | PendingAppend,
        outcome: Outcome,
        *,
        is_committed: bool = False,
    ) -> None:
        """Give the request the result, now or when it is committed."""
        result = self._result(records, outcome)
        if is_committed or acks != ALL_IN_SYNC or isinstance(outcome, Exception):
            request.settle(self.replica.tp, result)
        else:
            self._waits.add(CommitWait(outcome.next_offset, result, request))

    def _note_appended(self, records: Buffer, info: AppendInfo) -> None:
        size_bytes = len(records)
        has_readers = self.state.followers or self.replica.consumers
        if has_readers and 0 < size_bytes == info.bytes:  # no duplicate, nor part of one; no marker
            self.recent.note(info.first_offset, info.next_offset, records)
        counters = self.replica.host.counters
        counters.bytes_in += size_bytes
        counters.messages_in += info.next_offset - info.first_offset

    def _result(self, records: Buffer, outcome: Outcome) -> AppendResult:
        if isinstance(outcome, AppendInfo):
            self._note_appended(records, outcome)
            return AppendResult(ErrorCode.NONE, outcome.first_offset, outcome.append_time_ms, self.replica.start)
        if is_disk_dead(outcome):
            self.replica.host.disk_failed()
        self.replica.suspect(outcome)
        code = code_of(outcome)
        if isinstance(outcome, DiskFullError):
            self.replica.host.disk_full()  # says so once
        elif code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR):
            logger.error("tp=%s append failed: %s", self.replica.tp, outcome, exc_info=outcome)
        rows = outcome.rows if isinstance(outcome, InvalidRecordsError) else ()
        return AppendResult(code, error_message=str(outcome), wrong_rows=rows)

    def _committed(self, high_watermark: int) -> None:
        """Answer the appends below; let consumers read on."""
        minimum = self.replica.config.min_insync_replicas
        reached = self._waits.reached(high_watermark)
        if reached:
            self.replica.host.look()
        for _, appended, request in reached:
            result = appended
            if self.is_over:
                result = NOT_LEADER
            elif not isr.has_enough_replicas(self.state, minimum):
                result = result._replace(
                    error_code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, error_message=self._too_few()
                )
            request.settle(self.replica.tp, result)
        self.standing.tell()
        self.replica.wake_consumers()
        if self.replica.host.config.has_nearest_reads:
            self.replica.wake_followers()  # their consumers wait for the high watermark

    def _too_few(self) -> str:
        return (
            f"{self.replica.tp} has in-sync replicas {', '.join(map(str, self.state.isr))}; "
            f"min.insync.replicas is {self.replica.config.min_insync_replicas}"
        )

    # ------------------------------------------------------------------- fetch

    def admit(self, asked: FetchPartition, terms: FetchTerms) -> PartitionFetched | None:
        """Note what a follower has by what it asks for. Returns the answer if nothing is to be read."""
        if terms.is_follower:
            error = isr.judge_fetch(
                self.state,
                terms.replica_id,
                leader_epoch=asked.current_leader_epoch,
                broker_epoch=terms.replica_epoch,
            )
        else:
            error = self.judge_epoch(asked.current_leader_epoch)
        if error:
            return PartitionFetched(self.replica.tp.partition, error)
        if self.replica.ends_early and (terms.is_follower or asked.fetch_offset >= self.state.log_end_offset):
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR)
        if not self.replica.start <= asked.fetch_offset <= self.state.log_end_offset:
            return self.refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if terms.is_follower:
            self.starts.note(terms.replica_id, asked.log_start_offset)
            now_ms = self.replica.host.clock.monotonic_ms()
            self.step(isr.Fetched(terms.replica_id, asked.fetch_offset, now_ms, terms.replica_epoch))
        return None

    def refused(self, code: ErrorCode) -> PartitionFetched:
        tp, start = self.replica.tp, self.replica.start
        return PartitionFetched(tp.partition, code, self.high_watermark, log_start_offset=start)

    def has_news(self, follower: int) -> bool:
        """Must a follower hear of the high watermark at once, for the consumers that it serves?"""
        return self.replica.host.config.has_nearest_reads and self._told.get(follower, -1) < self.high_watermark

    def tell(self, follower: int) -> None:
        self._told[follower] = self.high_watermark

    def is_throttled(self, follower: int) -> bool:
        """Return whether the quota holds back what this follower copies: never while it is in sync."""
        listed = self.replica.config.leader_replication_throttled_replicas
        if not listed or follower in self.state.isr:
            return False
        return names_replica(listed, self.replica.tp.partition, self.state.broker)

    def readable_end(self, terms: FetchTerms) -> int:
        return self.state.log_end_offset if terms.reads_all else self.high_watermark

    def judge_epoch(self, asked: int) -> ErrorCode:
        return isr.judge_epoch(self.state.leader_epoch, asked)

    @property
    def low_watermark(self) -> int:
        """Nothing below is at any replica in sync."""
        followers = [broker for broker in self.state.isr if broker != self.state.broker]
        return self.starts.low_watermark(self.replica.start, followers)
