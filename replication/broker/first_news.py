"""Requests about topics and brokers wait until the first UpdateMetadata of the whole cluster.

Its empty picture would pass for an empty cluster: tools would print no topics, and scripts would create those that are
only not known yet. Such requests wait for the first UpdateMetadata, at most `WAIT_S`; then the connection is closed,
and the client asks another broker, or again. Leaders and coordinators answer at once with a code that is retried.

A request that waited passes the pipeline again: the first time, no topic id had a name to be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from replication.errors import UninformedError
from replication.model.metadata import Metadata
from replication.network.loops import is_set_within
from replication.network.pipeline import Endpoint, Pipeline
from replication.network.work import Work
from replication.protocol.apis import ApiKey

WAIT_S = 10.0

WAITING = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
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


def await_metadata(pipeline: Pipeline, metadata: Metadata) -> None:
    """Have the requests of WAITING wait until `metadata` is initialized."""
    served, came = pipeline.endpoints, asyncio.Event()
    endpoints = {key: served[key] for key in WAITING & served.keys()}

    async def wait(work: Work) -> Any:
        work.park()
        if not await is_set_within(came, WAIT_S):
            raise UninformedError(f"no controller has described the cluster to this broker for {WAIT_S:g} s")
        return await pipeline.serve_again(work)

    def look() -> None:
        if metadata.is_initialized and not came.is_set():
            served.update(endpoints)
            came.set()

    def handle(work: Work, body: object) -> Awaitable[Any]:
        return asyncio.create_task(wait(work))  # the pipeline calls from no task

    served.update((key, Endpoint(each.needs, handle, each.answers_refused)) for key, each in endpoints.items())
    metadata.listen(look)
