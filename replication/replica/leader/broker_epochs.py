"""BrokerEpochs: the epochs of the other brokers. A follower is believed if it names its own.

A follower's fetch shows the end of its log, and moves the high watermark, so nobody else may ask in its name: its epoch
is a secret between it and the tree. An unknown one is looked up there, every LOOK_PAUSE_S at most. Belongs to the event
loop.
"""

from __future__ import annotations

import asyncio
import logging

from replication.coordination import cluster
from replication.coordination.tree import CoordinationError, Tree
from replication.model.cluster import NO_EPOCH, BrokerId

logger = logging.getLogger(__name__)

LOOK_PAUSE_S = 0.05


class BrokerEpochs:
    def __init__(self) -> None:
        self._tree: Tree | None = None
        self._known: dict[BrokerId, int] = {}
        self._looking = asyncio.Lock()
        self._looks = 0
        self._looked_s = 0.0

    def connect(self, tree: Tree) -> None:
        self._tree = tree

    def disconnect(self) -> None:
        self._tree = None
        self._known = {}

    def is_known(self, broker: BrokerId, epoch: int) -> bool:
        """Is it so without a look?"""
        return epoch != NO_EPOCH and self._known.get(broker) == epoch

    async def is_current(self, broker: BrokerId, epoch: int) -> bool:
        """Is the broker registered in this epoch, or was it when that was last looked up?

        False while it cannot be looked up: who asks will ask again.
        """
        if epoch == NO_EPOCH:
            return False
        if self._known.get(broker) != epoch:
            await self._look()
        return self._known.get(broker) == epoch

    async def _look(self) -> None:
        """Return after a look that began after this call."""
        begun = self._looks
        async with self._looking:
            if self._looks > begun:
                return
            loop = asyncio.get_running_loop()
            await asyncio.sleep(self._looked_s + LOOK_PAUSE_S - loop.time())
            tree = self._tree
            if tree is None:
                return
            self._looks += 1
            try:
                found = await cluster.read_brokers(tree)
            except CoordinationError as error:
                logger.info("the epochs of brokers cannot be looked up: %s", error)
            else:
                if tree is self._tree:
                    self._known = {broker: info.epoch for broker, info in found.items()}
            self._looked_s = loop.time()
