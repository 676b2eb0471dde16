"""Ids of idempotent producers, each given once in a cluster, whatever restarts: a broker takes them in blocks.

The tree says which block was the last, in the node and the words of later Kafkas. What is left of a block when a
broker stops is never used. Ids begin far above those that a directory gives its own writers while no broker has it,
so that a log which lives both lives never meets an id twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from replication.coordination.tree import BadVersionError, CoordinationError, Node, NodeExistsError, Tree
from replication.errors import ErrorCode, KafkaError

NODE = "/latest_producer_id_block"
BLOCK_IDS = 1000
FIRST_ID = 1 << 32
LAST_ID = 2**63 - 1


class ProducerIds:
    """See the module. `tree` is the session of now; it raises KafkaError while there is none."""

    def __init__(self, broker: int, tree: Callable[[], Tree]) -> None:
        self._broker = broker
        self._tree = tree
        self._left = range(0)
        self._taking = asyncio.Lock()

    async def next_id(self) -> int:
        """An id that nobody else gets. Raises: KafkaError: the tree cannot be asked now."""
        while not self._left:
            async with self._taking:
                if not self._left:
                    self._left = await self._take_block()
        found, self._left = self._left[0], self._left[1:]
        return found

    async def _take_block(self) -> range:
        tree = self._tree()
        try:
            while True:
                node = await tree.get(NODE)
                block = _after(node)
                text = _encoded(self._broker, block)
                try:
                    if node is None:
                        await tree.create(NODE, text)
                    else:
                        await tree.set(NODE, text, node.version)
                except (BadVersionError, NodeExistsError):
                    continue  # another broker was faster
                return block
        except CoordinationError as error:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, str(error)) from error


def skipping_to(node: Node | None, begin: int) -> bytes:
    """What the node is to say for the next block to begin behind `begin`, and behind the one that it says now."""
    last = max(begin, _after(node)[0])
    return _encoded(-1, range(last, last + 1))


def _after(node: Node | None) -> range:
    """The block behind the one that the node says. Ids that cannot be read are never given again: that is an error."""
    if node is None:
        return range(FIRST_ID, FIRST_ID + BLOCK_IDS)
    try:
        begin = int(json.loads(node.data)["block_end"]) + 1
    except (ValueError, KeyError, TypeError) as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"cannot understand {NODE}: correct it") from error
    if begin + BLOCK_IDS > LAST_ID:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "producer ids are exhausted")
    begin = max(begin, FIRST_ID)
    return range(begin, begin + BLOCK_IDS)


def _encoded(broker: int, block: range) -> bytes:
    words = {"version": 1, "broker": broker, "block_start": str(block[0]), "block_end": str(block[-1])}
    return json.dumps(words, separators=(",", ":")).encode()
