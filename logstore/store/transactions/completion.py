"""Completion: writes the markers of transactions that are decided, and forgets what is over.

Everything is decided in the journal, so whatever fails here is left for the next process that comes by. A marker that
is there is not written again, so several processes may do this at once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

from logstore import errors
from logstore.log.log import Log
from logstore.log.validation import result_of
from logstore.records.marker import Marker
from logstore.store.log_manager import LogManager
from logstore.store.transactions.journal import Journal
from logstore.store.transactions.state import Decision, Event, Partition, Producer, State, TransactionAttempt

logger = logging.getLogger(__name__)

# The markers of a batch that no later one follows are flushed after this.
SETTLE_MS = 60_000


class Completion:
    """Ends the transactions of one store; see the module. Safe for threads, and for processes of one host."""

    def __init__(self, logs: LogManager, journal: Journal) -> None:
        self._env = logs.env
        self._log_dir = logs.log_dir
        self._logs = logs
        self._journal = journal

    @contextmanager
    def changing(self) -> Iterator[State]:
        """Hold the store and the journal, to append to it."""
        with self._logs.changing(), self._journal.changing() as state:
            yield state

    def publish(self, batch: tuple[str, int]) -> None:
        """Inside of `changing`: make a decision durable, and then visible to readers.

        On a full disk, too: the decision counts, and after an error the caller would write the batch again.
        """

        def publish() -> None:
            decision = self._journal.state().decisions.get(batch)
            if decision is not None and not decision.durable:
                self._journal.sync()
                self._journal.append([["durable", *batch]])

        self._log_dir.reserve.despite_full_disk(publish)

    def note(self, events_of: Callable[[State], list[Event]]) -> list[Event]:
        """Append events that end transactions, on a full disk, too: open ones hold readers up. Returns them."""

        def note() -> list[Event]:
            with self.changing() as state:
                events = events_of(state)
                self._journal.append(events)
                return events

        return self._log_dir.reserve.despite_full_disk(note)

    def has_pending(self, state: State, name: str | None = None) -> bool:
        """True if there are markers to write (of one name)."""
        decisions = (d for d in state.decisions.values() if d.marked is None)
        names = {*(d.name for d in decisions), *(a.name for a in state.aborted())}
        return bool(names) if name is None else name in names

    def finish(self, name: str | None = None) -> None:
        """Write the markers that are missing (of one name), and forget what is over."""
        state = self._journal.state()
        for decision in state.decisions.values():
            if decision.marked is None and name in (None, decision.name):
                self._finish_commit(decision)
        lost = [a for a in state.aborted() if name in (None, a.name)]
        marked = self._write_markers(lost, commit=False)
        if lost and marked is not None:
            self.note(lambda s: [["gone", *a.producer] for a in lost if a.producer in s.attempts])
        self._forget(name)

    def _finish_commit(self, decision: Decision) -> None:
        if not decision.durable:
            with self.changing():
                self.publish(decision.batch)
        ends = self._write_markers(self._journal.state().winners(decision), commit=True)
        if ends is None:
            return
        with self.changing() as state:
            current = state.decisions.get(decision.batch)
            if current is not None and current.marked is None:
                body = [[*partition, end] for partition, end in ends.items()]
                self._journal.append([["marked", *decision.batch, body]])

    def _forget(self, name: str | None) -> None:
        """Forget decisions whose markers are on disk; flush the markers of batches that have successors."""
        now_ms = self._env.clock.now_ms()
        over = []
        for decision in self._journal.state().decisions.values():
            if decision.marked is None:
                continue
            last = self._journal.state().last_of(decision.name)
            is_old = last is not None and last.batch_id > decision.batch_id
            if (is_old and name == decision.name) or now_ms - decision.decided_ms > SETTLE_MS:
                self._flush_markers(decision.marked)
            if self._are_markers_on_disk(decision.marked):
                over.append(decision.batch)
        if over:
            with self.changing() as state:
                self._journal.append([["forget", *batch] for batch in over if batch in state.decisions])

    def finish_later(self, name: str) -> None:
        """Finish now, if that is possible; else the next process does."""
        try:
            self.finish(name)
        except errors.PylogError as error:
            logger.warning("transaction %s is decided, and not finished yet: %s", name, error)

    def note_lines(self) -> None:
        """Note how many lines of the journal are on disk: a process that finds fewer knows that it is damaged."""
        points, lines = self._log_dir.recovery_points, self._journal.durable_lines
        if lines > points.journal_lines():
            points.advance({}, journal_lines=lines)

    def _write_markers(self, attempts: Iterable[TransactionAttempt], *, commit: bool) -> dict[Partition, int] | None:
        """Write the markers of these attempts; return where the logs end behind them, None if some are missing.

        A partition that was deleted needs none.
        """
        by_partition = defaultdict(list)
        for attempt in attempts:
            for partition in attempt.partitions:
                by_partition[partition].append(attempt.producer)
        ends, complete = {}, True
        for (topic, topic_id, number), producers in sorted(by_partition.items()):
            try:
                log = self._logs.log(topic, number)
                if log.topic_id != topic_id:
                    continue
                mark = partial(_append_markers, log, producers, commit=commit)
                self._log_dir.reserve.despite_full_disk(mark)
                ends[topic, topic_id, number] = log.log_end_offset
            except (errors.UnknownTopicError, errors.UnknownPartitionError, errors.StaleLogError):
                continue
            except errors.PylogError as error:
                complete = False
                logger.warning("%s-%d: the end of a transaction is not marked yet: %s", topic, number, error)
        return ends if complete else None

    def _flush_markers(self, marked: Mapping[Partition, int]) -> None:
        """Flush the markers that end here, where they are not on disk yet. A failure is left to the next call."""
        points = self._log_dir.recovery_points.read()
        try:
            self._logs.flush_partitions(
                (topic, p) for (topic, _, p), end in marked.items() if points.get((topic, p), 0) < end
            )
        except errors.PylogError as error:
            logger.warning("markers of a transaction are not flushed yet: %s", error)

    def _are_markers_on_disk(self, marked: Mapping[Partition, int]) -> bool:
        points = self._log_dir.recovery_points.read()
        return all(
            points.get((topic, partition), 0) >= end or not self._is_there(topic, topic_id)
            for (topic, topic_id, partition), end in marked.items()
        )

    def _is_there(self, topic: str, topic_id: str) -> bool:
        """Does the topic exist? A damaged description counts: it may be mended."""
        try:
            return self._logs.topic(topic).topic_id == topic_id
        except errors.UnknownTopicError:
            return False
        except errors.StoreError:
            return True


def _append_markers(log: Log, producers: Iterable[Producer], *, commit: bool) -> None:
    with log.lock():
        for producer_id, epoch in producers:
            with suppress(errors.ProducerFencedError):  # ended long ago: its id is in use again
                append_marker(log, producer_id, epoch, commit=commit)


def append_marker(log: Log, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
    """End the open transaction of this producer in one log, if there is one. Raises: ProducerFencedError; as `lock`."""
    result_of(log.append_as_leader([Marker(producer_id, producer_epoch, commit, 0, is_above=False)]))
