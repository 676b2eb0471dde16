"""Producer ids: each given once in a cluster. Brokers take them in blocks.

The tree holds the last block, in the node and the words of later Kafkas. The rest of a block is lost when its broker
stops. Ids start far above those that a stand-alone directory gives its own writers, so that an adopted log never
meets an id twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from replication.coordination.node_json import decode_json
from replication.coordination.tree import BadVersionError, CoordinationError, Node, NodeExistsError, Tree, put
from replication.errors import ErrorCode, KafkaError

NODE = "/latest_producer_id_block"
BLOCK_IDS = 1000
FIRST_ID = 1 << 32
LAST_ID = 2**63 - 1


class ProducerIds:
    """`tree` returns the session's tree; it raises KafkaError while there is none."""

    def __init__(self, broker: int, tree: Callable[[], Tree]) -> None:
        self._broker = broker
        self._tree = tree
        self._left = range(0)
        self._taking = asyncio.Lock()

    async def next_id(self) -> int:
        """Return an id that no other producer gets. Raises: KafkaError."""
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
                text = _encoded(self._broker, block, node)
                try:
                    await tree.multi([put(NODE, text, node)])
                except (BadVersionError, NodeExistsError):
                    continue  # another broker was faster
                return block
        except CoordinationError as error:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, str(error)) from error


def skipping_to(node: Node | None, begin: int) -> bytes:
    """Return the content of the node that makes the next block start behind `begin`, and behind the last block."""
    last = max(begin, _after(node)[0])
    return _encoded(-1, range(last, last + 1), node)


def _after(node: Node | None) -> range:
    """Return the block behind that in the node. An unreadable node is an error: its ids must not be given again."""
    if node is None:
        return range(FIRST_ID, FIRST_ID + BLOCK_IDS)
    try:
        begin = int(json.loads(node.data)["block_end"]) + 1
    except (ValueError, KeyError, TypeError) as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{NODE} is malformed: correct it") from error
    if begin + BLOCK_IDS > LAST_ID:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "producer ids are exhausted")
    begin = max(begin, FIRST_ID)
    return range(begin, begin + BLOCK_IDS)


def _encoded(broker: int, block: range, former: Node | None) -> bytes:
    """Return the content of the node; what a later release wrote there stays."""
    words = {"version": 1, "broker": broker, "block_start": str(block[0]), "block_end": str(block[-1])}
    others = decode_json(former.data) if former is not None else {}
    return json.dumps({**words, **others, **words}, separators=(",", ":"), ensure_ascii=False).encode()
