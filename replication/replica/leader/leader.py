"""Leader: the role of a replica that leads. It drives `isr`, takes records, and serves fetches.

The role lasts until another broker leads, or the session ends: a controller may begin any number of leader epochs with
it meanwhile (`lead_on`), and no append is refused for that. Followers ask anew in each epoch.

Requests that come after the role was left are answered NOT_LEADER_OR_FOLLOWER. Belongs to the event loop. Appends that
wait for the log's queue go to it together.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from logstore.config import names_replica
from logstore.log.validation import AppendOutcome
from logstore.records.marker import Marker
from replication.errors import NONE, ErrorCode
from replication.model.cluster import Assignment, BrokerId, LeaderAndIsr, TopicPartition
from replication.protocol.messages import FetchPartition, PartitionFetched
from replication.replica.leader.append_groups import AppendGroup, HeldAppends
from replication.replica.leader.appends import NO_DEMANDS, NOTHING, Append, failed, write_now
from replication.replica.leader.caught_up import CaughtUp, CaughtUpFollowers
from replication.replica.leader.log_starts import LogStarts
from replication.replica.leader.purgatory import CommitWait, PendingProduce, PendingProduces, Waiter
from replication.replica.leader.readable import Readable
from replication.replica.leader.results import ALL_IN_SYNC, AppendResult, FetchTerms
from replication.replica.leader.schema_records import schema_records
from replication.replica.leader.writers import Writers
from replication.replica.machine import isr
from replication.replica.storage.batch_cache import BatchCache
from replication.replica.storage.replica_log import ReplicaLog

logger = logging.getLogger(__name__)

NOT_LEADER = AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_new = tuple.__new__  # of a value that has all its fields: a third of the time of its class


def _itself(request: PendingProduce) -> PendingProduce:
    return request


def append_one(
    leader: Leader,
    records: bytearray | memoryview | Marker,
    acks: int,
    request: PendingProduce,
    *,
    is_own: bool = False,
    may_write: bool = True,
) -> None:
    """Append one batch or marker, as `Leader.append`; tell `request` what became of it, now or later."""
    (result,) = leader.append((Append(records, acks, _itself, request, is_own),), may_write=may_write)
    if result is not None:
        request.settle(leader.replica.tp, result)


def _too_few(tp: TopicPartition, state: isr.Leading, min_insync_replicas: int) -> str:
    return f"{tp} has in-sync replicas {', '.join(map(str, state.isr))}; min.insync.replicas is {min_insync_replicas}"


class Leader(Readable):
    is_over = False

    def __init__(self, replica: ReplicaLog, stored: LeaderAndIsr, replicas: Assignment, high_watermark: int) -> None:
        self.replica = replica
        self.recent = BatchCache()
        self.starts = LogStarts()  # of the followers
        self.caught_up = CaughtUpFollowers()
        self.writers = Writers()
        self.schemas = schema_records(replica)  # judges them, if they are schemas
        self._sent: dict[int, int] = {}  # follower -> the high watermark that it was sent last
        self._waits = PendingProduces()
        self.group: AppendGroup | None = None  # until the log's queue comes to it
        self.held = HeldAppends(self)
        self._is_advancing = False  # will, at the end of this turn
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

    def leave(self) -> None:
        self.is_over = True
        for wait in self._waits.all():
            wait.request.settle(self.replica.tp, NOT_LEADER)
        self.replica.wake_followers()
        self.replica.wake_consumers()
        self.starts.tell()

    def lead_on(self, stored: LeaderAndIsr, replicas: Assignment) -> None:
        """Begin another leader epoch. Appends that wait to be committed wait on, for the followers of this epoch.

        Fetches in the former epoch are answered now: see `Readable.refusal`.
        """
        host = self.replica.host
        self.caught_up.clear()
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
        since_ms = now_ms - self._limits.replica_lag_time_max_ms // 2
        if not isr.are_all_asking(self.state, self.caught_up, since_ms):  # else nobody is too slow
            self._note_caught_up()
            self.step(isr.Ticked(now_ms))

    def _note_caught_up(self) -> None:
        events, outside = isr.asked_on(self.state, self.caught_up)
        for follower in outside:
            self.caught_up[follower].renew()
        for event in events:
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
                    logger.info("tp=%s epoch=%d isr=%s was=%s", tp, self.state.leader_epoch, after, before)
                    host.counters.isr_shrinks += not set(before) <= set(after)
                    host.counters.isr_expands += not set(after) <= set(before)
                    host.isr.changed(tp)
                    self.starts.tell()  # who has left is not waited for

    # ----------------------------------------------------------------- produce

    def append(self, appends: Sequence[Append], *, may_write: bool = True) -> list[AppendResult | None]:
        """Append these behind all that came before, stamped in place; return what became of each.

        None: the waiter that `wait` of the append returned gets the result. The event loop writes the first ones where
        that takes less than to have a thread do it, if it `may_write`.
        """
        if self.is_over:
            return [NOT_LEADER] * len(appends)
        minimum = self.replica.log.config.min_insync_replicas
        if isr.has_enough_replicas(self.state, minimum):
            return self._append(appends, may_write)
        few = AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS, error_message=_too_few(self.replica.tp, self.state, minimum))
        done = iter(self._append([append for append in appends if append.acks != ALL_IN_SYNC], may_write))
        return [few if append.acks == ALL_IN_SYNC else next(done) for append in appends]

    def end_transaction(self, marker: Marker, request: PendingProduce) -> None:
        """Append the marker, as `append`; `request` gets the result when it is committed.

        From now on nobody writes in that transaction here.
        """
        self.writers.end(marker)
        append_one(self, marker, ALL_IN_SYNC, request)

    def _append(self, appends: Sequence[Append], may_write: bool) -> list[AppendResult | None]:
        replica, outcomes = self.replica, NOTHING
        demands, config = NO_DEMANDS, replica.log.config
        if config.validates_schemas:
            demands = replica.host.schema_ids.fresh_demands(replica.tp.topic, config)
        if may_write and self.group is None and self.schemas is None and not self.held.rows:
            outcomes = write_now(replica, appends, self.state.leader_epoch, demands)
        replica.host.look()
        if outcomes:
            self._written()
        results = self._results(appends, outcomes)
        rest = appends[len(outcomes) :]
        if not rest:
            return results
        if self.is_over:
            return [*results, *[NOT_LEADER] * len(rest)]
        if self.group is None:
            self.group = AppendGroup(self)
            replica.submit(self.group)
        self.group.waiters += [append.wait(append.context) for append in rest]
        self.group.appends += rest
        return [*results, *[None] * len(rest)]

    def _written(self) -> None:
        """Note the log's end after a write of the event loop; wake the fetches that wait when the turn ends."""
        replica = self.replica
        replica.end = end = replica.log.files.view.tail.next_offset  # an append moves no start
        if self.is_over:
            return
        commits = self.state.is_alone and not self._waits  # nobody else is in sync, and nothing waits before it
        if commits:
            self.caught_up.clear()  # of followers out of sync
            self.state = isr.append_alone(self.state, max(end, self.state.log_end_offset))
        if not self._is_advancing and not (commits and not replica.followers and not replica.consumers):
            self._is_advancing = True  # at the end of this turn: more may come in it
            replica.host.disk.loop.call_soon(self._advance)

    def appended(self, group: AppendGroup) -> None:
        self.replica.host.look()
        self.replica.note(group.offsets)
        results = self._results(group.appends, group.outcomes, group.waiters)
        for waiter, result in zip(group.waiters, results, strict=True):
            if result is not None:
                waiter.settle(self.replica.tp, result)
        self._advance()

    def _advance(self) -> None:
        self._is_advancing = False
        if not self.is_over:
            self.replica.wake_followers()
            if self.caught_up and self.replica.end > self.state.log_end_offset:
                self._note_caught_up()
                self.caught_up.clear()
            # Never less than before: where damage hides the end of the log, followers would cut theirs.
            self.step(isr.Appended(max(self.replica.end, self.state.log_end_offset)))
            self._committed(self.state.high_watermark)

    def _results(
        self, appends: Sequence[Append], outcomes: Sequence[AppendOutcome], waiters: Sequence[Waiter] = ()
    ) -> list[AppendResult | None]:
        """Return the result of each outcome; None: its waiter is answered once the records are committed."""
        replica = self.replica
        results: list[AppendResult | None] = []
        messages = in_bytes = 0
        has_readers = self.state.followers or replica.consumers
        for (records, acks, wait, context, _), outcome in zip(appends, outcomes, strict=False):
            if isinstance(outcome, Exception):
                result = failed(replica, outcome)
            else:
                first, following, append_ms, written_bytes, _ = outcome
                messages += following - first
                if not isinstance(records, Marker):
                    size_bytes = len(records)
                    in_bytes += size_bytes
                    if has_readers and 0 < size_bytes == written_bytes:  # no duplicate, nor part of one
                        self.recent.note(first, following, records)
                result = _new(AppendResult, (NONE, first, append_ms, replica.start, None, ()))
                if acks == ALL_IN_SYNC and following > self.state.high_watermark and not self.is_over:
                    self._waits.add(CommitWait(following, result, waiters[len(results)] if waiters else wait(context)))
                    results.append(None)
                    continue
            results.append(NOT_LEADER if self.is_over else result)
        replica.host.counters.messages_in += messages
        replica.host.counters.bytes_in += in_bytes
        return results

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
                few = _too_few(self.replica.tp, self.state, minimum)
                result = result._replace(error_code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, error_message=few)
            request.settle(self.replica.tp, result)
        self.caught_up.tell()
        self.replica.wake_consumers()
        if self.replica.host.config.has_nearest_reads:
            self.replica.wake_followers()  # their consumers wait for the high watermark

    # ------------------------------------------------------------------- fetch: see `Readable`

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    def readable_end(self, terms: FetchTerms) -> int:
        return self.state.log_end_offset if terms.reads_all else self.state.high_watermark

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

    def follow(self, follower: BrokerId, offset: int, caught_up: CaughtUp) -> bool:
        if offset >= self.state.log_end_offset:
            self.caught_up[follower] = caught_up
        return follower in self.state.isr

    def unfollow(self, follower: BrokerId, caught_up: CaughtUp) -> None:
        if self.caught_up.get(follower) is caught_up:
            del self.caught_up[follower]

    def is_throttled(self, follower: BrokerId) -> bool:
        """Return whether the quota holds back what this follower copies: never while it is in sync."""
        listed = self.replica.config.leader_replication_throttled_replicas
        if not listed or follower in self.state.isr:
            return False
        return names_replica(listed, self.replica.tp.partition, self.state.broker)

    def has_news(self, follower: BrokerId, start: int) -> bool:
        """Return whether it must learn of a log start, or of a high watermark for the consumers that it serves."""
        if self.replica.start > start:
            return True
        return self.replica.host.config.has_nearest_reads and self._sent.get(follower, -1) < self.high_watermark

    def sent(self, terms: FetchTerms, size_bytes: int) -> None:
        super().sent(terms, size_bytes)
        if terms.is_follower:
            self._sent[terms.replica_id] = self.high_watermark
            if size_bytes and self.is_throttled(terms.replica_id):
                self.replica.host.leader_quota.charge(size_bytes)
                self.replica.host.counters.throttled_bytes_out += size_bytes
