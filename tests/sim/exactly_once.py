"""Drivers of a stream, their tasks and their zombies over the product's coordinator, one message at a time.

Two lives of the query may go on at once; tasks fail, hang and are tried again; anybody may die between two messages.

Law: a reader of committed data sees each batch once or not yet, and at the end each once, and nothing is open. Where
transactions have one phase, a driver may also be told that rows of a decided batch are missing.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from types import coroutine
from typing import NamedTuple

from datasource.topics.transactions import protocol, state
from datasource.topics.transactions.protocol import Name
from datasource.topics.transactions.state import (
    Attempt,
    Decision,
    NameState,
    UnknownOutcomeError,
    driver_id,
    read_value,
    value_of,
)
from logstore.errors import PylogError, TransactionAbortedError
from logstore.store.transactions.state import Content
from replication.client.transactions import BegunProducer, DescribedTransaction, Pair
from replication.coordinators.transactions.machine import events
from replication.coordinators.transactions.machine.state import Phase
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from tests.sim.coordinator import Coordinator

NAME = "query"
BATCHES, PARTITIONS, ATTEMPTS_MAX = 4, 2, 4
WHERE = TopicPartition("t", 0)
DECIDES, DECIDED = "is about to decide", "has decided"  # moments of drivers
SLOW = 0.005
REFUSED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE)


class Flaw(enum.Enum):
    NO_SECOND_READ = "a task does not look again after it has its id"
    NO_PARITY = "two batches that follow each other have the same ids"
    NO_RUN_SLOT = "two runs have the same ids"
    NO_LEFTOVERS = "nobody looks for what died before it was prepared"
    NOT_FINISHED = "a run is taken over before its last decision is finished"
    NO_FENCE = "the state is written without a transaction of its name's id"
    EARLY_LEFTOVERS = "leftovers are looked for before the decision"
    NOT_SEEN = "leftovers are looked for before all can see the decision"
    ANY_WINNER = "what a task prepared is decided without a look at whether it is still open"


class Circumstances(NamedTuple):
    """The circumstances of a run, from which its seed chooses: numbers below 1 are probabilities.

    All circumstances are legal: without a flaw they break no law.
    """

    two_phases: float = 0.8
    late: float = 0.5  # markers
    arrives: float = 0.05  # one that is late, before the next message of anybody
    lives: Sequence[int] = range(1, 7)
    begins: float = 0.02  # another life, while others go on
    deaths: Sequence[float] = (0, 0.002, 0.01, 0.03)  # before each message
    paces: Sequence[float] = (1, 1, 1, 1, 0.3, 0.02)
    patience: Sequence[int] = (40, 10**6)  # messages of others for which a driver waits for a task
    fails: float = 0.1  # a task
    dies_at: tuple[str, float] = ("", 0)  # a driver
    slows_at: tuple[str, float] = ("", 0)


USUAL = Circumstances()
QUIET = USUAL._replace(deaths=(0,), paces=(1,), fails=0, lives=(4,))
ZOMBIES = USUAL._replace(two_phases=1, late=1, lives=(10,), begins=0.005, deaths=(0.03,), paces=(1, 1, 1, 0.005))
CIRCUMSTANCES = {
    Flaw.NO_SECOND_READ: ZOMBIES._replace(two_phases=0, late=0, lives=(6,), begins=0.1, patience=(40,), fails=0.2),
    Flaw.NO_PARITY: USUAL._replace(lives=(3,), begins=0.05, deaths=(0.002,), paces=(1, 1, 0.02)),
    Flaw.NO_RUN_SLOT: USUAL._replace(late=0, lives=(10,), deaths=(0.01,), patience=(40,)),
    Flaw.NO_LEFTOVERS: USUAL,
    Flaw.NOT_FINISHED: QUIET._replace(dies_at=(DECIDED, 0.5)),
    Flaw.NO_FENCE: QUIET._replace(slows_at=(DECIDES, 0.5), patience=(40,)),
    Flaw.EARLY_LEFTOVERS: ZOMBIES,
    Flaw.NOT_SEEN: USUAL._replace(late=1, arrives=0.005, patience=(25,), paces=(1, 1, 1, 0.005)),
    Flaw.ANY_WINNER: ZOMBIES._replace(lives=(6,), patience=(15,), fails=0),
}


async def _at_once(*_) -> None:
    """Wait for nothing."""


@coroutine
def tick():
    """Somebody else may go on here, or this one die."""
    yield


class World:
    """A coordinator, markers that come late, and partitions that hold back what is not committed."""

    def __init__(self, seed: int, flaw: Flaw | None, circumstances: Circumstances) -> None:
        self.random, self.flaw = random.Random(seed), flaw
        self.is_two_phase = self.random.random() < circumstances.two_phases
        self.coordinator = Coordinator(seed)
        self.fresh = 0
        self.pending: dict[int, list] = {}
        self.states: dict[str, bytes] = {}
        self.visible: list[tuple[int, int]] = []
        self.early: list[str] = []
        self.moment = ""  # of the one that goes on
        self.is_slow = self.random.random() < circumstances.late

    def write_markers(self, producer_id: int) -> bool:
        """Those of this producer arrive, if there are any."""
        commits = self.coordinator.arrive(producer_id)
        for row in () if commits is None else self.pending.pop(producer_id, []):
            if commits:
                self.commit(row)
        return commits is not None

    def ask(self, id: str, event):
        answer = self._told(id, event)
        known = self.coordinator.transactions.get(id)
        if answer.error is ErrorCode.CONCURRENT_TRANSACTIONS and known and self.write_markers(known.producer_id):
            answer = self._told(id, event)  # whoever comes again is heard when they have arrived
        if answer.error:
            raise KafkaError(answer.error)
        return answer

    def _told(self, id: str, event):
        answer = self.coordinator.ask(id, event)
        for producer_id in () if self.is_slow else list(self.coordinator.markers):
            self.write_markers(producer_id)
        return answer

    def commit(self, row) -> None:
        if isinstance(row, bytes):
            self.states[NAME] = row
        else:
            assert row not in self.visible, f"{row} is there twice"
            self.visible.append(row)

    def initialize(self, id: str, *, is_two_phase: bool):
        self.fresh += 1
        how = {"is_two_phase": is_two_phase, "keeps_prepared": is_two_phase, "fresh_id": self.fresh}
        while True:
            try:
                return self.ask(id, lambda request: events.Initialize(request=request, timeout_ms=1000, **how))
            except KafkaError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    raise

    def add(self, id: str, pair) -> None:
        producer = {"producer_id": pair[0], "producer_epoch": pair[1]}
        self.ask(id, lambda request: events.Add(request=request, partitions=frozenset({WHERE}), **producer))

    def finish(self, id: str, pair, *, commits: bool) -> bool:
        producer = {"producer_id": pair[0], "producer_epoch": pair[1]}
        try:
            self.ask(id, lambda request: events.End(request=request, commits=commits, **producer))
        except KafkaError as error:
            if error.code not in REFUSED:
                raise
            return False
        return True

    # --- as `protocol.Brokers`

    async def read(self, name: str) -> NameState:
        await tick()
        found = read_value(self.states[name]) if name in self.states else NameState()
        await tick()
        return replace(found, last=state._finished(found.last)) if self.flaw is Flaw.NOT_FINISHED else found

    async def begin_driver(self, name: str, ids=()):
        described = await self.describe(ids) if (is_first := self.random.random() < 0.5) else None
        await tick()
        found = self.initialize(driver_id(name), is_two_phase=False)
        await tick()
        return Pair(found.producer_id, found.producer_epoch), described if is_first else await self.describe(ids)

    async def begin(self, id: str) -> BegunProducer:
        await tick()
        found = self.initialize(id, is_two_phase=self.is_two_phase)
        await tick()
        kept = Pair(found.ongoing_producer_id, found.ongoing_producer_epoch)
        return BegunProducer(Pair(found.producer_id, found.producer_epoch), kept if kept.producer_id >= 0 else None)

    async def write(self, name: str, pair: Pair, new: NameState) -> bool:
        id = driver_id(name)
        self.moment = DECIDES
        await tick()
        if self.flaw is Flaw.NO_FENCE:
            self.states[name] = value_of(new)
            return True
        try:
            self.add(id, pair)
            await tick()
            self.add(id, pair)  # as the leader of the partition asks
            self.pending[pair.producer_id] = [value_of(new)]
        except KafkaError:
            return False
        await tick()
        is_done = self.finish(id, pair, commits=True)
        self.moment = DECIDED
        await tick()
        return is_done

    async def end(self, attempts, *, commits: bool) -> list[Attempt]:
        refused = []
        for each in attempts:
            await tick()
            if not self.finish(each.id, each[1:], commits=commits):
                refused.append(each)
        await tick()
        return refused

    async def describe(self, ids):
        await tick()
        known = {id: t for id in ids if (t := self.coordinator.transactions.get(id))}
        if ids and driver_id(NAME) not in ids:  # before the decision
            self.early = self.with_state(("Empty", "Ongoing"))
        if self.flaw is Flaw.ANY_WINNER:
            return None
        return {
            id: DescribedTransaction(
                id, str(t.phase), Pair(t.producer_id, t.producer_epoch), t.started_ms, t.timeout_ms, t.partitions
            )
            for id, t in known.items()
        }

    async def listed(self, states):
        await tick()
        found = self.early if self.flaw is Flaw.EARLY_LEFTOVERS else self.with_state(states)
        await tick()
        return () if self.flaw is Flaw.NO_LEFTOVERS else found

    def with_state(self, states) -> list[str]:
        return [id for id, t in self.coordinator.transactions.items() if t.phase in states]

    async def pause(self, most_s: float = 0) -> None:
        for _ in range(self.random.randint(1, 4)):
            await tick()

    async def append(self, attempt: Attempt, row) -> None:
        await tick()
        self.add(attempt.id, attempt[1:])
        await tick()
        self.add(attempt.id, attempt[1:])  # as the leader of the partition asks
        self.pending.setdefault(attempt.producer_id, []).append(row)
        await tick()

    @property
    def opened(self) -> list[str]:
        """The transactions that nobody ends, but for that of a state, which times out."""
        return [id for id in self.with_state((Phase.ONGOING,)) if id != driver_id(NAME)]


class Run:
    """One seed: who is there, and who goes on next. Spark has checkpointed `done` batches."""

    def __init__(self, seed: int, flaw: Flaw | None, circumstances: Circumstances) -> None:
        self.world, self.circumstances = World(seed, flaw, circumstances), circumstances
        self.random = self.world.random
        self.actors: list[tuple[Coroutine, bool, float]] = []  # whether it may die, and how quick it is
        self.done = 0
        self.is_told = False  # that rows of a decided batch may be missing

    def start(self, act: Coroutine, *, is_mortal: bool = True) -> None:
        pace = self.random.choice(self.circumstances.paces) if is_mortal else 1
        self.actors.append((act, is_mortal, pace))

    def go_on(self, *, death: float) -> None:
        """One message of somebody. Some are slow."""
        if self.world.coordinator.markers and self.random.random() < self.circumstances.arrives:
            self.world.write_markers(self.random.choice(list(self.world.coordinator.markers)))
        (index,) = self.random.choices(range(len(self.actors)), [pace for *_, pace in self.actors])
        actor, is_mortal, _ = self.actors[index]
        if is_mortal and self.random.random() < death:
            self.actors.pop(index)
            actor.close()
            return
        self.world.moment = ""
        try:
            actor.send(None)
        except StopIteration:
            self.actors.pop(index)
            return
        if is_mortal and self.meets(self.circumstances.dies_at):
            self.actors.pop(index)
            actor.close()
        elif is_mortal and self.meets(self.circumstances.slows_at):
            self.actors[index] = actor, is_mortal, SLOW

    def meets(self, at: tuple[str, float]) -> bool:
        moment, probability = at
        return moment != "" and moment == self.world.moment and self.random.random() < probability

    async def life(self, run: str) -> None:
        """One life of the query, to its end or to the first error."""
        while (batch := self.done) < BATCHES:
            name = Name(self.world, NAME, run, run)
            try:
                messages = [await self.task(run, batch, p) for p in range(PARTITIONS)]
                attempts = tuple(sorted(each for each in messages if each))
                await name.commit(
                    Decision(batch_id=batch, content=Content(rows=batch), rows={"t-0": 1}, attempts=attempts)
                )
                await tick()
                self.done = max(self.done, batch + 1)
            except UnknownOutcomeError:
                self.is_told = True
                return
            except PylogError:
                if self.random.random() < 0.7:
                    with suppress(PylogError):
                        await name.abort(batch)
                return

    async def task(self, run: str, batch: int, partition: int):
        """The message of the first attempt that gives one; slow ones are not waited for, and go on."""
        answers: dict[int, object] = {}
        for number in range(ATTEMPTS_MAX):
            self.start(self.attempt(run, batch, partition, number, answers))
            patience = self.random.choice(self.circumstances.patience)
            for _ in range(patience):
                await tick()
                if ready := [each for each in answers.values() if not isinstance(each, PylogError)]:
                    return ready[0]
                if number in answers:  # it failed, or has died
                    break
        raise TransactionAbortedError(-1, -1, "a task failed too often")

    async def attempt(self, run: str, batch: int, partition: int, number: int, answers: dict) -> None:
        begun = None
        try:
            begun = await Name(self.world, NAME, run, run).begin(batch, (partition, number))
            if begun is not None:
                for row in range(2):
                    await self.world.append(begun, (batch, partition, row))
                if self.random.random() < self.circumstances.fails:
                    raise TransactionAbortedError(-1, -1, "the task fails")
            answers[number] = begun
        except GeneratorExit:
            answers[number] = TransactionAbortedError(-1, -1, "the worker died")
            raise
        except PylogError as error:
            if begun is not None:
                await self.world.end([begun], commits=False)
            answers[number] = error


FLAWS = {
    Flaw.NOT_SEEN: (Name, "until_visible", _at_once),
    Flaw.NO_SECOND_READ: (protocol, "check_begun", lambda *args: None),
    Flaw.NO_PARITY: (
        protocol,
        "attempt_id",
        lambda name, number, batch_id, task: state.attempt_id(name, number, 0, task),
    ),
    Flaw.NO_RUN_SLOT: (
        protocol,
        "attempt_id",
        lambda name, number, batch_id, task: state.attempt_id(name, 0, batch_id, task),
    ),
}


def simulate(seed: int, flaw: Flaw | None = None, circumstances: Circumstances | None = None) -> int:
    """Run one seed, a flaw's in its own circumstances; return the number of lives. Raises: AssertionError."""
    circumstances = circumstances or CIRCUMSTANCES.get(flaw, USUAL)
    run = Run(seed, flaw, circumstances)
    lives = run.random.choice(circumstances.lives)
    death = run.random.choice(circumstances.deaths)
    started = 0
    for _ in range(3000):
        if started < lives and (not run.actors or run.random.random() < circumstances.begins):
            run.start(run.life(f"run-{started}"))
            started += 1
            if run.random.random() < 0.1 and run.world.is_two_phase:
                run.world.coordinator.pass_week()
        if not run.actors:
            break
        run.go_on(death=death)
    for again in range(10):  # zombies and tasks may end the last one, too: a user of Spark starts it again
        run.start(run.life(f"last-{again}"), is_mortal=False)
        while run.actors:
            run.go_on(death=0)
    for producer_id in list(run.world.coordinator.markers):
        run.world.write_markers(producer_id)
    wanted = [(b, p, row) for b in range(BATCHES) for p in range(PARTITIONS) for row in range(2)]
    if run.is_told:
        # Between the driver's look and its EndTxn a zombie of an earlier batch may begin under a winner's id.
        assert not run.world.is_two_phase, "what is decided in two phases cannot be lost"
        return lives
    assert run.done == BATCHES, "it does not come to an end"
    assert sorted(run.world.visible) == wanted, sorted(set(wanted) - set(run.world.visible))
    assert not run.world.opened, run.world.opened
    return lives
