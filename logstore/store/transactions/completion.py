"""Completion: writes the markers of transactions that are decided, and forgets what is over.

Everything is decided in the journal, so whatever fails here is left for the next process that comes by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from logstore.errors import PylogError
from logstore.store.log_manager import LogManager
from logstore.store.transactions.journal import Journal
from logstore.store.transactions.markers import Markers
from logstore.store.transactions.state import Decision, Event, State

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
        self._markers = Markers(logs)

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
        """Write the markers that are missing (of one name), and forget what is over.

        Several processes may do this at once: a marker that is there is not written again.
        """
        state = self._journal.state()
        for decision in state.decisions.values():
            if decision.marked is None and name in (None, decision.name):
                self._finish_commit(decision)
        lost = [a for a in state.aborted() if name in (None, a.name)]
        marked = self._markers.write(lost, commit=False)
        if lost and marked is not None:
            self.note(lambda s: [["gone", *a.producer] for a in lost if a.producer in s.attempts])
        self._forget(name)

    def _finish_commit(self, decision: Decision) -> None:
        if not decision.durable:
            with self.changing():
                self.publish(decision.batch)
        ends = self._markers.write(self._journal.state().winners(decision), commit=True)
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
                self._markers.flush(decision.marked)
            if self._markers.are_on_disk(decision.marked):
                over.append(decision.batch)
        if over:
            with self.changing() as state:
                self._journal.append([["forget", *batch] for batch in over if batch in state.decisions])

    def finish_later(self, name: str) -> None:
        """Finish now, if that is possible; else the next process does."""
        try:
            self.finish(name)
        except PylogError as error:
            logger.warning("transaction %s is decided, and not finished yet: %s", name, error)

    def note_lines(self) -> None:
        """Note how many lines of the journal are on disk: a process that finds fewer knows that it is damaged."""
        points, lines = self._log_dir.recovery_points, self._journal.durable_lines
        if lines > points.journal_lines():
            points.advance({}, journal_lines=lines)
