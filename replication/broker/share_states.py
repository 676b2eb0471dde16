"""ShareStateCalls: the states of share partitions, asked of their coordinators, wherever these are.

A call is repeated while the coordinator moves, loads or does not answer: the machine there takes a repeated write as
one. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from logstore.errors import PylogError
from replication.coordinators.share_state.coordinator import ShareCoordinator
from replication.coordinators.share_state.machine import events
from replication.coordinators.share_state.machine.batches import Batches, StateBatch
from replication.coordinators.share_state.machine.state import SharePartitionKey
from replication.coordinators.share_state.states import BY_RESET, IdPartition, Summary
from replication.errors import ErrorCode, KafkaError, code_in
from replication.model.cluster import SHARE_STATE_TOPIC, BrokerId, topic_uuid
from replication.model.metadata import Metadata
from replication.network.client import Clients
from replication.network.steps import all_of
from replication.protocol.apis import ApiKey

logger = logging.getLogger(__name__)

RETRY_S, RETRY_S_MAX = 0.05, 1.0
ASKED_S = 15.0  # a call is repeated for so long
_AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


class Found(NamedTuple):
    """The state that a leader goes on from."""

    error: ErrorCode = ErrorCode.NONE
    state_epoch: int = 0
    start_offset: int = BY_RESET
    batches: Batches = ()


class Written(NamedTuple):
    """A change of a share partition, as its leader asks for it to be stored."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Batches


class _Call(NamedTuple):
    """A question about a share partition, for the coordinator here, and as the row of a request."""

    key: ApiKey
    event: Callable[[int], events.Request] | None  # None: the summary is asked for
    row: Mapping[str, Any]


class ShareStateCalls:
    """`ready` has the internal topic be there; it raises KafkaError while it is not."""

    def __init__(
        self,
        broker: BrokerId,
        metadata: Metadata,
        clients: Clients,
        shares: ShareCoordinator,
        ready: Callable[[], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._metadata = metadata
        self._clients = clients
        self._shares = shares
        self._ready = ready

    async def initialize(
        self, group_id: str, offsets: Mapping[IdPartition, tuple[int, int]]
    ) -> Mapping[IdPartition, ErrorCode]:
        """See `ShareStates`."""

        def call(at: IdPartition) -> _Call:
            epoch, start = offsets[at]
            event = partial(_initialize, state_epoch=epoch, start_offset=start)
            return _Call(ApiKey.INITIALIZE_SHARE_GROUP_STATE, event, {"state_epoch": epoch, "start_offset": start})

        return await self._errors(group_id, tuple(offsets), call)

    async def summaries(self, group_id: str, partitions: Collection[IdPartition]) -> Mapping[IdPartition, Summary]:
        """See `ShareStates`."""
        call = _Call(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, None, {"leader_epoch": 0})

        async def ask(at: IdPartition) -> Summary:
            found = await self._ask(group_id, at, call)
            if isinstance(found, Summary):
                return found
            if error := _error_of(found):
                return Summary(error)
            fields = found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count
            return Summary(ErrorCode.NONE, *map(int, fields))

        return dict(zip(partitions, await all_of(ask, partitions), strict=True))

    async def delete(self, group_id: str, partitions: Collection[IdPartition]) -> Mapping[IdPartition, ErrorCode]:
        """See `ShareStates`."""
        call = _Call(ApiKey.DELETE_SHARE_GROUP_STATE, lambda number: events.Delete(request=number), {})
        return await self._errors(group_id, partitions, lambda _: call)

    async def read(self, group_id: str, at: IdPartition, leader_epoch: int) -> Found:
        """Return the state for a leader of this epoch; earlier ones are fenced from then on."""
        event = partial(_read, leader_epoch=leader_epoch)
        found = await self._ask(
            group_id, at, _Call(ApiKey.READ_SHARE_GROUP_STATE, event, {"leader_epoch": leader_epoch})
        )
        if error := _error_of(found):
            return Found(error)
        if isinstance(found, events.Answer):
            assert found.found is not None, "a read that is granted finds a state"
            return Found(ErrorCode.NONE, found.found.state_epoch, found.found.start_offset, found.found.batches)
        batches = tuple(
            StateBatch(one.first_offset, one.last_offset, one.delivery_state, one.delivery_count)
            for one in found.state_batches
        )
        return Found(ErrorCode.NONE, found.state_epoch, found.start_offset, batches)

    async def write(self, group_id: str, at: IdPartition, written: Written) -> ErrorCode:
        """Store a change; NONE: it is committed."""
        rows = [
            {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}
            for first, last, state, count in written.batches
        ]
        row = {**written._asdict(), "state_batches": rows}
        del row["batches"]
        return _error_of(
            await self._ask(group_id, at, _Call(ApiKey.WRITE_SHARE_GROUP_STATE, partial(_write, written=written), row))
        )

    # ------------------------------------------------------------------ one call

    async def _errors(
        self, group_id: str, partitions: Collection[IdPartition], call: Callable[[IdPartition], _Call]
    ) -> Mapping[IdPartition, ErrorCode]:
        async def ask(at: IdPartition) -> ErrorCode:
            return _error_of(await self._ask(group_id, at, call(at)))

        return dict(zip(partitions, await all_of(ask, partitions), strict=True))

    async def _ask(self, group_id: str, at: IdPartition, call: _Call) -> Any:
        """Return the Answer or Summary of the coordinator here, or the row of an answer."""
        loop = asyncio.get_running_loop()
        until_s, pause_s = loop.time() + ASKED_S, RETRY_S
        while True:
            found = await self._ask_safely(group_id, at, call)
            error = _error_of(found)
            is_new = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._metadata.name_of(at.topic_id) is not None
            if not (error in _AGAIN or is_new) or loop.time() + pause_s > until_s:
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _ask_safely(self, group_id: str, at: IdPartition, call: _Call) -> Any:
        try:
            return await self._ask_once(group_id, at, call)
        except KafkaError as failure:
            return events.Answer(0, failure.code)
        except (OSError, TimeoutError, PylogError) as failure:
            logger.info("share-partition=%s its coordinator does not answer: %s", at, failure)
            return events.Answer(0, ErrorCode.NETWORK_EXCEPTION)

    async def _ask_once(self, group_id: str, at: IdPartition, call: _Call) -> Any:
        if self._metadata.topic(SHARE_STATE_TOPIC) is None:
            await self._ready()
        partition = self._shares.terms.partition_of(str(SharePartitionKey(group_id, *at)))
        leader = self._metadata.leader(SHARE_STATE_TOPIC, partition)
        if leader == self._broker:
            if call.event is None:
                return self._shares.summary(group_id, at)
            return await self._shares.ask(group_id, at, call.event)
        address = self._metadata.brokers().get(-1 if leader is None else leader)
        if address is None:
            return events.Answer(0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        row = {"partition": at.partition, **call.row}
        request = {"group_id": group_id, "topics": [{"topic_id": topic_uuid(at.topic_id), "partitions": [row]}]}
        answer = await self._clients.call(address.host, address.port, call.key, request)
        return answer.results[0].partitions[0]


def _error_of(found: Any) -> ErrorCode:
    return found.error if isinstance(found, events.Answer | Summary) else code_in(found)


def _initialize(request: int, *, state_epoch: int, start_offset: int) -> events.Request:
    return events.Initialize(request=request, state_epoch=state_epoch, start_offset=start_offset)


def _read(request: int, *, leader_epoch: int) -> events.Request:
    return events.Read(request=request, leader_epoch=leader_epoch)


def _write(request: int, *, written: Written) -> events.Request:
    return events.Write(request=request, **written._asdict())
