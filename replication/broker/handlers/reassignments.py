"""AlterPartitionReassignments and ListPartitionReassignments, answered by the controller.

A request is written where Kafka 0.9's tools write it; the controller's machine does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from logstore.errors import PylogError
from replication.controller.driver import ControllerLoop
from replication.coordination import reassignments, topics
from replication.coordination.placements import Placements
from replication.coordination.tree import Step, Tree
from replication.errors import ErrorCode, KafkaError, code_of, message_of
from replication.model.cluster import Assignment, TopicPartition
from replication.model.metadata import Metadata
from replication.network.steps import in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol.apis import ApiKey
from replication.protocol.requests import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest


class ReassignmentHandlers:
    """`tree` returns the session's tree; it raises KafkaError while there is none."""

    def __init__(
        self, controller: ControllerLoop, metadata: Metadata, placements: Placements, tree: Callable[[], Tree]
    ) -> None:
        self._controller = controller
        self._placements = placements
        self._metadata = metadata
        self._tree = tree

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.alter,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.list,
        }

    # ------------------------------------------------------------------- alter

    async def alter(self, context: Work, body: AlterPartitionReassignmentsRequest) -> Response:
        """Request other replicas for partitions, or (null) cancel; return when the request is stored."""
        context.park()
        wanted: dict[TopicPartition, Assignment | None] = {}
        failed: dict[TopicPartition, KafkaError] = {}
        async for chunk in in_steps((topic.name, row) for topic in body.topics for row in topic.partitions):
            for name, asked in chunk:
                tp = TopicPartition(name, asked.partition_index)
                if tp in wanted:
                    failed[tp] = KafkaError(ErrorCode.INVALID_REQUEST, f"{tp} is asked for twice")
                wanted[tp] = asked.replicas
        try:
            tree = self._controllers_tree()
            async for tps in in_steps(wanted):
                sound = [tp for tp in tps if tp not in failed]
                failed.update([(tp, error) for tp in sound if (error := await self._fault(tree, tp, wanted[tp]))])
                if not body.allow_replication_factor_change:
                    failed.update(self._resized({tp: wanted[tp] for tp in sound if tp not in failed}))
            idle = await self._request(tree, {tp: wanted[tp] for tp in wanted if tp not in failed})
        except PylogError as error:
            return {"error_code": code_of(error), "error_message": message_of(error), "responses": ()}
        for tp in idle:
            failed[tp] = KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{tp} is not being reassigned: nothing to cancel"
            )
        rows: dict[str, list[Mapping[str, Any]]] = {}
        async for tps in in_steps(wanted):
            for tp in tps:
                fault = failed.get(tp)
                row = {
                    "partition_index": tp.partition,
                    "error_code": ErrorCode.NONE if fault is None else fault.code,
                    "error_message": None if fault is None else message_of(fault),
                }
                rows.setdefault(tp.topic, []).append(row)
        responses = [{"name": topic, "partitions": found} for topic, found in rows.items()]
        allows = body.allow_replication_factor_change
        answer = {"error_code": ErrorCode.NONE, "error_message": None, "responses": responses}
        return {**answer, "allow_replication_factor_change": allows}

    async def _request(
        self, tree: Tree, wanted: Mapping[TopicPartition, Assignment | None]
    ) -> frozenset[TopicPartition]:
        """Request the reassignments if the brokers have room for the new replicas; otherwise do nothing."""
        idle: frozenset[TopicPartition] = frozenset()

        async def write(counted: Step) -> None:
            nonlocal idle
            idle = await reassignments.request(tree, wanted, counted)

        await self._placements.place(tree, map(self._added, wanted, wanted.values()), write)
        return idle

    def _added(self, tp: TopicPartition, target: Assignment | None) -> Assignment:
        topic = self._metadata.topic(tp.topic)
        known = topic.partitions[tp.partition].replicas if topic is not None else ()
        return tuple(broker for broker in target or () if broker not in known)

    def _resized(self, wanted: Mapping[TopicPartition, Assignment | None]) -> Mapping[TopicPartition, KafkaError]:
        """Return those that would have another number of replicas."""
        failed = {}
        for tp, target in wanted.items():
            topic = self._metadata.topic(tp.topic)
            known = topic.partitions[tp.partition].replicas if topic is not None else ()
            if target is not None and len(target) != len(known):
                said = f"{tp} would have {len(target)} replicas, not {len(known)}: allow it to change their number"
                failed[tp] = KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, said)
        return failed

    async def _fault(self, tree: Tree, tp: TopicPartition, target: Assignment | None) -> KafkaError | None:
        """Return why it is refused; None if it is not."""
        known = self._metadata.topic(tp.topic)
        if (
            known is None
            or tp.partition not in known.partitions
            or (target is not None and await topics.is_marked_deleted(tree, tp.topic))
        ):
            return KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp} does not exist, or is being deleted"
            )
        live = self._metadata.brokers()
        if target is not None and (not target or len(set(target)) != len(target) or not all(b in live for b in target)):
            return KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{tp} on {list(target)}: name live brokers, each once"
            )
        return None

    # -------------------------------------------------------------------- list

    async def list(self, context: Work, body: ListPartitionReassignmentsRequest) -> Response:
        """Return the reassignments under way; all, if no topics are named."""
        context.park()
        asked = None
        if body.topics is not None:
            asked = set()
            async for tps in in_steps(
                TopicPartition(topic.name, number) for topic in body.topics for number in topic.partition_indexes
            ):
                asked.update(tps)
        try:
            found = await reassignments.listed(self._controllers_tree())
        except PylogError as error:
            return {"error_code": code_of(error), "error_message": message_of(error), "topics": ()}
        rows: dict[str, list[Mapping[str, Any]]] = {}
        async for some in in_steps(sorted(found.items())):
            for tp, (replicas, added, removed) in some:
                if asked is None or tp in asked:
                    row = {
                        "partition_index": tp.partition,
                        "replicas": replicas,
                        "adding_replicas": added,
                        "removing_replicas": removed,
                    }
                    rows.setdefault(tp.topic, []).append(row)
        listed = [{"name": topic, "partitions": rows[topic]} for topic in rows]
        return {"error_code": ErrorCode.NONE, "error_message": None, "topics": listed}

    def _controllers_tree(self) -> Tree:
        if not self._controller.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "ask the controller: the metadata names it")
        return self._tree()
