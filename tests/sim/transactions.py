"""A run with transactions: the machine of a transactional id over a log in memory, real logs of partitions, producers
with successors that fence them, coordinators and leaders that move, and a network that loses, repeats and delays.

Law: what a reader of committed data sees is made of committed transactions only, each whole per partition, nothing
twice; and nothing is undecided once all is well. `Flaw` names bugs that it must find.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import random
from functools import partial
from pathlib import Path

from logstore.config import LogConfig
from logstore.env import Env
from logstore.errors import InvalidRequestError
from logstore.log import isolation
from logstore.log.log import Log
from logstore.log.segments.directory import create
from logstore.records.batch import TRANSACTIONAL, Record, batches, build
from logstore.records.batch import records as decoded
from logstore.records.marker import Marker
from replication.coordinators.transactions.machine import events
from replication.coordinators.transactions.machine.records import read_value, value_of
from replication.coordinators.transactions.machine.state import (
    DECIDED,
    Phase,
    Transaction,
    TransactionSettings,
)
from replication.coordinators.transactions.machine.step import resume, step
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from tests.support.disk import Disk
from tests.support.partition import TOPIC_ID, appended

FAULTS_MS, CALM_MS = 4_000, 6_000
TIMEOUT_MS = 700
LIMITS = TransactionSettings()
PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))


class Flaw(enum.Enum):
    NO_QUESTION = "a leader takes the first batch of a transaction without asking the coordinator"
    MARKERS_OF_ANY_EPOCH = "a marker ends what is open, also with the epoch that the open transaction has"
    TOLD_BEFORE_STORED = "a decision is told, and markers are written, before it is stored"


class World:
    """Events by their time; messages take their time, get lost and come twice while faults last."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.count = itertools.count()
        self.heap: list = []

    @property
    def is_calm(self) -> bool:
        return self.now_ms >= FAULTS_MS

    def at(self, delay_ms: int, act) -> None:
        heapq.heappush(self.heap, (self.now_ms + delay_ms, next(self.count), act))

    def send(self, act) -> None:
        copies = 1 if self.is_calm else self.random.choices((0, 1, 2), (1, 8, 2))[0]
        for _ in range(copies):
            late = not self.is_calm and self.random.random() < 0.1
            self.at(self.random.randint(1, 1_500 if late else 30), act)

    def run(self, until_ms: int) -> None:
        while self.heap and self.heap[0][0] <= until_ms:
            self.now_ms, _, act = heapq.heappop(self.heap)
            act()
        self.now_ms = until_ms


class Partition:
    """A leader over a real log. What is not replicated yet is lost when the leader moves."""

    def __init__(self, world: World, tp: TopicPartition, coordinator, flaw: Flaw | None) -> None:
        self.world, self.tp, self.coordinator, self.flaw = world, tp, coordinator, flaw
        path = Path("/logs") / str(tp)
        env = Env(files=Disk())
        create(path, topic_id=TOPIC_ID, env=env)
        self.log = Log.open(path, topic_id=TOPIC_ID, config=LogConfig(), env=env)
        self.high_watermark = self.epoch = 0
        self.writing: dict[int, int] = {}
        self.asking: dict[int, object] = {}  # a question, until a marker or another leader voids it

    def produce(self, pair, sequence, value, answer) -> None:
        """As `broker.verification`: asked first, and void if a marker or another leader came meanwhile."""
        if self.writing.get(pair[0]) == pair[1] or self.flaw is Flaw.NO_QUESTION:
            self.append(pair, sequence, value, answer)
            return
        asked = self.asking.setdefault(pair[0], object())

        def told(added) -> None:
            if not added.error and not added.refused and self.asking.get(pair[0]) is asked:
                self.writing[pair[0]] = pair[1]
                self.append(pair, sequence, value, answer)

        self.world.send(lambda: self.coordinator.ask(partial(question, pair, self.tp), told))

    def append(self, pair, sequence, value, answer) -> None:
        records = build([Record(0, 1, None, value)], attributes=TRANSACTIONAL, producer=(*pair, sequence))
        try:
            info = appended(self.log, records, leader_epoch=self.epoch)
        except InvalidRequestError:
            return
        self.replicate(info.next_offset, answer)

    def mark(self, markers: events.WriteMarkers, coordinator_epoch: int, answer) -> None:
        self.writing.pop(markers.producer_id, None)
        self.asking.pop(markers.producer_id, None)
        is_above = markers.version >= 2 and self.flaw is not Flaw.MARKERS_OF_ANY_EPOCH
        pair = markers.producer_id, markers.producer_epoch
        marker = Marker(*pair, markers.commits, coordinator_epoch, is_above)
        try:
            appended(self.log, marker, leader_epoch=self.epoch)
        except InvalidRequestError:
            return
        self.replicate(self.log.log_end_offset, answer)

    def replicate(self, end: int, answer) -> None:
        epoch = self.epoch

        def done() -> None:
            if self.epoch == epoch:
                self.high_watermark = max(self.high_watermark, end)
                self.world.send(answer)

        self.world.at(self.world.random.randint(1, 20), done)

    def move(self) -> None:
        self.epoch += 1
        self.writing, self.asking = {}, {}
        self.log.truncate_to(self.high_watermark)

    def committed(self) -> list[bytes]:
        end, aborted = isolation.committed(self.log, 0, self.log.log_end_offset)
        assert end == self.log.log_end_offset, f"{self.tp} is undecided from {end} on"
        found, offset = [], 0
        while offset < end:
            result = self.log.read(offset, max_bytes=1 << 20, upper=end)
            for part in isolation.kept(result, aborted):
                for at, header in batches(part.data):
                    if not header.is_control:
                        found += [record.value for record in decoded(part.data, at)]
            offset = result.next_offset
        return found


def question(pair, tp, request) -> events.Add:
    return events.Add(
        request=request,
        producer_id=pair[0],
        producer_epoch=pair[1],
        partitions=frozenset({tp}),
        is_question=True,
    )


class Coordinator:
    """The coordinators of one transactional id, one after the other, over one log."""

    def __init__(self, world: World, flaw: Flaw | None) -> None:
        self.world, self.flaw = world, flaw
        self.partitions: dict[TopicPartition, Partition] = {}
        self.log: list[bytes] = []
        self.outcomes: dict[tuple[int, int], bool] = {}  # the pair that batches have -> was it committed?
        self.epoch = 0
        self.numbers = itertools.count(1)
        self.asking: dict = {}
        self.transaction = Transaction(id="x")
        self.world.at(50, self.tick)

    def ask(self, event, answer) -> None:
        request = next(self.numbers)
        self.asking[request] = answer
        self.post(event(request))

    def post(self, event) -> None:
        self.transaction, effects = step(self.transaction, event, self.world.now_ms, LIMITS)
        self.perform(effects)

    def perform(self, effects) -> None:
        for effect in effects:
            match effect:
                case events.Answer(request, body):
                    self.world.send(partial(self.asking.pop(request), body))
                case events.Append():
                    self.append(effect)
                case events.WriteMarkers():
                    self.write(effect, self.epoch, effect.partitions)

    def append(self, append: events.Append) -> None:
        epoch = self.epoch
        is_hasty = self.flaw is Flaw.TOLD_BEFORE_STORED and append.stored.phase in DECIDED

        def stored() -> None:
            if self.epoch != epoch:
                return
            error = ErrorCode.REQUEST_TIMED_OUT if self.fails() else ErrorCode.NONE
            if not error:
                self.keep(append.stored)
            if not is_hasty:
                self.post(events.Stored(append, error))

        self.world.at(self.world.random.randint(1, 25), stored)
        if is_hasty:
            self.post(events.Stored(append))

    def fails(self) -> bool:
        return not self.world.is_calm and self.world.random.random() < 0.05

    def keep(self, stored: Transaction) -> None:
        self.log.append(value_of(stored))
        if stored.phase in DECIDED:
            pair = stored.producer_id, stored.producer_epoch - 1
            assert pair not in self.outcomes, "decided twice"
            self.outcomes[pair] = stored.phase is Phase.PREPARE_COMMIT

    def write(self, markers: events.WriteMarkers, epoch: int, left: frozenset) -> None:
        """Until all are written: by this coordinator, as long as it is one."""
        waiting = set(left)

        def written(tp) -> None:
            if tp in waiting and self.epoch == epoch:
                waiting.discard(tp)
                self.post(events.Marked(frozenset({tp})))

        def again() -> None:
            if self.epoch == epoch and waiting:
                for tp in tuple(waiting):
                    told = partial(written, tp)
                    self.world.send(partial(self.partitions[tp].mark, markers, epoch, told))
                self.world.at(60, again)

        again()

    def move(self) -> None:
        """Another broker leads: what was under way here is lost, messages that were sent are not."""
        self.epoch += 1
        self.asking.clear()
        stored = read_value("x", self.log[-1]) if self.log else Transaction(id="x")
        self.transaction, effects = resume(stored, self.world.now_ms, LIMITS)
        self.perform(effects)

    def tick(self) -> None:
        self.post(events.Ticked())
        self.world.at(50, self.tick)


class Producer:
    """One instance: transaction after transaction. It sends on, whether or not another has taken its place."""

    def __init__(self, world: World, coordinator: Coordinator, name: int, acked: dict) -> None:
        self.world, self.coordinator, self.name, self.acked = world, coordinator, name, acked
        self.pair = None
        self.is_dead = False
        self.retry("", self.initialize)

    def retry(self, state, act) -> None:
        """Send until the state is another one; a dead producer's messages may still be under way."""
        self.state = state

        def again() -> None:
            if self.state is state and not self.is_dead and not self.world.is_calm:
                self.world.send(act)
                self.world.at(80, again)

        again()

    def ask(self, event, answer) -> None:
        state = self.state
        self.coordinator.ask(event, lambda body: answer(body) if self.state is state and not self.is_dead else None)

    def initialize(self) -> None:
        fresh_id = 1000 + next(self.coordinator.numbers)

        def told(body) -> None:
            if not body.error:
                self.pair = body.producer_id, body.producer_epoch
                self.begin()

        self.ask(lambda n: events.Initialize(request=n, fresh_id=fresh_id, timeout_ms=TIMEOUT_MS), told)

    def begin(self) -> None:
        pair = self.pair
        chosen = frozenset(self.world.random.sample(PARTITIONS, self.world.random.randint(1, 2)))

        def add() -> None:
            self.ask(
                lambda n: events.Add(request=n, producer_id=pair[0], producer_epoch=pair[1], partitions=chosen),
                lambda body: None if body.error else self.write(pair, chosen),
            )

        self.retry(("add", pair), add)

    def write(self, pair, chosen) -> None:
        rows = [(tp, n, b"%d-%d %d %s-%d" % (*pair, self.name, str(tp).encode(), n)) for tp in chosen for n in range(3)]
        left = {row[2] for row in rows}
        state = ("write", pair)

        def acked(value) -> None:
            self.acked.setdefault(pair, set()).add(value)
            left.discard(value)
            if not left and self.state is state and not self.is_dead:
                self.end(pair, commits=self.world.random.random() < 0.7)

        def send() -> None:
            for tp, sequence, value in rows:
                if value in left:
                    leader = self.coordinator.partitions[tp]
                    self.world.send(partial(leader.produce, pair, sequence, value, partial(acked, value)))

        self.retry(state, send)

    def end(self, pair, commits) -> None:
        def told(body) -> None:
            if not body.error:
                self.pair = body.producer_id, body.producer_epoch
                self.begin()

        def send() -> None:
            self.ask(
                lambda n: events.End(
                    request=n,
                    producer_id=pair[0],
                    producer_epoch=pair[1],
                    commits=commits,
                    bumps_epoch=True,
                    fresh_id=1000 + n,
                ),
                told,
            )

        self.retry(("end", pair, commits), send)


def simulate(seed: int, flaw: Flaw | None = None) -> tuple[int, int]:
    """Return how many transactions were committed and aborted. Raises AssertionError with the seed."""
    try:
        return _simulate(seed, flaw)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def _simulate(seed: int, flaw: Flaw | None) -> tuple[int, int]:
    world = World(seed)
    coordinator = Coordinator(world, flaw)
    coordinator.partitions = {tp: Partition(world, tp, coordinator, flaw) for tp in PARTITIONS}
    acked: dict[tuple[int, int], set[bytes]] = {}
    producers: list[Producer] = []

    def succeed() -> None:
        if producers:
            producers[-1].is_dead = world.random.random() < 0.5  # else it is a zombie
        producers.append(Producer(world, coordinator, len(producers), acked))
        if not world.is_calm:
            world.at(world.random.randint(300, 1_500), succeed)

    def move() -> None:
        if not world.is_calm:
            world.random.choice((coordinator, *coordinator.partitions.values())).move()
            world.at(world.random.randint(50, 400), move)

    succeed()
    move()
    world.run(FAULTS_MS + CALM_MS)
    assert coordinator.transaction.phase not in (Phase.ONGOING, *DECIDED), coordinator.transaction
    for partition in coordinator.partitions.values():
        values = partition.committed()
        assert len(values) == len(set(values)), "twice"
        seen: dict[tuple[int, int], set[bytes]] = {}
        for value in values:
            first, second = value.split(b" ")[0].split(b"-")
            seen.setdefault((int(first), int(second)), set()).add(value)
        name = str(partition.tp).encode()
        for pair, found in seen.items():
            assert coordinator.outcomes.get(pair), f"{pair} was not committed, and is read"
            assert len(found) == 3, f"{pair} is torn in {partition.tp}: {found}"
        for pair, told in acked.items():
            mine = {value for value in told if name in value}
            if coordinator.outcomes.get(pair):
                assert mine <= seen.get(pair, set()), f"{pair} was committed, and {mine} is not read"
    outcomes = list(coordinator.outcomes.values())
    return outcomes.count(True), outcomes.count(False)
