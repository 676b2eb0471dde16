"""OfflineReplicas: the replicas that this broker cannot serve or write now, with the reasons, written to the tree.

The controller removes an offline replica from the ISR, and elects another member in its place; but the last member of
an ISR stays, and leads: nobody else has the committed records. An offline replica does not fetch, so that no leader
admits it to the ISR again. It clears its entry once LeaderAndIsr has made it a follower outside the ISR; then it joins
as any follower does.

Marks outlive sessions: they are written with the registration, and again in each session. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging

from replication.coordination.offline import write_offline
from replication.coordination.tree import CoordinationError, SessionExpiredError, Tree
from replication.model.cluster import BrokerId, Offline, TopicPartition

logger = logging.getLogger(__name__)

RETRY_S = 0.2
REASON_MAX = 200
NAMED_MAX = 1000  # a node holds 1 MB; with more of them, the whole disk is in doubt


class OfflineReplicas:
    """`connect` and `disconnect` frame a session with the store."""

    def __init__(self, broker: BrokerId) -> None:
        self._broker = broker
        self.everything: str | None = None  # why all replicas are offline
        self.reasons: dict[TopicPartition, str] = {}  # of those that were marked one by one
        self._in_tree: Offline | None = None  # the last known content of the tree
        self._task: asyncio.Task[None] | None = None
        self._has_changed = asyncio.Event()

    def connect(self, tree: Tree) -> None:
        """Write the marks to this session's tree from now on."""
        self.disconnect()
        self._task = asyncio.ensure_future(self._write_all(tree))

    def disconnect(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task, self._in_tree = None, None

    def mark(self, tp: TopicPartition, reason: str) -> None:
        if self.reasons.get(tp) != reason:
            self.reasons[tp] = reason
            logger.warning("tp=%s is offline: %s", tp, reason)
            self._has_changed.set()

    def clear(self, tp: TopicPartition) -> None:
        """Clear the mark of this replica; it stays offline while all are."""
        if self.reasons.pop(tp, None) is not None:
            logger.info("tp=%s is online again", tp)
            self._has_changed.set()

    def mark_all(self, reason: str) -> None:
        """Mark all replicas of this broker, those too that it will get."""
        if self.everything != reason:
            self.everything = reason
            logger.warning("broker=%d all replicas are offline: %s", self._broker, reason)
            self._has_changed.set()

    def clear_all(self) -> None:
        """Clear the mark of all replicas; those that were marked one by one stay offline."""
        if self.everything is not None:
            self.everything = None
            logger.info("broker=%d replicas are online again", self._broker)
            self._has_changed.set()

    def reason(self, tp: TopicPartition) -> str | None:
        return self.reasons.get(tp, self.everything)

    def is_said(self, tp: TopicPartition) -> bool:
        """Return whether this replica is offline, here or still in the tree. If it fetched, it could join the ISR."""
        return self.reason(tp) is not None or (self._in_tree is not None and self._in_tree.reason(tp) is not None)

    @property
    def is_any_said(self) -> bool:
        return self.everything is not None or bool(self.reasons) or self._in_tree is not None

    def said(self) -> Offline | None:
        """Return what the tree must say; None if nothing is offline."""
        if self.everything is None and not self.reasons:
            return None
        if len(self.reasons) > NAMED_MAX:
            return Offline(self.everything or f"{len(self.reasons)} replicas are offline")
        named = {tp: reason[:REASON_MAX] for tp, reason in self.reasons.items()}
        return Offline(self.everything, named)

    async def _write_all(self, tree: Tree) -> None:
        while True:
            self._has_changed.clear()
            said = self.said()
            try:
                await write_offline(tree, self._broker, said)
            except SessionExpiredError:  # the owner of the session logs it
                return
            except CoordinationError as error:
                logger.warning("broker=%d offline replicas cannot be written yet: %s", self._broker, error)
                await asyncio.sleep(RETRY_S)
                continue
            self._in_tree = said
            await self._has_changed.wait()
