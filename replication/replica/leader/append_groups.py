"""AppendGroups: the appends that go to a log together, as jobs of its queue, and those that are held before that.

An append is held whose schema ids a look at `_schemas` has to judge. All that come behind it are held, too: records of
one connection stay in their order. When the look is over they go to the log together, whoever leads by then: a leader
of before is told that it leads no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from logstore.log.validation import AppendOutcome
from replication.errors import ErrorCode, KafkaError
from replication.replica.leader.appends import Append, write_in_thread
from replication.replica.leader.purgatory import Waiter
from replication.replica.leader.schema_records import SchemaRecords
from replication.replica.machine.isr import Leading
from replication.replica.storage.replica_log import ReplicaLog


class Appending(Protocol):
    """The parts of a `Leader` that are used here."""

    is_over: bool
    replica: ReplicaLog
    state: Leading
    schemas: SchemaRecords | None
    group: AppendGroup | None
    held: HeldAppends

    def appended(self, group: AppendGroup) -> None: ...


class Held(NamedTuple):
    """An append, and how many looks had begun when it was held; None: it is only behind such a one."""

    append: Append
    waiter: Waiter
    begun: int | None


class AppendGroup:
    def __init__(self, leader: Appending) -> None:
        self.leader = leader
        self.appends: list[Append] = []
        self.waiters: list[Waiter] = []
        self.outcomes: list[AppendOutcome] = []
        self.offsets = (0, 0)

    def seal(self) -> None:
        self.leader.group = None

    def run(self) -> None:
        self.leader.replica.host.keep_reserve()
        self.write([None] * len(self.appends))

    def write(self, held: Sequence[int | None]) -> None:
        """Write the first ones; hold the others. `held` says of each how many looks had begun when it was held."""
        leader, replica, rows = self.leader, self.leader.replica, self.leader.held.rows
        begun = replica.host.schema_ids.looks.begun
        done, is_first = 0, not rows
        if is_first:
            self.outcomes = write_in_thread(replica, self.appends, leader.state.leader_epoch, leader.schemas, held)
            done = len(self.outcomes)
        for append, waiter, since in zip(self.appends[done:], self.waiters[done:], held[done:], strict=True):
            rows.append(Held(append, waiter, begun if is_first and since is None else since))
            is_first = False
        del self.appends[done:], self.waiters[done:]
        self.offsets = replica.offsets()

    def fail(self, error: Exception) -> None:
        self.outcomes = [error] * len(self.appends)
        self.offsets = self.leader.replica.offsets()

    def done(self) -> None:
        self.leader.appended(self)
        self.leader.held.look()


class HeldGroup(AppendGroup):
    """The appends that were held: a look is over."""

    def seal(self) -> None: ...

    def run(self) -> None:
        leader, held = self.leader, self.leader.held.take()
        self.appends, self.waiters = [each.append for each in held], [each.waiter for each in held]
        if leader.is_over:  # others may lead: nothing is appended any more
            self.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        leader.replica.host.keep_reserve()
        self.write([each.begun for each in held])


class HeldAppends:
    """`rows` belongs to the queue of the log; a look is asked for in the event loop."""

    def __init__(self, leader: Appending) -> None:
        self.rows: list[Held] = []
        self._leader = leader
        self._is_looking = False

    def take(self) -> list[Held]:
        held, self.rows = self.rows, []
        return held

    def look(self) -> None:
        """Have a look at `_schemas` if there are any; then they go to the log, or are held on."""
        if self.rows and not self._is_looking:
            self._is_looking = True
            self._leader.replica.host.schema_ids.look(self._looked)

    def _looked(self) -> None:
        self._is_looking = False
        self._leader.replica.submit(HeldGroup(self._leader))
