"""The product's coordinator of transactions, alone: a question is answered before the next one, and no time passes."""

from __future__ import annotations

import itertools
from contextlib import suppress

from logstore.env import Clock, Env
from replication.config.broker import BrokerConfig
from replication.coordinators.terms import Written
from replication.coordinators.transactions.coordinator import Done, TransactionCoordinator
from replication.coordinators.transactions.machine import events
from replication.coordinators.transactions.machine.state import Transaction
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TRANSACTIONS_TOPIC
from replication.model.metadata import Metadata
from tests.sim.world import SimLoop, World

EXPIRE_MS = 1_000
CONFIG = BrokerConfig.from_properties(
    {
        "transaction.two.phase.commit.enable": True,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 2**31 - 1,
        "transaction.remove.expired.transaction.cleanup.interval.ms": EXPIRE_MS,
    }
)


class Mapping:
    """One partition has every id, here and for ever."""

    topic, metadata = TRANSACTIONS_TOPIC, Metadata()
    metadata.is_initialized = True

    def partition_of(self, name: str) -> int:
        return 0

    def look(self) -> None: ...

    learned = end = look


class Leadership:
    leader_epoch, is_over = 0, False


class Coordinator(Clock):
    """The product's, over a log that stores at once; its markers arrive when they are told to."""

    def __init__(self, seed: int) -> None:
        self.passed_ms = 0
        self.markers: dict[int, tuple[events.WriteMarkers, Done]] = {}  # under way, by producer id
        self._ids, self._leadership = itertools.count(1), Leadership()
        self.loop = SimLoop(World(seed))
        self._right = TransactionCoordinator(CONFIG, Mapping(), self, self, self.next_id, Env(clock=self))
        self.loop.call_soon(self._right.begin)
        with suppress(KafkaError):  # its only partition is loaded then
            self.ask("", lambda request: None)

    def _run(self, for_s: float = 0) -> None:
        """All that is due happens."""
        self.loop.run_until(self.loop.now_s + for_s, lambda life: None)

    def ask(self, id: str, event):
        self.passed_ms += 1
        asked = self.loop.create_task(self._right.ask(id, event))
        self._run()
        return asked.result()

    def arrive(self, producer_id: int) -> bool | None:
        """Its markers are written: do they commit? None: none are under way."""
        if producer_id not in self.markers:
            return None
        markers, done = self.markers.pop(producer_id)
        self.loop.call_soon(done, markers.partitions)
        self._run()
        return markers.commits

    def pass_week(self) -> None:
        self.passed_ms += CONFIG.transactional_id_expiration_ms + 1
        self._run(2 * EXPIRE_MS / 1000)

    @property
    def transactions(self) -> dict[str, Transaction]:
        return {each.id: each for each in self._right.transactions()}

    async def next_id(self) -> int:
        return next(self._ids)

    # --- as its clock, its topic, and its writer of markers

    def now_ms(self) -> int:
        return self.passed_ms

    def monotonic_ms(self) -> int:
        return 0

    def leadership(self, partition: int) -> Leadership:
        return self._leadership

    def append(self, partition: int, records: bytearray, **how: int) -> Written:
        return Written(ErrorCode.NONE)

    async def load(self, leadership: Leadership, into: object) -> bool:
        return True

    def write(self, markers: events.WriteMarkers, coordinator_epoch: int, done: Done):
        self.markers[markers.producer_id] = markers, done
        return lambda: None
