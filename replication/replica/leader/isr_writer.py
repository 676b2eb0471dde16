"""IsrWriter: writes the ISRs of the partitions that this broker leads to the tree, and notifies the controller.

A change is written in one step, if the node has the version that the leader knows, and who joins is registered in the
life that was seen. Changes that come while a write is under way go together, next. An outcome is always certain:
after a lost connection the nodes are read. If another leader epoch has written since, the leader is not answered, and
waits for its controller. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replication.coordination import cluster, nodes
from replication.coordination.tree import ConnectionLossError, CoordinationError, SessionExpiredError, Tree
from replication.model.cluster import BrokerId, LeaderAndIsr, TopicPartition
from replication.replica.machine.isr import Event, IsrRefused, IsrWritten, LeadershipRefreshed, WriteIsr

logger = logging.getLogger(__name__)

RETRY_S = 0.2
NOTIFY_S = 0.1  # ISRs change together: one node names all of a moment
WRITES_MAX = 500  # of one batch
NOTIFIED_MAX = 5000  # of one node

Answered = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class _Write:
    tp: TopicPartition
    leader_epoch: int
    change: WriteIsr
    answered: Answered


class IsrWriter:
    """`connect` and `disconnect` frame a session with the store."""

    def __init__(self, broker: BrokerId, controller_epoch: Callable[[], int]) -> None:
        self._broker = broker
        self._controller_epoch = controller_epoch
        self._tree: Tree | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._writes: list[_Write] = []
        self._reads: list[tuple[TopicPartition, Answered]] = []
        self._changed: dict[TopicPartition, None] = {}
        self._has_work, self._has_news = asyncio.Event(), asyncio.Event()

    def connect(self, tree: Tree) -> None:
        self.disconnect()
        self._tree = tree
        self._tasks = [
            asyncio.ensure_future(self._write_all(tree)),
            asyncio.ensure_future(self._notify(tree)),
        ]

    def disconnect(self) -> None:
        """Drop everything that waits: the roles are over, too."""
        for task in self._tasks:
            task.cancel()
        self._tasks, self._writes, self._reads, self._changed = [], [], [], {}
        self._tree = None

    def write(self, tp: TopicPartition, leader_epoch: int, change: WriteIsr, answered: Answered) -> None:
        self._writes.append(_Write(tp, leader_epoch, change, answered))
        self._has_work.set()

    def refresh(self, tp: TopicPartition, answered: Answered) -> None:
        self._reads.append((tp, answered))
        self._has_work.set()

    def changed(self, tp: TopicPartition) -> None:
        self._changed[tp] = None
        self._has_news.set()

    async def _write_all(self, tree: Tree) -> None:
        while True:
            await self._has_work.wait()
            writes, self._writes = self._writes[:WRITES_MAX], self._writes[WRITES_MAX:]
            reads, self._reads = self._reads, []
            if not writes and not reads:
                self._has_work.clear()
                continue
            try:
                await self._write(tree, writes)
                await self._read(tree, reads)
            except SessionExpiredError:  # whoever owns the session says so
                return
            except CoordinationError:  # these stay as they are; others must go on
                logger.exception("broker=%d ISRs of %s", self._broker, [str(write.tp) for write in writes])

    async def _write(self, tree: Tree, writes: Sequence[_Write]) -> None:
        if not writes:
            return
        changes = [cluster.IsrWrite(write.tp, self._state(write), write.change.incarnations) for write in writes]
        try:
            outcomes = await cluster.write_isrs(tree, changes)
        except ConnectionLossError:
            await self._find_out(tree, writes)
            return
        for write, version in zip(writes, outcomes, strict=True):
            if version is None:
                write.answered(IsrRefused(write.leader_epoch))
            else:
                write.answered(IsrWritten(write.leader_epoch, version))

    def _state(self, write: _Write) -> LeaderAndIsr:
        return LeaderAndIsr(
            self._broker, write.leader_epoch, write.change.isr, self._controller_epoch(), write.change.version
        )

    async def _find_out(self, tree: Tree, writes: Sequence[_Write]) -> None:
        """Read what became of these writes."""
        found = await self._stored(tree, [write.tp for write in writes])
        for write in writes:
            stored = found[write.tp]
            if stored is None or stored.leader_epoch != write.leader_epoch:
                continue  # others have written since: ours was before that, or not at all
            if stored.version == write.change.version:
                write.answered(IsrRefused(write.leader_epoch))
            else:  # in this leader epoch nobody else writes
                write.answered(IsrWritten(write.leader_epoch, stored.version))

    async def _read(self, tree: Tree, reads: Sequence[tuple[TopicPartition, Answered]]) -> None:
        if reads:
            found = await self._stored(tree, [tp for tp, _ in reads])
            for tp, answered in reads:
                if (stored := found[tp]) is not None:
                    answered(LeadershipRefreshed(stored))

    async def _stored(
        self, tree: Tree, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, LeaderAndIsr | None]:
        while True:
            try:
                return await cluster.read_states(tree, partitions)
            except ConnectionLossError:
                await asyncio.sleep(RETRY_S)

    async def _notify(self, tree: Tree) -> None:
        while True:
            await self._has_news.wait()
            await asyncio.sleep(NOTIFY_S)
            names = list(self._changed)[:NOTIFIED_MAX]
            for tp in names:
                del self._changed[tp]  # it may change again meanwhile
            try:
                await tree.create(nodes.ISR_CHANGE_PREFIX, nodes.encode_partitions(names), sequence=True)
            except ConnectionLossError:
                self._changed.update(dict.fromkeys(names))
                await asyncio.sleep(RETRY_S)
            except SessionExpiredError:
                return
            if not self._changed:
                self._has_news.clear()
