"""The secret of a cluster, by which its brokers know each other: it is in the coordination store."""

from __future__ import annotations

from logstore.env import Env
from replication.coordination import nodes
from replication.coordination.tree import NodeExistsError, Tree, ensure_path


async def read_secret(tree: Tree, env: Env) -> bytes:
    """Return the secret; the first broker makes it. Raises: CoordinationError."""
    while (found := await tree.get(nodes.BROKER_SECRET)) is None:
        await ensure_path(tree, nodes.BROKER_SECRET.rpartition("/")[0])
        made = env.random.getrandbits(8 * nodes.SECRET_BYTES).to_bytes(nodes.SECRET_BYTES, "big")
        try:
            await tree.create(nodes.BROKER_SECRET, nodes.encode_secret(made))
        except NodeExistsError:
            continue
    return nodes.decode_secret(found.data)
