"""Every order of what can happen to a producer whose transactions have an epoch each (transaction version 2).

The decisions are the product's: the coordinator's `step`, the leaders' `Writers` and `ProducerStates`. The rest is as
plain as it can be: messages that arrive in any order, a client that asks again, and deaths, of which a run has a few.
A `World` is a value; `epoch_laws` looks at each that can come of another one, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from logstore.errors import PylogError
from logstore.log.producers.state import ProducerStates
from logstore.records.batch import CONTROL, TRANSACTIONAL, BatchHeader
from logstore.records.marker import ControlMarker, Marker
from replication.broker import verification
from replication.coordinators.transactions.machine import events, state, step
from replication.coordinators.transactions.machine.state import DECIDED, EPOCH_GIVEN_MAX, NO_ID, Phase, Transaction
from replication.errors import ErrorCode, code_of
from replication.model.cluster import TopicPartition
from replication.replica.leader.writers import Writers, has_begun

NOW_MS, LATER_MS, TIMEOUT_MS = 1_000, 10**9, 60_000
RESTARTS_MAX = 2  # of a client: a run ends
LIMITS = state.TransactionSettings()
NONE = ErrorCode.NONE
Step = tuple[Any, ...]  # that is taken, for people
FATAL = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


class Batch(NamedTuple):
    """One record of a transaction, to a partition. Also the request to append it, and what is in the log."""

    number: int  # of the transaction
    place: int  # in the transaction
    partition: int
    pair: tuple[int, int]
    sequence: int


class Ask(NamedTuple):
    """The leader of a partition has the coordinator add it to the transaction of this epoch."""

    partition: int
    life: int  # of the leader
    pair: tuple[int, int]
    is_late: bool = False  # the leader waits for its answer no more, and has asked again


class End(NamedTuple):
    number: int
    pair: tuple[int, int]
    commits: bool


class Begin(NamedTuple):
    """InitProducerId."""

    instance: int


class Mark(NamedTuple):
    partition: int
    marker: Marker


class Answer(NamedTuple):
    to: Any  # the request
    error: ErrorCode = NONE
    pair: tuple[int, int] = (-1, -1)


class Client(NamedTuple):
    instance: int = 0
    pair: tuple[int, int] = (-1, -1)
    number: int = 0  # of its transaction
    asked: Any = None  # Begin or End: the request whose answer it waits for
    unacked: frozenset[Batch] = frozenset()
    outcomes: tuple[str, ...] = ()  # of its transactions


class Leader(NamedTuple):
    life: int = 0
    log: tuple[Batch | Marker, ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()  # of `Writers`
    # The epoch that the coordinator is asked about, whether that is void, and the batches that wait.
    questions: tuple[tuple[tuple[int, int], bool, tuple[Batch, ...]], ...] = ()


class World(NamedTuple):
    fates: str  # of the transactions that the client wants to make: c, a
    client: Client
    leaders: tuple[Leader, ...]
    known: Transaction  # by the coordinator
    stored: Transaction  # in its log
    appending: tuple[Transaction, Answer | None] | None = None  # what is stored, and then answered
    life: int = 0  # of the coordinator
    messages: frozenset[Any] = frozenset()
    left: int = 0  # deaths and the like that may still happen
    is_disturbed: bool = False  # by what may fail a transaction

    def sends(self, *messages: Any) -> World:
        return self._replace(messages=self.messages | set(messages))


def begun(fates: str, records: int, partitions: int, left: int, epoch: int = 0) -> World:
    """Return a world whose client has an epoch, and begins the first of its transactions."""
    known = Transaction(id="t", producer_id=7, producer_epoch=epoch, timeout_ms=TIMEOUT_MS)
    world = World(fates, Client(pair=(7, epoch)), (Leader(),) * partitions, known, known, left=left)
    return _produce(world, records)


# --- the client


def _produce(world: World, records: int) -> World:
    """The client sends the records of its transaction, the last ones to the last partition."""
    c, partitions = world.client, len(world.leaders)
    if c.number == len(world.fates):
        return world
    sequences = [0] * partitions
    batches = []
    for place in range(records):
        partition = min(place, partitions - 1)
        batches.append(Batch(c.number, place, partition, c.pair, sequences[partition]))
        sequences[partition] += 1
    return world._replace(client=c._replace(unacked=frozenset(batches))).sends(*batches)


def _end(world: World, *, commits: bool) -> World:
    c = world.client
    end = End(c.number, c.pair, commits)
    return world._replace(client=c._replace(asked=end, unacked=frozenset())).sends(end)


def _follow(world: World, outcome: str, **changes: Any) -> World:
    """The client goes on behind its transaction, which has this outcome."""
    c = world.client
    return world._replace(
        client=c._replace(number=c.number + 1, outcomes=(*c.outcomes, outcome), asked=None, **changes)
    )


def _restart(world: World) -> World:
    """The client is killed, and another instance takes its place."""
    c = world.client
    if c.number < len(world.fates) and not isinstance(c.asked, Begin):
        commits = isinstance(c.asked, End) and c.asked.commits
        world = _follow(world, "unknown" if commits else "aborted")
    c = world.client
    begin = Begin(c.instance + 1)
    return world._replace(
        client=c._replace(instance=begin.instance, asked=begin, unacked=frozenset()), is_disturbed=True
    ).sends(begin)


def _heard(world: World, answer: Answer, records: int) -> World:
    """The client hears an answer; one that it does not wait for is nothing to it."""
    c, (to, error, pair) = world.client, answer
    if isinstance(to, Batch) and to in c.unacked:
        if error is NONE:
            world = world._replace(client=c._replace(unacked=c.unacked - {to}))
            return world if world.client.unacked else _end(world, commits=world.fates[c.number] == "c")
        is_early = error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and to.sequence > 0  # others are to come first
        if error.is_retriable or is_early:
            return world.sends(to)
        assert world.is_disturbed, f"{to} is refused: {error.name}"
        return _restart(world) if error in FATAL else _end(world, commits=False)
    if to != c.asked:
        return world
    if error is NONE and isinstance(to, Begin):
        return _produce(world._replace(client=c._replace(pair=pair, asked=None)), records)
    if error is NONE:
        return _produce(_follow(world, "committed" if to.commits else "aborted", pair=pair), records)
    if error.is_retriable:
        return world.sends(to)
    assert world.is_disturbed, f"{to} is refused: {error.name}"
    return _restart(world)


# --- the coordinator


def post(world: World, event: events.Event, now_ms: int = NOW_MS) -> World:
    known, effects = step.step(world.known, event, now_ms, LIMITS)
    return _perform(world._replace(known=known), effects)


def _perform(world: World, effects: Sequence[events.Effect]) -> World:
    for effect in effects:
        match effect:
            case events.Append():
                assert world.appending is None, "two changes at a time"
                answer = None if effect.answer is None else _answer(effect.answer)
                world = world._replace(appending=(effect.stored, answer))
            case events.Answer():
                world = world.sends(_answer(effect))
            case events.WriteMarkers(producer_id, epoch, commits, version, partitions):
                marker = Marker(producer_id, epoch, commits, world.life, version >= 2)
                world = world.sends(*(Mark(tp.partition, marker) for tp in partitions))
    return world


def _answer(answer: events.Answer) -> Answer:
    to, body = answer.request, answer.body
    if isinstance(body, events.Added):
        return Answer(to, body.error or next(iter(body.refused.values()), NONE))
    return Answer(to, body.error, (body.producer_id, body.producer_epoch))


def _stored(world: World, error: ErrorCode = NONE, *, is_there: bool = True) -> World:
    """The append of the coordinator is over; with an error it may be in the log all the same."""
    assert world.appending is not None
    target, answer = world.appending
    said = None
    if answer is not None:
        body = events.Added() if isinstance(answer.to, Ask) else _KINDS[type(answer.to)](answer.error, *answer.pair)
        said = events.Answer(answer.to, body)
    world = world._replace(appending=None, stored=target if is_there else world.stored)
    return post(world, events.Stored(events.Append(target, said), error))


_KINDS: Any = {End: events.Ended, Begin: events.Initialized}


def _move(world: World, *, is_there: bool) -> World:
    """Another coordinator loads what is in the log: with the append that was under way, or without."""
    world = post(world, events.Unloaded())
    if world.appending is not None:
        world = _stored(world, ErrorCode.NOT_LEADER_OR_FOLLOWER, is_there=is_there)
    loaded, effects = step.resume(_loaded(world.stored), NOW_MS, LIMITS)
    return _perform(world._replace(known=loaded, life=world.life + 1), effects)


def _loaded(t: Transaction) -> Transaction:
    """Return the part that a record keeps: see `machine.records`, whose tests are elsewhere."""
    unmarked = t.partitions if t.phase in DECIDED else frozenset()
    return replace(t, previous_producer_epoch=state.NO_EPOCH, unmarked=unmarked, storing=None)


def _ask_coordinator(world: World, request: Ask | End | Begin) -> World:
    number: Any = request  # the answer names it
    if isinstance(request, Begin):
        return post(world, events.Initialize(request=number, fresh_id=50 + request.instance, timeout_ms=TIMEOUT_MS))
    producer = {"request": number, "producer_id": request.pair[0], "producer_epoch": request.pair[1]}
    if isinstance(request, Ask):
        return post(world, events.Add(partitions=frozenset({TopicPartition("t", request.partition)}), **producer))
    fresh_id = 100 + request.number if request.pair[1] >= EPOCH_GIVEN_MAX else NO_ID
    return post(world, events.End(commits=request.commits, bumps_epoch=True, fresh_id=fresh_id, **producer))


def _marked(world: World, mark: Mark, error: ErrorCode) -> World:
    """The answer to a marker. It counts for the coordinator that sent it, and for that transaction."""
    known, marker = world.known, mark.marker
    is_current = known.producer_id == marker.producer_id and known.producer_epoch == marker.producer_epoch
    if marker.coordinator_epoch != world.life or known.phase not in DECIDED or not is_current:
        return world
    if error not in (NONE, ErrorCode.INVALID_PRODUCER_EPOCH):
        return world  # another coordinator has written markers
    return post(world, events.Marked(frozenset({TopicPartition("t", mark.partition)})))


# --- leaders


class _Waiter(NamedTuple):
    batch: Batch
    told: list[tuple[Batch, ErrorCode]]

    def __call__(self, error: ErrorCode) -> None:
        self.told.append((self.batch, error))


class _Open:
    """A leader while something happens there: with the product's `Writers`."""

    def __init__(self, leader: Leader) -> None:
        self.log, self.life, self.writers = leader.log, leader.life, Writers()
        self.told: list[tuple[Batch, ErrorCode]] = []
        for pair in leader.epochs:
            self.writers.add(*pair)
        for pair, is_void, waiters in leader.questions:
            question, _ = self.writers.question(*pair)
            question.is_void = is_void
            for batch in waiters:
                question.wait(_Waiter(batch, self.told), batch.sequence)

    def close(self) -> Leader:
        questions = tuple(
            ((producer_id, epoch), question.is_void, tuple(tell.batch for _, tell in question.waiters))
            for producer_id, found in sorted(self.writers._questions.items())
            for epoch, question in sorted(found.items())
        )
        return Leader(self.life, self.log, tuple(sorted(self.writers._epochs.items())), questions)

    def append(self, batch: Batch) -> ErrorCode:
        try:
            found = states_of(self.log).check([_header(batch, len(self.log))], lambda *_: False, expired_ms=-1)
        except PylogError as error:
            return code_of(error)
        if not found.duplicates:
            self.log = (*self.log, batch)
        return NONE

    def mark(self, marker: Marker) -> ErrorCode:
        self.writers.end(marker)
        try:
            if states_of(self.log).may_end(*marker[:2], marker.coordinator_epoch, is_above=marker.is_above):
                self.log = (*self.log, marker)
        except PylogError as error:
            return code_of(error)
        return NONE


def _header(row: Batch | Marker, offset: int) -> BatchHeader:
    if isinstance(row, Batch):
        return BatchHeader(offset, 0, 0, 2, 0, TRANSACTIONAL, 0, 0, 0, *row.pair, row.sequence, 1)
    return BatchHeader(offset, 0, 0, 2, 0, TRANSACTIONAL | CONTROL, 0, 0, 0, *row[:2], -1, 1)


@lru_cache(maxsize=100_000)
def states_of(log: tuple[Batch | Marker, ...]) -> ProducerStates:
    """Return what the log knows of its producers. It belongs to all who ask: it is not changed."""
    states = states_of(log[:-1]).copy() if log else ProducerStates(0)
    for row in log[-1:]:
        control = None
        if isinstance(row, Marker):
            control = ControlMarker("COMMIT" if row.commits else "ABORT", row.coordinator_epoch)
        states.apply(_header(row, len(log) - 1), control, NOW_MS)
    return states


def _at_leader(world: World, message: Batch | Mark | Answer) -> World:
    """A leader gets a batch, a marker, or the coordinator's answer to its question."""
    at = (message.to if isinstance(message, Answer) else message).partition
    if isinstance(message, Answer) and message.to.is_late:
        return world
    leader, sent = _Open(world.leaders[at]), []
    if isinstance(message, Mark):
        sent.append(Answer(message, leader.mark(message.marker)))
    elif isinstance(message, Batch) and leader.writers.holds(*message.pair):
        leader.told.append((message, NONE))
    elif isinstance(message, Batch):
        question, is_new = leader.writers.question(*message.pair)
        question.wait(_Waiter(message, leader.told), message.sequence)
        if is_new:
            sent.append(Ask(at, leader.life, message.pair))
    elif message.to.life == leader.life:
        question, is_new = leader.writers.question(*message.to.pair)
        error = question.judge(message.error)
        if is_new:  # it was answered before
            return world
        if error.is_retriable:
            question.is_void = False
            sent.append(message.to)
        else:
            begun = has_begun(states_of(leader.log).open_transactions(), *message.to.pair)
            error = verification._producer_error(error, adds=True)
            leader.writers.answered(*message.to.pair, error, has_begun=begun)
    sent += [Answer(batch, leader.append(batch) if error is NONE else error) for batch, error in leader.told]
    leaders = (*world.leaders[:at], leader.close(), *world.leaders[at + 1 :])
    return world._replace(leaders=leaders).sends(*sent)


def _elect(world: World, at: int) -> World:
    """Another leader, with the same log: nobody has the coordinator's word there."""
    old = world.leaders[at]
    told = [Answer(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER) for _, _, batches in old.questions for batch in batches]
    leaders = (*world.leaders[:at], Leader(old.life + 1, old.log), *world.leaders[at + 1 :])
    return world._replace(leaders=leaders).sends(*told)


# --- what can happen


def _arrived(world: World, message: Any, records: int) -> World:
    match message:
        case Batch() | Mark() | Answer(Ask()):
            return _at_leader(world, message)
        case Answer(Mark()):
            return _marked(world, message.to, message.error)
        case Answer():
            return _heard(world, message, records)
        case _:
            return _ask_coordinator(world, message)


def steps(world: World, records: int) -> Iterator[tuple[Step, World]]:
    """All that can be next without a death."""
    for message in world.messages:
        yield ("arrives", message), _arrived(world._replace(messages=world.messages - {message}), message, records)
    if world.appending is not None:
        yield ("stored",), _stored(world)
    elif world.known.phase in DECIDED and not world.known.unmarked:
        yield ("ticks",), post(world, events.Ticked())


def deaths(world: World, records: int) -> Iterator[tuple[Step, World]]:
    """All that can go wrong now."""
    for message in world.messages:
        rest = world._replace(messages=world.messages - {message})
        if isinstance(message, Batch | End | Mark):
            yield ("arrives, and will again", message), _arrived(world, message, records)
        elif isinstance(message, Ask) and not message.is_late:
            asked = _at_leader(rest, Answer(message, ErrorCode.NOT_ENOUGH_REPLICAS))
            yield ("is late", message), asked.sends(message._replace(is_late=True))
        elif isinstance(message, Answer) and isinstance(message.to, Ask):
            yield ("is lost", message), _at_leader(rest, Answer(message.to, ErrorCode.NOT_ENOUGH_REPLICAS))
        elif isinstance(message, Answer):
            yield ("is lost", message), rest.sends(message.to)
    yield ("the coordinator moves",), _move(world, is_there=False)
    if world.appending is not None:
        yield ("the coordinator moves behind its append",), _move(world, is_there=True)
        yield ("an append fails",), _stored(world, ErrorCode.REQUEST_TIMED_OUT, is_there=False)
        yield ("an append seems to fail",), _stored(world, ErrorCode.REQUEST_TIMED_OUT)
    elif world.known.phase is Phase.ONGOING:
        yield ("it times out",), post(world, events.Ticked(), LATER_MS)._replace(is_disturbed=True)
    for at in range(len(world.leaders)):
        yield ("another leader of", at), _elect(world, at)
    if world.client.unacked:
        yield ("the client gives up",), _end(world, commits=False)._replace(is_disturbed=True)
    if world.client.instance < RESTARTS_MAX:
        yield ("the client is killed",), _restart(world)
