"""The state of share partitions, for brokers: 83 to 87. Each partition is answered once its state is committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from replication.broker.feature_level import FeatureLevel
from replication.coordinators.share_state.coordinator import ShareCoordinator
from replication.coordinators.share_state.machine import events
from replication.coordinators.share_state.machine.batches import StateBatch
from replication.coordinators.share_state.states import IdPartition
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import topic_id_of
from replication.model.features import SHARE_GROUPS
from replication.network.steps import all_of, in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows

Topic: TypeAlias = (
    requests.InitializeStateData
    | requests.ReadStateData
    | requests.WriteStateData
    | requests.DeleteStateData
    | requests.ReadStateSummaryData
)
Row: TypeAlias = Callable[[IdPartition, requests.PartitionData], Awaitable[dict[str, Any]]]
_NO_STATE = {"state_epoch": 0, "start_offset": 0, "state_batches": ()}
_NO_SUMMARY = {"state_epoch": 0, "leader_epoch": 0, "start_offset": 0, "delivery_complete_count": -1}


class ShareStateHandlers:
    def __init__(self, shares: ShareCoordinator, level: FeatureLevel) -> None:
        self._shares = shares
        self._level = level

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.INITIALIZE_SHARE_GROUP_STATE: self.initialize,
            ApiKey.READ_SHARE_GROUP_STATE: self.read,
            ApiKey.WRITE_SHARE_GROUP_STATE: self.write,
            ApiKey.DELETE_SHARE_GROUP_STATE: self.delete,
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: self.summarize,
        }

    async def initialize(self, context: Work, body: requests.InitializeShareGroupStateRequest) -> Response:
        async def row(at: IdPartition, asked: requests.PartitionData) -> dict[str, Any]:
            epoch, start = asked.state_epoch, asked.start_offset
            make = events.Initialize
            return _told(
                await self._shares.ask(
                    body.group_id, at, lambda number: make(request=number, state_epoch=epoch, start_offset=start)
                )
            )

        return await self._answer(context, body.topics, row)

    async def read(self, context: Work, body: requests.ReadShareGroupStateRequest) -> Response:
        async def row(at: IdPartition, asked: requests.PartitionData) -> dict[str, Any]:
            epoch, make = asked.leader_epoch, events.Read
            answer = await self._shares.ask(body.group_id, at, lambda number: make(request=number, leader_epoch=epoch))
            if (found := answer.found) is None or answer.error:
                return _told(answer)
            rows = [
                {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}
                for first, last, state, count in found.batches
            ]
            state = {"state_epoch": found.state_epoch, "start_offset": found.start_offset, "state_batches": rows}
            return {**_told(answer), **state}

        return await self._answer(context, body.topics, row, _NO_STATE)

    async def write(self, context: Work, body: requests.WriteShareGroupStateRequest) -> Response:
        async def row(at: IdPartition, asked: requests.PartitionData) -> dict[str, Any]:
            batches = tuple(
                StateBatch(one.first_offset, one.last_offset, one.delivery_state, one.delivery_count)
                for one in asked.state_batches
            )
            answer = await self._shares.ask(
                body.group_id,
                at,
                lambda number: events.Write(
                    request=number,
                    state_epoch=asked.state_epoch,
                    leader_epoch=asked.leader_epoch,
                    start_offset=asked.start_offset,
                    delivery_complete_count=asked.delivery_complete_count,
                    batches=batches,
                ),
            )
            return _told(answer)

        return await self._answer(context, body.topics, row)

    async def delete(self, context: Work, body: requests.DeleteShareGroupStateRequest) -> Response:
        async def row(at: IdPartition, asked: requests.PartitionData) -> dict[str, Any]:
            return _told(await self._shares.ask(body.group_id, at, lambda number: events.Delete(request=number)))

        return await self._answer(context, body.topics, row)

    async def summarize(self, context: Work, body: requests.ReadShareGroupStateSummaryRequest) -> Response:
        async def row(at: IdPartition, asked: requests.PartitionData) -> dict[str, Any]:
            found = self._shares.summary(body.group_id, at)
            return {
                "error_code": found.error,
                "error_message": None,
                "state_epoch": found.state_epoch,
                "leader_epoch": found.leader_epoch,
                "start_offset": found.start_offset,
                "delivery_complete_count": found.delivery_complete_count,
            }

        return await self._answer(context, body.topics, row, _NO_SUMMARY)

    async def _answer(
        self, context: Work, topics: Sequence[Topic], row: Row, nothing: Mapping[str, Any] | None = None
    ) -> Response:
        """Answer each partition by itself, all at once; `nothing`: the fields of one that is refused."""
        context.park()

        async def answer(one: tuple[IdPartition, requests.PartitionData]) -> dict[str, Any]:
            at, asked = one
            try:
                self._level.need(SHARE_GROUPS)
                found = await row(at, asked)
            except KafkaError as error:
                found = _error(error.code, error.message)
            return {**(nothing or {}), **found, "partition": at.partition}

        asked: list[tuple[IdPartition, requests.PartitionData]] = []
        async for chunk in in_steps(
            (topic_id_of(topic.topic_id), each) for topic in topics for each in topic.partitions
        ):
            asked += [(IdPartition(topic_id, each.partition), each) for topic_id, each in chunk]
        done = iter(await all_of(answer, asked))

        def result(topic: Topic) -> Response:
            return {
                "topic_id": topic.topic_id,
                "partitions": Rows(len(topic.partitions), islice(done, len(topic.partitions))),
            }

        return {"results": Rows(len(topics), map(result, topics))}


def _error(code: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message or None}


def _told(answer: events.Answer) -> dict[str, Any]:
    return _error(answer.error, answer.message)
