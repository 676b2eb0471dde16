"""Transactions of a stand-alone store: what is appended under one becomes visible at once, everywhere, or never.

The order of what is on disk, which everything rests on:

1. A writer's registration (`TransactionAttempt`: who, producer id and epoch, partitions), before its first data.
2. Its data, before it says that it is prepared.
3. The decision, which commits a whole batch with all its writers, before any marker. From here on readers see the
   batch, whether the markers are there or not: they ask `outcomes`.
4. The markers, before decision and registrations are forgotten.

Every append checks under the partition's lock that its registration is open. An abort is recorded first, and then takes
that lock to write the marker: so nothing comes behind a marker.

The next process that comes by finishes what was decided, and aborts what cannot be committed any more
(`complete_or_abort`): its writer is dead, or no process has worked on it for `transaction.timeout.ms`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from logstore.errors import CorruptLogError, InvalidRequestError, PylogError, TransactionAbortedError
from logstore.log.isolation import Outcome, Outcomes
from logstore.log.producers.state import ProducerState
from logstore.store.log_manager import LogManager
from logstore.store.transactions import processes
from logstore.store.transactions.completion import Completion, append_marker
from logstore.store.transactions.journal import Journal
from logstore.store.transactions.liveness import Liveness, task_of
from logstore.store.transactions.state import (
    PRODUCER_EPOCH_MAX,
    Content,
    Decision,
    Event,
    Partition,
    Producer,
    State,
    TransactionAttempt,
    TransactionOwner,
)
from logstore.store.transactions.transaction import Prepared, Transaction

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

# The timeout of a batch that no process works on: transaction.timeout.ms of the Spark writer.
TIMEOUT_MS = 15 * 60 * 1000
# Looks without a lock, before decisions are held up for one.
LOOKS_MAX = 8


class Transactions:
    """The transactions of one store. Safe for threads, and for processes of one host."""

    def __init__(self, logs: LogManager) -> None:
        self._env = env = logs.env
        self._log_dir = logs.log_dir
        self._logs = logs
        self._journal = Journal(self._log_dir.path, env, self._log_dir.recovery_points.journal_lines)
        self._holders = processes.Holders(self._journal.directory, env)
        self.completion = Completion(logs, self._journal)
        self._known: tuple[State, dict[Producer, Outcome]] = State(), {}

    def outcomes(self) -> Outcomes:
        """The decisions about transactions that are not forgotten. One stat when nothing changed."""
        try:
            state = self._journal.state()
        except PylogError as error:
            return Outcomes(damage=error)
        known = self._known
        if known[0] is not state:
            self._known = known = state, state.outcomes()
        return Outcomes(known=known[1])

    def settled(self, look: Callable[[], Found]) -> Found:
        """Return what `look` finds while no decision is made: a batch is in all of it, or in nothing of it.

        `look` may be called several times.
        """
        for _ in range(LOOKS_MAX):
            before = self._decided()
            found = look()
            if self._decided() == before:
                return found
        with self._journal.still():
            return look()

    def _decided(self) -> int:
        """The number of decisions; -1 if the journal is damaged."""
        try:
            return self._journal.state().decided
        except CorruptLogError:
            return -1

    def state(self) -> State:
        return self._journal.state()

    def last_batch(self, name: str) -> int | None:
        """The last batch that was committed under this name; None if there is none."""
        last = self._journal.state().last_of(name)
        return last.batch_id if last else None

    def begin(
        self,
        name: str = "",
        batch_id: int | None = None,
        *,
        run: str = "",
        task: str = "",
        owner: TransactionOwner | None = None,
        once: bool = False,
    ) -> Transaction:
        """Return one writer's part of a batch; nothing is written before its first append.

        Without a name it is a batch of its own; with `once` the name is of several writers of one batch, and forgotten
        after it. `run` names one life of a program: a new run ends what the one before left open.

        Raises: BatchConflictError: a later batch is committed under this name.
        """
        if bool(name) != (batch_id is not None):
            raise InvalidRequestError("a transaction has a name and a batch id, or neither")
        if batch_id is not None and batch_id < 0:
            raise InvalidRequestError(f"batch_id={batch_id}: must not be negative")
        attempt = TransactionAttempt(
            name=name or f"unnamed-{uuid.uuid4().hex}",
            batch_id=batch_id or 0,
            run=run or uuid.uuid4().hex,
            task=task,
            producer_id=-1,
            epoch=-1,
            partitions=(),
            owner=replace(owner or TransactionOwner(timeout_ms=TIMEOUT_MS), host=processes.host(self._env)),
            seen_ms=self._env.clock.now_ms(),
            up_ms=self._env.clock.monotonic_ms(),
        )
        kept = bool(name) and not once
        is_replay = kept and self._journal.state().replayed(attempt.name, attempt.batch_id) is not None
        return Transaction(self, attempt, kept=kept, is_replay=is_replay)

    @contextmanager
    def at_work(self, transaction: Transaction) -> Iterator[None]:
        """While one task of a batch runs in this process: the whole batch is alive, even without rows yet."""
        with self._holders.announced_as(task_of(transaction.name, transaction.batch_id, transaction.run)):
            yield

    def register(self, attempt: TransactionAttempt, partitions: tuple[Partition, ...]) -> TransactionAttempt:
        """Register durably that this attempt will write to these partitions; return it with its producer id.

        Raises: TransactionAbortedError: it is not wanted any more; BatchConflictError.
        """
        if self.completion.has_pending(self._journal.state(), attempt.name):
            self.completion.finish_later(attempt.name)  # of the run before
        owner = replace(attempt.owner, holder=self._holders.name())
        if processes.is_alive(self._env, owner.driver) is False:
            raise TransactionAbortedError(-1, -1, "the driver of the query is gone")
        with self.completion.changing() as state:
            placed, events = state.to_register(replace(attempt, owner=owner, partitions=partitions))
            self._journal.append(events)
        self._journal.sync()
        if len(events) > 1:
            self.completion.finish_later(attempt.name)
        return placed

    def extend(self, attempt: TransactionAttempt, more: tuple[Partition, ...]) -> TransactionAttempt:
        """Register more partitions of an attempt. Raises as `register`."""
        with self.completion.changing() as state:
            state.check_open(attempt.producer)
            known = self._journal.append([["extend", *attempt.producer, [list(p) for p in more]]])
        self._journal.sync()
        return known.attempts[attempt.producer]

    def check_open(self, producer: Producer) -> None:
        """Raise TransactionAbortedError unless this attempt may write. One stat when nothing changed."""
        self._journal.state().check_open(producer)

    def note_prepared(self, attempt: TransactionAttempt) -> None:
        """Flush what this attempt wrote. From now on its life depends on its driver, if it has one."""
        partitions = [(topic, partition) for topic, _, partition in attempt.partitions]
        self._logs.flush_partitions(partitions, journal_lines=self._journal.durable_lines)
        if not attempt.owner.driver:
            return
        with self.completion.changing() as state:
            state.check_open(attempt.producer)
            clock = self._env.clock
            self._journal.append([["prepared", *attempt.producer, clock.now_ms(), clock.monotonic_ms()]])

    def commit(self, prepared: Iterable[Prepared], *, origin: str = "") -> Content:
        """Commit a batch: all these parts of it, and no others. On return it is visible, and stays so.

        A batch that is committed already, with the same content or from the same `origin` (which names the source of
        the content), is left as it is.

        Raises: BatchConflictError: it is committed with another content; TransactionAbortedError: a part of it was
        aborted. Nothing of this is visible then.
        """
        parts = list(prepared)
        if not parts or len({(p.name, p.batch_id, p.run) for p in parts}) != 1:
            raise InvalidRequestError("a commit takes the parts of one batch of one run")
        wanted = Decision(
            name=parts[0].name,
            batch_id=parts[0].batch_id,
            run=parts[0].run,
            content=sum((p.content for p in parts), Content()),
            decided_ms=self._env.clock.now_ms(),
            winners=tuple(sorted(p.producer for p in parts if p.producer)),
            kept=parts[0].kept,
            origin=origin,
        )
        if not wanted.kept and not wanted.winners:
            return wanted.content  # nothing was written, and nobody will ask
        with self.completion.changing() as state:
            self._journal.append(state.to_decide(wanted))
            self.completion.publish(wanted.batch)
        self.completion.finish_later(wanted.name)
        return wanted.content

    def abort(self, name: str, batch_id: int, *, run: str = "", driver: str = "", reason: str) -> None:
        """Abort what this run, or this driver, wrote of a batch or will write. Finish a decided batch."""

        def end(state: State) -> list[Event]:
            written = [a for a in state.of_name(name) if a.batch_id == batch_id]
            mine = [a for a in written if a.run == run or (driver and a.owner.driver == driver)]
            runs = {a.run for a in mine} | {run}
            return state.to_end(mine, sorted(runs - {""}), reason)

        self.completion.note(end)
        self.completion.finish_later(name)

    def abort_attempt(self, producer: Producer, *, reason: str) -> bool:
        """Abort one attempt; False if it had ended."""
        attempt = self._journal.state().attempts.get(producer)
        if attempt is None:
            return False
        events = self.completion.note(lambda s: s.to_abort([a] if (a := s.attempts.get(producer)) else [], reason))
        self.completion.finish_later(attempt.name)
        return bool(events)

    def abort_name(self, name: str, *, reason: str) -> int:
        """Abort everything that is open under a name, alive or not; return the number of attempts."""
        events = self.completion.note(lambda state: state.to_abort(state.of_name(name), reason))
        self.completion.finish_later(name)
        return len(events)

    def complete_or_abort(self) -> int:
        """Finish what was decided, abort what cannot be committed any more; return the number of aborted attempts."""
        if self._env.files.stat(self._journal.path) is None:
            return 0
        ended: list[Event] = []
        if self.dead(self._journal.state()):
            # Once more while nobody can prepare anything: a writer may do that, and end, between two looks.
            ended = self.completion.note(
                lambda state: [e for a, why in self.dead(state) for e in state.to_abort([a], why)]
            )
        if self.completion.has_pending(self._journal.state()):
            self.completion.finish()
        self._holders.sweep()
        return len(ended)

    def dead(self, state: State) -> list[tuple[TransactionAttempt, str]]:
        """The attempts that cannot be committed any more, and why."""
        found = Liveness(self._env, self._log_dir.path, self._holders, state)
        return [(a, why) for a in state.attempts.values() if state.is_open(a.producer) and (why := found.end_of(a))]

    def recover(self, *, mend: bool = False) -> None:
        """After a crash, by a process that is alone: end every transaction that cannot be ended by its writer.

        With `mend` a damaged journal is rewritten without the lines that cannot be read; else it is an error.

        A transaction that is open in a log and not registered lost its registration with the power, or its marker after
        an abort: it was not committed, since a commit keeps both.
        """
        if not mend:
            self._journal.state()
        if not self._journal.renew():
            self._retire_producers()
        self.completion.note_lines()
        self.complete_or_abort()
        state = self._journal.state()
        committed = {producer for d in state.decisions.values() for producer in d.winners}
        for topic, partition in self._logs.partitions():
            try:
                log = self._logs.log(topic, partition)
                for producer_id, epoch, *_ in log.producers.open_transactions():
                    if (producer_id, epoch) not in state.attempts:
                        append_marker(log, producer_id, epoch, commit=(producer_id, epoch) in committed)
            except PylogError as error:
                logger.error("%s-%d: transactions not recovered: %s", topic, partition, error)

    def _retire_producers(self) -> None:
        """Retire ids that a log has with a later epoch than the journal: their next user would be fenced."""
        epochs = self._journal.state().epochs
        later = {
            p.producer_id
            for topic, partition in self._logs.partitions()
            for p in self._producers(topic, partition)
            if p.epoch > epochs.get(p.producer_id, -1)
        }
        with self.completion.changing():
            self._journal.append([["epoch", producer_id, PRODUCER_EPOCH_MAX] for producer_id in sorted(later)])

    def _producers(self, topic: str, partition: int) -> tuple[ProducerState, ...]:
        try:
            return self._logs.log(topic, partition).producers.states()
        except PylogError as error:
            logger.error("%s-%d: producers are not known: %s", topic, partition, error)
            return ()

    def close(self) -> None:
        """Abort what this process left open."""
        if self._holders.release():
            self.complete_or_abort()
        self._journal.sync_all()
        self.completion.note_lines()
