"""Follower: the role of a replica that follows, for one leader epoch. It drives the machine, and changes the log.

At most one request to the leader is open, and one append is queued; the event loop writes a small one itself. Results
are dropped once the role is over.
Belongs to the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from logstore.config import names_replica
from logstore.errors import DiskFullError, PylogError
from replication.errors import is_disk_dead
from replication.model.cluster import BrokerId, LeaderAndIsr
from replication.network.client import Client
from replication.protocol.wire import Buffer
from replication.replica.machine import follower
from replication.replica.machine.follower import EpochStarts
from replication.replica.storage.replica_log import ReplicaLog

logger = logging.getLogger(__name__)

# Bytes that the event loop writes itself, if nothing stands in the way: more belongs to a thread.
PROMPT_BYTES_MAX = 32 * 1024
FIRST_PAUSE_MS = 20  # short: at the begin of an epoch, the leader may hear of it a moment later


class Asking(Protocol):
    """Sends requests to leaders, and passes the answers to the role that asked."""

    def ask(self, role: Follower, question: follower.AskEpochEnd | follower.Fetch) -> None: ...

    def settled(self, role: Follower) -> None:
        """Note that the role has finished its work on the log: it has asked again, or pauses."""

    def forget(self, role: Follower) -> None:
        """Drop the role's request."""

    def connect(self, broker: BrokerId) -> Client:
        """Return a connection, which the caller closes. Raises: ConnectionError: the broker's address is unknown."""


class _Write:
    def __init__(self, role: Follower, act: Callable[[], object], then: Callable[[_Write], None]) -> None:
        self.role = role
        self.act = act
        self.then = then
        self.error: Exception | None = None
        self.offsets = (0, 0)
        self.epochs: EpochStarts = role.state.epochs

    def seal(self) -> None:
        """Nothing can join it."""

    def run(self) -> None:
        self.act()
        self._look()

    def fail(self, error: Exception) -> None:
        self.error = error
        with suppress(Exception):  # the disk does not even show the epochs: they are taken to be what they were
            self._look()

    def _look(self) -> None:
        self.offsets = self.role.replica.offsets()
        self.epochs = self.role.replica.log.epochs.starts

    def done(self) -> None:
        self.role.written(self)


class Pauses:
    """Pauses that double, up to `longest_ms`."""

    __slots__ = ("_longest_ms", "_ms")

    def __init__(self, longest_ms: int) -> None:
        self._longest_ms = longest_ms
        self._ms = FIRST_PAUSE_MS

    def next_ms(self) -> int:
        pause_ms = self._ms
        self._ms = min(2 * pause_ms, self._longest_ms)
        return pause_ms

    def reset(self) -> None:
        self._ms = FIRST_PAUSE_MS


def _report(replica: ReplicaLog, lost: follower.ReportLostRecords) -> None:
    replica.host.counters.lost_records += lost.end - lost.start
    logger.error(
        "tp=%s epoch=%d truncated committed records from=%d to=%d: data is lost",
        replica.tp,
        lost.leader_epoch,
        lost.start,
        lost.end,
    )


class Follower:
    """`state` is the machine's; `jobs` is the number of its jobs in the queue."""

    def __init__(
        self,
        replica: ReplicaLog,
        stored: LeaderAndIsr,
        epochs: EpochStarts,
        high_watermark: int,
        asking: Asking,
    ) -> None:
        self.replica = replica
        self.is_over = False
        self.jobs = 0
        self._leader_high_watermark = 0  # as the last answer said
        self._asking = asking
        self._start_wanted = -1
        self._pauses = Pauses(replica.host.config.replica_fetch_backoff_ms)
        self.state, effects = follower.follow(
            stored.leader,
            stored.leader_epoch,
            log_start_offset=replica.start,
            log_end_offset=replica.end,
            epochs=epochs,
            high_watermark=high_watermark,
        )
        self._perform(effects)

    @property
    def leader(self) -> BrokerId:
        return self.state.leader

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    def leave(self) -> None:
        """End the role; answers in flight are dropped."""
        self.is_over = True
        self.replica.wake_consumers()
        self._asking.forget(self)

    # ----------------------------------------------------------------- answers

    def step(self, event: follower.Event) -> None:
        if not self.is_over:
            high_watermark = self.state.high_watermark
            self.state, effects = follower.step(self.state, event)
            if self.state.high_watermark > high_watermark:
                self.replica.wake_consumers()
            if effects:
                self._perform(effects)

    def note_answer(self, high_watermark: int, size_bytes: int) -> None:
        """Note the leader's high watermark, and charge the quota if it holds this replica back."""
        self._leader_high_watermark = high_watermark
        if size_bytes and self.is_throttled:
            self.replica.host.follower_quota.charge(size_bytes)
            self.replica.host.counters.throttled_bytes_in += size_bytes

    @property
    def is_throttled(self) -> bool:
        """Whether the quota holds it back: never while it has all that, as far as it knows, is committed."""
        listed = self.replica.config.follower_replication_throttled_replicas
        if not listed or self.replica.end >= self._leader_high_watermark:
            return False
        return names_replica(listed, self.replica.tp.partition, self.replica.host.broker)

    def fetched(self, epoch: int, offset: int, records: Buffer, high_watermark: int, log_start: int) -> None:
        """Take the leader's answer to a fetch in this epoch, from this offset."""
        # An answer with records resets it only after the append: a full disk refuses them again and again.
        if not records and log_start <= self.state.log_start_offset:
            self._pauses.reset()
        self.step(follower.RecordsFetched(epoch, offset, records, high_watermark, log_start))

    def failed(self, question: follower.AskEpochEnd | follower.Fetch) -> int | None:
        """Without an answer, or after an error that time cures: how many ms later to `ask_again`; None if it is void.

        The machine does not see it: thousands of partitions may fail together, again and again.
        """
        if not self._is_open(question):
            return None
        self.replica.host.counters.failed_fetches += 1
        return self._pauses.next_ms()

    def ask_again(self, question: follower.AskEpochEnd | follower.Fetch) -> None:
        if self._is_open(question):
            self._ask(question)

    def _is_open(self, question: follower.AskEpochEnd | follower.Fetch) -> bool:
        state = self.state
        return not self.is_over and state.is_asking and question.leader_epoch == state.leader_epoch

    @property
    def is_offline(self) -> bool:
        """An offline replica asks nothing: its leader would admit it to the ISR."""
        return self.replica.host.offline.is_said(self.replica.tp)

    def _ask(self, question: follower.Fetch | follower.AskEpochEnd) -> None:
        if self.is_offline:
            self._after_pause(partial(self.ask_again, question))
        else:
            self._asking.ask(self, question)

    def _after_pause(self, act: Callable[[], None]) -> None:
        self.replica.host.disk.loop.call_later(self._pauses.next_ms() / 1000, act)

    # ----------------------------------------------------------------- effects

    def _perform(self, effects: tuple[follower.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case follower.Fetch() | follower.AskEpochEnd():
                    self._ask(effect)
                case follower.Append(records, leader_high_watermark):
                    self._append(records, leader_high_watermark)
                case follower.TruncateTo(offset):
                    self._truncate(offset)
                case follower.StartAnew(offset):
                    self._start_anew(offset)
                case follower.ReportLostRecords():
                    _report(self.replica, effect)
                case follower.MoveLogStart(offset):
                    self._move_start(offset)
                case follower.Pause():
                    self._after_pause(partial(self.step, follower.PauseOver()))

    def _append(self, records: Buffer, leader_high_watermark: int) -> None:
        replica, end = self.replica, self.state.log_end_offset

        def act() -> None:
            replica.host.keep_reserve()
            replica.log.append_as_follower(records, end=end, is_owner=replica.host.is_sound())

        def then(write: _Write) -> None:
            if write.error is not None:
                self._write_failed(write)
                return
            replica.host.counters.replication_bytes_in += len(records)
            self._pauses.reset()
            self.step(follower.Appended(replica.end, write.epochs, leader_high_watermark))

        if not self._append_now(records, then):
            self._submit(act, then)

    def _append_now(self, records: Buffer, then: Callable[[_Write], None]) -> bool:
        """Append them in the event loop. False: that may take longer, or is not its turn, and nothing was done."""
        replica, log = self.replica, self.replica.log
        host = replica.host
        if len(records) > PROMPT_BYTES_MAX or not host.is_sound() or not host.disk.begin_write(replica.queue):
            return False
        write = _Write(self, lambda: None, then)
        try:
            end = self.state.log_end_offset
            is_done = log.append_as_follower(records, end=end, is_owner=True, may_wait=False) is not None
        except Exception as error:  # noqa: BLE001  it is handled as that of a thread
            is_done, write.error = True, error
        host.disk.end_write()
        if is_done:
            self.jobs += 1
            write.offsets, write.epochs = replica.offsets(), log.epochs.starts
            self.written(write)
        return is_done

    def _truncate(self, offset: int) -> None:
        tp, host, log = self.replica.tp, self.replica.host, self.replica.log
        if offset < self.replica.end:
            logger.info("tp=%s epoch=%d truncated to=%d", tp, self.state.leader_epoch, offset)

        def act() -> None:
            if offset < log.log_end_offset:
                with host.cutting(tp, offset):
                    log.truncate_to(offset)

        self._submit(act, self._truncated)

    def _start_anew(self, offset: int) -> None:
        tp, host, log = self.replica.tp, self.replica.host, self.replica.log
        logger.warning(
            "tp=%s epoch=%d starts anew at=%d: the leader's log has nothing in common with this one",
            tp,
            self.state.leader_epoch,
            offset,
        )

        def act() -> None:
            with host.cutting(tp, 0):
                log.start_anew(offset)

        self._submit(act, self._truncated)

    def _truncated(self, write: _Write) -> None:
        if write.error is not None:
            self._write_failed(write)
            return
        self.step(follower.Truncated(self.replica.start, self.replica.end, write.epochs))

    def _write_failed(self, write: _Write) -> None:
        self.replica.host.counters.failed_fetches += 1
        self.step(follower.WriteFailed(self.replica.start, self.replica.end, write.epochs))

    def _move_start(self, offset: int) -> None:
        """Advance the log start after the append that came with it. The log cannot begin behind its end."""
        if offset > self._start_wanted:
            self._start_wanted = offset
            log = self.replica.log
            self._submit(lambda: log.advance_start(min(self._start_wanted, log.log_end_offset)), self._start_moved)

    def _start_moved(self, write: _Write) -> None:
        if write.error is not None:
            self._start_wanted = -1
            self._write_failed(write)
        elif self.replica.start < self._start_wanted:
            self._start_wanted = -1  # the log ends before it: try again later
        else:
            self._pauses.reset()
            self.step(follower.LogStartMoved(self.replica.start))

    # -------------------------------------------------------------------- queue

    def _submit(self, act: Callable[[], object], then: Callable[[_Write], None]) -> None:
        self.jobs += 1
        self.replica.submit(_Write(self, act, then))

    def written(self, write: _Write) -> None:
        self.replica.note(write.offsets)
        self.jobs -= 1
        if self.is_over:
            return
        if isinstance(write.error, DiskFullError):
            self.replica.host.disk_full()  # logs it once
        elif write.error is not None:
            if is_disk_dead(write.error):
                self.replica.host.disk_failed()
            self.replica.suspect(write.error)
            is_foreseen = isinstance(write.error, PylogError | OSError)
            logger.error(
                "tp=%s epoch=%d cannot be written: %s",
                self.replica.tp,
                self.state.leader_epoch,
                write.error,
                exc_info=None if is_foreseen else write.error,
            )
        write.then(write)
        self._asking.settled(self)
