"""DescribeTopicPartitions: topics by their names, some thousand partitions a page."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from replication.broker.handlers.cluster import partition_row, why_unknown
from replication.broker.handlers.operations import NOT_ASKED, granted
from replication.config.broker import BrokerConfig
from replication.errors import ErrorCode
from replication.model.cluster import INTERNAL_TOPICS, topic_uuid
from replication.model.metadata import Metadata, PartitionMetadata, TopicMetadata
from replication.network import steps
from replication.network.steps import STEP_ITEMS, in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows
from replication.protocol.requests import DescribeTopicPartitionsRequest
from replication.security.access import Operation, Resource


class Cursor(NamedTuple):
    """Where a page begins."""

    topic: str
    partition: int


class Described(NamedTuple):
    """A topic on a page, with those of its partitions that are on it; `topic` None: there is none of that name."""

    name: str
    topic: TopicMetadata | None
    partitions: list[tuple[int, PartitionMetadata]]


class Page(NamedTuple):
    topics: list[Described]
    next: Cursor | None  # None: it is the last one


def page_of(
    names: Iterable[str], find: Callable[[str], TopicMetadata | None], begin: Cursor | None, partitions_max: int
) -> Generator[None, None, Page]:
    """Make a page, yielding after each topic. `names` are sorted, from that of `begin` on. A name of no topic is free.

    A full page ends before the next name, whether or not that has partitions: so it is in Kafka.
    """
    shown: list[Described] = []
    left = partitions_max
    for name in names:
        if not left:
            return Page(shown, Cursor(name, 0))
        topic = find(name)
        first = begin.partition if begin is not None and begin.topic == name else 0
        known = topic.partitions if topic is not None else {}
        numbers = sorted(number for number in known if number >= first)
        shown.append(Described(name, topic, [(number, known[number]) for number in numbers[:left]]))
        if len(numbers) > left:
            return Page(shown, Cursor(name, numbers[left]))
        left -= len(numbers)
        yield
    return Page(shown, None)


class TopicPageHandlers:
    def __init__(self, config: BrokerConfig, metadata: Metadata) -> None:
        self._config = config
        self._metadata = metadata

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe}

    async def describe(self, context: Work, body: DescribeTopicPartitionsRequest) -> Response:
        """Return a page of the named topics, or of all; those that the client may not see are named at its end."""
        begin = Cursor(body.cursor.topic_name, body.cursor.partition_index) if body.cursor is not None else None
        named: dict[str, None] = {}
        async for chunk in in_steps(body.topics):
            named.update((topic.name, None) for topic in chunk if begin is None or topic.name >= begin.topic)
        if begin is not None and (begin.partition < 0 or (body.topics and begin.topic not in named)):
            invalid = (_row(topic.name, ErrorCode.INVALID_REQUEST) for topic in body.topics)
            return {"topics": Rows(len(body.topics), invalid)}
        refused = [name for need in context.refused if (name := need.name) in named]
        if body.topics:
            hidden, wanted = frozenset(refused), sorted(named)
        else:
            wanted = sorted(name for name in self._metadata.topics() if begin is None or name >= begin.topic)
            hidden = await context.hidden_of_many(Operation.DESCRIBE, Resource.TOPIC, wanted)
        shown = (name for name in wanted if name not in hidden)
        limit = max(1, min(body.response_partition_limit, self._config.max_request_partition_size_limit))
        page = await steps.run(page_of(shown, self._metadata.topic, begin, limit), STEP_ITEMS)
        topics = page.topics if body.topics else [each for each in page.topics if each.topic is not None]

        def rows() -> Iterable[Response]:
            yield from (self._described(context, each) for each in topics)
            yield from (_row(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in refused)

        following = None if page.next is None else {"topic_name": page.next[0], "partition_index": page.next[1]}
        return {"topics": Rows(len(topics) + len(refused), rows()), "next_cursor": following}

    def _described(self, context: Work, described: Described) -> Response:
        name, topic, partitions = described
        operations = granted(context, Resource.TOPIC, name)
        if topic is None:
            return _row(name, why_unknown(name), operations)
        live, told = self._metadata.brokers(), self._metadata.brokers_at(context.listener)
        # No broker here keeps replicas that may lead although they are not in sync (KIP-966).
        none = {"eligible_leader_replicas": (), "last_known_elr": (), "error_code": ErrorCode.NONE}
        rows = ({**partition_row(live, told, number, found), **none} for number, found in partitions)
        return _row(name, ErrorCode.NONE, operations, topic_uuid(topic.id), Rows(len(partitions), rows))


def _row(
    name: str,
    code: ErrorCode,
    operations: int = NOT_ASKED,
    topic_id: UUID | None = None,
    partitions: Rows[Response] | tuple[()] = (),
) -> Response:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": partitions,
        "topic_authorized_operations": operations,
    }
