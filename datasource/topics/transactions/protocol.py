"""The protocol of exactly-once batches: the order of messages, over `Brokers`, so that it runs on a simulated one.

A writer that changes the state of a name begins under the name's own transactional id, which fences every other such
writer; reads the state; and writes in one transaction what the rules make of it. Fenced, it begins again. So of two
that write only one succeeds, and the other sees what it wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from datasource.topics.transactions.state import (
    Attempt,
    Decision,
    NameState,
    UnknownOutcomeError,
    attempt_id,
    check_begun,
    decided,
    driver_id,
    ended,
    finished,
    free_names,
    is_decided,
    is_leased,
    is_leftover,
    taken_over,
)
from logstore.env import SYSTEM
from logstore.errors import TransactionAbortedError

if TYPE_CHECKING:
    from replication.client.transactions import BegunProducer, DescribedTransaction, Pair

LOOKS = 20  # of a task, before it takes over a name that another task of its run is taking over
PAUSE_S, SHORT_S = 0.1, 0.01
VISIBLE_LOOKS = 2000  # for some ten seconds: what is decided is visible in the end
LOOKED_AT = 10  # transactions at a time: brokers tell every partition of each
NO_BATCH = -1
EMPTY, ONGOING = "Empty", "Ongoing"
COMMITTING = "PrepareCommit"
COMMITTED = frozenset({COMMITTING, "CompleteCommit"})


Described: TypeAlias = "Mapping[str, DescribedTransaction] | None"


class Brokers(Protocol):
    """The cluster, and time. Errors are KafkaError and UnreachableError, after what repetition can mend."""

    @property
    def is_two_phase(self) -> bool:
        """Whether a transaction stays open until somebody ends it, and can be kept (KIP-939)."""

    async def read(self, name: str) -> NameState:
        """The state of a name as it is now, whatever is open in the topic of decisions."""

    async def leases(self) -> Mapping[str, NameState]:
        """The states of the names that are lent to batch writes."""

    async def begin_driver(self, name: str, ids: Collection[str] = ()) -> tuple[Pair, Described]:
        """InitProducerId of the id under which the state of a name is written: who had it before writes no more.

        At the same time these ids are described, as `describe` does.
        """

    async def begin(self, id: str) -> BegunProducer:
        """InitProducerId of an attempt. Two phases keep and return an open transaction of the id, one aborts it."""

    async def write(self, name: str, pair: Pair, state: NameState) -> bool:
        """Store the state in one transaction; False: somebody else has begun under the name's id."""

    async def end(self, attempts: Collection[Attempt], *, commits: bool) -> list[Attempt]:
        """EndTxn of all of these; return the refused ones: no transaction of this id and pair can end so."""

    async def describe(self, ids: Collection[str]) -> Described:
        """The coordinators' descriptions of these ids; None: the brokers are too old."""

    async def listed(self, states: Sequence[str]) -> Collection[str]:
        """The ids that are in these states; none where brokers are too old to tell."""

    async def pause(self, most_s: float = PAUSE_S) -> None:
        """A moment, by chance shorter or longer."""


class Name:
    """The work of one run under one name. `driver` is the process that drives it, for an abort without messages."""

    def __init__(self, brokers: Brokers, name: str, run: str, driver: str = "") -> None:
        self._brokers, self._name, self._run, self._driver = brokers, name, run, driver

    async def take_over(self) -> NameState:
        """Make this run the one that writes, and end what the ones before left open.

        Raises: TransactionAbortedError: another one has superseded it; UnknownOutcomeError.
        """
        stored = None

        def change(state: NameState) -> NameState | None:
            nonlocal stored
            stored = taken_over(state, self._name, self._run, self._driver)
            return stored

        state = await self._change(change)
        if stored is not None:
            # Not before it is stored, and seen: until then those of the run before may begin.
            await self.until_visible([driver_id(self._name)])
            await self._end_leftovers(state.number - 1, ())
        return state

    async def begin(self, batch_id: int, task: tuple[int, int], *, takes_over: bool = True) -> Attempt | None:
        """Begin the transaction of a task (its partition and attempt); None: the batch is committed already.

        Raises: TransactionAbortedError: it is not wanted any more; BatchConflictError; UnknownOutcomeError.
        """
        state = await self._brokers.read(self._name)
        for _ in range(LOOKS if task[0] and takes_over else 0):
            if state.run == self._run:
                break
            await self._brokers.pause()
            state = await self._brokers.read(self._name)
        if state.run != self._run and takes_over:
            state = await self.take_over()
        if is_decided(state, self._name, batch_id):
            return None
        attempt = await self._begun(state, batch_id, task)
        # A task that begins after the decision sees it here; the driver finds and ends one that began before.
        state = await self._brokers.read(self._name)
        check_begun(state, self._name, self._run, batch_id)
        return attempt

    async def _begun(self, state: NameState, batch_id: int, task: tuple[int, int]) -> Attempt:
        """An id of this task under which nothing goes on: another stage may have had an attempt of this number."""
        partition, number = task
        while True:
            id = attempt_id(self._name, state.number, batch_id, (partition, number))
            begun = await self._brokers.begin(id)
            if begun.ongoing is None:
                return Attempt(id, *begun.pair)
            number += 1

    async def commit(self, wanted: Decision) -> None:
        """Commit a batch: all of its attempts, and no others; one that is committed already stays as it is.

        On return readers see it, unless a partition has no leader for long.

        Raises: BatchConflictError; TransactionAbortedError: nothing of it will be visible; UnknownOutcomeError: it is
        decided, and what came of some of it is not known.
        """
        if not wanted.attempts and not is_decided(await self._brokers.read(self._name), self._name, wanted.batch_id):
            if is_leased(self._name):  # no rows
                await self.abort(wanted.batch_id)
            return
        state = await self._change(lambda state: decided(state, self._name, self._run, wanted), wanted.attempts)
        assert state.last is not None
        await self._finish(state.last)
        # A task that begins after the search for leftovers must see the decision.
        await self.until_visible([driver_id(self._name)])
        if not self._brokers.is_two_phase:
            # There an id that is forgotten for its age does not say that its transaction was committed.
            state = await self._change(lambda state: finished(state, wanted.batch_id))
        if state.run == self._run:
            await self._end_leftovers(state.number, wanted.attempts)
        await self.until_visible([each.id for each in wanted.attempts])
        if is_leased(self._name):
            await self._change(lambda state: ended(state, self._name) if state.run == self._run else None)

    async def abort(self, batch_id: int) -> None:
        """End the run, and what it wrote of this batch; finish the batch if it is decided.

        Without a run it is the one that the same driver process has open. Raises: UnknownOutcomeError.
        """
        stored = None

        def change(state: NameState) -> NameState | None:
            nonlocal stored
            is_mine = state.run == self._run if self._run else bool(state.run) and state.driver == self._driver
            is_over = state.last is not None and state.last.batch_id == batch_id and not is_leased(self._name)
            stored = ended(state, self._name) if is_mine and not is_over else None
            return stored

        state = await self._change(change)
        if stored is not None:
            await self.until_visible([driver_id(self._name)])
            await self._end_leftovers(state.number, ())
        elif state.last is not None and state.last.batch_id == batch_id and not state.last.is_finished:
            await self._finish(state.last)

    async def _change(
        self, change: Callable[[NameState], NameState | None], winners: Sequence[Attempt] = ()
    ) -> NameState:
        """Store what `change` makes of the state, if it is not None; return the state that is there then.

        A decision that is not finished is finished before another run's state stands in its place. Raises:
        TransactionAbortedError: one of the winners is not open, so nothing is stored.
        """
        while True:
            pair, described = await self._brokers.begin_driver(self._name, [each.id for each in winners])
            state = await self._brokers.read(self._name)
            new = change(state)
            if new is not None and described is not None:
                _check_open(winners, described)
            if new is not None and new.run != state.run and state.last is not None and not state.last.is_finished:
                await self._finish(state.last)
            if new is None or await self._brokers.write(self._name, pair, new):
                return new or state
            await self._brokers.pause()

    async def _finish(self, decision: Decision) -> None:
        """Commit the attempts of a decision. This may be done again and again, by anybody.

        Raises: UnknownOutcomeError: one of them is refused, and nothing shows that it was committed before.
        """
        refused = await self._brokers.end(decision.attempts, commits=True)
        if not refused:
            return
        described = await self._brokers.describe([each.id for each in refused])
        lost = [each for each in refused if not self._is_committed(each, described)]
        if not lost:
            return
        last = (await self._brokers.read(self._name)).last
        # An earlier batch says nothing: the marker of this decision may not be written yet.
        if last is not None and (last.batch_id, last.is_finished) >= (decision.batch_id, True):
            return  # somebody else did it, and the ids have gone on
        raise UnknownOutcomeError(self._name, decision, lost)

    async def until_visible(self, ids: Collection[str]) -> None:
        """Wait until every partition has the markers of these commits, as far as brokers show it and leaders live."""
        left, looks = list(ids), VISIBLE_LOOKS
        while left and looks:
            # They get their markers one after the other, so that the first few show enough, and cost little.
            described = await self._brokers.describe(left[:LOOKED_AT])
            waited = [id for id, found in (described or {}).items() if found.state == COMMITTING]
            left = waited + left[LOOKED_AT:]
            if waited:
                looks -= 1
                await self._brokers.pause(SHORT_S)

    def _is_committed(self, attempt: Attempt, described: Mapping[str, DescribedTransaction] | None) -> bool:
        if described is None:
            return False
        found = described.get(attempt.id)
        if found is None:  # what goes on in two phases is not forgotten, so it was ended; and nobody aborts a winner
            return self._brokers.is_two_phase
        return found.state in COMMITTED and tuple(found.pair) >= attempt[1:]

    async def _end_leftovers(self, number: int, winners: Collection[Attempt]) -> None:
        """Abort what this run, and those before it, began and nobody decided; fence who is about to write there.

        An id that has ended its transaction is left alone: nobody has begun there since.
        """
        ours = {each.id for each in winners}
        for id in await self._brokers.listed((EMPTY, ONGOING)):
            if id in ours or not is_leftover(id, self._name, number):
                continue
            begun = await self._brokers.begin(id)
            if begun.ongoing is not None:
                await self._brokers.end([Attempt(id, *begun.ongoing)], commits=False)


def _check_open(winners: Sequence[Attempt], described: Mapping[str, DescribedTransaction]) -> None:
    for each in winners:
        found = described.get(each.id)
        if found is None or found.state != ONGOING or tuple(found.pair) != each[1:]:
            reason = f"transaction {each.id} is {found.state if found else 'not known'}"
            raise TransactionAbortedError(each.producer_id, each.epoch, reason)


async def lease(brokers: Brokers, run: str, driver: str) -> str:
    """Take over a name that nobody has, for a batch write that was given none; return it."""
    while True:
        name = SYSTEM.random.choice(free_names(await brokers.leases()))
        try:
            await Name(brokers, name, run, driver).take_over()
        except TransactionAbortedError:
            continue  # somebody was quicker
        return name
