"""OfflineReplicas: the replicas of this broker that it cannot serve or write now, and why; said in the tree.

The controller reads it there. It takes an offline replica out of the ISR, has somebody of the ISR lead in its place,
and elects it for nothing; but the last member of an ISR stays it, and leads: nobody else has what is committed. An
offline replica *does not fetch* (`follower.follower`), so that no leader takes it into the ISR again. Who hears, in
LeaderAndIsr, that it follows and is not in the ISR, knows that its leaving is committed. It clears its entry before it
fetches again; then it joins as any follower does, and leads again where it is the preferred replica.

What is marked outlives sessions: it goes into the tree with the registration, and is repeated there in each session.
Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from replication.coordination.offline import say_offline
from replication.coordination.tree import CoordinationError, SessionExpiredError, Tree
from replication.model.cluster import BrokerId, Offline, TopicPartition

logger = logging.getLogger(__name__)

RETRY_S = 0.2
REASON_MAX = 200
# A node holds 1 MB. Who has more of them than this has a disk that is no good.
NAMED_MAX = 1000


class OfflineReplicas:
    """See the module. `connect` and `disconnect` frame a session with the store."""

    def __init__(self, broker: BrokerId) -> None:
        self._broker = broker
        self._everything: str | None = None
        self._partitions: dict[TopicPartition, str] = {}
        self._told: Offline | None = None  # what the tree says, as far as is known
        self._task: asyncio.Task[None] | None = None
        self._has_changed = asyncio.Event()

    def connect(self, tree: Tree) -> None:
        """Say it in this session's tree from now on."""
        self.disconnect()
        self._task = asyncio.ensure_future(self._say_all(tree))

    def disconnect(self) -> None:
        """The session is over, and what was said in it."""
        if self._task is not None:
            self._task.cancel()
            self._task, self._told = None, None

    # ------------------------------------------------------------------- state

    def mark(self, tp: TopicPartition, reason: str) -> None:
        """This replica is offline."""
        if self._partitions.get(tp) != reason:
            self._partitions[tp] = reason
            logger.warning("tp=%s is offline: %s", tp, reason)
            self._has_changed.set()

    def clear(self, tp: TopicPartition) -> None:
        """It is not any more; but as long as all are."""
        if self._partitions.pop(tp, None) is not None:
            logger.info("tp=%s is not offline any more", tp)
            self._has_changed.set()

    def mark_all(self, reason: str) -> None:
        """All replicas of this broker are offline, those too that it will have."""
        if self._everything != reason:
            self._everything = reason
            logger.warning("broker=%d all replicas are offline: %s", self._broker, reason)
            self._has_changed.set()

    def clear_all(self) -> None:
        """They are not any more; but for those that were marked one by one."""
        if self._everything is not None:
            self._everything = None
            logger.info("broker=%d replicas are not offline any more", self._broker)
            self._has_changed.set()

    @property
    def everything(self) -> str | None:
        """Why all replicas are offline, if they are."""
        return self._everything

    def reason(self, tp: TopicPartition) -> str | None:
        """Why this replica is offline; None if it is not."""
        return self._partitions.get(tp, self._everything)

    def is_said(self, tp: TopicPartition) -> bool:
        """Is this replica offline, or does the tree say so still? If it fetched it would join, for a moment."""
        return self.reason(tp) is not None or (self._told is not None and self._told.reason(tp) is not None)

    def reasons(self) -> Mapping[TopicPartition, str]:
        """Those that were marked one by one, and why."""
        return self._partitions

    def said(self) -> Offline | None:
        """What the tree is to say: None if nothing is offline."""
        if self._everything is None and not self._partitions:
            return None
        if len(self._partitions) > NAMED_MAX:
            return Offline(self._everything or f"{len(self._partitions)} replicas are offline")
        named = {tp: reason[:REASON_MAX] for tp, reason in self._partitions.items()}
        return Offline(self._everything, named)

    # ------------------------------------------------------------------- tree

    async def _say_all(self, tree: Tree) -> None:
        while True:
            self._has_changed.clear()
            said = self.said()
            try:
                await say_offline(tree, self._broker, said)
            except SessionExpiredError:  # whoever owns the session says so
                return
            except CoordinationError as error:
                logger.warning("broker=%d offline replicas are said later: %s", self._broker, error)
                await asyncio.sleep(RETRY_S)
                continue
            self._told = said
            await self._has_changed.wait()
