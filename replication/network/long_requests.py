"""Requests and answers that are too long for one turn of the event loop.

They are decoded in one thread, one after the other and item by item, so that the loop gets its turns; few of them are
in work at a time, since each may cost some tens of megabytes. Answers are encoded in steps of the loop, from what is
known then; those to Produce and Fetch, which are values, in the same thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from replication.network import steps
from replication.protocol import apis, bounds
from replication.protocol.apis import ApiKey, EncodedBody, Request
from replication.protocol.framing import Frame
from replication.protocol.wire import Buffer

Found = TypeVar("Found")

# In work at a time, of those that count as queued. Requests for records, and those that wait for others, do not.
AT_ONCE = 4


class LongRequests:
    def __init__(self) -> None:
        self.places = asyncio.Semaphore(AT_ONCE)
        self._thread = ThreadPoolExecutor(1, "decode")

    async def decode(self, frame: Frame) -> Request:
        return await self._aside(partial(bounds.decode, memoryview(frame)))

    async def encode(self, request: Request, response: Any) -> list[Buffer]:
        """An answer, its size in front. Raises: ProtocolError: it would have too many bytes."""
        key, version, correlation_id = request.key, request.version, request.correlation_id
        if is_value(key, response):
            return await self._aside(partial(apis.encode_response, key, version, correlation_id, response))
        found: list[Buffer] = await steps.run(apis.response_steps(key, version, correlation_id, response))
        return found

    async def _aside(self, act: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def is_value(key: ApiKey, response: Any) -> bool:
    return key in (ApiKey.PRODUCE, ApiKey.FETCH) or isinstance(response, EncodedBody)
