"""Offline replicas in the tree: each broker lists those that it cannot serve or write.

/pylog/offline_replicas/[broker] exists only while a replica is offline. It is a state and not an event, so every
later controller reads the same. It is ephemeral and created in one step with the registration
(`registration.register_broker`), so that a broker which starts with a damaged replica is never elected for it.
"""

from __future__ import annotations

import logging

from replication.coordination import nodes
from replication.coordination.node_json import MalformedNodeError
from replication.coordination.tree import RefusedError, Tree, Watch
from replication.model.cluster import BrokerId, Offline

logger = logging.getLogger(__name__)


async def write_offline(tree: Tree, broker: BrokerId, offline: Offline | None) -> None:
    """Write the offline replicas of this session's broker; None deletes the node."""
    path = nodes.offline_path(broker)
    while True:
        found = await tree.get(path)
        try:
            if offline is None:
                if found is not None and found.owner == tree.session:
                    await tree.delete(path, found.version)
            elif found is None:
                await tree.create(path, nodes.encode_offline(offline), ephemeral=True)
            elif found.data != (data := nodes.encode_offline(offline)):
                await tree.set(path, data, found.version)
        except RefusedError:
            continue  # a call of ours whose answer was lost
        return


async def read_offline(tree: Tree, watch: Watch | None = None) -> dict[BrokerId, Offline]:
    """Return the offline replicas of live brokers. A malformed node counts as empty."""
    names = await tree.children(nodes.OFFLINE_REPLICAS, watch)
    found: dict[BrokerId, Offline] = {}
    for broker in sorted(int(name) for name in names if name.isdecimal()):
        node = await tree.get(nodes.offline_path(broker), watch)
        if node is not None:
            try:
                found[broker] = nodes.decode_offline(broker, node.data)
            except MalformedNodeError as error:
                logger.error("%s", error)
    return found
