"""TopicAdmin: checks, places, creates, grows and deletes topics, and waits until that is done.

A topic that is returned is usable: the cluster's metadata has it with a leader for every partition, and each leader
confirms that (or the time was up). Errors are exceptions with codes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from logstore.env import Env
from logstore.errors import InvalidTopicError, TopicExistsError
from logstore.store.description import check_collision, check_topic_name, new_topic_id
from replication.config.broker import BrokerConfig
from replication.coordination import nodes, topics
from replication.coordination.placements import Placements
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import INTERNAL_TOPICS, NO_LEADER, Assignment, Election, TopicPartition
from replication.model.metadata import Metadata, TopicMetadata
from replication.model.placement import place
from replication.network.loops import is_set_within

PARTITIONS_MAX = 100_000  # of one topic
REQUEST_MAX = 10_000  # new partitions per request, as in later versions of Kafka
METADATA_S = 1.0  # until an UpdateMetadata reaches this broker
POLL_S = 1.0  # in case a change of the metadata is missed
DELETION_POLL_S = LEADERS_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1: the broker's default. `assignment`: the replicas, instead of the numbers."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Mapping[int, Assignment] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)


class TopicAdmin:
    """`tree` returns the session's tree; it raises KafkaError while there is none.

    `do_lead` asks the leaders in the metadata whether they lead. `placements` writes the replicas.
    """

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        tree: Callable[[], Tree],
        do_lead: Callable[[Sequence[TopicPartition]], Awaitable[bool]],
        placements: Placements,
        env: Env,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._tree = tree
        self._do_lead = do_lead
        self._placements = placements
        self._random = env.random
        self._creating = asyncio.Lock()
        self._changed = asyncio.Event()
        metadata.listen(self._wake)

    # ------------------------------------------------------------------ create

    @staticmethod
    def check_request(partitions: int) -> None:
        """Check the number of new partitions in one request. Raises: KafkaError."""
        if partitions > REQUEST_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions:,} new partitions in one request: up to {REQUEST_MAX:,} are allowed",
            )

    def plan(self, topic: NewTopic) -> dict[int, Assignment]:
        """Return the replicas that it would get. Raises: KafkaError, InvalidTopicError, InvalidConfigError."""
        check_topic_name(topic.name)
        self._config.log_config(topic.config).check()
        if self._metadata.topic(topic.name) is not None:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} exists already")
        check_collision(topic.name, itertools.chain(INTERNAL_TOPICS, self._metadata.topics()))
        if topic.assignment:
            return self._checked(topic)
        count = self._config.num_partitions if topic.partitions == -1 else topic.partitions
        factor = topic.replication_factor
        if factor == -1:
            factor = self._config.default_replication_factor
        if not 1 <= count <= PARTITIONS_MAX:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"{count} partitions: 1 to {PARTITIONS_MAX} are allowed")
        return self._place(count, factor)

    def _place(self, count: int, factor: int, first: int = 0, start: int | None = None) -> dict[int, Assignment]:
        brokers = self._metadata.brokers().values()
        if not 1 <= factor <= len(brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{factor} replicas: at least one, and at most one on each of the {len(brokers)} live brokers",
            )
        return place(
            brokers,
            partitions=count,
            replication_factor=factor,
            start=self._random.randrange(len(brokers)) if start is None else start,
            first_partition=first,
            rack_aware=all(broker.rack for broker in brokers),
        )

    def _checked(self, topic: NewTopic) -> dict[int, Assignment]:
        found = dict(topic.assignment)
        if topic.partitions != -1 or topic.replication_factor != -1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "give numbers or the replicas of each partition, not both")
        if sorted(found) != list(range(len(found))):
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are numbered from 0 without a gap")
        _check_replicas(found, self._metadata.brokers())
        return found

    async def check_room(self, assignment: Mapping[int, Assignment]) -> None:
        """Check that the brokers would take these replicas. Raises: KafkaError."""
        await self._placements.check(self._tree(), assignment.values())

    async def create(self, topic: NewTopic, *, timeout_s: float) -> TopicMetadata | None:
        """Create a topic; return it, or None if it is created but not ready yet. Raises: as `plan`.

        Waits for a topic of the same name that is being deleted.
        """
        assignment, tree = self.plan(topic), self._tree()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while True:
            try:
                await self._write(tree, topic, assignment)
            except TopicExistsError:
                named = await topics.read_name(tree, topic.name)
                if loop.time() > end_s or (named.exists and not named.is_marked):
                    raise
                await asyncio.sleep(DELETION_POLL_S)
            else:
                break
        return await self.ready(topic.name, len(assignment), timeout_s=timeout_s)

    async def _write(self, tree: Tree, topic: NewTopic, assignment: Mapping[int, Assignment]) -> None:
        """Write topics whose names could collide one after the other, so that each sees the others of its request."""
        may_collide = "." in topic.name or "_" in topic.name
        async with self._creating if may_collide else contextlib.nullcontext():
            if may_collide:
                check_collision(topic.name, await tree.children(nodes.TOPICS))
            await self._placements.place(
                tree,
                assignment.values(),
                partial(topics.create_topic, tree, topic.name, new_topic_id(), assignment, topic.config),
                has_limit=topic.name not in INTERNAL_TOPICS,
            )

    async def ensure(self, topic: NewTopic, *, timeout_s: float) -> TopicMetadata | None:
        """Return the topic, after creating it if it does not exist; None while it is not ready."""
        known = self._metadata.topic(topic.name)
        if known is not None:
            return known
        try:
            return await self.create(topic, timeout_s=timeout_s)
        except TopicExistsError:  # another broker was faster
            return await self.ready(topic.name, 1, timeout_s=timeout_s)

    # -------------------------------------------------------------- the others

    async def grow(self, name: str, count: int, added: list[Assignment] | None, *, timeout_s: float) -> None:
        """Grow to `count` partitions; `added` are the replicas of the new ones. `timeout_s` 0: only check it."""
        known = self._known(name)
        if name in INTERNAL_TOPICS:  # groups are found by its number of partitions
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name} is internal: its number of partitions cannot change",
            )
        before = len(known.partitions)
        if not before < count <= PARTITIONS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} has {before} partitions: there can be more, up to {PARTITIONS_MAX}, not {count}",
            )
        if added is None:
            first = known.partitions[0].replicas
            row = sorted(self._metadata.brokers())
            start = row.index(first[0]) if first[0] in row else 0
            planned = self._place(count - before, len(first), before, start)
        else:
            planned = {before + number: replicas for number, replicas in enumerate(added)}
            if len(planned) != count - before:
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "one list of replicas per new partition")
            _check_replicas(planned, self._metadata.brokers())
        tree = self._tree()
        if not timeout_s:
            await self._placements.check(tree, planned.values())
        else:
            grow = partial(topics.grow_topic, tree, name, planned)
            await self._placements.place(tree, planned.values(), grow)
            if await self.ready(name, count, timeout_s=timeout_s) is None:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the partitions are created, and some have no leader yet")

    async def delete(self, name: str, topic_id: str | None = None, *, timeout_s: float) -> str | None:
        """Delete the topic of this name, as the tree has it, and wait until it is gone; with `topic_id`, only that one.

        Returns: its id.
        Raises: KafkaError: REQUEST_TIMED_OUT: it will be deleted, but is not yet.
        """
        try:
            check_topic_name(name)  # others might be paths of the tree
        except InvalidTopicError:
            raise _unknown(name) from None
        tree, known = self._tree(), self._metadata.topic(name)
        exists, is_marked, found_id = await topics.read_name(tree, name)
        if topic_id not in (None, found_id):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic of this id")
        if not exists or (known is None and is_marked):
            raise _unknown(name)
        if not self._config.delete_topic_enable:
            raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        await topics.mark_deleted(tree, name, found_id)
        is_behind = known is None or known.id != found_id  # this broker may never hear of the topic

        def is_forgotten() -> bool:
            found = self._metadata.topic(name)
            return found is None or found.id != found_id

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while is_behind and await topics.is_there(tree, name, found_id):  # noqa: ASYNC110  nobody tells
                    await asyncio.sleep(DELETION_POLL_S)
                await self._until(is_forgotten, math.inf)
                return found_id
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"topic {name!r} is marked, and not deleted yet")

    def is_elected(self, tp: TopicPartition, *, is_unclean: bool) -> bool | None:
        """Does the preferred replica lead, or (`is_unclean`) any? None: there is no such partition."""
        topic = self._metadata.topic(tp.topic)
        found = None if topic is None else topic.partitions.get(tp.partition)
        if found is None:
            return None
        leader = found.state.leader
        return leader in self._metadata.brokers() if is_unclean else leader == found.replicas[0]

    async def elect(self, election: Election, *, timeout_s: float) -> None:
        """Have the controller hold an election, and wait until all that was possible is done.

        Raises: InvalidRequestError: another one is under way.
        """
        tree = self._tree()
        await topics.request_election(tree, election)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                ended = asyncio.Event()
                while await topics.is_electing(tree, lambda path: ended.set()):
                    await ended.wait()
                    ended.clear()

        def are_elected() -> bool:
            return all(self.is_elected(tp, is_unclean=election.is_unclean) is not False for tp in election.partitions)

        await self._until(are_elected, min(timeout_s, METADATA_S))

    async def ready(self, name: str, partitions: int, *, timeout_s: float) -> TopicMetadata | None:
        """Return the topic once this number of partitions have confirmed leaders; None after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    known = await self._led(name, partitions)
                    if await self._do_lead([TopicPartition(name, number) for number in known.partitions]):
                        return known
                    await asyncio.sleep(LEADERS_POLL_S)
        return None

    async def _led(self, name: str, partitions: int) -> TopicMetadata:

        def is_ready() -> bool:
            known = self._metadata.topic(name)
            return (
                known is not None
                and len(known.partitions) >= partitions
                and all(found.state.leader != NO_LEADER for found in known.partitions.values())
            )

        await self._until(is_ready, math.inf)
        return self._known(name)

    def _known(self, name: str) -> TopicMetadata:
        known = self._metadata.topic(name)
        if known is None:
            raise _unknown(name)
        return known

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while not holds() and (left_s := end_s - loop.time()) > 0:
            await is_set_within(self._changed, min(left_s, POLL_S))


def _unknown(name: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")


def _check_replicas(assignment: Mapping[int, Assignment], brokers: Mapping[int, object]) -> None:
    for partition, replicas in assignment.items():
        if not replicas or len(set(replicas)) != len(replicas) or not all(b in brokers for b in replicas):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partition {partition} on {list(replicas)}: name live brokers, each once",
            )
    if len({len(replicas) for replicas in assignment.values()}) > 1:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "all partitions have as many replicas")
