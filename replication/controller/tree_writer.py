"""TreeWriter: what a controller changes in the tree, each change repeated until its outcome is known."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from logstore.errors import InvalidRequestError
from logstore.store.description import new_topic_id
from replication.controller.machine import events
from replication.controller.watches import Watches, delete_if_there
from replication.coordination import cluster, nodes, reassignments, topic_nodes
from replication.coordination.node_json import MalformedNodeError
from replication.coordination.tree import ConnectionLossError, Tree
from replication.model.cluster import BrokerId, LeaderAndIsr, WriteResult, ids_of
from replication.model.state_changes import named

logger = logging.getLogger(__name__)

RETRY_S = 0.2
WRITTEN_AT_ONCE = 250  # states: some 20 ms of a turn of the loop, when they are written
CORRECTION_PAUSE_S = 2.0  # until it is looked whether a node was corrected


async def repeat(act: Callable[[], Awaitable[Any]]) -> Any:
    """Return what `act` does, as often as the connection is lost meanwhile."""
    while True:
        try:
            return await act()
        except ConnectionLossError:
            await asyncio.sleep(RETRY_S)


class TreeWriter:
    """The changes of one term. `post` gets what came of them, as events of the machine."""

    def __init__(
        self, broker: BrokerId, tree: Tree, term: cluster.Term, watches: Watches, post: Callable[[events.Event], None]
    ) -> None:
        self._broker = broker
        self._tree = tree
        self._term = term
        self._watches = watches
        self._post = post
        self._reassigning = asyncio.Lock()

    async def perform(self, effect: events.Effect) -> None:
        match effect:
            case events.WriteStates():
                await self._write(effect)
            case events.MakeTopicId(topic):
                await self._make_topic_id(topic)
            case events.DeleteElection():
                await repeat(lambda: delete_if_there(self._tree, nodes.ELECTION))
            case events.WriteReassignment():
                await self._reassign(effect)
            case events.Unmark(topic):
                await self._unmark(topic)
            case events.DeleteTopicNodes(topic, topic_id):
                await self._delete_topic(topic, topic_id)

    async def _write(self, effect: events.WriteStates) -> None:
        """Write until the outcome of every state is known: new leaders first, and some at a time.

        Brokers hear of those while others are written, and no turn of the loop has to do with very many.
        """
        writes = sorted(effect.writes, key=lambda write: write.selected is None)
        for begin in range(0, len(writes), WRITTEN_AT_ONCE):
            await self._write_some(writes[begin : begin + WRITTEN_AT_ONCE])

    async def _write_some(self, some: Sequence[events.StateWrite]) -> None:
        """Write them in one batch.

        After a lost connection the same is written again: a write that had been accepted is then refused, and stored
        as requested.
        """
        writes = [(write.tp, write.state) for write in some]
        outcomes = await repeat(lambda: cluster.write_states(self._tree, self._term, writes))
        wanted = dict(writes)
        results = [replace(o, accepted=o.accepted or _is_written(wanted[o.tp], o.stored)) for o in outcomes]
        self._log_choices(some, results)
        self._post(events.StatesWritten(tuple(results)))

    def _log_choices(self, writes: Iterable[events.StateWrite], results: Iterable[WriteResult]) -> None:
        accepted = {result.tp for result in results if result.accepted}
        for write in writes:
            how = write.selected
            if how is not None and write.tp in accepted:
                state = {name: getattr(write.state, name) for name in ("leader", "leader_epoch", "isr")}
                logger.info(
                    "[%s]: Selected new leader and ISR %s for partition %s, of assigned replicas %s, live %s, ISR %s",
                    how.selector,
                    json.dumps(state, separators=(",", ":")),
                    named(write.tp),
                    ids_of(how.assigned),
                    ids_of(how.live),
                    ids_of(how.isr),
                )

    async def _make_topic_id(self, topic: str) -> None:
        await repeat(lambda: topic_nodes.make_topic_id(self._tree, self._term, topic, new_topic_id()))
        self._post(await repeat(self._watches.read_topics))

    async def _reassign(self, effect: events.WriteReassignment) -> None:
        """Write it, then post the content of the nodes: it may have changed since the outcome."""
        while True:
            try:
                async with self._reassigning:  # all of them write the same node
                    done = await repeat(lambda: reassignments.write(self._tree, self._term, effect.write))
                    self._post(done)
                    self._post(await repeat(self._watches.read_reassignments))
                return
            except (MalformedNodeError, InvalidRequestError) as error:
                # Try again until the node is corrected, or has room again.
                logger.error("[Controller %d]: %s", self._broker, error)
                await asyncio.sleep(CORRECTION_PAUSE_S)

    async def _unmark(self, topic: str) -> None:
        """Forget the mark of a topic that does not exist; look again if it has just been created."""
        if not await repeat(lambda: topic_nodes.unmark(self._tree, self._term, topic)):
            for event in await repeat(self._watches.deletions):
                self._post(event)

    async def _delete_topic(self, topic: str, topic_id: str) -> None:
        await repeat(lambda: topic_nodes.delete_topic_nodes(self._tree, self._term, topic, topic_id))
        self._watches.note_deleted(topic_id)
        logger.info("[Controller %d]: Deletion of topic %s successfully completed", self._broker, topic)
        self._post(events.TopicNodesDeleted(topic, topic_id))


def _is_written(wanted: LeaderAndIsr, stored: LeaderAndIsr | None) -> bool:
    return stored == replace(wanted, version=wanted.version + 1)
