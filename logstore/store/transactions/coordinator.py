"""Transactions of a stand-alone store: what is appended under one becomes visible at once, everywhere, or never.

::

    with store.transaction() as transaction:
        store.append("orders", rows, transaction=transaction)
        store.append("payments", more, transaction=transaction)

The order of what is on disk, which everything rests on:

1. A writer's registration (`TransactionAttempt`: who, producer id and epoch, partitions), before its first data.
2. Its data, before it says that it is prepared.
3. The decision, which commits a whole batch with all its writers, before any marker. From here on readers see the
   batch, whether the markers are there or not: they ask `outcomes`.
4. The markers, before decision and registrations are forgotten.

Every append asks under the partition's lock whether its registration is still open. Who aborts one notes that first
and then takes that lock to write the marker: so nothing comes behind a marker.

Nobody needs to come back for a writer that died: whoever comes by finishes what was decided, and aborts what nobody can
decide any more (`tend`). Nothing is aborted that is alive, however long it takes.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from logstore.env import Env
from logstore.errors import (
    CorruptLogError,
    InvalidRequestError,
    PylogError,
    TransactionAbortedError,
)
from logstore.log.producers.state import ProducerState
from logstore.store.log_dir import LogDir
from logstore.store.transactions import processes
from logstore.store.transactions.journal import Journal
from logstore.store.transactions.liveness import Liveness, task_of
from logstore.store.transactions.markers import Logs, Markers
from logstore.store.transactions.state import (
    PRODUCER_EPOCH_MAX,
    Content,
    Decision,
    Event,
    Outcome,
    Partition,
    Producer,
    State,
    TransactionAttempt,
    TransactionOwner,
)
from logstore.store.transactions.transaction import Part, Prepared, Transaction

__all__ = ["Outcomes", "Part", "Prepared", "Transaction", "Transactions"]

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

# How long a prepared attempt waits for a driver that lives but does nothing, and one that cannot be seen from here.
TIMEOUT_MS = 15 * 60 * 1000
# The markers of a batch that nobody follows up are flushed after this.
SETTLE_MS = 60_000
# Looks without a lock, before decisions are held up for one.
LOOKS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """How transactions ended whose markers may not be there yet, as at one moment.

    Take it before looking at a log: what is missing here then has its marker there, or is open.
    """

    known: Mapping[Producer, Outcome]
    damage: PylogError | None = None

    def outcome(self, producer_id: int, producer_epoch: int) -> Outcome | None:
        """Return "committed" or "aborted"; None: open.

        Raises: CorruptLogError: the journal is damaged, so nobody knows.
        """
        if self.damage is not None:
            raise self.damage
        return self.known.get((producer_id, producer_epoch))


class Transactions:
    """The transactions of one store. Safe for threads, and for processes of one host."""

    def __init__(self, log_dir: LogDir, env: Env, logs: Logs) -> None:
        self._env = env
        self._log_dir = log_dir
        self._logs = logs
        self._journal = Journal(log_dir.path, env, log_dir.journal_lines)
        self._holders = processes.Holders(self._journal.directory, env)
        self._markers = Markers(log_dir, logs)
        self._known: tuple[State, dict[Producer, Outcome]] = State(), {}

    # ------------------------------------------------------------------- read

    def outcomes(self) -> Outcomes:
        """How the transactions that are not forgotten ended, as far as they did. One stat when nothing changed."""
        try:
            state = self._journal.state()
        except PylogError as error:
            return Outcomes(known={}, damage=error)
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
        """How many decisions there were; damage is the business of who needs to know one."""
        try:
            return self._journal.state().decided
        except CorruptLogError:
            return -1

    def state(self) -> State:
        """Everything that is known, for tools."""
        return self._journal.state()

    def last_batch(self, name: str) -> int | None:
        """The last batch that was committed under this name; None if there is none."""
        last = self._journal.state().last_of(name)
        return last.batch_id if last else None

    # ------------------------------------------------------------------ write

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
        after it. `run` tells one life of a program from the next: a new run ends what the one before left open.

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
        """While one task of a batch runs in this process: the whole batch lives, though it has no rows of it yet."""
        self._holders.announce(task_of(transaction.name, transaction.batch_id, transaction.run))
        try:
            yield
        finally:
            self._holders.announce("")

    def register(self, attempt: TransactionAttempt, partitions: tuple[Partition, ...]) -> TransactionAttempt:
        """Note durably that this attempt is going to write to these partitions; return it with its producer id.

        Raises: TransactionAbortedError: it is not wanted any more; BatchConflictError.
        """
        if self._pending(self._journal.state(), attempt.name):
            self._finish_later(attempt.name)  # of the run before
        owner = replace(attempt.owner, holder=self._holders.name())
        if processes.lives(self._env, owner.driver) is False:
            raise TransactionAbortedError(-1, -1, "the driver of the query is gone")
        with self._changing() as state:
            placed, events = state.to_register(replace(attempt, owner=owner, partitions=partitions))
            self._journal.append(events)
        self._journal.sync()
        if len(events) > 1:
            self._finish_later(attempt.name)
        return placed

    def extend(self, attempt: TransactionAttempt, more: tuple[Partition, ...]) -> TransactionAttempt:
        """Note durably that a registered attempt is going to write to more partitions. Raises as `register`."""
        with self._changing() as state:
            state.check_open(attempt.producer)
            known = self._journal.append([["extend", *attempt.producer, [list(p) for p in more]]])
        self._journal.sync()
        return known.attempts[attempt.producer]

    def check_open(self, producer: Producer) -> None:
        """Raise TransactionAbortedError unless this attempt may write. One stat when nothing changed."""
        self._journal.state().check_open(producer)

    def note_prepared(self, attempt: TransactionAttempt) -> None:
        """Flush what this attempt wrote. From now on it lives as long as its driver does, where it has one."""
        self._markers.flush_partitions(attempt.partitions, journal_lines=self._journal.durable_lines)
        if not attempt.owner.driver:
            return
        with self._changing() as state:
            state.check_open(attempt.producer)
            clock = self._env.clock
            self._journal.append([["prepared", *attempt.producer, clock.now_ms(), clock.monotonic_ms()]])

    @contextmanager
    def _changing(self) -> Iterator[State]:
        """Hold the journal, to append to it."""
        with self._logs.changing(), self._journal.changing() as state:
            yield state

    # -------------------------------------------------------------- decide

    def commit(self, prepared: Iterable[Prepared], *, origin: str = "") -> Content:
        """Commit a batch: all these parts of it, and no others. On return it is visible, and stays so.

        A batch that is committed already, with the same content (or from the same `origin`: something that names
        where the content came from), is left as it is.

        Raises: BatchConflictError: it is committed with another content; TransactionAbortedError: a part of it was
        aborted. Nothing of this is visible then.
        """
        parts = list(prepared)
        if not parts or len({(p.name, p.batch_id, p.run) for p in parts}) != 1:
            raise InvalidRequestError("what is committed are the parts of one batch, of one run")
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
        with self._changing() as state:
            self._journal.append(state.to_decide(wanted))
            self._publish(wanted.batch)
        self._finish_later(wanted.name)
        return wanted.content

    def _publish(self, batch: tuple[str, int]) -> None:
        """Inside of `changing`: let readers see a decision, now that no power failure can take it back.

        On a full disk, too: it counts, and who is told that it failed would write the batch again.
        """

        def publish() -> None:
            decision = self._journal.state().decisions.get(batch)
            if decision is not None and not decision.durable:
                self._journal.sync()
                self._journal.append([["durable", *batch]])

        self._log_dir.reserve.despite_full_disk(publish)

    def abort(self, name: str, batch_id: int, *, run: str = "", driver: str = "", reason: str) -> None:
        """Abort what this run, or this driver, wrote of a batch, and will write. If it is decided, finish the batch."""

        def end(state: State) -> list[Event]:
            written = [a for a in state.of_name(name) if a.batch_id == batch_id]
            mine = [a for a in written if a.run == run or (driver and a.owner.driver == driver)]
            runs = {a.run for a in mine} | {run}
            return state.to_end(mine, sorted(runs - {""}), reason)

        self._note(end)
        self._finish_later(name)

    def abort_attempt(self, producer: Producer, *, reason: str) -> bool:
        """Abort one attempt; False: it had ended."""
        attempt = self._journal.state().attempts.get(producer)
        if attempt is None:
            return False
        events = self._note(lambda s: s.to_abort([a] if (a := s.attempts.get(producer)) else [], reason))
        self._finish_later(attempt.name)
        return bool(events)

    def abort_name(self, name: str, *, reason: str) -> int:
        """Abort whatever is open under a name, alive or not; return how many attempts that were."""
        events = self._note(lambda state: state.to_abort(state.of_name(name), reason))
        self._finish_later(name)
        return len(events)

    def _note(self, events_of: Callable[[State], list[Event]]) -> list[Event]:
        """Note what ends transactions, on a full disk, too: what is open holds readers up. Returns it."""

        def note() -> list[Event]:
            with self._changing() as state:
                events = events_of(state)
                self._journal.append(events)
                return events

        return self._log_dir.reserve.despite_full_disk(note)

    def _finish_later(self, name: str) -> None:
        """Finish now, if that is possible: everything is decided, so whoever comes by may do it as well."""
        try:
            self.finish(name)
        except PylogError as error:
            logger.warning("transaction %s is decided, and not finished yet: %s", name, error)

    # -------------------------------------------------------------- finish

    def tend(self) -> int:
        """Finish what was decided, and abort what nobody can decide any more; return how many attempts that were."""
        if self._env.files.stat(self._journal.path) is None:
            return 0
        ended: list[Event] = []
        if self.dead(self._journal.state()):
            # Once more while nobody can prepare anything: a writer may do that, and end, between two looks.
            ended = self._note(
                lambda state: [e for a, why in self.dead(state) for e in state.to_abort([a], why)]
            )
        if self._pending(self._journal.state()):
            self.finish()
        self._holders.sweep()
        return len(ended)

    def dead(self, state: State) -> list[tuple[TransactionAttempt, str]]:
        """The attempts that nobody can commit any more, and why."""
        lives = Liveness(self._env, self._log_dir.path, self._holders, state)
        return [
            (a, why)
            for a in state.attempts.values()
            if state.is_open(a.producer) and (why := lives.end_of(a))
        ]

    def _pending(self, state: State, name: str | None = None) -> bool:
        decisions = (d for d in state.decisions.values() if d.marked is None)
        names = {*(d.name for d in decisions), *(a.name for a in state.aborted())}
        return bool(names) if name is None else name in names

    def finish(self, name: str | None = None) -> None:
        """Write the markers that are missing (of one name), and forget what is over. What fails stays for the next.

        Several may do this at once: a marker that is there is not written again.
        """
        state = self._journal.state()
        for decision in state.decisions.values():
            if decision.marked is None and name in (None, decision.name):
                self._finish_commit(decision)
        lost = [a for a in state.aborted() if name in (None, a.name)]
        marked = self._markers.write(lost, commit=False)
        if lost and marked is not None:
            self._note(lambda s: [["gone", *a.producer] for a in lost if a.producer in s.attempts])
        self._forget(name)

    def _finish_commit(self, decision: Decision) -> None:
        if not decision.durable:
            with self._changing():
                self._publish(decision.batch)
        ends = self._markers.write(self._journal.state().winners(decision), commit=True)
        if ends is None:
            return
        with self._changing() as state:
            current = state.decisions.get(decision.batch)
            if current is not None and current.marked is None:
                body = [[*partition, end] for partition, end in ends.items()]
                self._journal.append([["marked", *decision.batch, body]])

    def _forget(self, name: str | None) -> None:
        """Forget decisions whose markers are on disk; flush those of batches that newer ones have followed."""
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
            with self._changing() as state:
                self._journal.append([["forget", *batch] for batch in over if batch in state.decisions])

    # -------------------------------------------------------------- recover

    def recover(self, *, mend: bool = False) -> None:
        """After a crash, by a process that is alone: end every transaction that nobody can end any more.

        With `mend` a damaged journal is written anew without the lines that cannot be read; else it is an error.

        What is open in a log and registered nowhere lost its registration with the power, or its marker after it was
        aborted: it was not committed, since neither happens to what was.
        """
        if not mend:
            self._journal.state()
        if not self._journal.renew():
            self._retire_producers()
        self._note_lines()
        self.tend()
        state = self._journal.state()
        committed = {producer for d in state.decisions.values() for producer in d.winners}
        for info in self._logs.topics():
            for number in range(info.partitions):
                try:
                    log = self._logs.log(info.name, number)
                    for producer_id, epoch, *_ in log.open_transactions():
                        if (producer_id, epoch) not in state.attempts:
                            is_committed = (producer_id, epoch) in committed
                            log.append_marker(producer_id, epoch, commit=is_committed)
                except PylogError as error:
                    logger.error("%s-%d: transactions not recovered: %s", info.name, number, error)

    def _retire_producers(self) -> None:
        """Give no id again that a log knows with a later epoch than the journal: who got it would be fenced."""
        epochs = self._journal.state().epochs
        later = {
            p.producer_id
            for info in self._logs.topics()
            for number in range(info.partitions)
            for p in self._producers(info.name, number)
            if p.epoch > epochs.get(p.producer_id, -1)
        }
        with self._changing():
            self._journal.append(
                [["epoch", producer_id, PRODUCER_EPOCH_MAX] for producer_id in sorted(later)]
            )

    def _producers(self, topic: str, partition: int) -> tuple[ProducerState, ...]:
        try:
            return self._logs.log(topic, partition).producers()
        except PylogError as error:
            logger.error("%s-%d: producers are not known: %s", topic, partition, error)
            return ()

    def close(self) -> None:
        """This process writes no more: what it left open is aborted."""
        if self._holders.release():
            self.tend()
        self._journal.sync_all()
        self._note_lines()

    def _note_lines(self) -> None:
        """Note how many lines of the journal are on disk: who finds fewer knows that it is damaged."""
        if self._journal.durable_lines > self._log_dir.journal_lines():
            self._log_dir.advance_recovery_points({}, journal_lines=self._journal.durable_lines)
