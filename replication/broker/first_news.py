"""FirstNews: requests about topics and brokers wait until the first UpdateMetadata of the whole cluster.

Its empty picture would pass for an empty cluster: tools would print no topics, and scripts would create those that are
only not known yet. Such requests wait for the first UpdateMetadata, at most `WAIT_S`; then the connection is closed,
and the client asks another broker, or again. Leaders and coordinators answer at once with a code that is retried.

A request that waited is authorized again: the first time, no topic id had a name to be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from replication.errors import UninformedError
from replication.model.metadata import Metadata
from replication.network import refusals
from replication.network.pipeline import Endpoint, Endpoints
from replication.network.work import Work
from replication.protocol.apis import ApiKey

WAIT_S = 10.0

WAITING = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    }
)


class FirstNews:
    """Belongs to the event loop."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._came = asyncio.Event()
        metadata.listen(self._look)

    def _look(self) -> None:
        if self._metadata.is_initialized:
            self._came.set()

    def awaited(self, endpoints: Endpoints) -> Endpoints:
        """Return `endpoints`, of which those in WAITING wait."""
        return {
            key: self._waiting(endpoint) if key in WAITING and isinstance(endpoint, Endpoint) else endpoint
            for key, endpoint in endpoints.items()
        }

    def _waiting(self, endpoint: Endpoint) -> Endpoint:
        def handle(work: Work, body: object) -> Awaitable[Any] | Any:
            if self._metadata.is_initialized:
                return endpoint.handle(work, body)
            return asyncio.create_task(self._later(endpoint, work))  # the pipeline calls from no task

        return endpoint._replace(handle=handle)

    async def _later(self, endpoint: Endpoint, work: Work) -> Any:
        work.park()
        try:
            async with asyncio.timeout(WAIT_S):
                await self._came.wait()
        except TimeoutError:
            raise UninformedError(f"no controller has described the cluster to this broker for {WAIT_S:g} s") from None
        work.refused = work.refused_of(endpoint.needs, work)
        if work.refused and not endpoint.answers_refused:
            return await refusals.answer(work, endpoint.needs, endpoint.handle)
        answer = endpoint.handle(work, work.body)
        return await answer if hasattr(answer, "__await__") else answer
